"""Records of a partition by their timestamps: the first at or above one, and the first of the largest.

The time index of a segment says from which offset on to look. What an index says is held against the log first, since
one that a crash or a flipped bit damaged would otherwise hide records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from headrace.broker.log.index import TimeEntry, floor_time_in_file
from headrace.broker.log.opened import opened
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.segment import INDEX, TIME_INDEX, ClosedSegment, is_in_log
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import BatchHeader


@dataclass(frozen=True, slots=True)
class FoundTimestamp:
    timestamp_ms: int
    offset: int


def find_timestamp(log: PartitionLog, timestamp_ms: int) -> FoundTimestamp | None:
    """The first record at or above `timestamp_ms`, None when there is none."""
    for largest, start in _starts(log, timestamp_ms):
        if largest is None or largest.timestamp_ms < timestamp_ms:
            continue
        for placed, batch in log.batches(max(start(), log.log_start_offset)):
            if placed.header.max_timestamp >= timestamp_ms:
                found = _first_record(log, batch, placed.header, timestamp_ms)
                if found is not None:
                    return found
    return None


def largest_timestamp(log: PartitionLog) -> FoundTimestamp | None:
    """The first record with the largest timestamp, None in an empty log."""
    entries = (*(segment.largest for segment in log.closed), log.active.largest)
    newest_ms = max((entry.timestamp_ms for entry in entries if entry is not None), default=None)
    return None if newest_ms is None else find_timestamp(log, newest_ms)


def _starts(log: PartitionLog, timestamp_ms: int) -> Iterator[tuple[TimeEntry | None, Callable[[], int]]]:
    """Per segment its largest timestamp, and from which offset on to look for `timestamp_ms`."""
    for segment in tuple(log.closed):
        yield segment.largest, partial(_start_in_closed, log, segment, timestamp_ms)
    active = log.active
    yield active.largest, lambda: active.base_offset + active.time_index.floor(timestamp_ms)


def _start_in_closed(log: PartitionLog, segment: ClosedSegment, timestamp_ms: int) -> int:
    entry = floor_time_in_file(segment.path(TIME_INDEX), timestamp_ms)
    if entry is not None and not is_in_log(
        segment.path(), segment.base_offset, segment.size, segment.path(INDEX), entry
    ):
        log.rebuild_indexes(segment)
        entry = floor_time_in_file(segment.path(TIME_INDEX), timestamp_ms)
    return segment.base_offset + (entry.offset if entry is not None else 0)


def _first_record(log: PartitionLog, batch: bytes, header: BatchHeader, timestamp_ms: int) -> FoundTimestamp | None:
    try:
        for offset, record_timestamp_ms, *_ in opened(batch):
            if record_timestamp_ms >= timestamp_ms and offset >= log.log_start_offset:
                return FoundTimestamp(record_timestamp_ms, offset)
    except CorruptBatch:
        # The batch cannot be opened here (records that are none, or too many): its first offset is early enough, so
        # nothing is missed by whoever starts there.
        return FoundTimestamp(header.max_timestamp, max(header.base_offset, log.log_start_offset))
    return None
