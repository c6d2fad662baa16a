"""The names and files of one segment. A segment is named by its base offset, in 20 digits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.log.index import TimeEntry
from headrace.broker.log.scan import PlacedBatch, walk_batches
from headrace.kafka_wire.record_batch import HEADER_BYTES, LENGTH_OVERHEAD, read_batch_header

LOG, INDEX, TIME_INDEX, SNAPSHOT, DELETED = ".log", ".index", ".timeindex", ".snapshot", ".deleted"
INDEX_SUFFIXES = (INDEX, TIME_INDEX)
SEGMENT_SUFFIXES = (LOG, *INDEX_SUFFIXES)
CHUNK_BYTES = 64 * 1024
"""Read at once when headers are walked: some hundred small batches, or a few large ones' headers."""


def segment_path(folder: Path, base_offset: int, suffix: str) -> Path:
    return folder / f"{base_offset:020d}{suffix}"


def base_offsets(folder: Path, suffix: str = LOG) -> list[int]:
    """The base offsets of the files with this suffix, ascending; other files are none of ours."""
    names = (path.name for path in folder.iterdir())
    return sorted(
        int(name[: -len(suffix)])
        for name in names
        if name.endswith(suffix) and len(name) == 20 + len(suffix) and name[:20].isascii() and name[:20].isdigit()
    )


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is no longer written; offsets [base_offset, next_offset), `size` in bytes."""

    folder: Path
    base_offset: int
    next_offset: int
    size: int
    largest: TimeEntry | None

    def path(self, suffix: str = LOG) -> Path:
        return segment_path(self.folder, self.base_offset, suffix)

    @property
    def timestamp_ms(self) -> int:
        """What time retention goes by: the largest record timestamp, else when the file was last written."""
        if self.largest is not None and self.largest.timestamp_ms >= 0:
            return self.largest.timestamp_ms
        try:
            return int(self.path().stat().st_mtime * 1000)
        except FileNotFoundError:
            return 0


def walk_file(fd: int, position: int, end: int) -> Iterator[PlacedBatch]:
    """The batches of an open log file from `position` to `end`; only their headers are read, in chunks."""
    while position + HEADER_BYTES <= end:
        chunk = os.pread(fd, min(CHUNK_BYTES, end - position), position)
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
