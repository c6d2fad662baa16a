"""Rows to container files: one file per (kind, topic, bucket) and task, more when it would grow too large.

Rows of a range go to a `RangeRows` of its own and join the task's files only when the range is finished; so a range
that must be dropped leaves nothing behind. Memory is bounded twice, whatever the number of buckets (a year of hours of
many topics): a range's rows beyond `RANGE_BYTES_MAX` become blocks in one spill file, the fullest buckets first, and
what waits in the task's files beyond `TASK_BYTES_MAX` is written out likewise. Blocks are moved from spill to file as
they are. At most `OPEN_FILES_MAX` files are open at once.

Files carry a random token of this attempt in their path, so that attempts of one task never share one; they are
forced to disk before they are named to anybody.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from headrace.loader.work_unit import FileKind, FileRange, StagedFile
from headrace.loader.write.container import ContainerFormat

RANGE_BYTES_MAX = 32 * 1024 * 1024  # rows and finished blocks of one range kept in memory
TASK_BYTES_MAX = 64 * 1024 * 1024  # rows that wait for a full block, over all files of a task
ROW_OVERHEAD_BYTES = 72  # of a bytes object and its place in a list, so that tiny rows count for what they take
OPEN_FILES_MAX = 64  # well below the usual limit of 1,024 descriptors, which other threads of the worker share
SYNC_THREADS = 16  # files forced to disk at once: a journal commits them together

BucketKey = tuple[FileKind, str, str]
"""(kind, topic, bucket)"""


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
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        formats: Callable[[FileKind, str], ContainerFormat],
        *,
        block_bytes: int,
        spill_dir: Path,
        bytes_max: int = RANGE_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._formats = formats
        self._block_bytes = block_bytes
        self._bytes_max = bytes_max
        self._spill_dir = spill_dir
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
            # No name in any folder: whatever becomes of the process, nothing is left to clean.
            self._spill = tempfile.TemporaryFile(dir=self._spill_dir)  # noqa: SIM115 - closed by drop
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


@dataclass(slots=True)
class _OpenFile:
    """A file of the task and the rows that wait for its next block."""

    key: BucketKey
    path: Path
    length: int = 0
    records: int = 0
    ranges: dict[int, FileRange] = field(default_factory=dict)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_pieces: list[FileRange] = field(default_factory=list)

    def book(self, pieces: Sequence[FileRange]) -> None:
        for piece in pieces:
            self.records += piece.records
            known = self.ranges.get(piece.partition)
            self.ranges[piece.partition] = (
                piece
                if known is None
                else FileRange(
                    piece.partition,
                    min(known.first, piece.first),
                    max(known.last, piece.last),
                    known.records + piece.records,
                )
            )


class TaskFiles:
    """The container files of one attempt of one task.

    Args:
        staging_dir: `staging/<work id>`; the files lie in a folder of this attempt below it.
        formats: gives the container format of (kind, topic); all of one attempt.
        metadata: of every file's header.
    """

    def __init__(
        self,
        staging_dir: Path,
        task: int,
        formats: Callable[[FileKind, str], ContainerFormat],
        metadata: dict[str, str],
        *,
        block_bytes: int,
        file_bytes_target: int,
        waiting_bytes_max: int = TASK_BYTES_MAX,
    ) -> None:
        self._staging_dir = staging_dir
        self.folder = staging_dir / f"task-{task:05d}-{secrets.token_hex(8)}"
        self._formats = formats
        self._metadata = metadata
        self._block_bytes = block_bytes
        self._file_bytes_target = file_bytes_target
        self._waiting_bytes_max = waiting_bytes_max
        self._open: dict[BucketKey, _OpenFile] = {}
        self._full: list[_OpenFile] = []
        self._handles: OrderedDict[Path, IO[bytes]] = OrderedDict()
        self._waiting_bytes = 0
        self._named = 0
        self.folder.mkdir(parents=True)

    def add_rows(self, key: BucketKey, rows: list[bytes], size: int, piece: FileRange) -> None:
        """Takes rows of one partition that wait for a full block; `size` is what they count for in memory."""
        file = self._file(key)
        file.waiting.extend(rows)
        file.waiting_bytes += size
        file.waiting_pieces.append(piece)
        self._waiting_bytes += size
        if file.waiting_bytes >= self._block_bytes:
            self._flush(file)
        if self._waiting_bytes > self._waiting_bytes_max:
            self._relieve()

    def add_block(self, key: BucketKey, data: bytes, piece: FileRange) -> None:
        """Takes a finished block of the key's format."""
        self._append(self._file(key), data, [piece])

    def finish(self) -> tuple[StagedFile, ...]:
        """Writes what waits, forces everything to disk and returns the files, in the order they were begun.

        Raises:
            OSError: the disk is full or fails.
        """
        for file in list(self._open.values()):
            self._flush(file)
        files = [*self._full, *self._open.values()]
        self._close_handles()
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            list(pool.map(_sync, [file.path for file in files]))
        for folder in (self.folder, self._staging_dir):
            _sync(folder)
        return tuple(self._staged(file) for file in sorted(files, key=lambda file: file.path))

    def abandon(self) -> None:
        """Closes what is open; the folder is nobody's and goes with the staging of its work."""
        self._close_handles()

    def _file(self, key: BucketKey) -> _OpenFile:
        file = self._open.get(key)
        if file is None:
            self._named += 1
            file = self._open[key] = _OpenFile(key, self.folder / f"{self._named:06d}.avro")
        return file

    def _flush(self, file: _OpenFile) -> None:
        if not file.waiting:
            return
        rows, pieces = file.waiting, file.waiting_pieces
        self._waiting_bytes -= file.waiting_bytes
        file.waiting, file.waiting_bytes, file.waiting_pieces = [], 0, []
        self._append(file, self._formats(*file.key[:2]).block(rows), pieces)

    def _relieve(self) -> None:
        for file in sorted(self._open.values(), key=lambda file: file.waiting_bytes, reverse=True):
            if self._waiting_bytes <= self._waiting_bytes_max // 2:
                break
            self._flush(file)

    def _append(self, file: _OpenFile, data: bytes, pieces: Sequence[FileRange]) -> None:
        if file.length == 0:
            self._write(file, self._formats(*file.key[:2]).header(self._metadata))
        self._write(file, data)
        file.book(pieces)
        if file.length >= self._file_bytes_target and not file.waiting:
            self._full.append(self._open.pop(file.key))

    def _write(self, file: _OpenFile, data: bytes) -> None:
        self._handle(file.path).write(data)
        file.digest.update(data)
        file.length += len(data)

    def _handle(self, path: Path) -> IO[bytes]:
        handle = self._handles.pop(path, None)
        if handle is None:
            if len(self._handles) >= OPEN_FILES_MAX:
                self._handles.popitem(last=False)[1].close()
            handle = path.open("ab")
        self._handles[path] = handle
        return handle

    def _close_handles(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()

    def _staged(self, file: _OpenFile) -> StagedFile:
        kind, topic, bucket = file.key
        return StagedFile(
            kind=kind,
            topic=topic,
            bucket=bucket,
            path=file.path.relative_to(self._staging_dir).as_posix(),
            length=file.length,
            checksum=file.digest.hexdigest(),
            records=file.records,
            ranges=tuple(file.ranges[partition] for partition in sorted(file.ranges)),
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
