"""Validation of values against schemas, and the errors of invalid values."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import json
import math
import re
import uuid
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.datum import find_problem
from headrace.clients.encoding import Encoding, compiled_schema
from headrace.clients.errors import ValueRefused
from headrace.clients.value_guard import compile_guard
from support.golden import case_lines, golden

FIELDS = [
    {"name": "i", "type": "int"},
    {"name": "l", "type": "long"},
    {"name": "d", "type": "int", "default": 3},
    {"name": "b", "type": "boolean"},
    {"name": "f", "type": "float"},
    {"name": "s", "type": "string"},
    {"name": "y", "type": "bytes"},
    {"name": "o", "type": ["null", "int"], "default": None},
    {"name": "u", "type": ["string", "boolean"]},
    {"name": "a", "type": {"type": "array", "items": "int"}},
    {"name": "m", "type": {"type": "map", "values": "long"}},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
    {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
    {
        "name": "n",
        "type": {"type": "record", "name": "N", "fields": [{"name": "i", "type": "int"}, {"name": "e", "type": "E"}]},
    },
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
SCHEMA = parse_schema(json.dumps({"type": "record", "name": "R", "fields": FIELDS}))
GOOD: dict[str, Any] = {
    "i": 1,
    "l": 2**40,
    "b": True,
    "f": 1.5,
    "s": "x",
    "y": b"x",
    "u": "x",
    "a": [1, 2],
    "m": {"k": 1},
    "e": "A",
    "x": b"xx",
    "n": {"i": 1, "e": "B"},
    "t": 5,
}


def encoding(schema: Schema = SCHEMA) -> Encoding:
    return Encoding("t", "t-value", 7, schema, time_property="", time_fields=("t",))


INVALID = [
    ({"i": 1.5}, "i"),
    ({"i": 2**31}, "i"),
    ({"i": True}, "i"),
    ({"i": "1"}, "i"),
    ({"i": None}, "i"),
    ({"d": 1.5}, "d"),
    ({"l": -(2**63) - 1}, "l"),
    ({"b": 1}, "b"),
    ({"f": True}, "f"),
    ({"f": "1"}, "f"),
    ({"f": 1e39}, "f"),
    ({"f": 10**400}, "f"),
    ({"s": b"x"}, "s"),
    ({"s": "\ud800"}, "s"),
    ({"y": "x"}, "y"),
    ({"o": "x"}, "o"),
    ({"u": 5}, "u"),
    ({"a": "x"}, "a"),
    ({"a": [1, 2.5]}, "a[1]"),
    ({"m": [1]}, "m"),
    ({"m": {"k": 2**70}}, "m['k']"),
    ({"e": "C"}, "e"),
    ({"x": b"x"}, "x"),
    ({"n": {"i": 1.5, "e": "A"}}, "n.i"),
    ({"n": {"i": 1, "e": "Z"}}, "n.e"),
    ({"n": {"i": 1}}, "n.e"),
    ({"n": 5}, "n"),
    ({"t": "2013"}, "t"),
    ({"zz": 5}, "zz"),
]
"""An invalid value of a field, and the field that the error names."""


def refused_value(schema: Schema, value: Any) -> ValueRefused:
    with pytest.raises(ValueRefused) as refused:
        encoding(schema).encode(value)
    return refused.value


def test_error_of_a_value_names_topic_subject_and_field() -> None:
    errors = [(change, refused_value(SCHEMA, {**GOOD, **change})) for change, _ in INVALID]
    assert [(change, error.field) for change, error in errors] == INVALID
    assert {(error.topic, error.subject) for _, error in errors} == {("t", "t-value")}
    lines = case_lines((ascii(change), error) for change, error in errors)
    assert lines == golden("clients/invalid_values.txt", lines)


STRINGS = {"type": "array", "items": "string"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


CONVERTIBLE = [
    (STRINGS, "abc"),
    (STRINGS, {"a": 1}),
    (STRINGS, {"a"}),
    (STRINGS, (letter for letter in "ab")),
    ({"type": "array", "items": "int"}, bytearray(b"ab")),
    ({"type": "map", "values": STRINGS}, {"k": "abc"}),
    ({"type": "fixed", "name": "F", "size": 2}, array.array("i", [1, 2])),
    ({"type": "fixed", "name": "F", "size": 2}, "ab"),
    ({**DECIMAL, "type": "fixed", "name": "F", "size": 2}, decimal.Decimal("1.255")),
    (DECIMAL, decimal.Decimal("1.255")),
    (DECIMAL, decimal.Decimal("123.25")),
    (DECIMAL, decimal.Decimal("999.9")),
    (DECIMAL, decimal.Decimal("-9999")),
    (["null", DECIMAL], decimal.Decimal("1E+2")),
    ({**DECIMAL, "scale": 0}, decimal.Decimal("1E+5")),
    ({**DECIMAL, "type": "fixed", "name": "F", "size": 2}, decimal.Decimal("1E+3")),
    ("int", 1.5),
    (["null", {"type": "array", "items": "int"}], b"ab"),
    ("double", 2**53 + 1),
    ("double", -(2**53) - 1),
    ("float", 2**24 + 1),
    (["null", "double"], 2**53 + 1),
    (["int", "double"], 2**53 + 1),
    (["int", "float"], 2**40 + 1),
    (["null", "long", "double"], 2**63 + 1),
    (["null", "float"], 1e39),
    (["null", {"type": "array", "items": "double"}], [2**53 + 1]),
    (DECIMAL, decimal.Decimal("NaN")),
    (DECIMAL, 1.5),
    ({"type": "long", "logicalType": "timestamp-nanos"}, datetime.datetime(2013, 1, 1)),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime.datetime(2013, 1, 1, microsecond=1)),
    (["null", {"type": "int", "logicalType": "time-millis"}, "string"], datetime.time(1, 2, 3, 4)),
    ({"type": "int", "logicalType": "date"}, datetime.datetime(2013, 1, 1, 12)),
    ({"type": "long", "logicalType": "time-micros"}, datetime.time(1, tzinfo=datetime.UTC)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)),
]
"""A type, and a value that Python would convert to it."""


def test_values_that_python_would_convert_are_an_error() -> None:
    errors = []
    for kind, value in CONVERTIBLE:
        schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
        errors.append((kind, value, refused_value(schema, {"v": value})))
    assert [(kind, value, error.field) for kind, value, error in errors if not error.field.startswith("v")] == []
    lines = case_lines((f"{json.dumps(kind)} {value_text(value)}", value_text(error)) for kind, value, error in errors)
    assert lines == golden("clients/convertible_values.txt", lines)


def value_text(value: object) -> str:
    """Returns the text of a value or error without addresses in memory."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


def test_given_value_of_a_field_with_default_is_checked() -> None:
    fields = [{"name": "v", "type": "boolean", "default": True}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    for value in ({}, {"v": False}):
        assert encoding(schema).encode(value)
    assert refused_value(schema, {"v": "x"}).field == "v"


def test_error_names_a_missing_field() -> None:
    for name in GOOD:
        assert refused_value(SCHEMA, {key: value for key, value in GOOD.items() if key != name}).field == name


@pytest.mark.parametrize("value", [None, 5, [], "x"])
def test_value_that_is_not_a_record_is_an_error(value: Any) -> None:
    assert refused_value(SCHEMA, value).field == ""


FITTING = [
    ({"type": "long", "logicalType": "timestamp-micros"}, datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)),
    ({"type": "int", "logicalType": "date"}, datetime.date(2013, 1, 1)),
    ({"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, decimal.Decimal("1.25")),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5)),
    (DECIMAL | {"type": "fixed", "name": "F", "size": 2}, decimal.Decimal("-12.25")),
    (DECIMAL, decimal.Decimal("99.99")),
    (DECIMAL, decimal.Decimal("9E+1")),
    (DECIMAL, decimal.Decimal("0E+3")),
    (STRINGS, ("a", "b")),
    (STRINGS, collections.deque(["a"])),
    ({"type": "fixed", "name": "F", "size": 2}, bytearray(b"ab")),
    ("double", 5),
    ("double", 2**53),
    ("double", 2**54),
    ("double", 10**22),
    ("float", 2**100),
    (["float", "double"], 2**24 + 1),
    (["null", "long", "double"], 2**63),
    ("double", math.inf),
    ("float", -math.inf),
    ("float", math.nan),
    ("float", 3.4028235e38),
    ("float", 7),
    (["null", "long"], None),
    (["int", "string"], ("string", "x")),
]
"""A type and a value that fits it."""


def test_values_that_fit_are_encoded() -> None:
    for schema, value in FITTING:
        parsed = parse_schema(json.dumps(schema))
        assert find_problem(parsed, value) is None, (schema, value)
        assert encoding(parsed).encode(value).startswith(b"\0\0\0\0\7"), (schema, value)


def test_recursive_values_are_checked_completely() -> None:
    fields = [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"], "default": None}]
    schema = parse_schema(json.dumps({"type": "record", "name": "Node", "fields": fields}))
    assert encoding(schema).encode({"v": 1, "next": {"v": 2}})
    assert refused_value(schema, {"v": 1, "next": {"v": 2.5}}).field == "next.v"
    fields = [{"name": "v", "type": "boolean"}, {"name": "below", "type": {"type": "array", "items": "Tree"}}]
    tree = parse_schema(json.dumps({"type": "record", "name": "Tree", "fields": fields}))
    assert refused_value(tree, {"v": True, "below": [{"v": "x", "below": []}]}).field == "below[0].v"


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.just([])
)


@given(st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]), values)
def test_encoded_value_decodes_to_the_given_one(kind: str, value: Any) -> None:
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    try:
        encoded = encoding(schema).encode({"v": value})
    except ValueRefused:
        return
    found = fastavro.schemaless_reader(BytesIO(encoded[5:]), compiled_schema(schema), None)["v"]
    if isinstance(value, int):
        assert found == value
    elif kind in ("float", "double"):
        assert math.isclose(found, value, rel_tol=1e-6, abs_tol=1e-40) or (math.isnan(found) and math.isnan(value))
    else:
        assert found == value and type(found) is type(value)


@given(st.sampled_from(["boolean", "int", "long", "double"]), values)
def test_guard_accepts_no_value_with_a_problem(kind: str, value: Any) -> None:
    schema = parse_schema(json.dumps(kind))
    guard = compile_guard(schema)
    assert guard is not None
    if guard(value):
        assert find_problem(schema, value) is None


NODE = {"type": "record", "name": "Node", "fields": [{"name": "below", "type": {"type": "array", "items": "Node"}}]}
OF_DATES = {"type": "array", "items": {"type": "int", "logicalType": "date"}}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ("float", 0.5),
        ("double", 0.5),
        ("double", 2**53),
        ("boolean", True),
        ({"type": "long", "logicalType": "timestamp-millis"}, 5),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime.datetime(2013, 1, 1)),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=5))),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        (DECIMAL, b"\1"),
        (DECIMAL, decimal.Decimal("1.25")),
        (NODE, {"below": [{"below": []}]}),
        (["null", "double"], 2**53),
        (["null", "double"], ("double", 1.5)),
        (["float", "double"], 0.5),
        (["null", "bytes"], b"ab"),
        (["null", OF_DATES], [5]),
        (["null", {"type": "map", "values": OF_DATES}], {"k": [5]}),
    ],
)
def test_value_that_the_guard_accepts_is_not_checked_completely(
    kind: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete check takes longer than encoding."""

    def fail(schema: Schema, value: Any) -> None:
        raise AssertionError("the complete check ran")

    monkeypatch.setattr("headrace.clients.encoding.find_problem", fail)
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    assert encoding(schema).encode({"v": value})


def test_read_time_takes_the_first_time_field_with_a_time() -> None:
    header = {"type": "record", "name": "H", "fields": [{"name": "time", "type": ["null", "string"]}]}
    fields = [
        {"name": "header", "type": ["null", header]},
        {"name": "timestamp", "type": ["null", "long", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
    ]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    found = Encoding("t", "s", 1, schema, time_property="", time_fields=("header.time", "timestamp"))
    for header_value, timestamp, time_ms in [
        ({"time": "1970-01-01T00:00:01Z"}, 5, 1_000),
        ({"time": "today"}, 5, 5),
        ({"time": None}, "1970-01-01T01:00:01+01:00", 1_000),
        (None, ("long", 5), 5),
        (None, "today", None),
        (None, None, None),
    ]:
        value = {"header": header_value, "timestamp": timestamp, "kind": "A"}
        assert found.read_time is not None
        assert found.read_time(value, found.encode(value)) == time_ms


def test_read_time_returns_the_time_that_consumers_decode() -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": "t", "type": time, "default": 77}, {"name": "o", "type": ["null", time], "default": None}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    first, second = encoding(schema), Encoding("t", "s", 1, schema, time_property="o", time_fields=("t",))
    instant = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)

    def time_of(found: Encoding, value: dict[str, Any]) -> int | None:
        assert found.read_time is not None
        return found.read_time(value, found.encode(value))

    assert time_of(first, {"t": 5}) == 5
    assert time_of(first, {"t": instant}) == 1000
    assert time_of(first, {}) == 77
    assert time_of(second, {"o": ("long", 9)}) == 9
    assert time_of(second, {"o": None}) is None
    assert encoding(parse_schema('"long"')).read_time is None

    micros = {"type": "long", "logicalType": "timestamp-micros"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "m", "type": micros}, {"name": "t", "type": time}]}
    outer = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "i", "type": inner}]}))
    flat = parse_schema(json.dumps(inner))
    value = {"m": 5_999, "t": 7}
    for path, schema, found in (("m", flat, value), ("i.m", outer, {"i": value})):
        assert time_of(Encoding("t", "s", 1, schema, time_property=path, time_fields=()), found) == 5
    assert time_of(Encoding("t", "s", 1, outer, time_property="i.t", time_fields=()), {"i": value}) == 7


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9},
        {"type": "bytes", "logicalType": "date"},
    ],
)
def test_invalid_logical_type_is_ignored(kind: dict[str, Any]) -> None:
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    encoded = encoding(schema).encode({"v": b"x"})
    assert fastavro.schemaless_reader(BytesIO(encoded[5:]), compiled_schema(schema), None) == {"v": b"x"}
