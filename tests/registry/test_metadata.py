"""Metadata: layers, the version number in it, reserved names, and when a request finds a version."""

from __future__ import annotations

import pytest

from headrace.registry.domain import Metadata
from headrace.registry.metadata import finds, has_properties, merged_metadata, numbered, reserved_fields, version_number
from headrace.registry.rules import RuleSet
from support.cases import all_cases

X = Metadata.of({"x": "1"})
NUMBERED = Metadata.of({"confluent:version": "3"})
X_NUMBERED = Metadata.of({"x": "1", "confluent:version": "3"})
RULES = RuleSet.of({"domainRules": [{"name": "a", "type": "CEL"}]})


def test_a_stronger_layer_wins_key_by_key_and_sensitive_names_add_up():
    default = Metadata.of({"a": "d", "b": "d"}, {"p": ["1", "2"], "q": ["1"]}, ["a"])
    specific = Metadata.of({"b": "s", "c": "s"}, {"p": ["3"]}, ["c"])
    override = Metadata.of({"c": "o"})
    assert merged_metadata(default, specific, override) == Metadata.of(
        {"a": "d", "b": "s", "c": "o"}, {"p": ["3"], "q": ["1"]}, ["a", "c"]
    )
    assert merged_metadata(None, specific, None) is specific
    assert merged_metadata(None, None) is None


@pytest.mark.parametrize(
    ("metadata", "wanted", "expected"),
    [
        (None, False, None),
        (X, False, X),
        (None, True, Metadata.of({"confluent:version": "7"})),
        (X, True, Metadata.of({"x": "1", "confluent:version": "7"})),
        (X_NUMBERED, False, Metadata.of({"x": "1", "confluent:version": "7"})),
    ],
)
def test_the_version_number_is_kept_true_where_it_is_and_added_where_wanted(metadata, wanted, expected):
    assert numbered(metadata, 7, wanted=wanted) == expected


def test_version_numbers_as_clients_write_them():
    with all_cases() as case:
        for text, number in [("3", 3), ("-1", -1), ("", None), ("x", None), ("9" * 5000, None)]:
            with case((text, number)):
                assert version_number(Metadata.of({"confluent:version": text})) == number


def test_what_a_request_finds():
    with all_cases() as case:
        for wanted, stored, found in [
            ((None, None), (None, None), True),
            ((X, None), (X, None), True),
            ((None, None), (X, None), False),
            ((X, None), (None, None), False),
            # None and empty metadata have different ids.
            ((Metadata(), None), (None, None), False),
            # The number of the stored version does not count where the request has none, nor does its absence.
            ((X, None), (X_NUMBERED, None), True),
            ((None, None), (NUMBERED, None), True),
            ((None, None), (X_NUMBERED, None), False),
            # The request's number does not count where the version has none, if it is true.
            ((X_NUMBERED, None), (X, None), True),
            ((NUMBERED, None), (None, None), True),
            ((Metadata.of({"confluent:version": "2"}), None), (None, None), False),
            # With a number on both sides it counts.
            ((X_NUMBERED, None), (X_NUMBERED, None), True),
            ((X_NUMBERED, None), (Metadata.of({"x": "1", "confluent:version": "4"}), None), False),
            ((None, RULES), (None, RULES), True),
            ((None, RULES), (None, None), False),
            ((None, None), (None, RULES), False),
        ]:
            with case((wanted, stored, found)):
                assert finds(wanted, stored, 3) is found


def test_reserved_names():
    with all_cases() as case:
        for text, names in [("a", ("a",)), (" b , a,,b ", ("b", "a")), ("", ()), (None, ())]:
            with case((text, names)):
                assert reserved_fields(Metadata.of({} if text is None else {"confluent:reserved": text})) == names
                assert reserved_fields(None) == ()


def test_metadata_is_searched_by_properties():
    assert has_properties(X_NUMBERED, {"x": "1"})
    assert has_properties(X, {})
    assert not has_properties(X, {"x": "2"})
    assert not has_properties(X, {"x": "1", "y": "1"})
    assert not has_properties(None, {})
