"""The segments of one log, and the file positions of its offsets. The last segment is the active one.

The segments ascend by offset and never overlap. A closed segment ends where the next one begins; offsets may be missing
within it. A read compares the index entry that it uses with the batch it points to, and rebuilds a wrong index.

Not thread-safe.
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
from headrace.broker.log.scan import LocatedBatch, SegmentFacts
from headrace.broker.log.segment import (
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    ClosedSegment,
    aborted_in_part,
    header_at,
    read_facts,
    rename_to_deleted,
    segment_path,
    walk_file,
    write_indexes,
)
from headrace.broker.log.transactions import TransactionIndexEntry, overlapping
from headrace.kafka_wire.record_batch import MAGIC, BatchHeader

logger = logging.getLogger(__name__)


class ReadBound(NamedTuple):
    """The end of the readable log: consumers read the batches before `offset`. These end at `position` in the segment
    with base offset `base_offset`.

    A bound stays valid after compaction or retention has replaced or deleted this segment: all segments up to it were
    readable, so their replacement is, too.
    """

    offset: int
    base_offset: int
    position: int


class Segments:
    """The segments of a log, with searches in their indexes.

    Args:
        files: cache of open files that all logs share.
        closed: the closed segments, in order of their offsets.
        active: the facts about the segment to which batches are appended.
        mark_dirty: called with files that were written and are not fsynced yet.
    """

    __slots__ = ("_files", "_mark_dirty", "_path", "_path_base", "active", "closed", "directory")

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        closed: list[ClosedSegment],
        active: SegmentFacts,
        mark_dirty: Callable[..., None],
    ) -> None:
        self.directory, self.closed, self.active = directory, closed, active
        self._files, self._mark_dirty = files, mark_dirty
        self._path_base, self._path = -1, directory

    @property
    def first_base_offset(self) -> int:
        return self.closed[0].base_offset if self.closed else self.active.base_offset

    @property
    def size(self) -> int:
        """Stored bytes of all record batches."""
        return sum(segment.size for segment in self.closed) + self.active.size

    def log_path(self, base: int) -> Path:
        """Returns the path of the `.log` file of the segment with the base offset `base`. The path returned last is
        cached: creating a path object takes longer than a write."""
        if base != self._path_base:
            self._path_base, self._path = base, segment_path(self.directory, base, LOG)
        return self._path

    def log_fd(self, base: int) -> int:
        return self._files.fd(self.log_path(base))

    # Reading

    def read(
        self, offset: int, bytes_max: int, bound: ReadBound, *, min_one_batch: bool
    ) -> tuple[bytes | FileSlice, int, int]:
        """Reads up to `bytes_max` bytes of the batches before `bound`, the end of the readable log, starting with the
        first batch that has records and ends at or after `offset`. Returns the bytes, which come from one segment, and
        the place where they end: the base offset of the segment and the position in its file; two zeros without bytes.
        The last batch may be incomplete.

        Compaction leaves batches without records. Clients advance past them only if a batch with records follows in the
        same response: otherwise librdkafka reports MSG_SIZE_TOO_LARGE for each. If no batch with records follows in the
        log, the last one without records is returned, so that consumers reach the end of the log.

        With `min_one_batch` the first batch is returned even if it is larger than `bytes_max`; without it, no bytes are
        returned then.
        """
        if offset >= bound.offset:
            return b"", 0, 0
        first: tuple[int, int, LocatedBatch] | None = None
        for base, end, position in self._read_ranges(offset, bound):
            for located in walk_file(self.log_fd(base), position, end):
                if located.header.last_offset >= offset:
                    first = base, end, located
                    if located.header.record_count:
                        return self._slice(*first, bytes_max, min_one_batch)
        return self._slice(*first, bytes_max, min_one_batch) if first is not None else (b"", 0, 0)

    def _slice(
        self, base: int, end: int, first: LocatedBatch, bytes_max: int, min_one_batch: bool
    ) -> tuple[bytes | FileSlice, int, int]:
        """Reads up to `bytes_max` bytes of the segment with base offset `base`, from the batch `first` to the file
        position `end`. Returns the same values as `read`."""
        size = first.header.size
        if size > bytes_max and not min_one_batch:
            return b"", 0, 0
        size = min(max(size, bytes_max), end - first.position)
        records = self._files.slice(self.log_path(base), first.position, size)
        return records, base, first.position + len(records)

    def position_of(self, offset: int, bound: ReadBound) -> tuple[int, int]:
        """Returns where the batch that contains `offset` begins, or else the first batch after it: the base offset of
        the segment and the position in its file. If no such batch lies before `bound`, returns the segment and position
        of `bound`."""
        for base, located in self.located_batches(offset, bound):
            return base, located.position
        return bound.base_offset, bound.position

    def located_batches(self, offset: int, bound: ReadBound) -> Iterator[tuple[int, LocatedBatch]]:
        """Yields two values for each batch before `bound`, the end of the readable log, starting with the first one
        that ends at or after `offset`: the base offset of its segment, and its header with its file position.

        The log must not change during iteration.
        """
        for base, end, position in self._read_ranges(offset, bound):
            for located in walk_file(self.log_fd(base), position, end):
                if located.header.last_offset >= offset:
                    yield base, located

    def batch_at(self, offset: int, bound: ReadBound) -> BatchHeader | None:
        """Returns the header of the batch that contains `offset`, or else of the first batch after it; None if no such
        batch lies before `bound`, the end of the readable log."""
        return next((located.header for _, located in self.located_batches(offset, bound)), None)

    def epochs(self, start: int, bound: ReadBound) -> Iterator[tuple[int, int]]:
        """Yields each leader epoch of the batches from offset `start` to `bound`, the end of the readable log, with the
        offset at which the epoch begins. Epochs and offsets ascend."""
        first = self.batch_at(start, bound)
        while first is not None:
            epoch = first.leader_epoch
            yield epoch, first.base_offset
            rest = range(first.last_offset + 1, bound.offset)
            later = bisect_left(rest, True, key=partial(self._is_later, epoch, bound))
            first = self.batch_at(rest.start + later, bound)

    def _is_later(self, epoch: int, bound: ReadBound, offset: int) -> bool:
        header = self.batch_at(offset, bound)
        return header is None or header.leader_epoch > epoch

    def content(self, base: int, located: LocatedBatch) -> bytes | FileSlice:
        """Returns the content of one batch: its bytes, or a slice of the file if the batch is large and few slices
        exist. A slice stays readable even if the segment is deleted.

        Args:
            base: base offset of the segment that contains the batch.
            located: header and file position of the batch.
        """
        return self._files.slice(self.log_path(base), located.position, located.header.size)

    def bytes_of(self, base: int, located: LocatedBatch) -> bytes:
        return read_at(self.log_fd(base), located.header.size, located.position)

    def offset_at(self, base: int, position: int) -> int:
        """Returns an upper bound for the offsets of all batches before a file position in a segment. It costs one index
        lookup; the largest offset itself would need a scan.

        Args:
            base: base offset of the segment.
        """
        if base == self.active.base_offset:
            entry, size, end = self.active.index.first_from(position), self.active.size, self.active.next_offset
        else:
            segment = self.closed[self._closed_index(base)]
            entry, size, end = first_entry_in_file(segment.path(INDEX), position), segment.size, segment.next_offset
        return base + entry.offset if entry is not None and self._entry_matches(base, size, entry) else end

    def bytes_behind(self, bound: ReadBound) -> int:
        """Returns the number of bytes of the log after `bound`, the end of the readable log."""
        if bound.base_offset == self.active.base_offset:
            return self.active.size - bound.position
        rest = self.closed[bisect_left(self.closed, bound.base_offset, key=lambda segment: segment.base_offset) :]
        sizes = (segment.size - _readable_bytes(segment.base_offset, segment.size, bound) for segment in rest)
        return self.active.size + sum(sizes)

    def aborted(self, start: int, end: int) -> list[TransactionIndexEntry]:
        """Returns the aborted transactions that overlap the offsets [start, end)."""
        found: list[TransactionIndexEntry] = []
        for segment in self.closed[max(self._closed_index(start), 0) :]:
            if segment.aborted:
                found += aborted_in_part(segment, start, end)
        found += overlapping(self.active.aborted, start, end)
        return found

    def closed_at(self, base: int) -> ClosedSegment | None:
        """Returns the closed segment with the base offset `base`, None if there is none."""
        at = self._closed_index(base)
        return self.closed[at] if at >= 0 and self.closed[at].base_offset == base else None

    def _closed_index(self, offset: int) -> int:
        """Returns the index in the list `closed` of the last segment with a base offset of at most `offset`; -1 if all
        segments begin after `offset`."""
        return bisect_right(self.closed, offset, key=lambda segment: segment.base_offset) - 1

    def _read_ranges(self, offset: int, bound: ReadBound) -> Iterator[tuple[int, int, int]]:
        """Yields the part to read of each segment that may contain offsets from `offset` on: the segment's base offset,
        the end of its bytes before `bound` (the end of the readable log), and the file position at which to begin
        reading."""
        for segment in self.closed[max(self._closed_index(offset), 0) :]:
            if segment.next_offset > offset:
                position = self._position(segment, max(offset - segment.base_offset, 0))
                yield segment.base_offset, _readable_bytes(segment.base_offset, segment.size, bound), position
        active = self.active
        position = self.position_in_active(max(offset - active.base_offset, 0))
        yield active.base_offset, _readable_bytes(active.base_offset, active.size, bound), position

    # Indexes

    def _position(self, segment: ClosedSegment, relative: int) -> int:
        """Returns the file position in a closed segment from which to search for an offset, found with the segment's
        index.

        Args:
            relative: the offset minus the segment's base offset.
        """
        entry = floor_entry_in_file(segment.path(INDEX), relative)
        if entry is None:
            return 0
        if self._entry_matches(segment.base_offset, segment.size, entry):
            return entry.position
        self.rebuild_indexes(segment)
        return floor_position_in_file(segment.path(INDEX), relative)

    def position_in_active(self, relative: int) -> int:
        """Returns the file position in the active segment from which to search for an offset. Verifies the index entry
        that it uses, because after a start the indexes come from files and may be wrong.

        Args:
            relative: the offset minus the segment's base offset.
        """
        entry = self.active.index.floor(relative)
        if entry is not None and not self._entry_matches(self.active.base_offset, self.active.size, entry):
            self.rebuild_active_indexes()
            entry = self.active.index.floor(relative)
        return entry.position if entry is not None else 0

    def _entry_matches(self, base: int, size: int, entry: OffsetEntry) -> bool:
        """Returns whether an offset index entry agrees with the log: a batch begins at the entry's position, and its
        last offset is the entry's offset.

        Args:
            base: base offset of the segment.
            size: number of bytes in the segment's file.
        """
        found = header_at(self.log_fd(base), entry.position, size)
        return found is not None and found.magic == MAGIC and found.last_offset - base == entry.offset

    def rebuild_indexes(self, segment: ClosedSegment) -> None:
        """Rebuilds the indexes of a closed segment from its batches.

        Raises:
            OSError: the segment could not be read, or the indexes could not be written.
            NotCached: inside `nonblocking_reads`, if bytes are not in the page cache.
        """
        facts = read_facts(self.directory, segment.base_offset, segment.size)
        write_indexes(self.directory, facts)
        self._mark_dirty(*(segment.path(suffix) for suffix in INDEX_SUFFIXES))
        at = self.closed.index(segment)
        self.closed[at] = ClosedSegment.of(self.directory, facts, segment.next_offset)
        logger.warning("indexes rebuilt directory=%s segment=%d", self.directory.name, segment.base_offset)

    def rebuild_active_indexes(self) -> None:
        """Rebuilds the indexes of the active segment in memory; they are written when it is closed."""
        facts = read_facts(self.directory, self.active.base_offset, self.active.size)
        self.active.index, self.active.time_index = facts.index, facts.time_index
        logger.warning("indexes rebuilt directory=%s segment=%d", self.directory.name, self.active.base_offset)

    # Changes

    def start_segment(self) -> None:
        """Closes the active segment and starts a new one. The caller has written the indexes of the active one.

        Raises:
            OSError: the new file could not be created; nothing has changed.
        """
        active = self.active
        # The new file must exist before retention may delete all earlier ones: its name then gives the log end.
        self._files.fd(segment_path(self.directory, active.next_offset, LOG))
        self.closed.append(ClosedSegment.of(self.directory, active))
        self._files.forget(segment_path(self.directory, active.base_offset, LOG))
        self.active = SegmentFacts(active.next_offset, active.next_offset)

    def replace_segments(self, group: Sequence[ClosedSegment], facts: SegmentFacts) -> None:
        """Replaces adjacent closed segments in memory, after compaction has replaced their files.

        Args:
            group: the segments to replace.
            facts: describes the file that replaces them.
        """
        # Search by base offset: a reader may have rebuilt the segment's indexes and replaced the object.
        at = self._closed_index(group[0].base_offset)
        self.closed[at : at + len(group)] = [ClosedSegment.of(self.directory, facts, group[-1].next_offset)]

    def drop_oldest(self, count: int) -> list[Path]:
        """Removes the oldest `count` closed segments and renames their files to `.deleted`. Returns the new paths of
        the files, which the caller must delete.

        Raises:
            OSError: a segment could be neither renamed nor deleted, or the directory could not be fsynced; this segment
                and later ones are unchanged.
        """
        renamed: list[Path] = []
        for segment in self.closed[:count]:
            if renamed:
                # Delete in order, also on a power failure: a gap between segments would be treated as data loss.
                sync_directory(self.directory)
            self._files.forget(segment.path())
            renamed += rename_to_deleted(segment.path())
            self.closed = self.closed[1:]
            for suffix in INDEX_SUFFIXES:
                # An index without its log is harmless.
                with contextlib.suppress(OSError):
                    renamed += rename_to_deleted(segment.path(suffix))
        return renamed

    def close_files(self, segments: Sequence[ClosedSegment]) -> None:
        """Closes the files of closed segments before they are renamed."""
        for segment in segments:
            self._files.forget(segment.path())

    def close_active_file(self) -> None:
        self._files.forget(segment_path(self.directory, self.active.base_offset, LOG))


def _readable_bytes(base_offset: int, size: int, bound: ReadBound) -> int:
    """Returns how many bytes of a segment, with this base offset and `size` bytes, lie before `bound`, the end of the
    readable log."""
    if base_offset == bound.base_offset:
        return min(bound.position, size)
    return size if base_offset < bound.base_offset else 0
