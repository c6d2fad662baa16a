"""Metadata: merging of layers, the version property, reserved fields, and matching of requests."""

from __future__ import annotations

import pytest

from headrace.registry.domain import Metadata
from headrace.registry.metadata import (
    has_properties,
    merged_metadata,
    reserved_fields,
    satisfies_request,
    version_property,
    with_version_property,
)
from headrace.registry.rules import RuleSet
from support.cases import all_cases

X = Metadata.of({"x": "1"})
NUMBERED = Metadata.of({"confluent:version": "3"})
X_NUMBERED = Metadata.of({"x": "1", "confluent:version": "3"})
RULES = RuleSet.of({"domainRules": [{"name": "a", "type": "CEL"}]})


def test_stronger_layer_overrides_keys_and_sensitive_names_are_united():
    default = Metadata.of({"a": "d", "b": "d"}, {"p": ["1", "2"], "q": ["1"]}, ["a"])
    specific = Metadata.of({"b": "s", "c": "s"}, {"p": ["3"]}, ["c"])
    override = Metadata.of({"c": "o"})
    assert merged_metadata(default, specific, override) == Metadata.of(
        {"a": "d", "b": "s", "c": "o"}, {"p": ["3"], "q": ["1"]}, ["a", "c"]
    )
    assert merged_metadata(None, specific, None) is specific
    assert merged_metadata(None, None) is None


@pytest.mark.parametrize(
    ("metadata", "always", "expected"),
    [
        (None, False, None),
        (X, False, X),
        (None, True, Metadata.of({"confluent:version": "7"})),
        (X, True, Metadata.of({"x": "1", "confluent:version": "7"})),
        (X_NUMBERED, False, Metadata.of({"x": "1", "confluent:version": "7"})),
    ],
)
def test_version_property_is_updated_or_always_added(metadata, always, expected):
    assert with_version_property(metadata, 7, always=always) == expected


def test_version_property_accepts_numbers_only():
    with all_cases() as case:
        for text, number in [("3", 3), ("-1", -1), ("", None), ("x", None), ("9" * 5000, None)]:
            with case((text, number)):
                assert version_property(Metadata.of({"confluent:version": text})) == number


def test_request_matches_equal_metadata_and_rules():
    with all_cases() as case:
        for selected, stored, found in [
            ((None, None), (None, None), True),
            ((X, None), (X, None), True),
            ((None, None), (X, None), False),
            ((X, None), (None, None), False),
            # None and empty metadata have different ids.
            ((Metadata(), None), (None, None), False),
            # The stored version property is ignored if the request has none.
            ((X, None), (X_NUMBERED, None), True),
            ((None, None), (NUMBERED, None), True),
            ((None, None), (X_NUMBERED, None), False),
            # The version property of the request is ignored if the stored version has none and the number is right.
            ((X_NUMBERED, None), (X, None), True),
            ((NUMBERED, None), (None, None), True),
            ((Metadata.of({"confluent:version": "2"}), None), (None, None), False),
            # Version properties on both sides must be equal.
            ((X_NUMBERED, None), (X_NUMBERED, None), True),
            ((X_NUMBERED, None), (Metadata.of({"x": "1", "confluent:version": "4"}), None), False),
            ((None, RULES), (None, RULES), True),
            ((None, RULES), (None, None), False),
            ((None, None), (None, RULES), False),
        ]:
            with case((selected, stored, found)):
                assert satisfies_request(selected, stored, 3) is found


def test_reserved_fields_are_split_at_commas():
    with all_cases() as case:
        for text, names in [("a", ("a",)), (" b , a,,b ", ("b", "a")), ("", ()), (None, ())]:
            with case((text, names)):
                assert reserved_fields(Metadata.of({} if text is None else {"confluent:reserved": text})) == names
                assert reserved_fields(None) == ()


def test_has_properties_requires_all_values():
    assert has_properties(X_NUMBERED, {"x": "1"})
    assert has_properties(X, {})
    assert not has_properties(X, {"x": "2"})
    assert not has_properties(X, {"x": "1", "y": "1"})
    assert not has_properties(None, {})
