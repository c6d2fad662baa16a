"""Replaces the Hive table of a topic whose partitioning a commit changed.

A metastore cannot change the partition columns of a table. A new table is therefore created under another name, gets
all partitions, and takes the name of the old one: the old one is dropped, then the new one is renamed. A query finds
the old table, the new one, or, between these two steps, no table; never a part of the rows, and never a row twice.

After a kill between any two steps, the next run begins again. Tables that killed runs left under other names are
dropped by the next replacement of the topic's table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from headrace.hive_ddl.errors import StatementRefused
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.names import REPLACEMENT_PREFIX
from headrace.hive_ddl.ops import DropTable, PartitionValues, RenameTable
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import COMPLETE_UNTIL, TableState
from headrace.loader.apply.base import Step
from headrace.loader.apply.layout import partition_values, time_partition_directory
from headrace.loader.apply.schema import TableSettings, data_table, is_newer, quarantine_table
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import generation_at, live_at
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

HASH_DIGITS = 16  # of the topic in the name of a new table


@dataclass(frozen=True, slots=True)
class TableReplacement:
    """`head` returns the number of the log's newest commit. `update_view` creates the view of a topic's table again,
    which has the partition columns."""

    executor: Callable[[], Executor]
    settings: TableSettings
    index: FileIndex
    head: Callable[[], int]
    update_view: Callable[[Step], None]

    def replace(self, step: Step) -> frozenset[FileKind]:
        """Replaces the tables of a repartitioned topic that are missing or have other partition columns than `step`
        states. Returns the kinds of files whose tables have all partitions now, or were replaced for a newer commit."""
        replaced = frozenset(kind for kind in FileKind if self._replace(step, kind))
        if FileKind.DATA in replaced:
            self.update_view(step)
        return replaced

    def _replace(self, step: Step, kind: FileKind) -> bool:
        define_table = quarantine_table if kind is FileKind.QUARANTINE else data_table
        run_id = step.commits[-1].run_id if step.commits else "check"
        wanted = define_table(step.topic, step.state, self.settings, f"{step.state.commit_number}-{run_id}")
        current = self.executor().table(wanted.database, wanted.name)
        if current is None and kind is FileKind.QUARANTINE and not step.state.quarantine.files:
            return False
        if current is not None:
            # Raises an error if the table is not that of the topic.
            plan_table(current, dataclasses.replace(wanted, partition_columns=current.partition_columns))
            if current.partition_columns == wanted.partition_columns:
                return False
            if is_newer(current, step.state.commit_number, self.head()):
                return True
            wanted = _with_complete_until(wanted, current)
        try:
            self._create_and_rename(step, kind, wanted)
        except StatementRefused:
            # Another run may have replaced the table first, and dropped the new table of this one.
            current = self.executor().table(wanted.database, wanted.name)
            if current is None or current.partition_columns != wanted.partition_columns:
                raise
            return False
        logger.info("table_replaced table=%s columns=%s", wanted.full_name, ",".join(wanted.partition_columns))
        return True

    def _create_and_rename(self, step: Step, kind: FileKind, wanted: TableState) -> None:
        executor = self.executor()
        executor.ensure_database(wanted.database)
        prefix = f"{REPLACEMENT_PREFIX}{hashlib.sha256(step.topic.encode()).hexdigest()[:HASH_DIGITS]}_"
        leftovers = sorted(name for name in executor.table_names(wanted.database) if name.startswith(prefix))
        new = dataclasses.replace(wanted, name=f"{prefix}{secrets.token_hex(4)}")
        for operation in (*plan_table(None, new), *plan_partitions(new, {}, self._locations(step, kind))):
            executor.execute(operation)
        current = executor.table(wanted.database, wanted.name)
        if current is not None and current.partition_columns == wanted.partition_columns:
            leftovers.append(new.name)  # another run was faster
        else:
            executor.execute(DropTable(wanted.database, wanted.name, step.topic))
            executor.execute(RenameTable(wanted.database, new.name, wanted.name))
        for name in leftovers:
            executor.execute(DropTable(wanted.database, name, step.topic))

    def _locations(self, step: Step, kind: FileKind) -> dict[PartitionValues, str]:
        """Returns the location of each time partition with files, by its values."""
        locations: dict[PartitionValues, str] = {}
        for day in self.index.days(step.topic, kind):
            for time_partition, indexed in self.index.day_uncached(step.topic, kind, day).time_partitions.items():
                if live_at(indexed, step.commit_number):
                    generation = generation_at(indexed, step.commit_number)
                    directory = time_partition_directory(step.state.directory, kind, time_partition, generation)
                    locations[partition_values(time_partition)] = self.settings.files.location(directory)
        return locations


def _with_complete_until(wanted: TableState, current: TableState) -> TableState:
    """Returns the definition `wanted` with the property `headrace.complete_until` of the table that it replaces."""
    kept = {key: value for key, value in current.properties.items() if key == COMPLETE_UNTIL}
    return dataclasses.replace(wanted, properties=MappingProxyType({**wanted.properties, **kept}))
