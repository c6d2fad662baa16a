"""The segments of one log in a row, the last of which is appended to, and where in their files an offset is.

Segments are contiguous or ascend with holes, never overlap. What an index says is compared with the batch that it tells
of; one that says what is not so is made anew.

Not for use by threads.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.files import FileSlice, OpenFiles, read_at, sync_directory
from headrace.broker.log.index import (
    OffsetEntry,
    first_entry_in_file,
    floor_entry_in_file,
    floor_position_in_file,
)
from headrace.broker.log.scan import PlacedBatch, SegmentFacts
from headrace.broker.log.segment import (
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    ClosedSegment,
    aborted_in_part,
    facts_of,
    header_at,
    put_away,
    segment_path,
    walk_file,
    write_indexes,
)
from headrace.broker.log.transactions import AbortedTransaction, overlapping
from headrace.kafka_wire.record_batch import MAGIC, BatchHeader

logger = logging.getLogger(__name__)


class Bound(NamedTuple):
    """How far a reader may read: to `offset`, which is at `position` of the segment that begins at `base_offset`.

    Where that has been compacted, made a part of another one or dropped since, it was readable to its end and is.
    """

    offset: int
    base_offset: int
    position: int


class Segments:
    """
    Args:
        note_unforced: takes note of files that were written and are not forced to disk.
    """

    __slots__ = ("_files", "_note_unforced", "_path", "_path_base", "active", "closed", "directory")

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        closed: list[ClosedSegment],
        active: SegmentFacts,
        note_unforced: Callable[..., None],
    ) -> None:
        self.directory, self.closed, self.active = directory, closed, active
        self._files, self._note_unforced = files, note_unforced
        self._path_base, self._path = -1, directory

    @property
    def first_base_offset(self) -> int:
        return self.closed[0].base_offset if self.closed else self.active.base_offset

    @property
    def size(self) -> int:
        """Bytes of all record batches, as stored."""
        return sum(segment.size for segment in self.closed) + self.active.size

    def log_path(self, base: int) -> Path:
        """Of a segment. It is kept for the next call, since to make one takes longer than to write to its file."""
        if base != self._path_base:
            self._path_base, self._path = base, segment_path(self.directory, base, LOG)
        return self._path

    def log_fd(self, base: int) -> int:
        return self._files.fd(self.log_path(base))

    # Reading

    def read(
        self, offset: int, bytes_max: int, bound: Bound, *, whole_first: bool
    ) -> tuple[bytes | FileSlice, int, int]:
        """The batches from the one that holds `offset` on, and in which segment and at which position of it they end.

        See `PartitionLog.read`.
        """
        if offset >= bound.offset:
            return b"", 0, 0
        for base, end, position in self._places(offset, bound):
            for placed in walk_file(self.log_fd(base), position, end):
                if placed.header.last_offset >= offset:
                    size = placed.header.size
                    if size > bytes_max and not whole_first:
                        return b"", 0, 0
                    size = min(max(size, bytes_max), end - placed.position)
                    records = self._files.slice(self.log_path(base), placed.position, size)
                    return records, base, placed.position + len(records)
        return b"", 0, 0

    def place_of(self, offset: int, bound: Bound) -> tuple[int, int]:
        """The segment, and the position in it, of the batch that holds an offset; those of the bound when none does."""
        for base, placed in self.placed_batches(offset, bound):
            return base, placed.position
        return bound.base_offset, bound.position

    def placed_batches(self, offset: int, bound: Bound) -> Iterator[tuple[int, PlacedBatch]]:
        """The batches from the one that holds `offset` on: of each the segment that it is in, and where.

        The log must stay as it is meanwhile.
        """
        for base, end, position in self._places(offset, bound):
            for placed in walk_file(self.log_fd(base), position, end):
                if placed.header.last_offset >= offset:
                    yield base, placed

    def batch_at(self, offset: int, bound: Bound) -> BatchHeader | None:
        """The batch that holds an offset, or the next one; None behind the last."""
        return next((placed.header for _, placed in self.placed_batches(offset, bound)), None)

    def epochs(self, start: int, bound: Bound) -> Iterator[tuple[int, int]]:
        """The leader epochs of the batches from an offset on, and where each begins; they ascend with the offsets."""
        first = self.batch_at(start, bound)
        while first is not None:
            epoch = first.leader_epoch
            yield epoch, first.base_offset
            rest = range(first.last_offset + 1, bound.offset)
            later = bisect_left(rest, True, key=partial(self._is_later, epoch, bound))
            first = self.batch_at(rest.start + later, bound)

    def _is_later(self, epoch: int, bound: Bound, offset: int) -> bool:
        header = self.batch_at(offset, bound)
        return header is None or header.leader_epoch > epoch

    def content(self, base: int, placed: PlacedBatch) -> bytes | FileSlice:
        """A batch of a segment, which stays what it is whatever becomes of the segment."""
        return self._files.slice(self.log_path(base), placed.position, placed.header.size)

    def bytes_of(self, base: int, placed: PlacedBatch) -> bytes:
        return read_at(self.log_fd(base), placed.header.size, placed.position)

    def offset_at(self, base: int, position: int) -> int:
        """An offset that nothing before this position of a segment reaches, close behind it where an index tells."""
        if base == self.active.base_offset:
            entry, size, end = self.active.index.first_from(position), self.active.size, self.active.next_offset
        else:
            segment = self.closed[self._at(base)]
            entry, size, end = first_entry_in_file(segment.path(INDEX), position), segment.size, segment.next_offset
        return base + entry.offset if entry is not None and self._is_true(base, size, entry) else end

    def bytes_behind(self, bound: Bound) -> int:
        """Of all batches behind a bound, in segments that are still there."""
        if bound.base_offset == self.active.base_offset:
            return self.active.size - bound.position
        rest = self.closed[bisect_left(self.closed, bound.base_offset, key=lambda segment: segment.base_offset) :]
        sizes = (segment.size - _readable(segment.base_offset, segment.size, bound) for segment in rest)
        return self.active.size + sum(sizes)

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The transactions that were aborted and have something in [start, end)."""
        found: list[AbortedTransaction] = []
        for segment in self.closed[max(self._at(start), 0) :]:
            if segment.aborted:
                found += aborted_in_part(segment, start, end)
        found += overlapping(self.active.aborted, start, end)
        return found

    def _at(self, offset: int) -> int:
        """Which of the closed segments is the last that begins at or before an offset; -1: none does."""
        return bisect_right(self.closed, offset, key=lambda segment: segment.base_offset) - 1

    def _places(self, offset: int, bound: Bound) -> Iterator[tuple[int, int, int]]:
        """(segment base, readable bytes, position to start at) of the segments from the one that may hold `offset`."""
        for segment in self.closed[max(self._at(offset), 0) :]:
            if segment.next_offset > offset:
                position = self._position(segment, max(offset - segment.base_offset, 0))
                yield segment.base_offset, _readable(segment.base_offset, segment.size, bound), position
        active = self.active
        position = self.position_in_active(max(offset - active.base_offset, 0))
        yield active.base_offset, _readable(active.base_offset, active.size, bound), position

    # Indexes

    def _position(self, segment: ClosedSegment, relative: int) -> int:
        """From where on to read a closed segment for an offset."""
        entry = floor_entry_in_file(segment.path(INDEX), relative)
        if entry is None:
            return 0
        if self._is_true(segment.base_offset, segment.size, entry):
            return entry.position
        self.rebuild_indexes(segment)
        return floor_position_in_file(segment.path(INDEX), relative)

    def position_in_active(self, relative: int) -> int:
        """As `_position`, in the last segment, whose indexes were a file when the broker started."""
        entry = self.active.index.floor(relative)
        if entry is not None and not self._is_true(self.active.base_offset, self.active.size, entry):
            self.rebuild_active_indexes()
            entry = self.active.index.floor(relative)
        return entry.position if entry is not None else 0

    def _is_true(self, base: int, size: int, entry: OffsetEntry) -> bool:
        """Does the batch that an index tells of begin there, and end with that offset?"""
        found = header_at(self.log_fd(base), entry.position, size)
        return found is not None and found.magic == MAGIC and found.last_offset - base == entry.offset

    def rebuild_indexes(self, segment: ClosedSegment) -> None:
        """Makes the indexes of a closed segment anew from its batches.

        Raises:
            OSError: they could not be written.
        """
        facts = facts_of(self.directory, segment.base_offset, segment.size)
        write_indexes(self.directory, facts)
        self._note_unforced(*(segment.path(suffix) for suffix in INDEX_SUFFIXES))
        at = self.closed.index(segment)
        self.closed[at] = ClosedSegment.of(self.directory, facts, segment.next_offset)
        logger.warning("indexes rebuilt directory=%s segment=%d", self.directory.name, segment.base_offset)

    def rebuild_active_indexes(self) -> None:
        """As `rebuild_indexes`, of the last segment: they are written when it is closed."""
        facts = facts_of(self.directory, self.active.base_offset, self.active.size)
        self.active.index, self.active.time_index = facts.index, facts.time_index
        logger.warning("indexes rebuilt directory=%s segment=%d", self.directory.name, self.active.base_offset)

    # Changes

    def begin_new(self) -> None:
        """Takes the active segment for closed, its indexes being written, and begins a new, empty one.

        Raises:
            OSError: the new one's file could not be made; everything is as before.
        """
        active = self.active
        # The file must be there before retention may remove the others: it alone then tells where the log ends.
        self._files.fd(segment_path(self.directory, active.next_offset, LOG))
        self.closed.append(ClosedSegment.of(self.directory, active))
        self._files.forget(segment_path(self.directory, active.base_offset, LOG))
        self.active = SegmentFacts(active.next_offset, active.next_offset)

    def put_in_place(self, group: Sequence[ClosedSegment], facts: SegmentFacts) -> None:
        """Has one closed segment stand for neighbouring ones; its files are in their place."""
        # By where it begins: a reader may have made its indexes anew, and another object of it.
        at = self._at(group[0].base_offset)
        self.closed[at : at + len(group)] = [ClosedSegment.of(self.directory, facts, group[-1].next_offset)]

    def take_out(self, count: int) -> list[Path]:
        """Takes the oldest closed ones out of the log; returns their renamed files, to be unlinked.

        Raises:
            OSError: one of them could not be renamed nor removed; it and those behind it are as they were.
        """
        renamed: list[Path] = []
        for segment in self.closed[:count]:
            if renamed:
                # The oldest first, also where the power fails: a hole between segments would be taken for a loss.
                sync_directory(self.directory)
            self._files.forget(segment.path())
            renamed += put_away(segment.path())
            self.closed = self.closed[1:]
            for suffix in INDEX_SUFFIXES:
                # Without its log it means nothing to anybody.
                with contextlib.suppress(OSError):
                    renamed += put_away(segment.path(suffix))
        return renamed

    def forget_files(self, segments: Sequence[ClosedSegment]) -> None:
        """Closes what is open of closed segments, before their files are renamed."""
        for segment in segments:
            self._files.forget(segment.path())

    def forget_active_file(self) -> None:
        self._files.forget(segment_path(self.directory, self.active.base_offset, LOG))


def _readable(base_offset: int, size: int, bound: Bound) -> int:
    """How many bytes of a segment lie before a bound."""
    if base_offset == bound.base_offset:
        return min(bound.position, size)
    return size if base_offset < bound.base_offset else 0
