"""Walks the batches of a segment's bytes: what recovery trusts, and what rebuilds the indexes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.log.index import INTERVAL_BYTES, OffsetIndex, TimeEntry, TimeIndex
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.kafka_wire.record_batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    has_valid_crc,
    read_batch_header,
)


class PlacedBatch(NamedTuple):
    position: int
    header: BatchHeader


@dataclass(slots=True)
class SegmentFacts:
    """What is known of a segment's content; grows with every batch.

    `next_offset` follows the last record; `size` is in bytes; `largest` has the largest timestamp with the last
    offset of the first batch that has it, None while the segment is empty.
    """

    base_offset: int
    next_offset: int
    size: int = 0
    largest: TimeEntry | None = None
    index: OffsetIndex = field(default_factory=OffsetIndex)
    time_index: TimeIndex = field(default_factory=TimeIndex)
    _unindexed_bytes: int = 0

    def add(self, header: BatchHeader, batch_bytes: int) -> None:
        """Takes note of a batch that stands at position `size`."""
        last = header.last_offset - self.base_offset
        if self.largest is None or header.max_timestamp > self.largest.timestamp_ms:
            self.largest = TimeEntry(header.max_timestamp, last)
        if self._unindexed_bytes > INTERVAL_BYTES:
            self.index.add(last, self.size)
            self.time_index.add(self.largest)
            self._unindexed_bytes = 0
        self._unindexed_bytes += batch_bytes
        self.size += batch_bytes
        self.next_offset = header.last_offset + 1

    def complete_time_index(self) -> None:
        """Lets the time index end with the largest timestamp, as files of it must."""
        if self.largest is not None:
            self.time_index.add(self.largest)


@dataclass(frozen=True, slots=True)
class Scan:
    """The valid prefix of a segment's bytes; `fault` says why it ends before the bytes do, "" when it does not."""

    facts: SegmentFacts
    fault: str


def scan_segment(view: memoryview, base_offset: int, epochs: LeaderEpochs, newest_epoch: int) -> Scan:
    """Reads batches from the front as long as each is whole, intact and continues the offsets.

    Args:
        epochs: what the log's file of them says; grows where a crash left the file behind the batches.
        newest_epoch: no batch can be of a newer one.
    """
    facts = SegmentFacts(base_offset, base_offset)
    while facts.size < len(view):
        fault = _fault(view, facts, epochs, newest_epoch)
        if fault:
            return Scan(facts, fault)
        header = read_batch_header(view, facts.size)
        if header.leader_epoch > epochs.at(header.base_offset):
            epochs.begin(header.leader_epoch, header.base_offset)
        facts.add(header, header.size)
    return Scan(facts, "")


def _fault(view: memoryview, facts: SegmentFacts, epochs: LeaderEpochs, newest_epoch: int) -> str:
    at, rest = facts.size, len(view) - facts.size
    if rest < HEADER_BYTES:
        return "the header is cut off"
    header = read_batch_header(view, at)
    if header.magic != MAGIC:
        return f"batch version {header.magic}"
    if not HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= rest - LENGTH_OVERHEAD:
        return "the batch is cut off"
    if not has_valid_crc(view[at : at + header.size], header):
        return "the batch fails its CRC"
    # The CRC does not cover these three. Nothing is ever taken out of the middle of a log, so offsets have no holes.
    if header.base_offset != facts.next_offset or header.last_offset_delta < 0:
        return f"offset {header.base_offset} where {facts.next_offset} was due"
    due = epochs.at(header.base_offset)
    is_new = due < header.leader_epoch <= newest_epoch and header.base_offset >= epochs.latest_start
    if header.leader_epoch != due and not is_new:
        return f"leader epoch {header.leader_epoch} where {due} was due"
    return ""


def walk_batches(view: memoryview, position: int = 0) -> Iterator[PlacedBatch]:
    """The batches from `position` on, of bytes that are known to be valid; a partial batch at the end is left out."""
    end = len(view)
    while position + HEADER_BYTES <= end:
        header = read_batch_header(view, position)
        if position + header.size > end:
            return
        yield PlacedBatch(position, header)
        position += header.size
