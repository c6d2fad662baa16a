"""Routes the parts of a writer's message to the columns of a load schema.

A version of the topic's subject uses the route stored when it was folded in. Any other writer schema is routed by the
present names and types of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.avro_schema import Field, Primitive, PrimitiveType, Record, Schema
from headrace.loader.load_schema.columns import Folding
from headrace.loader.load_schema.stored_route import IDENTITY_ROUTE, StoredRoute, route_entries
from headrace.loader.load_schema.types import ABSENT, prop, split


@dataclass(frozen=True, slots=True)
class RoutedColumn:
    """A column and the writer field that feeds it. Without a field the row has null or the column's default
    (`absent_value`).

    `nested` is the route from the parts of the field to the parts of the column.
    """

    column: Field
    source: Field | None
    nested: StoredRoute

    @property
    def absent_value(self) -> Any:
        """The value of the column, as JSON, in rows of messages that have no field for it."""
        if prop(self.column.props, ABSENT) == "null" or not self.column.has_default:
            return None
        return self.column.default


@dataclass(frozen=True, slots=True)
class Route:
    """The columns for the fields of a writer's record, in the order of the load record.

    `unmatched` names writer fields without a column, and columns that require a value but get none. If it is not empty,
    messages of this writer do not fit this topic and cannot be loaded.
    """

    columns: tuple[RoutedColumn, ...]
    unmatched: tuple[str, ...]


def route_by_stored(load: Record, record: Record, stored: StoredRoute) -> Route:
    """Returns the columns for the fields of a writer's record, according to the stored route of its version.

    Args:
        load: the load record that has the columns.
        record: the writer's record.
        stored: the stored route of the record.
    """
    entries = {
        entry.column: (field, entry.nested)
        for field, entry in zip(record.fields, route_entries(stored, len(record.fields)), strict=True)
    }
    routed = [RoutedColumn(column, *entries.get(i, (None, IDENTITY_ROUTE))) for i, column in enumerate(load.fields)]
    return Route(tuple(routed), ())


def route_fields(load: Record, writer: Schema, record: Record) -> Route:
    """Returns the columns for the fields of a writer's root record, found by the present names and types of the
    columns.

    Args:
        load: the load schema.
        writer: the writer's schema, which resolves references.
        record: the writer's root record, `root_record(writer)`.
    """
    folding = Folding(writer, set(), may_change=False)
    feeding_fields, folded = folding.match_columns(load.fields, record, "", frozenset({record.name}))
    columns: list[RoutedColumn] = []
    used_fields: set[str] = set()
    unmatched: list[str] = []
    for column, feeding, folded_column in zip(load.fields, feeding_fields, folded, strict=True):
        if feeding is not None and folded_column == column:
            used_fields.add(feeding.field.name)
            columns.append(RoutedColumn(column, *feeding))
            continue
        if not _is_optional(column):
            unmatched.append(column.name)
        columns.append(RoutedColumn(column, None, IDENTITY_ROUTE))
    unmatched.extend(field.name or "the message" for field in record.fields if field.name not in used_fields)
    return Route(tuple(columns), tuple(dict.fromkeys(unmatched)))


def _is_optional(column: Field) -> bool:
    return column.has_default or split(column.type)[1] or column.type == Primitive(PrimitiveType.NULL)
