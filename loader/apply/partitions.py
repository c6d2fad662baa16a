"""Makes the buckets of published files partitions of their tables; a bucket appears when it has its files, and a
partition goes when its bucket has none left."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import PartitionValues
from headrace.hive_ddl.plan import plan_partitions
from headrace.hive_ddl.table import TableState
from headrace.loader.apply.base import Step
from headrace.loader.apply.layout import bucket_folder, partition_values
from headrace.loader.apply.schema import TableSettings, data_table, quarantine_table
from headrace.loader.commit.bucket_index import generation_at, live_at
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import TopicState
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class PartitionsFollower:
    executor: Callable[[], Executor]
    settings: TableSettings
    index: FileIndex
    name: str = "partitions"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        for kind in FileKind:
            self.bring(step.topic, step.state, kind, _buckets(step, kind), step.slot, step.since)

    def bring(
        self, topic: str, state: TopicState, kind: FileKind, buckets: Collection[str], slot: int, since: int = -1
    ) -> None:
        """Makes the partitions of these buckets agree with what is decided up to a slot.

        Args:
            since: the slot up to which they do already. A bucket that had no files then has no partition, and none is
                looked for; one that is there all the same, as when this is done twice, is left alone.
        """
        if not buckets:
            return
        wanted: dict[PartitionValues, str] = {}
        looked_for: set[PartitionValues] = set()
        gone: set[PartitionValues] = set()
        for bucket in sorted(buckets):
            values = partition_values(bucket)
            indexed = self.index.bucket(topic, kind, bucket)
            if state.generation and not live_at(indexed, slot):
                gone.add(values)
                continue
            folder = bucket_folder(state.folder, kind, bucket, generation_at(indexed, slot))
            wanted[values] = self.settings.files.location(folder)
            if since < 0 or indexed.generations or live_at(indexed, since):
                looked_for.add(values)
        table = self._table(topic, state, kind)
        executor = self.executor()
        existing = executor.partitions(table.database, table.name, looked_for) if looked_for else {}
        for operation in plan_partitions(table, existing, wanted, gone):
            executor.execute(operation)

    def _table(self, topic: str, state: TopicState, kind: FileKind) -> TableState:
        made = quarantine_table if kind is FileKind.QUARANTINE else data_table
        return made(topic, state, self.settings, "")


def _buckets(step: Step, kind: FileKind) -> set[str]:
    """Those of the decisions to apply, which are all of the topic's when it begins again."""
    decided = [decision.topics[step.topic] for decision in step.decisions]
    files = {file.bucket for one in decided for file in one.files if file.kind is kind}
    return files | {rewrite.bucket for one in decided for rewrite in one.rewrites if rewrite.kind is kind}
