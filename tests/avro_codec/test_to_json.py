"""JSON text of recursive types: limits, and floats with the fewest digits that read back unchanged."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_codec import BadBody, CapturedTime, UnreadableValue, compile_check, to_json
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.to_json import NAMES_BYTES_FREE, NAMES_PER_BYTE_MAX
from headrace.avro_codec.walk import ZERO_WIDTH_ITEMS_MAX
from headrace.avro_schema import find_time_fields, parse_schema
from headrace.loader.project.projection import Unconvertible, compile_projection, compile_time_capture
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
    """Returns a type with two fields of another type, which has two fields of a third, and so on."""
    kind = bottom
    for n in range(levels):
        other = f"R{n - 1}" if n else "L"
        kind = (
            f'{{"type":"record","name":"R{n}","fields":[{{"name":"a","type":{kind}}},{{"name":"b","type":"{other}"}}]}}'
        )
    return kind


@pytest.mark.parametrize("kind", ['{"type":"record","name":"Root","fields":[{"name":"x","type":%s}]}', "%s"])
@pytest.mark.parametrize("bottom", ["null", "fixed"])
def test_nested_types_without_bytes_are_fast(kind: str, bottom: str) -> None:
    last = '{"type":"record","name":"L","fields":[{"name":"n","type":"null"}]}'
    if bottom == "fixed":
        last = '{"type":"fixed","name":"L","size":0}'
    schema = parse_schema(kind % doubling(60, last))
    compile_check(schema, None)(b"")
    listed = parse_schema(f'{{"type":"array","items":{doubling(60, last)}}}')
    compile_check(listed, None)(b"\x04\x00")
    with pytest.raises(BadBody, match=rf"\b({ZERO_WIDTH_ITEMS_MAX}|{NAMES_BYTES_FREE})\b"):
        project(schema, load_schema_of(schema), b"")


def test_zero_width_fields_in_text_items_are_counted() -> None:
    nulls = ",".join(f'{{"name":"n{n}","type":"null"}}' for n in range(20))
    items = f'{{"type":"array","items":{{"type":"record","name":"Z","fields":[{nulls}]}}}}'
    fields = f'[{{"name":"next","type":["null","N"]}},{{"name":"z","type":{items}}},{{"name":"x","type":"bytes"}}]'
    schema = parse_schema(f'{{"type":"record","name":"N","fields":{fields}}}')
    load, rest = load_schema_of(schema), b"\x00\x00" + encode_long(2_000) + bytes(2_000)
    assert b'"n19":null' in project(schema, load, b"\x02\x00" + encode_long(3_000) + b"\x00" + rest)
    with pytest.raises(BadBody, match=r"\b65536\b"):
        project(schema, load, b"\x02\x00" + encode_long(4_000) + b"\x00" + rest)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_text_reads_back_unchanged(number: float) -> None:
    assert struct.pack("<f", json.loads(text_of(number))["f"]) == struct.pack("<f", number)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.10000000149011612, "0.1"),
        (3.4025001647762064e38, "3.4025002e+38"),  # rounded to four digits it exceeds the largest float
        (3.4028234663852886e38, "3.4028235e+38"),
        (-3.4028234663852886e38, "-3.4028235e+38"),
        (1.401298464324817e-45, "1e-45"),
        (float("inf"), '"Infinity"'),
    ],
)
def test_float_text_has_the_fewest_digits(number: float, text: str) -> None:
    assert text_of(number) == f'{{"f":{text},"next":null}}'


@pytest.mark.parametrize(("types", "is_loaded"), [(150, True), (700, False)])
def test_too_deeply_nested_types_are_unconvertible(types: int, is_loaded: bool) -> None:
    """Each type is defined before its use, so that the schema text is not nested."""
    inner = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    fields: list[dict[str, Any]] = [{"name": "at", "type": "long"}, {"name": "r0", "type": inner}]
    for number in range(1, types):
        wrapped = {"type": "record", "name": f"R{number}", "fields": [{"name": "r", "type": f"R{number - 1}"}]}
        fields.append({"name": f"r{number}", "type": wrapped})
    writer = parse_schema(json.dumps({"type": "record", "name": "Deep", "fields": fields}))
    state = states_of(writer)[-1]
    load, seen = parse_schema(state.text), CapturedTime()
    if is_loaded:
        compile_projection(writer, load, find_time_fields(writer, "at", ()), seen, state.routes[1]).convert(
            b"\x04" + types * b"\x02"
        )
        assert seen.value == 2
    else:
        with pytest.raises(Unconvertible):
            compile_projection(writer, load, find_time_fields(writer, "at", ()), seen, state.routes[1])
        compile_time_capture(writer, find_time_fields(writer, "at", ()), seen)(
            b"\x04" + types * b"\x02"
        )  # captures the time, or nothing


@pytest.mark.parametrize(
    ("levels", "kind", "holding"),
    [
        (40, "%s", b"%b"),
        (40, '["null",%s]', b"\x02%b"),
        (25, '{"type":"array","items":%s}', b"\x02%b\x00"),
        (20, '["null","int",{"type":"map","values":%s}]', b"\x04\x02\x02k%b\x00"),
    ],
)
def test_unregistered_writer_has_the_same_text_fields_as_the_matching_version(
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


LONG = 2_000
NAMED = {
    "fields": ('{"name":"%s","type":"int"}' % ("f" * LONG), b"\x02"),
    "symbols": ('{"name":"e","type":{"type":"enum","name":"E","symbols":["%s"]}}' % ("s" * LONG), b"\x00"),
    "branches": ('{"name":"u","type":["null",{"type":"fixed","name":"%s","size":1}]}' % ("b" * LONG), b"\x02x"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_long_names_do_not_make_a_huge_row_from_a_small_message(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field, value = NAMED[kind]
    several = '{"name":"more","type":{"type":"array","items":"Node"}}'
    node = f'{{"type":"record","name":"Node","fields":[{field},{several}]}}'
    writer = parse_schema(
        f'{{"type":"record","name":"Event","fields":[{{"name":"n","type":{node}}},{{"name":"x","type":"bytes"}}]}}'
    )
    load = load_schema_of(writer)

    def message(count: int, padding: int) -> bytes:
        nodes = value + encode_long(count) + count * (value + b"\x00") + b"\x00"
        return nodes + encode_long(padding) + bytes(padding)

    monkeypatch.setattr(to_json, "NAMES_BYTES_MAX", 2**20)
    for padding in (100, 1_000, 20_000):
        names_bytes_max = min(NAMES_BYTES_FREE + NAMES_PER_BYTE_MAX * padding, 2**20)
        fine = names_bytes_max // (LONG + 10) - 5
        for _ in range(2):  # each message alone is within the limit
            row = project(writer, load, message(fine, padding))
            assert 0.5 * names_bytes_max < len(row) - padding < names_bytes_max + 2**20
        with pytest.raises(UnreadableValue):
            project(writer, load, message(2 * fine + 20, padding))


def test_usual_names_may_make_a_row_many_times_as_large_as_the_message() -> None:
    fields = ",".join(f'{{"name":"{"field_with_a_long_name_" * 3}{n}","type":["null","int"]}}' for n in range(50))
    writer = parse_schema(
        f'{{"type":"record","name":"Node","fields":[{{"name":"next","type":["null","Node"]}},{fields}]}}'
    )
    nothing = b"\x00" * 50
    row = project(writer, load_schema_of(writer), b"\x02\x00" + nothing + nothing)
    assert len(row) > 30 * len(nothing)
