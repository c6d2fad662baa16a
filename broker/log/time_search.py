"""Finds the first record of a partition with a given timestamp or a later one.

The time index of a segment gives the offset at which to start. The entry is first compared with the log, because a bit
flip or a crash may have corrupted the index and records would be missed. From there, batch headers select the batches
to decode. A header may claim a later timestamp than its records have, so several batches may have to be decoded.

A search runs in steps, between which the event loop serves other requests and the log may change. Progress is an
offset; the search holds no file open between steps, except for the batch that a thread is decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.broker.log.compaction import DutyCycle
from headrace.broker.log.decoding import RECORDS_DECODED_MAX, decode_records
from headrace.broker.log.files import FileSlice
from headrace.broker.log.index import TimeEntry, floor_position_in_file, time_below_in_file
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.segment import INDEX, LOG, TIME_INDEX, ClosedSegment, is_in_log, segment_path
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import CODEC_MASK, NO_HEADERS, BatchHeader, Record, parse_times

HEADERS_PER_STEP = 256
"""Most batch headers examined per call of `TimeSearch.step`. If batches are large, each header is a separate read."""
INLINE_DECODE_BYTES_MAX = 4096
"""Uncompressed batches up to this size are decoded in the event loop: passing them to a thread would take longer."""
BATCHES_DECODED_MAX = 10
"""Most batches decoded per search, with at most RECORDS_DECODED_MAX records. Usually one or two; more only if headers
claim wrong timestamps."""
RECORDS_PER_PAUSE = 256
"""Records that a thread examines before it checks whether it must release the interpreter lock."""


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class CandidateBatch:
    """A batch that may contain the record that a search looks for: the first one with an offset of at least `start` and
    a timestamp of at least `timestamp_ms`."""

    header: BatchHeader
    content: bytes | FileSlice
    timestamp_ms: int
    start: int

    def first_record(self, pause: Callable[[], None] = lambda: None) -> TimestampOffset | None:
        """Decodes the batch and returns the timestamp and offset of its first record that matches the search; None if
        no record matches. If the batch cannot be decoded or has too many records, returns its largest timestamp and its
        first searched offset, so that no record is missed.

        Args:
            pause: called once per RECORDS_PER_PAUSE records.
        """
        try:
            found = decode_records(bytes(self.content), record_parser=partial(self._first_of, pause))
        except CorruptBatch:
            # A batch that is corrupt or has too many records is not decoded.
            return self.first_offset()
        return TimestampOffset(found[0][1], found[0][0]) if found else None

    def first_record_throttled(self) -> TimestampOffset | None:
        """Returns the result of `first_record`: timestamp and offset of the batch's first match. For use in a thread:
        releases the interpreter lock half of the time."""
        return self.first_record(DutyCycle().pause_if_due)

    def first_offset(self) -> TimestampOffset:
        """Returns the search result for a batch that is not decoded, because it cannot be or the search has reached a
        limit: its largest timestamp and its first searched offset, so that a consumer that starts there skips no
        record."""
        return TimestampOffset(self.header.max_timestamp, max(self.header.base_offset, self.start))

    def _first_of(
        self,
        pause: Callable[[], None],
        payload: bytes | memoryview,
        count: int,
        base_offset: int,
        base_time: int,
        fixed_time: int | None,
    ) -> Sequence[Record]:
        for number, (offset, time_ms) in enumerate(parse_times(payload, count, base_offset, base_time, fixed_time)):
            if time_ms >= self.timestamp_ms and offset >= self.start:
                return [(offset, time_ms, None, None, NO_HEADERS)]
            if not number % RECORDS_PER_PAUSE:
                pause()
        return []


class TimeSearch:
    """Searches a log for the first record with a timestamp of at least `timestamp_ms`.

    When `is_done` is True, `found` is the result; None means that there is no such record. The result may have an
    earlier offset than the record if a batch was not decoded (see `CandidateBatch.first_offset`). All offsets below
    `searched_to` have been searched without a result.
    """

    def __init__(self, log: PartitionLog, timestamp_ms: int) -> None:
        self.log = log
        self.found: TimestampOffset | None = None
        self.is_done = False
        self.searched_to = 0
        self._timestamp_ms = timestamp_ms
        self._batches_left, self._records_left = BATCHES_DECODED_MAX, RECORDS_DECODED_MAX

    def step(self) -> CandidateBatch | None:
        """Continues the search, examining at most HEADERS_PER_STEP batch headers. If it returns a batch, decode that
        and pass the result to `record_result` before the next step.

        Raises:
            NotCached: inside `nonblocking_reads`, if bytes are not in the page cache; the next step resumes at the same
                offset.
        """
        log, headers_left = self.log, HEADERS_PER_STEP
        for end, largest, start in _segments(log, self._timestamp_ms):
            if end <= self.searched_to or largest is None or largest.timestamp_ms < self._timestamp_ms:
                continue
            for base, located in log.located_batches(max(start(), self.searched_to, log.log_start_offset)):
                header = located.header
                if header.base_offset >= end:
                    break
                if not headers_left:
                    return None
                headers_left -= 1
                if header.max_timestamp >= self._timestamp_ms and header.record_count:
                    batch = CandidateBatch(
                        header, log.segments.content(base, located), self._timestamp_ms, log.log_start_offset
                    )
                    if not self._may_open(header):
                        self._finish(batch.first_offset())
                        return None
                    if header.size > INLINE_DECODE_BYTES_MAX or header.attributes & CODEC_MASK:
                        return batch
                    self.record_result(batch, batch.first_record())
                    if self.is_done:
                        return None
                self.searched_to = header.last_offset + 1
            self.searched_to = max(self.searched_to, end)
        self._finish(None)
        return None

    def record_result(self, batch: CandidateBatch, found: TimestampOffset | None) -> None:
        """Continues the search with the result of decoding `batch`, which `step` returned.

        Args:
            found: the first record in the batch that matches the search; None if there is none.
        """
        if found is None:
            self.searched_to = batch.header.last_offset + 1
        elif found.offset >= self.log.log_start_offset:
            self._finish(found)

    def _may_open(self, header: BatchHeader) -> bool:
        self._batches_left -= 1
        self._records_left -= header.record_count
        return self._batches_left >= 0 and self._records_left >= 0

    def _finish(self, found: TimestampOffset | None) -> None:
        self.found, self.is_done = found, True


def largest_timestamp_ms(log: PartitionLog) -> int:
    """Returns the largest timestamp in the batch headers; 0 for an empty log."""
    entries = (*(segment.largest for segment in log.closed), log.active.largest)
    return max((entry.timestamp_ms for entry in entries if entry is not None), default=0)


def _segments(log: PartitionLog, timestamp_ms: int) -> Iterator[tuple[int, TimeEntry | None, Callable[[], int]]]:
    """Yields three values for each segment of the log: its end offset, its largest timestamp with the offset of the
    first batch that has it, and a function that returns the offset at which to begin the search for `timestamp_ms` in
    the segment."""
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
