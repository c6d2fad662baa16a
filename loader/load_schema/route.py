"""Routes the parts of a writer's message to the columns of a load schema.

A version of the topic's subject uses the route stored when it was folded in. Any other writer schema is routed by the
present names and types of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.avro_schema import Field, Name, Primitive, PrimitiveType, Record, Schema, Type
from headrace.loader.load_schema.columns import Folding, joined
from headrace.loader.load_schema.stored_route import StoredRoute, route_entries
from headrace.loader.load_schema.types import ABSENT, BRANCH, branch_names, prop, split


@dataclass(frozen=True, slots=True)
class Enclosing:
    """The records and columns that contain a type in a schema. They decide whether values of the type are stored as
    text.

    `records` are the names of the writer's enclosing records, including the outermost; a type with one of these names
    is recursive. `path` is the column's path in the load schema; its number of steps is the depth.
    """

    records: frozenset[Name] = frozenset()
    path: str = ""

    def column(self, name: str, record: Name | None = None) -> Enclosing:
        """Returns the context of the types inside a column: the names of the enclosing records, and the column's path.

        Args:
            name: the name of the column, or of a member (field of a record that stands for a union).
            record: the writer's record to which the column's field belongs; None for a member.
        """
        return Enclosing(self.records if record is None else self.records | {record}, joined(self.path, name))

    def items(self) -> Enclosing:
        return Enclosing(self.records, f"{self.path}[]")

    def values(self) -> Enclosing:
        return Enclosing(self.records, f"{self.path}{{}}")


TOP_LEVEL: Final = Enclosing()


@dataclass(frozen=True, slots=True)
class RoutedColumn:
    """A column and the writer field that feeds it. Without a field the row has null or the column's default
    (`absent_value`).

    `nested` is the stored route from the parts of the field to the parts of the column, None if no route is stored.
    """

    column: Field
    source: Field | None
    nested: StoredRoute | None = None

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
    routed = [RoutedColumn(column, *entries.get(i, (None, None))) for i, column in enumerate(load.fields)]
    return Route(tuple(routed), ())


def route_fields(load: Record, writer: Schema, record: Record, enclosing: Enclosing = TOP_LEVEL) -> Route:
    """Returns the columns for the fields of a writer's record, found by the present names and types of the columns.

    Args:
        load: a record of the load schema that stands for a record of the writer, not for a union with several types.
        writer: the writer's schema, which resolves references.
        record: the writer's record; at the top this is `root_record(writer)`.
        enclosing: the records and columns around both records.
    """
    folding = Folding(writer, set(), may_change=False)
    feeding_fields, folded = folding.match_columns(
        load.fields, record, enclosing.path, enclosing.records | {record.name}
    )
    columns: list[RoutedColumn] = []
    used_fields: set[str] = set()
    unmatched: list[str] = []
    for column, feeding, folded_column in zip(load.fields, feeding_fields, folded, strict=True):
        source = feeding.field if feeding is not None and folded_column == column else None
        if source is not None:
            used_fields.add(source.name)
        elif not _is_optional(column):
            unmatched.append(column.name)
        columns.append(RoutedColumn(column, source))
    unmatched.extend(field.name or "the message" for field in record.fields if field.name not in used_fields)
    return Route(tuple(columns), tuple(dict.fromkeys(unmatched)))


def route_branch(members: Record, writer: Schema, branch: Type, enclosing: Enclosing = TOP_LEVEL) -> Field | None:
    """Returns the member (field of a record that stands for a union) that holds one of the writer's branches, None if
    no member holds it.

    Args:
        members: the record with a member for each branch.
        writer: the writer's schema, which resolves references.
        branch: the writer's branch, not null.
        enclosing: the records and columns around the union.
    """
    branch = writer.resolve(branch)
    for member in members.fields:
        if prop(member.props, BRANCH) not in branch_names(branch):
            continue
        inner, _ = split(member.type)
        folding = Folding(writer, set(), may_change=False)
        merged = folding.merge_branch(inner, branch, enclosing.column(member.name).path, enclosing.records)
        if merged is not None and merged.type == inner:
            return member
    return None


def _is_optional(column: Field) -> bool:
    return column.has_default or split(column.type)[1] or column.type == Primitive(PrimitiveType.NULL)
