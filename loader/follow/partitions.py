"""Makes the buckets of published files partitions of their tables; a bucket appears when it has its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.plan import plan_partitions
from headrace.hive_ddl.table import TableState
from headrace.loader.decide.state import TopicState
from headrace.loader.follow.base import Step
from headrace.loader.follow.layout import partition_values, topic_folder
from headrace.loader.follow.schema import TableSettings, data_table, quarantine_table
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class PartitionsFollower:
    executor: Callable[[], Executor]
    settings: TableSettings
    name: str = "partitions"
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        for kind, table in (
            (FileKind.DATA, data_table(step.topic, step.state, self.settings, "")),
            (FileKind.QUARANTINE, quarantine_table(step.topic, step.state, self.settings, "")),
        ):
            buckets = self._buckets(step, kind)
            if buckets:
                self._add(table, kind, step.state, buckets)

    def _buckets(self, step: Step, kind: FileKind) -> set[str]:
        """Those of the decisions to apply, which are all of the topic's when it begins again."""
        files = (file for decision in step.decisions for file in decision.topics[step.topic].files)
        return {file.bucket for file in files if file.kind is kind}

    def _add(self, table: TableState, kind: FileKind, state: TopicState, buckets: set[str]) -> None:
        folder = topic_folder(state.folder, kind)
        wanted = {
            partition_values(bucket): self.settings.files.location(f"{folder}/{bucket}") for bucket in sorted(buckets)
        }
        executor = self.executor()
        existing = executor.partitions(table.database, table.name, wanted)
        for operation in plan_partitions(table, existing, wanted):
            executor.execute(operation)
