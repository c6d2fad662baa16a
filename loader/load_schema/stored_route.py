"""The route of a version as stored with the load schema: the column of each writer field.

Names and types do not determine the route later: a name may have been given to another field, and two columns may hold
the type. But the position of a column in its record never changes, because columns are renamed, widened and appended,
never moved or removed. For each field of a writer's record, in order, a route therefore has the position of its column,
and the same for nested types. The non-null branches of a union are routed to members like fields to columns; a type
that is no union counts as its only branch. A list or map has the route of its items or values; types without parts have
no route.

    {"3": 7, "5": [5, {"0": 1}]}    field 3 goes to column 7; field 5 goes to column 5, where its own field 0 goes to
                                    column 1. An unlisted field goes to the column after that of the previous field;
                                    an unlisted first field goes to the first column.

`IDENTITY_ROUTE` is the route of a record with fields in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.avro_schema import Field, JsonValue, Record, Type

StoredRoute: TypeAlias = Mapping[str, JsonValue]

IDENTITY_ROUTE: Final[StoredRoute] = {}


class RouteEntry(NamedTuple):
    """The column for one field of a writer's record: its position, and the route from the parts of the field to the
    parts of the column."""

    column: int
    nested: StoredRoute


class FoldedType(NamedTuple):
    """A load type that can hold values of a writer's type, and the route from the parts of the writer's type to those
    of the load type."""

    type: Type
    route: StoredRoute


def stored_route(route_entries: Iterable[RouteEntry]) -> StoredRoute:
    """Returns the stored form of the route of a record or union: a mapping from the position of a field or branch to
    the position of its column. It omits each field that goes to the column after that of the previous field and has no
    route inside.

    Args:
        route_entries: for each field or branch, in the writer's order, the position of its column and the route inside.
    """
    listed: dict[str, JsonValue] = {}
    next_column = 0
    for number, (column, nested) in enumerate(route_entries):
        if nested:
            listed[str(number)] = [column, nested]
        elif column != next_column:
            listed[str(number)] = column
        next_column = column + 1
    return listed


def route_entries(route: StoredRoute, count: int) -> Iterator[RouteEntry]:
    """Yields, for each of the writer's `count` fields (or union branches), the position of its column and the route
    inside, decoded from the stored form of a route. The inverse of `stored_route`."""
    column = -1
    for number in range(count):
        column_entry = route.get(str(number), column + 1)
        column, nested = column_entry if isinstance(column_entry, list) else (column_entry, IDENTITY_ROUTE)
        yield RouteEntry(column, nested)


def member_of(members: Record, route: StoredRoute) -> tuple[Field, StoredRoute]:
    """Returns the member (field of a record that stands for a union) that holds the values of a writer's type, and the
    route from the parts of the type to the parts of the member.

    Args:
        members: the column's type, a record with a member per union branch, because other versions have a union.
        route: the stored route of the writer's type, which is no union itself.
    """
    (entry,) = route_entries(route, 1)
    return members.fields[entry.column], entry.nested
