"""What is done to a Hive metastore, as values that can be printed, compared and run twice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.hive_ddl.table import TableState

PartitionValues = tuple[str, ...]
"""Values of the partition columns in the table's order, such as `("2026-01-31", "07")`."""


class ColumnChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    RETYPED = "retyped"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """What a new schema does to one column, for people; readers get it from the schema. Types are Hive's texts."""

    kind: ColumnChangeKind
    name: str
    old_type: str = ""
    new_type: str = ""


@dataclass(frozen=True, slots=True)
class PublishSchema:
    """Puts the schema text at a URL that holds nothing or the same text; `avro.schema.url` is set only after it."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableState


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Sets and removes table properties if the table's `headrace.revision` is `expected_revision` (None: it has none).

    `properties` and `removed` are sorted; the new revision is among the properties.
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
    """Partitions that are there already are left as they are."""

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
    """Takes partitions out of the table and leaves their files; those that are not there are passed over."""

    database: str
    name: str
    columns: tuple[str, ...]
    values: tuple[PartitionValues, ...]


@dataclass(frozen=True, slots=True)
class DropTable:
    """Takes a topic's table out of the metastore and leaves its files; fine when it is not there."""

    database: str
    name: str
    topic: str


@dataclass(frozen=True, slots=True)
class ReplaceView:
    """Makes a view over a topic's table, in place of an earlier one that was made for the same topic.

    `columns` are names, Spark's expressions over the columns of `table`, and comments.
    """

    database: str
    name: str
    table: str
    topic: str
    columns: tuple[tuple[str, str, str], ...]


Op = (
    PublishSchema
    | CreateTable
    | SetProperties
    | DropTable
    | AddPartitions
    | SetPartitionLocation
    | DropPartitions
    | ReplaceView
)
