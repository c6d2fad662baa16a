"""Reads one range of a partition: raw record batches in, records out in offset order, with every offset accounted for.

Offsets outside of `[start, end)` are dropped, because fetches return whole batches. Every offset of the range is one
of: a data record, a transaction marker (control), a record of an aborted transaction, a gap (usually left by
compaction), or part of a skipped corrupt batch. Offsets are processed in order, so after an error in the middle
everything before `progress.position` is complete.
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
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.read.batch_neighbors import LOOKAHEAD_BYTES, BatchNeighbors, CorruptSpan, Fetch, check_empty_tail
from headrace.loader.work_unit import OffsetRange, SkippedOffsets

ABORT_MARKER = 0

GAPS_LISTED_MAX = 1_000  # per range; limits the size of a commit
CORRUPT_BATCHES_MAX = 100  # corrupt batches per range; more indicate a failing disk
EPOCH_MAX = (1 << 31) - 1
THROTTLED_S_MAX = 600.0  # without a record; quotas are measured over seconds, so a longer delay is no quota


class BatchKind(StrEnum):
    DATA = "data"
    CONTROL = "control"
    ABORTED = "aborted"


@dataclass(slots=True)
class ReadProgress:
    """The offsets read so far, counted by kind. `position` is the next offset to read.

    `gap_offsets` counts all offsets that the log no longer holds. `gaps` lists only the first `GAPS_LISTED_MAX` ranges
    of them, since a compacted topic may have a gap after every other record. `epochs` are the leader epochs of the
    batches. The records of the newest batch are referenced until the next batch, so that the count can be undone from
    one of them on.
    """

    position: int
    control: int = 0
    aborted: int = 0
    gap_offsets: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    skipped: list[SkippedOffsets] = field(default_factory=list)
    bytes_read: int = 0
    epochs: ReadEpochs = NO_EPOCHS
    _mark: tuple[int, int, list[tuple[int, int]]] = (0, 0, [])
    _marked: Sequence[Record] = ()

    def skip_to(self, offset: int) -> None:
        """Counts the offsets from the present position to `offset` as a gap, and moves the position there."""
        if offset <= self.position:
            return
        self.gap_offsets += offset - self.position
        if self.gaps and self.gaps[-1][1] == self.position:
            self.gaps[-1] = (self.gaps[-1][0], offset)
        elif len(self.gaps) < GAPS_LISTED_MAX:
            self.gaps.append((self.position, offset))
        self.position = offset

    def note_epoch(self, batch: Batch, end: int) -> None:
        """Records the leader epoch of a batch for its offsets below `end`. Call it before these offsets are counted. An
        epoch below that of an earlier batch is ignored."""
        last = self.epochs.starts[-1][0] if self.epochs.starts else 0
        if batch.leader_epoch >= last:
            read = ReadEpochs(((batch.leader_epoch, self.position),), min(batch.next_offset, end))
            self.epochs = self.epochs.followed_by(read)

    @property
    def corrupt(self) -> int:
        return sum(one.end - one.start for one in self.skipped)

    def skip_corrupt(self, skipped: SkippedOffsets) -> None:
        """Counts the offsets of a skipped corrupt batch, and moves the position to their end."""
        assert skipped.start == self.position, (skipped, self.position)
        self.skipped.append(skipped)
        self.position = skipped.end

    def count(self, records: Sequence[Record]) -> None:
        """Counts the gaps before and between these records, and moves the position after the last of them."""
        for record in records:
            self.skip_to(record[0])
            self.position = record[0] + 1

    def mark(self, records: Sequence[Record]) -> None:
        """Saves the present state before `records` are counted, so that `rewind_to` can return to it."""
        self._mark = (self.position, self.gap_offsets, self.gaps[-1:])
        self._marked = records

    def rewind_to(self, offset: int) -> None:
        """Undoes the counting of offsets from `offset` on. `offset` must be that of a record in the newest batch."""
        start, self.gap_offsets, last = self._mark
        self.gaps = [gap for gap in self.gaps if gap[0] < start]
        if last:
            self.gaps[-1:] = last
        self.position = start
        self.count([record for record in self._marked if record[0] < offset])
        self.skip_to(offset)


class TransactionFilter:
    """Identifies batches of aborted transactions, from the list of aborted transactions in a fetch response.

    A transaction is aborted from its first offset until its abort marker; the list is ordered by first offset.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def kind(self, batch: Batch) -> BatchKind:
        """Returns whether a batch is data, a transaction marker (control) or part of an aborted transaction. Call it
        for the batches in offset order."""
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
    """Raised by the function to which `read_range` passes the records, so that the record at `offset` and all later
    ones do not count as read."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"reading stopped before offset {offset}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a range is read.

    Attributes:
        batch_bytes_max: limit of a decompressed batch.
        timeout_s: maximum time without progress, not counting throttled responses.
        skip_corrupt: called with each corrupt batch before its offsets are skipped; None to raise `CorruptBatch`.
        record_parser: parses the records of a batch; None for the parser of `kafka_wire`.
        prefetch: called with the likely offset of the next fetch before a response is processed, unless the broker
            throttled it.
        fetch_following: called before a response is processed that seems to be the last one of the range, so that the
            caller can send the first fetch of another range. Not called if `prefetch` is None or the broker throttled
            the response.
    """

    batch_bytes_max: int
    timeout_s: float
    skip_corrupt: Callable[[CorruptSpan], SkippedOffsets] | None = None
    record_parser: RecordParser | None = None
    prefetch: Callable[[int], None] | None = None
    fetch_following: Callable[[], None] | None = None


def read_range(
    fetch: Fetch,
    offsets: OffsetRange,
    on_records: Callable[[Sequence[Record]], None],
    progress: ReadProgress,
    options: ReadOptions,
) -> None:
    """Reads a range. Passes its data records to `on_records`, in order and batch by batch, and updates `progress`.

    When a batch is passed on, all its offsets are counted. After an error, `progress.position` is the first
    offset that was not read. If compaction deleted the last records of the range, their offsets count as a gap.

    Args:
        fetch: sends fetch requests for the partition.
        offsets: the range; reading begins at `progress.position`.
        on_records: receives the data records of each batch that has any in the range; may raise `StopBefore`, which is
            raised again.
        options: limits, and functions to call while reading.

    Raises:
        MisplacedBatch: a batch is not at the offset that it states.
        CorruptBatch: a corrupt batch cannot be skipped: `options.skip_corrupt` is None, the next offset is unknown, or
            `CORRUPT_BATCHES_MAX` batches of the range were skipped already. Also if a response has no complete batch.
            No offset of the batch counts as read.
        KafkaUnavailable: the broker returned no records for `options.timeout_s`, for example because the last stable
            offset is below the end of the range; or the broker throttles indefinitely.
        KafkaError: raised by `fetch`, for example `OffsetOutOfRange` if retention deleted offsets that are to be read.
    """
    _RangeReader(fetch, offsets, on_records, progress, options).read()


class _RangeReader:
    """Reads one range of a topic partition: the state of one call of `read_range`."""

    def __init__(
        self,
        fetch: Fetch,
        offsets: OffsetRange,
        on_records: Callable[[Sequence[Record]], None],
        progress: ReadProgress,
        options: ReadOptions,
    ) -> None:
        self._fetch = fetch
        self._end = offsets.end
        self._newest_epoch = offsets.leader_epoch if offsets.leader_epoch >= 0 else EPOCH_MAX
        self._topic_partition = offsets.topic_partition
        self._on_records = on_records
        self._progress = progress
        self._options = options
        self._idle_since = time.monotonic()
        self._throttled_s = 0.0
        self._bytes_max: int | None = None
        self._skipped_bases: set[int] = set()

    def read(self) -> None:
        progress, start = self._progress, self._progress.position
        next_response: FetchSlice | None = None
        while progress.position < self._end:
            requested_offset = progress.position
            response = next_response or self._fetch(requested_offset, self._bytes_max)
            self._bytes_max = None
            progress.bytes_read += len(response.records)
            neighbors = BatchNeighbors(
                response, requested_offset, self._where(response), self._fetch, start=start, end=self._end
            )
            self._prefetch_after(response, requested_offset)
            self._process_batches(response, neighbors)
            next_response = neighbors.next_response
            self._check_progress(response, requested_offset)

    def _where(self, response: FetchSlice) -> str:
        """Returns the broker, topic and partition of the fetch response as text, for error messages."""
        topic_partition = self._topic_partition
        return f"broker {response.broker}, topic {topic_partition.topic} partition {topic_partition.partition}"

    def _prefetch_after(self, response: FetchSlice, requested_offset: int) -> None:
        """Calls `ReadOptions.prefetch`, so that the next fetch is sent before the response is processed; after
        the last response of the range, calls `ReadOptions.fetch_following` instead. Does nothing if `prefetch` is None
        or the broker throttled the response. `requested_offset` is the offset from which the response was requested."""
        if self._options.prefetch is None or response.throttle_ms:
            return
        # The offset comes from unchecked headers. If it is wrong, one response is useless.
        following = end_of_batches(response.records)
        if following is None:
            return
        if following >= self._end:
            if self._options.fetch_following is not None:
                self._options.fetch_following()
        elif following > requested_offset:
            self._options.prefetch(following)

    def _process_batches(self, response: FetchSlice, neighbors: BatchNeighbors) -> None:
        """Passes on the records of the fetch response, up to the end of the range, to a corrupt batch, or to a
        batch that must be fetched again. `neighbors` checks the offsets of the batches."""
        progress, options, where = self._progress, self._options, self._where(response)
        transactions = TransactionFilter(response.aborted)
        for frame in split_batches(response.records, where):
            try:
                batch = read_batch(frame, where, options.batch_bytes_max, options.record_parser)
            except MisplacedBatch:
                # Only the batch itself states the next offset, so no policy can skip it.
                raise
            except CorruptBatch as error:
                if frame.base_offset in self._skipped_bases:
                    continue  # already skipped; the broker returned it again, because it contains the requested offset
                if error.next_offset is None or neighbors.is_confirmed(frame, error.next_offset, progress.position):
                    self._skip_corrupt(error, neighbors.corrupt_span(error, frame, progress.position, self._end))
                    self._skipped_bases.add(frame.base_offset)
                    # The next response may begin with the same batch, and must include the batch after it.
                    self._bytes_max = len(frame.view) + LOOKAHEAD_BYTES[-1]
                # The corrupt batch may have an abort marker that ends an aborted transaction. A new fetch returns a
                # list of aborted transactions from the next offset on.
                return
            if not neighbors.is_confirmed(frame, batch.next_offset, progress.position):
                return
            kind = transactions.kind(batch)
            if batch.next_offset <= progress.position:
                continue
            if batch.leader_epoch <= self._newest_epoch:
                progress.note_epoch(batch, self._end)
            records = _count_batch(batch, kind, self._end, progress)
            if records:
                try:
                    self._on_records(records)
                except StopBefore as stop:
                    progress.rewind_to(stop.offset)
                    raise
            if progress.position >= self._end:
                return

    def _skip_corrupt(self, error: CorruptBatch, span: CorruptSpan) -> None:
        """Skips a corrupt batch and counts its offsets, if `ReadOptions.skip_corrupt` is set.

        Args:
            error: the corruption.
            span: the offsets of the batch in this range.

        Raises:
            CorruptBatch: `skip_corrupt` is not set, or too many batches were skipped.
        """
        progress, skip = self._progress, self._options.skip_corrupt
        if skip is None:
            raise CorruptBatch(str(error), span.next_offset) from error
        if len(progress.skipped) >= CORRUPT_BATCHES_MAX:
            message = f"{error}; one of more than {CORRUPT_BATCHES_MAX} such batches in this partition"
            raise CorruptBatch(message, span.next_offset) from error
        progress.skip_to(span.start)
        if span.start < span.end:
            progress.skip_corrupt(skip(span))

    def _check_progress(self, response: FetchSlice, requested_offset: int) -> None:
        """Decides how to continue after the fetch response, which was requested from the offset `requested_offset`. If
        no offset was read from it, then either the rest of the range is counted as a gap, or the fetch is repeated, or
        an error is raised."""
        progress, end = self._progress, self._end
        if progress.position > requested_offset:
            self._idle_since, self._throttled_s = time.monotonic(), 0.0
            return
        if response.records:
            # Brokers send the first batch completely, regardless of its size.
            raise CorruptBatch(
                f"{self._where(response)} offset {requested_offset}: no complete batch in a response of "
                f"{len(response.records)} bytes"
            )
        if _shows_empty_tail(response, end) and all(
            # A single response must not lose records, so the last offset is fetched as well: a broker with tiered
            # storage returns empty responses while its remote store is slow.
            _shows_empty_tail(self._fetch(offset), end)
            for offset in (requested_offset, end - 1)
        ):
            check_empty_tail(self._fetch, response, self._where(response), requested_offset, end)
            progress.skip_to(end)
        elif response.throttle_ms and self._throttled_s < THROTTLED_S_MAX:
            self._throttled_s += response.throttle_ms / 1000
            self._idle_since = time.monotonic() + response.throttle_ms / 1000
        elif response.throttle_ms or time.monotonic() - self._idle_since >= self._options.timeout_s:
            cause = (
                f"throttled for {self._throttled_s:.0f} s"
                if response.throttle_ms
                else f"for {self._options.timeout_s:.0f} s"
            )
            raise KafkaUnavailable(
                f"{self._where(response)} offset {requested_offset}: the range ends at {end} but the broker returned "
                f"no records, {cause}; the last stable offset is {response.last_stable_offset}"
            )


def _shows_empty_tail(response: FetchSlice, end: int) -> bool:
    """Whether the fetch response shows that the log has no more batches before `end`, because compaction
    removed them: the response is empty, although the log is readable up to `end`.

    Two kinds of empty responses do not show this: a throttled one, and one from a log that ends before `end` and may
    have lost records.
    """
    return (
        not response.records
        and not response.throttle_ms
        and min(response.last_stable_offset, response.high_watermark) >= end
    )


def _marker_type(batch: Batch) -> int:
    """Returns the type of the transaction marker in a batch: 0 for abort, 1 for commit, -1 if compaction removed its
    content. Only an abort marker ends an aborted transaction."""
    key = batch.records[0][2] if batch.records else None
    return struct.unpack_from(">hh", key)[1] if key is not None and len(key) >= 4 else -1


def _count_batch(batch: Batch, kind: BatchKind, end: int, progress: ReadProgress) -> Sequence[Record]:
    """Counts the part of one batch inside `[progress.position, end)`, and returns its data records.

    Args:
        kind: the kind of the batch; only a batch of data has data records.
        end: the end offset of the range.
    """
    start = progress.position
    records = batch.records
    if records and (records[0][0] < start or records[-1][0] >= end):
        records = [record for record in records if start <= record[0] < end]
    progress.mark(records)
    if records and records[0][0] == start and records[-1][0] - start == len(records) - 1:
        progress.position = start + len(records)
    else:
        progress.count(records)
    progress.skip_to(min(batch.next_offset, end))
    if kind is BatchKind.CONTROL:
        progress.control += len(records)
    elif kind is BatchKind.ABORTED:
        progress.aborted += len(records)
    return records if kind is BatchKind.DATA else []
