"""Versions and directions that each level compares, and properties of all pairs of schemas."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import (
    LEVELS,
    ComparisonTooLarge,
    CompatibilityLevel,
    Direction,
    InvalidLevel,
    Report,
    VersionedSchema,
    check_level,
    check_reader_writer,
    parse_level,
)
from headrace.compat.resolution import ComparisonBudget
from support.schemas.schema_pairs import schema_pairs
from support.schemas.strategies import growing_histories

PAIRS = list(schema_pairs(2, 300))
LEVEL = CompatibilityLevel


def record(*fields: str) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "R", "fields": [json.loads(field) for field in fields]}))


A = '{"name": "a", "type": "int"}'
B = '{"name": "b", "type": "int"}'
B_DEFAULT = '{"name": "b", "type": "int", "default": 0}'
C = '{"name": "c", "type": "int"}'


def check(candidate: Schema, level: CompatibilityLevel, *history: Schema, every_version: bool = False) -> Report:
    versions = [VersionedSchema(number, schema) for number, schema in enumerate(history, 1)]
    return check_level(candidate, versions, level, every_version=every_version)


@pytest.mark.parametrize(
    ("level", "latest", "all_versions"),
    [
        (LEVEL.NONE, True, True),
        (LEVEL.BACKWARD, True, False),
        (LEVEL.FORWARD, True, True),
        (LEVEL.FULL, True, False),
    ],
)
def test_only_transitive_levels_compare_older_versions(
    level: CompatibilityLevel, latest: bool, all_versions: bool
) -> None:
    """Version 1 lacks b; version 2 has it with a default; the candidate has no default."""
    history = (record(A), record(A, B_DEFAULT))
    assert check(record(A, B), level, *history).is_compatible is latest
    if level is not LEVEL.NONE:
        transitive = LEVEL(f"{level.value}_TRANSITIVE")
        assert check(record(A, B), transitive, *history).is_compatible is all_versions


def test_versions_are_compared_newest_first_until_incompatible() -> None:
    history = (record(A), record(A), record(A, B_DEFAULT))
    report = check(record(A, B), LEVEL.BACKWARD_TRANSITIVE, *history)
    assert [known.version for known in report.compared] == [3, 2]
    assert [finding.version for finding in report.findings] == [2]
    report = check(record(A, B), LEVEL.BACKWARD_TRANSITIVE, *history, every_version=True)
    assert [known.version for known in report.compared] == [3, 2, 1]
    assert [finding.version for finding in report.findings] == [2, 1]


def test_pair_limit_applies_to_all_versions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.compat.resolution.PAIRS_MAX", 50)
    types = [{"type": "record", "name": f"R{number}", "fields": []} for number in range(5)]
    union = [parse_schema(json.dumps(types)) for _ in range(4)]
    assert check(union[0], LEVEL.BACKWARD_TRANSITIVE, *union[1:2]).is_compatible
    assert check(union[0], LEVEL.BACKWARD, *union[1:]).is_compatible
    with pytest.raises(ComparisonTooLarge, match=r"\b50\b"):
        check(union[0], LEVEL.BACKWARD_TRANSITIVE, *union[1:])


def test_comparison_ends_at_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.compat.resolution.PAIRS_BETWEEN_TIME_CHECKS", 5)
    looks = iter([False, True])
    budget = ComparisonBudget(lambda: next(looks))
    history = [VersionedSchema(number, record(A, B_DEFAULT)) for number in range(1, 20)]
    with pytest.raises(ComparisonTooLarge, match=r"\b10\b"):
        check_level(record(A, B), history, LEVEL.BACKWARD_TRANSITIVE, every_version=True, budget=budget)


def test_full_reports_forward_problems_first() -> None:
    report = check(record(A, B), LEVEL.FULL, record(A, C))
    assert [(finding.direction, finding.incompatibility.message) for finding in report.findings] == [
        (Direction.FORWARD, "c"),
        (Direction.BACKWARD, "b"),
    ]


@pytest.mark.parametrize("level", LEVEL)
def test_a_first_version_is_compatible(level: CompatibilityLevel) -> None:
    report = check(record(A), level)
    assert report.is_compatible
    assert report.compared == ()


def test_none_compares_nothing() -> None:
    report = check(record(A), LEVEL.NONE, record(B))
    assert report.is_compatible
    assert report.compared == ()


def test_every_level_has_its_rule_and_its_name() -> None:
    assert set(LEVELS) == set(LEVEL)
    assert [parse_level(level.value.lower()) for level in LEVEL] == list(LEVEL)


def test_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidLevel) as refused:
        parse_level("FULLY")
    assert (refused.value.text, refused.value.levels[:2]) == ("FULLY", ("NONE", "BACKWARD"))


def test_full_is_backward_and_forward() -> None:
    for pair in PAIRS:
        candidate, earlier = (parse_schema(text) for text in pair)
        forward, backward, full = (
            check(candidate, level, earlier) for level in (LEVEL.FORWARD, LEVEL.BACKWARD, LEVEL.FULL)
        )
        assert full.is_compatible is (forward.is_compatible and backward.is_compatible)
        assert [finding.sentence for finding in full.findings] == [
            finding.sentence for finding in (*forward.findings, *backward.findings)
        ]


def test_every_schema_reads_itself() -> None:
    """Except for a field with the name of another field, or its own name, as alias: Avro Java calls it ambiguous."""
    for text in {text for pair in PAIRS for text in pair}:
        rules = {problem.type.value for problem in check_reader_writer(parse_schema(text), parse_schema(text))}
        assert rules <= {"AMBIGUOUS_FIELD_ALIAS"}, text


def test_docs_white_space_and_key_order_do_not_matter() -> None:
    rng = random.Random(3)
    for pair in PAIRS:
        expected = comparable_findings(*(parse_schema(text) for text in pair))
        disguised = [json.dumps(_reformat(rng, json.loads(text)), indent=3) for text in pair]
        assert comparable_findings(*(parse_schema(text) for text in disguised)) == expected


def comparable_findings(reader: Schema, writer: Schema) -> list[tuple[str, str, str]]:
    """Returns type, location and message, without the message that quotes the whole writer including its docs."""
    return [
        (problem.type.value, problem.location, problem.message if problem.type.value != "AMBIGUOUS_FIELD_ALIAS" else "")
        for problem in check_reader_writer(reader, writer)
    ]


@given(growing_histories())
def test_a_history_that_only_adds_optional_fields_is_compatible_at_every_level(history: list[Schema]) -> None:
    assert check(history[-1], LEVEL.FULL_TRANSITIVE, *history[:-1]).is_compatible


def _reformat(rng: random.Random, node: Any) -> Any:
    if isinstance(node, list):
        return [_reformat(rng, item) for item in node]
    if not isinstance(node, dict):
        return node
    items = [(key, value if key in ("default", "aliases") else _reformat(rng, value)) for key, value in node.items()]
    if "name" in node:
        items.append(("doc", "What it is."))
    rng.shuffle(items)
    return dict(items)
