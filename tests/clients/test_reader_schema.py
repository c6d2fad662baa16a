"""Values that a consumer with a reader schema gets. `tests/avro_codec/test_resolve_avro_java.py` compares the choice of
types and fields with Avro Java; logical types are the table in docs/clients.md."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import uuid
from typing import Any

import pytest

from headrace.avro_codec import resolve
from headrace.avro_codec.encode import encode_long
from headrace.avro_schema import Schema, frame, parse_schema
from headrace.clients import decoding
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.encoding import Encoding
from headrace.clients.errors import UndecodableMessage
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings
from support.pages import page

UNDERLYING = {
    "date": "int",
    "time-millis": "int",
    "uuid": "string",
    "decimal": "bytes",
}
"""The underlying types of logical types; the others have long."""

NAMES = {
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "UTC": datetime.UTC,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
}


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


def schema_of(kind: Any) -> Schema:
    return parse_schema(json.dumps(kind))


def read(message: bytes, writer: Any, reader: Any) -> Any:
    """Returns the value that a consumer with the schema `reader` reads from a framed message."""
    decoder = Decoder(Registry(schema_of(writer)), schema_of(reader), LoaderSettings())  # type: ignore[arg-type]
    return decoder.decode(FetchedRecord("t", 0, 0, 0, None, message, ()))[1]


def written(kind: Any, value: Any) -> bytes:
    return Encoding("t", "t-value", 1, schema_of(kind), time_property="", time_fields=()).encode(value)


def exact(value: Any) -> tuple[type, Any]:
    return type(value), value


@pytest.fixture(params=[True, False], ids=["core", "no core"], autouse=True)
def _with_and_without_the_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(decoding, "core_library", lambda: None)


RECORDS = [
    {"type": "record", "name": name, "fields": [{"name": "x", "type": kind, "default": 0}]}
    for name, kind in (("a.R", "long"), ("b.R", "int"))
]
TEXT_RECORD = {"type": "record", "name": "b.R", "fields": [{"name": "x", "type": "string"}]}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (["long", "double"], ["double", "long"], 2**53 + 1, 2**53 + 1),
        (["long", "double"], ["double", "long"], 0.5, 0.5),
        ("long", ["double", "long"], 2**53 + 1, 2**53 + 1),
        (["null", "int"], ["null", "double", "long", "int"], 5, 5),
        (["null", "int"], ["null", "double", "long"], 5, 5.0),
        ("bytes", ["string", "bytes"], b"\xff", b"\xff"),
        ("string", ["bytes", "string"], "a", "a"),
        ("string", ["bytes", "null"], "a", b"a"),
        (RECORDS, RECORDS[::-1], ("b.R", {"x": 7}), {"x": 7}),
        (RECORDS[1], ["null", RECORDS[0]], {"x": 7}, {"x": 7}),
        ([RECORDS[0], TEXT_RECORD], [RECORDS[0], TEXT_RECORD, "null"], ("b.R", {"x": "a"}), {"x": "a"}),
        (
            {"type": "array", "items": ["int", "string"]},
            {"type": "array", "items": ["string", "float", "int"]},
            [1, "a"],
            [1, "a"],
        ),
    ],
)
def test_value_has_the_exact_branch_of_the_reader(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert exact(read(written(writer, value), writer, reader)) == exact(expected)


def record_named(name: str, *fields: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": ["null", "int"], "default": None} for field in fields],
    }


@pytest.mark.parametrize(
    ("branches", "expected"),
    [
        (["a.S", "c.R", "a.T"], {"x": 7, "r": None}),  # the same short name
        (["a.S", "b.R", "c.R"], {"x": 7, "b": None}),  # the same name
        (["a.T", "a.S"], {"x": 7, "t": None}),  # the first
    ],
)
def test_record_of_another_name_is_read_as_the_record_that_fits_best(branches: list[str], expected: Any) -> None:
    writer = record_named("b.R", "x")
    fields = {"a.S": "s", "c.R": "r", "a.T": "t", "b.R": "b"}
    reader = ["null", "string", *(record_named(name, "x", fields[name]) for name in branches)]
    assert read(written(writer, {"x": 7}), writer, reader) == expected


def test_enum_of_another_namespace_is_read_as_the_enum_of_the_same_short_name() -> None:
    def enum(name: str, *symbols: str) -> dict[str, Any]:
        return {"type": "enum", "name": name, "symbols": [*symbols], "default": symbols[0]}

    writer = enum("a.E", "A", "B")
    assert read(written(writer, "B"), writer, [enum("b.D", "D", "B"), enum("b.E", "A", "B")]) == "B"
    assert read(written(writer, "B"), writer, [enum("b.D", "D", "B"), enum("b.E", "C", "A")]) == "C"
    with pytest.raises(UndecodableMessage, match=r"no branch of the reader's union matches the enum a\.E"):
        read(written(writer, "B"), writer, [enum("b.D", "D", "B"), "string"])


def test_large_body_is_converted_in_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not fit into the first buffer."""
    writer = {"type": "array", "items": "string"}
    reader = {"type": "array", "items": ["null", "string"]}
    value = ["é" * 100] * 1000
    if decoding.core_library() is not None:
        monkeypatch.setattr(resolve, "_converter", lambda *_: lambda body: pytest.fail("Python converted the body"))
    for count in (1, 1000, 2):
        assert read(written(writer, value[:count]), writer, reader) == value[:count]


def test_field_has_the_value_of_its_alias_even_if_the_name_of_the_record_differs() -> None:
    writer = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "n", "type": "int"}, {"name": "y", "type": "int"}],
    }
    renamed = {"name": "number", "type": "long", "aliases": ["n"], "default": 0}
    reader = {"type": "record", "name": "Order", "fields": [{"name": "y", "type": "int"}, renamed]}
    assert read(written(writer, {"n": 7, "y": 1}), writer, reader) == {"y": 1, "number": 7}


def test_alias_does_not_take_the_place_of_a_field_of_that_name() -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]
    writer = {"type": "record", "name": "R", "fields": fields}
    reader = {"type": "record", "name": "R", "fields": [fields[0], {**fields[1], "aliases": ["a"]}]}
    changed = {"type": "record", "name": "R", "fields": [*reader["fields"], {"name": "c", "type": "int", "default": 3}]}
    assert read(written(writer, {"a": 1, "b": 2}), writer, changed) == {"a": 1, "b": 2, "c": 3}


def test_recursive_type_is_read_with_an_additional_field() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    reader = {**node, "fields": [{"name": "depth", "type": "int", "default": 5}, *node["fields"]]}
    value = read(written(node, {"next": {"next": None}}), node, reader)
    assert value == {"depth": 5, "next": {"depth": 5, "next": None}}
    with pytest.raises(UndecodableMessage, match="nested deeper"):
        read(frame(1, b"\x02" * 97 + b"\0"), node, reader)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "problem"),
    [
        ("string", "int", "a", "string cannot be read as int"),
        (["int", "string"], "int", "a", "string cannot be read as int"),
        ("boolean", ["int", "string"], True, "no branch of the reader's union matches boolean"),
        (
            {"type": "record", "name": "R", "fields": []},
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]},
            {},
            "lacks the reader's field x",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "neither the symbol B nor a default",
        ),
    ],
)
def test_value_that_the_reader_cannot_represent_is_undecodable(
    writer: Any, reader: Any, value: Any, problem: str
) -> None:
    with pytest.raises(UndecodableMessage, match=f"schema 1 cannot be read with reader_schema: .*{problem}"):
        read(written(writer, value), writer, reader)


def test_malformed_body_is_reported_as_such() -> None:
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "string"}],
    }
    reader = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    with pytest.raises(UndecodableMessage, match="a string is not UTF-8"):
        read(frame(1, b"\x02a\x02\xff"), writer, reader)


def type_of(text: str) -> Any:
    """Returns the type of a cell of the table, such as `decimal(4, 2)`."""
    name, *digits = re.findall(r"[\w-]+", text)
    if name in ("int", "long", "double", "string", "bytes"):
        return name
    node = {"type": UNDERLYING.get(name, "long"), "logicalType": name}
    return node | {key: int(value) for key, value in zip(("precision", "scale"), digits, strict=False)}


def table_rows() -> list[list[str]]:
    section = page("docs/clients.md").partition("### Reader schemas")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("is_nullable", [False, True])
@pytest.mark.parametrize(("writer", "value", "reader", "result"), table_rows())
def test_logical_types_are_read_as_the_page_says(
    writer: str, value: str, reader: str, result: str, is_nullable: bool
) -> None:
    kinds: list[Any] = [type_of(writer), type_of(reader)]
    if is_nullable:
        kinds = [["null", kinds[0]], [kinds[1], "null"]]
    message = written(kinds[0], eval(value, dict(NAMES)))
    if result == "undecodable":
        with pytest.raises(UndecodableMessage):
            read(message, *kinds)
    else:
        assert exact(read(message, *kinds)) == exact(eval(result, dict(NAMES)))


@pytest.mark.parametrize("kind", ["date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "uuid"])
def test_all_values_of_a_consumer_have_one_class(kind: str) -> None:
    """Whether the writer has the logical type or not."""
    logical = type_of(kind)
    plain = logical["type"]
    text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    value = text if plain == "string" else 5
    classes = {type(read(written(writer, value), writer, logical)) for writer in (logical, plain)}
    assert len(classes) == 1
    assert {type(read(written(writer, value), writer, plain)) for writer in (logical, plain)} == {type(value)}


def test_decimal_in_a_fixed_is_rescaled() -> None:
    def kind(scale: int) -> dict[str, Any]:
        return {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": scale}

    message = written(kind(2), decimal.Decimal("-1.25"))
    assert read(message, kind(2), kind(3)) == decimal.Decimal("-1.250")
    with pytest.raises(UndecodableMessage, match="no exact value"):
        read(message, kind(2), kind(1))
    with pytest.raises(UndecodableMessage, match="no exact value"):
        read(written(kind(0), decimal.Decimal(10**8)), kind(0), kind(9))


def test_default_of_another_unit_is_that_of_the_reader() -> None:
    writer = {"type": "record", "name": "R", "fields": []}
    kind = {"type": "long", "logicalType": "timestamp-micros"}
    reader = {"type": "record", "name": "R", "fields": [{"name": "at", "type": kind, "default": 5}]}
    expected = datetime.datetime(1970, 1, 1, microsecond=5, tzinfo=datetime.UTC)
    assert read(written(writer, {}), writer, reader) == {"at": expected}


def test_invalid_default_is_reported_only_where_it_is_used() -> None:
    kind = {"type": "enum", "name": "E", "symbols": ["A"]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "e", "type": kind, "default": "B"}]}
    assert read(frame(1, encode_long(0)), {**reader, "fields": [{"name": "e", "type": kind}]}, reader) == {"e": "A"}
    empty = {"type": "record", "name": "R", "fields": []}
    with pytest.raises(UndecodableMessage, match="the default of the reader's field e is invalid"):
        read(written(empty, {}), empty, reader)
