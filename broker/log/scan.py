"""Walks the batches of a segment's bytes: what recovery trusts, and what rebuilds the indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.log.index import INTERVAL_BYTES, OffsetIndex, TimeEntry, TimeIndex
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.broker.log.transactions import AbortedTransaction, aborted_by
from headrace.kafka_wire.record_batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    has_valid_crc,
    read_batch_header,
)

PLAUSIBLE_START = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)
"""Where a batch may begin: a base offset below 2**48, and the version where it belongs."""


class PlacedBatch(NamedTuple):
    position: int
    header: BatchHeader


@dataclass(slots=True)
class SegmentFacts:
    """What is known of a segment's content; grows with every batch.

    `next_offset` follows the last record; `size` is in bytes; `largest` has the largest timestamp with the last
    offset of the first batch that has it, None while the segment is empty. `aborted` are the transactions whose abort
    markers it has, in their order.
    """

    base_offset: int
    next_offset: int
    size: int = 0
    largest: TimeEntry | None = None
    index: OffsetIndex = field(default_factory=OffsetIndex)
    time_index: TimeIndex = field(default_factory=TimeIndex)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    _unindexed_bytes: int = 0

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Takes note of a batch that stands at position `size`; of all but markers the bytes are not looked at."""
        aborted = aborted_by(header, batch)
        if aborted is not None:
            self.aborted.append(aborted)
        self.add_plain(header.last_offset, header.max_timestamp, header.size)

    def add_plain(self, last_offset: int, max_timestamp_ms: int, size: int) -> None:
        """As `add`, of a batch that is no marker and takes `size` bytes."""
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
        """Lets the time index end with the largest timestamp, as files of it must."""
        if self.largest is not None:
            self.time_index.add(self.largest)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a scan may take for granted of a segment.

    Args:
        epochs: what the log's file of them says; grows where a crash left the file behind the batches.
        newest_epoch: no batch can be of a newer one.
        forced_to: batches below this offset have been forced to disk: their headers tell where they end.
        end: the base offset of the next segment, None in the last one.
        may_have_holes: offsets may be missing between batches above `forced_to` too. Compaction leaves such holes, but
            only below: elsewhere a hole is a loss, or the base offset, which no CRC covers, is wrong.
        checks_forced: batches below `forced_to` must pass their CRC, too.
    """

    epochs: LeaderEpochs
    newest_epoch: int
    forced_to: int = 0
    end: int | None = None
    may_have_holes: bool = False
    checks_forced: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """The valid prefix of a segment's bytes; `fault` says why it ends before the bytes do, "" when it does not."""

    facts: SegmentFacts
    fault: str


def scan_segment(view: memoryview, base_offset: int, expected: Expected) -> Scan:
    """Reads batches from the front as long as each is whole, intact and continues the offsets."""
    facts = SegmentFacts(base_offset, base_offset)
    while facts.size < len(view):
        fault = _fault(view, facts.size, facts.next_offset, expected)
        if fault:
            return Scan(facts, fault)
        header = read_batch_header(view, facts.size)
        note_epoch(header, expected)
        facts.add(header, view[facts.size : facts.size + header.size])
    return Scan(facts, "")


def note_epoch(header: BatchHeader, expected: Expected) -> None:
    """Takes note of an epoch that began. One that does not fit is no CRC's business, and no reason to lose a batch."""
    epochs, epoch = expected.epochs, header.leader_epoch
    is_newer = epochs.at(header.base_offset) < epoch <= expected.newest_epoch
    if is_newer and header.base_offset >= epochs.latest_start:
        epochs.begin(epoch, header.base_offset)


def _fault(view: memoryview, at: int, next_offset: int, expected: Expected) -> str:
    rest = len(view) - at
    if rest < HEADER_BYTES:
        return "the header is cut off"
    header = read_batch_header(view, at)
    if header.magic != MAGIC:
        return f"batch version {header.magic}"
    if not HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= rest - LENGTH_OVERHEAD:
        return "the batch is cut off"
    # The CRC does not cover the base offset.
    is_forced = header.base_offset < expected.forced_to
    if (expected.checks_forced or not is_forced) and not has_valid_crc(view[at : at + header.size], header):
        return "the batch fails its CRC"
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return f"offset {header.base_offset} where {next_offset} was due"
    if header.base_offset > next_offset and not (is_forced or expected.may_have_holes):
        return f"offset {header.base_offset} where {next_offset} was due"
    end = expected.forced_to if is_forced else expected.end
    if end is not None and header.last_offset >= end:
        return f"offset {header.last_offset} in a batch that ends before {end}"
    return ""


def intact_batches(view: memoryview, next_offset: int, end: int | None) -> Iterator[PlacedBatch]:
    """Every intact batch in damaged bytes, with ascending offsets in [next_offset, end)."""
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
            yield PlacedBatch(position, header)
            position += header.size
            next_offset = header.last_offset + 1
            continue
        found = PLAUSIBLE_START.search(view, position + 1)
        if found is None:
            return
        position = found.start()


def _is_misplaced(view: memoryview, position: int, header: BatchHeader) -> bool:
    """Does an intact batch follow that begins below this one's end? Of the two base offsets its is believed."""
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


def walk_batches(view: memoryview, position: int = 0) -> Iterator[PlacedBatch]:
    """The batches from `position` on, of bytes that are known to be valid; a partial batch at the end is left out."""
    end = len(view)
    while position + HEADER_BYTES <= end:
        header = read_batch_header(view, position)
        if header.size < HEADER_BYTES or position + header.size > end:
            return
        yield PlacedBatch(position, header)
        position += header.size
