"""Renders operations as HiveQL, for dry runs and for users who run the statements themselves.

Every statement about a table has the same meaning in Hive and in Spark SQL, also with unusual characters in the schema
text, see `quote_literal`. Views are in Spark SQL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.ops import (
    AddPartitions,
    ColumnChange,
    ColumnChangeKind,
    CreateTable,
    DropPartitions,
    DropTable,
    Op,
    PartitionValues,
    PublishSchema,
    RenameTable,
    ReplaceView,
    SetPartitionLocation,
    SetProperties,
)
from headrace.hive_ddl.table import PARTITION_COMMENTS, VIEW_OF, VIEW_REVISION

CHANGE_TEMPLATES: Mapping[ColumnChangeKind, str] = {
    ColumnChangeKind.ADDED: "column {name} is added: {new_type}",
    ColumnChangeKind.REMOVED: "column {name} is removed: {old_type}",
    ColumnChangeKind.RETYPED: "column {name} becomes {new_type}, was {old_type}",
}


def render_script(ops: Iterable[Op]) -> str:
    """Renders operations as one HiveQL script; "" without operations."""
    return "\n".join(render(op) for op in ops)


def render(op: Op) -> str:
    """Renders an operation as HiveQL: comment lines that explain it, then statements that end with a semicolon and a
    newline."""
    comments = "".join(f"-- {line}\n" for line in _comments(op))
    return comments + "".join(f"{statement};\n" for statement in render_statements(op))


def render_database(name: str) -> str:
    return f"{database_statement(name)};\n"


def database_statement(name: str) -> str:
    return f"CREATE DATABASE IF NOT EXISTS {quote_identifier(name)}"


def render_statements(op: Op) -> tuple[str, ...]:
    """Returns the HiveQL statements of an operation; empty for `PublishSchema`, because HiveQL cannot write files."""
    match op:
        case PublishSchema():
            return ()
        case CreateTable():
            return (_create_table(op),)
        case SetProperties():
            return _set_properties(op)
        case DropTable(database=database, name=name):
            return (f"DROP TABLE IF EXISTS {qualified_name(database, name)}",)
        case RenameTable(database=database, name=name, new_name=new_name):
            return (f"ALTER TABLE {qualified_name(database, name)} RENAME TO {qualified_name(database, new_name)}",)
        case AddPartitions(database=database, name=name, columns=columns, partitions=partitions):
            lines = [f"ALTER TABLE {qualified_name(database, name)} ADD IF NOT EXISTS"]
            lines += [
                f"  {partition_spec(columns, part.values)} LOCATION {quote_literal(part.location)}"
                for part in partitions
            ]
            return ("\n".join(lines),)
        case SetPartitionLocation(database=database, name=name, columns=columns, partition=partition):
            head = f"ALTER TABLE {qualified_name(database, name)} {partition_spec(columns, partition.values)}"
            return (f"{head}\n  SET LOCATION {quote_literal(partition.location)}",)
        case DropPartitions(database=database, name=name, columns=columns, values=values):
            head = f"ALTER TABLE {qualified_name(database, name)} DROP IF EXISTS"
            return ("\n".join((head, ",\n".join(f"  {partition_spec(columns, one)}" for one in values))),)
        case ReplaceView():
            return (_replace_view(op),)


def _comments(op: Op) -> list[str]:
    match op:
        case PublishSchema(url=url, text=text):
            return [f"write the schema to the file {_one_line(url)}, {len(text)} characters"]
        case CreateTable(table=table):
            return [f"column {column.name}: {column.type}" for column in table.columns]
        case SetProperties(changes=changes, expected_revision=expected):
            condition = f"only if headrace.revision is {_one_line(expected or 'absent')}"
            return [*map(_change, changes), condition]
        case DropTable():
            return ["the files are not deleted; the next load creates the table again"]
    return []


def _create_table(op: CreateTable) -> str:
    table = op.table
    lines = [f"CREATE EXTERNAL TABLE {qualified_name(table.database, table.name)}"]
    if table.partition_columns:
        columns = ", ".join(map(_partition_column, table.partition_columns))
        lines.append(f"  PARTITIONED BY ({columns})")
    lines.append("  STORED AS AVRO")
    lines.append(f"  LOCATION {quote_literal(table.location)}")
    lines.append(f"  TBLPROPERTIES ({_properties(sorted(table.properties.items()))})")
    return "\n".join(lines)


def _partition_column(name: str) -> str:
    comment = PARTITION_COMMENTS.get(name)
    return f"{quote_identifier(name)} string" + (f" COMMENT {quote_literal(comment)}" if comment else "")


def view_revision(view: ReplaceView) -> str:
    """Returns a hash of the view's definition and of the types of its columns. A view with the same hash is current and
    need not be replaced."""
    definition = "\n".join((_view_statement(view, ""), *(column.type for column in view.columns)))
    return hashlib.sha256(definition.encode()).hexdigest()[:16]


def _replace_view(view: ReplaceView) -> str:
    properties = _properties(((VIEW_REVISION, view_revision(view)), (VIEW_OF, view.topic)))
    return _view_statement(view, f" TBLPROPERTIES ({properties})")


def _view_statement(view: ReplaceView, properties: str) -> str:
    heads = (
        quote_identifier(column.name) + (f" COMMENT {quote_literal(column.comment)}" if column.comment else "")
        for column in view.columns
    )
    return (
        f"CREATE OR REPLACE VIEW {qualified_name(view.database, view.name)} (\n  "
        + ",\n  ".join(heads)
        + f"\n){properties} AS {view_query(view)}"
    )


def view_query(view: ReplaceView) -> str:
    """Returns the query of a view, which the metastore stores as one text."""
    values = (
        # Spark requires a name for every expression of a permanent view.
        column.expression
        if column.expression == quote_identifier(column.name)
        else f"{column.expression} AS {quote_identifier(column.name)}"
        for column in view.columns
    )
    return "SELECT\n  " + ",\n  ".join(values) + f"\nFROM {qualified_name(view.database, view.table)}"


def _set_properties(op: SetProperties) -> tuple[str, ...]:
    head = f"ALTER TABLE {qualified_name(op.database, op.name)}"
    change = f"{head} SET TBLPROPERTIES ({_properties(op.properties)})"
    if not op.removed:
        return (change,)
    names = ", ".join(quote_literal(name) for name in op.removed)
    return change, f"{head} UNSET TBLPROPERTIES IF EXISTS ({names})"


def _change(change: ColumnChange) -> str:
    text = CHANGE_TEMPLATES[change.kind]
    return text.format(name=change.name, old_type=change.old_type, new_type=change.new_type)


def _properties(properties: Iterable[tuple[str, str]]) -> str:
    return ",\n    ".join(f"{quote_literal(key)} = {quote_literal(value)}" for key, value in properties)


def partition_spec(columns: tuple[str, ...], values: PartitionValues) -> str:
    pairs = (
        f"{quote_identifier(column)} = {quote_literal(value)}" for column, value in zip(columns, values, strict=True)
    )
    return f"PARTITION ({', '.join(pairs)})"


def qualified_name(database: str, name: str) -> str:
    return f"{quote_identifier(database)}.{quote_identifier(name)}"


def _one_line(text: str) -> str:
    """Returns a text without line breaks, which would end a comment."""
    return " ".join(text.split())
