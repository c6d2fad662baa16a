"""Adds the time partitions of published files to their Hive tables, and drops partitions without files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import Op, PartitionValues
from headrace.hive_ddl.plan import plan_partitions
from headrace.hive_ddl.table import TableState
from headrace.loader.apply.base import Step
from headrace.loader.apply.layout import (
    PARTITION_COLUMNS,
    QUARANTINE_DATABASE_SUFFIX,
    partition_values,
    time_partition_directory,
)
from headrace.loader.apply.replacement import TableReplacement
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import generation_at, live_at
from headrace.loader.commit.state import TopicState
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class PartitionsApplier:
    """`replacement` replaces the tables of topics whose partitioning a commit changed."""

    executor: Callable[[], Executor]
    settings: TableSettings
    index: FileIndex
    replacement: TableReplacement
    name: str = "partitions"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        replaced = self.replacement.replace(step) if step.state.is_repartitioned else frozenset()
        for kind in FileKind:
            if kind not in replaced:
                self.update(step.topic, step.state, kind, _time_partitions(step, kind), step.commit_number, step.since)

    def update(
        self,
        topic: str,
        state: TopicState,
        kind: FileKind,
        time_partitions: Collection[str],
        commit_number: int,
        since: int = -1,
    ) -> tuple[Op, ...]:
        """Changes the partitions of a topic's table so that queries read the files of these time partitions as of a
        commit: adds missing partitions, drops those without files, and moves those with a new generation to its
        directory. Returns the changes.

        Args:
            state: the topic's state, with the names of its table and directory.
            kind: whether the table of rows or the quarantine table is changed.
            time_partitions: the time partitions; others are not changed. Those of an earlier partitioning of the table
                are ignored: the table has none of them.
            commit_number: the commit.
            since: the commit up to which the table's partitions are known to be right, -1 if unknown. A time partition
                that had no files at `since` and was never rewritten is added without checking whether it exists; adding
                an existing one changes nothing.
        """
        columns = len(PARTITION_COLUMNS[state.partition_by])
        time_partitions = [one for one in time_partitions if len(partition_values(one)) == columns]
        if not time_partitions:
            return ()
        locations: dict[PartitionValues, str] = {}
        to_look_up: set[PartitionValues] = set()
        dropped: set[PartitionValues] = set()
        for time_partition in sorted(time_partitions):
            values = partition_values(time_partition)
            indexed = self.index.time_partition(topic, kind, time_partition)
            if state.generation and not live_at(indexed, commit_number):
                dropped.add(values)
                continue
            directory = time_partition_directory(
                state.directory, kind, time_partition, generation_at(indexed, commit_number)
            )
            locations[values] = self.settings.files.location(directory)
            if since < 0 or indexed.generations or live_at(indexed, since):
                to_look_up.add(values)
        # Without a schema, which takes a millisecond to derive and is not part of a partition.
        database = self.settings.database + (QUARANTINE_DATABASE_SUFFIX if kind is FileKind.QUARANTINE else "")
        table = TableState(database, state.table, "", (), PARTITION_COLUMNS[state.partition_by])
        executor = self.executor()
        existing = executor.partitions(table.database, table.name, to_look_up) if to_look_up else {}
        operations = plan_partitions(table, existing, locations, dropped)
        for operation in operations:
            executor.execute(operation)
        return operations


def _time_partitions(step: Step, kind: FileKind) -> set[str]:
    """Returns the time partitions of a topic in which the commits in `step` changed data files or quarantine files
    (`kind`). (After `Step.rewind` these are all commits of the topic.)"""
    committed = [commit.topics[step.topic] for commit in step.commits]
    files = {file.time_partition for one in committed for file in one.files if file.kind is kind}
    return files | {rewrite.time_partition for one in committed for rewrite in one.rewrites if rewrite.kind is kind}
