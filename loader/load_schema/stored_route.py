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

`STRAIGHT` is the route of a record with fields in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.avro_schema import Field, JsonValue, Record, Type

StoredRoute: TypeAlias = Mapping[str, JsonValue]

STRAIGHT: Final[StoredRoute] = {}


class RoutePlace(NamedTuple):
    """The column for one field of a writer's record: its position, and the route from the parts of the field to the
    parts of the column."""

    column: int
    inside: StoredRoute


class FoldedType(NamedTuple):
    """A load type that can hold values of a writer's type, and the route from the parts of the writer's type to those
    of the load type."""

    type: Type
    route: StoredRoute


def stored_route(route_places: Iterable[RoutePlace]) -> StoredRoute:
    """Returns the stored form of the route of a record or union: a mapping from the position of a field or branch to
    the position of its column. It omits each field that goes to the column after that of the previous field and has no
    route inside.

    Args:
        route_places: for each field or branch, in the writer's order, the position of its column and the route inside.
    """
    kept: dict[str, JsonValue] = {}
    straight = 0
    for number, (column, inside) in enumerate(route_places):
        if inside:
            kept[str(number)] = [column, inside]
        elif column != straight:
            kept[str(number)] = column
        straight = column + 1
    return kept


def route_places(route: StoredRoute, count: int) -> Iterator[RoutePlace]:
    """Yields, for each of the writer's `count` fields (or union branches), the position of its column and the route
    inside, decoded from the stored form of a route. The inverse of `stored_route`."""
    column = -1
    for number in range(count):
        said = route.get(str(number), column + 1)
        column, inside = said if isinstance(said, list) else (said, STRAIGHT)
        yield RoutePlace(column, inside)


def member_of(members: Record, route: StoredRoute) -> tuple[Field, StoredRoute]:
    """Returns the member (field of a record that stands for a union) that holds the values of a writer's type, and the
    route from the parts of the type to the parts of the member.

    Args:
        members: the column's type, a record with a member per union branch, because other versions have a union.
        route: the stored route of the writer's type, which is no union itself.
    """
    (place,) = route_places(route, 1)
    return members.fields[place.column], place.inside
