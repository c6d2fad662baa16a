"""Suggestions for unknown type names."""

from __future__ import annotations

import json

import pytest

from headrace.avro_schema import SchemaParseError, parse_schema

RECORD = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "x", "type": "?"}]}


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("integer", "int"),
        ("Integer", "int"),
        ("int32", "int"),
        ("int64", "long"),
        ("bool", "boolean"),
        ("str", "string"),
        ("String", "string"),
        ("number", "double"),
        ("float64", "double"),
        ("datetime", '{"type": "long", "logicalType": "timestamp-millis"}'),
        ("timestamp", '{"type": "long", "logicalType": "timestamp-millis"}'),
        ("date", '{"type": "int", "logicalType": "date"}'),
        ("timestamp-millis", '{"type": "long", "logicalType": "timestamp-millis"}'),
        ("local-timestamp-micros", '{"type": "long", "logicalType": "local-timestamp-micros"}'),
        ("time-millis", '{"type": "int", "logicalType": "time-millis"}'),
        ("decimal", '{"type": "bytes", "logicalType": "decimal", "precision": …, "scale": …}'),
        ("uuid", '{"type": "string", "logicalType": "uuid"}'),
        ("object", '{"type": "record", …} or {"type": "map", "values": …}'),
        ("list", '{"type": "array", "items": …}'),
        ("dict", '{"type": "map", "values": …}'),
        ("lnog", "long"),
        ("Ordre", "shop.Order"),
        ("order", "shop.Order"),
    ],
)
def test_unknown_type_name_is_an_error_with_a_suggestion(written: str, suggested: str) -> None:
    text = json.dumps(RECORD, indent=1).replace("?", written)
    with pytest.raises(SchemaParseError) as refused:
        parse_schema(text)
    assert refused.value.message == f"the type shop.{written} is not defined; did you mean {suggested}?"
    assert (refused.value.position.line, refused.value.position.column) == (8, 12)


@pytest.mark.parametrize("written", ["Customer", "x", "zzz"])
def test_unknown_type_name_without_a_similar_one_lists_the_types(written: str) -> None:
    with pytest.raises(SchemaParseError, match="is not defined; expected null, boolean, int"):
        parse_schema(json.dumps(RECORD).replace("?", written))


def test_type_of_the_schema_precedes_a_usual_name() -> None:
    with pytest.raises(SchemaParseError, match=r"did you mean shop\.Integer\?"):
        parse_schema(
            json.dumps(
                {
                    "type": "record",
                    "name": "Integer",
                    "namespace": "shop",
                    "fields": [{"name": "x", "type": ["null", "integer"]}],
                }
            )
        )
