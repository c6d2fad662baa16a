"""Defaults of fields: JSON in the schema, and values of the field's type when written or read."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.encoding import Encoding
from headrace.clients.errors import UndecodableMessage
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
INNER = {
    "type": "record",
    "name": "x.B",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "bytes", "default": "ÿ"}],
}
CASES = [
    ("bytes", "ÿ\x01", b"\xff\x01"),
    ({"type": "fixed", "name": "F", "size": 1}, "ÿ", b"\xff"),
    (DECIMAL, "\x01", decimal.Decimal("0.01")),
    ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
    (INNER, {"x": 1}, {"x": 1, "y": b"\xff"}),
    ([INNER, "null"], {"x": 1}, {"x": 1, "y": b"\xff"}),
    ({"type": "array", "items": INNER}, [{"x": 1}], [{"x": 1, "y": b"\xff"}]),
    ({"type": "map", "values": "bytes"}, {"a": "ÿ"}, {"a": b"\xff"}),
    ("double", 1, 1.0),
    (["null", "string"], None, None),
    ("string", "ÿ", "ÿ"),
]


class Registry:
    """A registry with one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def schema_by_id(self, schema_id: int) -> Schema:
        return self.schema

    def parsed(self, schema: Schema) -> Schema:
        return schema

    def version(self, subject: str, version: str) -> Any:
        raise SubjectNotFound(subject, subject=subject)


def record_of(*fields: dict[str, Any]) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "R", "fields": [*fields]}))


def decoded(encoded: bytes, writer: Schema, reader: Schema | None) -> Any:
    decoder = Decoder(Registry(writer), reader, LoaderSettings())  # type: ignore[arg-type]
    return decoder.decode(FetchedRecord("t", 0, 0, 0, None, encoded, ()))[1]


def encoding(schema: Schema) -> Encoding:
    return Encoding("t", "t-value", 1, schema, time_property="", time_fields=())


@pytest.mark.parametrize(("kind", "default", "value"), CASES)
def test_omitted_field_is_written_with_its_default(kind: Any, default: Any, value: Any) -> None:
    schema = record_of({"name": "f", "type": kind, "default": default})
    assert decoded(encoding(schema).encode({}), schema, None) == {"f": value}


@pytest.mark.parametrize(("kind", "default", "value"), CASES)
def test_additional_reader_field_has_its_default(kind: Any, default: Any, value: Any) -> None:
    writer = record_of()
    reader = record_of({"name": "f", "type": kind, "default": default})
    found = decoded(encoding(writer).encode({}), writer, reader)
    assert found == {"f": value} and type(found["f"]) is type(value)


def test_message_with_a_default_outside_of_pythons_range_is_undecodable() -> None:
    schema = record_of({"name": "f", "type": {"type": "int", "logicalType": "date"}, "default": 10_000_000})
    written = encoding(schema).encode({"f": datetime.date(1970, 1, 2)})
    assert decoded(written, schema, None) == {"f": datetime.date(1970, 1, 2)}
    with pytest.raises(UndecodableMessage, match="out of range"):
        decoded(encoding(record_of()).encode({}), record_of(), schema)


ONE_DEFAULT = {**INNER, "fields": [{"name": "y", "type": "bytes", "default": "ÿ"}]}


@pytest.mark.parametrize(
    ("root", "value", "found"),
    [
        (["null", ONE_DEFAULT], {}, {"y": b"\xff"}),
        ({"type": "array", "items": ONE_DEFAULT}, [{}], [{"y": b"\xff"}]),
        ({"type": "map", "values": ONE_DEFAULT}, {"k": {}}, {"k": {"y": b"\xff"}}),
        (["null", {"type": "array", "items": ONE_DEFAULT}], [{}], [{"y": b"\xff"}]),
        (["null", ONE_DEFAULT, {"type": "array", "items": "x.B"}], [{}], [{"y": b"\xff"}]),
        (["null", {"type": "array", "items": ONE_DEFAULT}, "x.B"], {}, {"y": b"\xff"}),
    ],
)
def test_defaults_apply_in_nested_records(root: Any, value: Any, found: Any) -> None:
    schema = parse_schema(json.dumps(root))
    assert decoded(encoding(schema).encode(value), schema, None) == found
    assert decoded(encoding(schema).encode(value), schema, schema) == found


def test_type_without_namespace_is_found_inside_a_namespace() -> None:
    """Like Avro Java; fastavro alone would look for `x.Bare`."""
    bare = {"type": "record", "name": "Bare", "fields": [{"name": "y", "type": "bytes", "default": "ÿ"}]}
    inside = {"type": "record", "name": "x.In", "fields": [{"name": "b", "type": ["null", "Bare"]}]}
    schema = record_of({"name": "a", "type": bare}, {"name": "i", "type": inside})
    found = {"a": {"y": b"\xff"}, "i": {"b": {"y": b"\xff"}}}
    assert decoded(encoding(schema).encode({"a": {}, "i": {"b": {}}}), schema, None) == found
    assert decoded(encoding(schema).encode({"a": {}, "i": {"b": ("Bare", {})}}), schema, schema) == found
    assert decoded(encoding(schema).encode({"a": {"y": b"z"}, "i": {"b": None}}), schema, schema)["i"] == {"b": None}
