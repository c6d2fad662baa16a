"""The followers of a warehouse, in the order that loads are safe by: whoever makes something visible comes after
whatever that needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.audit import AuditFollower
from headrace.loader.apply.engine import FollowerEngine
from headrace.loader.apply.files import FilesFollower
from headrace.loader.apply.group_offsets import GroupOffsetsFollower, OffsetCommitter
from headrace.loader.apply.index import IndexFollower
from headrace.loader.apply.partitions import PartitionsFollower
from headrace.loader.apply.schema import SchemaFollower, TableSettings
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.storage.protocols import Storage


@dataclass(frozen=True, slots=True)
class Chain:
    """The engine, with what others than loads need of its followers."""

    engine: FollowerEngine
    index: FileIndex
    partitions: PartitionsFollower


def chain_of(
    log: DecisionLog,
    storage: Storage,
    executor: Callable[[], Executor],
    tables: TableSettings,
    audit: AuditFollower,
    committer: OffsetCommitter,
) -> Chain:
    """
    Args:
        executor: of what is done to tables; asked for when it is first needed.
        committer: of the offsets that lag tools are shown.
    """
    index = FileIndex(log)
    partitions = PartitionsFollower(executor, tables, index)
    followers = (
        IndexFollower(index),
        SchemaFollower(executor, tables, log.head),
        FilesFollower(storage.files, index),
        partitions,
        audit,
        GroupOffsetsFollower(committer),
    )
    return Chain(FollowerEngine(log, storage.staging, followers), index, partitions)
