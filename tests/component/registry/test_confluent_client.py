"""Confluent's unmodified Python clients and serializers, blocking and async, against the registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.avro_schema import unframe
from support.registry.blocking import Blocking
from support.registry.registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE

confluent = pytest.importorskip("confluent_kafka.schema_registry")
from confluent_kafka.schema_registry import (  # noqa: E402
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleParams,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import (  # noqa: E402
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

ID = '{"type":"fixed","name":"Id","namespace":"n","size":4}'
WITH_ID = '{"type":"record","name":"R","fields":[{"name":"id","type":"n.Id"}]}'


class ClientLibrary:
    """Creates the blocking or the async classes."""

    def __init__(self, is_async: bool, url: str) -> None:
        self._loop = asyncio.new_event_loop() if is_async else None
        self._url = url
        self._clients: list[Any] = []

    def client(self) -> Any:
        conf = {"url": self._url, "max.retries": 0}
        if self._loop is None:
            self._clients.append(SchemaRegistryClient(conf))
        else:
            self._clients.append(Blocking(AsyncSchemaRegistryClient(conf), self._loop))
        return self._clients[-1]

    def serializer(self, client: Any, text: str, **conf: Any) -> Any:
        if self._loop is None:
            return AvroSerializer(client, text, conf=conf)
        return Blocking(self._loop.run_until_complete(AsyncAvroSerializer(client.target, text, conf=conf)), self._loop)

    def deserializer(self, client: Any, text: str | None = None) -> Any:
        if self._loop is None:
            return AvroDeserializer(client, text)
        return Blocking(self._loop.run_until_complete(AsyncAvroDeserializer(client.target, text)), self._loop)

    def close(self) -> None:
        for client in self._clients:
            if self._loop is None:
                client.close()
            else:
                client.aclose()
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(scope="module", params=[False, True], ids=["blocking", "async"])
def library(request: pytest.FixtureRequest, registry_url: str) -> Iterator[ClientLibrary]:
    made = ClientLibrary(request.param, registry_url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(library: ClientLibrary) -> Any:
    return library.client()


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/with slash"


def error_of(call: Any, *arguments: Any, **named: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*arguments, **named)
    return caught.value.http_status_code, caught.value.error_code


def with_properties(text: str, **properties: str) -> Any:
    return Schema(text, "AVRO", metadata=Metadata(None, MetadataProperties(properties), None))


def test_serializer_round_trip(library: ClientLibrary, client: Any, subject: str) -> None:
    context = SerializationContext(subject, MessageField.VALUE)
    value = {"id": 2**40, "mail": "a@b.c"}
    message = library.serializer(client, USER_2)(value, context)
    framed = unframe(message)
    # A separate client, so that the schema is fetched and not cached.
    other = library.client()
    assert library.deserializer(other)(message, context) == value
    assert library.deserializer(other, USER_1)(message, context) == {"id": 2**40}
    assert json.loads(other.get_schema(framed.schema_id).schema_str) == json.loads(USER_2)
    assert client.get_latest_version(f"{subject}-value").schema_id == framed.schema_id


def test_serializer_resolves_references(library: ClientLibrary, client: Any, subject: str) -> None:
    client.register_schema(f"{subject}-id", Schema(ID, "AVRO"))
    reference = SchemaReference("n.Id", f"{subject}-id", 1)
    client.register_schema(f"{subject}-value", Schema(WITH_ID, "AVRO", [reference]))
    context = SerializationContext(subject, MessageField.VALUE)
    options = {"auto.register.schemas": False, "use.latest.version": True}
    message = library.serializer(client, Schema(WITH_ID, "AVRO", [reference]), **options)({"id": b"abcd"}, context)
    assert library.deserializer(library.client())(message, context) == {"id": b"abcd"}


def test_serializer_without_auto_register_finds_the_schema(library: ClientLibrary, client: Any, subject: str) -> None:
    context = SerializationContext(subject, MessageField.VALUE)
    client.register_schema(f"{subject}-value", with_properties(USER_1, **{"headrace.time": "id"}))
    schema_id = client.get_latest_version(f"{subject}-value").schema_id
    for options in (
        {"auto.register.schemas": False},
        {"auto.register.schemas": False, "use.latest.version": True},
        {"auto.register.schemas": False, "use.latest.with.metadata": {"headrace.time": "id"}},
        {"auto.register.schemas": False, "use.schema.id": schema_id},
        {"normalize.schemas": True},
    ):
        message = library.serializer(client, USER_1, **options)({"id": 1}, context)
        assert unframe(message).schema_id == schema_id


def test_client_registers_and_reads_versions(client: Any, subject: str) -> None:
    schema = Schema(USER_1, "AVRO")
    registered = client.register_schema_full_response(subject, schema)
    schema_id = registered.schema_id
    assert (registered.version, registered.schema.schema_str) == (1, USER_1)
    assert client.register_schema(subject, schema) == schema_id
    assert client.lookup_schema(subject, schema).version == 1
    assert subject in client.get_subjects()
    assert client.get_versions(subject) == [1]
    assert client.get_version(subject, 1).schema_id == schema_id
    assert client.get_latest_version(subject).schema.schema_str == USER_1
    assert client.get_schema(schema_id, subject_name=subject).schema_str == USER_1
    assert client.get_schema_by_guid(registered.guid).schema_str == USER_1
    assert client.get_schema_types() == ["AVRO"]
    assert subject in client.get_subjects_by_schema_id(schema_id)
    versions = client.get_schema_versions(schema_id)
    assert (subject, 1) in [(version.subject, version.version) for version in versions]
    client.register_schema(subject, Schema(USER_2, "AVRO"))
    client.clear_caches()
    assert client.get_latest_version(subject).version == 2
    assert client.get_versions(subject, offset=1, limit=1) == [2]


def test_client_sends_references_and_metadata(client: Any, subject: str) -> None:
    client.register_schema(f"{subject}-id", Schema(ID, "AVRO"))
    reference = SchemaReference("n.Id", f"{subject}-id", 1)
    metadata = Metadata(None, MetadataProperties({"owner": "shop"}), None)
    schema_id = client.register_schema(subject, Schema(WITH_ID, "AVRO", [reference], metadata))
    found = client.get_latest_version(subject).schema
    assert [(item.name, item.subject, item.version) for item in found.references] == [("n.Id", f"{subject}-id", 1)]
    assert found.metadata.properties.to_dict() == {"owner": "shop"}
    assert client.get_latest_with_metadata(subject, {"owner": "shop"}).schema_id == schema_id
    assert error_of(client.get_latest_with_metadata, subject, {"owner": "me"}) == (404, 40403)
    assert client.get_referenced_by(f"{subject}-id", 1) == [schema_id]
    assert error_of(client.delete_version, f"{subject}-id", 1) == (422, 42206)
    client.delete_version(subject, 1)
    assert client.delete_version(f"{subject}-id", 1) == 1


def test_client_sends_and_reads_rules(client: Any, subject: str) -> None:
    expression = "size(message.mail) > 0"
    rule = Rule(
        "mail", "", RuleKind.CONDITION, RuleMode.WRITE, "CEL", [], RuleParams({}), expression, None, None, False
    )
    client.register_schema(subject, Schema(USER_2, "AVRO", rule_set=RuleSet([], [rule], [])))
    found = client.get_latest_version(subject).schema.rule_set.domain_rules
    assert [(item.name, item.kind, item.mode, item.expr) for item in found] == [
        ("mail", RuleKind.CONDITION, RuleMode.WRITE, expression)
    ]
    assert error_of(
        client.register_schema, subject, Schema(USER_2, "AVRO", rule_set=RuleSet([], [rule, rule], []))
    ) == (
        422,
        42210,
    )


def test_client_checks_compatibility_and_sets_configuration(client: Any, subject: str) -> None:
    client.register_schema(subject, Schema(USER_1, "AVRO"))
    wrong = Schema(USER_INCOMPATIBLE, "AVRO")
    assert client.test_compatibility(subject, Schema(USER_2, "AVRO"))
    assert not client.test_compatibility(subject, wrong)
    assert not client.test_compatibility(subject, wrong, version=1, verbose=True)
    assert client.test_compatibility_all_versions(subject, Schema(USER_2, "AVRO"), normalize=True)
    assert error_of(client.register_schema, subject, wrong) == (409, 40901)
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility(subject, "none")
    assert client.get_compatibility(subject) == "NONE"
    config = ServerConfig(
        compatibility=ConfigCompatibilityLevel.FULL,
        compatibility_group="major",
        default_metadata=Metadata(None, MetadataProperties({"owner": "shop"}), None),
    )
    client.set_config(subject, config)
    found = client.get_config(subject)
    assert found.compatibility_level is ConfigCompatibilityLevel.FULL
    assert found.compatibility_group == "major"
    assert found.default_metadata.properties.to_dict() == {"owner": "shop"}
    client.delete_config(subject)
    assert error_of(client.get_config, subject) == (404, 40408)


def test_client_sets_modes(client: Any, subject: str) -> None:
    assert client.get_global_mode() == "READWRITE"
    assert error_of(client.get_mode, subject) == (404, 40409)
    client.register_schema(subject, Schema(USER_1, "AVRO"))
    assert client.update_mode(subject, "READONLY") == "READONLY"
    assert client.get_mode(subject) == "READONLY"
    assert error_of(client.register_schema, subject, Schema(USER_2, "AVRO")) == (422, 42205)
    assert error_of(client.delete_version, subject, 1) == (422, 42205)
    assert error_of(client.update_mode, subject, "IMPORT") == (422, 42205)
    assert client.delete_mode(subject) == "READONLY"
    assert client.register_schema(subject, Schema(USER_2, "AVRO"))


def test_client_uses_contexts(client: Any, subject: str) -> None:
    name = f":.eu:{subject}"
    client.register_schema(name, Schema(USER_1, "AVRO"))
    assert {".", ".eu"} <= set(client.get_contexts())
    assert client.get_latest_version(name).subject == name
    assert name in client.get_subjects()
    assert client.get_schema(client.get_latest_version(name).schema_id, subject_name=name).schema_str == USER_1


def test_client_deletes_and_reads_error_codes(client: Any, subject: str) -> None:
    assert error_of(client.get_latest_version, subject) == (404, 40401)
    assert error_of(client.get_schema, 999_999) == (404, 40403)
    assert error_of(client.register_schema, subject, Schema("{", "AVRO")) == (422, 42201)
    client.register_schema(subject, Schema(STRING, "AVRO"))
    assert error_of(client.lookup_schema, subject, Schema(USER_1, "AVRO")) == (404, 40403)
    assert error_of(client.delete_version, subject, 1, permanent=True) == (404, 40407)
    assert client.delete_version(subject, 1) == 1
    assert client.get_version(subject, 1, deleted=True).schema.schema_str == STRING
    client.register_schema(f"{subject}2", Schema(STRING, "AVRO"))
    assert error_of(client.delete_subject, f"{subject}2", permanent=True) == (404, 40405)
    assert client.delete_subject(f"{subject}2") == [1]
    assert error_of(client.delete_subject, f"{subject}2") == (404, 40404)
    assert f"{subject}2" in client.get_subjects(deleted=True)
    assert f"{subject}2" not in client.get_subjects()
    assert client.delete_subject(f"{subject}2", permanent=True) == [1]
    assert f"{subject}2" not in client.get_subjects(deleted=True)
    assert client.delete_version(subject, 1, permanent=True) == 1
    assert error_of(client.delete_subject, subject) == (404, 40401)


def test_client_s_parameter_names_are_supported(client: Any, subject: str) -> None:
    """Some names differ from the reference: `deleted_only`, `reference_format`, `subject` for a prefix."""
    client.register_schema(f"{subject}-id", Schema(ID, "AVRO"))
    reference = SchemaReference("n.Id", f"{subject}-id", 1)
    schema_id = client.register_schema(subject, Schema(WITH_ID, "AVRO", [reference]))
    resolved = json.loads(client.get_schema(schema_id, fmt="resolved").schema_str)
    assert resolved["fields"][0]["type"] == json.loads(ID)
    assert client.get_version(subject, 1, fmt="resolved").schema.schema_str != WITH_ID
    assert client.get_schema(schema_id, subject_name=subject, reference_format="qualified").references[0].name == "n.Id"
    assert client.get_subjects(subject_prefix=f"{subject}") == [subject, f"{subject}-id"]
    assert client.get_subjects(subject_prefix=subject, offset=1, limit=1) == [f"{subject}-id"]
    client.delete_subject(subject)
    assert client.get_subjects(subject_prefix=subject, deleted_only=True) == [subject]
    assert client.get_subjects(subject_prefix=subject, deleted=True) == [subject, f"{subject}-id"]
    assert client.get_versions(subject, deleted_only=True) == [1]
    assert client.lookup_schema(subject, Schema(WITH_ID, "AVRO", [reference]), deleted=True).schema_id == schema_id
    found = client.get_schema_versions(schema_id, deleted=True, subject_name=subject)
    assert [(item.subject, item.version) for item in found] == [(subject, 1)]
    assert client.get_contexts(offset=0, limit=1) == ["."]


def test_associations_return_404(client: Any) -> None:
    """Serializers request them first and fall back to the topic name on 404."""
    assert error_of(client.get_associations_by_resource_name, "topic", "-")[0] == 404


def test_client_reads_and_sets_global_settings(client: Any) -> None:
    assert client.set_compatibility(level="FULL") == {"compatibility": "FULL"}
    assert client.get_compatibility() == "FULL"
    assert client.set_config(config=ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD)) is not None
    assert client.get_config().compatibility_level is ConfigCompatibilityLevel.BACKWARD
    assert client.update_global_mode("READONLY") == "READONLY"
    assert client.get_global_mode() == "READONLY"
    assert client.update_global_mode("READWRITE") == "READWRITE"
