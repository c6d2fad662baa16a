from __future__ import annotations

import pytest

from headrace.registry.domain import (
    LATEST,
    ConfigChange,
    ConfigEntry,
    Metadata,
    SchemaContent,
    SchemaReference,
    parse_version,
)
from headrace.registry.errors import IncompatibleSchema, InvalidSubject, InvalidVersion, SchemaNotFound, SubjectNotFound
from headrace.registry.names import quoted_for_log, subject_name
from support.cases import all_cases

MY = '{"type":"record","name":"My","namespace":"ns","fields":[{"name":"f","type":"otherns.Sub"}]}'


@pytest.mark.parametrize(
    ("content", "guid"),
    [
        (SchemaContent('"string"'), "095d71cf-1255-6b9d-5e33-0ad575b3df5d"),
        (SchemaContent('{"type":"string","foo":"bar"}'), "ca5fb92a-f83d-f907-fc60-67b082ef919f"),
        (SchemaContent('"string"', (), Metadata.of({"owner": "x"})), "78aed40f-c3de-ffc7-4e70-adae86c555e4"),
        (SchemaContent(MY, (SchemaReference("otherns.Sub", "sub", 1),)), "7e2b5ed9-c503-22b5-1205-29a7bd61d76d"),
    ],
)
def test_guid_equals_that_of_the_confluent_registry(content: SchemaContent, guid: str) -> None:
    assert content.guid == guid


def test_parse_version_accepts_numbers_and_latest() -> None:
    with all_cases() as case:
        for text, version in [("1", 1), ("2147483647", 2**31 - 1), ("latest", LATEST), ("-1", LATEST)]:
            with case((text, version)):
                assert parse_version(text) == version


def test_parse_version_rejects_other_texts() -> None:
    with all_cases() as case:
        for text in ["", "0", "-2", "2147483648", "1.0", " 1", "٣", "²", "LATEST", "9" * 5000]:
            with case(text), pytest.raises(InvalidVersion):
                parse_version(text)


def test_subject_name_accepts_any_printable_text() -> None:
    with all_cases() as case:
        for name in ["", "*", "a/b", "ä ?", "a:b", "😀"]:
            with case(name):
                assert subject_name(name) == subject_name(f":.:{name}") == name


def test_subject_name_rejects_control_characters_and_reserved_names() -> None:
    with all_cases() as case:
        for name in [
            "a\0b",
            "a\nb",
            "\x85",
            "\ud800",
            "__GLOBAL",
            "__EMPTY",
            ":*:a",
            ":.__GLOBAL:a",
            ":.::.c:a",
            ":.:__GLOBAL",
        ]:
            with case(name), pytest.raises(InvalidSubject):
                subject_name(name)


def test_metadata_equality_ignores_order() -> None:
    one = Metadata.of({"a": "1", "b": "2"}, {"x": ["q", "p"]}, ["b", "a"])
    assert one == Metadata.of({"b": "2", "a": "1"}, {"x": ["p", "q", "p"]}, ["a", "b"])


def test_config_change_writes_only_the_given_keys() -> None:
    entry = ConfigEntry("FULL", normalize=True)
    assert ConfigChange().applied_to(entry) == entry
    assert ConfigChange(ConfigEntry(), frozenset({"normalize"})).applied_to(entry) == ConfigEntry("FULL")
    changed = ConfigChange(ConfigEntry("NONE"), frozenset({"compatibility"})).applied_to(entry)
    assert changed == ConfigEntry("NONE", normalize=True)


def test_error_messages_contain_their_fields() -> None:
    assert str(SubjectNotFound(subject="{x}")) == "Subject '{x}' not found."
    assert (str(SchemaNotFound()), str(SchemaNotFound(schema_id=3))) == ("Schema not found", "Schema 3 not found")
    assert str(IncompatibleSchema(("a", "b"), subject="s")).endswith('for subject "s", details: [a, b]')


def test_quoted_for_log_gives_one_word() -> None:
    with all_cases() as case:
        for name, word in [
            ("orders-value", "orders-value"),
            (":.eu:a/b", ":.eu:a/b"),
            (None, ":.:"),
            ("", '""'),
            ("a version=9", '"a version=9"'),
            ("a\u2028b", '"a\\u2028b"'),
            ('"a"', '"\\"a\\""'),
        ]:
            with case((name, word)):
                assert quoted_for_log(name) == word
