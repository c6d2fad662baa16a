"""Hive types of Avro types, and reasons for types without one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.hive_ddl.errors import UnsupportedColumn
from headrace.hive_ddl.types import COMMENT_CHARS_MAX, Column, column_problems, hive_type, table_columns
from support.golden import case_lines, golden

SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 16}
POINT = {"type": "record", "name": "P", "fields": [{"name": "X", "type": "int"}, {"name": "y", "type": ["null", SUIT]}]}


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


TYPES = [
    ("null", "void"),
    ("boolean", "boolean"),
    ("int", "int"),
    ("long", "bigint"),
    ("float", "float"),
    ("double", "double"),
    ("bytes", "binary"),
    ("string", "string"),
    (["null", "long"], "bigint"),
    (["long", "null"], "bigint"),
    (SUIT, "string"),
    (FIXED, "binary"),
    ({"type": "array", "items": ["null", "int"]}, "array<int>"),
    ({"type": "map", "values": {"type": "array", "items": "bytes"}}, "map<string,array<binary>>"),
    (POINT, "struct<x:int,y:string>"),
    ({"type": "record", "name": "E", "fields": []}, "struct<>"),
    (logical("int", "date"), "date"),
    (logical("int", "time-millis"), "int"),
    (logical("long", "time-micros"), "bigint"),
    (logical("long", "timestamp-millis"), "timestamp"),
    (logical("long", "timestamp-micros"), "bigint"),
    (logical("long", "timestamp-nanos"), "bigint"),
    (logical("long", "local-timestamp-millis"), "bigint"),
    (logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)"),
    (logical("bytes", "decimal", precision=38, scale=0), "decimal(38,0)"),
    (FIXED | {"logicalType": "decimal", "precision": 9, "scale": 2}, "binary"),
    (logical("string", "uuid"), "string"),
    (logical("string", "varchar", maxLength=20), "varchar(20)"),
    (logical("string", "char", maxLength=3), "char(3)"),
    (logical("string", "of-our-own"), "string"),
    (logical("int", "timestamp-millis"), "int"),
]
"""An Avro type and its Hive type."""


def test_hive_types() -> None:
    schemas = [parse_schema(json.dumps(avro), strict=False) for avro, _ in TYPES]
    found = [hive_type(schema, schema.root) for schema in schemas]
    assert list(zip((avro for avro, _ in TYPES), found, strict=True)) == TYPES


def test_types_without_a_hive_type_are_refused_with_a_reason() -> None:
    types: tuple[Any, ...] = (
        ["int"],
        ["null"],
        ["int", "string"],
        ["null", "int", "string"],
        logical("bytes", "decimal", precision=39, scale=2),
        logical("bytes", "decimal", precision=9),
        logical("bytes", "decimal", precision=2, scale=3),
        logical("bytes", "decimal", scale=3),
        logical("string", "varchar"),
    )
    reasons = []
    for avro in types:
        schema = parse_schema(json.dumps(avro), strict=False)
        with pytest.raises(UnsupportedColumn) as refused:
            hive_type(schema, schema.root)
        reasons.append((json.dumps(avro), refused.value.reason))
    lines = case_lines(reasons)
    assert lines == golden("hive_ddl/unsupported_types.txt", lines)


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def test_columns_have_lower_case_names_and_truncated_comments() -> None:
    columns = table_columns(
        parse_schema(
            record({"name": "Url", "type": "string", "doc": "where"}, {"name": "n", "type": "int", "doc": "x" * 300})
        )
    )
    assert columns == (Column("url", "string", "where"), Column("n", "int", "x" * COMMENT_CHARS_MAX))


def test_record_used_twice_is_not_recursive() -> None:
    text = record({"name": "a", "type": POINT}, {"name": "b", "type": ["null", "P"]})
    assert [column.type for column in table_columns(parse_schema(text))] == ["struct<x:int,y:string>"] * 2


@pytest.mark.parametrize(
    "link", [["null", "R"], {"type": "array", "items": "R"}, {"type": "map", "values": ["null", "R"]}], ids=str
)
def test_recursion_is_reported_at_the_closing_field(link: Any) -> None:
    problems = column_problems(parse_schema(record({"name": "id", "type": "int"}, {"name": "next", "type": link})))
    assert [problem.path.rstrip("[]{}") for problem in problems] == ["next"]


def test_every_problem_has_path_and_position() -> None:
    text = """{"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "int"},
        {"name": "A", "type": "int"},
        {"name": "Dt", "type": "string"},
        {"name": "u", "type": {"type": "array", "items": ["int", "string"]}},
        {"name": "s", "type": {"type": "record", "name": "S", "fields": [
            {"name": "x", "type": "int"}, {"name": "X", "type": "int"}]}}
    ]}"""
    problems = column_problems(parse_schema(text), ["dt", "hr"])
    assert [(problem.path, problem.position.line) for problem in problems] == [
        ("A", 3),
        ("Dt", 4),
        ("u[]", 5),
        ("s.X", 7),
    ]
    assert re.search(r"\bdt\b", problems[1].reason)


def test_type_length_is_not_limited() -> None:
    members = [{"name": f"member_{n}", "type": "string"} for n in range(5_000)]
    text = record({"name": "r", "type": {"type": "record", "name": "Row", "fields": members}})
    assert column_problems(parse_schema(text)) == ()


@pytest.mark.parametrize("text", ['"string"', record()], ids=["not a record", "no fields"])
def test_schema_without_columns_is_a_problem(text: str) -> None:
    assert len(column_problems(parse_schema(text))) == 1
