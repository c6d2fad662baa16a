"""The table of Avro types and their Hive types, and the reasons where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.hive_ddl.errors import UnsupportedColumn
from headrace.hive_ddl.types import COMMENT_CHARS_MAX, Column, column_problems, hive_type, table_columns

SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 16}
POINT = {"type": "record", "name": "P", "fields": [{"name": "X", "type": "int"}, {"name": "y", "type": ["null", SUIT]}]}


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
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
    ],
    ids=str,
)
def test_type(avro: Any, expected: str) -> None:
    schema = parse_schema(json.dumps(avro), strict=False)
    assert hive_type(schema, schema.root) == expected


@pytest.mark.parametrize(
    ("avro", "reason"),
    [
        (["int"], "a union of a single branch"),
        (["null"], "a union of a single branch"),
        (["int", "string"], "a union of 2 types"),
        (["null", "int", "string"], "a union of 2 types"),
        (logical("bytes", "decimal", precision=39, scale=2), "at most 38 digits"),
        (logical("bytes", "decimal", precision=9), "does not say its scale"),
        (logical("bytes", "decimal", precision=2, scale=3), "between 0 and its precision"),
        (logical("bytes", "decimal", scale=3), "whole precision"),
        (logical("string", "varchar"), "maxLength"),
    ],
    ids=str,
)
def test_type_that_cannot_be_a_column(avro: Any, reason: str) -> None:
    schema = parse_schema(json.dumps(avro), strict=False)
    with pytest.raises(UnsupportedColumn, match=reason):
        hive_type(schema, schema.root)


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def test_columns_are_lower_case_and_keep_docs_as_far_as_a_metastore_does() -> None:
    columns = table_columns(
        parse_schema(
            record({"name": "Url", "type": "string", "doc": "where"}, {"name": "n", "type": "int", "doc": "x" * 300})
        )
    )
    assert columns == (Column("url", "string", "where"), Column("n", "int", "x" * COMMENT_CHARS_MAX))


def test_a_record_used_twice_is_no_recursion() -> None:
    text = record({"name": "a", "type": POINT}, {"name": "b", "type": ["null", "P"]})
    assert [column.type for column in table_columns(parse_schema(text))] == ["struct<x:int,y:string>"] * 2


@pytest.mark.parametrize(
    "link", [["null", "R"], {"type": "array", "items": "R"}, {"type": "map", "values": ["null", "R"]}], ids=str
)
def test_recursion_is_named(link: Any) -> None:
    problems = column_problems(parse_schema(record({"name": "id", "type": "int"}, {"name": "next", "type": link})))
    assert [problem.path.rstrip("[]{}") for problem in problems] == ["next"]
    assert "contains itself" in problems[0].reason


def test_every_problem_is_found_with_its_place() -> None:
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
    assert "partition column dt" in problems[1].reason


def test_a_type_may_be_as_long_as_it_is() -> None:
    members = [{"name": f"member_{n}", "type": "string"} for n in range(5_000)]
    text = record({"name": "r", "type": {"type": "record", "name": "Row", "fields": members}})
    assert column_problems(parse_schema(text)) == ()


@pytest.mark.parametrize("text", ['"string"', record()], ids=["not a record", "no fields"])
def test_schemas_that_make_no_table(text: str) -> None:
    assert len(column_problems(parse_schema(text))) == 1
