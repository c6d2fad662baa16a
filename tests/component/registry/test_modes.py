"""Modes: permitted changes, imports with ids and versions of another registry, and inheritance of modes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.registry.storage.database import sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import (
    STRING,
    USER_1,
    USER_2,
    USER_INCOMPATIBLE,
    Registry,
    RegistryInProcess,
    registry_in_process,
)

BYTES, INT = '"bytes"', '"int"'
ALL_CONTEXTS_SCOPE = ":.__GLOBAL:"
NUMBERS = itertools.count()


def fixed(size: int) -> str:
    return f'{{"type":"fixed","name":"F","size":{size}}}'


@pytest.fixture
def registry(registry: RegistryInProcess) -> Iterator[Registry]:
    """A registry that loses its modes after the test. Each test has its own context."""
    yield registry
    for scope in ("", f"/{ALL_CONTEXTS_SCOPE}"):
        registry.delete(f"/mode{scope}?recursive=true")


@pytest.fixture
def context() -> str:
    return f":.context-{next(NUMBERS)}:"


def set_mode(registry: Registry, scope: str, mode: str | None, query: str = "") -> None:
    response = registry.put(f"/mode/{scope}{query}" if scope else f"/mode{query}", {"mode": mode})
    assert response.status == 200, response.text


def import_schema(registry: Registry, subject: str, text: str, schema_id: int, version: int, **more: Any) -> Any:
    return registry.register(subject, text, id=schema_id, version=version, **more)


@pytest.mark.parametrize(
    ("set_at", "expected"),
    [
        ({}, "READWRITE"),
        ({"": "READONLY"}, "READONLY"),
        ({ALL_CONTEXTS_SCOPE: "READONLY"}, "READONLY"),
        ({"": "READWRITE", ALL_CONTEXTS_SCOPE: "READONLY"}, "READWRITE"),
        ({"s": "READWRITE", "": "READONLY"}, "READWRITE"),
        ({"s": "READWRITE", "": "READONLY_OVERRIDE"}, "READWRITE"),
        ({"": "READONLY_OVERRIDE"}, "READONLY_OVERRIDE"),
        ({"s": "READWRITE", ALL_CONTEXTS_SCOPE: "READONLY_OVERRIDE"}, "READONLY_OVERRIDE"),
        ({":.c:": "READONLY"}, "READWRITE"),
        ({"other": "READONLY"}, "READWRITE"),
    ],
)
def test_effective_mode_of_a_subject(registry: Registry, set_at: dict[str, str], expected: str) -> None:
    for scope, mode in set_at.items():
        set_mode(registry, scope, mode, "?force=true")
    assert registry.get("/mode/s?defaultToGlobal=true").json == {"mode": expected}
    registry.delete("/mode/:.c:")


@pytest.mark.parametrize(
    ("set_at", "expected"),
    [
        ({"": "READONLY"}, "READWRITE"),
        ({":.c:": "READONLY"}, "READONLY"),
        ({ALL_CONTEXTS_SCOPE: "READONLY"}, "READONLY"),
        ({":.c:": "READWRITE", ALL_CONTEXTS_SCOPE: "READONLY"}, "READWRITE"),
        ({":.c:s": "READWRITE", ":.c:": "READONLY"}, "READWRITE"),
        ({":.d:": "READONLY"}, "READWRITE"),
    ],
)
def test_effective_mode_of_a_subject_in_a_context(registry: Registry, set_at: dict[str, str], expected: str) -> None:
    for scope, mode in set_at.items():
        set_mode(registry, scope, mode, "?force=true")
    assert registry.get("/mode/:.c:s?defaultToGlobal=true").json == {"mode": expected}
    for scope in set_at:
        registry.delete(f"/mode/{scope}" if scope else "/mode")


def test_subject_mode_is_set_read_and_removed(registry: Registry, context: str) -> None:
    own = f"/mode/{context}s"
    unset = f"Subject '{context}s' does not have subject-level mode configured"
    assert registry.get(own).error == (404, 40409, unset)
    assert registry.delete(own).error == (404, 40401, f"Subject '{context}s' not found.")
    assert registry.put(own, {"mode": "readonly"}).json == {"mode": "readonly"}
    assert registry.get(own).json == {"mode": "READONLY"}
    assert registry.delete(own).json == {"mode": "READONLY"}
    assert registry.get(own).error[1] == 40409
    set_mode(registry, f"{context}s", "READONLY")
    assert registry.put(own, {"mode": None}).json == {}
    assert registry.get(own).error[1] == 40409


def test_global_mode_is_set_read_and_removed(registry: Registry) -> None:
    assert registry.get("/mode").json == {"mode": "READWRITE"}
    set_mode(registry, ALL_CONTEXTS_SCOPE, "READONLY")
    assert registry.get("/mode").json == {"mode": "READWRITE"}
    assert registry.get("/mode?defaultToGlobal=true").json == {"mode": "READONLY"}
    assert registry.get("/mode/:.:").json == {"mode": "READWRITE"}
    set_mode(registry, ":.:", "READONLY")
    assert registry.get("/mode").json == {"mode": "READONLY"}
    assert registry.delete("/mode").json == {"mode": "READONLY"}
    assert registry.delete("/mode").json == {"mode": "READWRITE"}


def test_readonly_override_is_inherited_like_other_modes_as_in_release_8_2(registry: Registry, context: str) -> None:
    own, other = f"{context}s", f"{context}other"
    for scope in (own, "s"):
        set_mode(registry, scope, "READWRITE")
    for scope in (context, ""):
        set_mode(registry, scope, "READONLY_OVERRIDE")
    for subject, unset in ((own, other), ("s", "other")):
        assert registry.get(f"/mode/{subject}").json == {"mode": "READWRITE"}
        assert registry.get(f"/mode/{unset}").error[1] == registry.get(f"/mode/:.fresh:{unset}").error[1] == 40409
        assert registry.register(subject, STRING).status == 200
        assert registry.register(unset, STRING).error[1] == 42205
    registry.delete("/mode/s")


def test_readonly_override_of_the_default_context_overrules_others_in_profile_7(sqlite_database_url: str) -> None:
    """Also in other contexts, and in requests for the own mode of a subject; as before release 8.2."""
    with registry_in_process(sqlite_database_url, profile=7) as registry:
        for scope in ("s", ":.c:s"):
            set_mode(registry, scope, "READWRITE")
        set_mode(registry, "", "READONLY_OVERRIDE")
        for subject in ("s", "other", ":.c:s", ":.c:", ":.d:other"):
            assert registry.get(f"/mode/{subject}").json == {"mode": "READONLY_OVERRIDE"}
            assert registry.get(f"/mode/{subject}?defaultToGlobal=true").json == {"mode": "READONLY_OVERRIDE"}
        for subject in ("s", ":.c:s"):
            assert registry.register(subject, STRING).error[1] == 42205
        assert registry.delete("/mode/s").json == {"mode": "READWRITE"}
        assert registry.delete("/mode/other").json == {"mode": "READONLY_OVERRIDE"}
        set_mode(registry, "", "READWRITE")
        assert registry.get("/mode/:.c:s").json == {"mode": "READWRITE"}
        assert registry.get("/mode/s").error[1] == 40409
        # A context's READONLY_OVERRIDE applies to subjects without a mode of their own only.
        set_mode(registry, ":.c:", "READONLY_OVERRIDE")
        assert registry.register(":.c:s", STRING).status == 200
        assert registry.register(":.c:other", STRING).error[1] == 42205


def test_recursive_removal_includes_modes_of_subjects(registry: Registry, context: str) -> None:
    for scope in (context, f"{context}a", f"{context}b", ":.beside:s"):
        set_mode(registry, scope, "READONLY")
    assert registry.delete(f"/mode/{context}?recursive=true").json == {"mode": "READONLY"}
    for scope in (context, f"{context}a", f"{context}b"):
        assert registry.get(f"/mode/{scope}").error[1] == 40409
    assert registry.get("/mode/:.beside:s").json == {"mode": "READONLY"}
    assert registry.delete(f"/mode/{context}?recursive=true").json == {}


def test_invalid_modes_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for scope, mode, message in [
            ("s", "SIDEWAYS", "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."),
            ("s", "", "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."),
            ("s", "FORWARD", "Forward mode only supported on global level"),
            (":.c:", "FORWARD", "Forward mode only supported on global level"),
            ("", "FORWARD", "Forward mode only supported on global level"),
            (":.", "FORWARD", "Forward mode only supported on global level"),
            (":.:", "FORWARD", "Forward mode only supported on global level"),
            (":.__GLOBAL:s", "forward", "Forward mode only supported on global level"),
        ]:
            with case((scope, mode, message)):
                assert registry.put(f"/mode/{scope}", {"mode": mode}).error == (422, 42204, message)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/subjects/{s}/versions", {"schema": INT}),
        ("POST", "/subjects/{s}/versions", {"schema": "not a schema"}),
        ("POST", "/subjects/{s}/versions", {"schema": INT, "id": 7, "version": 2}),
        ("DELETE", "/subjects/{s}", None),
        ("DELETE", "/subjects/{s}?permanent=true", None),
        ("DELETE", "/subjects/{s}/versions/1", None),
        ("DELETE", "/subjects/{s}/versions/1?permanent=true", None),
        ("PUT", "/config/{s}", {"compatibility": "NONE"}),
        ("DELETE", "/config/{s}", None),
    ],
)
def test_readonly_mode_rejects_changes(
    registry: Registry, context: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    subject = f"{context}s"
    registry.registered(subject, STRING)
    registry.put(f"/config/{subject}", {"compatibility": "FULL"})
    set_mode(registry, context, "READONLY")
    refused = (422, 42205, f"Subject {subject} in context {context[1:-1]} is in read-only mode")
    assert registry.call(method, path.format(s=subject), body).error == refused
    assert registry.get(f"/subjects/{subject}/versions").json == [1]


def test_readonly_mode_rejects_configuration_of_contexts(registry: Registry, context: str) -> None:
    set_mode(registry, context, "READONLY")
    message = f"Subject {context} in context {context[1:-1]} is in read-only mode"
    assert registry.put(f"/config/{context}", {"compatibility": "NONE"}).error == (422, 42205, message)
    assert registry.delete(f"/contexts/{context[1:-1]}").error == (422, 42205, message)
    set_mode(registry, "", "READONLY")
    message = "Subject null in context . is in read-only mode"
    assert registry.put("/config", {"compatibility": "NONE"}).error == (422, 42205, message)
    assert registry.delete("/config").error == (422, 42205, message)


def test_readonly_mode_permits_lookups_and_existing_schemas(registry: Registry, context: str) -> None:
    subject = f"{context}s"
    registered = registry.register(subject, STRING).json
    set_mode(registry, subject, "READONLY")
    assert registry.register(subject, STRING).json == registered
    assert registry.post(f"/subjects/{subject}", {"schema": STRING}).json["id"] == registered["id"]
    check = registry.post(f"/compatibility/subjects/{subject}/versions/latest", {"schema": INT})
    assert check.json == {"is_compatible": False}
    # A missing version is reported as missing.
    assert registry.delete(f"/subjects/{subject}/versions/9").error[1] == 40402


@pytest.mark.parametrize(
    ("mode", "body", "message"),
    [
        ("READWRITE", {"schema": STRING, "id": 5}, "is not in import mode"),
        ("IMPORT", {"schema": STRING}, "is not in read-write mode"),
        ("IMPORT", {}, "is not in read-write mode"),
    ],
)
def test_ids_are_accepted_in_import_mode_only(
    registry: Registry, context: str, mode: str, body: dict[str, Any], message: str
) -> None:
    set_mode(registry, context, mode)
    response = registry.post(f"/subjects/{context}s/versions", body)
    assert response.error == (422, 42205, f"Subject {context}s in context {context[1:-1]} {message}")


def test_import_keeps_ids_versions_and_contents(registry: Registry, context: str) -> None:
    subject = f"{context}s"
    set_mode(registry, context, "IMPORT")
    assert import_schema(registry, subject, USER_1, 700, 3).json["id"] == 700
    # Neither the order of versions nor compatibility is checked.
    assert import_schema(registry, subject, USER_INCOMPATIBLE, 500, 1).status == 200
    assert import_schema(registry, f"{context}t", USER_1, 700, 1).json["version"] == 1
    assert registry.get(f"/subjects/{subject}/versions").json == [1, 3]
    assert registry.get(f"/schemas/ids/500?subject={context}").json["schema"] == USER_INCOMPATIBLE
    # Without a number it becomes the next version. Repeating it changes nothing, even without an id.
    assert registry.register(subject, USER_2, id=701).json["version"] == 4
    assert registry.register(subject, USER_2, id=701).json["version"] == 4
    assert registry.register(subject, USER_2).json["version"] == 4
    assert import_schema(registry, subject, USER_1, 700, 3).json["version"] == 3
    set_mode(registry, context, "READWRITE")
    # New ids continue after the highest imported one.
    assert registry.registered(f"{context}u", STRING) == 702


def test_imported_schemas_are_parsed_leniently(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}'
    assert import_schema(registry, f"{context}s", text, 9, 1).status == 200
    assert import_schema(registry, f"{context}s", "{", 10, 2).error[:2] == (422, 42201)
    empty = registry.post(f"/subjects/{context}s/versions", {"id": 10, "version": 2})
    assert empty.error == (422, 42201, "Empty schema")


def test_imported_id_cannot_replace_content(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    import_schema(registry, f"{context}s", STRING, 5, 1)
    message = f"Overwrite new schema with id 5 in context {context[1:-1]} is not permitted."
    assert import_schema(registry, f"{context}s", BYTES, 5, 2).error == (422, 42205, message)
    labelled = import_schema(registry, f"{context}s", STRING, 5, 2, metadata={"properties": {"a": "b"}})
    assert labelled.error == (422, 42205, message)


def test_import_may_add_a_content_with_two_ids(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    guids = {import_schema(registry, f"{context}s", STRING, 100 * n, n).json["guid"] for n in (1, 2)}
    assert len(guids) == 1
    assert import_schema(registry, f"{context}t", STRING, 300, 1).status == 200
    found = [registry.get(f"/subjects/{context}s/versions/{n}").json["id"] for n in (1, 2)]
    assert found == [100, 200]
    assert registry.post(f"/subjects/{context}t", {"schema": STRING}).json["id"] == 300
    ids = registry.get(f"/schemas/guids/{guids.pop()}/ids").json
    assert [item["id"] for item in ids if item["context"] == context[1:-1]] == [100, 200, 300]
    set_mode(registry, context, "READWRITE")
    assert registry.registered(f"{context}u", STRING) == 100
    # After the deletion of the first id the next one is used.
    for path in (f"{context}u", f"{context}s/versions/1"):
        registry.delete(f"/subjects/{path}")
        registry.delete(f"/subjects/{path}?permanent=true")
    assert registry.registered(f"{context}u", STRING) == 200


def test_import_does_not_replace_live_version(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    import_schema(registry, f"{context}s", STRING, 5, 1)
    refused = import_schema(registry, f"{context}s", BYTES, 6, 1).error
    assert refused == (422, 42207, "Schema already registered with id 5 instead of input id 6")
    registry.delete(f"/subjects/{context}s/versions/1")
    assert import_schema(registry, f"{context}s", BYTES, 6, 1).json["id"] == 6
    assert registry.get(f"/schemas/ids/5?subject={context}").error[1] == 40403


def test_schema_with_replaced_reference_is_found_by_its_current_content(registry: Registry, context: str) -> None:
    """Lookup finds the current content, not the previous one, and registering it again adds no version."""
    set_mode(registry, context, "IMPORT")
    item = [{"name": "F", "subject": "target", "version": 1}]
    whole = [{"name": "L", "subject": "list", "version": 1}]
    listed = '{"type":"record","name":"L","fields":[{"name":"f","type":"F"}]}'
    nested = '{"type":"array","items":"L"}'
    import_schema(registry, f"{context}target", fixed(1), 5, 1)
    import_schema(registry, f"{context}list", listed, 6, 1, references=item)
    import_schema(registry, f"{context}nested", nested, 7, 1, references=whole)
    for subject in ("nested", "list", "target"):
        assert registry.delete(f"/subjects/{context}{subject}").status == 200
    assert import_schema(registry, f"{context}target", fixed(2), 8, 1).status == 200
    for subject, text, references in (("list", listed, item), ("nested", nested, whole)):
        path = f"/subjects/{context}{subject}"
        found = registry.post(f"{path}?deleted=true", {"schema": text, "references": references})
        assert found.json["version"] == 1, found.text
        resolved = registry.get(f"{path}/versions/1?deleted=true&format=resolved").json["schema"]
        assert '"size":2' in resolved
        assert registry.post(f"{path}?deleted=true", {"schema": resolved}).json["version"] == 1
        before = registry.post(f"{path}?deleted=true", {"schema": resolved.replace('"size":2', '"size":1')})
        assert before.error[1] == 40403
    set_mode(registry, context, "READWRITE")
    for _ in range(2):
        registry.registered(f"{context}list", listed, references=item)
        assert registry.get(f"/subjects/{context}list/versions").json == [2]


def test_import_restores_soft_deleted_version(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    for _ in range(2):
        assert import_schema(registry, f"{context}s", STRING, 5, 1).json["version"] == 1
        assert registry.get(f"/schemas/ids/5?subject={context}").json["deleted"] is False
        assert registry.delete(f"/subjects/{context}s").json == [1]
        assert registry.get(f"/schemas/ids/5?subject={context}").json["deleted"] is True


def test_import_mode_requires_an_empty_scope(registry: Registry, context: str) -> None:
    refused = (422, 42205, "Cannot import since found existing subjects")
    registry.registered(f"{context}s", STRING)
    for scope in (context, f"{context}s", ALL_CONTEXTS_SCOPE):
        assert registry.put(f"/mode/{scope}", {"mode": "IMPORT"}).error == refused
    set_mode(registry, f"{context}other", "IMPORT")
    set_mode(registry, f"{context}s", "IMPORT", "?force=true")
    # Setting IMPORT again has no precondition.
    set_mode(registry, f"{context}s", "IMPORT")
    set_mode(registry, context, "IMPORT", "?force=true")
    assert registry.get(f"/subjects/{context}s/versions").json == [1]


def test_import_mode_deletes_soft_deleted_versions(registry: Registry, context: str) -> None:
    schema_id = registry.registered(f"{context}s", STRING)
    registry.delete(f"/subjects/{context}s")
    set_mode(registry, context, "IMPORT")
    assert registry.get(f"/subjects/{context}s/versions?deleted=true").error[1] == 40401
    assert registry.get(f"/schemas/ids/{schema_id}?subject={context}").error[1] == 40403
    assert import_schema(registry, f"{context}s", BYTES, schema_id, 1).status == 200


@pytest.mark.parametrize("mode", ["IMPORT", "FORWARD"])
def test_imported_schemas_are_not_normalized(registry: Registry, context: str, mode: str) -> None:
    written = '{"type":"fixed","name":"F","size":4,"b":1,"a":2}'
    set_mode(registry, context if mode == "IMPORT" else ALL_CONTEXTS_SCOPE, mode)
    registry.put(f"/config/{context}", {"normalize": True})
    for number, query in enumerate(["", "?normalize=true"], 1):
        subject = f"{context}s{number}"
        found = registry.register(subject, written, query, id=7, version=1)
        assert (found.json["id"], found.json["schema"]) == (7, written)
        assert registry.get(f"/subjects/{subject}/versions/1").json["schema"] == written
    set_mode(registry, context, "READWRITE")
    assert registry.register(f"{context}t", written).json["schema"].endswith('"a":2,"b":1}')


def test_import_mode_keeps_referenced_versions(registry: Registry, context: str) -> None:
    registry.registered(f"{context}target", '{"type":"fixed","name":"F","size":4}')
    reference = {"name": "F", "subject": "target", "version": 1}
    registry.registered(f"{context}user", '{"type":"array","items":"F"}', references=[reference])
    for subject in ("user", "target"):
        registry.delete(f"/subjects/{context}{subject}")
    assert registry.put(f"/mode/{context}target", {"mode": "IMPORT"}).error[1] == 42206
    set_mode(registry, context, "IMPORT")
    assert registry.get(f"/subjects?subjectPrefix={context}&deleted=true").json == []


def test_forward_mode_accepts_ids_in_a_nonempty_registry(registry: Registry, context: str) -> None:
    registry.registered(f"{context}s", STRING)
    set_mode(registry, ALL_CONTEXTS_SCOPE, "FORWARD")
    assert import_schema(registry, f"{context}s", USER_1, 50, 2).json["id"] == 50
    message = f"Subject {context}s in context {context[1:-1]} is not in read-write mode"
    assert registry.register(f"{context}s", BYTES).error == (422, 42205, message)
    assert registry.get("/mode?defaultToGlobal=true").json == {"mode": "FORWARD"}


def test_import_may_use_up_versions_and_ids(registry: Registry, context: str) -> None:
    highest = 2**31 - 1
    set_mode(registry, context, "IMPORT")
    assert import_schema(registry, f"{context}s", STRING, 5, highest).json["version"] == highest
    assert registry.register(f"{context}s", BYTES, id=6).error[:2] == (422, 42201)
    assert import_schema(registry, f"{context}t", BYTES, highest, 1).json["id"] == highest
    set_mode(registry, context, "READWRITE")
    registry.put(f"/config/{context}", {"compatibility": "NONE"})
    assert registry.register(f"{context}s", INT).error[:2] == (422, 42201)
    assert registry.register(f"{context}u", INT).error[:2] == (422, 42205)
    # Existing schemas are still available.
    assert registry.registered(f"{context}u", STRING) == 5
    assert registry.get(f"/schemas/ids/{highest}?subject={context}&fetchMaxId=true").json["maxId"] == highest


def test_imported_id_may_be_zero(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    assert import_schema(registry, f"{context}s", STRING, 0, 1).json["id"] == 0
    assert registry.get(f"/schemas/ids/0?subject={context}").json["schema"] == STRING


def test_import_may_refer_to_soft_deleted_versions(registry: Registry, context: str) -> None:
    set_mode(registry, context, "IMPORT")
    import_schema(registry, f"{context}target", '{"type":"fixed","name":"F","size":4}', 1, 1)
    registry.delete(f"/subjects/{context}target")
    reference = {"name": "F", "subject": "target", "version": 1}
    text = '{"type":"array","items":"F"}'
    assert import_schema(registry, f"{context}user", text, 2, 1, references=[reference]).status == 200
    missing = import_schema(registry, f"{context}user", text, 2, 1, references=[{**reference, "version": 2}])
    assert missing.error[:2] == (422, 42201)


def test_immutable_modes_cannot_be_changed(tmp_path: Any) -> None:
    with registry_in_process(sqlite_url(tmp_path / "registry.db"), mutable_modes=False) as registry:
        refused = (422, 42205, "Mode changes are not allowed")
        assert registry.put("/mode", {"mode": "READONLY"}).error == refused
        assert registry.put("/mode/s", {"mode": "READONLY"}).error == refused
        assert registry.delete("/mode").error == registry.delete("/mode/s?recursive=true").error == refused
        assert registry.delete("/mode/s").error == (404, 40401, "Subject 's' not found.")
        assert registry.get("/mode").json == {"mode": "READWRITE"}
