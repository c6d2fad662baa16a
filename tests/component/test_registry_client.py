"""The client of the other rooms against a real registry."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE

from avro_schema import Fixed, Reference
from registry import errors
from registry.client import RegistryClient, SchemaReference


@pytest.fixture
def client(registry_url: str) -> Iterator[RegistryClient]:
    with RegistryClient(registry_url) as opened:
        yield opened


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/ä"


def test_register_and_find(client: RegistryClient, subject: str) -> None:
    registered = client.register(subject, USER_1, metadata={"headrace.time": "id"})
    assert (registered.subject, registered.version, registered.text) == (subject, 1, USER_1)
    assert registered.metadata == {"headrace.time": "id"}
    assert client.register(subject, USER_1).schema_id == registered.schema_id
    assert client.lookup(subject, USER_1) == registered
    assert client.version(subject, 1) == registered
    assert client.version(subject, "latest") == registered
    by_id = client.schema_by_id(registered.schema_id)
    assert (by_id.text, by_id.subject, by_id.version) == (USER_1, None, None)
    assert by_id.metadata == {"headrace.time": "id"}
    assert subject in client.subjects()
    assert client.versions(subject) == [1]
    assert client.register(subject, USER_2).version == 2
    assert client.version(subject, "latest").version == 2


def test_parsed_fetches_references(client: RegistryClient, subject: str) -> None:
    client.register(f"{subject}-a", '{"type":"fixed","name":"A","size":4}')
    client.register(
        f"{subject}-b", '{"type":"array","items":"A"}', references=[SchemaReference("A", f"{subject}-a", 1)]
    )
    record = '{"type":"record","name":"R","fields":[{"name":"a","type":"A"}]}'
    registered = client.register(subject, record, references=[SchemaReference("A", f"{subject}-a", 1)])
    schema = client.parsed(registered)
    node = schema.root.fields[0].type  # type: ignore[union-attr]
    assert isinstance(node, Reference)
    assert isinstance(schema.resolve(node), Fixed)
    assert client.parsed(client.schema_by_id(registered.schema_id)) == schema


def test_errors_come_back_as_they_were(client: RegistryClient, subject: str) -> None:
    with pytest.raises(errors.SubjectNotFound, match="not found") as unknown:
        client.version(subject, "latest")
    assert unknown.value.subject == subject
    with pytest.raises(errors.SchemaNotFound, match="Schema 999999 not found") as missing:
        client.schema_by_id(999_999)
    assert missing.value.schema_id == 999_999
    with pytest.raises(errors.InvalidSchema, match="line 1, column 2: expected a key"):
        client.register(subject, "{")
    client.register(subject, USER_1)
    with pytest.raises(errors.SchemaNotFound, match="Schema not found"):
        client.lookup(subject, STRING)
    with pytest.raises(errors.VersionNotFound, match="Version 7"):
        client.version(subject, 7)
    with pytest.raises(errors.InvalidVersion):
        client.version(subject, 0)
    with pytest.raises(errors.IncompatibleSchema, match="'age' at path '/fields/1'"):
        client.register(subject, USER_INCOMPATIBLE)
    with pytest.raises(errors.InvalidCompatibilityLevel):
        client.set_compatibility("SIDEWAYS")
    with pytest.raises(errors.InvalidSubject):
        client.register("\ud800", STRING)
    with pytest.raises(errors.SubjectNotSoftDeleted):
        client.delete_subject(subject, permanent=True)


def test_compatibility(client: RegistryClient, subject: str) -> None:
    client.register(subject, USER_1)
    assert client.check_compatibility(subject, USER_2) == (True, [])
    is_compatible, messages = client.check_compatibility(subject, USER_INCOMPATIBLE, version="latest")
    assert not is_compatible
    assert messages[0].startswith("{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert client.compatibility() == client.compatibility(subject) == "BACKWARD"
    client.set_compatibility("none", subject)
    assert client.compatibility(subject) == "NONE"
    assert client.register(subject, USER_INCOMPATIBLE).version == 2


def test_deletes(client: RegistryClient, subject: str) -> None:
    registered = client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":"{subject}"}}')
    assert client.delete_version(subject, "latest") == 1
    assert client.schema_by_id(registered.schema_id).text == registered.text
    assert client.version(subject, 1).schema_id == registered.schema_id
    assert client.delete_subject(subject, permanent=True) == [1]
    with pytest.raises(errors.SchemaNotFound):
        client.schema_by_id(registered.schema_id)


def test_threads_share_a_client(client: RegistryClient, subject: str) -> None:
    def work(number: int) -> int:
        return client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":{number % 5}}}').schema_id

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(work, range(200)))) == 5
