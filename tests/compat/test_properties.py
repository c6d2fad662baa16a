"""Properties of every pair of schemas, independent of the verdict."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import (
    CompatibilityLevel,
    Direction,
    IncompatibilityType,
    Report,
    VersionedSchema,
    check_level,
    check_reader_writer,
)
from support.schemas.schema_pairs import schema_pairs
from support.schemas.strategies import histories, schema_values, schemas

SHRINKING_PAIRS = histories(max_versions=2).filter(lambda versions: len(versions) == 2)
GENERATED_PAIRS = st.integers(0, 2**32).map(lambda seed: [parse_schema(text) for text in next(schema_pairs(seed, 1))])
PAIRS = st.one_of(SHRINKING_PAIRS, GENERATED_PAIRS)
"""Small changes of one record, which can be shrunk, and any change of any type, reproducible by seed."""


def report(candidate: Schema, earlier: list[Schema], level: CompatibilityLevel) -> Report:
    history = [VersionedSchema(number, schema) for number, schema in enumerate(earlier, 1)]
    return check_level(candidate, history, level, every_version=True)


def comparable_findings(found: Report, direction: Direction | None = None) -> list[tuple[Any, ...]]:
    """Returns the findings without positions, which differ between equivalent texts."""
    return [
        (
            finding.rule,
            finding.direction,
            finding.version,
            finding.sentence,
            finding.fix,
            finding.incompatibility.location,
        )
        for finding in found.findings
        if direction in (None, finding.direction)
    ]


@given(PAIRS)
def test_full_is_backward_and_forward(pair: list[Schema]) -> None:
    earlier, candidate = pair
    full = report(candidate, [earlier], CompatibilityLevel.FULL)
    backward = report(candidate, [earlier], CompatibilityLevel.BACKWARD)
    forward = report(candidate, [earlier], CompatibilityLevel.FORWARD)
    assert full.is_compatible == (backward.is_compatible and forward.is_compatible)
    assert comparable_findings(full, Direction.BACKWARD) == comparable_findings(backward)
    assert comparable_findings(full, Direction.FORWARD) == comparable_findings(forward)


@given(PAIRS)
def test_forward_is_backward_the_other_way_round(pair: list[Schema]) -> None:
    earlier, candidate = pair
    forward = report(candidate, [earlier], CompatibilityLevel.FORWARD)
    backward = report(earlier, [candidate], CompatibilityLevel.BACKWARD)
    assert [finding.rule for finding in forward.findings] == [finding.rule for finding in backward.findings]


@given(histories(max_versions=4))
def test_transitive_level_equals_level_against_each_version(versions: list[Schema]) -> None:
    candidate, earlier = versions[-1], versions[:-1]
    for level in (CompatibilityLevel.BACKWARD, CompatibilityLevel.FORWARD, CompatibilityLevel.FULL):
        each = [report(candidate, [version], level).is_compatible for version in earlier]
        whole = report(candidate, earlier, CompatibilityLevel(f"{level.value}_TRANSITIVE"))
        assert whole.is_compatible == all(each)
        assert report(candidate, earlier, level).is_compatible == (not each or each[-1])


@given(st.one_of(schemas(), GENERATED_PAIRS.map(lambda pair: pair[0])))
def test_every_schema_is_compatible_with_itself(schema: Schema) -> None:
    """Except if a field's alias is another field's name: then Avro Java cannot read any data, including its own."""
    reparsed = parse_schema(schema.text)
    for other in (schema, reparsed):
        rules = {problem.type for problem in check_reader_writer(schema, other)}
        assert rules <= {IncompatibilityType.AMBIGUOUS_FIELD_ALIAS}
        assert not rules or '"aliases"' in schema.text


@given(schema_values(), schema_values(), st.integers(0, 2**32))
@example({"type": "bytes", "logicalType": "decimal", "precision": 5}, "null", 0)
def test_verdicts_ignore_docs_key_order_and_white_space(one: Any, other: Any, seed: int) -> None:
    check_same_verdict(one, other, random.Random(seed))


@given(st.integers(0, 2**32))
def test_verdicts_of_similar_schemas_ignore_docs_key_order_and_white_space(seed: int) -> None:
    one, other = (json.loads(text) for text in next(schema_pairs(seed, 1)))
    check_same_verdict(one, other, random.Random(seed))


def check_same_verdict(one: Any, other: Any, rng: random.Random) -> None:
    expected = report(parse_schema(json.dumps(one)), [parse_schema(json.dumps(other))], CompatibilityLevel.FULL)
    candidate, earlier = (parse_schema(reformat(value, rng)) for value in (one, other))
    assert comparable_findings(report(candidate, [earlier], CompatibilityLevel.FULL)) == comparable_findings(expected)


def reformat(value: Any, rng: random.Random) -> str:
    """Returns the same schema with another layout and other documentation."""
    return json.dumps(shuffle_keys(value, rng), indent=rng.choice([None, 0, 1, "\t"]), ensure_ascii=rng.random() < 0.5)


def shuffle_keys(node: Any, rng: random.Random) -> Any:
    """Returns a type with shuffled keys and other documentation; values of defaults are unchanged."""
    if isinstance(node, list):
        return [shuffle_keys(branch, rng) for branch in node]
    if not isinstance(node, dict):
        return node
    out = {key: value for key, value in node.items() if key != "doc"}
    if ("fields" in node or "symbols" in node or "default" in node) and rng.random() < 0.7:
        out["doc"] = rng.choice(["", "é \u2028", "one\ntwo"])
    for key in ("type", "items", "values"):
        if key in out:
            out[key] = shuffle_keys(out[key], rng)
    if "fields" in out:
        out["fields"] = [shuffle_keys(field, rng) for field in out["fields"]]
    keys = list(out)
    rng.shuffle(keys)
    return {key: out[key] for key in keys}
