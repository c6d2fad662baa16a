"""Builds the appliers of a warehouse in a safe order: an applier that makes data visible comes after the appliers that
create its prerequisites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.audit import AuditApplier
from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.files import FilesApplier
from headrace.loader.apply.group_offsets import GroupOffsetsApplier, OffsetCommitter
from headrace.loader.apply.partitions import PartitionsApplier
from headrace.loader.apply.replacement import TableReplacement
from headrace.loader.apply.schema import SchemaApplier, TableSettings
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.storage.protocols import Storage


@dataclass(frozen=True, slots=True)
class IndexApplier:
    """Maintains the index of live files (no rewrite has removed them from their topic). It is the first applier,
    because later ones find a file's directory in the index."""

    files: FileIndex
    name: str = "index"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        self.files.update_files(step.topic, step.commits)


@dataclass(frozen=True, slots=True)
class ApplierChain:
    """The engine that runs all appliers. Also the file index and the applier of partitions, which rewrites and the
    deletion of replaced files use directly."""

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
) -> ApplierChain:
    """Builds the appliers of a warehouse.

    Args:
        log: the commit log whose commits they apply.
        storage: the warehouse's published files and its staging.
        executor: returns the executor of table operations; called whenever a table is read or changed.
        tables: the settings from which the Hive tables are defined.
        audit: the applier that writes counts to the audit.
        committer: commits the group offsets that lag tools show.
    """
    index = FileIndex(log)
    schema = SchemaApplier(executor, tables, log.head)
    replacement = TableReplacement(executor, tables, index, log.head, schema.update_view)
    partitions = PartitionsApplier(executor, tables, index, replacement)
    appliers = (
        IndexApplier(index),
        schema,
        FilesApplier(storage.files, index),
        partitions,
        audit,
        GroupOffsetsApplier(committer),
    )
    return ApplierChain(ApplierEngine(log, storage.staging, appliers), index, partitions)
