"""Records of a partition by their timestamps: the first at or above one.

The time index of a segment says from which offset on to look. What an index says is held against the log first, since
one that a crash or a flipped bit damaged would otherwise hide records. From there on headers tell which batches to
open; a header may say that its batch has a later record than it has, so there may be many.

A search goes in turns, between which others are served and the log may change. What has been looked at is known by its
offset, and no file is kept open from turn to turn but for the batch that a thread opens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.broker.log.compaction import Pace
from headrace.broker.log.files import FileSlice
from headrace.broker.log.index import TimeEntry, floor_position_in_file, time_below_in_file
from headrace.broker.log.opened import RECORDS_OPENED_MAX, opened
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.segment import INDEX, LOG, TIME_INDEX, ClosedSegment, is_in_log, segment_path
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import CODEC_MASK, NO_HEADERS, BatchHeader, Record, times_of

HEADERS_AT_ONCE = 256
"""In one turn. Where batches are large, each of them is a read of its own."""
OPENED_AT_ONCE_BYTES = 4096
"""A batch of no more, as it is, is opened in less time than it takes to have a thread do it."""
BATCHES_OPENED_MAX = 10
"""For one timestamp, with RECORDS_OPENED_MAX in all: one or two are opened where headers are right."""
RECORDS_WITHOUT_REST = 256
"""That a thread looks at before it sees how long it has kept the interpreter."""


@dataclass(frozen=True, slots=True)
class FoundTimestamp:
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class UnopenedBatch:
    """A batch in which the first record at or above a timestamp is looked for, and not below offset `start`."""

    header: BatchHeader
    content: bytes | FileSlice
    timestamp_ms: int
    start: int

    def first_record(self, rest: Callable[[], None] = lambda: None) -> FoundTimestamp | None:
        """Opens it. `rest` is called after every few records."""
        try:
            found = opened(bytes(self.content), take_apart=partial(self._first_of, rest))
        except CorruptBatch:
            # Of records that are none, or too many.
            return self.first_offset()
        return FoundTimestamp(found[0][1], found[0][0]) if found else None

    def first_record_at_leisure(self) -> FoundTimestamp | None:
        """As `first_record`, for a thread, which leaves the interpreter to others for half of the time."""
        return self.first_record(Pace().keep)

    def first_offset(self) -> FoundTimestamp:
        """The answer where it is not opened: early enough, so that nothing is missed by whoever starts there."""
        return FoundTimestamp(self.header.max_timestamp, max(self.header.base_offset, self.start))

    def _first_of(
        self,
        rest: Callable[[], None],
        payload: bytes | memoryview,
        count: int,
        base_offset: int,
        base_time: int,
        fixed_time: int | None,
    ) -> Sequence[Record]:
        for number, (offset, time_ms) in enumerate(times_of(payload, count, base_offset, base_time, fixed_time)):
            if time_ms >= self.timestamp_ms and offset >= self.start:
                return [(offset, time_ms, None, None, NO_HEADERS)]
            if not number % RECORDS_WITHOUT_REST:
                rest()
        return []


class TimeSearch:
    """Looks for the first record at or above a timestamp.

    `found` is the answer once it `is_over`; None: there is no such record. What is below `looked_to` has been looked
    at.
    """

    def __init__(self, log: PartitionLog, timestamp_ms: int) -> None:
        self.log = log
        self.found: FoundTimestamp | None = None
        self.is_over = False
        self.looked_to = 0
        self._timestamp_ms = timestamp_ms
        self._batches_rest, self._records_rest = BATCHES_OPENED_MAX, RECORDS_OPENED_MAX

    def go_on(self) -> UnopenedBatch | None:
        """One turn. Of a batch that is returned `take` is to be told what is found in it before the next one.

        Raises:
            NotCached: only `without_waiting`; it goes on where it was.
        """
        log, headers_rest = self.log, HEADERS_AT_ONCE
        for end, largest, start in _segments(log, self._timestamp_ms):
            if end <= self.looked_to or largest is None or largest.timestamp_ms < self._timestamp_ms:
                continue
            for base, placed in log.placed_batches(max(start(), self.looked_to, log.log_start_offset)):
                header = placed.header
                if header.base_offset >= end:
                    break
                if not headers_rest:
                    return None
                headers_rest -= 1
                if header.max_timestamp >= self._timestamp_ms and header.record_count:
                    batch = UnopenedBatch(
                        header, log.segments.content(base, placed), self._timestamp_ms, log.log_start_offset
                    )
                    if not self._may_open(header):
                        self._end(batch.first_offset())
                        return None
                    if header.size > OPENED_AT_ONCE_BYTES or header.attributes & CODEC_MASK:
                        return batch
                    self.take(batch, batch.first_record())
                    if self.is_over:
                        return None
                self.looked_to = header.last_offset + 1
            self.looked_to = max(self.looked_to, end)
        self._end(None)
        return None

    def take(self, batch: UnopenedBatch, found: FoundTimestamp | None) -> None:
        """Takes note of what was found in a batch."""
        if found is None:
            self.looked_to = batch.header.last_offset + 1
        elif found.offset >= self.log.log_start_offset:
            self._end(found)

    def _may_open(self, header: BatchHeader) -> bool:
        self._batches_rest -= 1
        self._records_rest -= header.record_count
        return self._batches_rest >= 0 and self._records_rest >= 0

    def _end(self, found: FoundTimestamp | None) -> None:
        self.found, self.is_over = found, True


def largest_timestamp_ms(log: PartitionLog) -> int:
    """Of all batches, as their headers say; 0 in an empty log."""
    entries = (*(segment.largest for segment in log.closed), log.active.largest)
    return max((entry.timestamp_ms for entry in entries if entry is not None), default=0)


def _segments(log: PartitionLog, timestamp_ms: int) -> Iterator[tuple[int, TimeEntry | None, Callable[[], int]]]:
    """Of each segment where it ends, its largest timestamp, and from which offset on to look for `timestamp_ms`."""
    for segment in tuple(log.closed):
        yield segment.next_offset, segment.largest, partial(_start_in_closed, log, segment, timestamp_ms)
    active = log.active
    yield (
        active.next_offset,
        active.largest,
        partial(_start_in_active, log, timestamp_ms),
    )


def _start_in_active(log: PartitionLog, timestamp_ms: int) -> int:
    base, size = log.active.base_offset, log.active.size
    entry = log.active.time_index.below(timestamp_ms)
    if entry is not None:
        position = log.segments.position_in_active(entry.offset)
        if not is_in_log(segment_path(log.directory, base, LOG), base, size, position, entry):
            log.segments.rebuild_active_indexes()
        entry = log.active.time_index.below(timestamp_ms)
    return base + (entry.offset if entry is not None else 0)


def _start_in_closed(log: PartitionLog, segment: ClosedSegment, timestamp_ms: int) -> int:
    entry = time_below_in_file(segment.path(TIME_INDEX), timestamp_ms)
    if entry is not None:
        position = floor_position_in_file(segment.path(INDEX), entry.offset)
        if not is_in_log(segment.path(), segment.base_offset, segment.size, position, entry):
            log.segments.rebuild_indexes(segment)
            entry = time_below_in_file(segment.path(TIME_INDEX), timestamp_ms)
    return segment.base_offset + (entry.offset if entry is not None else 0)
