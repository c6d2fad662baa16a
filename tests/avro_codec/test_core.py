"""The core compared with the reference: both convert every batch to the same rows."""

from __future__ import annotations

import ctypes
import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.audit import window
from headrace.audit.count import message_hash
from headrace.avro_codec import BadBody, CapturedTime
from headrace.avro_codec.core import library
from headrace.avro_codec.core.library import c_program
from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_codec.program import FRAMES_MAX, SLOTS_MAX, array, assemble, record, walk_readable
from headrace.avro_schema import Primitive, PrimitiveType, Schema, find_time_fields, frame, parse_schema
from headrace.avro_schema.message_time import parse_time_text
from headrace.kafka_wire.record_batch import NO_HEADERS, parse_records
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.project.batches import Columns, RecordColumns, project
from headrace.loader.project.messages import Clamp
from headrace.loader.project.projection import compile_projection
from headrace.loader.work_unit import ImplausibleTimeKind
from support.examples import examples
from support.loader.compiled_core import required_core
from support.loader.projection_oracle import core_and_reference, encode, load_schema_of, states_of
from support.loader.range_comparison import RangeInputs, check_same, headers_bytes, plan_of, record_bytes
from support.schemas.body_edges import EDGES
from support.schemas.strategies import data_for, histories

T0 = 1_357_002_000_000  # 2013-01-01T01:00Z
NOW_MS = T0 + 86_400_000
INT = Primitive(PrimitiveType.INT)
UNTOUCHED = b"\xaa"


@given(st.none() | st.binary(max_size=80), st.binary(max_size=200))
def test_hash_equals_the_message_hash_of_the_audit(key: bytes | None, value: bytes) -> None:
    assert required_core().message_hash(key, -1 if key is None else len(key), value, len(value)) == message_hash(
        key, value
    )


def outcome(records: Any, *arguments: Any) -> object:
    """Returns the records as tuples, or the error."""
    try:
        return list(records(*arguments))
    except (ValueError, IndexError) as error:
        return type(error), str(error)


sizes = st.sampled_from([0, 1, 60, 70, 200]).map(bytes)
payloads = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0, 1, -1, 63, 64, -65, 1 << 40, (1 << 61) - 1, 1 << 61, -(1 << 62), (1 << 63) - 1]),
        st.none() | sizes,
        st.none() | sizes,
        st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(headers_bytes),
    ),
    max_size=6,
)


@given(
    payloads,
    st.integers(-1, 1),
    st.sampled_from([0, 1, (1 << 63) - 3]),
    st.sampled_from([0, T0, -1, 1 << 62, -(1 << 63)]),
    st.none() | st.sampled_from([-1, T0, (1 << 63) - 1]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=2),
)
def test_parsed_records_equal_those_of_the_reference(
    sample: list[tuple[int, int, bytes | None, bytes | None, bytes]],
    more: int,
    base_offset: int,
    base_time: int,
    fixed_time: int | None,
    damage: list[tuple[int, int]],
) -> None:
    delta = -1
    parts = []
    for step, time_delta, key, value, headers in sample:
        delta += step
        parts.append(record_bytes(max(0, delta), time_delta, key, value, headers))
    payload = bytearray(b"".join(parts))
    for place, byte in damage:
        if payload:
            payload[place % len(payload)] = byte
    arguments = (bytes(payload), max(0, len(sample) + more), base_offset, base_time, fixed_time)
    expected = outcome(parse_records, *arguments)
    assert outcome(RecordColumns(required_core()), *arguments) == expected


def test_core_parses_plain_records() -> None:
    payload = record_bytes(0, 5, b"k", b"v") + record_bytes(3, -5, None, None, headers_bytes([(b"h", None)]))
    found = RecordColumns(required_core())(payload, 2, 10, T0, None)
    assert isinstance(found, Columns)
    assert list(found) == found[:] == [(10, T0 + 5, b"k", b"v", NO_HEADERS), (13, T0 - 5, None, None, b"\x02\x02h\x01")]
    assert (found[-1], found[0]) == (found[1], next(iter(found)))
    with pytest.raises(IndexError):
        found[2]


def test_count_beyond_the_payload_is_rejected() -> None:
    with pytest.raises(IndexError):
        RecordColumns(required_core())(b"", 1 << 31, 0, 0, None)


TIMED = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [{"name": "timestamp", "type": ["null", "long"]}, {"name": "name", "type": "string"}],
    }
)
NANOS = TIMED.replace('"long"', '{"type": "long", "logicalType": "timestamp-nanos"}')
MICROS = TIMED.replace('"long"', '{"type": "long", "logicalType": "timestamp-micros"}')
DAYS = TIMED.replace('"long"', '{"type": "int", "logicalType": "date"}')

absurd_times = st.sampled_from(
    [0, -1, T0, T0 * 1000, T0 * 10**6, 15_700, window.TIME_MS_MAX, window.TIME_MS_MAX + 1, -(2**63), 2**63 - 1]
)
times = st.one_of(st.none(), absurd_times, st.integers(T0, T0 + 10**8), st.integers(T0, T0 + 10**11))


@st.composite
def timed_records(draw: st.DrawFn, schema_ids: int) -> bytes:
    """Generates a record of one of the schemas above: valid, corrupt, or with another prefix or none."""
    time_ms = draw(times)
    timestamp = b"\x00" if time_ms is None else b"\x02" + encode_long(time_ms)
    body = timestamp + encode_bytes(draw(st.sampled_from([b"", b"name", "名前".encode(), b"\xff", b"x" * 100])))
    value = draw(
        st.one_of(
            st.integers(1, schema_ids).map(lambda schema_id: frame(schema_id, body)),
            st.sampled_from(
                [None, b"", b"\x00", b"\x01abcdef", frame(404, body), frame(1, body[:-1]), b"\x00\xff" * 3]
            ),
        )
    )
    headers = st.lists(
        st.tuples(
            st.sampled_from([b"", b"trace", b"__value_schema_id", b"x__value_schema_id", b"\xff"]),
            st.sampled_from([None, b"", b"\x00\x00\x00\x00\x01"]),
        ),
        max_size=2,
    )
    raw = draw(st.one_of(st.just(NO_HEADERS), headers.map(headers_bytes), st.just(b"\x05")))
    key = draw(st.none() | st.binary(max_size=3))
    return draw(st.integers(-(10**8), 10**8)), key, value, raw  # type: ignore[return-value]


@settings(max_examples=examples(0.5))
@given(
    st.lists(st.lists(timed_records(4), min_size=1, max_size=12), max_size=3),
    st.sampled_from(["none", "position", "full"]),
    st.sampled_from(["hour", "day"]),
    st.none() | st.sampled_from([0, 1_000, 10**10, 1 << 62]),
    st.sampled_from([(), ("timestamp",), ("missing", "timestamp")]),
    st.integers(0, 6) | st.just(window.WINDOWS_MAX),
)
def test_batches_are_converted_like_in_the_reference(
    batches: list[list[Any]],
    kafka_column: str,
    partition_by: str,
    future_ms_max: int | None,
    time_fields: tuple[str, ...],
    windows_max: int,
) -> None:
    plan = plan_of([parse_schema(text) for text in (TIMED, NANOS, MICROS, DAYS)])
    clamp = None if future_ms_max is None else Clamp(future_ms_max, NOW_MS)
    shared = RangeInputs(plan, time_fields, kafka_column, partition_by, clamp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOWS_MAX", windows_max)
        check_same(shared, [[record_bytes(at, *one) for at, one in enumerate(batch)] for batch in batches])


CHAIN = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "timestamp", "type": ["null", "string", {"type": "long", "logicalType": "timestamp-micros"}]},
            {
                "name": "header",
                "type": ["null", {"type": "record", "name": "H", "fields": [{"name": "time", "type": "string"}]}],
            },
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
)
CHAIN_FIELDS = ("header.time", "timestamp", "day")


@st.composite
def time_texts(draw: st.DrawFn) -> str:
    """Generates texts that are ISO 8601 times, or nearly."""
    text = draw(
        st.one_of(
            st.sampled_from(
                ["", "2013-01-01T01:30Z", "2013-01-01 01:30:00.123456789+02:00", "2024-02-29T00:00:00-0130"]
            ),
            st.datetimes().map(lambda time: time.isoformat() + "Z"),
            st.datetimes(timezones=st.timezones()).map(lambda time: time.isoformat(" ")),
        )
    )
    for at, other in draw(st.lists(st.tuples(st.integers(0, 34), st.sampled_from("0159:-+TZz., é")), max_size=2)):
        text = text[:at] + other + text[at + 1 :]
    return text


@given(time_texts())
def test_times_in_texts_are_captured_like_in_the_reference(text: str) -> None:
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "at", "type": "string"}]}))
    seen = CapturedTime()
    compiled = compile_projection(schema, load_schema_of(schema), find_time_fields(schema, "at", ()), seen)
    assert compiled.program is not None
    body = encode_bytes(text.encode())
    assert compiled.convert(body)
    expected = parse_time_text(text)
    assert (seen.value, bool(seen.unread)) == (expected, expected is None)
    assert project(required_core(), compiled.program, body, 1_000) == (compiled.convert(body), expected)


@settings(max_examples=examples(0.5))
@given(st.lists(st.tuples(st.none() | time_texts(), st.none() | time_texts() | times, st.integers(-5, 3_000_000))))
def test_first_time_of_several_fields_is_used_like_in_the_reference(
    messages: list[tuple[str | None, str | int | None, int]],
) -> None:
    batch = []
    for at, (header, timestamp, day) in enumerate(messages):
        body = b"\x00"
        if isinstance(timestamp, str):
            body = b"\x02" + encode_bytes(timestamp.encode())
        elif timestamp is not None:
            body = b"\x04" + encode_long(timestamp)
        body += b"\x00" if header is None else b"\x02" + encode_bytes(header.encode())
        batch.append(record_bytes(at, at, None, frame(1, body + encode_long(day))))
    found = check_same(RangeInputs(plan_of([parse_schema(CHAIN)]), CHAIN_FIELDS), [batch] if batch else [])
    unread = {one.source: one.messages for one in found[5] if one.kind is ImplausibleTimeKind.NO_TIME}
    assert unread.get("header.time", 0) == sum(
        header is not None and parse_time_text(header) is None for header, _, _ in messages
    )


def test_core_captures_times_in_eight_fields_and_leaves_more_to_the_reference() -> None:
    names = [f"t{number}" for number in range(9)]
    for count, has_program in ((8, True), (9, False)):
        fields = [{"name": name, "type": "string"} for name in names[:count]]
        schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
        time_fields = find_time_fields(schema, "", names)
        program = compile_projection(schema, load_schema_of(schema), time_fields, CapturedTime()).program
        assert (program is not None) == has_program
        bodies = [
            b"".join(encode_bytes(f"{2000 + n}-01-01T00:00Z".encode()) for n in range(count)),
            encode_bytes(b"?") * count,
        ]
        batch = [record_bytes(at, 0, None, frame(1, body)) for at, body in enumerate(bodies * 2)]
        check_same(RangeInputs(plan_of([schema]), tuple(names)), [batch])


@settings(max_examples=examples(0.5))
@given(histories(), st.data())
def test_messages_of_every_schema_history_are_converted_like_in_the_reference(
    versions: list[Schema], data: st.DataObject
) -> None:
    batch = []
    for at in range(data.draw(st.integers(1, 6))):
        number = data.draw(st.integers(1, len(versions)))
        body = bytearray(encode(versions[number - 1], data.draw(data_for(versions[number - 1]))))
        if body and data.draw(st.booleans()):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        batch.append(record_bytes(at, at, b"k", frame(number, bytes(body))))
    check_same(RangeInputs(plan_of(versions)), [batch])


def test_message_without_a_plan_stops_the_batch() -> None:
    body = b"\x00\x02a"
    batch = [record_bytes(at, 0, None, frame(schema_id, body)) for at, schema_id in enumerate((1, 1, 9, 1))]
    found = check_same(RangeInputs(plan_of([parse_schema(TIMED)])), [batch])
    assert found[-1] == (102, 9)
    assert found[2] == (2, 0, 0)


def test_full_buffer_continues_with_the_next_call() -> None:
    bodies = [b"\x02" + encode_long(T0 + n * 3_600_000) + encode_bytes(b"x" * 300) for n in range(12_000)]
    batch = [record_bytes(at, 0, b"k", frame(1, body)) for at, body in enumerate(bodies)]
    found = check_same(RangeInputs(plan_of([parse_schema(TIMED)])), [batch])
    assert found[2] == (12_000, 0, 0)
    assert len(found[0]) == 12_000, "of as many hours"


@pytest.mark.parametrize("size", [(1 << 20) - 100, 1 << 20, 3 << 20])
def test_row_larger_than_the_buffer_is_converted_by_the_reference(size: int) -> None:
    bodies = [b"\x00" + encode_bytes(b"x" * n) for n in (5, size, 5)]
    found = check_same(
        RangeInputs(plan_of([parse_schema(TIMED)])),
        [[record_bytes(at, 0, None, frame(1, b)) for at, b in enumerate(bodies)]],
    )
    assert found[2] == (3, 0, 0)


def test_core_converts_valid_messages_alone() -> None:
    """The reference converts only the first message of each schema, for which the program is compiled."""
    shared = RangeInputs(plan_of([parse_schema(TIMED), parse_schema(MICROS)]), kafka_column="full")
    messages, _ = shared.messages(required_core())
    body = b"\x02" + encode_long(T0) + encode_bytes("名前".encode())
    headers = headers_bytes([(b"trace", b"1"), (b"empty", None)])
    batch = [record_bytes(at, 0, b"k", frame(1 + at % 2, body), headers) for at in range(100)]
    messages.convert(RecordColumns(required_core())(b"".join(batch), 100, 0, T0, None))
    assert (messages.written, messages.by_reference) == (100, 2)


@pytest.mark.parametrize(("depth", "has_program"), [(FRAMES_MAX, True), (FRAMES_MAX + 1, False)])
def test_too_deep_values_are_left_to_the_reference(depth: int, has_program: bool) -> None:
    code = walk_readable(INT, INT)
    for _ in range(depth):
        found = array(code, zero_width=False, rewritten=True)
        assert found is not None
        code = found
    program = assemble(code)
    assert (program is not None) == has_program
    if program is not None:
        body = b"\x02" * depth + b"\x0a" + b"\x00" * depth
        assert project(required_core(), program, body, 100) == (body, None)


@pytest.mark.parametrize(("count", "has_program"), [(SLOTS_MAX - 1, True), (SLOTS_MAX, False)])
def test_too_many_reordered_fields_are_left_to_the_reference(count: int, has_program: bool) -> None:
    """All fields are reordered, so that no adjacent fields are moved together."""
    code = record([(count - 1 - n, walk_readable(INT, INT)) for n in range(count)], [b""] * count)
    program = assemble(code)
    assert (program is not None) == has_program
    if program is not None:
        values = [encode_long(n) for n in range(count)]
        row = b"".join(reversed(values))
        assert project(required_core(), program, b"".join(values), 2 * len(row)) == (row, None)


@settings(max_examples=examples(0.5))
@given(histories(), st.data())
def test_core_accepts_no_corrupt_body_that_the_reference_rejects(versions: list[Schema], data: Any) -> None:
    number = data.draw(st.integers(1, len(versions)))
    writer, state = versions[number - 1], states_of(*versions)[-1]
    convert = core_and_reference(writer, parse_schema(state.text), (), CapturedTime(), state.routes[number])
    body = encode(writer, data.draw(data_for(writer)))
    chance = data.draw(st.randoms(use_true_random=False))
    for _ in range(20):
        at = chance.randrange(len(body) + 1)
        for byte in (0, 1, 2, 127, 128, 255):
            _convert_ignoring_errors(convert, body[:at] + bytes((byte,)) + body[at + 1 :])
        _convert_ignoring_errors(convert, body[:at])


def _convert_ignoring_errors(convert: Any, body: bytes) -> None:
    try:
        convert(body)
    except BadBody:
        return


@given(histories(), st.data())
def test_no_byte_is_written_beyond_the_buffer(versions: list[Schema], data: Any) -> None:
    number = data.draw(st.integers(1, len(versions)))
    writer, state = versions[number - 1], states_of(*versions)[-1]
    program = compile_projection(writer, parse_schema(state.text), (), CapturedTime(), state.routes[number]).program
    body = encode(writer, data.draw(data_for(writer)))
    projected = None if program is None else project(required_core(), program, body, 1 << 16)
    if program is None or projected is None:
        return
    row = projected[0]
    made, _words = c_program(program, 0, has_time_field=False)
    seen, value = ctypes.c_int32(), ctypes.c_int64()
    for capacity in {0, 1, len(row) // 2, max(0, len(row) - 1), len(row), len(row) + 1}:
        buffer = ctypes.create_string_buffer(UNTOUCHED * (capacity + 64), capacity + 64)
        size = required_core().project(made, body, len(body), buffer, capacity, seen, value)
        assert buffer.raw[capacity:] == UNTOUCHED * 64
        assert size == -1 if capacity < len(row) else size in (-1, len(row))
        assert size == -1 or buffer.raw[:size] == row


def test_signalling_nan_is_left_to_the_reference() -> None:
    writer, load = _float("float"), load_schema_of(_float("float"), _float("double"))
    program = compile_projection(writer, load, (), CapturedTime()).program
    assert program is not None
    assert project(required_core(), program, bytes.fromhex("0000c07f"), 100) is not None
    assert project(required_core(), program, bytes.fromhex("0100807f"), 100) is None


def _float(kind: str) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}))


@pytest.mark.parametrize("edge", EDGES)
def test_body_just_beyond_a_limit_is_rejected_by_both(edge: str) -> None:
    kind, within, beyond = EDGES[edge]
    fields = [{"name": "f", "type": kind}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    convert = core_and_reference(schema, load_schema_of(schema), (), CapturedTime())
    assert isinstance(convert(within), bytes)
    with pytest.raises(BadBody):
        convert(beyond)


def test_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    required_core()
    monkeypatch.setattr(library, "PROGRAM_VERSION", library.PROGRAM_VERSION + 1)
    found, reason = library.load()
    assert found is None
    assert f"expected {library.ABI}.{library.PROGRAM_VERSION}" in reason


def test_topic_without_time_fields_and_with_an_empty_state() -> None:
    state = fold(EMPTY, 1, parse_schema('"long"'))
    plan = replace(plan_of([parse_schema(TIMED)]), load_schema=state.text, writer_schemas={1: '"long"'}, routes={})
    batch = [record_bytes(at, at, struct.pack(">q", at), frame(1, encode_long(at))) for at in range(5)]
    assert check_same(RangeInputs(plan), [batch])[2] == (5, 0, 0)
