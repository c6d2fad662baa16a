"""What holds in a scope, from entries in it and around it, and which scopes those are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.registry.domain import ConfigEntry, Metadata, Mode
from headrace.registry.names import (
    EVERYWHERE,
    SubjectFilter,
    filter_of_scope,
    in_context_of,
    scope_name,
    scopes_of,
    split_subject,
)
from headrace.registry.service.configuration import effective_config
from headrace.registry.service.modes import effective_mode

LABELS = Metadata.of({"owner": "x"})


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        ("s", ("s", None, EVERYWHERE)),
        ("", ("", None, EVERYWHERE)),
        (None, (None, EVERYWHERE)),
        (":.c:s", (":.c:s", ":.c:", EVERYWHERE)),
        (":.c:", (":.c:", EVERYWHERE)),
        (EVERYWHERE, (EVERYWHERE,)),
    ],
)
def test_the_scopes_that_matter(scope: str | None, scopes: tuple[str | None, ...]) -> None:
    assert scopes_of(scope) == scopes


@pytest.mark.parametrize(
    ("text", "scope"),
    [("s", "s"), ("", ""), (":.:", None), (":.:s", "s"), (":.c:", ":.c:"), (":.c", ":.c:"), (EVERYWHERE, EVERYWHERE)],
)
def test_the_scope_that_a_path_names(text: str, scope: str | None) -> None:
    assert scope_name(text) == scope


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", (".", "a")), (":.:a", (".", "a")), (":.c:a:b", (".c", "a:b")), (":.c", (".c", "")), (":a", (".", ":a"))],
)
def test_parts_of_a_subject(text: str, parts: tuple[str, str]) -> None:
    assert split_subject(text) == parts


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [(None, SubjectFilter("", ".")), (":.c:", SubjectFilter("", ".c")), (EVERYWHERE, SubjectFilter())],
)
def test_the_subjects_that_a_scope_governs(scope: str | None, wanted: SubjectFilter) -> None:
    assert filter_of_scope(scope) == wanted


@pytest.mark.parametrize(
    ("subject", "text", "meant"),
    [("a", "b", "b"), (":.c:a", "b", ":.c:b"), (":.c:a", ":.:b", "b"), ("a", ":.c:b", ":.c:b"), (":.c:", "b", ":.c:b")],
)
def test_the_subject_that_a_reference_means(subject: str, text: str, meant: str) -> None:
    assert in_context_of(subject, text) == meant


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([None, None], ConfigEntry("DEFAULT")),
        ([None, ConfigEntry("FULL")], ConfigEntry("FULL")),
        ([ConfigEntry("NONE"), ConfigEntry("FULL")], ConfigEntry("NONE")),
        # An entry without a level has the default one, whatever is around it.
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
    ],
)
def test_configuration(entries: Sequence[ConfigEntry | None], expected: ConfigEntry) -> None:
    assert effective_config(entries, "DEFAULT") == expected


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([None, None], Mode.READWRITE),
        ([None, None, Mode.READONLY], Mode.READONLY),
        ([None, Mode.IMPORT, Mode.READONLY], Mode.IMPORT),
        ([Mode.READWRITE, Mode.READONLY], Mode.READWRITE),
        ([Mode.READWRITE, None, Mode.READONLY_OVERRIDE], Mode.READONLY_OVERRIDE),
        ([Mode.READONLY_OVERRIDE, Mode.READWRITE], Mode.READONLY_OVERRIDE),
    ],
)
def test_mode(modes: Sequence[Mode | None], expected: Mode) -> None:
    assert effective_mode(modes) is expected
