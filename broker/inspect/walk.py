"""Reads the batches of a partition's files in any condition. Nothing is repaired, locked or written.

A broker may be running on the files. A segment that retention deletes, or compaction replaces, while it is open is read
to the end of its old content. Files are not memory-mapped, since truncation by the broker would kill the process; at
most CHUNK_BYTES of a file, and the batch that is decoded, are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.log.scan import PLAUSIBLE_START, LocatedBatch
from headrace.broker.log.segment import LOG, base_offsets, segment_path
from headrace.kafka_wire.record_batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    read_batch_header,
)

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A `.log` file; `end` is the base offset of the next segment, None for the last one."""

    path: Path
    base_offset: int
    end: int | None


class Damage(NamedTuple):
    """Bytes [position, end) of a file that are not a valid batch. A batch that begins at offset `next_offset` or later
    is expected there."""

    position: int
    end: int
    next_offset: int
    reason: str


def segment_files(directory: Path) -> list[SegmentFile]:
    bases = base_offsets(directory)
    return [
        SegmentFile(segment_path(directory, base, LOG), base, end)
        for base, end in zip_longest(bases, bases[1:], fillvalue=None)
        if base is not None
    ]


class SegmentWalk:
    """Reads the batches of one segment file, up to the size that the file has when it is opened. Use it in a `with`
    statement.

    Raises:
        OSError: the file cannot be opened or read.
    """

    def __init__(self, segment: SegmentFile) -> None:
        self.segment = segment
        self._fd = os.open(segment.path, os.O_RDONLY)
        self.size = os.fstat(self._fd).st_size
        self._chunk, self._chunk_at = memoryview(b""), 0

    def __enter__(self) -> SegmentWalk:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._fd)

    def refresh_size(self) -> None:
        """Includes the bytes that were appended to the file since it was opened: later calls of `batches` read them
        too."""
        self.size = os.fstat(self._fd).st_size
        self._chunk = memoryview(b"")

    def batches(self, position: int = 0, next_offset: int | None = None) -> Iterator[LocatedBatch | Damage]:
        """Yields the intact batches and the damage between them, in the order of the file. Offsets ascend and may have
        gaps.

        Args:
            position: file position at which to begin, by default the start.
            next_offset: smallest offset that the first batch may have, by default the segment's base offset.
        """
        expected_offset = self.segment.base_offset if next_offset is None else next_offset
        while position < self.size:
            found = self._read_intact_header(position, expected_offset)
            if isinstance(found, str):
                end = self._next_intact(position + 1, expected_offset)
                yield Damage(position, end, expected_offset, found)
                position = end
                continue
            yield LocatedBatch(position, found)
            position += found.size
            expected_offset = found.last_offset + 1

    def bytes_of(self, located: LocatedBatch) -> bytes:
        return os.pread(self._fd, located.header.size, located.position)

    def _read_intact_header(self, position: int, expected_offset: int) -> BatchHeader | str:
        """Returns the header of the batch at a file position if the batch is intact and begins at `expected_offset` or
        later; otherwise returns the reason why it is not valid, as text."""
        header = self._header(position)
        if header is None:
            return "the header is cut off"
        if header.magic != MAGIC:
            return f"batch version {header.magic}"
        if not HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= self.size - position - LENGTH_OVERHEAD:
            return "the batch is cut off"
        if not self._has_valid_crc(position, header):
            return "the batch fails its CRC"
        if header.base_offset < expected_offset or header.last_offset_delta < 0:
            return f"expected offset {expected_offset}, found {header.base_offset}"
        end = self.segment.end
        if end is not None and header.last_offset >= end:
            return f"offset {header.last_offset} in a segment that must end before {end}"
        if header.base_offset > expected_offset and self._is_contradicted_by_next(position, header):
            # The CRC does not cover the base offset. If those of two batches contradict each other, the later is
            # trusted.
            return f"expected offset {expected_offset}, found {header.base_offset}"
        return header

    def _is_contradicted_by_next(self, position: int, header: BatchHeader) -> bool:
        following = self._header(position + header.size)
        return (
            following is not None
            and following.magic == MAGIC
            and following.base_offset <= header.last_offset
            and HEADER_BYTES <= following.size <= self.size - position - header.size
            and self._has_valid_crc(position + header.size, following)
        )

    def _next_intact(self, position: int, expected_offset: int) -> int:
        """Returns the first file position from `position` on at which an intact batch begins, with an offset of at
        least `expected_offset`; the end of the file if there is none."""
        while position < self.size:
            chunk = self._bytes(position, CHUNK_BYTES)
            for match in PLAUSIBLE_START.finditer(chunk):
                if not isinstance(self._read_intact_header(position + match.start(), expected_offset), str):
                    return position + match.start()
            # A batch may begin at the end of this chunk.
            position += max(len(chunk) - HEADER_BYTES, 1)
        return self.size

    def _header(self, position: int) -> BatchHeader | None:
        if position + HEADER_BYTES > self.size:
            return None
        start = self._bytes(position, HEADER_BYTES)
        return read_batch_header(start) if len(start) == HEADER_BYTES else None

    def _has_valid_crc(self, position: int, header: BatchHeader) -> bool:
        crc, at, end = 0, position + CRC_FROM, position + header.size
        while at < end:
            piece = self._bytes(at, min(end - at, CHUNK_BYTES))
            if not piece:
                return False
            crc = crc32c(piece, crc)
            at += len(piece)
        return crc == header.crc

    def _bytes(self, position: int, count: int) -> memoryview:
        """Returns up to `count` bytes of the segment file at `position`. Reads the file only if the bytes are not in
        the part of it that is in memory."""
        at = position - self._chunk_at
        if not (at >= 0 and at + count <= len(self._chunk)):
            self._chunk = memoryview(os.pread(self._fd, max(CHUNK_BYTES, count), position))
            self._chunk_at, at = position, 0
        return self._chunk[at : at + min(count, max(self.size - position, 0))]
