"""An executor that prints the statements instead of running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TextIO

from headrace.hive_ddl.ops import (
    AddPartitions,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PartitionValues,
    RenameTable,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.render import render, render_database
from headrace.hive_ddl.table import TableState


class PrintingExecutor:
    """Prints each statement to `output`.

    The executor reads no metastore. It treats a table as existing after it has printed the table's CREATE, with the
    properties printed since, so that no CREATE and no partition's ADD or SET LOCATION is planned twice.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._databases: set[str] = set()
        self._tables: dict[tuple[str, str], TableState] = {}
        self._partitions: dict[tuple[str, str], dict[PartitionValues, str]] = {}

    @property
    def has_compare_and_set(self) -> bool:
        return False

    def ensure_database(self, name: str) -> None:
        if name not in self._databases:
            self._databases.add(name)
            self._output.write(render_database(name))

    def table(self, database: str, name: str) -> TableState | None:
        return self._tables.get((database, name))

    def tables_by_name(self, database: str, names: Collection[str]) -> Mapping[str, TableState]:
        known = ((name, self.table(database, name)) for name in names)
        return {name: table for name, table in known if table is not None}

    def table_names(self, database: str) -> frozenset[str]:
        return frozenset(name for of_database, name in self._tables if of_database == database)

    def partitions(
        self, database: str, name: str, selected: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        known = self._partitions.get((database, name), {})
        return {values: known[values] for values in known if selected is None or values in selected}

    def execute(self, op: Op) -> None:
        self._output.write(render(op))
        if isinstance(op, CreateTable):
            self._tables[op.table.database, op.table.name] = op.table
        elif isinstance(op, SetProperties):
            self._set_properties(op)
        elif isinstance(op, AddPartitions):
            known = self._partitions.setdefault((op.database, op.name), {})
            known.update((partition.values, partition.location) for partition in op.partitions)
        elif isinstance(op, SetPartitionLocation):
            self._partitions.setdefault((op.database, op.name), {})[op.partition.values] = op.partition.location
        elif isinstance(op, DropTable):
            self._tables.pop((op.database, op.name), None)
            self._partitions.pop((op.database, op.name), None)
        elif isinstance(op, RenameTable):
            self._rename(op)
        elif isinstance(op, DropPartitions):
            known = self._partitions.setdefault((op.database, op.name), {})
            for values in op.values:
                known.pop(values, None)

    def _rename(self, op: RenameTable) -> None:
        table = self._tables.pop((op.database, op.name), None)
        if table is not None:
            self._tables[op.database, op.new_name] = dataclasses.replace(table, name=op.new_name)
            self._partitions[op.database, op.new_name] = self._partitions.pop((op.database, op.name), {})

    def _set_properties(self, op: SetProperties) -> None:
        table = self._tables.get((op.database, op.name))
        if table is not None:
            unchanged = {key: value for key, value in table.properties.items() if key not in op.removed}
            properties = MappingProxyType(unchanged | dict(op.properties))
            self._tables[op.database, op.name] = dataclasses.replace(table, properties=properties)

    def close(self) -> None:
        """Does nothing; the caller owns the output."""
