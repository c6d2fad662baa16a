"""The route by which a version was folded in, as the fold's state keeps it.

Names and types cannot tell it later: a name may have been given to another field, and both columns may hold the type.
What never changes is a column's position in its record, since columns are renamed, widened and joined by others, but
never moved or removed. So a route says, for each field of a writer's record in order, the position of the column that
takes it, and the same of what lies inside. The branches of a union that are not null, in order, are to the members of
their column what fields are to columns; a type that is no union is its only branch. A list or map has the route of its
items or values, and what has no parts has none.

    {"3": 7, "5": [5, {"0": 1}]}    field 3 goes to column 7; field 5 to column 5, and its own field 0 to column 1.
                                    A field that is not named goes to the column after the one before it, the first
                                    to the first, and so on inside. So `STRAIGHT` is a record of the columns' order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.avro_schema import Field, JsonValue, Record, Type

KeptRoute: TypeAlias = Mapping[str, JsonValue]

STRAIGHT: Final[KeptRoute] = {}


class Place(NamedTuple):
    """The position of the column that takes a writer's field, and the route inside."""

    column: int
    inside: KeptRoute


class Laid(NamedTuple):
    """A load type that holds a writer's type, and the route from the one to the other."""

    type: Type
    route: KeptRoute


def keep(places: Iterable[Place]) -> KeptRoute:
    """The route of a record or union whose fields or branches go to these places."""
    kept: dict[str, JsonValue] = {}
    straight = 0
    for number, (column, inside) in enumerate(places):
        if inside:
            kept[str(number)] = [column, inside]
        elif column != straight:
            kept[str(number)] = column
        straight = column + 1
    return kept


def places(route: KeptRoute, count: int) -> Iterator[Place]:
    """The places of so many fields or branches: what `keep` was given."""
    column = -1
    for number in range(count):
        said = route.get(str(number), column + 1)
        column, inside = said if isinstance(said, list) else (said, STRAIGHT)
        yield Place(column, inside)


def member_of(members: Record, route: KeptRoute) -> tuple[Field, KeptRoute]:
    """The member that takes a value of one branch, and the route inside."""
    (place,) = places(route, 1)
    return members.fields[place.column], place.inside
