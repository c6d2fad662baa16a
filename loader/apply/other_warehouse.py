"""Finds tables with files in another warehouse, before the first load of a new warehouse reads all their messages
again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from headrace.hive_ddl.errors import MetastoreUnavailable, StatementRefused
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.table import TableState, is_same_location
from headrace.loader.apply.layout import topic_directory
from headrace.loader.errors import EarlierWarehouse
from headrace.loader.plan.load_plan import PlannedTopic
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TablesOfOtherWarehouse:
    """Finds tables that have their files in another warehouse. Only loads into a warehouse without commits use it."""

    executor: Callable[[], Executor]
    files: WarehouseFiles
    database: str

    def refuse(self, planned_topics: Mapping[str, PlannedTopic]) -> None:
        """Raises an error if a table of these topics has its files in another warehouse.

        Args:
            planned_topics: by topic, the work that is planned, with the names of its table and directory.

        Raises:
            EarlierWarehouse: there is such a table.
        """
        locations = self._locations(planned_topics)
        if not locations:
            return
        topic = min(locations)
        table = f"{self.database}.{planned_topics[topic].table}"
        others = f" ({len(locations)} tables in all have theirs elsewhere)" if len(locations) > 1 else ""
        raise EarlierWarehouse(
            self.files.describe(""),
            sorted(locations),
            evidence=f"the table {table} of topic {topic} has its files in {locations[topic]}{others}",
            alternative="create a second warehouse with separate tables: set hive.database",
        )

    def _locations(self, planned_topics: Mapping[str, PlannedTopic]) -> Mapping[str, str]:
        """Returns the location of each table in another warehouse, by topic; none if the metastore is unavailable,
        because loads continue without it. A table that cannot be read is left out; the schema applier reports it later.

        Args:
            planned_topics: by topic, the work that is planned, with the names of its table and directory.
        """
        locations: dict[str, str] = {}
        try:
            tables = self._tables({planned_topic.table for planned_topic in planned_topics.values()})
        except MetastoreUnavailable as error:
            logger.warning("metastore_unavailable error=%s", error)
            return {}
        for topic, planned_topic in planned_topics.items():
            table = tables.get(planned_topic.table)
            expected = self.files.location(topic_directory(planned_topic.directory, FileKind.DATA))
            if table is not None and table.topic == topic and not is_same_location(table.location, expected):
                locations[topic] = table.location
        return locations

    def _tables(self, names: Collection[str]) -> Mapping[str, TableState]:
        """Returns the existing ones of these tables, by name, without those that cannot be read.

        Raises:
            MetastoreUnavailable: the metastore is unavailable.
        """
        executor = self.executor()
        existing = executor.table_names(self.database).intersection(names)
        try:
            return executor.tables_by_name(self.database, existing)
        except StatementRefused:  # of one table: read each by itself
            return {name: table for name in existing if (table := self._readable_table(name)) is not None}

    def _readable_table(self, name: str) -> TableState | None:
        try:
            return self.executor().table(self.database, name)
        except StatementRefused as error:
            logger.warning("table_location_not_checked table=%s error=%s", name, error)
            return None
