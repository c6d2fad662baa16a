"""Writes rows to container files: one file per (kind, topic, time partition), and another one whenever a file has
reached the target size.

Receives rows and blocks of ranges whose read has ended (`range_rows`). Rows wait in memory until they fill a block. If
they exceed `TASK_BYTES_MAX` over all files, they are written in smaller blocks, beginning with the files that have the
most waiting rows. This module chooses the file of a row, and a sink writes finished blocks. The sink makes the files
durable before they are returned, except where Spark writes them (`file_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.loader.checksum import Checksum
from headrace.loader.storage.protocols import BlockSink
from headrace.loader.work_unit import FileKind, FileRange, StagedFile
from headrace.loader.write.container import ContainerFormat

TASK_BYTES_MAX = 64 * 1024 * 1024  # rows that wait for a full block, over all files of a task

TimePartitionKey = tuple[FileKind, str, str]
"""(kind, topic, time partition)"""


@dataclass(slots=True)
class _OpenFile:
    """A file of the task and the rows that wait for its next block."""

    key: TimePartitionKey
    name: str  # relative to the directory of the task attempt
    length: int = 0
    records: int = 0
    ranges: dict[int, FileRange] = field(default_factory=dict)
    checksum: Checksum = field(default_factory=Checksum)
    waiting: list[bytes | bytearray] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_ranges: list[FileRange] = field(default_factory=list)

    def add_ranges(self, file_ranges: Sequence[FileRange]) -> None:
        for file_range in file_ranges:
            self.records += file_range.records
            before = self.ranges.get(file_range.partition)
            self.ranges[file_range.partition] = (
                file_range
                if before is None
                else FileRange(
                    file_range.partition,
                    min(before.first, file_range.first),
                    max(before.last, file_range.last),
                    before.records + file_range.records,
                )
            )


class TaskFiles:
    """Container files of one attempt of one task, or of the driver.

    Args:
        sink: writes the blocks, in a directory of this attempt.
        formats: returns the container format of (kind, topic).
        metadata: metadata in the header of every file.
    """

    def __init__(
        self,
        sink: BlockSink,
        formats: Callable[[FileKind, str], ContainerFormat],
        metadata: dict[str, str],
        *,
        block_bytes: int,
        file_bytes_target: int,
        waiting_bytes_max: int = TASK_BYTES_MAX,
    ) -> None:
        self._sink = sink
        self._formats = formats
        self._metadata = metadata
        self._block_bytes = block_bytes
        self._file_bytes_target = file_bytes_target
        self._waiting_bytes_max = waiting_bytes_max
        self._open: dict[TimePartitionKey, _OpenFile] = {}
        self._full: list[_OpenFile] = []
        self._waiting_bytes = 0
        self._file_count = 0

    def add_rows(self, key: TimePartitionKey, rows: bytes | bytearray, file_range: FileRange) -> None:
        """Adds joined rows of one topic partition to the open file of `key`. They are buffered until they fill a block.

        Args:
            key: kind (table or quarantine), topic and time partition.
            file_range: partition, offsets and number of the rows.
        """
        file = self._file(key)
        file.waiting.append(rows)
        file.waiting_bytes += len(rows)
        file.waiting_ranges.append(file_range)
        self._waiting_bytes += len(rows)
        if file.waiting_bytes >= self._block_bytes:
            self._flush(file)
        if self._waiting_bytes > self._waiting_bytes_max:
            self._flush_largest()

    def add_block(self, key: TimePartitionKey, data: bytes, file_range: FileRange) -> None:
        """Appends a finished block to the open file of `key`. The block must have the container format of this file.

        Args:
            key: kind (table or quarantine), topic and time partition.
            data: the bytes of the block.
            file_range: partition, offsets and number of the block's rows.
        """
        self._append(self._file(key), data, [file_range])

    def finish(self) -> tuple[StagedFile, ...]:
        """Writes the remaining rows, finishes the files (`BlockSink.finish`) and returns them, in the order of their
        creation.

        Raises:
            OSError: the disk is full or fails.
        """
        for file in list(self._open.values()):
            self._flush(file)
        files = [*self._full, *self._open.values()]
        self._sink.finish([file.name for file in files])
        return tuple(self._staged(file) for file in sorted(files, key=lambda file: file.name))

    def abandon(self) -> None:
        """Closes open files. Their directory is deleted later with the run's staging directory."""
        self._sink.abandon()

    def _file(self, key: TimePartitionKey) -> _OpenFile:
        file = self._open.get(key)
        if file is None:
            self._file_count += 1
            file = self._open[key] = _OpenFile(key, f"{self._file_count:06d}.avro")
        return file

    def _flush(self, file: _OpenFile) -> None:
        if not file.waiting:
            return
        rows, file_ranges = file.waiting, file.waiting_ranges
        self._waiting_bytes -= file.waiting_bytes
        file.waiting, file.waiting_bytes, file.waiting_ranges = [], 0, []
        count = sum(file_range.records for file_range in file_ranges)
        block = self._formats(*file.key[:2]).block_of(count, b"".join(rows))
        self._append(file, block, file_ranges)

    def _flush_largest(self) -> None:
        for file in sorted(self._open.values(), key=lambda file: file.waiting_bytes, reverse=True):
            if self._waiting_bytes <= self._waiting_bytes_max // 2:
                break
            self._flush(file)

    def _append(self, file: _OpenFile, data: bytes, file_ranges: Sequence[FileRange]) -> None:
        if file.length == 0:
            self._write(file, self._formats(*file.key[:2]).header(self._metadata))
        self._write(file, data)
        file.add_ranges(file_ranges)
        if file.length >= self._file_bytes_target and not file.waiting:
            self._full.append(self._open.pop(file.key))

    def _write(self, file: _OpenFile, data: bytes) -> None:
        self._sink.append(file.name, data)
        file.checksum.update(data)
        file.length += len(data)

    def _staged(self, file: _OpenFile) -> StagedFile:
        kind, topic, time_partition = file.key
        return StagedFile(
            kind=kind,
            topic=topic,
            time_partition=time_partition,
            path=f"{self._sink.directory}/{file.name}",
            length=file.length,
            checksum=str(file.checksum),
            records=file.records,
            ranges=tuple(file.ranges[partition] for partition in sorted(file.ranges)),
        )
