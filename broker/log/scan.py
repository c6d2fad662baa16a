"""Scans the batches of a segment: finds its valid prefix for recovery, and collects the entries of its indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.log.index import INTERVAL_BYTES, OffsetIndex, TimeEntry, TimeIndex
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.broker.log.transactions import TransactionIndexEntry, aborted_by
from headrace.kafka_wire.record_batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    has_valid_crc,
    read_batch_header,
)

PLAUSIBLE_START = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)
"""Matches bytes at which a batch may start: a base offset below 2**48, and version 2 at the right position."""


class LocatedBatch(NamedTuple):
    position: int
    header: BatchHeader


@dataclass(slots=True)
class SegmentFacts:
    """Facts about a segment: its offsets, its size and the content of its indexes. Updated with every batch. For a
    closed segment that was not scanned, `index` and `time_index` are empty.

    Attributes:
        next_offset: the offset after the last batch.
        size: size of all batches in bytes.
        largest: the largest timestamp, and the last offset (relative to `base_offset`) of the first batch that has it;
            None for an empty segment.
        index: the offset index.
        aborted: the transactions that end with an abort marker in the segment, in order.
    """

    base_offset: int
    next_offset: int
    size: int = 0
    largest: TimeEntry | None = None
    index: OffsetIndex = field(default_factory=OffsetIndex)
    time_index: TimeIndex = field(default_factory=TimeIndex)
    aborted: list[TransactionIndexEntry] = field(default_factory=list)
    _unindexed_bytes: int = 0

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Adds the next batch, which begins at position `size` of the segment's file, to the facts. The bytes in
        `batch` are used only if it is a control batch."""
        aborted = aborted_by(header, batch)
        if aborted is not None:
            self.aborted.append(aborted)
        self.add_plain(header.last_offset, header.max_timestamp, header.size)

    def add_plain(self, last_offset: int, max_timestamp_ms: int, size: int) -> None:
        """Adds the next batch, which is not an abort marker, to the facts, from three values of its header: the offset
        of its last record, its largest timestamp and its size in bytes."""
        last = last_offset - self.base_offset
        if self.largest is None or max_timestamp_ms > self.largest.timestamp_ms:
            self.largest = TimeEntry(max_timestamp_ms, last)
        if self._unindexed_bytes > INTERVAL_BYTES:
            self.index.add(last, self.size)
            self.time_index.add(self.largest)
            self._unindexed_bytes = 0
        self._unindexed_bytes += size
        self.size += size
        self.next_offset = last_offset + 1

    def complete_time_index(self) -> None:
        """Adds the largest timestamp as last entry of the time index, as the file format requires."""
        if self.largest is not None:
            self.time_index.add(self.largest)


@dataclass(frozen=True, slots=True)
class ScanExpectations:
    """Assumptions that a scan makes about a segment.

    Args:
        epochs: the log's leader epochs as read from the epoch file; a scan adds those that the file lacks after a
            crash.
        newest_epoch: no batch can have a newer epoch.
        fsynced_to: batches below this offset were fsynced, so their CRC is not checked (see `verifies_fsynced`).
        end: base offset of the next segment, None for the last one.
        may_have_holes: offsets may be missing above `fsynced_to` too. If it is False, a gap there means data loss or a
            wrong base offset, which the CRC does not cover; compaction leaves gaps only below `fsynced_to`.
        verifies_fsynced: batches below `fsynced_to` must pass their CRC too.
    """

    epochs: LeaderEpochs
    newest_epoch: int
    fsynced_to: int = 0
    end: int | None = None
    may_have_holes: bool = False
    verifies_fsynced: bool = False


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of `scan_segment`. `facts` describe the valid batches at the start of the segment. `fault` is the reason
    why the bytes after them are not valid; "" if the whole file is valid."""

    facts: SegmentFacts
    fault: str


def scan_segment(view: memoryview, base_offset: int, expected: ScanExpectations) -> ScanResult:
    """Reads batches from the start of a segment, up to the first one that is incomplete, corrupt or does not continue
    the offsets. Returns the facts about the batches before that one, and the reason why it is not valid.

    Args:
        view: the content of the segment's file.
        expected: assumptions about the segment, against which each batch is checked; its leader epochs are updated.
    """
    facts = SegmentFacts(base_offset, base_offset)
    while facts.size < len(view):
        fault = _find_fault(view, facts.size, facts.next_offset, expected)
        if fault:
            return ScanResult(facts, fault)
        header = read_batch_header(view, facts.size)
        note_epoch(header, expected)
        facts.add(header, view[facts.size : facts.size + header.size])
    return ScanResult(facts, "")


def note_epoch(header: BatchHeader, expected: ScanExpectations) -> None:
    """Adds the leader epoch in the batch header to `expected.epochs` if the epoch begins with this batch. The CRC does
    not cover the epoch, so an epoch that is older than the one before, or newer than the broker's, is ignored and the
    batch stays valid."""
    epochs, epoch = expected.epochs, header.leader_epoch
    is_newer = epochs.at(header.base_offset) < epoch <= expected.newest_epoch
    if is_newer and header.base_offset >= epochs.latest_start:
        epochs.begin(epoch, header.base_offset)


def _find_fault(view: memoryview, at: int, next_offset: int, expected: ScanExpectations) -> str:
    rest = len(view) - at
    if rest < HEADER_BYTES:
        return "the header is cut off"
    header = read_batch_header(view, at)
    if header.magic != MAGIC:
        return f"batch version {header.magic}"
    if not HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= rest - LENGTH_OVERHEAD:
        return "the batch is cut off"
    # The CRC does not cover the base offset, so the offset is checked separately below.
    is_fsynced = header.base_offset < expected.fsynced_to
    if (expected.verifies_fsynced or not is_fsynced) and not has_valid_crc(view[at : at + header.size], header):
        return "the batch fails its CRC"
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return f"expected offset {next_offset}, found {header.base_offset}"
    if header.base_offset > next_offset and not (is_fsynced or expected.may_have_holes):
        return f"expected offset {next_offset}, found {header.base_offset}"
    end = expected.fsynced_to if is_fsynced else expected.end
    if end is not None and header.last_offset >= end:
        return f"offset {header.last_offset} in a batch that must end before {end}"
    return ""


def intact_batches(view: memoryview, next_offset: int, end: int | None) -> Iterator[LocatedBatch]:
    """Yields the position and header of each intact batch in the damaged bytes `view`, skipping the damage. A batch is
    intact only if its offsets are in [next_offset, end), or at least `next_offset` without an `end`, and after those of
    the batch before it."""
    position = 0
    while position + HEADER_BYTES <= len(view):
        header = read_batch_header(view, position)
        if (
            header.magic == MAGIC
            and HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= len(view) - position - LENGTH_OVERHEAD
            and header.base_offset >= next_offset
            and header.last_offset_delta >= 0
            and (end is None or header.last_offset < end)
            and has_valid_crc(view[position : position + header.size], header)
            and not _is_misplaced(view, position, header)
        ):
            yield LocatedBatch(position, header)
            position += header.size
            next_offset = header.last_offset + 1
            continue
        found = PLAUSIBLE_START.search(view, position + 1)
        if found is None:
            return
        position = found.start()


def _is_misplaced(view: memoryview, position: int, header: BatchHeader) -> bool:
    """Returns whether the base offset of the batch at `position` in `view`, which the CRC does not cover, is probably
    wrong: the intact batch after it begins at an offset that this batch would contain too. The offset of the later
    batch is trusted."""
    at = position + header.size
    if at + HEADER_BYTES > len(view):
        return False
    following = read_batch_header(view, at)
    return (
        following.magic == MAGIC
        and following.base_offset <= header.last_offset
        and HEADER_BYTES <= following.size <= len(view) - at
        and has_valid_crc(view[at : at + following.size], following)
    )


def walk_batches(view: memoryview, position: int = 0) -> Iterator[LocatedBatch]:
    """Yields the position and header of each batch in the bytes `view` from `position` on, without validating it. Ends
    at the first batch that is incomplete or shorter than a header."""
    end = len(view)
    while position + HEADER_BYTES <= end:
        header = read_batch_header(view, position)
        if header.size < HEADER_BYTES or position + header.size > end:
            return
        yield LocatedBatch(position, header)
        position += header.size
