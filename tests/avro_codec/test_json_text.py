"""Floats of recursive types as text: the fewest digits that are the same float, to the largest ones."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_codec import BadBody, CapturedLong, UnreadableValue, compile_check
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.rewrite import ADDED_BYTES_MAX
from headrace.avro_schema import parse_schema
from headrace.loader.project.projection import Unconvertible, compile_projection, compile_time_walk
from support.loader.projection_oracle import encode, load_schema_of, project, states_of

NODE = parse_schema(
    '{"type":"record","name":"Node","fields":[{"name":"f","type":"float"},{"name":"next","type":["null","Node"]}]}'
)
LOAD = load_schema_of(NODE)


def text_of(number: float) -> str:
    body = encode(NODE, {"f": 0.0, "next": ("Node", {"f": number, "next": None})})
    row = project(NODE, LOAD, body)
    return row[row.index(b"{") :].decode()


def doubling(levels: int, bottom: str) -> str:
    """A type that holds another twice, which holds another twice, and so on."""
    kind = bottom
    for n in range(levels):
        again = f"R{n - 1}" if n else "L"
        kind = (
            f'{{"type":"record","name":"R{n}","fields":[{{"name":"a","type":{kind}}},{{"name":"b","type":"{again}"}}]}}'
        )
    return kind


@pytest.mark.parametrize("kind", ['{"type":"record","name":"Root","fields":[{"name":"x","type":%s}]}', "%s"])
@pytest.mark.parametrize("bottom", ["null", "fixed"])
def test_types_of_no_bytes_that_hold_each_other_twice_cost_no_time(kind: str, bottom: str) -> None:
    last = '{"type":"record","name":"L","fields":[{"name":"n","type":"null"}]}'
    if bottom == "fixed":
        last = '{"type":"fixed","name":"L","size":0}'
    schema = parse_schema(kind % doubling(60, last))
    compile_check(schema, None)(b"")
    listed = parse_schema(f'{{"type":"array","items":{doubling(60, last)}}}')
    compile_check(listed, None)(b"\x04\x00")
    with pytest.raises(BadBody, match=r"\b65536\b"):
        project(schema, load_schema_of(schema), b"")


def test_fields_of_no_bytes_in_items_of_texts_are_counted() -> None:
    nulls = ",".join(f'{{"name":"n{n}","type":"null"}}' for n in range(20))
    items = f'{{"type":"array","items":{{"type":"record","name":"Z","fields":[{nulls}]}}}}'
    fields = f'[{{"name":"next","type":["null","N"]}},{{"name":"z","type":{items}}}]'
    schema = parse_schema(f'{{"type":"record","name":"N","fields":{fields}}}')
    load = load_schema_of(schema)
    assert b'"n19":null' in project(schema, load, b"\x02\x00" + encode_long(3_000) + b"\x00\x00")
    with pytest.raises(BadBody, match=r"\b65536\b"):
        project(schema, load, b"\x02\x00" + encode_long(4_000) + b"\x00\x00")


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


@pytest.mark.parametrize(("types", "is_loaded"), [(150, True), (700, False)])
def test_types_that_hold_each_other_too_deep_are_unconvertible(types: int, is_loaded: bool) -> None:
    """Each is named before it is used, so that the schema's text itself is not deep."""
    inner = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    fields: list[dict[str, Any]] = [{"name": "at", "type": "long"}, {"name": "r0", "type": inner}]
    for number in range(1, types):
        wrapped = {"type": "record", "name": f"R{number}", "fields": [{"name": "r", "type": f"R{number - 1}"}]}
        fields.append({"name": f"r{number}", "type": wrapped})
    writer = parse_schema(json.dumps({"type": "record", "name": "Deep", "fields": fields}))
    state = states_of(writer)[-1]
    load, seen = parse_schema(state.text), CapturedLong()
    if is_loaded:
        compile_projection(writer, load, ("at",), seen, state.routes[1]).convert(b"\x04" + types * b"\x02")
        assert seen.value == 2
    else:
        with pytest.raises(Unconvertible):
            compile_projection(writer, load, ("at",), seen, state.routes[1])
        compile_time_walk(writer, ("at",), seen)(b"\x04" + types * b"\x02")  # which notes it, or nothing


@pytest.mark.parametrize(
    ("levels", "kind", "holding"),
    [
        (40, "%s", b"%b"),
        (40, '["null",%s]', b"\x02%b"),
        (25, '{"type":"array","items":%s}', b"\x02%b\x00"),
        (20, '["null","int",{"type":"map","values":%s}]', b"\x04\x02\x02k%b\x00"),
    ],
)
def test_a_writer_that_is_no_version_has_its_deep_fields_as_text_where_the_version_like_it_has(
    levels: int, kind: str, holding: bytes
) -> None:
    text, body = '{"type":"record","name":"R0","fields":[{"name":"x","type":"int"}]}', b"\x02"
    for number in range(1, levels):
        text = f'{{"type":"record","name":"R{number}","fields":[{{"name":"r","type":{kind % text}}}]}}'
        body = holding % body
    writer = parse_schema(text)
    state = states_of(writer)[-1]
    load = parse_schema(state.text)
    row = project(writer, load, body)
    assert b'"x":1' in row
    assert row == project(writer, load, body, state.routes[1])


LONG = 20_000
NAMED = {
    "fields": ('{"name":"%s","type":"int"}' % ("f" * LONG), b"\x02"),
    "symbols": ('{"name":"e","type":{"type":"enum","name":"E","symbols":["%s"]}}' % ("s" * LONG), b"\x00"),
    "branches": ('{"name":"u","type":["null",{"type":"fixed","name":"%s","size":1}]}' % ("b" * LONG), b"\x02x"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_long_names_do_not_make_a_row_of_any_size_from_a_small_message(kind: str) -> None:
    field, value = NAMED[kind]
    several = '{"name":"more","type":{"type":"array","items":"Node"}}'
    writer = parse_schema(f'{{"type":"record","name":"Node","fields":[{field},{several}]}}')
    load = load_schema_of(writer)
    fine, item = ADDED_BYTES_MAX // LONG - 5, value + b"\x00"
    row = project(writer, load, value + encode_long(fine) + fine * item + b"\x00")
    assert ADDED_BYTES_MAX - 6 * LONG < len(row) < ADDED_BYTES_MAX + 2**20
    project(writer, load, value + encode_long(fine) + fine * item + b"\x00")  # each message by itself
    for count in (fine + 10, 60_000):
        with pytest.raises(UnreadableValue):
            project(writer, load, value + encode_long(count) + count * item + b"\x00")
