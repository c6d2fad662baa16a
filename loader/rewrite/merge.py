"""Merges files: copies the rows of container files to larger blocks and files without decoding them.

Only files with the same schema are merged, by the rule `choose.mergeable`; if the schema changed within a time
partition, files of each schema remain. The checksum of every source is verified before its rows are copied, because the
merged file gets a new checksum.
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
    return frozenset(index for index, source in enumerate(unit.sources) if source.name in chosen)


def _merge(
    unit: MergeUnit, sources: Sequence[MergeSource], files: WarehouseFiles, sink: BlockSink
) -> tuple[StagedFile, ...]:
    merged: dict[str, _Merged] = {}
    for source in sources:
        with files.open(source.name) as opened:
            schema, blocks = _blocks(source, files, opened)
            target = merged.get(schema)
            if target is None:
                container = ContainerFormat(schema, unit.codec, secrets.token_bytes(SYNC_BYTES))
                target = merged[schema] = _Merged(f"{len(merged) + 1:06d}.avro", container)
                header = {"headrace.run_id": unit.run_id, "headrace.task": str(unit.task)}
                _append(target, container.header(header), sink)
            records = 0
            for count, rows in blocks:
                records += count
                _add_rows(target, count, rows, unit.block_bytes, sink)
        if records != source.records:
            raise SourceDamaged(
                f"{files.describe(source.name)} has {records} rows instead of {source.records}; "
                "restore it from a backup"
            )
        _add_ranges(target, source)
    for target in merged.values():
        _flush(target, sink)
    sink.finish([target.name for target in merged.values()])
    return tuple(_staged(unit, target, sink) for target in merged.values())


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


def _add_ranges(target: _Merged, source: MergeSource) -> None:
    for file_range in source.ranges:
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
        time_partition=unit.time_partition,
        path=f"{sink.directory}/{target.name}",
        length=target.length,
        checksum=str(target.checksum),
        records=target.records,
        ranges=tuple(target.ranges[partition] for partition in sorted(target.ranges)),
    )
