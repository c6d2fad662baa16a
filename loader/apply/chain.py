"""The appliers of a warehouse, in the order that loads are safe by: whoever makes something visible comes after
whatever that needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.audit import AuditApplier
from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.files import FilesApplier
from headrace.loader.apply.group_offsets import GroupOffsetsApplier, OffsetCommitter
from headrace.loader.apply.index import IndexApplier
from headrace.loader.apply.partitions import PartitionsApplier
from headrace.loader.apply.schema import SchemaApplier, TableSettings
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.storage.protocols import Storage


@dataclass(frozen=True, slots=True)
class Chain:
    """The engine, with what others than loads need of its appliers."""

    engine: ApplierEngine
    index: FileIndex
    partitions: PartitionsApplier


def chain_of(
    log: CommitLog,
    storage: Storage,
    executor: Callable[[], Executor],
    tables: TableSettings,
    audit: AuditApplier,
    committer: OffsetCommitter,
) -> Chain:
    """
    Args:
        executor: of what is done to tables; asked for when it is first needed.
        committer: of the offsets that lag tools are shown.
    """
    index = FileIndex(log)
    partitions = PartitionsApplier(executor, tables, index)
    appliers = (
        IndexApplier(index),
        SchemaApplier(executor, tables, log.head),
        FilesApplier(storage.files, index),
        partitions,
        audit,
        GroupOffsetsApplier(committer),
    )
    return Chain(ApplierEngine(log, storage.staging, appliers), index, partitions)
