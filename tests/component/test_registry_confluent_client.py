"""Confluent's own Python client and serializers, unmodified, against the registry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE

from avro_schema import unframe

confluent = pytest.importorskip("confluent_kafka.schema_registry")
from confluent_kafka.schema_registry import (  # noqa: E402
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402


@pytest.fixture(scope="module")
def client(registry_url: str) -> Any:
    return SchemaRegistryClient({"url": registry_url})


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/with slash"


def error_of(call: Any, *arguments: Any, **named: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*arguments, **named)
    return caught.value.http_status_code, caught.value.error_code


def test_serializer_round_trip(client: Any, registry_url: str) -> None:
    context = SerializationContext("shop/users", MessageField.VALUE)
    serialize = AvroSerializer(client, USER_2)
    value = {"id": 2**40, "mail": "a@b.c"}
    message = serialize(value, context)
    framed = unframe(message)
    # A client of its own, so that the schema is fetched and not remembered.
    other = SchemaRegistryClient({"url": registry_url})
    assert AvroDeserializer(other)(message, context) == value
    assert json.loads(other.get_schema(framed.schema_id).schema_str) == json.loads(USER_2)
    assert client.get_latest_version("shop/users-value").schema_id == framed.schema_id


def test_serializer_without_registration_finds_the_schema(client: Any) -> None:
    context = SerializationContext("looked-up", MessageField.VALUE)
    client.register_schema(
        "looked-up-value",
        Schema(USER_1, "AVRO", metadata=Metadata(None, MetadataProperties({"headrace.time": "id"}), None)),
    )
    for options in ({"auto.register.schemas": False}, {"auto.register.schemas": False, "use.latest.version": True}):
        message = AvroSerializer(client, USER_1, conf=options)({"id": 1}, context)
        assert unframe(message).schema_id == client.get_latest_version("looked-up-value").schema_id
    normalized = AvroSerializer(client, USER_1, conf={"normalize.schemas": True})({"id": 1}, context)
    assert normalized == message


def test_registration_and_versions(client: Any, subject: str) -> None:
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
    assert client.get_schema_types() == ["AVRO"]
    assert subject in client.get_subjects_by_schema_id(schema_id)
    versions = client.get_schema_versions(schema_id)
    assert (subject, 1) in [(version.subject, version.version) for version in versions]


def test_references_and_metadata(client: Any, subject: str) -> None:
    client.register_schema(f"{subject}-id", Schema('{"type":"fixed","name":"Id","namespace":"n","size":4}', "AVRO"))
    reference = SchemaReference("n.Id", f"{subject}-id", 1)
    text = '{"type":"record","name":"R","fields":[{"name":"id","type":"n.Id"}]}'
    metadata = Metadata(None, MetadataProperties({"owner": "shop"}), None)
    schema_id = client.register_schema(subject, Schema(text, "AVRO", [reference], metadata))
    found = client.get_latest_version(subject).schema
    assert [(item.name, item.subject, item.version) for item in found.references] == [("n.Id", f"{subject}-id", 1)]
    assert found.metadata.properties.to_dict() == {"owner": "shop"}
    assert client.get_referenced_by(f"{subject}-id", 1) == [schema_id]
    assert error_of(client.delete_version, f"{subject}-id", 1) == (422, 42206)


def test_compatibility_and_configuration(client: Any, subject: str) -> None:
    client.register_schema(subject, Schema(USER_1, "AVRO"))
    wrong = Schema(USER_INCOMPATIBLE, "AVRO")
    assert client.test_compatibility(subject, Schema(USER_2, "AVRO"))
    assert not client.test_compatibility(subject, wrong)
    assert not client.test_compatibility(subject, wrong, version=1)
    assert client.test_compatibility_all_versions(subject, Schema(USER_2, "AVRO"))
    assert error_of(client.register_schema, subject, wrong) == (409, 40901)
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility(subject, "none")
    assert client.get_compatibility(subject) == "NONE"
    client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_config(subject).compatibility_level is ConfigCompatibilityLevel.FULL
    client.delete_config(subject)
    assert error_of(client.get_config, subject) == (404, 40408)


def test_deletes_and_errors(client: Any, subject: str) -> None:
    assert error_of(client.get_latest_version, subject) == (404, 40401)
    assert error_of(client.get_schema, 999_999) == (404, 40403)
    assert error_of(client.register_schema, subject, Schema("{", "AVRO")) == (422, 42201)
    client.register_schema(subject, Schema(STRING, "AVRO"))
    assert error_of(client.lookup_schema, subject, Schema(USER_1, "AVRO")) == (404, 40403)
    assert client.delete_version(subject, 1) == 1
    client.register_schema(f"{subject}2", Schema(STRING, "AVRO"))
    assert client.delete_subject(f"{subject}2") == [1]
    assert f"{subject}2" in client.get_subjects(deleted=True)
    assert client.delete_subject(f"{subject}2", permanent=True) == [1]
    assert client.delete_version(subject, 1, permanent=True) == 1
    assert error_of(client.delete_subject, subject) == (404, 40401)
