"""Searches by timestamp: their results, and how long they occupy the event loop."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ListOffsetsRequest

from headrace.broker.config import BrokerConfig
from headrace.broker.handlers import list_offsets
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log import time_search
from headrace.broker.log.files import FileSlice
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.segment import LOG, segment_path
from headrace.broker.log.time_search import CandidateBatch, TimeSearch, TimestampOffset
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import HEADER_BYTES, parse_records, parse_times
from support.broker.broker_samples import NOW_MS, append, batch, find_timestamp, open_sample_log

LATER_MS = NOW_MS + 1_000_000
LARGE = b"v" * time_search.INLINE_DECODE_BYTES_MAX


def batch_with_late_header(*values: bytes) -> bytes:
    """A batch with LATER_MS as its header's largest timestamp, although no record has it; producers may send such
    batches."""
    raw = bytearray(batch(*values))
    struct.pack_into(">q", raw, 35, LATER_MS)
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    return bytes(raw)


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        try:
            await asyncio.wait_for(work(node), 30)
        finally:
            await node.close()

    asyncio.run(main())


def request_offsets(node: BrokerNode, *timestamps_ms: int, committed: bool = False) -> Any:
    """Returns the response for the first partitions of topic t, or an awaitable of it."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    requested = [
        topic.ListOffsetsPartition(version=7, partition_index=index, current_leader_epoch=-1, timestamp=timestamp_ms)
        for index, timestamp_ms in enumerate(timestamps_ms)
    ]
    request = ListOffsetsRequest(
        version=7,
        replica_id=-1,
        isolation_level=int(committed),
        topics=[topic(version=7, name="t", partitions=requested)],
    )
    return list_offsets.handle(RequestContext(node, 7, "test", "127.0.0.1"), request)


def offsets_in(response: Any) -> list[tuple[int, int]]:
    """Returns the (timestamp, offset) of each partition; the error code of a refused one."""
    (topic,) = response.topics
    return [(one.timestamp, one.offset) if not one.error_code else (one.error_code, -1) for one in topic.partitions]


class RecordedDecodings:
    """Records the decoded batches, and whether the event loop decoded them; decoding waits for `may_decode`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_decode = threading.Event()
        self.began = threading.Event()
        self.offsets: list[int] = []
        self.in_loop: list[bool] = []
        first_record = CandidateBatch.first_record

        def counted(each: CandidateBatch, *given: Any) -> TimestampOffset | None:
            self.offsets.append(each.header.base_offset)
            self.in_loop.append(threading.current_thread() is threading.main_thread())
            self.began.set()
            assert self.in_loop[-1] or self.may_decode.wait(20)
            return first_record(each, *given)

        monkeypatch.setattr(CandidateBatch, "first_record", counted)


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> RecordedDecodings:
    return RecordedDecodings(monkeypatch)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("values", [[LARGE] * 3, [b"v" * 1000] * 3], ids=["large", "compressed"])
def test_other_requests_are_served_while_a_batch_is_decoded(
    tmp_path: Path, decodings: RecordedDecodings, values: list[bytes]
) -> None:
    codec = 0 if values[0] == LARGE else 1

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        for index in range(3):
            append(node.log("t", index), batch(*values, codec=codec))
        response = asyncio.ensure_future(request_offsets(node, NOW_MS + 1, list_offsets.LARGEST_TIMESTAMP, NOW_MS + 3))
        await until(decodings.began.is_set)
        append(node.log("t", 0), batch(b"more", timestamp_ms=NOW_MS + 500))
        assert offsets_in(request_offsets(node, list_offsets.LATEST, list_offsets.EARLIEST)) == [(-1, 4), (-1, 0)]
        assert offsets_in(request_offsets(node, NOW_MS + 400)) == [(NOW_MS + 500, 3)], (
            "a small batch is decoded at once"
        )
        assert not response.done()
        decodings.may_decode.set()
        assert offsets_in(await response) == [(NOW_MS + 1, 1), (NOW_MS + 2, 2), (-1, -1)]
        assert decodings.in_loop == [False, True, False]

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    ("large_from", "at_once"),
    [(list_offsets.TIME_SEARCHES_BEFORE_YIELD, list_offsets.TIME_SEARCHES_BEFORE_YIELD), (1, 2)],
)
def test_search_in_many_partitions_yields_to_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodings: RecordedDecodings, large_from: int, at_once: int
) -> None:
    decodings.may_decode.set()
    partitions = 3 * list_offsets.READ_AHEAD_PARTITIONS_MAX
    rounds: Counter[int] = Counter()
    round_ = 0
    step = TimeSearch.step

    def counted(each: TimeSearch) -> CandidateBatch | None:
        rounds[round_] += 1
        return step(each)

    monkeypatch.setattr(TimeSearch, "step", counted)

    async def work(node: BrokerNode) -> None:
        nonlocal round_
        node.changes.create_topic("t", partitions, {})
        for index in range(partitions):
            append(node.log("t", index), batch(LARGE if index >= large_from else b"v"))
        response = asyncio.ensure_future(request_offsets(node, *[NOW_MS] * partitions))
        while not response.done():
            await asyncio.sleep(0)
            round_ += 1
        assert offsets_in(await response) == [(NOW_MS, 0)] * partitions
        assert rounds.pop(0) == at_once
        assert max(rounds.values()) == 1
        assert decodings.in_loop == [True] * large_from + [False] * (partitions - large_from)

    with_node(tmp_path, work)


def test_batches_with_wrong_maximum_timestamps_are_decoded_up_to_a_limit(
    tmp_path: Path, decodings: RecordedDecodings
) -> None:
    decodings.may_decode.set()

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {"segment.bytes": "30000"})
        log = node.log("t", 0)
        for _ in range(40):
            append(log, batch_with_late_header(LARGE, b"v"))
        batches = time_search.BATCHES_DECODED_MAX - 1
        for _ in range(batches):
            append(node.log("t", 1), batch_with_late_header(LARGE, b"v"))
        append(node.log("t", 1), batch(LARGE, LARGE, timestamp_ms=LATER_MS - 1))
        response = offsets_in(await request_offsets(node, LATER_MS, LATER_MS))
        # The first offset of a batch that may contain the record is early enough; if it is found, it is exact.
        assert response == [(LATER_MS, 2 * time_search.BATCHES_DECODED_MAX), (LATER_MS, 2 * batches + 1)]
        assert len(decodings.offsets) == 2 * time_search.BATCHES_DECODED_MAX
        log.advance_log_start(79)
        assert offsets_in(await request_offsets(node, list_offsets.LARGEST_TIMESTAMP)) == [(-1, -1)]

    with_node(tmp_path, work)


def test_record_after_a_decoded_batch_is_found(tmp_path: Path, decodings: RecordedDecodings) -> None:
    decodings.may_decode.set()

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch_with_late_header(LARGE))
        append(node.log("t", 0), batch(b"v", timestamp_ms=LATER_MS))
        append(node.log("t", 0), batch(b"v", timestamp_ms=LATER_MS))
        assert offsets_in(await request_offsets(node, LATER_MS)) == [(LATER_MS, 1)]
        assert offsets_in(await request_offsets(node, 0)) == [(NOW_MS, 0)], "0 is an ordinary timestamp"

    with_node(tmp_path, work)


def test_decoded_records_per_timestamp_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "RECORDS_DECODED_MAX", 6)
    log = open_sample_log(tmp_path).log
    for _ in range(3):
        append(log, batch_with_late_header(b"a", b"b", b"c"))
    assert find_timestamp(log, LATER_MS) == TimestampOffset(LATER_MS, 6)
    log.advance_log_start(7)
    assert find_timestamp(log, LATER_MS) is None
    monkeypatch.setattr(time_search, "RECORDS_DECODED_MAX", 2)
    assert find_timestamp(log, LATER_MS) == TimestampOffset(LATER_MS, 7)


@pytest.mark.parametrize("limits", [LogLimits(), LogLimits(segment_bytes_max=2000)], ids=["active", "closed"])
def test_headers_are_read_once_and_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: LogLimits) -> None:
    monkeypatch.setattr(time_search, "HEADERS_PER_STEP", 10)
    log = open_sample_log(tmp_path, limits=limits).log
    for _ in range(5):
        append(log, batch_with_late_header(b"x"))
        for _ in range(50):
            append(log, batch(b"v" * 20))
    append(log, batch(b"y", timestamp_ms=LATER_MS + 5))
    passed: list[int] = []
    located_batches = PartitionLog.located_batches

    def counted(each: PartitionLog, offset: int) -> Any:
        for base, located in located_batches(each, offset):
            passed.append(located.header.base_offset)
            yield base, located

    monkeypatch.setattr(PartitionLog, "located_batches", counted)
    search = TimeSearch(log, LATER_MS)
    rounds = 0
    while not search.is_done:
        before = len(passed)
        assert search.step() is None
        assert len(passed) - before <= 10 + 1 + len(log.closed), "the first header of the next step, or segment"
        rounds += 1
    assert search.found == TimestampOffset(LATER_MS + 5, 255)
    if not log.closed:
        assert rounds == 26
    assert len(passed) <= 256 + rounds + len(log.closed), "none is read twice, except the first of a step"


class _Change:
    """Changes of the log while a thread decodes one of its batches."""

    async def roll(self, node: BrokerNode) -> tuple[int, int]:
        log = node.log("t", 0)
        log.roll(NOW_MS)
        append(log, batch(b"next", timestamp_ms=LATER_MS))
        return LATER_MS - 1, 3

    async def advance_into_the_batch(self, node: BrokerNode) -> tuple[int, int]:
        node.log("t", 0).advance_log_start(4)
        return LATER_MS, 4

    async def advance_behind_it(self, node: BrokerNode) -> tuple[int, int]:
        log = node.log("t", 0)
        append(log, batch(b"next", timestamp_ms=LATER_MS + 9))
        log.advance_log_start(5)
        return LATER_MS + 9, 5

    async def drop(self, node: BrokerNode) -> tuple[int, int]:
        log = node.log("t", 0)
        log.roll(NOW_MS)
        append(log, batch(b"next", timestamp_ms=LATER_MS + 9))
        for path in log.drop_segments(len(log.closed)):
            path.unlink()
        return LATER_MS + 9, 5

    async def close_files(self, node: BrokerNode) -> tuple[int, int]:
        node._files.close()
        return LATER_MS - 1, 3

    async def delete(self, node: BrokerNode) -> tuple[int, int]:
        await node.changes.delete_topic(node.topic("t"))
        return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1

    async def recreate(self, node: BrokerNode) -> tuple[int, int]:
        await node.changes.delete_topic(node.topic("t"))
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(b"new", timestamp_ms=LATER_MS + 1))
        return LATER_MS + 1, 0


@pytest.mark.parametrize(
    "change", [_Change.roll, _Change.advance_into_the_batch, _Change.advance_behind_it, _Change.drop,
               _Change.close_files, _Change.delete, _Change.recreate]
)  # fmt: skip
def test_log_may_change_while_a_batch_is_decoded(
    tmp_path: Path, decodings: RecordedDecodings, change: Callable[[_Change, BrokerNode], Awaitable[tuple[int, int]]]
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch_with_late_header(LARGE * 10, LARGE, LARGE))
        append(node.log("t", 0), batch(LARGE * 10, LARGE, timestamp_ms=LATER_MS - 1))
        response = asyncio.ensure_future(request_offsets(node, LATER_MS - 1))
        await until(decodings.began.is_set)
        expected = await change(_Change(), node)
        decodings.may_decode.set()
        assert offsets_in(await response) == [expected]

    with_node(tmp_path, work)


def test_found_record_is_not_before_the_log_start(tmp_path: Path, decodings: RecordedDecodings) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        append(node.log("t", 0), batch(LARGE, LARGE, LARGE))
        response = asyncio.ensure_future(request_offsets(node, NOW_MS))
        await until(decodings.began.is_set)
        node.log("t", 0).advance_log_start(2)
        decodings.may_decode.set()
        assert offsets_in(await response) == [(NOW_MS + 2, 2)]
        assert decodings.offsets == [0, 0]

    with_node(tmp_path, work)


def test_open_transactions_are_not_found_with_read_committed(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        log = node.log("t", 0)
        append(log, batch(b"v"))
        append(log, batch(b"v", timestamp_ms=LATER_MS, producer_id=1, epoch=0, sequence=0, is_transactional=True))
        for timestamp_ms in (LATER_MS, list_offsets.LARGEST_TIMESTAMP):
            assert offsets_in(request_offsets(node, timestamp_ms)) == [(LATER_MS, 1)]
            assert offsets_in(request_offsets(node, timestamp_ms, committed=True)) == [(-1, -1)]
        assert offsets_in(request_offsets(node, list_offsets.LATEST, committed=True)) == [(-1, 1)]

    with_node(tmp_path, work)


def test_large_batch_is_read_in_a_thread(tmp_path: Path) -> None:
    """The thread that decodes the batch also reads it."""
    log = open_sample_log(tmp_path).log
    append(log, batch(LARGE * 10))
    batch_ = TimeSearch(log, NOW_MS).step()
    assert batch_ is not None and isinstance(batch_.content, FileSlice)
    assert batch_.first_record_throttled() == TimestampOffset(NOW_MS, 0)


def test_undecodable_batch_gives_its_first_offset(tmp_path: Path) -> None:
    log = open_sample_log(tmp_path).log
    append(log, batch(b"v"))
    raw = batch(b"a", b"b", timestamp_ms=LATER_MS)
    append(log, raw)
    path = segment_path(tmp_path, 0, LOG)
    content = path.read_bytes()
    path.write_bytes(content[: -len(raw) + HEADER_BYTES] + b"\x7e" * (len(raw) - HEADER_BYTES))
    assert find_timestamp(log, LATER_MS) == TimestampOffset(LATER_MS + 1, 1)
    log.advance_log_start(2)
    assert find_timestamp(log, LATER_MS) == TimestampOffset(LATER_MS + 1, 2)


@given(
    st.binary(max_size=60)
    | st.lists(st.tuples(st.binary(max_size=3) | st.binary(min_size=100, max_size=200), st.integers(0, 1 << 40))).map(
        lambda rows: b"".join(_record(at, *row) for at, row in enumerate(rows))
    ),
    st.integers(0, 8),
    st.sampled_from([0, NOW_MS, (1 << 63) - 5, -(1 << 63)]),
    st.none() | st.just(NOW_MS),
)
def test_times_are_those_of_the_records(payload: bytes, count: int, base_time: int, fixed_time: int | None) -> None:
    given_ = (payload, count, 1000, base_time, fixed_time)
    try:
        expected = [(offset, time_ms) for offset, time_ms, *_ in parse_records(*given_)]
    except (ValueError, IndexError):
        return  # bytes after a matching record are not examined
    assert list(parse_times(*given_)) == expected


def _varint(number: int) -> bytes:
    number = number << 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes((number,))


def _record(offset_delta: int, value: bytes, time_delta: int) -> bytes:
    body = b"\0" + _varint(time_delta) + _varint(offset_delta) + b"\x01" + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (_record(0, b"a", 0) + _record(0, b"b", 0), 2),
        (_record(1, b"a", 0) + _record(0, b"b", 0), 2),
        (_record(0, b"a", 0), 2),
        (_record(0, b"a", 0) + b"\0", 1),
        (_record(0, b"a", 0)[:-1], 1),
        (b"\x05" + _record(0, b"a", 0)[1:], 1),
        (b"\x00" * 10, 3),
    ],
    ids=["same offset", "offsets fall", "too few", "left over", "cut", "negative length", "empty records"],
)
def test_timestamps_of_malformed_records_are_refused(payload: bytes, count: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        list(parse_times(payload, count, 0, 0, None))


def test_a_partition_that_is_named_twice_is_refused_once(tmp_path: Path) -> None:
    """Also if its topic is repeated: a request with a few bytes per partition must not cause a search for each."""

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        topic = ListOffsetsRequest.ListOffsetsTopic
        topics = [
            topic(
                version=7,
                name="t",
                partitions=[
                    topic.ListOffsetsPartition(version=7, partition_index=at, current_leader_epoch=-1, timestamp=time)
                    for at, time in topic_partitions
                ],
            )
            for topic_partitions in (((0, -1), (1, -1), (0, NOW_MS)), ((0, -2),))
        ]
        request = ListOffsetsRequest(version=7, replica_id=-1, isolation_level=0, topics=topics)
        response = list_offsets.handle(RequestContext(node, 7, "test", "127.0.0.1"), request)
        result = [
            [(one.partition_index, one.error_code, one.offset) for one in each.partitions] for each in response.topics
        ]
        assert result == [[(0, 42, -1), (1, 0, 0)], []]

    with_node(tmp_path, work)
