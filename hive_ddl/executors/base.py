"""Interface of an executor, which applies operations to a metastore."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol
from urllib.parse import unquote

from headrace.hive_ddl.errors import ForeignTable, StaleRevision
from headrace.hive_ddl.ops import DropTable, Op, PartitionValues, ReplaceView
from headrace.hive_ddl.plan import plan_table
from headrace.hive_ddl.render import view_query
from headrace.hive_ddl.table import TOPIC, TableState

VIEW_TOO_LONG = re.compile(
    r"truncation error was encountered trying to shrink (?:LONG )?VARCHAR .* to length (\d+)", re.DOTALL
)
"""Derby's error for a view with a query that is too long for the metastore's column. Other databases have no such
limit."""

VIEW_REASON_CHARS_MAX = 300

TABLES_PER_READ_MAX = 100
"""Most tables in one request: each is some kB with its schema, and up to 30 kB, and the response is one string."""


class Executor(Protocol):
    """Reads Hive tables and carries out operations on them, such as `AddPartitions`, sequentially; not thread-safe.

    Every operation can be repeated after a failure with unknown result; a `SetProperties` that had taken effect then
    raises `StaleRevision`. A method that sends a request raises `MetastoreUnavailable` if the metastore is unreachable,
    and `StatementRefused` if it refuses the request; `close` raises neither.
    """

    @property
    def has_compare_and_set(self) -> bool:
        """Whether `SetProperties` is an atomic compare-and-set of the table property `headrace.revision`, if the table
        has this property. Otherwise the executor compares this property and then writes, and a concurrent write between
        the two is not detected."""
        ...

    def ensure_database(self, name: str) -> None:
        """Creates the database if it does not exist."""
        ...

    def table(self, database: str, name: str) -> TableState | None:
        """Returns the current state of a table, whether or not Headrace created it; None if there is no such table."""
        ...

    def tables_by_name(self, database: str, names: Collection[str]) -> Mapping[str, TableState]:
        """Returns the current state of each of these tables that exists, by name. Costs one request for up to
        `TABLES_PER_READ_MAX` tables if the server can read several in one.

        If one of them cannot be read, all may fail; `table` then shows which one.
        """
        ...

    def table_names(self, database: str) -> frozenset[str]:
        """Returns the names of all tables and views of a database, with one request; none if there is no such
        database. The cheapest check of whether many tables exist."""
        ...

    def partitions(
        self, database: str, name: str, selected: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        """Returns the location of each existing partition of a table, by the partition's values.

        Args:
            selected: limits the result to these partitions, which usually avoids listing the whole table; None for all.
        """
        ...

    def execute(self, op: Op) -> None:
        """Carries out one operation on a table, such as `AddPartitions`.

        Raises:
            StaleRevision: the table is not in the state that the operation was planned on.
            ForeignTable: a table to create or drop exists and does not belong to the topic.
        """
        ...

    def close(self) -> None:
        """Closes the connection to the metastore; does nothing if the connection is lost."""
        ...


def partition_values_of(partition_name: str) -> PartitionValues:
    """Returns the values of a partition with this name, such as `dt=2026-01-31/hr=07`, in which Hive has escaped
    special characters."""
    return tuple(unquote(part.partition("=")[2]) for part in partition_name.split("/"))


def check_creation(current: TableState, desired: TableState) -> None:
    """Checks whether a table that was to be created, but already exists, can be used. An earlier attempt of this
    process or another writer has created it.

    Args:
        current: the existing table.
        desired: the table that was to be created.

    Raises:
        StaleRevision: the existing table has another revision and differs from the desired one.
        ForeignTable: the existing table does not belong to the topic.
    """
    is_ours = current.topic == desired.topic and current.revision == desired.revision
    if not is_ours and plan_table(current, desired):
        raise StaleRevision(desired.database, desired.name, "", current.revision or "")


def check_owner(op: DropTable, owner: str | None) -> None:
    """Checks whether a table that is to be dropped belongs to the topic.

    Args:
        owner: the topic in the table's properties, None without one.

    Raises:
        ForeignTable: the table does not belong to the topic.
    """
    if owner != op.topic:
        reason = f"the table has no property {TOPIC}" if owner is None else f"the table belongs to topic {owner}"
        raise ForeignTable(op.database, op.name, op.topic, reason)


def view_problem(op: ReplaceView, text: str) -> str:
    """Returns the reason why a view was not created, in one line, with the remedy if it is known.

    Args:
        op: the view.
        text: the error of Spark or the server.
    """
    too_long = VIEW_TOO_LONG.search(text)
    if too_long is not None:
        return (
            f"its query has {len(view_query(op)):,} characters, and the metastore's Derby database stores "
            f"{int(too_long[1]):,}; set hive.metastore to a metastore service on another database, or query the table"
        )
    return " ".join(text.partition("\n")[0].split())[:VIEW_REASON_CHARS_MAX]
