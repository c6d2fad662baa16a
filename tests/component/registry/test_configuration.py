"""Configuration by subject, context and globally, its effect on registrations, and aliases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from support.registry.registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE, Registry, RegistryInProcess

ALL_CONTEXTS_SCOPE = ":.__GLOBAL:"
BACKWARD = {"compatibilityLevel": "BACKWARD"}
UNSORTED = '{"type":"fixed","name":"F","size":4,"b":1,"a":2}'
SORTED = '{"type":"fixed","name":"F","size":4,"a":2,"b":1}'
NUMBERS = itertools.count()


@pytest.fixture
def registry(registry: RegistryInProcess) -> Iterator[Registry]:
    """A registry, with an empty global configuration after the test."""
    yield registry
    for scope in ("", f"/{ALL_CONTEXTS_SCOPE}"):
        registry.delete(f"/config{scope}")


@pytest.fixture
def context() -> str:
    return f":.c{next(NUMBERS)}:"


def configure(registry: Registry, scope: str, **values: Any) -> None:
    response = registry.put(f"/config/{scope}" if scope else "/config", values)
    assert response.status == 200, response.text


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({}, "BACKWARD"),
        ({"": "FULL"}, "FULL"),
        ({":.:": "FULL"}, "FULL"),
        ({ALL_CONTEXTS_SCOPE: "FULL"}, "FULL"),
        ({"": "NONE", ALL_CONTEXTS_SCOPE: "FULL"}, "NONE"),
        ({"s": "FORWARD", "": "NONE", ALL_CONTEXTS_SCOPE: "FULL"}, "FORWARD"),
        ({":.c:": "FULL"}, "BACKWARD"),
    ],
)
def test_effective_level_of_a_subject(registry: Registry, configured: dict[str, str], expected: str) -> None:
    for scope, level in configured.items():
        configure(registry, scope, compatibility=level)
    assert registry.get("/config/s?defaultToGlobal=true").json == {"compatibilityLevel": expected}
    for scope in ("s", ":.c:"):
        registry.delete(f"/config/{scope}")


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"": "FULL"}, "BACKWARD"),
        ({ALL_CONTEXTS_SCOPE: "FULL"}, "FULL"),
        ({":.c:": "NONE", ALL_CONTEXTS_SCOPE: "FULL"}, "NONE"),
        ({":.c:s": "FORWARD", ":.c:": "NONE"}, "FORWARD"),
        ({"s": "FORWARD"}, "BACKWARD"),
    ],
)
def test_effective_level_in_a_context(registry: Registry, configured: dict[str, str], expected: str) -> None:
    for scope, level in configured.items():
        configure(registry, scope, compatibility=level)
    assert registry.get("/config/:.c:s?defaultToGlobal=true").json == {"compatibilityLevel": expected}
    for scope in ("s", ":.c:", ":.c:s"):
        registry.delete(f"/config/{scope}")


def test_global_configuration(registry: Registry) -> None:
    assert registry.get("/config").json == registry.get("/config/:.:").json == BACKWARD
    configure(registry, ALL_CONTEXTS_SCOPE, compatibility="FULL")
    assert registry.get("/config").json == BACKWARD
    assert registry.get("/config?defaultToGlobal=true").json == {"compatibilityLevel": "FULL"}
    assert registry.get(f"/config/{ALL_CONTEXTS_SCOPE}").json == {"compatibilityLevel": "FULL"}
    assert registry.delete(f"/config/{ALL_CONTEXTS_SCOPE}").json == {"compatibilityLevel": "FULL"}
    assert registry.get(f"/config/{ALL_CONTEXTS_SCOPE}").error[1] == 40408
    assert registry.delete("/config").json == BACKWARD


def test_change_returns_the_new_configuration_of_the_scope(registry: Registry, subject: str) -> None:
    for scope in ("/config", f"/config/{subject}", "/config/:.c:"):
        assert registry.put(scope, {"compatibilityGroup": "g", "validateFields": True}).json == {
            "validateFields": True,
            "compatibilityGroup": "g",
        }
        for _ in range(2):
            assert registry.put(scope, {"compatibilityGroup": None}).json == {"validateFields": True}
        assert registry.put(scope, {"compatibility": "full"}).json == {"validateFields": True, "compatibility": "FULL"}
        assert registry.put(scope, {"compatibility": None, "validateFields": None}).json == {}


def test_subject_entry_without_level_has_the_default_level(registry: Registry, subject: str) -> None:
    configure(registry, "", compatibility="FULL")
    configure(registry, subject, normalize=True)
    assert registry.get(f"/config/{subject}").json == {"normalize": True}
    in_effect = registry.get(f"/config/{subject}?defaultToGlobal=true").json
    assert in_effect == {"normalize": True, "compatibilityLevel": "BACKWARD"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalize", True),
        ("validateFields", True),
        ("validateNewSchemas", False),
        ("validateRules", True),
        ("compatibilityPolicy", "LENIENT"),
        ("compatibilityGroup", "major"),
    ],
)
def test_subject_without_entry_inherits_configuration(
    registry: Registry, subject: str, key: str, value: object
) -> None:
    configure(registry, "", **{key: value})
    configure(registry, subject, compatibility="NONE")
    in_effect = registry.get(f"/config/{subject}?defaultToGlobal=true").json
    assert in_effect == {key: value, "compatibilityLevel": "NONE"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alias", "other"),
        ("aliasForDeks", "other"),
        ("defaultMetadata", {"properties": {"a": "b"}}),
        ("overrideMetadata", {"properties": {"a": "b"}}),
    ],
)
def test_subject_with_entry_does_not_inherit_configuration(
    registry: Registry, subject: str, key: str, value: object
) -> None:
    configure(registry, "", **{key: value})
    configure(registry, subject, compatibility="NONE")
    assert registry.get("/config").json == {key: value, **BACKWARD}
    assert registry.get(f"/config/{subject}?defaultToGlobal=true").json == {"compatibilityLevel": "NONE"}


def test_change_preserves_omitted_keys(registry: Registry, subject: str) -> None:
    configure(registry, subject, compatibility="none", compatibilityGroup="g", defaultMetadata={"sensitive": ["a"]})
    configure(registry, subject, normalize=False)
    configure(registry, subject, compatibilityGroup=None)
    own = {"normalize": False, "compatibilityLevel": "NONE", "defaultMetadata": {"sensitive": ["a"]}}
    assert registry.get(f"/config/{subject}").json == own
    assert registry.delete(f"/config/{subject}").json == own


def test_empty_entry_is_removed(registry: Registry, subject: str) -> None:
    configure(registry, "", compatibility="FULL")
    configure(registry, subject, normalize=None)
    assert registry.get(f"/config/{subject}").error[1] == 40408
    configure(registry, subject, compatibility="NONE", alias="other")
    configure(registry, subject, compatibility=None, alias=None)
    assert registry.get(f"/config/{subject}").error[1] == 40408
    assert registry.get(f"/config/{subject}?defaultToGlobal=true").json == {"compatibilityLevel": "FULL"}


def test_level_of_a_context_applies_to_its_subjects(registry: Registry, context: str) -> None:
    registry.registered(f"{context}s", USER_1)
    assert registry.register(f"{context}s", USER_INCOMPATIBLE).error[:2] == (409, 40901)
    configure(registry, context, compatibility="NONE")
    registry.registered(f"{context}s", USER_INCOMPATIBLE)
    assert registry.register("outside", USER_1).status == 200
    assert registry.register("outside", USER_INCOMPATIBLE).status == 409


def test_force_skips_the_compatibility_check(registry: Registry, subject: str) -> None:
    registry.registered(subject, USER_1)
    assert registry.register(subject, USER_INCOMPATIBLE, "?force=true").json["version"] == 2


def test_normalize_of_a_context_applies_to_its_subjects(registry: Registry, context: str) -> None:
    configure(registry, context, normalize=True)
    assert registry.register(f"{context}s", UNSORTED).json["schema"] == SORTED
    assert registry.post(f"/subjects/{context}s", {"schema": UNSORTED}).json["schema"] == SORTED


def test_validate_new_schemas_false_accepts_lenient_schemas(registry: Registry, subject: str) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}'
    assert registry.register(subject, text).error[:2] == (422, 42201)
    configure(registry, subject, validateNewSchemas=False)
    registry.registered(subject, text)
    configure(registry, subject, validateNewSchemas=True)
    # An existing schema is found regardless of the configuration at its registration.
    assert registry.register(subject, text).json["version"] == 1
    assert registry.post(f"/subjects/{subject}", {"schema": text}).json["version"] == 1


def test_default_and_override_metadata_are_merged_into_registrations(registry: Registry, subject: str) -> None:
    configure(
        registry,
        subject,
        defaultMetadata={"properties": {"a": "default", "b": "default", "c": "default"}},
        overrideMetadata={"properties": {"c": "override"}},
    )
    first = registry.register(subject, STRING, metadata={"properties": {"b": "own", "c": "own"}}).json
    assert first["metadata"] == {"properties": {"a": "default", "b": "own", "c": "override"}}
    assert registry.register(subject, STRING).json == first
    assert registry.post(f"/subjects/{subject}", {"schema": STRING}).json["id"] == first["id"]


@pytest.fixture
def aliased_subject(registry: Registry, subject: str) -> str:
    """A subject with two versions and the alias `{subject}-alias`."""
    registry.registered(subject, USER_1)
    registry.registered(subject, USER_2)
    configure(registry, f"{subject}-alias", alias=subject)
    return subject


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/subjects/{s}/versions", None),
        ("GET", "/subjects/{s}/versions/1", None),
        ("GET", "/subjects/{s}/versions/latest", None),
        ("GET", "/subjects/{s}/versions/1/schema", None),
        ("GET", "/subjects/{s}/versions/1/referencedby", None),
        ("GET", "/subjects/{s}/versions/9", None),
        ("POST", "/subjects/{s}", {"schema": USER_1}),
        ("POST", "/subjects/{s}", {"schema": STRING}),
        ("POST", "/subjects/{s}/versions", {"schema": USER_2}),
        ("POST", "/subjects/{s}/versions", {"schema": USER_INCOMPATIBLE}),
        ("POST", "/compatibility/subjects/{s}/versions", {"schema": USER_INCOMPATIBLE}),
        ("POST", "/compatibility/subjects/{s}/versions/1", {"schema": USER_INCOMPATIBLE}),
        ("POST", "/compatibility/subjects/{s}/versions/9", {"schema": USER_1}),
        ("GET", "/schemas/ids/1?subject={s}", None),
        ("DELETE", "/subjects/{s}?permanent=true", None),
        ("DELETE", "/subjects/{s}/versions/1?permanent=true", None),
    ],
)
def test_alias_is_resolved_for_reads(
    registry: Registry, aliased_subject: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    expected = registry.call(method, path.format(s=aliased_subject), body)
    called = registry.call(method, path.format(s=f"{aliased_subject}-alias"), body)
    assert (called.status, called.text) == (expected.status, expected.text)


def test_alias_is_resolved_for_registrations(registry: Registry, aliased_subject: str) -> None:
    alias = f"{aliased_subject}-alias"
    third = USER_2.replace("mail", "post")
    assert registry.register(alias, third).json["version"] == 3
    assert registry.get(f"/subjects/{aliased_subject}/versions").json == [1, 2, 3]
    assert registry.delete(f"/subjects/{alias}/versions/3").json == 3
    assert registry.delete(f"/subjects/{alias}").json == [1, 2]
    assert registry.get(f"/subjects/{aliased_subject}/versions").error[1] == 40401
    # The configuration of the alias is not that of its target.
    assert registry.get(f"/config/{alias}").json == {"alias": aliased_subject}


def test_alias_of_an_alias_is_not_resolved(registry: Registry, aliased_subject: str) -> None:
    configure(registry, f"{aliased_subject}-far", alias=f"{aliased_subject}-alias")
    assert registry.get(f"/subjects/{aliased_subject}-far/versions").error == (
        404,
        40401,
        f"Subject '{aliased_subject}-alias' not found.",
    )
    configure(registry, f"{aliased_subject}-self", alias=f"{aliased_subject}-self")
    assert registry.get(f"/subjects/{aliased_subject}-self/versions").error[1] == 40401


def test_alias_can_be_removed(registry: Registry, aliased_subject: str) -> None:
    configure(registry, f"{aliased_subject}-alias", alias=None)
    assert registry.get(f"/subjects/{aliased_subject}-alias/versions").error[1] == 40401
    configure(registry, f"{aliased_subject}-alias", alias="")
    assert registry.get(f"/subjects/{aliased_subject}-alias/versions").error[1] == 40401


def test_global_alias_is_ignored(registry: Registry, aliased_subject: str) -> None:
    configure(registry, "", alias=aliased_subject)
    assert registry.get("/subjects/any/versions").error[1] == 40401


def test_alias_is_relative_to_its_context(registry: Registry, aliased_subject: str, context: str) -> None:
    registry.registered(f"{context}own", STRING)
    configure(registry, f"{context}inside", alias="own")
    configure(registry, f"{context}outside", alias=f":.:{aliased_subject}")
    assert registry.get(f"/subjects/{context}inside/versions").json == [1]
    assert registry.get(f"/subjects/{context}outside/versions").json == [1, 2]
    assert registry.put(f"/config/{context}s", {"alias": "__GLOBAL"}).error[1] == 42208


def test_aliases_are_listed(registry: Registry, aliased_subject: str) -> None:
    found = registry.get(f"/schemas?subjectPrefix={aliased_subject}&aliases=true").json
    assert [(item["subject"], item["version"], item["aliases"]) for item in found] == [
        (aliased_subject, 1, [f"{aliased_subject}-alias"]),
        (aliased_subject, 2, [f"{aliased_subject}-alias"]),
    ]
    # A subject is also listed if one of its aliases matches the prefix.
    (latest,) = registry.get(f"/schemas?subjectPrefix={aliased_subject}-al&aliases=true&latestOnly=true").json
    assert (latest["subject"], latest["version"]) == (aliased_subject, 2)
    assert registry.get(f"/schemas?subjectPrefix={aliased_subject}-al").json == []
    assert all("aliases" not in item for item in registry.get(f"/schemas?subjectPrefix={aliased_subject}").json)
