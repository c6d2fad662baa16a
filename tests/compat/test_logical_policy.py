"""The compatibility policy LOGICAL, one case per rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.compat.logical_policy import find_logical_problems

DATE = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def decimal(precision: int, scale: int, **base: Any) -> dict[str, Any]:
    return {"type": "bytes", **base, "logicalType": "decimal", "precision": precision, "scale": scale}


def record(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, **more}]}


FIXED = {"type": "fixed", "name": "F", "size": 8}
LOOP = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "next", "type": ["null", "L"]}, {"name": "at", "type": DATE}],
}


@pytest.mark.parametrize(
    ("reader", "writer", "found"),
    [
        (DATE, DATE, []),
        ("int", "int", []),
        (DATE, "int", ["the logical type is date in the new schema and none in the old schema (path '/')"]),
        ("int", DATE, ["the logical type is none in the new schema and date in the old schema (path '/')"]),
        (
            record(MILLIS),
            record(MICROS),
            [
                "the logical type is timestamp-millis in the new schema and timestamp-micros in the old schema "
                "(path '/fields/0/type')"
            ],
        ),
        # An invalid logical type counts as none.
        ({"type": "string", "logicalType": "date"}, "string", []),
        (decimal(9, 2), decimal(4, 2), []),
        (
            decimal(4, 2),
            decimal(9, 2),
            ["the precision is 4 in the new schema, less than 9 in the old schema (path '/')"],
        ),
        (decimal(9, 3), decimal(9, 2), ["the scale is 3 in the new schema and 2 in the old schema (path '/')"]),
        (
            decimal(9, 3, **FIXED),
            FIXED,
            ["the logical type is decimal in the new schema and none in the old schema (path '/')"],
        ),
        (
            {"type": "array", "items": {"type": "map", "values": DATE}},
            {"type": "array", "items": {"type": "map", "values": "int"}},
            ["the logical type is date in the new schema and none in the old schema (path '/items/values')"],
        ),
        # Branches match by type at any index; a plain type matches a branch.
        (
            ["null", "string", MILLIS],
            ["long", "null"],
            ["the logical type is timestamp-millis in the new schema and none in the old schema (path '/2')"],
        ),
        (
            record(["null", DATE]),
            record("int"),
            ["the logical type is date in the new schema and none in the old schema (path '/fields/0/type/1')"],
        ),
        (record("int"), record(["null", DATE]), ["the logical type is none in the new schema and date in the old"]),
        (["null", "string"], ["null", DATE], []),
        # Fields match by name or by the reader's alias; fields of one side only are ignored.
        (
            {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]},
            record(DATE),
            ["the logical type is none in the new schema and date in the old schema (path '/fields/0/type')"],
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}, record(DATE), []),
        # Unreadable types are left to Avro's rules; promoted types are checked.
        ("string", DATE, []),
        ("long", DATE, ["the logical type is none in the new schema and date in the old schema (path '/')"]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, DATE, []),
        (LOOP, LOOP, []),
    ],
)
def test_logical_policy_messages(reader: Any, writer: Any, found: list[str]) -> None:
    problems = find_logical_problems(
        parse_schema(json.dumps(reader)), parse_schema(json.dumps(writer)), reader_is_new=True
    )
    assert len(problems) == len(found)
    for problem, expected in zip(problems, found, strict=True):
        assert problem.startswith(f"Logical compatibility: {expected}")


def test_forward_direction_swaps_old_and_new() -> None:
    problems = find_logical_problems(parse_schema(json.dumps(DATE)), parse_schema('"int"'), reader_is_new=False)
    assert problems == [
        "Logical compatibility: the logical type is date in the old schema and none in the new schema (path '/')"
    ]
