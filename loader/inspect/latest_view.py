"""Defines a view that shows a topic's table in the form of its newest schema: every field under the field's own name in
lower case, regardless of earlier versions. If that name is taken, reserved or too long, the field has the name of its
column.

Values in sibling columns (`note`, `note__int`) are converted to the present type by the expressions of
`loader.inspect.view_conversions`; nulls stay null. Timestamps that Spark reads as numbers are shown as timestamps. A
field's doc is the comment of its column. The expressions are Spark SQL.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.avro_schema import Array, Field, Map, Primitive, PrimitiveType, Record, Schema, Type, Union, parse_schema
from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.ops import ReplaceView, ViewColumn
from headrace.hive_ddl.types import column_comment, hive_type
from headrace.loader.apply.layout import PARTITION_COLUMNS
from headrace.loader.commit.state import TopicState
from headrace.loader.inspect.view_conversions import bound, converted, corrected, is_another_type, member, shown
from headrace.loader.load_schema import (
    COLUMN_NAME_CHARS_MAX,
    MEMBERS,
    RESERVED_COLUMNS,
    WHOLE_MESSAGE_COLUMN,
    LoadState,
    StoredRoute,
    kind_of,
    load_record,
    member_of,
    root_record,
    route_entries,
    sources,
    split,
    table_schema,
)

VIEW_SUFFIX: Final = "_latest"
KAFKA_COMMENT: Final = "partition, offset and timestamp of the message"


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
    load = load_record(table_schema(state.load_schema.text, variant))
    newest = parse_schema(text, strict=False, source=f"schema {newest_id} of {state.load_schema.subject}")
    columns = [
        *_columns(load, newest, fold.routes[newest_id], has_kafka=variant != "none"),
        *(ViewColumn(name, quote_identifier(name), type="string") for name in PARTITION_COLUMNS[state.partition_by]),
    ]
    return ReplaceView(database, state.table + VIEW_SUFFIX, state.table, topic, tuple(columns))


def _columns(load: Record, newest: Schema, route: StoredRoute, *, has_kafka: bool) -> Iterator[ViewColumn]:
    """Yields the column of the view for each field of the newest version, and for the `kafka` column, if any.

    Args:
        load: the schema of the table, whose fields are the columns.
        newest: the schema of the newest version.
        route: the route of the newest version: which column gets which field.
        has_kafka: whether the last column of the table is the `kafka` column.
    """
    reserved = {*RESERVED_COLUMNS, *((load.fields[-1].name.lower(),) if has_kafka else ())}
    for part in _parts(newest, load, root_record(newest), route, "", 0, reserved):
        yield ViewColumn(
            part.name, shown(part.value.type, part.value.text), column_comment(part.field.doc), _type_name(part.column)
        )
    if has_kafka:
        kafka = load.fields[-1]
        name = kafka.name.lower()
        yield ViewColumn(name, quote_identifier(name), KAFKA_COMMENT, _type_name(kafka))


@dataclass(frozen=True, slots=True)
class _Value:
    """An expression, and the load type of its values."""

    text: str
    type: Type


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of the newest version as the view shows it: its name, its value, and its column in the table (a nested
    record has columns too)."""

    name: str
    value: _Value
    field: Field
    column: Field


def _parts(
    newest: Schema,
    load: Record,
    record: Record,
    route: StoredRoute,
    path: str,
    depth: int,
    reserved: Collection[str] = (),
) -> Iterator[_Part]:
    """Yields what the view shows for each field of a record of the newest version.

    Args:
        newest: the schema of the newest version, which resolves references.
        load: the load record for the record.
        record: the record.
        route: the stored route of the record.
        path: the expression for a value of the load record, "" at the top level.
        depth: number of enclosing lambda functions, whose variables are x0, x1 …
        reserved: names that no field may have.
    """
    columns_of = _columns_by_field(load, {field.name for field in record.fields})
    used_names = set(reserved)
    for field, entry in zip(record.fields, route_entries(route, len(record.fields)), strict=True):
        column = load.fields[entry.column]
        name = _free_name(field.name or WHOLE_MESSAGE_COLUMN, column.name, used_names)
        used_names.add(name)
        siblings = (one for one in columns_of.get(field.name, ()) if one is not column)
        value = _merged(column, siblings, path, depth)
        yield _Part(
            name, _in_newest_form(newest, _Value(value, column.type), field.type, entry.nested, depth), field, column
        )


def _columns_by_field(load: Record, names: Collection[str]) -> Mapping[str, Sequence[Field]]:
    """Returns, by field of the newest version, the columns that have its values of any version.

    A column belongs to the newest of its sources that is in `names`. If a field was renamed and another field has its
    old name now, earlier values belong to the renamed field.

    Args:
        load: the load record with the columns.
        names: the names of all fields in the newest version.
    """
    found: dict[str, list[Field]] = {}
    for column in load.fields:
        name = next((source for source in sources(column) if source in names), None)
        if name is not None:
            found.setdefault(name, []).append(column)
    return found


def _merged(column: Field, siblings: Iterable[Field], path: str, depth: int) -> str:
    """Returns the expression for the value of a column or, in rows of earlier versions, the converted value of another
    column.

    Args:
        column: the column that the newest version feeds.
        siblings: the other columns.
        path: the expression for the record that has the columns, "" at the top level.
        depth: number of enclosing lambda functions.
    """

    def read(one: Field) -> str:
        # Columns of the table are corrected with all their parts, so parts need no correction.
        return member(path, one) if path else corrected(one.type, member(path, one))

    others = (converted(one.type, column.type, read(one), depth) for one in siblings)
    parts = [read(column), *(other for other in others if other is not None)]
    return f"coalesce({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _in_newest_form(newest: Schema, value: _Value, node: Type, route: StoredRoute, depth: int) -> _Value:
    """Returns the value of a column without the parts that only earlier versions have: removed members of records,
    sibling members, and the members of a union that is no union any more.

    Args:
        newest: the schema of the newest version.
        value: the value of the column.
        node: the type in the newest version.
        route: the stored route of the type.
        depth: number of enclosing lambda functions.
    """
    inner, _ = split(value.type)
    resolved = newest.resolve(node)
    branches = [newest.resolve(one) for one in resolved.branches] if isinstance(resolved, Union) else [resolved]
    branches = [one for one in branches if not (isinstance(one, Primitive) and one.type is PrimitiveType.NULL)]
    if len(branches) != 1:
        return value  # always null, or a union, of which the view shows every member
    (branch,) = branches
    variable = f"x{depth}"
    match inner, branch:
        case Record(), _ if kind_of(inner) == MEMBERS:
            chosen, nested = member_of(inner, route)
            others = [
                field for field in inner.fields if field is not chosen and not is_another_type(field.type, chosen.type)
            ]
            plain = bound(value.text, depth, lambda path, depth: _merged(chosen, others, path, depth))
            return _in_newest_form(newest, _Value(plain, chosen.type), branch, nested, depth)
        case Record(), Record():
            return _Value(_record(newest, inner, branch, route, value.text, depth), inner)
        case Array(), Array():
            item = _in_newest_form(newest, _Value(variable, inner.items), branch.items, route, depth + 1)
            text = f"transform({value.text}, {variable} -> {item.text})"
            return value if item.text == variable else _Value(text, inner)
        case Map(), Map():
            item = _in_newest_form(newest, _Value(variable, inner.values), branch.values, route, depth + 1)
            text = f"transform_values({value.text}, (k{depth}, {variable}) -> {item.text})"
            return value if item.text == variable else _Value(text, inner)
    return value


def _record(newest: Schema, load: Record, record: Record, route: StoredRoute, value: str, depth: int) -> str:
    def body(path: str, depth: int) -> str:
        parts = list(_parts(newest, load, record, route, path, depth))
        unchanged = [(field.name.lower(), member(path, field)) for field in load.fields]
        if not parts or [(part.name, part.value.text) for part in parts] == unchanged:
            return path
        members = ", ".join(f"{quote_literal(part.name)}, {part.value.text}" for part in parts)
        return f"IF({path} IS NULL, NULL, named_struct({members}))"

    return bound(value, depth, body)


def _free_name(field_name: str, column_name: str, used_names: set[str]) -> str:
    """Returns the name of a view's column: the field's name, else the name of its column in the table, else that with a
    number.

    Args:
        field_name: the name of the field.
        column_name: the name of its column in the table.
        used_names: names in lower case that are reserved or that earlier columns have.
    """
    names = (
        [field_name.lower(), column_name.lower()] if len(field_name) <= COLUMN_NAME_CHARS_MAX else [column_name.lower()]
    )
    numbered = (f"{column_name.lower()}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(names, numbered) if name not in used_names)


def _type_name(column: Field) -> str:
    inner, _ = split(column.type)
    return hive_type(Schema(inner), inner)
