"""Bodies to rows: correct values, the writer's exact bytes where nothing changes, and no row from a bad body."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.avro_codec import BadBody, CapturedTime
from headrace.avro_codec.encode import encode_long
from headrace.avro_codec.rewrite import nearest_float
from headrace.avro_codec.walk import DEPTH_MAX, ZERO_WIDTH_ITEMS_MAX, read_varint
from headrace.avro_schema import Schema, frame, parse_schema
from headrace.kafka_wire.record_batch import NO_HEADERS
from headrace.loader.load_schema import merge
from headrace.loader.project.projection import Unconvertible, compile_projection
from headrace.loader.project.quarantine import BadMessage, QuarantineCode
from headrace.loader.project.topic_projection import (
    NO_TIME,
    OUT_OF_RANGE_TIME,
    TopicProjection,
    UnknownSchema,
    unframe_message,
)
from headrace.loader.work_unit import TopicPlan
from support.examples import examples
from support.loader.loader_samples import POLICY
from support.loader.projection_oracle import (
    core_and_reference,
    decode,
    encode,
    expected_row,
    load_schema_of,
    project,
    states_of,
)
from support.schemas.strategies import data_for, histories, schemas


def record(*fields: Any, name: str = "Event") -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}))


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def row_of(writer: Schema, value: Any, *versions: Schema) -> Any:
    load = load_schema_of(*(versions or (writer,)))
    return decode(load, project(writer, load, encode(writer, value)))


@settings(max_examples=examples(0.3))
@given(histories(), st.data())
def test_messages_of_every_version_stay_in_their_columns(versions: list[Schema], data: st.DataObject) -> None:
    states = states_of(*versions)
    loads = [parse_schema(state.text) for state in states]
    for number, (writer, written_load) in enumerate(zip(versions, loads, strict=True)):
        value = data.draw(data_for(writer))
        body = encode(writer, value)
        for state, present_load in zip(states[number:], loads[number:], strict=True):
            row = decode(present_load, project(writer, present_load, body, state.routes[number + 1]))
            assert expected_row(writer, written_load, present_load, value) == row


@settings(max_examples=examples(0.3))
@given(histories(), st.data())
def test_stored_rows_read_with_a_later_schema_equal_new_rows(versions: list[Schema], data: Any) -> None:
    states = states_of(*versions)
    loads = [parse_schema(state.text) for state in states]
    for number, (writer, written_load) in enumerate(zip(versions, loads, strict=True)):
        value = data.draw(data_for(writer))
        row = project(writer, written_load, encode(writer, value), states[number].routes[number + 1])
        for present_load in loads[number:]:
            assert expected_row(writer, written_load, present_load, value, is_stored=True) == decode(
                written_load, row, reader=present_load
            )


@given(schemas(), st.data())
def test_rows_of_any_single_schema_have_its_values(writer: Schema, data: st.DataObject) -> None:
    (state,) = states_of(writer)
    load = parse_schema(state.text)
    value = data.draw(data_for(writer))
    body = encode(writer, value)
    for route in (state.routes[1], None):
        assert expected_row(writer, load, load, value) == decode(load, project(writer, load, body, route))


@given(schemas(root="record"), st.data())
def test_a_damaged_body_never_becomes_an_unreadable_row(writer: Schema, data: st.DataObject) -> None:
    load = load_schema_of(writer)
    body = bytearray(encode(writer, data.draw(data_for(writer))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        row = project(writer, load, bytes(body))
    except BadBody:
        return
    decode(load, row)


@given(schemas(root="record"), st.data())
def test_a_truncated_body_or_extra_bytes_are_bad(writer: Schema, data: st.DataObject) -> None:
    load = load_schema_of(writer)
    body = encode(writer, data.draw(data_for(writer)))
    with pytest.raises(BadBody):
        project(writer, load, body + b"\x00")
    if body:
        with pytest.raises(BadBody):
            project(writer, load, body[:-1])


def test_a_body_in_the_load_schema_is_copied_byte_for_byte() -> None:
    writer = record(field("n", "long"), field("m", {"type": "map", "values": "int"}))
    # A padded varint and a duplicate key would be lost by decoding to a value.
    body = b"\x82\x80\x00" + b"\x04\x02a\x02\x02a\x04\x00"
    assert project(writer, load_schema_of(writer), body) == body


WIDENED = (record(field("a", "int"), field("b", "string")), record(field("a", "long"), field("b", "string")))


def test_a_widened_int_has_the_same_bytes() -> None:
    body = encode(WIDENED[0], {"a": -5, "b": "x"})
    assert project(WIDENED[0], load_schema_of(*WIDENED), body) == body


def test_renamed_reordered_and_added_fields() -> None:
    v1 = record(field("a", "int"), field("gone", "string"), field("c", "double"))
    v2 = record(field("c", "double"), field("aa", "int", aliases=["a"]), field("d", "string", default="d"))
    assert row_of(v1, {"a": 1, "gone": "g", "c": 2.5}, v1, v2) == {"aa": 1, "gone": "g", "c": 2.5, "d": "d"}
    assert row_of(v2, {"aa": 1, "c": 2.5, "d": "D"}, v1, v2) == {"aa": 1, "gone": None, "c": 2.5, "d": "D"}


def test_a_union_stores_the_branch_of_each_message() -> None:
    writer = record(field("u", ["null", "int", "long", "string"]))
    for branch, value in (("int", 1), ("long", 1), ("string", "1")):
        row = row_of(writer, {"u": (branch, value)})["u"]
        assert {name: member_value for name, member_value in row.items() if member_value is not None} == {branch: value}
    assert row_of(writer, {"u": None}) == {"u": None}


def test_a_null_column_that_gets_a_type_is_nullable() -> None:
    versions = record(field("a", "null")), record(field("a", ["null", "int"]))
    for writer in versions:
        assert row_of(writer, {"a": None}, *versions) == {"a": None}


def test_a_recursive_field_is_text() -> None:
    node = {"type": "record", "name": "Node", "fields": [field("v", "float"), field("next", ["null", "Node"])]}
    value = {"list": {"v": 0.1, "next": ("Node", {"v": 1.0, "next": None})}}
    row = row_of(record(field("list", node)), value)
    assert row["list"]["next"] == '{"v":1.0,"next":null}'


def test_a_writer_schema_without_columns_for_its_fields_is_an_error() -> None:
    with pytest.raises(Unconvertible, match=r"\ba, b\b"):
        compile_projection(record(field("b", "int")), load_schema_of(record(field("a", "int"))), (), CapturedTime())


def test_a_writer_schema_with_too_many_types_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def holders(*fields: Any) -> Schema:
        each = ({"type": "record", "name": f"R{n}", "fields": [field("x", "int"), *fields]} for n in range(9))
        return record(*(field(f"c{n}", one) for n, one in enumerate(each)))

    load = load_schema_of(holders())
    monkeypatch.setattr(merge, "FOLD_TYPES_MAX", 8)
    with pytest.raises(Unconvertible, match=r"\b8\b"):
        compile_projection(holders(field("y", "int")), load, (), CapturedTime())


BAD_BODIES = {
    "an int beyond 32 bits": ("int", b"\xff\xff\xff\xff\x1f"),
    "an int of 6 bytes": ("int", b"\x80\x80\x80\x80\x80\x00"),
    "a long beyond 64 bits": ("long", b"\xff" * 9 + b"\x02"),
    "a boolean of 2": ("boolean", b"\x02"),
    "text that is not UTF-8": ("string", b"\x02\xff"),
    "a negative length": ("string", b"\x01"),
    "a length beyond the body": ("bytes", b"\x08a"),
    "an enum index too high": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
    "a negative enum index": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01"),
    "a union index too high": (["null", "int"], b"\x04"),
    "a negative union index": (["null", "int"], b"\x01"),
    "a huge array of floats": ({"type": "array", "items": "float"}, encode_long(1 << 60) + b"\x00"),
    "a huge array of nulls": ({"type": "array", "items": "null"}, encode_long(1 << 60) + b"\x00"),
    "a huge map": ({"type": "map", "values": "null"}, encode_long(1 << 60) + b"\x00"),
    "a wrong byte count of a block": ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00"),
}


@pytest.mark.parametrize("kind", BAD_BODIES)
def test_bodies_that_other_decoders_accept_are_bad(kind: str) -> None:
    node, body = BAD_BODIES[kind]
    writer = record(field("a", node))
    for load in (load_schema_of(writer), load_schema_of(writer, record(field("b", ["null", "int"], default=None)))):
        with pytest.raises(BadBody):
            project(writer, load, body)


def test_a_block_with_its_byte_count_is_fine() -> None:
    writer = record(field("a", {"type": "array", "items": "int"}))
    body = b"\x03\x04\x02\x04\x00"
    assert decode(writer, project(writer, load_schema_of(writer), body)) == {"a": [1, 2]}


def test_items_that_take_no_bytes_have_a_maximum() -> None:
    writer = record(field("a", {"type": "array", "items": "null"}))
    load = load_schema_of(writer)
    body = encode_long(ZERO_WIDTH_ITEMS_MAX) + b"\x00"
    assert project(writer, load, body) == body
    with pytest.raises(BadBody, match=r"\b65536\b"):
        project(writer, load, encode_long(ZERO_WIDTH_ITEMS_MAX + 1) + b"\x00")


def test_items_that_take_no_bytes_are_counted_per_body() -> None:
    writer = record(field("a", {"type": "array", "items": {"type": "array", "items": "null"}}))
    convert = core_and_reference(writer, load_schema_of(writer), (), CapturedTime())
    inner = encode_long(ZERO_WIDTH_ITEMS_MAX // 2) + b"\x00"
    assert convert(encode_long(2) + inner * 2 + b"\x00")
    assert convert(encode_long(2) + inner * 2 + b"\x00"), "the limit is per body"
    with pytest.raises(BadBody, match=r"\b65536\b"):
        convert(encode_long(3) + inner * 3 + b"\x00")


@pytest.mark.parametrize("levels", [DEPTH_MAX + 2, 100_000])
def test_nesting_has_a_maximum_and_a_bad_body_leaves_no_trace(levels: int) -> None:
    node = {"type": "record", "name": "Node", "fields": [field("next", ["null", "Node"])]}
    writer = record(field("n", node))
    load = load_schema_of(writer)
    convert = core_and_reference(writer, load, (), CapturedTime())
    with pytest.raises(BadBody, match=rf"\b{DEPTH_MAX}\b"):
        convert(b"\x02" * (levels + 1) + b"\x00")
    assert convert(b"\x02" * (DEPTH_MAX // 2) + b"\x00")


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**53 + 1)
@example(16_777_217)
@example((1 << 54) + (1 << 30) + 1)
def test_longs_are_rounded_to_floats_once(n: int) -> None:
    rounded = struct.unpack("<f", struct.pack("<f", nearest_float(n)))[0]
    bits = struct.unpack("<i", struct.pack("<f", rounded))[0]
    for neighbour_bits in (bits - 1, bits + 1):
        other = struct.unpack("<f", struct.pack("<i", neighbour_bits))[0]
        if math.isfinite(other):
            assert abs(int(rounded) - n) <= abs(int(other) - n)


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_survive(n: int) -> None:
    encoded = encode_long(n)
    assert read_varint(encoded, 0) == (n, len(encoded))


TIMED = record(
    field("a", "string"),
    field("header", ["null", {"type": "record", "name": "H", "fields": [field("time", ["long", "null"])]}]),
    field("b", "string"),
)


def plan(writer: Schema, load: Schema | None = None, **more: Any) -> TopicPlan:
    return TopicPlan("t", (load or load_schema_of(writer)).text, {1: writer.text}, POLICY, **more)


def test_time_is_captured_from_bodies_that_fail_later() -> None:
    for versions in ((TIMED,), (TIMED, record(field("b", "bytes")))):
        writer = TopicProjection(plan(TIMED, load_schema_of(*versions)), ("header.time",)).writer(1)
        assert writer.project is not None and writer.time_sources == ("header.time",)
        body = encode(TIMED, {"a": "x", "header": ("H", {"time": ("long", 77)}), "b": "y"})
        writer.project(body)
        assert writer.captured_time.value == 77
        writer.captured_time.value = None
        with pytest.raises(BadBody):
            writer.project(body[:-1])
        assert writer.captured_time.value == 77
        writer.captured_time.value = None
        writer.project(encode(TIMED, {"a": "x", "header": None, "b": "y"}))
        assert writer.captured_time.value is None


def test_units_of_time() -> None:
    micros = record(field("at", {"type": "long", "logicalType": "timestamp-micros"}))
    writer = TopicProjection(plan(micros, time_property="at"), ()).writer(1)
    assert writer.project is not None
    writer.project(encode(micros, {"at": -1}))
    assert writer.captured_time.time_ms == -1
    assert (writer.time_sources, OUT_OF_RANGE_TIME, NO_TIME) == (
        ("at",),
        "record (field out of range)",
        "record (no time in the field)",
    )


def test_absent_ids_are_bad_and_unknown_ids_stop_the_range() -> None:
    projection = TopicProjection(plan(TIMED, absent_ids=frozenset({9})), ())
    bad = projection.writer(9).bad
    assert bad is not None and (bad.code, bad.schema_id) == (QuarantineCode.SCHEMA_NOT_FOUND, 9)
    with pytest.raises(UnknownSchema, match=r"\b5\b"):
        projection.writer(5)


def test_an_unparsable_writer_schema_is_bad() -> None:
    bad = TopicProjection(TopicPlan("t", load_schema_of(TIMED).text, {1: "{"}, POLICY), ()).writer(1).bad
    assert bad is not None and bad.code is QuarantineCode.UNREADABLE_SCHEMA


def test_framing() -> None:
    assert unframe_message(frame(258, b"body"), NO_HEADERS) == (258, b"body")
    in_header = b"\x02" + encode_long(len("__value_schema_id")) + b"__value_schema_id" + b"\x0a\x00\x00\x00\x00\x07"
    assert unframe_message(b"body", in_header) == (7, b"body")
    for value in (b"", b"\x00\x00", b"{}", b"\x01\x00\x00\x00\x01x"):
        bad = unframe_message(value, NO_HEADERS)
        assert isinstance(bad, BadMessage) and bad.code is QuarantineCode.FRAMING
