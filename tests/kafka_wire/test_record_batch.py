"""Record batches taken apart and built, beside kafka-python's own decoder."""

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
    frames,
    has_valid_crc,
    headers_of,
    offset_behind,
    open_batch,
    read_batch,
    read_batch_header,
    records_of,
)
from support.broker.record_batches import make_batch, reseal

CAP = 1 << 24


def batches(data: bytes, where: str, bytes_max: int) -> list[Batch]:
    return [read_batch(frame, where, bytes_max) for frame in frames(data, where)]


BYTES = st.none() | st.binary(max_size=300)


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=40), st.integers(0, 2**62))
def test_what_is_built_is_what_comes_out(entries: list[tuple[bytes | None, bytes | None]], timestamp_ms: int) -> None:
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
def test_every_record_is_as_kafka_python_reads_it(codec: int, data: list[int], value: bytes) -> None:
    batch = make_batch(
        data, codec=codec, value=lambda offset: value + b"%d" % offset, headers=[("a", b"1"), ("b", b"")]
    )
    theirs = [
        (record.offset, record.timestamp, record.key, record.value, [(key, value) for key, value in record.headers])
        for record in DefaultRecordBatch(batch)
    ]
    (found,) = batches(batch, "here", CAP)
    assert [(*record[:4], headers_of(record[4])) for record in found.records] == theirs


@given(st.integers(0, 60), st.integers(1, 255))
def test_every_byte_that_the_checksum_covers_is_checked(at: int, mask: int) -> None:
    batch = bytearray(make_batch(range(5)))
    at = 21 + at * (len(batch) - 22) // 60
    batch[at] ^= mask
    assert not has_valid_crc(memoryview(batch), read_batch_header(batch))
    with pytest.raises(CorruptBatch, match="here offset 0") as error:
        batches(bytes(batch), "here", CAP)
    assert error.value.next_offset is None, "a header with a wrong checksum does not tell it"


def test_a_whole_batch_is_opened_without_its_neighbour() -> None:
    first, second = make_batch([0, 1]), make_batch([2])
    header = read_batch_header(first)
    records = open_batch(memoryview(first + second), header, "here", CAP)
    assert [record[0] for record in records] == [0, 1]


def test_a_batch_whose_records_lie_elsewhere_is_refused() -> None:
    batch = bytearray(make_batch([0, 1, 2]))
    struct.pack_into(">i", batch, 23, 1)  # it says that its last offset is 1
    with pytest.raises(CorruptBatch, match="here offset 0") as error:
        batches(reseal(batch), "here", CAP)
    assert error.value.next_offset == 2


def test_a_batch_shorter_than_its_header_is_refused() -> None:
    batch = bytearray(make_batch([0]))
    struct.pack_into(">i", batch, 8, 48)
    with pytest.raises(CorruptBatch, match="48"):
        batches(bytes(batch), "here", CAP)
    assert batches(make_batch([0])[:-1], "here", CAP) == [], "a cut batch comes whole with the next fetch"


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
def test_absurd_record_times_go_round_as_in_kafka_and_stay_within_64_bits(
    base_time: int, delta: int, time_ms: int
) -> None:
    body = b"\x00" + encode_long(delta) + b"\x00\x01\x02v\x00"
    payload = encode_long(len(body)) + body
    (record,) = records_of(payload, 1, 7, base_time, None)
    assert record == (7, time_ms, None, b"v", NO_HEADERS)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 4))
def test_garbage_with_a_right_checksum_is_refused(payload: bytes, codec: int) -> None:
    batch = bytearray(make_batch([0])[:61] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    try:
        found = batches(reseal(batch), "here", CAP)
    except CorruptBatch:
        return
    assert len(found[0].records) == 1


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_unfolds_beyond_the_cap_is_refused(codec: int) -> None:
    batch = make_batch([0], codec=codec, value=lambda offset: bytes(1 << 20))
    with pytest.raises(CorruptBatch, match="65536"):
        batches(batch, "here", 65_536)


def test_null_headers_and_values() -> None:
    assert headers_of(b"\x02\x02a\x01") == [("a", None)]
    with pytest.raises(ValueError):
        headers_of(b"\x04\x02a\x01")


@given(st.integers(0, 400), st.integers(1, 4))
def test_the_offset_behind_the_whole_batches_of_a_fetch(size: int, records: int) -> None:
    log = [make_batch(range(base, base + records), next_offset=base + 5) for base in (10, 15, 20)]
    data = b"".join(log)[:size]
    whole = [number for number in range(1, 4) if sum(map(len, log[:number])) <= size]
    assert offset_behind(data) == (10 + 5 * len(whole) if whole else None)
    assert offset_behind(memoryview(data)) == offset_behind(data)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_a_length_that_no_batch_has_ends_the_search_for_the_offset_behind(length: int) -> None:
    first, second = make_batch([0, 1]), make_batch([2, 3])
    assert offset_behind(first + second[:8] + struct.pack(">i", length) + second[12:]) == 2
