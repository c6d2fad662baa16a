"""The unmodified python-schema-registry-client, blocking and async.

It has no methods for references and for permanent deletion; the tests use its `request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.avro_schema import unframe
from support.registry.blocking import Blocking
from support.registry.registry_calls import USER_1, USER_2, USER_INCOMPATIBLE

client_library = pytest.importorskip("schema_registry.client")
from schema_registry.client.errors import ClientError  # noqa: E402
from schema_registry.client.schema import AvroSchema  # noqa: E402
from schema_registry.serializers import AsyncAvroMessageSerializer, AvroMessageSerializer  # noqa: E402

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def client_of(url: str, is_async: bool, loop: asyncio.AbstractEventLoop) -> Any:
    if is_async:
        return Blocking(client_library.AsyncSchemaRegistryClient(url=url), loop)
    return client_library.SchemaRegistryClient(url=url)


@pytest.fixture
def client(registry_url: str, is_async: bool, loop: asyncio.AbstractEventLoop) -> Any:
    return client_of(registry_url, is_async, loop)


def test_register_and_read_schemas(client: Any, subject: str, registry_url: str, is_async: bool, loop: Any) -> None:
    assert client.get_schema(subject) is None
    assert client.get_versions(subject) == []
    assert client.check_version(subject, AvroSchema(USER_1)) is None
    first = client.register(subject, AvroSchema(USER_1))
    assert client_of(registry_url, is_async, loop).register(subject, AvroSchema(USER_1)) == first
    second = client.register(subject, USER_2)
    assert second != first
    with pytest.raises(ClientError) as refused:
        client.register(subject, AvroSchema(USER_INCOMPATIBLE))
    assert refused.value.http_code == 409
    assert client.get_versions(subject) == [1, 2]
    assert subject in client.get_subjects()
    latest = client_of(registry_url, is_async, loop).get_schema(subject)
    assert (latest.schema_id, latest.version) == (second, 2)
    assert latest.schema == AvroSchema(USER_2)
    assert client.get_schema(subject, 1).schema_id == first
    found = client_of(registry_url, is_async, loop).get_by_id(second)
    assert found == AvroSchema(USER_2)
    assert client.get_by_id(999_999) is None
    usages = client.get_schema_subject_versions(first)
    assert (subject, 1) in [(usage.subject, usage.version) for usage in usages]
    checked = client_of(registry_url, is_async, loop).check_version(subject, AvroSchema(USER_1))
    assert (checked.schema_id, checked.version) == (first, 1)


def test_check_compatibility_and_set_levels(client: Any, subject: str) -> None:
    assert client.test_compatibility(subject, AvroSchema(USER_1))
    client.register(subject, AvroSchema(USER_1))
    assert client.test_compatibility(subject, AvroSchema(USER_2))
    assert client.test_compatibility(subject, AvroSchema(USER_INCOMPATIBLE)) is False
    verbose = client.test_compatibility(subject, AvroSchema(USER_INCOMPATIBLE), verbose=True)
    assert not verbose["is_compatible"]
    assert verbose["messages"]
    assert client.get_compatibility() == "BACKWARD"
    with pytest.raises(ClientError) as unset:
        client.get_compatibility(subject)
    assert unset.value.http_code == 404
    for level in ("FULL_TRANSITIVE", "NONE"):
        assert client.update_compatibility(level, subject)
        assert client.get_compatibility(subject) == level
    assert client.register(subject, AvroSchema(USER_INCOMPATIBLE))


def test_delete_versions_and_subjects(client: Any, subject: str) -> None:
    assert client.delete_subject(subject) == []
    client.register(subject, AvroSchema(USER_1))
    client.register(subject, AvroSchema(USER_2))
    assert client.delete_version(subject) == 2
    assert client.delete_version(subject, 2) is None
    assert client.get_versions(subject) == [1]
    assert client.delete_subject(subject) == [1]
    assert client.get_versions(subject) == []
    assert subject not in client.get_subjects()


def test_references_and_permanent_deletion(client: Any, subject: str, registry_url: str) -> None:
    client.register(f"{subject}-id", '{"type":"fixed","name":"Id","namespace":"n","size":4}')
    body = {
        "schema": '{"type":"array","items":"n.Id"}',
        "references": [{"name": "n.Id", "subject": f"{subject}-id", "version": 1}],
    }
    registered = client.request(f"{registry_url}/subjects/{subject}/versions", "POST", body)
    assert registered.status_code == 200
    found = client.request(f"{registry_url}/schemas/ids/{registered.json()['id']}")
    assert found.json()["references"] == body["references"]
    assert client.delete_version(f"{subject}-id", 1) is None  # rejected
    for query in ("", "?permanent=true"):
        assert client.request(f"{registry_url}/subjects/{subject}{query}", "DELETE").json() == [1]
    assert client.delete_version(f"{subject}-id", 1) == 1


def test_serializer_encodes_and_decodes(
    client: Any, subject: str, registry_url: str, is_async: bool, loop: Any
) -> None:
    def serializer(of: Any) -> Any:
        return Blocking(AsyncAvroMessageSerializer(of.target), loop) if is_async else AvroMessageSerializer(of)

    value = {"id": 2**40, "mail": "a@b.c"}
    message = serializer(client).encode_record_with_schema(subject, AvroSchema(USER_2), value)
    assert unframe(message).schema_id == client.get_schema(subject).schema_id
    assert serializer(client_of(registry_url, is_async, loop)).decode_message(message) == value
