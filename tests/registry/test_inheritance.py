"""Effective configuration and mode of a scope from its own entries and those of enclosing scopes."""

from __future__ import annotations

import pytest

from headrace.registry.domain import ConfigEntry, Metadata, Mode
from headrace.registry.names import (
    ALL_CONTEXTS_SCOPE,
    SubjectFilter,
    filter_of_scope,
    resolve_in_context,
    scope_name,
    scopes_of,
    split_subject,
)
from headrace.registry.service.configuration import effective_config
from headrace.registry.service.modes import ModeInheritance
from support.cases import all_cases

LABELS = Metadata.of({"owner": "x"})


def test_scopes_that_apply_to_a_scope() -> None:
    with all_cases() as case:
        for scope, scopes in [
            ("s", ("s", None, ALL_CONTEXTS_SCOPE)),
            ("", ("", None, ALL_CONTEXTS_SCOPE)),
            (None, (None, ALL_CONTEXTS_SCOPE)),
            (":.c:s", (":.c:s", ":.c:", ALL_CONTEXTS_SCOPE)),
            (":.c:", (":.c:", ALL_CONTEXTS_SCOPE)),
            (ALL_CONTEXTS_SCOPE, (ALL_CONTEXTS_SCOPE,)),
        ]:
            with case((scope, scopes)):
                assert scopes_of(scope) == scopes


def test_scope_of_a_path_parameter() -> None:
    with all_cases() as case:
        for text, scope in [
            ("s", "s"),
            ("", ""),
            (":.:", None),
            (":.:s", "s"),
            (":.c:", ":.c:"),
            (":.c", ":.c:"),
            (ALL_CONTEXTS_SCOPE, ALL_CONTEXTS_SCOPE),
        ]:
            with case((text, scope)):
                assert scope_name(text) == scope


def test_subject_is_split_into_context_and_name() -> None:
    with all_cases() as case:
        for text, parts in [
            ("a", (".", "a")),
            (":.:a", (".", "a")),
            (":.c:a:b", (".c", "a:b")),
            (":.c", (".c", "")),
            (":a", (".", ":a")),
        ]:
            with case((text, parts)):
                assert split_subject(text) == parts


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [(None, SubjectFilter("", ".")), (":.c:", SubjectFilter("", ".c")), (ALL_CONTEXTS_SCOPE, SubjectFilter())],
)
def test_filter_matches_subjects_of_a_scope(scope: str | None, wanted: SubjectFilter) -> None:
    assert filter_of_scope(scope) == wanted


def test_reference_is_resolved_in_context_of_its_schema() -> None:
    with all_cases() as case:
        for subject, text, meant in [
            ("a", "b", "b"),
            (":.c:a", "b", ":.c:b"),
            (":.c:a", ":.:b", "b"),
            ("a", ":.c:b", ":.c:b"),
            (":.c:", "b", ":.c:b"),
        ]:
            with case((subject, text, meant)):
                assert resolve_in_context(subject, text) == meant


def test_effective_configuration_inherits_from_enclosing_scopes() -> None:
    with all_cases() as case:
        for entries, expected in [
            ([None, None], ConfigEntry("DEFAULT")),
            ([None, ConfigEntry("FULL")], ConfigEntry("FULL")),
            ([ConfigEntry("NONE"), ConfigEntry("FULL")], ConfigEntry("NONE")),
            # An entry without a level has the default level, not that of an enclosing scope.
            ([ConfigEntry(normalize=True), ConfigEntry("FULL")], ConfigEntry("DEFAULT", normalize=True)),
            ([ConfigEntry("NONE"), ConfigEntry(normalize=True)], ConfigEntry("NONE", normalize=True)),
            ([ConfigEntry("NONE", normalize=False), ConfigEntry(normalize=True)], ConfigEntry("NONE", normalize=False)),
            (
                [ConfigEntry("NONE"), ConfigEntry(compatibility_group="g", compatibility_policy="LENIENT")],
                ConfigEntry("NONE", compatibility_group="g", compatibility_policy="LENIENT"),
            ),
            (
                [ConfigEntry("NONE"), None, ConfigEntry(validate_fields=True, validate_new_schemas=False)],
                ConfigEntry("NONE", validate_fields=True, validate_new_schemas=False),
            ),
            ([ConfigEntry("NONE"), ConfigEntry(validate_rules=True)], ConfigEntry("NONE", validate_rules=True)),
            ([ConfigEntry("NONE"), ConfigEntry(default_metadata=LABELS)], ConfigEntry("NONE")),
            ([None, ConfigEntry("FULL", default_metadata=LABELS)], ConfigEntry("FULL", default_metadata=LABELS)),
            ([ConfigEntry("NONE", alias="b")], ConfigEntry("NONE", alias="b")),
            ([None, ConfigEntry("FULL", alias="b", alias_for_deks="c")], ConfigEntry("FULL")),
        ]:
            with case((entries, expected)):
                assert effective_config(entries, "DEFAULT") == expected


@pytest.mark.parametrize("override_wins", [False, True])
def test_effective_mode_is_that_of_the_innermost_scope_with_one(override_wins: bool) -> None:
    inheritance = ModeInheritance(override_wins)
    with all_cases() as case:
        for scope, modes, expected in [
            ("s", {}, Mode.READWRITE),
            ("s", {ALL_CONTEXTS_SCOPE: Mode.READONLY}, Mode.READONLY),
            ("s", {None: Mode.IMPORT, ALL_CONTEXTS_SCOPE: Mode.READONLY}, Mode.IMPORT),
            ("s", {"s": Mode.READWRITE, None: Mode.READONLY}, Mode.READWRITE),
            ("s", {"s": Mode.READONLY_OVERRIDE, None: Mode.READWRITE}, Mode.READONLY_OVERRIDE),
            (":.c:s", {":.c:": Mode.READONLY_OVERRIDE}, Mode.READONLY_OVERRIDE),
            (":.c:s", {":.c:s": Mode.READWRITE, ":.c:": Mode.READONLY_OVERRIDE}, Mode.READWRITE),
            (":.c:s", {":.c:s": Mode.READWRITE, ALL_CONTEXTS_SCOPE: Mode.READONLY_OVERRIDE}, Mode.READONLY_OVERRIDE),
        ]:
            with case((scope, modes)):
                assert inheritance.effective(modes, scopes_of(scope)) is expected


def test_readonly_override_of_the_default_context_overrules_others_before_release_8_2() -> None:
    with all_cases() as case:
        for scope, own in (("s", Mode.READWRITE), (":.c:s", Mode.IMPORT), (":.c:", Mode.READWRITE), (None, None)):
            modes = {None: Mode.READONLY_OVERRIDE} if own is None else {scope: own, None: Mode.READONLY_OVERRIDE}
            with case(scope):
                assert ModeInheritance(True).effective(modes, scopes_of(scope)) is Mode.READONLY_OVERRIDE
                assert ModeInheritance().effective(modes, scopes_of(scope)) is (own or Mode.READONLY_OVERRIDE)
