"""Raw batches to classified records: every offset of a range is accounted for, whatever the log looks like."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka_wire.cluster import AbortedTransaction, FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaUnavailable, OffsetOutOfRange
from headrace.kafka_wire.record_batch import NO_HEADERS, Record, headers_of
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.epochs import NOTHING_READ, ReadEpochs
from headrace.loader.read.range_reader import StopBefore, Tally, read_range
from headrace.loader.work_unit import OffsetRange
from record_batches import make_batch, reseal

TP = TopicPartition("orders", 3)
CAP = 1 << 24


def serve(
    log: Sequence[bytes],
    aborted: tuple[AbortedTransaction, ...] = (),
    slice_bytes: int = 1 << 30,
    readable_end: int | None = None,
) -> Callable[[int], FetchSlice]:
    """Fetches like a broker: from the batch that holds the offset on, cut at `slice_bytes` but for the first.

    The log is readable to the end of its last batch, or up to `readable_end` when compaction took the last ones.
    """
    spans = [(struct.unpack_from(">q", b)[0] + struct.unpack_from(">i", b, 23)[0] + 1, b) for b in log]
    end = spans[-1][0] if readable_end is None else readable_end

    def fetch(offset: int) -> FetchSlice:
        rest = [batch for end, batch in spans if end > offset]
        data = b"".join(rest)
        return FetchSlice(data[: max(slice_bytes, len(rest[0]) if rest else 0)], end, end, 0, aborted, "b:1")

    return fetch


def read(
    fetch: Callable[[int], FetchSlice], start: int, end: int, patience_s: float = 0.0
) -> tuple[list[Record], Tally]:
    tally = Tally(start)
    records: list[Record] = []
    read_range(fetch, OffsetRange(TP, start, end), records.extend, tally, batch_bytes_max=CAP, patience_s=patience_s)
    assert len(records) + tally.control + tally.aborted + tally.gap_offsets == end - start
    return records, tally


def ignored(records: list[Record]) -> None:
    pass


def offsets_of(records: Sequence[Record]) -> list[int]:
    return [record[0] for record in records]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_codec(codec: int) -> None:
    log = [make_batch(range(40), codec=codec, headers=[("a", b"1")])]
    records, _ = read(serve(log), 0, 40)
    assert records[7][:4] == (7, 1007, b"k7", b"value 7")
    assert headers_of(records[7][4]) == [("a", b"1")]


def test_records_without_headers_share_one_object() -> None:
    records, _ = read(serve([make_batch([0, 1])]), 0, 2)
    assert all(record[4] is NO_HEADERS for record in records)


def test_edges_of_batches_are_clipped() -> None:
    log = [make_batch(range(10)), make_batch(range(10, 20))]
    records, tally = read(serve(log), 4, 15)
    assert offsets_of(records) == list(range(4, 15))
    assert tally.position == 15


def test_a_cut_batch_at_the_end_is_fetched_again() -> None:
    log = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]
    records, _ = read(serve(log, slice_bytes=len(log[0]) + 30), 0, 50)
    assert offsets_of(records) == list(range(50))


def test_compaction_leaves_gaps_inside_between_and_after_batches() -> None:
    log = [make_batch([1, 4], base=0, next_offset=6), make_batch([9], base=9, next_offset=12), make_batch([12])]
    records, tally = read(serve(log), 0, 13)
    assert offsets_of(records) == [1, 4, 9, 12]
    assert tally.gaps == [(0, 1), (2, 4), (5, 9), (10, 12)]


def test_an_emptied_batch_is_a_gap() -> None:
    empty = reseal(bytearray(make_batch([0], next_offset=5)[:57] + b"\x00\x00\x00\x00"))
    empty = reseal(bytearray(empty[:8] + struct.pack(">i", len(empty) - 12) + empty[12:]))
    _, tally = read(serve([empty, make_batch([5])]), 0, 6)
    assert tally.gaps == [(0, 5)]


def test_aborted_transactions_are_counted_and_left_out() -> None:
    log = [
        make_batch([0, 1], producer_id=7, transactional=True),
        make_batch([2], producer_id=8, transactional=True),
        make_batch([3], producer_id=7, transactional=True, control=0),
        make_batch([4], producer_id=7, transactional=True),
        make_batch([5], producer_id=8, transactional=True, control=1),
        make_batch([6], producer_id=7, transactional=True, control=1),
    ]
    records, tally = read(serve(log, (AbortedTransaction(7, 0),)), 0, 7)
    assert offsets_of(records) == [2, 4]
    assert (tally.aborted, tally.control) == (2, 3)


def test_a_range_that_begins_inside_an_aborted_transaction() -> None:
    log = [make_batch([0, 1, 2], producer_id=7, transactional=True), make_batch([3], producer_id=7, control=0)]
    records, tally = read(serve(log, (AbortedTransaction(7, 0),)), 2, 4)
    assert (records, tally.aborted, tally.control) == ([], 1, 1)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.data(),
    st.integers(60, 400),
)
def test_every_offset_is_one_thing(widths: list[int], data: st.DataObject, slice_bytes: int) -> None:
    log, base, present = [], 0, set()
    for width in widths:
        kept = data.draw(st.lists(st.integers(base, base + width - 1), unique=True, min_size=1).map(sorted))
        log.append(make_batch(kept, base=base, next_offset=base + width))
        present.update(kept)
        base += width
    start = data.draw(st.integers(0, base))
    end = data.draw(st.integers(start, base))
    records, tally = read(serve(log, slice_bytes=slice_bytes), start, end)
    assert offsets_of(records) == [offset for offset in range(start, end) if offset in present]
    assert all(offset not in present for lo, hi in tally.gaps for offset in range(lo, hi))


def test_a_flipped_bit_is_found() -> None:
    batch = bytearray(make_batch(range(5)))
    batch[70] ^= 1
    with pytest.raises(CorruptBatch, match="topic orders partition 3 offset 0: the checksum"):
        read(serve([bytes(batch)]), 0, 5)


def test_old_message_formats_are_refused_by_name() -> None:
    batch = bytearray(make_batch([0]))
    batch[16] = 1
    with pytest.raises(CorruptBatch, match="message format 1 is older"):
        read(serve([bytes(batch)]), 0, 1)


def test_a_log_that_ends_before_the_range_is_an_error_that_says_where() -> None:
    tally = Tally(0)
    pieces: list[list[Record]] = []
    with pytest.raises(KafkaUnavailable, match=r"broker b:1, topic orders partition 3 offset 5: the range ends at 9"):
        log = serve([make_batch(range(5))])
        read_range(log, OffsetRange(TP, 0, 9), pieces.append, tally, batch_bytes_max=CAP, patience_s=0)
    assert tally.position == 5 and len(pieces) == 1


class Script:
    """Answers fetches from a list, each entry once and the last for ever; `asked` are the offsets."""

    def __init__(self, *answers: FetchSlice) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def __call__(self, offset: int) -> FetchSlice:
        self.asked.append(offset)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def answer(
    records: bytes = b"", high_watermark: int = 9, last_stable_offset: int = 9, throttle_ms: int = 0
) -> FetchSlice:
    return FetchSlice(records, high_watermark, last_stable_offset, 0, (), "b:1", throttle_ms)


def test_a_tail_that_compaction_emptied_is_a_gap() -> None:
    records, tally = read(serve([make_batch(range(5))], readable_end=9), 0, 9)
    assert (offsets_of(records), tally.gaps, tally.position) == (list(range(5)), [(5, 9)], 9)


def test_a_log_is_believed_to_be_empty_when_it_says_so_again_and_at_its_end() -> None:
    script = Script(answer())
    _, tally = read(script, 2, 9)
    assert (script.asked, tally.gaps) == ([2, 2, 8], [(2, 9)])


@pytest.mark.parametrize("silent", [1, 2])
def test_an_empty_answer_of_one_moment_loses_nothing(silent: int) -> None:
    script = Script(*[answer()] * silent, answer(make_batch(range(9))))
    records, tally = read(script, 0, 9, patience_s=60)
    assert offsets_of(records) == list(range(9)) and tally.gap_offsets == 0


@pytest.mark.parametrize(("high_watermark", "last_stable_offset"), [(8, 8), (9, 8), (8, 9)])
def test_a_log_that_is_not_readable_to_the_end_of_the_range_is_not_empty(
    high_watermark: int, last_stable_offset: int
) -> None:
    with pytest.raises(KafkaUnavailable, match=f"nothing came, for 0 s; .* readable end is {last_stable_offset}"):
        read(Script(answer(b"", high_watermark, last_stable_offset)), 2, 9)


def test_throttled_answers_are_waited_out_and_say_nothing_of_the_log() -> None:
    throttled = answer(throttle_ms=20_000)
    script = Script(*[throttled] * 20, answer(make_batch([0])), *[throttled] * 20, answer(make_batch(range(1, 9))))
    records, tally = read(script, 0, 9)
    assert offsets_of(records) == list(range(9)) and tally.gap_offsets == 0


def test_a_throttled_answer_confirms_no_empty_one() -> None:
    script = Script(answer(), answer(throttle_ms=1), answer(make_batch(range(9))))
    records, _ = read(script, 0, 9, patience_s=60)
    assert offsets_of(records) == list(range(9))


def test_a_broker_that_throttles_without_end_is_an_error() -> None:
    script = Script(answer(throttle_ms=200_000))
    with pytest.raises(KafkaUnavailable, match="offset 2: the range ends at 9 but nothing came, throttled for 600 s"):
        read(script, 2, 9)
    assert script.asked == [2] * 4


def test_a_broker_that_throttled_has_all_patience_again() -> None:
    script = Script(answer(throttle_ms=60_000), answer(last_stable_offset=8), answer(make_batch(range(9))))
    records, _ = read(script, 0, 9)
    assert offsets_of(records) == list(range(9))


def test_an_error_of_the_second_fetch_leaves_the_first_as_prefix() -> None:
    log = [make_batch(range(5)), make_batch(range(5, 10))]
    tally = Tally(0)

    def fetch(offset: int) -> FetchSlice:
        if offset:
            raise OffsetOutOfRange("gone")
        return serve(log[:1])(offset)

    with pytest.raises(OffsetOutOfRange):
        read_range(fetch, OffsetRange(TP, 0, 10), ignored, tally, batch_bytes_max=CAP, patience_s=0)
    assert tally.position == 5


def test_cutting_a_tally_takes_later_gaps_back() -> None:
    log = [make_batch([1], base=0, next_offset=3), make_batch([4, 6, 9], base=3, next_offset=12)]
    tally = Tally(0)
    read_range(serve(log), OffsetRange(TP, 0, 12), ignored, tally, batch_bytes_max=CAP, patience_s=0)
    assert (tally.position, tally.gap_offsets) == (12, 8)
    tally.cut_to(9)
    assert (tally.position, tally.gaps, tally.gap_offsets) == (9, [(0, 1), (2, 4), (5, 6), (7, 9)], 6)
    tally.cut_to(4)
    assert (tally.position, tally.gaps, tally.gap_offsets) == (4, [(0, 1), (2, 4)], 3)


def test_nothing_counts_from_where_the_taker_stops() -> None:
    log = [make_batch([0, 1, 2]), make_batch([4, 6, 9], base=3, next_offset=12)]
    tally = Tally(0)
    taken: list[int] = []

    def take(records: list[Record]) -> None:
        for record in records:
            if record[0] == 9:
                raise StopBefore(9)
            taken.append(record[0])

    with pytest.raises(StopBefore):
        read_range(serve(log), OffsetRange(TP, 0, 12), take, tally, batch_bytes_max=CAP, patience_s=0)
    assert taken == [0, 1, 2, 4, 6]
    assert (tally.position, tally.gaps, tally.gap_offsets) == (9, [(3, 4), (5, 6), (7, 9)], 4)


def test_gaps_are_all_counted_and_the_first_thousand_listed() -> None:
    offsets = range(0, 5000, 2)
    _, tally = read(serve([make_batch(offsets, next_offset=5000)]), 0, 5000)
    assert tally.gap_offsets == 2500 and len(tally.gaps) == 1000


def moved(batch: bytes, base: int) -> bytes:
    """The batch with another offset in front, which its checksum does not cover."""
    return struct.pack(">q", base) + batch[8:]


LOG = [make_batch(range(n, n + 5)) for n in range(0, 50, 5)]


def damaged(at: int, batch: bytes) -> list[bytes]:
    return [*LOG[:at], batch, *LOG[at + 1 :]]


@pytest.mark.parametrize(
    ("at", "base", "fault"),
    [
        (3, 17, r"the batch takes the offsets \[17, 22\), and the next one begins at 20"),
        (3, 13, r"the batch takes the offsets \[10, 15\), and the next one begins at 13"),
        (3, 2**40, "and the next one begins at 20"),
        (3, 15 - 2**63, r"the batch takes the offsets \[10, 15\), and the next one begins at -9223372036854775793"),
        (0, -(2**63), r"a batch cannot take the offsets \[-9223372036854775808, -9223372036854775803\)"),
        (9, 2**40, r"a batch takes the offsets \[1099511627776, 1099511627781\), but the log is readable to 50"),
        (9, 41, r"the batch takes the offsets \[40, 45\), and the next one begins at 41"),
        (0, 1, r"the batch takes the offsets \[1, 6\), and the next one begins at 5"),
    ],
)
def test_a_batch_that_is_not_where_it_says_is_corrupt_and_no_gap(at: int, base: int, fault: str) -> None:
    fetch = in_segments(damaged(at, moved(LOG[at], base)), 10)
    tally = Tally(0)
    taken: list[Record] = []
    with pytest.raises(CorruptBatch, match=fault):
        read_range(fetch, OffsetRange(TP, 0, 50), taken.extend, tally, batch_bytes_max=CAP, patience_s=0)
    assert tally.position == len(taken) <= 5 * at
    assert offsets_of(taken) == list(range(len(taken))) and tally.gap_offsets == 0


def in_segments(log: Sequence[bytes], batches_each: int) -> Callable[[int], FetchSlice]:
    """Fetches like a broker whose segments hold so many batches of five: no answer goes on into the next segment. What
    an offset is in is found by its place."""

    def fetch(offset: int) -> FetchSlice:
        at = min(max(offset, 0) // 5, len(log))
        return FetchSlice(b"".join(log[at : (at // batches_each + 1) * batches_each]), 50, 50, 0, (), "b:1")

    return fetch


def by_their_word(log: Sequence[bytes]) -> Callable[[int], FetchSlice]:
    """Likewise, but in one segment, and found by what the batches say of themselves."""

    def fetch(offset: int) -> FetchSlice:
        at = next((at for at, one in enumerate(log) if struct.unpack_from(">q", one)[0] + 5 > offset), len(log))
        return FetchSlice(b"".join(log[at:]), 50, 50, 0, (), "b:1")

    return fetch


def with_flipped_bit(at: int, bit: int) -> list[bytes]:
    batch = bytearray(LOG[at])
    batch[bit // 8] ^= 1 << bit % 8
    return damaged(at, bytes(batch))


def check_that_nothing_wrong_is_read(fetch: Callable[[int], FetchSlice]) -> None:
    tally = Tally(0)
    taken: list[Record] = []
    with pytest.raises((CorruptBatch, KafkaUnavailable)):
        read_range(fetch, OffsetRange(TP, 0, 50), taken.extend, tally, batch_bytes_max=CAP, patience_s=0)
    assert tally.gap_offsets == 0
    assert [(record[0], record[3]) for record in taken] == [
        (offset, b"value %d" % offset) for offset in range(tally.position)
    ]


BITS = st.integers(0, 95)
"""Of the base offset and the length, which lie before what the checksum covers."""


@given(st.integers(0, 9), BITS, st.integers(1, 5))
def test_a_bit_flipped_on_its_way_never_becomes_a_gap(at: int, bit: int, each: int) -> None:
    check_that_nothing_wrong_is_read(in_segments(with_flipped_bit(at, bit), each))


@given(st.integers(1, 9), BITS)
def test_a_bit_flipped_on_the_brokers_disk_never_becomes_a_gap(at: int, bit: int) -> None:
    check_that_nothing_wrong_is_read(by_their_word(with_flipped_bit(at, bit)))


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 5))
def test_gaps_of_a_compacted_log_are_gaps_also_between_segments(left: set[int], each: int) -> None:
    segments = [[LOG[n] for n in range(at, min(at + each, 10)) if n in left] for at in range(0, 10, each)]

    def fetch(offset: int) -> FetchSlice:
        for segment in segments[min(offset // (5 * each), len(segments) - 1) :]:
            rest = [one for one in segment if struct.unpack_from(">q", one)[0] + 5 > offset]
            if rest:
                return FetchSlice(b"".join(rest), 50, 50, 0, (), "b:1")
        return FetchSlice(b"", 50, 50, 0, (), "b:1")

    records, tally = read(fetch, 0, 50)
    assert offsets_of(records) == [5 * n + m for n in sorted(left) for m in range(5)]
    assert tally.position == 50


def test_a_gap_is_believed_when_the_offset_before_its_end_is_not_there_either() -> None:
    batch = make_batch(range(5, 9))
    script = Script(answer(batch))
    _, tally = read(script, 0, 9)
    assert (script.asked, tally.gaps) == ([0, 4], [(0, 5)])
    with pytest.raises(CorruptBatch, match="the log holds another batch before it, although 0 was due"):
        read(Script(answer(batch), answer(make_batch(range(5)))), 0, 9)
    with pytest.raises(CorruptBatch, match="the log holds another batch before it"):
        read(Script(answer(batch), answer()), 0, 9)
    read(Script(answer(batch), answer(throttle_ms=1)), 0, 9)


def test_a_batch_that_ends_before_what_was_asked_for_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match=r"takes the offsets \[0, 5\), but offset 6 was due"):
        read(Script(answer(make_batch(range(5)))), 6, 9)


def test_a_batch_that_goes_back_behind_one_of_another_answer_is_corrupt() -> None:
    first, second = make_batch(range(5)), make_batch(range(3, 9))
    with pytest.raises(CorruptBatch, match=r"takes the offsets \[0, 5\), but the next one begins at 3"):
        read(Script(answer(first), answer(second)), 0, 9)
    script = Script(answer(first), answer(second))

    def fetch(offset: int) -> FetchSlice:
        if offset == 5 and script.asked == [0]:
            script.asked.append(offset)
            raise KafkaUnavailable("once")
        return script(offset)

    with pytest.raises(CorruptBatch, match="but the batch before it ended at 5"):
        read(fetch, 0, 9)
    assert script.asked == [0, 5, 5]


def test_what_was_fetched_ahead_is_not_fetched_again() -> None:
    script = Script(*[answer(batch, 50, 50) for batch in LOG])
    records, _ = read(script, 0, 50)
    assert offsets_of(records) == list(range(50))
    assert script.asked == list(range(0, 50, 5))


@pytest.mark.parametrize("length", [5, 40])
def test_an_answer_without_a_whole_batch_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptBatch, match=f"offset 0: no whole batch in an answer of {length} bytes"):
        read(Script(answer(make_batch(range(9))[:length])), 0, 9)


def of_epoch(epoch: int, batch: bytes) -> bytes:
    return batch[:12] + struct.pack(">i", epoch) + batch[16:]


def epochs_read(*epochs: int, start: int = 0, end: int = 50, leader_epoch: int = 9) -> ReadEpochs:
    log = [of_epoch(epoch, batch) for epoch, batch in zip(epochs, LOG, strict=False)]
    tally = Tally(start)
    offsets = OffsetRange(TP, start, end, leader_epoch=leader_epoch)
    read_range(serve(log), offsets, ignored, tally, batch_bytes_max=CAP, patience_s=0)
    return tally.epochs


def test_the_epochs_of_the_batches_are_told_with_where_they_begin() -> None:
    assert epochs_read(*[2] * 3, *[5] * 7) == ReadEpochs(((2, 0), (5, 15)), 50)
    assert epochs_read(*[2] * 3, *[5] * 7, start=7, end=18) == ReadEpochs(((2, 7), (5, 15)), 18)
    assert epochs_read(*[-1] * 10) == NOTHING_READ
    assert epochs_read(*[0] * 10) == ReadEpochs(((0, 0),), 50)


@pytest.mark.parametrize(("leader_epoch", "epochs"), [(4, (2, 0)), (7, (7, 5))])
def test_an_epoch_that_cannot_be_is_not_remembered(leader_epoch: int, epochs: tuple[int, int]) -> None:
    """No checksum covers it either. A leader has no batch of a later epoch than its own, and none goes back."""
    found = epochs_read(2, 7, *[2] * 8, leader_epoch=leader_epoch)
    assert found.starts[-1] == epochs


def test_without_the_leaders_epoch_every_one_is_remembered() -> None:
    assert epochs_read(2, *[7] * 9, leader_epoch=-1).starts == ((2, 0), (7, 5))
