"""The generated encoders write the same bytes as fastavro, or pass the value on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.encoding import Encoding, compiled_schema
from headrace.clients.fast_encoder import compile_encoder
from support.schemas.strategies import data_for, schemas

FIELDS = [
    {"name": "i", "type": "int"},
    {"name": "l", "type": "long"},
    {"name": "b", "type": "boolean"},
    {"name": "f", "type": "float"},
    {"name": "d", "type": "double"},
    {"name": "s", "type": "string"},
    {"name": "y", "type": "bytes"},
    {"name": "o", "type": ["null", "int"]},
    {"name": "p", "type": ["string", "null"]},
    {"name": "a", "type": {"type": "array", "items": ["null", "long"]}},
    {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
    {
        "name": "n",
        "type": {"type": "record", "name": "N", "fields": [{"name": "i", "type": "int"}, {"name": "e", "type": "E"}]},
    },
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "z", "type": "null"},
]
SCHEMA = parse_schema(json.dumps({"type": "record", "name": "R", "fields": FIELDS}))
PLAIN = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1),
        "b": st.booleans(),
        "f": st.floats(width=32, allow_infinity=False, allow_nan=False, max_value=2.0**100, min_value=-(2.0**100)),
        "d": st.floats(),
        "s": st.text(st.characters(exclude_categories=["Cs"])),
        "y": st.binary(max_size=20_000),
        "o": st.none() | st.integers(-5, 5),
        "p": st.none() | st.text("aä"),
        "a": st.lists(st.none() | st.integers(-(2**40), 2**40)),
        "m": st.dictionaries(st.text("kä"), st.lists(st.text("vü"))),
        "e": st.sampled_from("AB"),
        "n": st.fixed_dictionaries({"i": st.integers(0, 300), "e": st.sampled_from("AB")}),
        "t": st.integers(0, 2**45),
        "z": st.none(),
    }
)
GOOD: dict[str, Any] = {
    "i": 1, "l": 2, "b": True, "f": 1.5, "d": 2.5, "s": "x", "y": b"x", "o": 1, "p": None, "a": [1], "m": {"k": ["v"]},
    "e": "A", "n": {"i": 1, "e": "B"}, "t": 5, "z": None,
}  # fmt: skip


def written(schema: Schema, value: Any) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, compiled_schema(schema), value, strict_allow_default=True)
    return body.getvalue()


class PassedOn(Exception):
    """The value was passed on to fastavro."""


def pass_on(value: Any) -> bytes:
    raise PassedOn


@given(value=PLAIN)
def test_plain_values_are_encoded_like_fastavro(value: dict[str, Any]) -> None:
    encode = compile_encoder(SCHEMA, b"prefix", pass_on)
    assert encode(value) == b"prefix" + written(SCHEMA, value)


EDGES = sorted({sign * (1 << bits) + near for bits in range(64) for sign in (1, -1) for near in (-1, 0, 1)})


def test_numbers_of_every_length_are_encoded_like_fastavro() -> None:
    for kind, bits in (("int", 31), ("long", 63)):
        schema = parse_schema(f'"{kind}"')
        encode = compile_encoder(schema, b"", pass_on)
        for number in EDGES:
            if -(1 << bits) <= number < 1 << bits:
                assert encode(number) == written(schema, number), number
            else:
                assert not is_encoded(encode, number), number


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1 << 20])
def test_sizes_of_every_length_are_encoded_like_fastavro(size: int) -> None:
    values = {"s": "x" * size, "y": b"x" * size, "a": [None] * size, "m": {str(n): [] for n in range(size % 10_000)}}
    encode = compile_encoder(SCHEMA, b"", pass_on)
    for name, value in values.items():
        assert encode({**GOOD, name: value}) == written(SCHEMA, {**GOOD, name: value}), name


@given(data=st.data(), schema=schemas())
def test_every_encoded_value_is_encoded_like_fastavro(data: st.DataObject, schema: Schema) -> None:
    encode = compile_encoder(schema, b"", pass_on)
    value = data.draw(data_for(schema))
    try:
        found = encode(value)
    except PassedOn:
        return
    assert found == written(schema, value)


def is_encoded(encode: Callable[[Any], bytes], value: Any) -> bool:
    try:
        encode(value)
    except PassedOn:
        return False
    return True


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("i", 2**31), ("i", -(2**31) - 1), ("i", True), ("i", 1.0), ("i", None), ("l", 2**63), ("l", -(2**63) - 1),
        ("l", "1"), ("b", 1), ("f", 1), ("f", 1e39), ("f", math.inf), ("d", 1), ("d", "1"), ("s", b"x"),
        ("s", "\ud800"), ("s", None), ("y", "x"), ("y", bytearray(b"x")), ("o", ("int", 1)), ("o", "1"),
        ("p", 1), ("a", (1,)), ("a", [1.5]), ("a", None), ("m", {1: []}), ("m", []), ("m", {"k": "v"}), ("e", "C"),
        ("e", []),
        ("n", None),
        ("n", {"i": 1}), ("n", {"i": 1, "e": "A", "x": 1}), ("t", 1.5), ("z", 0),
    ],
)  # fmt: skip
def test_values_of_other_classes_or_ranges_are_passed_on(name: str, wrong: Any) -> None:
    encode = compile_encoder(SCHEMA, b"", pass_on)
    assert encode(GOOD)
    assert not is_encoded(encode, {**GOOD, name: wrong})


def test_records_with_missing_or_additional_fields_are_passed_on() -> None:
    encode = compile_encoder(SCHEMA, b"", pass_on)
    for value in ({**GOOD, "more": 1}, {name: GOOD[name] for name in list(GOOD)[1:]}, [], None):
        assert not is_encoded(encode, value)


def test_unsupported_types_are_passed_on() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    wide = {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": "int"} for n in range(3000)]}
    for schema in (tree, ["int", "string"], ["null"], {"type": "fixed", "name": "F", "size": 2}, wide):
        assert compile_encoder(parse_schema(json.dumps(schema)), b"", pass_on) is pass_on


NESTINGS: dict[str, Callable[[Any, int], Any]] = {
    "array": lambda inner, n: {"type": "array", "items": inner},
    "map": lambda inner, n: {"type": "map", "values": inner},
    "optional map": lambda inner, n: ["null", {"type": "map", "values": inner}],
    "record": lambda inner, n: {"type": "record", "name": f"R{n}", "fields": [{"name": "f", "type": inner}]},
}


@pytest.mark.parametrize("nesting", NESTINGS)
def test_too_deep_schemas_are_passed_on(nesting: str) -> None:
    deep: Any = "int"
    for n in range(30):
        deep = NESTINGS[nesting](deep, n)
        encode = compile_encoder(parse_schema(json.dumps(deep)), b"", pass_on)
    assert encode is pass_on


def test_encoding_accepts_plain_and_other_values() -> None:
    encoding = Encoding("t", "t-value", 7, SCHEMA, time_property="", time_fields=())
    plain = encoding.encode(GOOD)
    assert plain == b"\0\0\0\0\x07" + written(SCHEMA, GOOD)
    assert encoding.encode({**GOOD, "s": Text("x"), "d": 2.5, "o": ("int", 1)}) == plain
