"""The batches of a partition's files, whatever state these are in: nothing is mended, locked or written.

A broker may be at work on the files: a segment that retention removed ends the walk of it, and one that compaction
replaced is read to its end as it was. No file is mapped into memory, since one that is cut meanwhile would end the
process; at most CHUNK_BYTES of one are held.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.log.scan import PLAUSIBLE_START, PlacedBatch
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
    """One `.log` file; `end` is the base offset of the next one, None for the last."""

    path: Path
    base_offset: int
    end: int | None


class Damage(NamedTuple):
    """Bytes [position, end) of a file that begin no batch that belongs there; the log should go on at `next_offset`."""

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
    """One pass over a segment's bytes, as many as the file has when it begins. Closed by `with`.

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

    def grow(self) -> None:
        """Takes note of what was appended since."""
        self.size = os.fstat(self._fd).st_size
        self._chunk = memoryview(b"")

    def batches(self, position: int = 0, next_offset: int | None = None) -> Iterator[PlacedBatch | Damage]:
        """Every intact batch with ascending offsets, and what lies between them; offsets may be missing."""
        due = self.segment.base_offset if next_offset is None else next_offset
        while position < self.size:
            found = self._look(position, due)
            if isinstance(found, str):
                end = self._next_intact(position + 1, due)
                yield Damage(position, end, due, found)
                position = end
                continue
            yield PlacedBatch(position, found)
            position += found.size
            due = found.last_offset + 1

    def bytes_of(self, placed: PlacedBatch) -> bytes:
        return os.pread(self._fd, placed.header.size, placed.position)

    def _look(self, position: int, due: int) -> BatchHeader | str:
        """The header of an intact batch that belongs here, or why there is none."""
        header = self._header(position)
        if header is None:
            return "the header is cut off"
        if header.magic != MAGIC:
            return f"batch version {header.magic}"
        if not HEADER_BYTES - LENGTH_OVERHEAD <= header.batch_length <= self.size - position - LENGTH_OVERHEAD:
            return "the batch is cut off"
        if not self._has_valid_crc(position, header):
            return "the batch fails its CRC"
        if header.base_offset < due or header.last_offset_delta < 0:
            return f"offset {header.base_offset} where {due} was due"
        end = self.segment.end
        if end is not None and header.last_offset >= end:
            return f"offset {header.last_offset} in a segment that ends before {end}"
        if header.base_offset > due and self._is_overtaken(position, header):
            # No CRC covers the base offset; of the two that contradict each other the later one is believed.
            return f"offset {header.base_offset} where {due} was due"
        return header

    def _is_overtaken(self, position: int, header: BatchHeader) -> bool:
        following = self._header(position + header.size)
        return (
            following is not None
            and following.magic == MAGIC
            and following.base_offset <= header.last_offset
            and HEADER_BYTES <= following.size <= self.size - position - header.size
            and self._has_valid_crc(position + header.size, following)
        )

    def _next_intact(self, position: int, due: int) -> int:
        """Where the next batch begins that belongs into this log; the end of the file without one."""
        while position < self.size:
            chunk = self._bytes(position, CHUNK_BYTES)
            for match in PLAUSIBLE_START.finditer(chunk):
                if not isinstance(self._look(position + match.start(), due), str):
                    return position + match.start()
            # A start may lie across the end of the chunk.
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
        """At most this many bytes from there on, out of the chunk where it has them."""
        at = position - self._chunk_at
        if not (at >= 0 and at + count <= len(self._chunk)):
            self._chunk = memoryview(os.pread(self._fd, max(CHUNK_BYTES, count), position))
            self._chunk_at, at = position, 0
        return self._chunk[at : at + min(count, max(self.size - position, 0))]
