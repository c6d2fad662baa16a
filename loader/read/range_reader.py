"""One range of a partition: raw record batches in, records out in offset order, and every offset accounted for.

What lies outside the range `[start, end)` is dropped, since fetches are aligned to batches and ranges are not. Every
offset of the range is one of: a data record, a transaction marker (control), a record of an aborted transaction, a
gap that compaction or deletion left, or of a corrupt batch that is passed over. Whatever is handed on is in offset
order and without holes that are not counted, so that a range that stops in the middle leaves a prefix that is whole.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.kafka_wire.cluster import AbortedTransaction, FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaUnavailable, MisplacedBatch
from headrace.kafka_wire.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    Batch,
    Record,
    RecordParser,
    end_of_batches,
    read_batch,
    split_batches,
)
from headrace.loader.epochs import NOTHING_READ, ReadEpochs
from headrace.loader.read.surroundings import LOOK_BEHIND_BYTES, CorruptSpan, Fetch, Surroundings
from headrace.loader.work_unit import OffsetRange, SkippedOffsets

ABORT_MARKER = 0

GAPS_LISTED_MAX = 1_000  # of one range: enough to see where, and small enough for a commit
PASSED_OVER_MAX = 100  # corrupt batches in one range: more are no accident but a disk to look at
EPOCH_MAX = (1 << 31) - 1
THROTTLED_S_MAX = 600.0  # without a record in between: a quota is counted over seconds, so this is none


class BatchKind(StrEnum):
    DATA = "data"
    CONTROL = "control"
    ABORTED = "aborted"


@dataclass(slots=True)
class Tally:
    """What the offsets read so far were; data records only up to now, since the caller decides what becomes of them.

    `gap_offsets` counts all offsets that the log no longer holds. `gaps` lists where they are, the first
    `GAPS_LISTED_MAX` of them: a compacted topic has one behind every other record. `epochs` are those of the batches.
    """

    position: int
    control: int = 0
    aborted: int = 0
    gap_offsets: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    skipped: list[SkippedOffsets] = field(default_factory=list)
    bytes_read: int = 0
    epochs: ReadEpochs = NOTHING_READ
    _mark: tuple[int, int, list[tuple[int, int]]] = (0, 0, [])
    _marked: Sequence[Record] = ()

    def skip_to(self, offset: int) -> None:
        """Counts what lies between the position and `offset` as a gap."""
        if offset <= self.position:
            return
        self.gap_offsets += offset - self.position
        if self.gaps and self.gaps[-1][1] == self.position:
            self.gaps[-1] = (self.gaps[-1][0], offset)
        elif len(self.gaps) < GAPS_LISTED_MAX:
            self.gaps.append((self.position, offset))
        self.position = offset

    def note_epoch(self, batch: Batch, end: int) -> None:
        """Takes note of the epoch of a batch that is about to be booked up to `end`; epochs never go back."""
        last = self.epochs.starts[-1][0] if self.epochs.starts else 0
        if batch.leader_epoch >= last:
            read = ReadEpochs(((batch.leader_epoch, self.position),), min(batch.next_offset, end))
            self.epochs = self.epochs.then(read)

    @property
    def corrupt(self) -> int:
        return sum(one.end - one.start for one in self.skipped)

    def pass_corrupt(self, one: SkippedOffsets) -> None:
        """Moves the position, which must be where it begins, behind a batch that cannot be read."""
        assert one.start == self.position, (one, self.position)
        self.skipped.append(one)
        self.position = one.end

    def pass_over(self, records: Sequence[Record]) -> None:
        """Moves the position behind records, counting the gaps between them."""
        for record in records:
            self.skip_to(record[0])
            self.position = record[0] + 1

    def mark(self, records: Sequence[Record]) -> None:
        """Remembers the state before `records` are booked, for `cut_to`."""
        self._mark = (self.position, self.gap_offsets, self.gaps[-1:])
        self._marked = records

    def cut_to(self, offset: int) -> None:
        """Takes back what was booked from `offset` on, which must be one of the last records handed out."""
        start, self.gap_offsets, last = self._mark
        self.gaps = [gap for gap in self.gaps if gap[0] < start]
        if last:
            self.gaps[-1:] = last
        self.position = start
        self.pass_over([record for record in self._marked if record[0] < offset])
        self.skip_to(offset)


class TransactionFilter:
    """Tells the batches of aborted transactions, from the list that came with one fetch.

    A transaction is aborted from its first offset until its abort marker; the list is in order of first offsets.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def kind(self, batch: Batch) -> BatchKind:
        """The kind of a batch; batches must come in offset order."""
        while self._waiting and self._waiting[-1].first_offset < batch.next_offset:
            self._aborting.add(self._waiting.pop().producer_id)
        if batch.attributes & CONTROL:
            if _marker_type(batch) == ABORT_MARKER:
                self._aborting.discard(batch.producer_id)
            return BatchKind.CONTROL
        if batch.attributes & TRANSACTIONAL and batch.producer_id in self._aborting:
            return BatchKind.ABORTED
        return BatchKind.DATA


class StopBefore(Exception):
    """Raised by whoever takes the records: nothing from `offset` on, which is one of them, shall count as read."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"nothing from offset {offset} on counts as read")
        self.offset = offset


def read_range(
    fetch: Fetch,
    offsets: OffsetRange,
    take: Callable[[Sequence[Record]], None],
    tally: Tally,
    *,
    batch_bytes_max: int,
    patience_s: float,
    pass_over: Callable[[CorruptSpan], SkippedOffsets] | None = None,
    record_parser: RecordParser | None = None,
    prefetch: Callable[[int], None] | None = None,
    fetch_following: Callable[[], None] | None = None,
) -> None:
    """Hands the data records of a range on, in order and batch by batch, and keeps `tally` up to date.

    When a batch is handed on everything before `tally.position` is booked; an error leaves the position at the first
    offset that was not. A range whose tail the log no longer holds ends with a gap.

    Args:
        take: is given the records of each batch; may raise `StopBefore`, which then leaves here.
        batch_bytes_max: a batch that unfolds to more is refused.
        patience_s: how long answers without news are borne before the log is called short; throttled ones say nothing.
        pass_over: is told of each batch that cannot be read before its offsets are passed over; None stops there.
        record_parser: takes the records of a batch out of its payload; None for the way of `kafka_wire`.
        prefetch: is told from which offset on the next fetch will be, mostly, while what came is worked on.
        fetch_following: is called, mostly, when the last of the range has come and before it is worked on: whoever
            reads another range next may ask for that now.

    Raises:
        MisplacedBatch: a batch that is not where it says it is.
        CorruptBatch: bytes that are not the batch they claim to be, which `pass_over` does not want, or behind which
            nobody can tell where to go on; the tally stands before them.
        KafkaUnavailable: the log ends before the range does, or the broker throttles without end.
        KafkaError: whatever `fetch` raises.
    """
    topic_partition = offsets.topic_partition
    start = tally.position
    newest_epoch = offsets.leader_epoch if offsets.leader_epoch >= 0 else EPOCH_MAX
    silent_since = time.monotonic()
    throttled_s = 0.0
    ahead: FetchSlice | None = None
    bytes_max: int | None = None
    passed: set[int] = set()
    while tally.position < offsets.end:
        before = tally.position
        piece = ahead or fetch(before, bytes_max)
        tally.bytes_read += len(piece.records)
        where = f"broker {piece.broker}, topic {topic_partition.topic} partition {topic_partition.partition}"
        transactions = TransactionFilter(piece.aborted)
        place = Surroundings(piece, before, where, fetch, start=start, end=offsets.end)
        bytes_max = None
        if prefetch is not None and not piece.throttle_ms:
            # A wrong guess, by headers that nobody has checked, costs that answer.
            following = end_of_batches(piece.records)
            if following is not None and before < following < offsets.end:
                prefetch(following)
            elif following is not None and following >= offsets.end and fetch_following is not None:
                fetch_following()
        for frame in split_batches(piece.records, where):
            try:
                batch = read_batch(frame, where, batch_bytes_max, record_parser)
            except MisplacedBatch:
                # Its own word is all that says where the log goes on, so that no policy can pass over it.
                raise
            except CorruptBatch as error:
                if frame.base_offset in passed:
                    continue  # the broker found the next offset in it
                if error.next_offset is None or place.is_known(frame, error.next_offset, tally.position):
                    _pass_corrupt(error, place.span_of(error, frame, tally.position, offsets.end), tally, pass_over)
                    passed.add(frame.base_offset)
                    # The next answer may begin with it again, and is to show what stands behind it too.
                    bytes_max = len(frame.view) + LOOK_BEHIND_BYTES[-1]
                # The list of aborted transactions may have counted on a marker in it; one from here on does not.
                break
            if not place.is_known(frame, batch.next_offset, tally.position):
                break
            kind = transactions.kind(batch)
            if batch.next_offset <= tally.position:
                continue
            if batch.leader_epoch <= newest_epoch:
                tally.note_epoch(batch, offsets.end)
            records = _book(batch, kind, offsets.end, tally)
            if records:
                try:
                    take(records)
                except StopBefore as stop:
                    tally.cut_to(stop.offset)
                    raise
            if tally.position >= offsets.end:
                return
        ahead = place.ahead
        if piece.records and tally.position == before:
            # Brokers send the first batch whole, whatever its size.
            raise CorruptBatch(f"{where} offset {before}: no whole batch in an answer of {len(piece.records)} bytes")
        if tally.position > before:
            silent_since, throttled_s = time.monotonic(), 0.0
        elif _says_nothing_is_left(piece, offsets.end) and all(
            # The answer of one moment loses no record. The last offset is asked for too, since it may lie elsewhere:
            # a broker with tiered storage answers so while its remote store is slow.
            _says_nothing_is_left(fetch(offset), offsets.end)
            for offset in (before, offsets.end - 1)
        ):
            tally.skip_to(offsets.end)
        elif piece.throttle_ms and throttled_s < THROTTLED_S_MAX:
            throttled_s += piece.throttle_ms / 1000
            silent_since = time.monotonic() + piece.throttle_ms / 1000
        elif piece.throttle_ms or time.monotonic() - silent_since >= patience_s:
            why = f"throttled for {throttled_s:.0f} s" if piece.throttle_ms else f"for {patience_s:.0f} s"
            raise KafkaUnavailable(
                f"{where} offset {before}: the range ends at {offsets.end} but nothing came, {why}; "
                f"the broker's readable end is {piece.last_stable_offset}"
            )


def _pass_corrupt(
    error: CorruptBatch, span: CorruptSpan, tally: Tally, pass_over: Callable[[CorruptSpan], SkippedOffsets] | None
) -> None:
    """Books the offsets of a batch that cannot be read, if they are to be passed over.

    Raises:
        CorruptBatch: they are not, or too many were.
    """
    if pass_over is None:
        raise CorruptBatch(str(error), span.next_offset) from error
    if len(tally.skipped) >= PASSED_OVER_MAX:
        more = f"{error}; one of more than {PASSED_OVER_MAX} such batches that this load met there"
        raise CorruptBatch(more, span.next_offset) from error
    tally.skip_to(span.start)
    if span.start < span.end:
        tally.pass_corrupt(pass_over(span))


def _says_nothing_is_left(piece: FetchSlice, end: int) -> bool:
    """Whether an answer says that the log is readable up to `end` and holds no batch there: compaction took them all.

    A throttled answer is empty whatever the log holds, and a log that ends before `end` may have lost its records.
    """
    return not piece.records and not piece.throttle_ms and min(piece.last_stable_offset, piece.high_watermark) >= end


def _marker_type(batch: Batch) -> int:
    """0 abort, 1 commit; others, and markers that compaction emptied, end no aborted transaction."""
    key = batch.records[0][2] if batch.records else None
    return struct.unpack_from(">hh", key)[1] if key is not None and len(key) >= 4 else -1


def _book(batch: Batch, kind: BatchKind, end: int, tally: Tally) -> Sequence[Record]:
    """Books what of one batch lies inside `[tally.position, end)` and returns its data records."""
    start = tally.position
    records = batch.records
    if records and (records[0][0] < start or records[-1][0] >= end):
        records = [record for record in records if start <= record[0] < end]
    tally.mark(records)
    if records and records[0][0] == start and records[-1][0] - start == len(records) - 1:
        tally.position = start + len(records)
    else:
        tally.pass_over(records)
    tally.skip_to(min(batch.next_offset, end))
    if kind is BatchKind.CONTROL:
        tally.control += len(records)
    elif kind is BatchKind.ABORTED:
        tally.aborted += len(records)
    return records if kind is BatchKind.DATA else []
