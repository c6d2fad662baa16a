"""The registry client against a real registry."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from headrace.avro_schema import Fixed, Name, Reference
from headrace.registry import errors
from headrace.registry.client import RegisteredSchema, RegistryClient, SchemaReference, SubjectVersion
from support.pages import blocks, page
from support.registry.registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE


@pytest.fixture
def client(registry_url: str) -> Iterator[RegistryClient]:
    with RegistryClient(registry_url) as opened:
        yield opened


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/ä"


def test_register_then_find_by_every_method(client: RegistryClient, subject: str) -> None:
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


def test_identity_is_stable(client: RegistryClient, registry_url: str) -> None:
    with RegistryClient(registry_url) as other:
        assert client.identity() == other.identity()
    assert "headrace-" in client.identity()
    assert client.in_context(".eu").identity() == client.identity()


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


def test_parsed_accepts_texts_that_avro_java_accepts(client: RegistryClient) -> None:
    """Other registries return schemas as they were sent, with comments and repeated keys."""
    found = RegisteredSchema(7, '/* licence */ {"type":"fixed","name":"A","size":4, // bytes\n "size":8}')
    assert client.parsed(found).root == Fixed(Name("A"), 8)


def test_errors_have_class_and_fields_of_the_server(client: RegistryClient, subject: str) -> None:
    with pytest.raises(errors.SubjectNotFound) as unknown:
        client.version(subject, "latest")
    assert unknown.value.subject == subject
    with pytest.raises(errors.SchemaNotFound) as missing:
        client.schema_by_id(999_999)
    assert missing.value.schema_id == 999_999
    with pytest.raises(errors.InvalidSchema, match="line 1, column 2"):
        client.register(subject, "{")
    client.register(subject, USER_1)
    with pytest.raises(errors.SchemaNotFound) as missing:
        client.lookup(subject, STRING)
    assert (missing.value.subject, missing.value.schema_id) == (subject, None)
    with pytest.raises(errors.VersionNotFound) as no_version:
        client.version(subject, 7)
    assert no_version.value.version == 7
    with pytest.raises(errors.InvalidVersion):
        client.version(subject, 0)
    with pytest.raises(errors.IncompatibleSchema, match=r"'age'.*/fields/1"):
        client.register(subject, USER_INCOMPATIBLE)
    with pytest.raises(errors.InvalidCompatibilityLevel):
        client.set_compatibility("SIDEWAYS")
    with pytest.raises(errors.InvalidSubject):
        client.register("\ud800", STRING)
    with pytest.raises(errors.SubjectNotSoftDeleted):
        client.delete_subject(subject, permanent=True)


def test_check_compatibility_and_levels(client: RegistryClient, subject: str) -> None:
    client.register(subject, USER_1)
    assert client.check_compatibility(subject, USER_2) == (True, [])
    is_compatible, messages = client.check_compatibility(subject, USER_INCOMPATIBLE, version="latest")
    assert not is_compatible
    assert messages[0].startswith("{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert client.compatibility() == client.compatibility(subject) == "BACKWARD"
    client.set_compatibility("none", subject)
    assert client.compatibility(subject) == "NONE"
    assert client.register(subject, USER_INCOMPATIBLE).version == 2


def test_delete_version_and_subject(client: RegistryClient, subject: str) -> None:
    registered = client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":"{subject}"}}')
    assert client.delete_version(subject, "latest") == 1
    assert client.schema_by_id(registered.schema_id).text == registered.text
    assert client.version(subject, 1).schema_id == registered.schema_id
    assert client.delete_subject(subject, permanent=True) == [1]
    with pytest.raises(errors.SchemaNotFound):
        client.schema_by_id(registered.schema_id)


def test_client_is_thread_safe(client: RegistryClient, subject: str) -> None:
    def work(number: int) -> int:
        return client.register(subject, f'{{"type":"fixed","name":"F","size":1,"of":{number % 5}}}').schema_id

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(work, range(200)))) == 5


def test_schema_by_guid_usages_and_referenced_by(client: RegistryClient, subject: str) -> None:
    fixed = client.register(f"{subject}-a", '{"type":"fixed","name":"A","size":5}')
    text = '{"type":"array","items":"A"}'
    registered = client.register(subject, text, [SchemaReference("A", f"{subject}-a", 1)])
    assert client.schema_by_guid(registered.guid) == replace(registered, subject=None, version=None)
    assert client.usages(fixed.schema_id) == [SubjectVersion(f"{subject}-a", 1)]
    assert client.referenced_by(f"{subject}-a", 1) == [registered.schema_id]
    with pytest.raises(errors.ReferenceExists):
        client.delete_subject(f"{subject}-a")
    with pytest.raises(errors.SchemaNotFound):
        client.schema_by_guid("00000000-0000-0000-0000-000000000000")


def test_subjects_and_versions_are_listed(client: RegistryClient, subject: str) -> None:
    client.register(f"{subject}-1", STRING)
    client.register(f"{subject}-2", STRING)
    client.delete_subject(f"{subject}-2")
    assert client.subjects(f"{subject}-") == [f"{subject}-1"]
    assert client.subjects(f"{subject}-", deleted=True) == [f"{subject}-1", f"{subject}-2"]
    assert client.versions(f"{subject}-2", deleted=True) == [1]


def test_config_is_set_and_deleted(client: RegistryClient, subject: str) -> None:
    with pytest.raises(errors.SubjectLevelNotConfigured):
        client.config(subject, inherited=False)
    assert client.config(subject)["compatibilityLevel"] == "BACKWARD"
    client.set_config({"compatibility": "FULL", "normalize": True}, subject)
    client.set_config({"normalize": None}, subject)
    assert client.config(subject, inherited=False) == {"compatibilityLevel": "FULL"}
    client.delete_config(subject)
    with pytest.raises(errors.SubjectNotFound):
        client.delete_config(subject)


def test_mode_is_set_and_deleted(client: RegistryClient, subject: str) -> None:
    assert client.mode() == client.mode(subject) == "READWRITE"
    with pytest.raises(errors.SubjectModeNotConfigured):
        client.mode(subject, inherited=False)
    with pytest.raises(errors.InvalidMode):
        client.set_mode("SIDEWAYS", subject)
    client.register(subject, USER_1)
    with pytest.raises(errors.OperationNotPermitted):
        client.set_mode("IMPORT", subject)
    client.set_mode("READONLY", subject)
    assert client.mode(subject, inherited=False) == "READONLY"
    with pytest.raises(errors.OperationNotPermitted):
        client.register(subject, USER_2)
    client.delete_mode(subject)
    with pytest.raises(errors.SubjectNotFound):
        client.delete_mode(subject)


def test_in_context_qualifies_subjects_and_ids(client: RegistryClient, subject: str) -> None:
    fixed = '{"type":"fixed","name":"InContext","size":4}'
    eu = client.in_context("eu")
    first = eu.register(f"{subject}-id", fixed)
    assert first.subject == f":.eu:{subject}-id"
    registered = eu.register(
        subject, '{"type":"array","items":"InContext"}', [SchemaReference("InContext", f"{subject}-id", 1)]
    )
    assert {".", ".eu"} <= set(client.contexts())
    assert eu.subjects(subject) == [f":.eu:{subject}", f":.eu:{subject}-id"]
    found = eu.version(subject, "latest")
    assert found.subject == f":.eu:{subject}"
    schemas = [
        eu.schema_by_id(registered.schema_id),
        client.version(f":.eu:{subject}", 1),
        client.schema_by_id(registered.schema_id, subject=f":.eu:{subject}"),
    ]
    assert {item.text for item in schemas} == {registered.text}
    parsed = [client.parsed(schemas[1]), client.parsed(schemas[2]), eu.parsed(schemas[0]), eu.parsed(registered)]
    assert parsed[0] == parsed[1] == parsed[2] == parsed[3]
    with pytest.raises(errors.SubjectNotFound):
        client.versions(f"{subject}-nowhere")


def test_examples_in_the_client_documentation_run(registry_url: str) -> None:
    examples = blocks(page("docs/registry-clients.md"), "python")
    assert len(examples) == 2
    for example in examples:
        # The other addresses have no server; creating a client sends no request.
        exec(example.replace("http://127.0.0.1:8081", registry_url), {})
