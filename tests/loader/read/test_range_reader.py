"""Raw batches to classified records: every offset of a range is accounted for in any kind of log."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.kafka_wire.cluster import AbortedTransaction, FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaUnavailable, MisplacedBatch, OffsetOutOfRange
from headrace.kafka_wire.record_batch import NO_HEADERS, Record, parse_headers
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.read import range_reader
from headrace.loader.read.batch_neighbors import CorruptSpan, Fetch
from headrace.loader.read.range_reader import ReadOptions, ReadProgress, StopBefore, read_range
from headrace.loader.work_unit import OffsetRange, SkippedOffsets
from support.broker.record_batches import make_batch, reseal

TP = TopicPartition("orders", 3)
CAP = 1 << 24


def serve(
    log: Sequence[bytes],
    aborted: tuple[AbortedTransaction, ...] = (),
    slice_bytes: int = 1 << 30,
    readable_end: int | None = None,
) -> Fetch:
    """Fetches like a broker: from the batch with the offset on, truncated at `slice_bytes` except for the first batch.

    The log is readable to the end of its last batch, or up to `readable_end` if compaction removed the last ones.
    """
    spans = [(struct.unpack_from(">q", b)[0] + struct.unpack_from(">i", b, 23)[0] + 1, b) for b in log]
    end = spans[-1][0] if readable_end is None else readable_end

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        rest = [batch for end, batch in spans if end > offset]
        data = b"".join(rest)
        size = max(slice_bytes if bytes_max is None else bytes_max, len(rest[0]) if rest else 0)
        return FetchSlice(data[:size], end, end, 0, aborted, "b:1")

    return fetch


def read(fetch: Fetch, start: int, end: int, timeout_s: float = 0.0) -> tuple[list[Record], ReadProgress]:
    progress = ReadProgress(start)
    records: list[Record] = []
    read_range(
        fetch,
        OffsetRange(TP, start, end),
        records.extend,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=timeout_s),
    )
    assert len(records) + progress.control + progress.aborted + progress.gap_offsets == end - start
    return records, progress


def discard_records(records: list[Record]) -> None:
    pass


def offsets_of(records: Sequence[Record]) -> list[int]:
    return [record[0] for record in records]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_read_range_with_every_codec(codec: int) -> None:
    log = [make_batch(range(40), codec=codec, headers=[("a", b"1")])]
    records, _ = read(serve(log), 0, 40)
    assert records[7][:4] == (7, 1007, b"k7", b"value 7")
    assert parse_headers(records[7][4]) == [("a", b"1")]


def test_records_without_headers_share_one_object() -> None:
    records, _ = read(serve([make_batch([0, 1])]), 0, 2)
    assert all(record[4] is NO_HEADERS for record in records)


def test_edges_of_batches_are_clipped() -> None:
    log = [make_batch(range(10)), make_batch(range(10, 20))]
    records, progress = read(serve(log), 4, 15)
    assert offsets_of(records) == list(range(4, 15))
    assert progress.position == 15


def test_a_truncated_batch_at_the_end_is_fetched_again() -> None:
    log = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]
    records, _ = read(serve(log, slice_bytes=len(log[0]) + 30), 0, 50)
    assert offsets_of(records) == list(range(50))


def prefetches(fetch: Fetch, start: int, end: int) -> tuple[list[int], list[int], list[int]]:
    """The fetched offsets of a range, the prefetched offsets, and the number of fetches before the next range was
    prefetched."""
    fetched: list[int] = []
    prefetched: list[int] = []
    fetched_before_following: list[int] = []

    def recording(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        fetched.append(offset)
        return fetch(offset, bytes_max)

    read_range(
        recording,
        OffsetRange(TP, start, end),
        discard_records,
        ReadProgress(start),
        ReadOptions(
            batch_bytes_max=CAP,
            timeout_s=0.0,
            prefetch=prefetched.append,
            fetch_following=lambda: fetched_before_following.append(len(fetched)),
        ),
    )
    return fetched, prefetched, fetched_before_following


@pytest.mark.parametrize("slice_bytes", [1, 300, 301, 1000], ids=lambda size: f"{size} bytes")
@pytest.mark.parametrize(("start", "end"), [(0, 50), (3, 48), (3, 46), (5, 8)])
def test_the_next_fetch_is_prefetched_while_the_last_is_processed(slice_bytes: int, start: int, end: int) -> None:
    log = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]
    fetched, prefetched, fetched_before_following = prefetches(serve(log, slice_bytes=slice_bytes), start, end)
    assert fetched[1:] == prefetched
    assert fetched_before_following == [len(fetched)], (
        "the next range is prefetched once, after the last response of this one"
    )


def test_nothing_is_prefetched_under_a_quota() -> None:
    log = [make_batch(range(n, n + 5)) for n in range(0, 20, 5)]
    unthrottled = serve(log, slice_bytes=1)

    def throttled(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        return dataclasses.replace(unthrottled(offset, bytes_max), throttle_ms=1)

    assert prefetches(throttled, 0, 20)[1:] == ([], [])


def test_compaction_leaves_gaps_inside_between_and_after_batches() -> None:
    log = [make_batch([1, 4], base=0, next_offset=6), make_batch([9], base=9, next_offset=12), make_batch([12])]
    records, progress = read(serve(log), 0, 13)
    assert offsets_of(records) == [1, 4, 9, 12]
    assert progress.gaps == [(0, 1), (2, 4), (5, 9), (10, 12)]


def test_an_emptied_batch_is_a_gap() -> None:
    empty = reseal(bytearray(make_batch([0], next_offset=5)[:57] + b"\x00\x00\x00\x00"))
    empty = reseal(bytearray(empty[:8] + struct.pack(">i", len(empty) - 12) + empty[12:]))
    _, progress = read(serve([empty, make_batch([5])]), 0, 6)
    assert progress.gaps == [(0, 5)]


def test_aborted_transactions_are_counted_and_left_out() -> None:
    log = [
        make_batch([0, 1], producer_id=7, transactional=True),
        make_batch([2], producer_id=8, transactional=True),
        make_batch([3], producer_id=7, transactional=True, control=0),
        make_batch([4], producer_id=7, transactional=True),
        make_batch([5], producer_id=8, transactional=True, control=1),
        make_batch([6], producer_id=7, transactional=True, control=1),
    ]
    records, progress = read(serve(log, (AbortedTransaction(7, 0),)), 0, 7)
    assert offsets_of(records) == [2, 4]
    assert (progress.aborted, progress.control) == (2, 3)


def test_a_range_that_begins_inside_an_aborted_transaction() -> None:
    log = [make_batch([0, 1, 2], producer_id=7, transactional=True), make_batch([3], producer_id=7, control=0)]
    records, progress = read(serve(log, (AbortedTransaction(7, 0),)), 2, 4)
    assert (records, progress.aborted, progress.control) == ([], 1, 1)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.data(),
    st.integers(60, 400),
)
def test_every_offset_is_classified_once(widths: list[int], data: st.DataObject, slice_bytes: int) -> None:
    log, base, present = [], 0, set()
    for width in widths:
        present_offsets = data.draw(st.lists(st.integers(base, base + width - 1), unique=True, min_size=1).map(sorted))
        log.append(make_batch(present_offsets, base=base, next_offset=base + width))
        present.update(present_offsets)
        base += width
    start = data.draw(st.integers(0, base))
    end = data.draw(st.integers(start, base))
    records, progress = read(serve(log, slice_bytes=slice_bytes), start, end)
    assert offsets_of(records) == [offset for offset in range(start, end) if offset in present]
    assert all(offset not in present for lo, hi in progress.gaps for offset in range(lo, hi))


def test_a_flipped_bit_is_detected() -> None:
    batch = bytearray(make_batch(range(5)))
    batch[70] ^= 1
    with pytest.raises(CorruptBatch, match=r"\borders\b.*\b3\b.*\b0\b.*\bchecksum\b"):
        read(serve([bytes(batch)]), 0, 5)


def test_old_message_formats_are_refused() -> None:
    batch = bytearray(make_batch([0]))
    batch[16] = 1
    with pytest.raises(CorruptBatch, match=r"\bformat 1\b"):
        read(serve([bytes(batch)]), 0, 1)


def test_error_of_a_log_that_ends_before_the_range_has_the_offset() -> None:
    progress = ReadProgress(0)
    batches: list[list[Record]] = []
    with pytest.raises(KafkaUnavailable, match=r"\bb:1\b.*\borders\b.*\b3\b.*\b5\b.*\b9\b"):
        log = serve([make_batch(range(5))])
        read_range(log, OffsetRange(TP, 0, 9), batches.append, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0))
    assert progress.position == 5 and len(batches) == 1


class Script:
    """Returns responses from a list, each once and the last one forever. `requested` are the requested offsets."""

    def __init__(self, *responses: FetchSlice) -> None:
        self.responses = list(responses)
        self.requested: list[int] = []

    def __call__(self, offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        self.requested.append(offset)
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


def response(
    records: bytes = b"", high_watermark: int = 9, last_stable_offset: int = 9, throttle_ms: int = 0
) -> FetchSlice:
    return FetchSlice(records, high_watermark, last_stable_offset, 0, (), "b:1", throttle_ms)


def test_a_tail_that_compaction_emptied_is_a_gap() -> None:
    records, progress = read(serve([make_batch(range(5))], readable_end=9), 0, 9)
    assert (offsets_of(records), progress.gaps, progress.position) == (list(range(5)), [(5, 9)], 9)


def test_an_empty_log_is_confirmed_by_a_second_fetch_and_those_at_its_ends() -> None:
    script = Script(response())
    _, progress = read(script, 2, 9)
    assert (script.requested, progress.gaps) == ([2, 2, 8, 1], [(2, 9)])


@pytest.mark.parametrize(("start", "empty", "gap"), [(2, [2, 2, 8], [2, 4]), (3, [3, 3, 8, 2], [3, 4, 2])])
def test_no_offset_before_the_log_start_is_fetched(start: int, empty: list[int], gap: list[int]) -> None:
    for records, requested in ((b"", empty), (make_batch(range(5, 9)), gap)):
        script = Script(dataclasses.replace(response(records), log_start_offset=2))
        read(script, start, 9)
        assert script.requested == requested


@pytest.mark.parametrize("empty_responses", [1, 2])
def test_a_temporary_empty_response_loses_nothing(empty_responses: int) -> None:
    script = Script(*[response()] * empty_responses, response(make_batch(range(9))))
    records, progress = read(script, 0, 9, timeout_s=60)
    assert offsets_of(records) == list(range(9)) and progress.gap_offsets == 0


@pytest.mark.parametrize(("high_watermark", "last_stable_offset"), [(8, 8), (9, 8), (8, 9)])
def test_a_log_that_is_not_readable_to_the_end_of_the_range_is_not_empty(
    high_watermark: int, last_stable_offset: int
) -> None:
    with pytest.raises(KafkaUnavailable, match=rf"\b0 s\b.*\b{last_stable_offset}\b"):
        read(Script(response(b"", high_watermark, last_stable_offset)), 2, 9)


def test_throttled_empty_responses_are_no_evidence_of_an_empty_log() -> None:
    throttled = response(throttle_ms=20_000)
    script = Script(*[throttled] * 20, response(make_batch([0])), *[throttled] * 20, response(make_batch(range(1, 9))))
    records, progress = read(script, 0, 9)
    assert offsets_of(records) == list(range(9)) and progress.gap_offsets == 0


def test_a_throttled_response_does_not_confirm_an_empty_one() -> None:
    script = Script(response(), response(throttle_ms=1), response(make_batch(range(9))))
    records, _ = read(script, 0, 9, timeout_s=60)
    assert offsets_of(records) == list(range(9))


def test_endless_throttling_is_an_error() -> None:
    script = Script(response(throttle_ms=200_000))
    with pytest.raises(KafkaUnavailable, match=r"\b2\b.*\b9\b.*\b600 s\b"):
        read(script, 2, 9)
    assert script.requested == [2] * 4


def test_throttling_resets_the_timeout() -> None:
    script = Script(response(throttle_ms=60_000), response(last_stable_offset=8), response(make_batch(range(9))))
    records, _ = read(script, 0, 9)
    assert offsets_of(records) == list(range(9))


def test_an_error_of_the_second_fetch_keeps_the_first_as_prefix() -> None:
    log = [make_batch(range(5)), make_batch(range(5, 10))]
    progress = ReadProgress(0)

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        if offset:
            raise OffsetOutOfRange("deleted")
        return serve(log[:1])(offset)

    with pytest.raises(OffsetOutOfRange):
        read_range(
            fetch, OffsetRange(TP, 0, 10), discard_records, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0)
        )
    assert progress.position == 5


def test_rewind_to_removes_later_gaps() -> None:
    log = [make_batch([1], base=0, next_offset=3), make_batch([4, 6, 9], base=3, next_offset=12)]
    progress = ReadProgress(0)
    read_range(
        serve(log), OffsetRange(TP, 0, 12), discard_records, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0)
    )
    assert (progress.position, progress.gap_offsets) == (12, 8)
    progress.rewind_to(9)
    assert (progress.position, progress.gaps, progress.gap_offsets) == (9, [(0, 1), (2, 4), (5, 6), (7, 9)], 6)
    progress.rewind_to(4)
    assert (progress.position, progress.gaps, progress.gap_offsets) == (4, [(0, 1), (2, 4)], 3)


def test_nothing_is_counted_from_the_offset_at_which_the_consumer_stops() -> None:
    log = [make_batch([0, 1, 2]), make_batch([4, 6, 9], base=3, next_offset=12)]
    progress = ReadProgress(0)
    consumed: list[int] = []

    def consume(records: list[Record]) -> None:
        for record in records:
            if record[0] == 9:
                raise StopBefore(9)
            consumed.append(record[0])

    with pytest.raises(StopBefore):
        read_range(serve(log), OffsetRange(TP, 0, 12), consume, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0))
    assert consumed == [0, 1, 2, 4, 6]
    assert (progress.position, progress.gaps, progress.gap_offsets) == (9, [(3, 4), (5, 6), (7, 9)], 4)


def test_gaps_are_all_counted_and_the_first_thousand_listed() -> None:
    offsets = range(0, 5000, 2)
    _, progress = read(serve([make_batch(offsets, next_offset=5000)]), 0, 5000)
    assert progress.gap_offsets == 2500 and len(progress.gaps) == 1000


def with_base_offset(batch: bytes, base: int) -> bytes:
    """The batch with another base offset, which its checksum does not cover."""
    return struct.pack(">q", base) + batch[8:]


LOG = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]


def damaged(at: int, batch: bytes) -> list[bytes]:
    return [*LOG[:at], batch, *LOG[at + 1 :]]


@pytest.mark.parametrize(
    ("at", "base", "fault"),
    [
        (3, 17, r"\[17, 22\).*\b20\b"),
        (3, 13, r"\[10, 15\).*\b13\b"),
        (3, 2**40, r"\b20\b"),
        (3, 15 - 2**63, r"\[10, 15\).* -9223372036854775793\b"),
        (0, -(2**63), r"\[-9223372036854775808, -9223372036854775803\)"),
        (9, 2**40, r"\[1099511627776, 1099511627781\).*\b50\b"),
        (9, 41, r"\[40, 45\).*\b41\b"),
        (0, 1, r"\[1, 6\).*\b5\b"),
    ],
)
def test_a_batch_with_a_wrong_base_offset_is_corrupt_and_no_gap(at: int, base: int, fault: str) -> None:
    fetch = fetch_by_segment(damaged(at, with_base_offset(LOG[at], base)), 10)
    progress = ReadProgress(0)
    records: list[Record] = []
    with pytest.raises(CorruptBatch, match=fault):
        read_range(
            fetch, OffsetRange(TP, 0, 50), records.extend, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0)
        )
    assert progress.position == len(records) <= 5 * at
    assert offsets_of(records) == list(range(len(records))) and progress.gap_offsets == 0


def fetch_by_segment(log: Sequence[bytes], batches_per_segment: int) -> Fetch:
    """Fetches like a broker whose segments hold this number of batches of five: no response continues into the next
    segment. The broker finds the batch of an offset by position."""

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        at = min(max(offset, 0) // 5, len(log))
        return FetchSlice(
            b"".join(log[at : (at // batches_per_segment + 1) * batches_per_segment]), 50, 50, 0, (), "b:1"
        )

    return fetch


def fetch_by_batch_offsets(log: Sequence[bytes]) -> Fetch:
    """Fetches like a broker with one segment, which finds the batch of an offset by the offsets in the batches."""

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        at = next((at for at, one in enumerate(log) if struct.unpack_from(">q", one)[0] + 5 > offset), len(log))
        return FetchSlice(b"".join(log[at:]), 50, 50, 0, (), "b:1")

    return fetch


def with_flipped_bit(at: int, bit: int) -> list[bytes]:
    batch = bytearray(LOG[at])
    batch[bit // 8] ^= 1 << bit % 8
    return damaged(at, bytes(batch))


def check_reads_no_wrong_record(fetch: Fetch, start: int, end: int) -> None:
    """Checks that a range of a log without gaps, of which one batch is damaged, is read without gaps and with right
    offsets, to its end or to an error."""
    progress = ReadProgress(start)
    records: list[Record] = []
    with contextlib.suppress(CorruptBatch, KafkaUnavailable):
        read_range(
            fetch, OffsetRange(TP, start, end), records.extend, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0)
        )
    assert progress.gap_offsets == 0
    assert [(record[0], record[3]) for record in records] == [
        (offset, b"value %d" % offset) for offset in range(start, progress.position)
    ]


BITS = st.integers(0, 95)
"""The bits of the base offset and the length, which the checksum does not cover."""


@given(st.integers(0, 9), BITS, st.integers(1, 5), st.integers(0, 49), st.integers(1, 50))
@example(at=1, bit=56, batches_per_segment=5, start=5, size=45)  # states [4, 9)
@example(at=5, bit=57, batches_per_segment=1, start=0, size=27)  # states [27, 32)
def test_a_bit_flipped_in_transit_never_becomes_a_gap(
    at: int, bit: int, batches_per_segment: int, start: int, size: int
) -> None:
    fetch = fetch_by_segment(with_flipped_bit(at, bit), batches_per_segment)
    check_reads_no_wrong_record(fetch, start, min(50, start + size))


@given(st.integers(1, 9), BITS, st.integers(0, 9), st.integers(1, 50))
@example(at=1, bit=7, begins_at=1, size=45)  # the broker does not find the batch
@example(at=9, bit=7, begins_at=9, size=1)
@example(at=9, bit=7, begins_at=8, size=10)
def test_a_bit_flipped_on_the_brokers_disk_never_becomes_a_gap(at: int, bit: int, begins_at: int, size: int) -> None:
    """Of ranges that begin with a batch, as nearly all do. A range that begins inside a batch that the broker does not
    find has nothing to compare."""
    fetch = fetch_by_batch_offsets(with_flipped_bit(at, bit))
    check_reads_no_wrong_record(fetch, 5 * begins_at, min(50, 5 * begins_at + size))


def test_a_gap_at_the_start_of_a_range_is_compared_with_the_batch_before_it() -> None:
    log = [LOG[0], LOG[1], LOG[4], LOG[5]]
    _, progress = read(serve(log), 10, 30)
    assert progress.gaps == [(10, 20)]
    progress = ReadProgress(10)
    with pytest.raises(MisplacedBatch, match=r"\[20, 25\).* -9223372036854775798$"):
        read_range(
            fetch_by_batch_offsets([LOG[0], LOG[1], with_base_offset(LOG[2], 10 - 2**63), *log[2:]]),
            OffsetRange(TP, 10, 30), discard_records, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0),
        )  # fmt: skip
    assert progress.position == 10


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 5))
def test_gaps_between_segments_of_a_compacted_log_are_gaps(remaining: set[int], batches_per_segment: int) -> None:
    segments = [
        [LOG[n] for n in range(at, min(at + batches_per_segment, 10)) if n in remaining]
        for at in range(0, 10, batches_per_segment)
    ]

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        for segment in segments[min(offset // (5 * batches_per_segment), len(segments) - 1) :]:
            rest = [one for one in segment if struct.unpack_from(">q", one)[0] + 5 > offset]
            if rest:
                return FetchSlice(b"".join(rest), 50, 50, 0, (), "b:1")
        return FetchSlice(b"", 50, 50, 0, (), "b:1")

    records, progress = read(fetch, 0, 50)
    assert offsets_of(records) == [5 * n + m for n in sorted(remaining) for m in range(5)]
    assert progress.position == 50


def test_a_gap_is_confirmed_by_fetching_its_last_offset() -> None:
    batch = make_batch(range(5, 9))
    script = Script(response(batch))
    _, progress = read(script, 0, 9)
    assert (script.requested, progress.gaps) == ([0, 4], [(0, 5)])
    with pytest.raises(CorruptBatch, match=r"\b0\b"):
        read(Script(response(batch), response(make_batch(range(5)))), 0, 9)
    with pytest.raises(CorruptBatch):
        read(Script(response(batch), response()), 0, 9)
    read(Script(response(batch), response(throttle_ms=1)), 0, 9)


def test_a_batch_that_ends_before_the_requested_offset_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match=r"\[0, 5\).*\b6\b"):
        read(Script(response(make_batch(range(5)))), 6, 9)


@pytest.mark.parametrize("start", [10, 12])
def test_batches_after_an_unrequested_batch_are_read(start: int) -> None:
    misplaced = with_base_offset(LOG[2], 0) + b"".join(LOG[3:])
    with pytest.raises(MisplacedBatch, match=rf"\[0, 5\).*\b{start}\b"):
        read(Script(response(misplaced, 50, 50)), start, 50)


def test_a_batch_with_a_lower_offset_than_the_last_response_is_corrupt() -> None:
    first, second = make_batch(range(5)), make_batch(range(3, 9))
    with pytest.raises(CorruptBatch, match=r"\[0, 5\).*\b3\b"):
        read(Script(response(first), response(second)), 0, 9)
    script = Script(response(first), response(second))

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        if offset == 5 and script.requested == [0]:
            script.requested.append(offset)
            raise KafkaUnavailable("once")
        return script(offset)

    with pytest.raises(CorruptBatch, match=r"\b5\b"):
        read(fetch, 0, 9)
    assert script.requested == [0, 5, 5]


def test_prefetched_batches_are_not_fetched_again() -> None:
    script = Script(*[response(batch, 50, 50) for batch in LOG])
    records, _ = read(script, 0, 50)
    assert offsets_of(records) == list(range(50))
    assert script.requested == list(range(0, 50, 5))


@pytest.mark.parametrize("length", [5, 40])
def test_a_response_without_a_complete_batch_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptBatch, match=rf"\b0\b.*\b{length} bytes\b"):
        read(Script(response(make_batch(range(9))[:length])), 0, 9)


def of_epoch(epoch: int, batch: bytes) -> bytes:
    return batch[:12] + struct.pack(">i", epoch) + batch[16:]


def epochs_read(*epochs: int, start: int = 0, end: int = 50, leader_epoch: int = 9) -> ReadEpochs:
    log = [of_epoch(epoch, batch) for epoch, batch in zip(epochs, LOG, strict=False)]
    progress = ReadProgress(start)
    offsets = OffsetRange(TP, start, end, leader_epoch=leader_epoch)
    read_range(serve(log), offsets, discard_records, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0))
    return progress.epochs


def test_epochs_of_batches_are_returned_with_their_start_offsets() -> None:
    assert epochs_read(*[2] * 3, *[5] * 7) == ReadEpochs(((2, 0), (5, 15)), 50)
    assert epochs_read(*[2] * 3, *[5] * 7, start=7, end=18) == ReadEpochs(((2, 7), (5, 15)), 18)
    assert epochs_read(*[-1] * 10) == NO_EPOCHS
    assert epochs_read(*[0] * 10) == ReadEpochs(((0, 0),), 50)


@pytest.mark.parametrize(("leader_epoch", "epochs"), [(4, (2, 0)), (7, (7, 5))])
def test_an_impossible_epoch_is_not_recorded(leader_epoch: int, epochs: tuple[int, int]) -> None:
    """No checksum covers the epoch. A leader has no batch with a later epoch than its own, and epochs never
    decrease."""
    found = epochs_read(2, 7, *[2] * 8, leader_epoch=leader_epoch)
    assert found.starts[-1] == epochs


def test_without_a_leader_epoch_every_epoch_is_recorded() -> None:
    assert epochs_read(2, *[7] * 9, leader_epoch=-1).starts == ((2, 0), (7, 5))


def recording_skips(spans: list[CorruptSpan]) -> Callable[[CorruptSpan], SkippedOffsets]:
    def skip_corrupt(span: CorruptSpan) -> SkippedOffsets:
        spans.append(span)
        return SkippedOffsets(span.start, span.end, span.reason)

    return skip_corrupt


def flipped(batch: bytes, bit: int) -> bytes:
    data = bytearray(batch)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


@given(
    st.lists(st.lists(st.integers(0, 4), unique=True, min_size=1).map(sorted), min_size=1, max_size=6),
    st.data(),
    st.integers(60, 400),
)
def test_any_flipped_bit_loses_at_most_its_batch(
    widths: list[list[int]], data: st.DataObject, slice_bytes: int
) -> None:
    """At any position of the batch, also in fields that its checksum does not cover. The broker finds offsets by its
    own index of lengths and offsets."""
    log, base = [], 0
    for present_offsets in widths:
        log.append(
            make_batch(
                [base + offset for offset in present_offsets], base=base, next_offset=base + present_offsets[-1] + 1
            )
        )
        base += present_offsets[-1] + 1
    damaged_at = data.draw(st.integers(0, len(log) - 1))
    bit = data.draw(st.integers(0, len(log[damaged_at]) * 8 - 1))
    damaged = [*log]
    damaged[damaged_at] = flipped(log[damaged_at], bit)
    ends = [struct.unpack_from(">q", b)[0] + struct.unpack_from(">i", b, 23)[0] + 1 for b in log]

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        rest = [batch for end, batch in zip(ends, damaged, strict=True) if end > offset]
        size = max(slice_bytes if bytes_max is None else bytes_max, len(rest[0]) if rest else 0)
        return FetchSlice(b"".join(rest)[:size], base, base, 0, (), "b:1")

    expected, _ = read(serve(log), 0, base)
    start, end = ([0, *ends][damaged_at], ends[damaged_at])
    records: list[Record] = []
    spans: list[CorruptSpan] = []
    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, base)
    try:
        skip = recording_skips(spans)
        read_range(
            fetch, reader, records.extend, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=skip)
        )
    except (CorruptBatch, KafkaUnavailable):
        # If two batches overlap, the first may be the damaged one, so it is not read either.
        is_base = bit < 64
        assert ([0, 0, *ends][damaged_at] if is_base else start) <= progress.position < base
    assert [(span.start, span.end) for span in spans] in ([], [(start, end)])
    is_skipped = spans != []
    assert records == [
        record for record in expected if record[0] < progress.position and not (is_skipped and start <= record[0] < end)
    ]
    assert len(records) + progress.gap_offsets + progress.corrupt == progress.position
    assert progress.gap_offsets == sum(
        offset not in {record[0] for record in expected}
        for offset in range(progress.position)
        if not (is_skipped and start <= offset < end)
    )


def test_consecutive_corrupt_batches_are_skipped_separately() -> None:
    log = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]
    for number in (3, 4, 9):
        log[number] = flipped(log[number], 600)
    spans: list[CorruptSpan] = []
    records: list[Record] = []
    progress = ReadProgress(0)
    read_range(
        serve(log, slice_bytes=70),
        OffsetRange(TP, 0, 50),
        records.extend,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
    )
    assert [(span.start, span.end) for span in spans] == [(15, 20), (20, 25), (45, 50)]
    assert [span.batch for span in spans] == [log[3], log[4], log[9]]
    assert offsets_of(records) == [*range(15), *range(25, 45)] and progress.corrupt == 15


def test_only_offsets_of_the_range_are_skipped_for_a_corrupt_batch() -> None:
    log = [make_batch(range(5)), flipped(make_batch(range(5, 15)), 600), make_batch(range(15, 20))]
    for start, end, span in ((7, 20, (7, 15)), (0, 9, (5, 9)), (8, 10, (8, 10))):
        spans: list[CorruptSpan] = []
        progress = ReadProgress(start)
        reader = OffsetRange(TP, start, end)
        read_range(
            serve(log),
            reader,
            discard_records,
            progress,
            ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
        )
        assert [(one.start, one.end) for one in spans] == [span] and progress.position == end


def test_a_corrupt_batch_after_the_range_is_ignored() -> None:
    log = [make_batch(range(5)), flipped(make_batch(range(8, 12)), 600), make_batch([12])]
    spans: list[CorruptSpan] = []
    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, 8)
    read_range(
        serve(log),
        reader,
        discard_records,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
    )
    assert (progress.gaps, progress.position, spans) == ([(5, 8)], 8, [])


def test_a_gap_before_a_corrupt_batch_is_a_gap() -> None:
    log = [make_batch(range(5)), flipped(make_batch(range(8, 12)), 600), make_batch([12])]
    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, 13)
    read_range(
        serve(log),
        reader,
        discard_records,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips([])),
    )
    assert (progress.gaps, progress.gap_offsets, progress.corrupt) == ([(5, 8)], 3, 4)


def test_a_corrupt_batch_stops_the_range_with_the_next_offset() -> None:
    log = [make_batch(range(5)), flipped(make_batch(range(5, 15)), 600), make_batch(range(15, 20))]
    progress = ReadProgress(0)
    with pytest.raises(CorruptBatch) as stop:
        read_range(
            serve(log), OffsetRange(TP, 0, 20), discard_records, progress, ReadOptions(batch_bytes_max=CAP, timeout_s=0)
        )
    assert (progress.position, stop.value.next_offset) == (5, 15)


@pytest.mark.parametrize(
    ("behind", "high_watermark"),
    [
        (b"", 99),  # the log continues, but the response does not
        (bytes(200), 10),
        (make_batch(range(15, 20))[:100], 10),  # truncated
        (make_batch(range(3, 5)), 10),  # lower offsets
        (flipped(make_batch(range(15, 20)), 600), 10),  # corrupt too, without an intact batch after it
    ],
    ids=["nothing", "garbage", "cut", "backwards", "corrupt"],
)
def test_a_corrupt_batch_without_an_intact_next_batch_stops_the_range(behind: bytes, high_watermark: int) -> None:
    batch = flipped(make_batch(range(5, 15)), 600)

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        return FetchSlice(batch + behind, high_watermark, high_watermark, 0, (), "b:1")

    progress, spans = ReadProgress(5), []
    with pytest.raises(CorruptBatch, match="checksum") as stop:
        read_range(
            fetch,
            OffsetRange(TP, 5, 99),
            discard_records,
            progress,
            ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
        )
    assert (stop.value.next_offset, progress.position, spans) == (None, 5, [])


def test_a_corrupt_abort_marker_does_not_abort_later_records() -> None:
    """For later offsets, the broker's list of aborted transactions lacks the transaction that ended at the corrupt
    marker."""
    log = [
        make_batch([0, 1], producer_id=7, transactional=True),
        flipped(make_batch([2], producer_id=7, transactional=True, control=0), 600),
        make_batch([3, 4], producer_id=7, transactional=True),
        make_batch([5], producer_id=7, transactional=True, control=1),
    ]
    spans: list[CorruptSpan] = []
    records: list[Record] = []

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        aborted = (AbortedTransaction(7, 0),) if offset < 3 else ()
        return serve(log, aborted)(offset, bytes_max)

    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, 6)
    read_range(
        fetch,
        reader,
        records.extend,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
    )
    assert (offsets_of(records), progress.aborted, progress.control, progress.corrupt) == ([3, 4], 2, 1, 1)


def test_too_many_corrupt_batches_stop_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "CORRUPT_BATCHES_MAX", 3)
    log = [flipped(make_batch([n]), 600) if n % 2 else make_batch([n]) for n in range(12)]
    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, 12)
    with pytest.raises(CorruptBatch, match=r"\b3\b") as stop:
        read_range(
            serve(log),
            reader,
            discard_records,
            progress,
            ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips([])),
        )
    assert (progress.position, stop.value.next_offset, progress.corrupt) == (7, 8, 3)


@pytest.mark.parametrize(
    ("base_offsets", "stops_at", "reason_pattern"),
    [
        ((0, 5, 3, 15), 5, r"\[5, 10\).*\b3\b"),
        ((0, 5, 12, 15), 10, r"\[12, 17\).*\b15\b"),
        ((0, 5, 10, 1 << 40), 15, rf"\[{1 << 40}, {(1 << 40) + 5}\).*\b20\b"),
        ((-5, 5, 10, 15), 0, r"\[-5, 0\)"),
    ],
)
@pytest.mark.parametrize("slice_bytes", [60, 700])
def test_a_batch_at_an_impossible_offset_is_no_gap(
    base_offsets: Sequence[int], stops_at: int, reason_pattern: str, slice_bytes: int
) -> None:
    """The checksum does not cover the base offset, so the offset at which to continue is unknown for any policy."""
    actual_offsets = (0, 5, 10, 15)
    log = [
        struct.pack(">q", stated) + make_batch(range(base, base + 5))[8:]
        for base, stated in zip(actual_offsets, base_offsets, strict=True)
    ]

    def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        rest = log[offset // 5 :]
        return FetchSlice(b"".join(rest)[: max(bytes_max or slice_bytes, len(rest[0]))], 20, 20, 0, (), "b:1")

    progress, spans = ReadProgress(0), []
    reader = OffsetRange(TP, 0, 20)
    with pytest.raises(MisplacedBatch, match=reason_pattern) as stop:
        read_range(
            fetch,
            reader,
            discard_records,
            progress,
            ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
        )
    assert (progress.position, progress.gap_offsets, spans, stop.value.next_offset) == (stops_at, 0, [], None)


@pytest.mark.parametrize(("at", "base"), [(3, 17), (3, 13), (9, 2**40), (0, -(2**63))])
@pytest.mark.parametrize("batches_per_segment", [1, 10])
def test_an_undecodable_batch_is_skipped_only_with_a_correct_base_offset(
    at: int, base: int, batches_per_segment: int
) -> None:
    """Its checksum and number of offsets are correct, but its base offset is not."""
    large = make_batch(range(5 * at, 5 * at + 5), value=lambda offset: bytes(1000))
    for stated, is_skipped in ((5 * at, True), (base, False)):
        progress, spans = ReadProgress(0), []
        fetch = fetch_by_segment(damaged(at, with_base_offset(large, stated)), batches_per_segment)
        reader = OffsetRange(TP, 0, 50)
        try:
            read_range(
                fetch,
                reader,
                discard_records,
                progress,
                ReadOptions(batch_bytes_max=4000, timeout_s=0, skip_corrupt=recording_skips(spans)),
            )
        except MisplacedBatch:
            assert not is_skipped and spans == [] and progress.position <= 5 * at
        else:
            assert is_skipped and [(one.start, one.end) for one in spans] == [(5 * at, 5 * at + 5)]
        assert progress.gap_offsets == 0


def test_a_corrupt_batch_is_skipped_only_if_the_next_batch_is_contiguous() -> None:
    log = damaged(3, flipped(LOG[3], 600))
    for stated in (22, 24):
        log[4] = with_base_offset(LOG[4], stated)
        progress, spans = ReadProgress(0), []
        with pytest.raises(CorruptBatch, match="checksum"):
            read_range(
                serve(log),
                OffsetRange(TP, 0, 50),
                discard_records,
                progress,
                ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
            )
        assert (progress.position, spans) == (15, [])


def test_a_corrupt_batch_with_a_too_high_last_offset_is_skipped() -> None:
    """The response to a fetch of the next offset is again this batch, and fills the response again."""
    large = bytearray(make_batch(range(5, 10), value=lambda offset: bytes(1000)))
    large[26] ^= 8  # its last offset, by which brokers find batches
    log = damaged(1, bytes(large))
    progress, spans, records = ReadProgress(0), [], []
    reader = OffsetRange(TP, 0, 50)
    fetch = serve(log, slice_bytes=1000)
    read_range(
        fetch,
        reader,
        records.extend,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips(spans)),
    )
    assert [(one.start, one.end) for one in spans] == [(5, 10)]
    assert offsets_of(records) == [*range(5), *range(10, 50)]


def test_epochs_of_batches_around_a_corrupt_one_are_recorded() -> None:
    log = [of_epoch(2 if at < 4 else 3, batch) for at, batch in enumerate(damaged(3, flipped(LOG[3], 600)))]
    progress = ReadProgress(0)
    reader = OffsetRange(TP, 0, 50, leader_epoch=9)
    read_range(
        serve(log),
        reader,
        discard_records,
        progress,
        ReadOptions(batch_bytes_max=CAP, timeout_s=0, skip_corrupt=recording_skips([])),
    )
    assert progress.epochs == ReadEpochs(((2, 0), (3, 15)), 50), "the epoch of the corrupt batch is not recorded"


def test_a_log_full_of_gaps_is_read_with_any_response_size() -> None:
    log = [make_batch([n + 2], base=n + 2, next_offset=n + 3) for n in range(0, 40, 4)]
    for slice_bytes in (60, 100, 200, 5000):
        records, progress = read(serve(log, slice_bytes=slice_bytes, readable_end=45), 0, 45)
        assert offsets_of(records) == [n + 2 for n in range(0, 40, 4)] and progress.gap_offsets == 35


def test_unrequested_batches_are_skipped() -> None:
    """Brokers may begin a response before the requested offset."""
    log = [make_batch(range(n, n + 5)) for n in range(0, 20, 5)]
    records, _ = read(lambda offset, bytes_max=None, /: serve(log)(0), 12, 20)
    assert offsets_of(records) == list(range(12, 20))
