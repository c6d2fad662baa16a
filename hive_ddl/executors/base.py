"""What an executor is: the edge where operations reach a metastore."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from headrace.hive_ddl.errors import StaleRevision
from headrace.hive_ddl.ops import Op, PartitionValues
from headrace.hive_ddl.plan import plan_table
from headrace.hive_ddl.table import TableState


class Executor(Protocol):
    """Reads tables and runs operations, one after the other; not for use from several threads.

    Each operation may be run again after a failure of unknown outcome. Every method raises `MetastoreUnavailable`
    when the metastore cannot be reached and `StatementRefused` when it says no.
    """

    @property
    def has_compare_and_set(self) -> bool:
        """Whether `SetProperties` is a true compare-and-set here; else it only looks before it writes."""
        ...

    def ensure_database(self, name: str) -> None:
        """Makes the database unless it is there."""
        ...

    def table(self, database: str, name: str) -> TableState | None:
        """The table as it is now, whoever made it, or None."""
        ...

    def partitions(
        self, database: str, name: str, selected: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        """Locations of the table's partitions by their values, of the `selected` ones where given; absent ones are left
        out. Asking for the few that matter spares a listing of the whole table."""
        ...

    def execute(self, op: Op) -> None:
        """Runs one operation.

        Raises:
            StaleRevision: the table is not in the state that the operation was planned on.
            ForeignTable: a table to be created or dropped exists and is not this topic's.
        """
        ...

    def close(self) -> None:
        """Lets go of the connection; fine when it is lost."""
        ...


def check_creation(current: TableState, desired: TableState) -> None:
    """What becomes of a creation that finds the table there: either somebody was quicker, or our own first try arrived.

    Raises:
        StaleRevision: it is not what was desired.
        ForeignTable: it is somebody else's.
    """
    is_ours = current.topic == desired.topic and current.revision == desired.revision
    if not is_ours and plan_table(current, desired):
        raise StaleRevision(desired.database, desired.name, "", current.revision or "")
