"""Defines a view that shows a topic's table in the form of its newest schema: every field under the field's own name in
lower case, regardless of earlier versions. If two fields have the same name in lower case, the second has the name of
its column.

Values in sibling columns (`note`, `note__int`) are merged where plain values can be cast, and nulls stay null. Times
that Spark shows as numbers are cast. The doc of a field is the comment of its column. The expressions are Spark SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from headrace.avro_schema import Field, Primitive, PrimitiveType, Record, Schema, Type, parse_schema
from headrace.hive_ddl.names import quote_identifier
from headrace.hive_ddl.ops import ReplaceView
from headrace.hive_ddl.types import column_comment, hive_type
from headrace.loader.apply.layout import PARTITION_COLUMNS
from headrace.loader.commit.state import TopicState
from headrace.loader.load_schema import (
    LoadState,
    StoredRoute,
    load_record,
    load_schema_with_kafka,
    root_record,
    route_entries,
    sources,
    split,
)

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
"""Types of columns, without a logical type, whose values `try_cast` can convert into each other."""

_LOCAL_TIME: Final = "timestampadd({unit}, {value}, timestamp_ntz'1970-01-01 00:00:00')"
TIME_EXPRESSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "timestamp-micros": "timestamp_micros({value})",
        "timestamp-nanos": "timestamp_micros({value} DIV 1000)",
        "local-timestamp-millis": _LOCAL_TIME.replace("{unit}", "MILLISECOND"),
        "local-timestamp-micros": _LOCAL_TIME.replace("{unit}", "MICROSECOND"),
        "local-timestamp-nanos": _LOCAL_TIME.replace("{unit}", "MICROSECOND").replace("{value}", "{value} DIV 1000"),
    }
)
"""By logical type of a time, the expression that converts Spark's number to a timestamp."""


def newest_id(state: TopicState) -> int | None:
    """Returns the schema id of the newest version in the topic's load schema, None if it is unknown."""
    fold = LoadState.from_json(json.loads(state.load_schema.fold))
    return next(iter(fold.routes)) if fold.newest is None and len(fold.routes) == 1 else fold.newest


def latest_view(
    topic: str, state: TopicState, kafka_column: str, database: str, newest_id: int, text: str
) -> ReplaceView | None:
    """Returns the view of a topic's table, None if the version `newest_id` is not in the load schema yet.

    Args:
        state: state of the topic.
        kafka_column: the variant of the `kafka` column if the state has none.
        database: the Hive database of the table, which gets the view too.
        newest_id: schema id of the subject's newest version.
        text: schema of that version.
    """
    fold = LoadState.from_json(json.loads(state.load_schema.fold))
    if newest_id not in fold.routes:
        return None
    variant = state.kafka_column or kafka_column
    load = load_record(load_schema_with_kafka(state.load_schema.text, variant))
    record = root_record(parse_schema(text, strict=False, source=f"schema {newest_id} of {state.load_schema.subject}"))
    columns = [
        *_columns(load, record, fold.routes[newest_id], has_kafka=variant != "none"),
        *((name, quote_identifier(name), "") for name in PARTITION_COLUMNS[state.partition_by]),
    ]
    return ReplaceView(database, state.table + VIEW_SUFFIX, state.table, topic, tuple(columns))


def _columns(load: Record, newest: Record, route: StoredRoute, *, has_kafka: bool) -> Iterator[tuple[str, str, str]]:
    """Yields (name, expression, comment) for each field of the newest version, and for the `kafka` column, if any.

    Args:
        load: the load schema, whose fields are the columns of the table.
        newest: the schema of the newest version.
        route: the route of the newest version: which column gets which field.
        has_kafka: whether the last column of the table is the `kafka` column.
    """
    names: set[str] = set()
    for field, entry in zip(newest.fields, route_entries(route, len(newest.fields)), strict=True):
        column = load.fields[entry.column]
        name = field.name.lower() if field.name and field.name.lower() not in names else column.name.lower()
        names.add(name)
        yield name, _expression(column, _siblings(load, column, field.name)), column_comment(field.doc)
    if has_kafka and (name := load.fields[-1].name.lower()) not in names:
        yield name, quote_identifier(name), "partition, offset and timestamp of the message"


def _siblings(load: Record, column: Field, name: str) -> list[Field]:
    """Returns the other columns with the field's name as source, as far as their values can be cast to the type of the
    field's present column.

    Args:
        load: the load schema, whose fields are the columns of the table.
        column: the present column of the field.
        name: the name of the field.
    """
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
    if isinstance(inner, Primitive) and inner.logical is not None and inner.logical.name in TIME_EXPRESSIONS:
        return TIME_EXPRESSIONS[inner.logical.name].format(value=value)
    if not siblings:
        return value
    kind = hive_type(Schema(inner), inner)
    casts = (f"try_cast({quote_identifier(other.name.lower())} AS {kind})" for other in siblings)
    return f"coalesce({value}, {', '.join(casts)})"
