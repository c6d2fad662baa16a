"""Operations as HiveQL, for dry runs and for people who run the statements themselves.

Every statement means the same in Hive and in Spark SQL, whatever the schema text holds, see `quote_literal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.ops import (
    AddPartitions,
    ChangeKind,
    ColumnChange,
    CreateTable,
    DropPartitions,
    Op,
    PartitionValues,
    PublishSchema,
    SetPartitionLocation,
    SetProperties,
)

CHANGE_TEXTS: Mapping[ChangeKind, str] = {
    ChangeKind.ADDED: "column {name} is added: {new_type}",
    ChangeKind.REMOVED: "column {name} is removed: {old_type}",
    ChangeKind.RETYPED: "column {name} becomes {new_type}, was {old_type}",
}


def render_script(ops: Iterable[Op]) -> str:
    """All operations as one script; "" when there are none."""
    return "\n".join(render(op) for op in ops)


def render(op: Op) -> str:
    """The operation as statements, each ended by a semicolon and a newline, after comment lines that explain it."""
    match op:
        case PublishSchema(url=url, text=text):
            return f"-- the file {_one_line(url)} gets the schema, {len(text)} characters\n"
        case CreateTable():
            return _create_table(op)
        case SetProperties():
            return _set_properties(op)
        case AddPartitions(database=database, name=name, columns=columns, partitions=partitions):
            lines = [f"ALTER TABLE {_qualified(database, name)} ADD IF NOT EXISTS"]
            lines += [
                f"  {_partition(columns, part.values)} LOCATION {quote_literal(part.location)}" for part in partitions
            ]
            return _statement(lines)
        case SetPartitionLocation(database=database, name=name, columns=columns, partition=partition):
            head = f"ALTER TABLE {_qualified(database, name)} {_partition(columns, partition.values)}"
            return _statement([head, f"  SET LOCATION {quote_literal(partition.location)}"])
        case DropPartitions(database=database, name=name, columns=columns, values=values):
            head = f"ALTER TABLE {_qualified(database, name)} DROP IF EXISTS"
            return _statement([head, ",\n".join(f"  {_partition(columns, one)}" for one in values)])


def render_database(name: str) -> str:
    return _statement([f"CREATE DATABASE IF NOT EXISTS {quote_identifier(name)}"])


def _create_table(op: CreateTable) -> str:
    table = op.table
    lines = [f"-- column {column.name}: {column.type}" for column in table.columns]
    lines.append(f"CREATE EXTERNAL TABLE {_qualified(table.database, table.name)}")
    if table.partition_columns:
        columns = ", ".join(f"{quote_identifier(name)} string" for name in table.partition_columns)
        lines.append(f"  PARTITIONED BY ({columns})")
    lines.append("  STORED AS AVRO")
    lines.append(f"  LOCATION {quote_literal(table.location)}")
    lines.append(f"  TBLPROPERTIES ({_properties(sorted(table.properties.items()))})")
    return _statement(lines)


def _set_properties(op: SetProperties) -> str:
    table = _qualified(op.database, op.name)
    lines = [_change(change) for change in op.changes]
    lines.append(f"-- only if headrace.revision is {_one_line(op.expected_revision or 'absent')}")
    lines.append(f"ALTER TABLE {table} SET TBLPROPERTIES ({_properties(op.properties)})")
    text = _statement(lines)
    if op.removed:
        names = ", ".join(quote_literal(name) for name in op.removed)
        text += _statement([f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({names})"])
    return text


def _change(change: ColumnChange) -> str:
    text = CHANGE_TEXTS[change.kind]
    return "-- " + text.format(name=change.name, old_type=change.old_type, new_type=change.new_type)


def _properties(properties: Iterable[tuple[str, str]]) -> str:
    return ",\n    ".join(f"{quote_literal(key)} = {quote_literal(value)}" for key, value in properties)


def _partition(columns: tuple[str, ...], values: PartitionValues) -> str:
    pairs = (
        f"{quote_identifier(column)} = {quote_literal(value)}" for column, value in zip(columns, values, strict=True)
    )
    return f"PARTITION ({', '.join(pairs)})"


def _qualified(database: str, name: str) -> str:
    return f"{quote_identifier(database)}.{quote_identifier(name)}"


def _statement(lines: list[str]) -> str:
    return "\n".join(lines) + ";\n"


def _one_line(text: str) -> str:
    """For comments: a line break in it would end the comment."""
    return " ".join(text.split())
