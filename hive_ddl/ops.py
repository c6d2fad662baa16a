"""Operations on a Hive metastore as values that can be printed, compared and executed repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.hive_ddl.table import TableState

PartitionValues = tuple[str, ...]
"""Values of the partition columns in table order, such as `("2026-01-31", "07")`."""


class ColumnChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    RETYPED = "retyped"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that a new schema adds, removes or retypes, for reports. Types are Hive type names."""

    kind: ColumnChangeKind
    name: str
    old_type: str = ""
    new_type: str = ""


@dataclass(frozen=True, slots=True)
class PublishSchema:
    """Writes the schema text to the file at `url`, before another operation sets `avro.schema.url` to it. The file is
    missing, incomplete or has the same text, because its name is the hash of the text."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableState


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Sets and removes table properties if the table's `headrace.revision` is `expected_revision` (None: not set).

    `properties` and `removed` are sorted; `properties` contains the new revision.
    """

    database: str
    name: str
    expected_revision: str | None
    properties: tuple[tuple[str, str], ...]
    removed: tuple[str, ...] = ()
    changes: tuple[ColumnChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    values: PartitionValues
    location: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Adds partitions; existing ones are not changed."""

    database: str
    name: str
    columns: tuple[str, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class SetPartitionLocation:
    database: str
    name: str
    columns: tuple[str, ...]
    partition: Partition


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """Removes partitions from the table but not their files; missing partitions are ignored."""

    database: str
    name: str
    columns: tuple[str, ...]
    values: tuple[PartitionValues, ...]


@dataclass(frozen=True, slots=True)
class DropTable:
    """Removes a topic's table from the metastore but not its files; a missing table is ignored."""

    database: str
    name: str
    topic: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Renames a topic's table within its database. Its partitions and files stay as they are. Fails if the table does
    not exist, or if another table has the new name."""

    database: str
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view: its name, a Spark expression over the columns of the table, and a comment.

    `type` is Hive's type of the table's column. Spark stores the types of a view's columns when it creates the view and
    casts to them, so the view must be replaced when the type of a column changes.
    """

    name: str
    expression: str
    comment: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceView:
    """Creates or replaces the view over a topic's table."""

    database: str
    name: str
    table: str
    topic: str
    columns: tuple[ViewColumn, ...]


Op = (
    PublishSchema
    | CreateTable
    | SetProperties
    | DropTable
    | RenameTable
    | AddPartitions
    | SetPartitionLocation
    | DropPartitions
    | ReplaceView
)
