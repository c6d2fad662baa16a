"""Buffers the rows of one range until its read has ended, so that the rows of an unusable range never reach a file.

Memory is bounded regardless of the number of time partitions: rows beyond `RANGE_BYTES_MAX` become blocks in one
temporary file (spill file), beginning with the time partitions that have the most buffered rows. The blocks are later
copied unchanged to the final file.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from headrace.loader.project.batches import RowRun
from headrace.loader.work_unit import FileKind, FileRange
from headrace.loader.write.container import ContainerFormat
from headrace.loader.write.task_files import TaskFiles

RANGE_BYTES_MAX = 32 * 1024 * 1024  # maximum memory for rows and finished blocks of one range


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block of a range: its bytes, or their position in the range's spill file. `file_range` states the
    partition, the offsets and the number of its rows."""

    file_range: FileRange
    data: bytes
    spilled_at: int = -1
    length: int = 0


@dataclass(slots=True)
class _OpenRows:
    """Encoded rows of one time partition, in offset order, and its finished blocks (`blocks`).

    `data` are the rows that are in no block yet, joined, because most arrive joined from the core and they are
    compressed together. `count` is their number; `first` and `last` are their first and last offsets.
    """

    data: bytearray = field(default_factory=bytearray)
    count: int = 0
    first: int = -1
    last: int = -1
    blocks: list[Block] = field(default_factory=list)


class RangeRows:
    """The rows of one range, until they are passed to files or dropped.

    Block boundaries depend only on the rows and on the calls of `limit_memory`, not on how many rows are added at once.

    Args:
        formats: returns the container format of (kind, topic).
        scratch: opens an unnamed file for rows that do not fit into memory.
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
        self._time_partitions: dict[tuple[FileKind, str], _OpenRows] = {}
        self._bytes = 0

    def add(self, kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
        """Adds one encoded row of the table or of the quarantine (`kind`). The offsets of the rows with one kind and
        time partition must increase."""
        self._append(kind, self._open_rows(kind, time_partition), offset, offset, 1, row)

    def add_run(self, kind: FileKind, time_partition: str, run: RowRun) -> None:
        """Adds rows of one time partition, which the C core joined in `run`, in offset order; `kind` states whether
        they belong to the table or to the quarantine."""
        rows = self._open_rows(kind, time_partition)
        added = at = 0
        while added < len(run.ends):
            end = self._block_end(rows, run.ends, added, at)
            until = run.ends[end - 1]
            self._append(kind, rows, run.offsets[added], run.offsets[end - 1], end - added, run.data[at:until])
            added, at = end, until

    def limit_memory(self) -> None:
        """Spills rows if they exceed the memory limit. Call it after the rows of each batch."""
        if self._bytes > self._bytes_max:
            self._spill_rows()

    def _open_rows(self, kind: FileKind, time_partition: str) -> _OpenRows:
        rows = self._time_partitions.get((kind, time_partition))
        if rows is None:
            rows = self._time_partitions[kind, time_partition] = _OpenRows()
        return rows

    def _block_end(self, rows: _OpenRows, ends: Sequence[int], added: int, at: int) -> int:
        """Returns the index after the row of a run that fills the open block; the number of rows if the block does not
        become full.

        Args:
            rows: the rows in the open block.
            ends: the end position of each row of the run, in bytes.
            added: the number of rows of the run that were added already; they end at position `at`.
        """
        full = at + self._block_bytes - len(rows.data)
        return min(bisect_left(ends, full, lo=added) + 1, len(ends))

    def _append(
        self, kind: FileKind, rows: _OpenRows, first: int, last: int, count: int, data: bytes | memoryview
    ) -> None:
        if not rows.count:
            rows.first = first
        rows.last = last
        rows.data += data
        rows.count += count
        self._bytes += len(data)
        if len(rows.data) >= self._block_bytes:
            self._close_block(kind, rows)

    def drop(self) -> None:
        """Discards all rows."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._time_partitions.clear()
        self._bytes = 0

    def finish_into(self, files: TaskFiles) -> None:
        """Passes all rows to the files of the task, one time partition at a time, so that few files are open."""
        for (kind, time_partition), rows in self._time_partitions.items():
            key = (kind, self.topic, time_partition)
            for block in rows.blocks:
                files.add_block(key, self._block_data(block), block.file_range)
            if rows.count:
                files.add_rows(key, rows.data, self._file_range(rows))
        self.drop()

    def _file_range(self, rows: _OpenRows) -> FileRange:
        return FileRange(self.partition, rows.first, rows.last, rows.count)

    def _close_block(self, kind: FileKind, rows: _OpenRows) -> None:
        data = self._formats(kind, self.topic).block_of(rows.count, rows.data)
        rows.blocks.append(Block(self._file_range(rows), data))
        self._bytes += len(data) - len(rows.data)
        rows.data, rows.count = bytearray(), 0

    def _spill_rows(self) -> None:
        """Spills until at most half of the memory limit is used: first finished blocks, then also the buffered rows.
        Time partitions with the most bytes of buffered rows come first."""
        by_size = sorted(self._time_partitions.items(), key=lambda item: len(item[1].data), reverse=True)
        for closes_blocks in (False, True):
            for (kind, _), rows in by_size:
                if self._bytes <= self._bytes_max // 2:
                    return
                if closes_blocks and rows.count:
                    self._close_block(kind, rows)
                self._spill_blocks(rows)

    def _spill_blocks(self, rows: _OpenRows) -> None:
        if self._spill is None:
            self._spill = self._scratch()
        for index, block in enumerate(rows.blocks):
            if self._bytes <= self._bytes_max // 2:
                return
            if block.spilled_at < 0:
                at = self._spill.seek(0, os.SEEK_END)
                self._spill.write(block.data)
                self._bytes -= len(block.data)
                rows.blocks[index] = Block(block.file_range, b"", at, len(block.data))

    def _block_data(self, block: Block) -> bytes:
        if block.spilled_at < 0:
            return block.data
        assert self._spill is not None
        self._spill.seek(block.spilled_at)
        return self._spill.read(block.length)
