"""Merges files: copies the rows of container files to larger blocks and files without decoding them.

Only files with the same schema are merged, by the rule `choose.mergeable`; if the schema changed within a time
partition, files of each schema remain. The checksum of every source is verified before its rows are copied, because the
merged file gets a new checksum.

A change of a table's partitioning uses the same tasks: it copies the files of all hours of a day to files of the day,
or divides the rows of a day among its hours.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import fastavro

from headrace.loader.build import current_build
from headrace.loader.checksum import Checksum, checksum_as
from headrace.loader.rewrite.choose import mergeable
from headrace.loader.rewrite.row_hours import RowHours, RowsUnplaced, TimeSource
from headrace.loader.storage.local import files_at
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import BlockSink, WarehouseFiles
from headrace.loader.work_unit import FileKind, FileRange, StagedFile
from headrace.loader.write.container import SYNC_BYTES, ContainerFormat


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A published file to be merged: its path below the warehouse, and its length, rows and checksum from the
    commit."""

    name: str
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class MergeUnit:
    """The files of one time partition that a task, or the driver, merges into one file or into one per schema. Sizes
    are in bytes.

    `warehouse` is the directory from which tasks open the published files (`WarehouseFiles.root`), `staging` the
    directory for the merged files (`Staging.location`). `build` identifies the driver's installation; a task with
    another one refuses the unit.

    If the partitioning of the table changes, `takes_all` is True and all sources are copied, also a single one. With
    `times`, `time_partition` is a day, and each row is copied to a file of its hour.
    """

    run_id: str
    task: int
    kind: FileKind
    topic: str
    time_partition: str
    sources: tuple[MergeSource, ...]
    warehouse: str
    staging: str
    codec: str
    block_bytes: int
    build: str
    takes_all: bool = False
    times: TimeSource | None = None


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of one `MergeUnit`: the merged files, or none and the reason in `error`. `merged` are the indexes of
    the sources that they replace; sources with a schema of their own are not merged."""

    task: int
    files: tuple[StagedFile, ...]
    merged: frozenset[int] = frozenset()
    error: str = ""


@dataclass(slots=True)
class _Merged:
    """A merged file that is being written, with the rows that wait for its next block."""

    name: str
    time_partition: str
    format: ContainerFormat
    length: int = 0
    records: int = 0
    ranges: dict[int, FileRange] = field(default_factory=dict)
    checksum: Checksum = field(default_factory=Checksum)
    count: int = 0
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0


class SourceDamaged(Exception):
    """Raised if a published file that is to be merged differs from its commit."""


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Merges the files of one time partition, as listed in `unit`, in a Spark task. Returns the merged files, or an
    error text in the result."""
    try:
        sink = LocalSink(unit.staging, unit.task)
    except OSError as error:
        return MergeResult(unit.task, (), error=f"cannot write to {unit.staging}: {error.strerror}")
    return merge(unit, files_at(unit.warehouse), sink)


def merge(unit: MergeUnit, files: WarehouseFiles, sink: BlockSink) -> MergeResult:
    """Merges the small files of one time partition, as listed in `unit`, and returns the merged files. If a file is
    damaged, a disk fails or the driver has another build, returns the reason in the result instead of raising an error.

    Args:
        files: opens the published files.
        sink: receives the merged files.
    """
    if unit.build != (build := current_build()):
        reason = (
            f"task {unit.task} runs {build}, but the driver runs {unit.build}; install the same Headrace and "
            "Python for both"
        )
        return MergeResult(unit.task, (), error=reason)
    try:
        merged = _worth_merging(unit, files)
        sources = [source for index, source in enumerate(unit.sources) if index in merged]
        return MergeResult(unit.task, _merge(unit, sources, files, sink) if sources else (), merged)
    except SourceDamaged as error:
        return MergeResult(unit.task, (), error=str(error))
    except RowsUnplaced as error:
        return MergeResult(unit.task, (), error=f"files of {unit.time_partition} cannot be divided by hour: {error}")
    except OSError as error:
        path = f": {error.filename}" if error.filename else ""
        return MergeResult(unit.task, (), error=f"{error.strerror or error}{path}")
    finally:
        sink.abandon()


def _worth_merging(unit: MergeUnit, files: WarehouseFiles) -> frozenset[int]:
    """Returns the indexes of the sources that are to be merged with others of the same schema. Verifies the checksums
    of all sources.

    Raises:
        SourceDamaged, OSError: a source is damaged or cannot be read.
    """
    by_schema: dict[str, dict[str, int]] = {}
    for source in unit.sources:
        _verify_checksum(source, files)
        with files.open(source.name) as opened:
            schema, _ = _blocks(source, files, opened)
        by_schema.setdefault(schema, {})[source.name] = source.length
    chosen: set[str] = set()
    for lengths in by_schema.values():
        names = {path.rpartition("/")[2]: path for path in lengths}
        chosen |= {names[name] for name in mergeable({name: lengths[path] for name, path in names.items()})}
    return frozenset(index for index, source in enumerate(unit.sources) if unit.takes_all or source.name in chosen)


class _Targets:
    """The files that a unit writes, one per schema and time partition."""

    def __init__(self, unit: MergeUnit, sink: BlockSink) -> None:
        self._unit = unit
        self._sink = sink
        self._merged: dict[tuple[str, str], _Merged] = {}
        self._hours: dict[str, RowHours] = {}

    def add_block(self, schema: str, count: int, rows: bytes, times: TimeSource | None) -> int:
        """Adds a block of a source file with this schema. Returns the number of rows added.

        Args:
            count: the number of rows that the block states.
            times: if given, each row is added to the file of its hour.
        """
        unit = self._unit
        if times is None:
            _add_rows(self._of(schema, unit.time_partition), count, rows, unit.block_bytes, self._sink)
            return count
        if schema not in self._hours:
            self._hours[schema] = RowHours(schema, unit.kind, unit.time_partition, times)
        added = 0
        for time_partition, partition, offset, row in self._hours[schema].rows(rows):
            target = self._of(schema, time_partition)
            _add_rows(target, 1, row, unit.block_bytes, self._sink)
            _add_range(target, FileRange(partition, offset, offset, 1))
            added += 1
        return added

    def add_ranges(self, schema: str, ranges: Sequence[FileRange]) -> None:
        target = self._of(schema, self._unit.time_partition)
        for file_range in ranges:
            _add_range(target, file_range)

    def finish(self) -> tuple[StagedFile, ...]:
        targets = self._merged.values()
        for target in targets:
            _flush(target, self._sink)
        self._sink.finish([target.name for target in targets])
        return tuple(_staged(self._unit, target, self._sink) for target in targets)

    def _of(self, schema: str, time_partition: str) -> _Merged:
        target = self._merged.get((schema, time_partition))
        if target is None:
            container = ContainerFormat(schema, self._unit.codec, secrets.token_bytes(SYNC_BYTES))
            target = _Merged(f"{len(self._merged) + 1:06d}.avro", time_partition, container)
            self._merged[schema, time_partition] = target
            header = {"headrace.run_id": self._unit.run_id, "headrace.task": str(self._unit.task)}
            _append(target, container.header(header), self._sink)
        return target


def _merge(
    unit: MergeUnit, sources: Sequence[MergeSource], files: WarehouseFiles, sink: BlockSink
) -> tuple[StagedFile, ...]:
    targets = _Targets(unit, sink)
    for source in sources:
        with files.open(source.name) as opened:
            schema, blocks = _blocks(source, files, opened)
            records = sum(targets.add_block(schema, count, rows, unit.times) for count, rows in blocks)
        if records != source.records:
            raise SourceDamaged(
                f"{files.describe(source.name)} has {records} rows instead of {source.records}; "
                "restore it from a backup"
            )
        if unit.times is None:
            targets.add_ranges(schema, source.ranges)
    return targets.finish()


def _verify_checksum(source: MergeSource, files: WarehouseFiles) -> None:
    with files.open(source.name) as opened:
        checksum = checksum_as(source.checksum, opened)
    if checksum != source.checksum:
        raise SourceDamaged(
            f"{files.describe(source.name)} is damaged: its checksum is not the committed one; restore it from a backup"
        )


def _blocks(source: MergeSource, files: WarehouseFiles, opened: IO[bytes]) -> tuple[str, Iterator[tuple[int, bytes]]]:
    """Returns the schema text of a source file, and an iterator over its blocks as (number of rows, joined rows).

    Args:
        files: the files of the warehouse, for the error message.
        opened: the source file, open for reading.

    Raises:
        SourceDamaged: it is not an Avro file.
    """
    try:
        reader = fastavro.block_reader(opened)
        schema = reader.metadata["avro.schema"]
    except (ValueError, KeyError, EOFError) as error:
        raise SourceDamaged(
            f"{files.describe(source.name)} is no Avro file: {error}; restore it from a backup"
        ) from error
    return schema, ((block.num_records, block.bytes_.read()) for block in reader)


def _add_rows(target: _Merged, count: int, rows: bytes, block_bytes: int, sink: BlockSink) -> None:
    target.count += count
    target.waiting.append(rows)
    target.waiting_bytes += len(rows)
    if target.waiting_bytes >= block_bytes:
        _flush(target, sink)


def _flush(target: _Merged, sink: BlockSink) -> None:
    if target.count:
        _append(target, target.format.block_of(target.count, b"".join(target.waiting)), sink)
        target.records += target.count
        target.count, target.waiting, target.waiting_bytes = 0, [], 0


def _append(target: _Merged, data: bytes, sink: BlockSink) -> None:
    sink.append(target.name, data)
    target.checksum.update(data)
    target.length += len(data)


def _add_range(target: _Merged, file_range: FileRange) -> None:
    target.ranges[file_range.partition] = _joined(target.ranges.get(file_range.partition), file_range)


def _joined(before: FileRange | None, file_range: FileRange) -> FileRange:
    if before is None:
        return file_range
    first, last = min(before.first, file_range.first), max(before.last, file_range.last)
    return FileRange(file_range.partition, first, last, before.records + file_range.records)


def _staged(unit: MergeUnit, target: _Merged, sink: BlockSink) -> StagedFile:
    return StagedFile(
        kind=unit.kind,
        topic=unit.topic,
        time_partition=target.time_partition,
        path=f"{sink.directory}/{target.name}",
        length=target.length,
        checksum=str(target.checksum),
        records=target.records,
        ranges=tuple(target.ranges[partition] for partition in sorted(target.ranges)),
    )
