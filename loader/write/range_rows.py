"""The rows of one range, held back until the range is whole, so that one that must be dropped leaves nothing behind.

Memory is bounded whatever the number of buckets (a year of hours of many topics): rows beyond `RANGE_BYTES_MAX`
become blocks in one spill file, the fullest buckets first. Blocks are moved from spill to file as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from headrace.loader.work_unit import FileKind, FileRange
from headrace.loader.write.container import ContainerFormat
from headrace.loader.write.task_files import TaskFiles

RANGE_BYTES_MAX = 32 * 1024 * 1024  # rows and finished blocks of one range kept in memory
ROW_OVERHEAD_BYTES = 72  # of a bytes object and its place in a list, so that tiny rows count for what they take


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block of a range: its bytes, or where they lie in the range's spill file."""

    piece: FileRange
    data: bytes
    spilled_at: int = -1
    length: int = 0


@dataclass(slots=True)
class _OpenRows:
    """Encoded rows of one bucket and one partition that are in no block yet, in offset order."""

    rows: list[bytes] = field(default_factory=list)
    bytes: int = 0
    first: int = -1
    last: int = -1
    blocks: list[Block] = field(default_factory=list)


class RangeRows:
    """The rows of one range, held back until the range is finished or dropped.

    Args:
        formats: gives the container format of (kind, topic).
        scratch: opens a file without a name, for what does not fit into memory.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        formats: Callable[[FileKind, str], ContainerFormat],
        *,
        block_bytes: int,
        scratch: Callable[[], IO[bytes]],
        bytes_max: int = RANGE_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._formats = formats
        self._block_bytes = block_bytes
        self._bytes_max = bytes_max
        self._scratch = scratch
        self._spill: IO[bytes] | None = None
        self._buckets: dict[tuple[FileKind, str], _OpenRows] = {}
        self._bytes = 0

    def add(self, kind: FileKind, bucket: str, offset: int, row: bytes) -> None:
        """Takes one encoded row; offsets of one kind and bucket must grow."""
        key = (kind, bucket)
        rows = self._buckets.get(key)
        if rows is None:
            rows = self._buckets[key] = _OpenRows()
        if not rows.rows:
            rows.first = offset
        rows.last = offset
        rows.rows.append(row)
        size = len(row) + ROW_OVERHEAD_BYTES
        rows.bytes += size
        self._bytes += size
        if rows.bytes >= self._block_bytes:
            self._close_block(kind, rows)
        if self._bytes > self._bytes_max:
            self._relieve()

    def drop(self) -> None:
        """Forgets all rows."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._buckets.clear()
        self._bytes = 0

    def finish_into(self, files: TaskFiles) -> None:
        """Hands all rows over to the files of the task; bucket by bucket, so that files are opened few at a time."""
        for (kind, bucket), rows in self._buckets.items():
            key = (kind, self.topic, bucket)
            for block in rows.blocks:
                files.add_block(key, self._block_data(block), block.piece)
            if rows.rows:
                files.add_rows(key, rows.rows, rows.bytes, self._piece(rows))
        self.drop()

    def _piece(self, rows: _OpenRows) -> FileRange:
        return FileRange(self.partition, rows.first, rows.last, len(rows.rows))

    def _close_block(self, kind: FileKind, rows: _OpenRows) -> None:
        data = self._formats(kind, self.topic).block(rows.rows)
        rows.blocks.append(Block(self._piece(rows), data))
        self._bytes += len(data) - rows.bytes
        rows.rows, rows.bytes = [], 0

    def _relieve(self) -> None:
        """Moves blocks to the spill file, and the fullest buckets' rows, until half the room is free."""
        by_size = sorted(self._buckets.items(), key=lambda item: item[1].bytes, reverse=True)
        for _, rows in by_size:
            self._spill_blocks(rows)
        for (kind, _), rows in by_size:
            if self._bytes <= self._bytes_max // 2:
                break
            if rows.rows:
                self._close_block(kind, rows)
                self._spill_blocks(rows)

    def _spill_blocks(self, rows: _OpenRows) -> None:
        if self._spill is None:
            self._spill = self._scratch()
        for index, block in enumerate(rows.blocks):
            if block.spilled_at < 0:
                at = self._spill.seek(0, os.SEEK_END)
                self._spill.write(block.data)
                self._bytes -= len(block.data)
                rows.blocks[index] = Block(block.piece, b"", at, len(block.data))

    def _block_data(self, block: Block) -> bytes:
        if block.spilled_at < 0:
            return block.data
        assert self._spill is not None
        self._spill.seek(block.spilled_at)
        return self._spill.read(block.length)
