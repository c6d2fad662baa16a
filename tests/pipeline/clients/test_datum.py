"""Values and schemas: what fits, and what is said of what does not."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import json
import math
import uuid
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.pipeline.clients.datum import find_problem
from headrace.pipeline.clients.encoding import Encoding, compiled_schema
from headrace.pipeline.clients.errors import ValueRefused
from headrace.pipeline.clients.value_guard import compile_guard

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


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"i": 1.5}, "i", "expected int, found float 1.5"),
        ({"i": 2**31}, "i", "2147483648 is outside the range of int"),
        ({"i": True}, "i", "expected int, found bool True"),
        ({"i": "1"}, "i", "expected int, found str '1'"),
        ({"i": None}, "i", "expected int, found null"),
        ({"d": 1.5}, "d", "expected int, found float 1.5"),
        ({"l": -(2**63) - 1}, "l", "outside the range of long"),
        ({"b": 1}, "b", "expected boolean, found int 1"),
        ({"f": True}, "f", "expected float, found bool True"),
        ({"f": "1"}, "f", "expected float, found str '1'"),
        ({"f": 1e39}, "f", "1e+39 is outside the range of float"),
        ({"f": 10**400}, "f", "is outside the range of float"),
        ({"s": b"x"}, "s", "expected string, found bytes"),
        ({"s": "\ud800"}, "s", "half of a surrogate pair"),
        ({"y": "x"}, "y", "expected bytes, found str"),
        ({"o": "x"}, "o", "expected int, found str"),
        ({"u": 5}, "u", "expected one of the branches string, boolean, found int 5"),
        ({"a": "x"}, "a", "expected array (a list)"),
        ({"a": [1, 2.5]}, "a[1]", "expected int, found float 2.5"),
        ({"m": [1]}, "m", "expected map"),
        ({"m": {"k": 2**70}}, "m['k']", "outside the range of long"),
        ({"e": "C"}, "e", "expected one of A, B, found str 'C'"),
        ({"x": b"x"}, "x", "expected 2 bytes"),
        ({"n": {"i": 1.5, "e": "A"}}, "n.i", "expected int, found float 1.5"),
        ({"n": {"i": 1, "e": "Z"}}, "n.e", "expected one of A, B"),
        ({"n": {"i": 1}}, "n.e", "missing, and it has no default"),
        ({"n": 5}, "n", "expected record N (a dict)"),
        ({"t": "2013"}, "t", "expected timestamp-millis, found str '2013'"),
        ({"zz": 5}, "zz", "record R has no such field"),
    ],
)
def test_misfits_are_refused_with_their_field(change: dict[str, Any], field: str, sentence: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        encoding().encode({**GOOD, **change})
    assert caught.value.field == field
    assert sentence in str(caught.value)
    assert (caught.value.topic, caught.value.subject) == ("t", "t-value")


STRINGS = {"type": "array", "items": "string"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (STRINGS, "abc", "expected array (a list), found str 'abc'"),
        (STRINGS, {"a": 1}, "expected array (a list), found dict"),
        (STRINGS, {"a"}, "expected array (a list), found set"),
        (STRINGS, (letter for letter in "ab"), "expected array (a list), found generator"),
        ({"type": "array", "items": "int"}, bytearray(b"ab"), "expected array (a list), found bytearray"),
        ({"type": "map", "values": STRINGS}, {"k": "abc"}, "expected array (a list), found str 'abc'"),
        ({"type": "fixed", "name": "F", "size": 2}, array.array("i", [1, 2]), "expected 2 bytes, found array"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", "expected 2 bytes, found str"),
        (
            {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
            uuid.UUID(int=5),
            "expected 16 bytes, found",
        ),
        ({**DECIMAL, "type": "fixed", "name": "F", "size": 2}, decimal.Decimal("1.255"), "than the scale 2"),
        (DECIMAL, decimal.Decimal("1.255"), "1.255 has more digits behind the point than the scale 2"),
        (DECIMAL, decimal.Decimal("123.25"), "123.25 has more digits than the precision 4"),
        (
            DECIMAL,
            decimal.Decimal("999.9"),
            "999.9 has more digits before the point than the decimal's 2 (precision 4, s",
        ),
        (DECIMAL, decimal.Decimal("-9999"), "-9999 has more digits before the point"),
        (["null", DECIMAL], decimal.Decimal("1E+2"), "1E+2 has more digits before the point"),
        (
            {**DECIMAL, "scale": 0},
            decimal.Decimal("1E+5"),
            "1E+5 has more digits before the point than the decimal's 4",
        ),
        ({**DECIMAL, "type": "fixed", "name": "F", "size": 2}, decimal.Decimal("1E+3"), "more digits before the point"),
        ("int", 1.5, "expected int, found float 1.5"),
        (["null", {"type": "array", "items": "int"}], b"ab", "expected array (a list), found bytes b'ab'"),
        ("double", 2**53 + 1, "9007199254740993 is a whole number that double rounds, to 9007199254740992"),
        ("double", -(2**53) - 1, "-9007199254740993 is a whole number that double rounds"),
        ("float", 2**24 + 1, "16777217 is a whole number that float rounds, to 16777216"),
        (["null", "double"], 2**53 + 1, "whole number that double rounds"),
        (["int", "double"], 2**53 + 1, "expected one of the branches int, double"),
        (["int", "float"], 2**40 + 1, "expected one of the branches int, float"),
        (["null", "long", "double"], 2**63 + 1, "expected one of the branches null, long, double"),
        (["null", "float"], 1e39, "1e+39 is outside the range of float"),
        (["null", {"type": "array", "items": "double"}], [2**53 + 1], "whole number that double rounds"),
        (DECIMAL, decimal.Decimal("NaN"), "NaN is no number that a decimal can be"),
        (DECIMAL, 1.5, "expected decimal, found float 1.5"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, datetime.datetime(2013, 1, 1), "found datetime"),
    ],
)
def test_what_python_would_make_something_of_is_refused_with_its_field(kind: Any, value: Any, sentence: str) -> None:
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    with pytest.raises(ValueRefused) as caught:
        encoding(schema).encode({"v": value})
    assert caught.value.field.startswith("v")
    assert sentence in str(caught.value)


def test_a_field_that_has_a_default_is_looked_at_where_it_is_given() -> None:
    fields = [{"name": "v", "type": "boolean", "default": True}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    for value in ({}, {"v": False}):
        assert encoding(schema).encode(value)
    with pytest.raises(ValueRefused, match="field v: expected boolean, found str"):
        encoding(schema).encode({"v": "x"})


def test_a_missing_field_is_named() -> None:
    for name in GOOD:
        with pytest.raises(ValueRefused) as caught:
            encoding().encode({key: value for key, value in GOOD.items() if key != name})
        assert caught.value.field == name


@pytest.mark.parametrize("value", [None, 5, [], "x"])
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises(ValueRefused, match="expected record R"):
        encoding().encode(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
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
    ],
)
def test_what_fits_is_encoded(schema: Any, value: Any) -> None:
    parsed = parse_schema(json.dumps(schema))
    assert find_problem(parsed, value) is None
    assert encoding(parsed).encode(value).startswith(b"\0\0\0\0\7")


def test_recursive_values_are_looked_at_whole() -> None:
    fields = [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"], "default": None}]
    schema = parse_schema(json.dumps({"type": "record", "name": "Node", "fields": fields}))
    assert encoding(schema).encode({"v": 1, "next": {"v": 2}})
    with pytest.raises(ValueRefused, match=r"field next\.v: expected int, found float"):
        encoding(schema).encode({"v": 1, "next": {"v": 2.5}})
    fields = [{"name": "v", "type": "boolean"}, {"name": "below", "type": {"type": "array", "items": "Tree"}}]
    tree = parse_schema(json.dumps({"type": "record", "name": "Tree", "fields": fields}))
    with pytest.raises(ValueRefused, match=r"field below\[0\]\.v: expected boolean, found str"):
        encoding(tree).encode({"v": True, "below": [{"v": "x", "below": []}]})


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.just([])
)


@given(st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]), values)
def test_what_is_taken_decodes_to_what_was_given(kind: str, value: Any) -> None:
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
def test_the_guard_passes_nothing_that_has_a_problem(kind: str, value: Any) -> None:
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
def test_what_the_encoder_takes_as_it_is_is_given_to_it_at_once(
    kind: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at all of a value takes longer than to encode it."""

    def looked_at(schema: Schema, value: Any) -> None:
        raise AssertionError("all of the value is looked at")

    monkeypatch.setattr("headrace.pipeline.clients.encoding.find_problem", looked_at)
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    assert encoding(schema).encode({"v": value})


def test_the_time_is_what_consumers_will_decode() -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": "t", "type": time, "default": 77}, {"name": "o", "type": ["null", time], "default": None}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    first, second = encoding(schema), Encoding("t", "s", 1, schema, time_property="o", time_fields=("t",))
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=datetime.UTC)

    def time_of(found: Encoding, value: dict[str, Any]) -> int | None:
        assert found.read_time is not None
        return found.read_time(value, found.encode(value))

    assert time_of(first, {"t": 5}) == 5
    assert time_of(first, {"t": moment}) == 1000
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
def test_a_logical_type_that_is_none_of_its_type_counts_for_nothing(kind: dict[str, Any]) -> None:
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
    encoded = encoding(schema).encode({"v": b"x"})
    assert fastavro.schemaless_reader(BytesIO(encoded[5:]), compiled_schema(schema), None) == {"v": b"x"}
