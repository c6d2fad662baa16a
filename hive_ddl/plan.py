"""Which operations bring a Hive table, and its partitions, to what is wanted. What is already there needs none.

A table's schema lives in one property, so adding, removing, widening or renaming fields are all one change of that
property; the single columns are told for people. Stored columns are left alone on purpose, see `hive_ddl.table`. So a
table with a column whose type is too long to be stored is made with another schema, and gets its own by a change.
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
"""A call of some 10 s on Derby: well within the ten minutes after which a metastore client gives up."""

STORED_TYPE_CHARS_MAX = 32_672
"""COLUMNS_V2.TYPE_NAME where DataNucleus made the metastore's tables; Hive's own scripts since 2.3 give it no bound."""

CREATED_SUFFIX = "-created"  # of the revision between a creation and the change that belongs to it

SCHEMA_PROPERTIES = (SCHEMA_LITERAL, SCHEMA_URL)


def plan_table(current: TableState | None, desired: TableState) -> tuple[Op, ...]:
    """The operations, in order, that make `current` what `desired` says; none when it is.

    Properties that `desired` does not name are kept, except that a table has either a schema literal or a schema URL.

    Raises:
        ForeignTable: a table of that name was not made for this topic, warehouse and partitioning.
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
    if not changed and not removed:
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
    """The operation that makes the view what is wanted; none when it is.

    Raises:
        ForeignTable: a table or view of that name was not made as the view of this topic.
    """
    if current is not None and current.properties.get(VIEW_OF) != desired.topic:
        raise ForeignTable(desired.database, desired.name, desired.topic, "it was not made as the view of this topic")
    if current is not None and current.properties.get(VIEW_REVISION) == view_revision(desired):
        return ()
    return (desired,)


def column_changes(current: tuple[Column, ...], desired: tuple[Column, ...]) -> Iterator[ColumnChange]:
    """What readers will see differently, removed columns last. A renamed column is one removed and one added."""
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
    """The operations that make every partition of `desired` be there at its location, and none of `dropped_partitions`; others are
    left alone.

    Both mappings go from partition values to location URIs. What is gone is dropped without a look whether it is there:
    an executor that cannot look says it all the same.
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
    """The table with another schema, whose columns a metastore can store, to be given its own by a change: a creation
    stores the columns of the schema, a change of properties stores none.

    It has one column, since a schema of all those that can be stored may be too long for a literal.
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
        return f"it is the view of topic {current.properties[VIEW_OF]}"
    if current.topic is None:
        return f"it has no property {TOPIC}"
    if current.topic != desired.topic:
        return f"it belongs to topic {current.topic}"
    if not is_same_location(current.location, desired.location):
        return f"its files are in {current.location} and not in {desired.location}"
    if current.partition_columns != desired.partition_columns:
        return (
            f"it is partitioned by {', '.join(current.partition_columns) or 'nothing'} "
            f"and not by {', '.join(desired.partition_columns)}"
        )
    return None
