"""Floats of recursive types as text: the fewest digits that are the same float, to the largest ones."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import parse_schema
from projection_oracle import encode, load_schema_of, project

NODE = parse_schema(
    '{"type":"record","name":"Node","fields":[{"name":"f","type":"float"},{"name":"next","type":["null","Node"]}]}'
)
LOAD = load_schema_of(NODE)


def text_of(number: float) -> str:
    body = encode(NODE, {"f": 0.0, "next": ("Node", {"f": number, "next": None})})
    row = project(NODE, LOAD, body)
    return row[row.index(b"{") :].decode()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_read_back_as_it_was(number: float) -> None:
    assert struct.pack("<f", json.loads(text_of(number))["f"]) == struct.pack("<f", number)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.10000000149011612, "0.1"),
        (3.4025001647762064e38, "3.4025002e+38"),  # four digits of it, rounded, are beyond the largest
        (3.4028234663852886e38, "3.4028235e+38"),
        (-3.4028234663852886e38, "-3.4028235e+38"),
        (1.401298464324817e-45, "1e-45"),
        (float("inf"), '"Infinity"'),
    ],
)
def test_with_the_fewest_digits(number: float, text: str) -> None:
    assert text_of(number) == f'{{"f":{text},"next":null}}'
