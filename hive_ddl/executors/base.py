"""What an executor is: the edge where operations reach a metastore."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from headrace.hive_ddl.ops import Op, PartitionValues
from headrace.hive_ddl.table import TableState


class Executor(Protocol):
    """Reads tables and runs operations, one after the other; not for use from several threads.

    Each operation may be run again after a failure of unknown outcome. Every method raises `MetastoreUnavailable`
    when the metastore cannot be reached and `StatementRefused` when it says no.
    """

    @property
    def refuses_late_writers(self) -> bool:
        """Whether `SetProperties` is a true compare-and-set here; else it only looks before it writes."""
        ...

    def ensure_database(self, name: str) -> None:
        """Makes the database unless it is there."""
        ...

    def table(self, database: str, name: str) -> TableState | None:
        """The table as it is now, whoever made it, or None."""
        ...

    def partitions(
        self, database: str, name: str, wanted: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        """Locations of the table's partitions by their values, of the `wanted` ones where given; absent ones are left
        out. Asking for the few that matter spares a listing of the whole table."""
        ...

    def execute(self, op: Op) -> None:
        """Runs one operation.

        Raises:
            StaleRevision: the table is not in the state that the operation was planned on.
            ForeignTable: a table to be created exists and is not this topic's.
        """
        ...
