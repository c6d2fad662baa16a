"""The names and files of one segment. A segment is named by its base offset, in 20 digits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.broker.log.files import read_at
from headrace.broker.log.index import TimeEntry
from headrace.broker.log.scan import PlacedBatch, SegmentFacts, walk_batches
from headrace.broker.log.transactions import (
    AbortedBlock,
    AbortedTransaction,
    aborted_between,
    aborted_by,
    blocks_of,
    from_index,
    overlapping,
    to_index,
)
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
"""Read at once when headers are walked: some hundred small batches, or a few large ones' headers."""


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def base_offsets(directory: Path, suffix: str = LOG) -> list[int]:
    """The base offsets of the files with this suffix, ascending; other files are none of ours."""
    names = (path.name for path in directory.iterdir())
    return sorted(
        int(name[: -len(suffix)])
        for name in names
        if name.endswith(suffix) and len(name) == 20 + len(suffix) and name[:20].isascii() and name[:20].isdigit()
    )


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is no longer written; offsets [base_offset, next_offset), `size` in bytes.

    `aborted` is what is known of its `.txnindex`.
    """

    directory: Path
    base_offset: int
    next_offset: int
    size: int
    largest: TimeEntry | None
    aborted: tuple[AbortedBlock, ...] = ()

    @classmethod
    def of(cls, directory: Path, facts: SegmentFacts, next_offset: int | None = None) -> ClosedSegment:
        """Of what is known of its content; it ends with its last batch where nothing else is said."""
        end = facts.next_offset if next_offset is None else next_offset
        return cls(directory, facts.base_offset, end, facts.size, facts.largest, blocks_of(facts.aborted))

    def path(self, suffix: str = LOG) -> Path:
        return segment_path(self.directory, self.base_offset, suffix)

    @property
    def timestamp_ms(self) -> int:
        """What time retention goes by: the largest record timestamp, else when the file was last written."""
        if self.largest is not None and self.largest.timestamp_ms >= 0:
            return self.largest.timestamp_ms
        try:
            return int(self.path().stat().st_mtime * 1000)
        except FileNotFoundError:
            return 0


def put_away(path: Path) -> list[Path]:
    """Renames a file that is to go, or on a full disk, where a longer name may find no space, removes it at once."""
    if not path.exists():
        return []
    try:
        return [path.rename(path.with_name(path.name + DELETED))]
    except OSError:
        path.unlink()
        return []


def write_indexes(directory: Path, facts: SegmentFacts) -> None:
    """Writes the indexes of a segment; forcing them to disk is the caller's."""
    facts.complete_time_index()
    contents = (
        (INDEX, facts.index.to_bytes()),
        (TIME_INDEX, facts.time_index.to_bytes()),
        (TXN_INDEX, to_index(facts.aborted, facts.size)),
    )
    for suffix, content in contents:
        segment_path(directory, facts.base_offset, suffix).write_bytes(content)


def facts_of(directory: Path, base_offset: int, size: int) -> SegmentFacts:
    """What the headers of a segment's batches say of it. May be called by a thread of its own."""
    facts = SegmentFacts(base_offset, base_offset)
    fd = os.open(segment_path(directory, base_offset, LOG), os.O_RDONLY)
    try:
        for placed in walk_file(fd, 0, size):
            facts.add(placed.header, _if_marker(fd, placed))
    finally:
        os.close(fd)
    return facts


def _if_marker(fd: int, placed: PlacedBatch) -> bytes:
    """The bytes of a batch of control, nothing of others."""
    return read_at(fd, placed.header.size, placed.position) if placed.header.attributes & CONTROL else b""


def aborted_in(directory: Path, base_offset: int, size: int) -> list[AbortedTransaction]:
    """The transactions whose abort markers a segment has; without a good index all its headers are read for it."""
    try:
        known = from_index(segment_path(directory, base_offset, TXN_INDEX).read_bytes(), size)
    except FileNotFoundError:
        known = None
    return _aborted_by_markers(directory, base_offset, size) if known is None else known


def aborted_in_part(segment: ClosedSegment, start: int, end: int) -> list[AbortedTransaction]:
    """Of a closed segment's aborted transactions those that have something in [start, end).

    Raises:
        NotCached: only `without_waiting`.
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


def _aborted_by_markers(directory: Path, base_offset: int, size: int) -> list[AbortedTransaction]:
    """Reads a segment for them, and makes its index anew."""
    fd = os.open(segment_path(directory, base_offset, LOG), os.O_RDONLY)
    try:
        markers = (aborted_by(placed.header, _if_marker(fd, placed)) for placed in walk_file(fd, 0, size))
        found = [one for one in markers if one is not None]
    finally:
        os.close(fd)
    # On a full disk it is read again.
    with contextlib.suppress(OSError):
        segment_path(directory, base_offset, TXN_INDEX).write_bytes(to_index(found, size))
    return found


def header_at(fd: int, position: int, size: int) -> BatchHeader | None:
    """What stands for a header at a position of a log file of `size` bytes; None where there is no room for one."""
    if not 0 <= position <= size - HEADER_BYTES:
        return None
    return read_batch_header(read_at(fd, HEADER_BYTES, position))


def is_in_log(path: Path, base_offset: int, size: int, position: int, entry: TimeEntry) -> bool:
    """Is there a batch, from a position on, that ends at the entry's offset and has its timestamp?"""
    if not 0 <= position < size:
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        for placed in walk_file(fd, position, size):
            last = placed.header.last_offset - base_offset
            if placed.header.magic != MAGIC or last >= entry.offset:
                return last == entry.offset and placed.header.max_timestamp == entry.timestamp_ms
    finally:
        os.close(fd)
    return False


def ends_at(path: Path, size: int, position: int, next_offset: int, largest: TimeEntry) -> bool:
    """Is the last batch of a closed segment whole, as far as its header tells, and the one before `next_offset`? And is
    none from the position on later than the largest timestamp that is known?"""
    fd = os.open(path, os.O_RDONLY)
    try:
        last = None
        for last in walk_file(fd, position, size):
            if last.header.magic != MAGIC or last.header.max_timestamp > largest.timestamp_ms:
                return False
    finally:
        os.close(fd)
    return last is not None and last.header.last_offset + 1 == next_offset and last.position + last.header.size == size


def walk_file(fd: int, position: int, end: int) -> Iterator[PlacedBatch]:
    """The batches of an open log file from `position` to `end`; only their headers are read, in chunks.

    The first chunk is small, since one batch is often all that is wanted.
    """
    chunk_bytes = FIRST_CHUNK_BYTES
    while position + HEADER_BYTES <= end:
        chunk = read_at(fd, min(chunk_bytes, end - position), position)
        chunk_bytes = min(2 * chunk_bytes, CHUNK_BYTES)
        consumed = 0
        for placed in walk_batches(memoryview(chunk)):
            yield PlacedBatch(position + placed.position, placed.header)
            consumed = placed.position + placed.header.size
        if consumed + HEADER_BYTES <= len(chunk):
            # The batch does not fit the chunk, but its header does.
            header = read_batch_header(chunk, consumed)
            if header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD:
                return
            yield PlacedBatch(position + consumed, header)
            consumed += header.size
        if consumed == 0:
            return
        position += consumed
