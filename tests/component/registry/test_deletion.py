"""Soft and permanent deletion: the responses to every order of steps, and the visibility of deleted versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.cases import all_cases
from support.registry.registry_calls import STRING, Registry

BYTES = '"bytes"'


def fixed(label: object, name: str = "F") -> str:
    return f'{{"type":"fixed","name":"{name}","size":4,"of":"{label}"}}'


VERSION_1, SUBJECT = "/subjects/{s}/versions/1", "/subjects/{s}"
PERMANENT = "?permanent=true"


def test_responses_to_soft_and_permanent_deletion(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (before, path, expected) in enumerate(
            [
                ([], VERSION_1, (404, 40401)),
                ([], SUBJECT, (404, 40401)),
                ([], SUBJECT + PERMANENT, (404, 40401)),
                (["register"], "/subjects/{s}/versions/2", (404, 40402)),
                (["register"], "/subjects/{s}/versions/2" + PERMANENT, (404, 40402)),
                (["register"], "/subjects/{s}/versions/0", (422, 42202)),
                (["register"], VERSION_1, 1),
                (["register"], "/subjects/{s}/versions/latest", 1),
                (["register"], "/subjects/{s}/versions/-1", 1),
                (["register"], SUBJECT, [1]),
                (["register"], VERSION_1 + PERMANENT, (404, 40407)),
                (["register"], SUBJECT + PERMANENT, (404, 40405)),
                (["register", VERSION_1], VERSION_1, (404, 40406)),
                (["register", VERSION_1], SUBJECT, (404, 40404)),
                (["register", VERSION_1], "/subjects/{s}/versions/latest", (404, 40402)),
                (["register", VERSION_1], VERSION_1 + PERMANENT, 1),
                (["register", VERSION_1], SUBJECT + PERMANENT, [1]),
                (["register", SUBJECT], VERSION_1 + PERMANENT, 1),
                (["register", VERSION_1, VERSION_1 + PERMANENT], VERSION_1 + PERMANENT, (404, 40401)),
                (["register", SUBJECT, SUBJECT + PERMANENT], SUBJECT + PERMANENT, (404, 40401)),
                (["register", "register"], SUBJECT, [1, 2]),
                (["register", "register", VERSION_1], SUBJECT, [2]),
                (["register", "register", VERSION_1], SUBJECT + PERMANENT, (404, 40405)),
                (["register", "register", VERSION_1, SUBJECT], SUBJECT + PERMANENT, [1, 2]),
                (["register", "register", VERSION_1, VERSION_1 + PERMANENT], SUBJECT, [2]),
                (["register", "register"], "/subjects/{s}/versions/latest", 2),
            ]
        ):
            with case((before, path)):
                own = f"{subject}-{row}"
                registry.put(f"/config/{own}", {"compatibility": "NONE"})
                for number, step in enumerate(before):
                    if step == "register":
                        registry.registered(own, fixed(number))
                    else:
                        assert registry.delete(step.format(s=own)).status == 200
                response = registry.delete(path.format(s=own))
                if isinstance(expected, tuple):
                    assert response.error[:2] == expected
                else:
                    assert (response.status, response.json) == (200, expected)


def test_visibility_of_a_soft_deleted_version(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (path, live, soft, permanent) in enumerate(
            [
                ("/subjects/{s}/versions", [1, 2], [1], [1]),
                ("/subjects/{s}/versions?deleted=true", [1, 2], [1, 2], [1]),
                ("/subjects/{s}/versions?deletedOnly=true", [], [2], []),
                ("/subjects/{s}/versions?deletedAsNegative=true", [1, 2], [1, -2], [1]),
                ("/subjects/{s}/versions?deletedAsNegative=true&deleted=true", [1, 2], [1, -2], [1]),
                ("/subjects/{s}/versions/2", 2, 40402, 40402),
                ("/subjects/{s}/versions/2?deleted=true", 2, 2, 40402),
                ("/subjects/{s}/versions/latest", 2, 1, 1),
                # Always the newest version that is not deleted.
                ("/subjects/{s}/versions/latest?deleted=true", 2, 1, 1),
                ("/subjects/{s}/versions/2/schema", 200, 40402, 40402),
                ("/subjects/{s}/versions/2/schema?deleted=true", 200, 200, 40402),
                ("/subjects/{s}/versions/2/referencedby", [], [], 40402),
                ("/schemas/ids/{id}", 200, 200, 40403),
                ("/schemas/ids/{id}/schema", 200, 200, 40403),
                ("/schemas/guids/{guid}", 200, 200, 40403),
                ("/schemas/guids/{guid}/ids", 200, 200, 40403),
                ("/schemas/ids/{id}/versions", 1, 0, 40403),
                ("/schemas/ids/{id}/versions?deleted=true", 1, 1, 40403),
                ("/schemas/ids/{id}/subjects", 1, 0, 40403),
                ("/schemas/ids/{id}/subjects?deleted=true", 1, 1, 40403),
                ("/schemas?subjectPrefix={s}.", 2, 1, 1),
                ("/schemas?subjectPrefix={s}.&deleted=true", 2, 2, 1),
                ("/schemas?subjectPrefix={s}.&latestOnly=true", 1, 1, 1),
            ]
        ):
            with case(path):
                own = f"{subject}-{row}"
                name = f"{own}."
                registry.registered(name, fixed("one"))
                registry.put(f"/config/{name}", {"compatibility": "NONE"})
                second = registry.register(name, fixed(own)).json
                path_of_case = path.replace("{s}.", name).format(s=name, id=second["id"], guid=second["guid"])

                def outcome(path_of_case: str = path_of_case) -> Any:
                    response = registry.get(path_of_case)
                    if response.status != 200:
                        return response.error[1]
                    if isinstance(response.json, dict):
                        return response.json.get("version", 200) if "versions" in path_of_case else 200
                    counted = path_of_case.startswith("/schemas") and "guids" not in path_of_case
                    return len(response.json) if counted else 200 if "guids" in path_of_case else response.json

                assert outcome() == live
                registry.delete(f"/subjects/{name}/versions/2")
                assert outcome() == soft
                registry.delete(f"/subjects/{name}/versions/2?permanent=true")
                assert outcome() == permanent


def test_visibility_of_a_subject_in_lists(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (query, live, soft, permanent) in enumerate(
            [
                ("", True, False, False),
                ("?deleted=true", True, True, False),
                ("?deletedOnly=true", False, True, False),
                ("?deletedOnly=true&deleted=true", False, True, False),
                ("?deleted_only=True", False, True, False),
                ("?deleted=1", True, False, False),
                ("?deleted=", True, False, False),
            ]
        ):
            with case(query):
                own = f"{subject}-{row}"
                registry.registered(own, STRING)
                for expected, deleting in ((live, ""), (soft, PERMANENT), (permanent, "")):
                    assert (own in registry.get(f"/subjects{query}").json) is expected
                    registry.delete(f"/subjects/{own}{deleting}")


@pytest.mark.parametrize("deleted", ["", VERSION_1, SUBJECT])
def test_lookup_includes_deleted_versions_on_request(registry: Registry, subject: str, deleted: str) -> None:
    registry.registered(subject, STRING)
    if deleted:
        registry.delete(deleted.format(s=subject))
    found = registry.post(f"/subjects/{subject}", {"schema": STRING})
    assert found.status == 200 if not deleted else found.error[1] == 40401
    assert registry.post(f"/subjects/{subject}?deleted=true", {"schema": STRING}).json["deleted"] is bool(deleted)


def test_referenced_version_cannot_be_deleted(registry: Registry, subject: str) -> None:
    target, user = f"{subject}-target", f"{subject}-user"
    registry.registered(target, fixed(subject))
    reference = {"name": "F", "subject": target, "version": 1}
    registry.registered(user, '{"type":"array","items":"F"}', references=[reference])
    key = f"{{magic=1,keytype=SCHEMA,subject={target},version=1}}"
    refused = (422, 42206, f"One or more references exist to the schema {key}.")
    for path in (f"/subjects/{target}", f"/subjects/{target}/versions/1", f"/subjects/{target}/versions/1{PERMANENT}"):
        assert registry.delete(path).error == refused
    # If the referring schema is soft-deleted, only permanent deletion of the target is rejected.
    registry.delete(f"/subjects/{user}")
    assert registry.delete(f"/subjects/{target}/versions/1").json == 1
    for path in (f"/subjects/{target}{PERMANENT}", f"/subjects/{target}/versions/1{PERMANENT}"):
        assert registry.delete(path).error == refused
    assert registry.get(f"/subjects/{target}/versions/1/referencedby").json == []
    assert len(registry.get(f"/subjects/{target}/versions/1/referencedby?deleted=true").json) == 1
    # A deleted version cannot be referenced again.
    repeated = registry.register(f"{subject}-late", '{"type":"map","values":"F"}', references=[reference])
    assert repeated.error[:2] == (422, 42201)
    registry.delete(f"/subjects/{user}{PERMANENT}")
    assert registry.delete(f"/subjects/{target}{PERMANENT}").json == [1]


def test_references_within_a_subject_do_not_prevent_its_deletion(registry: Registry, subject: str) -> None:
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    registry.registered(subject, fixed(subject))
    reference = {"name": "F", "subject": subject, "version": 1}
    registry.registered(subject, '{"type":"array","items":"F"}', references=[reference])
    assert registry.delete(f"/subjects/{subject}/versions/1").error[1] == 42206
    assert registry.delete(f"/subjects/{subject}").json == [1, 2]
    assert registry.delete(f"/subjects/{subject}/versions/1{PERMANENT}").error[1] == 42206
    assert registry.delete(f"/subjects/{subject}{PERMANENT}").json == [1, 2]


def test_referenced_deleted_version_is_not_replaced(registry: Registry, subject: str) -> None:
    """Registering the schema of a deleted, referenced version again adds a version and preserves the old one."""
    target, user = f"{subject}-target", f"{subject}-user"
    schema_id = registry.registered(target, fixed(subject))
    reference = {"name": "F", "subject": target, "version": 1}
    registry.registered(user, '{"type":"array","items":"F"}', references=[reference])
    registry.delete(f"/subjects/{user}")
    registry.delete(f"/subjects/{target}")
    assert registry.register(target, fixed(subject)).json["version"] == 2
    assert registry.get(f"/subjects/{target}/versions?deleted=true").json == [1, 2]
    assert registry.get(f"/schemas/ids/{schema_id}").json["deleted"] is False


@pytest.mark.parametrize(
    ("path", "config", "mode"),
    [
        (SUBJECT, True, True),
        (VERSION_1, True, True),
        (SUBJECT + PERMANENT, False, False),
        (VERSION_1 + PERMANENT, False, False),
    ],
)
def test_permanent_deletion_removes_configuration_and_mode(
    registry: Registry, subject: str, path: str, config: bool, mode: bool
) -> None:
    registry.registered(subject, STRING)
    registry.put(f"/config/{subject}", {"compatibility": "FULL"})
    registry.put(f"/mode/{subject}", {"mode": "READWRITE"})
    if PERMANENT in path:
        registry.delete(f"/subjects/{subject}")
    assert registry.delete(path.format(s=subject)).status == 200
    assert (registry.get(f"/config/{subject}").status == 200) is config
    assert (registry.get(f"/mode/{subject}").status == 200) is mode


def test_reuse_of_version_numbers_and_ids(registry: Registry, subject: str) -> None:
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    first = registry.registered(subject, fixed("a" + subject))
    registry.registered(subject, BYTES)
    registry.delete(f"/subjects/{subject}/versions/2")
    # A soft-deleted version reserves its number …
    assert registry.register(subject, STRING).json["version"] == 3
    for version in (2, 3):
        registry.delete(f"/subjects/{subject}/versions/{version}")
        registry.delete(f"/subjects/{subject}/versions/{version}{PERMANENT}")
    # … until it is permanently deleted and no higher version exists.
    assert registry.register(subject, BYTES).json["version"] == 2
    registry.delete(f"/subjects/{subject}")
    registry.delete(f"/subjects/{subject}{PERMANENT}")
    repeated = registry.register(subject, fixed("a" + subject)).json
    assert repeated["version"] == 1
    # Ids are never reused.
    assert repeated["id"] > first
