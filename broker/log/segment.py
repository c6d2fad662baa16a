"""File names and file access of one segment. A segment is named by its base offset, in 20 digits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.broker.errors import RequestRefused
from headrace.broker.log.files import read_at
from headrace.broker.log.index import TimeEntry
from headrace.broker.log.scan import LocatedBatch, SegmentFacts, walk_batches
from headrace.broker.log.transactions import (
    AbortedBlock,
    TransactionIndexEntry,
    aborted_between,
    aborted_by,
    blocks_of,
    from_index,
    overlapping,
    to_index,
)
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    read_batch_header,
)

LOG, INDEX, TIME_INDEX, SNAPSHOT, DELETED = ".log", ".index", ".timeindex", ".snapshot", ".deleted"
TXN_INDEX = ".txnindex"
INDEX_SUFFIXES = (INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_SUFFIXES = (LOG, *INDEX_SUFFIXES)
FIRST_CHUNK_BYTES, CHUNK_BYTES = 4 * 1024, 64 * 1024
"""Sizes of the first and of the largest read of a header scan (`walk_file`). Each read is twice as large as the one
before it, up to the largest size."""


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def base_offsets(directory: Path, suffix: str = LOG) -> list[int]:
    """Returns the base offsets of a directory's files with this suffix, ascending; files with other names are
    ignored."""
    names = (path.name for path in directory.iterdir())
    return sorted(
        int(name[: -len(suffix)])
        for name in names
        if name.endswith(suffix) and len(name) == 20 + len(suffix) and name[:20].isascii() and name[:20].isdigit()
    )


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is no longer appended to, with offsets [base_offset, next_offset) and `size` bytes.

    `largest` is the time index entry with its largest timestamp, None if it has no batches. `aborted` summarizes the
    blocks of its `.txnindex` file, so that readers load only the blocks that they need.
    """

    directory: Path
    base_offset: int
    next_offset: int
    size: int
    largest: TimeEntry | None
    aborted: tuple[AbortedBlock, ...] = ()

    @classmethod
    def of(cls, directory: Path, facts: SegmentFacts, next_offset: int | None = None) -> ClosedSegment:
        """Creates a closed segment of the log in `directory` from the facts about it. Its offsets end at `next_offset`,
        by default after its last batch."""
        end = facts.next_offset if next_offset is None else next_offset
        return cls(directory, facts.base_offset, end, facts.size, facts.largest, blocks_of(facts.aborted))

    def path(self, suffix: str = LOG) -> Path:
        return segment_path(self.directory, self.base_offset, suffix)

    @property
    def timestamp_ms(self) -> int:
        """The time from which retention and compaction count the segment's age: the largest timestamp in its batch
        headers, or the file's modification time if no record has a timestamp; 0 if the file is missing too."""
        if self.largest is not None and self.largest.timestamp_ms >= 0:
            return self.largest.timestamp_ms
        try:
            return int(self.path().stat().st_mtime * 1000)
        except FileNotFoundError:
            return 0


def rename_to_deleted(path: Path) -> list[Path]:
    """Renames a file to `.deleted`; the caller or the next start deletes it. Deletes it at once if it cannot be
    renamed, for example because the disk is full. Returns a list with the new path; empty if the file was missing or
    deleted at once.

    Raises:
        OSError: the file could be neither renamed nor deleted.
    """
    if not path.exists():
        return []
    try:
        return [path.rename(path.with_name(path.name + DELETED))]
    except OSError:
        path.unlink()
        return []


def write_indexes(directory: Path, facts: SegmentFacts) -> None:
    """Writes the index files of a segment from the index content in `facts`, without fsyncing them."""
    facts.complete_time_index()
    contents = (
        (INDEX, facts.index.to_bytes()),
        (TIME_INDEX, facts.time_index.to_bytes()),
        (TXN_INDEX, to_index(facts.aborted, facts.size)),
    )
    for suffix, content in contents:
        segment_path(directory, facts.base_offset, suffix).write_bytes(content)


def read_facts(directory: Path, base_offset: int, size: int) -> SegmentFacts:
    """Builds the `SegmentFacts` of the segment with this base offset, such as the content of its indexes, from its
    batch headers. Safe to call in a thread.

    Args:
        directory: the partition's directory.
        size: number of bytes to read from the segment's file.
    """
    facts = SegmentFacts(base_offset, base_offset)
    fd = os.open(segment_path(directory, base_offset, LOG), os.O_RDONLY)
    try:
        for located in walk_file(fd, 0, size):
            facts.add(located.header, _marker_bytes(fd, located))
    finally:
        os.close(fd)
    return facts


def _marker_bytes(fd: int, located: LocatedBatch) -> bytes:
    """Returns the bytes of a batch of the open file `fd` if it is a control batch, and empty bytes if it is a data
    batch. `located` is the header and position of the batch."""
    return read_at(fd, located.header.size, located.position) if located.header.attributes & CONTROL else b""


def aborted_in(directory: Path, base_offset: int, size: int) -> list[TransactionIndexEntry]:
    """Returns the transactions that end with an abort marker in a segment.

    If the `.txnindex` file is missing, corrupt or of a log of another size, reads all batch headers and rebuilds the
    file.

    Args:
        directory: the partition's directory.
        base_offset: base offset of the segment.
        size: number of bytes in the segment's `.log` file.
    """
    try:
        known = from_index(segment_path(directory, base_offset, TXN_INDEX).read_bytes(), size)
    except FileNotFoundError:
        known = None
    return _aborted_by_markers(directory, base_offset, size) if known is None else known


def aborted_in_part(segment: ClosedSegment, start: int, end: int) -> list[TransactionIndexEntry]:
    """Returns the transactions that overlap the offsets [start, end) and end with an abort marker in the closed
    segment.

    Raises:
        NotCached: inside `nonblocking_reads`, if bytes are not in the page cache.
    """
    found = None
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(segment.path(TXN_INDEX), os.O_RDONLY)
        try:
            found = aborted_between(segment.aborted, start, end, partial(read_at, fd))
        finally:
            os.close(fd)
    if found is None:
        entries = _aborted_by_markers(segment.directory, segment.base_offset, segment.size)
        found = list(overlapping(entries, start, end))
    return found


def _aborted_by_markers(directory: Path, base_offset: int, size: int) -> list[TransactionIndexEntry]:
    """Returns the aborted transactions of a segment, found by reading its markers, and rebuilds its `.txnindex` file.

    Args:
        directory: the partition's directory.
        base_offset: base offset of the segment.
        size: number of bytes in the segment's `.log` file.
    """
    fd = os.open(segment_path(directory, base_offset, LOG), os.O_RDONLY)
    try:
        markers = (aborted_by(located.header, _marker_bytes(fd, located)) for located in walk_file(fd, 0, size))
        found = [one for one in markers if one is not None]
    finally:
        os.close(fd)
    # If the disk is full, the file is not written and the next call reads the segment again.
    with contextlib.suppress(OSError):
        segment_path(directory, base_offset, TXN_INDEX).write_bytes(to_index(found, size))
    return found


def header_at(fd: int, position: int, size: int) -> BatchHeader | None:
    """Reads the batch header at a position of the open log file `fd`, which has `size` bytes; None if fewer bytes than
    a header follow."""
    if not 0 <= position <= size - HEADER_BYTES:
        return None
    return read_batch_header(read_at(fd, HEADER_BYTES, position))


def is_in_log(path: Path, base_offset: int, size: int, position: int, entry: TimeEntry) -> bool:
    """Returns whether an entry of a segment's time index agrees with the log: the batch that ends at the entry's offset
    exists and has the entry's timestamp as its largest one.

    Args:
        path: the segment's log file, with `size` bytes.
        position: file position at which to begin the search for the batch.
    """
    if not 0 <= position < size:
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        for located in walk_file(fd, position, size):
            last = located.header.last_offset - base_offset
            if located.header.magic != MAGIC or last >= entry.offset:
                return last == entry.offset and located.header.max_timestamp == entry.timestamp_ms
    finally:
        os.close(fd)
    return False


def ends_with(path: Path, size: int, position: int, next_offset: int, largest: TimeEntry) -> bool:
    """Returns whether a closed segment is complete according to its indexes: its file ends with a complete batch whose
    last offset is `next_offset` - 1, and no batch from `position` on has a later timestamp than `largest`.

    Args:
        path: the segment's log file, with `size` bytes.
        position: file position from which the batches are read.
        largest: the last entry of the segment's time index.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        last = None
        for last in walk_file(fd, position, size):
            if last.header.magic != MAGIC or last.header.max_timestamp > largest.timestamp_ms:
                return False
    finally:
        os.close(fd)
    return last is not None and last.header.last_offset + 1 == next_offset and last.position + last.header.size == size


def walk_file(fd: int, position: int, end: int) -> Iterator[LocatedBatch]:
    """Yields the header and the position of each batch of the open log file `fd` whose header lies between the file
    positions `position` and `end`. Reads the file in chunks.

    The first chunk is small, since callers often need only one batch.

    Raises:
        RequestRefused: a batch has an impossible length, for example because its bytes became zeros on the disk. The
            end of the batch is then unknown; without the error a consumer would skip all batches after it.
    """
    chunk_bytes = FIRST_CHUNK_BYTES
    while position + HEADER_BYTES <= end:
        chunk = read_at(fd, min(chunk_bytes, end - position), position)
        chunk_bytes = min(2 * chunk_bytes, CHUNK_BYTES)
        consumed = 0
        for located in walk_batches(memoryview(chunk)):
            yield LocatedBatch(position + located.position, located.header)
            consumed = located.position + located.header.size
        if consumed + HEADER_BYTES <= len(chunk):
            # The batch does not fit into the chunk, but its header does.
            header = read_batch_header(chunk, consumed)
            if header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD:
                raise RequestRefused(
                    ErrorCode.CORRUPT_MESSAGE, f"the log file has no record batch at position {position + consumed}"
                )
            yield LocatedBatch(position + consumed, header)
            consumed += header.size
        if consumed == 0:
            return
        position += consumed
