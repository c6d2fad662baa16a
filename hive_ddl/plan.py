"""Plans the operations that bring a Hive table and its partitions to the desired state.

A table's schema is stored in one property, so adding, removing, widening and renaming fields is a single change of that
property; changes of columns are listed only for reports. Stored columns are deliberately not updated, see
`hive_ddl.table`. A table with a column type that is too long to store is created with another schema and then altered.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from headrace.hive_ddl.errors import ForeignTable
from headrace.hive_ddl.ops import (
    AddPartitions,
    ColumnChange,
    ColumnChangeKind,
    CreateTable,
    DropPartitions,
    Op,
    Partition,
    PartitionValues,
    PublishSchema,
    ReplaceView,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.render import view_revision
from headrace.hive_ddl.table import (
    COMMENT,
    REVISION,
    SCHEMA_LITERAL,
    SCHEMA_URL,
    TOPIC,
    VIEW_OF,
    VIEW_REVISION,
    Column,
    TableState,
    is_same_location,
)

PARTITIONS_PER_CALL_MAX = 500
"""Maximum number of partitions in one operation, which takes some 10 s on Derby. The client's timeout is ten minutes.
"""

STORED_TYPE_CHARS_MAX = 32_672
"""Longest column type that the metastore stores (COLUMNS_V2.TYPE_NAME) if DataNucleus created its tables. Hive's own
scripts since 2.3 have no limit."""

CREATED_SUFFIX = "-created"  # revision suffix between a creation and the change that completes it

SCHEMA_PROPERTIES = (SCHEMA_LITERAL, SCHEMA_URL)


def plan_table(current: TableState | None, desired: TableState) -> tuple[Op, ...]:
    """Returns the operations, in order, that change `current` to `desired`; empty if `current` has the properties of
    `desired`, apart from the revision and the comment.

    Properties that only `current` has are not changed, except for the schema: the table has either a schema literal or
    a schema URL, so the other one is removed.

    Raises:
        ForeignTable: the table is a view or was not created by Headrace, or belongs to another topic, warehouse or
            partitioning.
    """
    if current is None:
        if all(len(column.type) <= STORED_TYPE_CHARS_MAX for column in desired.columns):
            return (*_publication(desired), CreateTable(desired))
        first = _single_column_table(desired)
        return (CreateTable(first), *plan_table(first, desired))
    reason = _foreign_reason(current, desired)
    if reason is not None:
        raise ForeignTable(desired.database, desired.name, desired.topic or "", reason)
    changed = {
        key: value
        for key, value in desired.properties.items()
        if key != REVISION and current.properties.get(key) != value
    }
    removed = tuple(key for key in SCHEMA_PROPERTIES if key in current.properties and key not in desired.properties)
    # A comment changes only with a new version. Spark's Thrift Server does not list it among the properties.
    if changed.keys() <= {COMMENT} and not removed:
        return ()
    changes = tuple(column_changes(current.columns, desired.columns))
    changed[REVISION] = desired.properties[REVISION]
    change = SetProperties(
        database=desired.database,
        name=desired.name,
        expected_revision=current.revision,
        properties=tuple(sorted(changed.items())),
        removed=removed,
        changes=changes,
    )
    return (*(_publication(desired) if SCHEMA_URL in changed else ()), change)


def plan_view(current: TableState | None, desired: ReplaceView) -> tuple[Op, ...]:
    """Returns the operation that creates or replaces a view; empty if it is current.

    Args:
        current: the table or view that has the name of the view now, None without one.
        desired: the view as it must be.

    Raises:
        ForeignTable: a table or view of that name is not the view of this topic.
    """
    if current is not None and current.properties.get(VIEW_OF) != desired.topic:
        raise ForeignTable(
            desired.database, desired.name, desired.topic, "the existing table or view is not the view of this topic"
        )
    if current is not None and current.properties.get(VIEW_REVISION) == view_revision(desired):
        return ()
    return (desired,)


def column_changes(current: tuple[Column, ...], desired: tuple[Column, ...]) -> Iterator[ColumnChange]:
    """Yields the column changes that readers see when the columns of a table change from `current` to `desired`,
    removals last. A renamed column is one removal and one addition."""
    old_types = {column.name: column.type for column in current}
    new_types = {column.name: column.type for column in desired}
    for name, new_type in new_types.items():
        if name not in old_types:
            yield ColumnChange(ColumnChangeKind.ADDED, name, new_type=new_type)
        elif old_types[name] != new_type:
            yield ColumnChange(ColumnChangeKind.RETYPED, name, old_types[name], new_type)
    for name, old_type in old_types.items():
        if name not in new_types:
            yield ColumnChange(ColumnChangeKind.REMOVED, name, old_type=old_type)


def plan_partitions(
    table: TableState,
    existing: Mapping[PartitionValues, str],
    desired: Mapping[PartitionValues, str],
    dropped_partitions: Collection[PartitionValues] = (),
) -> tuple[Op, ...]:
    """Returns the operations that set the location of every desired partition and drop `dropped_partitions`; other
    partitions are not changed.

    Drops are planned without checking that the partition exists, because not every executor can check it.

    Args:
        existing: location URI by partition values, for the partitions that exist.
        desired: location URI by partition values, for the partitions that must exist.
    """
    columns = table.partition_columns
    assert all(len(values) == len(columns) for values in desired), f"partition values of {table.full_name}"
    missing = [Partition(values, desired[values]) for values in sorted(desired) if values not in existing]
    moved = [
        Partition(values, desired[values])
        for values in sorted(desired)
        if values in existing and not is_same_location(existing[values], desired[values])
    ]
    added = (
        AddPartitions(table.database, table.name, columns, tuple(missing[start : start + PARTITIONS_PER_CALL_MAX]))
        for start in range(0, len(missing), PARTITIONS_PER_CALL_MAX)
    )
    dropped = [tuple(values) for values in sorted(dropped_partitions)]
    return (
        *added,
        *(SetPartitionLocation(table.database, table.name, columns, partition) for partition in moved),
        *(
            DropPartitions(table.database, table.name, columns, tuple(dropped[start : start + PARTITIONS_PER_CALL_MAX]))
            for start in range(0, len(dropped), PARTITIONS_PER_CALL_MAX)
        ),
    )


def _single_column_table(desired: TableState) -> TableState:
    """Returns `desired` with a schema of one column. A table with long column types is created in this form, and then
    altered to its own schema.

    The metastore stores the columns of the schema when a table is created, and does not store any when properties
    change, so that the length of a column type does not matter in the second step. The first schema has one column,
    because a schema of all storable columns may be too long for a table property.
    """
    name = desired.columns[0].name
    schema = {"type": "record", "name": "created", "fields": [{"name": name, "type": "string"}]}
    properties = {key: value for key, value in desired.properties.items() if key not in SCHEMA_PROPERTIES}
    properties |= {SCHEMA_LITERAL: json.dumps(schema), REVISION: f"{desired.revision}{CREATED_SUFFIX}"}
    return dataclasses.replace(
        desired, columns=(Column(name, "string"),), properties=MappingProxyType(properties), schema_text=""
    )


def _publication(desired: TableState) -> tuple[Op, ...]:
    url = desired.properties.get(SCHEMA_URL)
    return () if url is None else (PublishSchema(url, desired.schema_text),)


def _foreign_reason(current: TableState, desired: TableState) -> str | None:
    if VIEW_OF in current.properties:
        return f"a view of topic {current.properties[VIEW_OF]} has this name"
    if current.topic is None:
        return f"the table has no property {TOPIC}"
    if current.topic != desired.topic:
        return f"the table belongs to topic {current.topic}"
    if not is_same_location(current.location, desired.location):
        return f"the table's files are in {current.location} and not in {desired.location}"
    if current.partition_columns != desired.partition_columns:
        return (
            f"the table is partitioned by {', '.join(current.partition_columns) or 'nothing'} "
            f"and not by {', '.join(desired.partition_columns)}"
        )
    return None
