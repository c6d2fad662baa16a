"""Parsing and building of record batches, compared with kafka-python."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from headrace.avro_codec.encode import encode_long
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    NO_HEADERS,
    Batch,
    build_batch,
    decode_batch,
    end_of_batches,
    has_valid_crc,
    parse_headers,
    parse_records,
    read_batch,
    read_batch_header,
    split_batches,
)
from support.broker.record_batches import make_batch, reseal

CAP = 1 << 24


def batches(data: bytes, where: str, bytes_max: int) -> list[Batch]:
    return [read_batch(frame, where, bytes_max) for frame in split_batches(data, where)]


BYTES = st.none() | st.binary(max_size=300)


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=40), st.integers(0, 2**62))
def test_built_batch_is_parsed_unchanged(entries: list[tuple[bytes | None, bytes | None]], timestamp_ms: int) -> None:
    built = build_batch(entries, timestamp_ms)
    (found,) = batches(built, "here", CAP)
    assert [(key, value) for _, _, key, value, _ in found.records] == entries
    assert [record[:2] for record in found.records] == [(at, timestamp_ms) for at in range(len(entries))]
    assert (found.base_offset, found.next_offset, found.producer_id) == (0, len(entries), -1)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@given(
    data=st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=30).map(sorted),
    value=st.binary(max_size=200),
)
def test_records_equal_those_of_kafka_python(codec: int, data: list[int], value: bytes) -> None:
    batch = make_batch(
        data, codec=codec, value=lambda offset: value + b"%d" % offset, headers=[("a", b"1"), ("b", b"")]
    )
    expected_records = [
        (record.offset, record.timestamp, record.key, record.value, [(key, value) for key, value in record.headers])
        for record in DefaultRecordBatch(batch)
    ]
    (found,) = batches(batch, "here", CAP)
    assert [(*record[:4], parse_headers(record[4])) for record in found.records] == expected_records


@given(st.integers(0, 60), st.integers(1, 255))
def test_changed_byte_under_the_checksum_is_an_error(at: int, mask: int) -> None:
    batch = bytearray(make_batch(range(5)))
    at = 21 + at * (len(batch) - 22) // 60
    batch[at] ^= mask
    assert not has_valid_crc(memoryview(batch), read_batch_header(batch))
    with pytest.raises(CorruptBatch, match="here offset 0") as error:
        batches(bytes(batch), "here", CAP)
    assert error.value.next_offset is None, "a header with a wrong checksum is not trusted"


def test_decode_batch_ignores_the_following_batch() -> None:
    first, second = make_batch([0, 1]), make_batch([2])
    header = read_batch_header(first)
    records = decode_batch(memoryview(first + second), header, "here", CAP)
    assert [record[0] for record in records] == [0, 1]


def test_records_outside_of_the_batch_offsets_are_an_error() -> None:
    batch = bytearray(make_batch([0, 1, 2]))
    struct.pack_into(">i", batch, 23, 1)  # sets the last offset to 1
    with pytest.raises(CorruptBatch, match="here offset 0") as error:
        batches(reseal(batch), "here", CAP)
    assert error.value.next_offset == 2


def test_batch_shorter_than_its_header_is_an_error() -> None:
    batch = bytearray(make_batch([0]))
    struct.pack_into(">i", batch, 8, 48)
    with pytest.raises(CorruptBatch, match=r"\b60\b"):
        batches(bytes(batch), "here", CAP)
    assert batches(make_batch([0])[:-1], "here", CAP) == [], "a truncated batch is complete in the next fetch"


@pytest.mark.parametrize(
    ("base_time", "delta", "time_ms"),
    [
        (2**63 - 1, 1, -(2**63)),
        (-(2**63), -1, 2**63 - 1),
        (2**63 - 1, -(2**63), -1),
        (5, 2**63 - 1, -(2**63) + 4),
        (2**62, 2**62 - 1, 2**63 - 1),
    ],
)
def test_record_times_wrap_to_64_bits_like_kafka(base_time: int, delta: int, time_ms: int) -> None:
    body = b"\x00" + encode_long(delta) + b"\x00\x01\x02v\x00"
    payload = encode_long(len(body)) + body
    (record,) = parse_records(payload, 1, 7, base_time, None)
    assert record == (7, time_ms, None, b"v", NO_HEADERS)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 4))
def test_garbage_with_a_valid_checksum_is_an_error(payload: bytes, codec: int) -> None:
    batch = bytearray(make_batch([0])[:61] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    try:
        found = batches(reseal(batch), "here", CAP)
    except CorruptBatch:
        return
    assert len(found[0].records) == 1


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batch_that_decompresses_beyond_the_limit_is_an_error(codec: int) -> None:
    batch = make_batch([0], codec=codec, value=lambda offset: bytes(1 << 20))
    with pytest.raises(CorruptBatch, match="65536"):
        batches(batch, "here", 65_536)


def test_header_value_may_be_null() -> None:
    assert parse_headers(b"\x02\x02a\x01") == [("a", None)]
    with pytest.raises(ValueError):
        parse_headers(b"\x04\x02a\x01")


@given(st.integers(0, 400), st.integers(1, 4))
def test_end_of_batches_is_the_offset_after_the_last_complete_batch(size: int, records: int) -> None:
    log = [make_batch(range(base, base + records), next_offset=base + 5) for base in (10, 15, 20)]
    data = b"".join(log)[:size]
    whole = [number for number in range(1, 4) if sum(map(len, log[:number])) <= size]
    assert end_of_batches(data) == (10 + 5 * len(whole) if whole else None)
    assert end_of_batches(memoryview(data)) == end_of_batches(data)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_end_of_batches_stops_at_an_invalid_length(length: int) -> None:
    first, second = make_batch([0, 1]), make_batch([2, 3])
    assert end_of_batches(first + second[:8] + struct.pack(">i", length) + second[12:]) == 2
