"""A view of a table as its newest schema has it: its fields under their own names, whatever earlier versions left.

What a field's siblings hold (`note`, `note__int`) is brought together where plain values can be cast, nulls staying
nulls; what Spark shows as a plain number although it is a time is cast; and what the schema says of a field is the
column's comment. The statement is Spark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from headrace.avro_schema import Field, Primitive, PrimitiveType, Record, Schema, Type
from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.types import column_comment, hive_type
from headrace.loader.load_schema import KeptRoute, places, sources, split

VIEW_SUFFIX: Final = "_latest"

CASTABLE: Final = frozenset(
    {
        PrimitiveType.BOOLEAN,
        PrimitiveType.INT,
        PrimitiveType.LONG,
        PrimitiveType.FLOAT,
        PrimitiveType.DOUBLE,
        PrimitiveType.STRING,
    }
)
"""Types without a logical type, of which `try_cast` takes each as each."""

_LOCAL: Final = "timestampadd({unit}, {value}, timestamp_ntz'1970-01-01 00:00:00')"
TIMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "timestamp-micros": "timestamp_micros({value})",
        "timestamp-nanos": "timestamp_micros({value} DIV 1000)",
        "local-timestamp-millis": _LOCAL.replace("{unit}", "MILLISECOND"),
        "local-timestamp-micros": _LOCAL.replace("{unit}", "MICROSECOND"),
        "local-timestamp-nanos": _LOCAL.replace("{unit}", "MICROSECOND").replace("{value}", "{value} DIV 1000"),
    }
)
"""By logical type, what makes a time of the number that Spark shows."""


def latest_view(
    database: str, table: str, load: Record, newest: Record, route: KeptRoute, partition_columns: tuple[str, ...]
) -> str:
    """The statement that makes the view.

    Args:
        load: what the table has, with the column `kafka` if it is there.
        newest: the newest version of the schema.
        route: by which that was folded in.
    """
    columns = list(_columns(load, newest, route))
    columns += [(name, quote_identifier(name), "") for name in partition_columns]
    heads = [
        quote_identifier(name) + (f" COMMENT {quote_literal(comment)}" if comment else "")
        for name, _, comment in columns
    ]
    view = f"{quote_identifier(database)}.{quote_identifier(table + VIEW_SUFFIX)}"
    return (
        f"CREATE OR REPLACE VIEW {view} (\n  "
        + ",\n  ".join(heads)
        + "\n) AS SELECT\n  "
        + ",\n  ".join(_aliased(expression, name) for name, expression, _ in columns)
        + f"\nFROM {quote_identifier(database)}.{quote_identifier(table)}"
    )


def _aliased(expression: str, name: str) -> str:
    """Spark makes no permanent view of an expression that has no name of its own."""
    return expression if expression == quote_identifier(name) else f"{expression} AS {quote_identifier(name)}"


def _columns(load: Record, newest: Record, route: KeptRoute) -> Iterator[tuple[str, str, str]]:
    """(name, expression, comment) of the newest version's fields, and of the column that says where a row came from."""
    names: set[str] = set()
    for field, place in zip(newest.fields, places(route, len(newest.fields)), strict=True):
        column = load.fields[place.column]
        name = field.name.lower() if field.name and field.name.lower() not in names else column.name.lower()
        names.add(name)
        yield name, _expression(column, _siblings(load, column, field.name)), column_comment(field.doc)
    if load.fields[-1].name.lower().startswith("kafka") and load.fields[-1].name.lower() not in names:
        name = load.fields[-1].name.lower()
        yield name, quote_identifier(name), "partition, offset and timestamp of the message"


def _siblings(load: Record, column: Field, name: str) -> list[Field]:
    """Other columns that this field's values went to in earlier versions, and that can be cast to this one's type."""
    if not _is_castable(column.type):
        return []
    return [
        other for other in load.fields if other is not column and name in sources(other) and _is_castable(other.type)
    ]


def _is_castable(node: Type) -> bool:
    inner, _ = split(node)
    return isinstance(inner, Primitive) and inner.logical is None and inner.type in CASTABLE


def _expression(column: Field, siblings: list[Field]) -> str:
    inner, _ = split(column.type)
    value = quote_identifier(column.name.lower())
    if isinstance(inner, Primitive) and inner.logical is not None and inner.logical.name in TIMES:
        return TIMES[inner.logical.name].format(value=value)
    if not siblings:
        return value
    kind = hive_type(Schema(inner), inner)
    casts = (f"try_cast({quote_identifier(other.name.lower())} AS {kind})" for other in siblings)
    return f"coalesce({value}, {', '.join(casts)})"
