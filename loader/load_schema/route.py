"""Which column of a load schema takes which part of a writer's message.

A version of the topic's subject goes by the route that it was folded in by. A writer schema that is none of them, or
one that was folded before routes were kept, goes by the names and types of the columns as they are now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.avro_schema import Field, Name, Primitive, PrimitiveType, Record, Schema, Type
from headrace.loader.load_schema.columns import Folding, joined
from headrace.loader.load_schema.kept_route import KeptRoute, places
from headrace.loader.load_schema.types import ABSENT, BRANCH, branch_names, prop, split


@dataclass(frozen=True, slots=True)
class Around:
    """What a node lies in, by which the fold has committed whether it is text.

    `records` are the names of the writer's records around it, outermost included: inside itself a type is recursive.
    `path` is that of its column as the fold has it, whose steps say how deep it lies.
    """

    records: frozenset[Name] = frozenset()
    path: str = ""

    def column(self, name: str, record: Name | None = None) -> Around:
        """Around a column of this record of the writer, or a member."""
        return Around(self.records if record is None else self.records | {record}, joined(self.path, name))

    def items(self) -> Around:
        return Around(self.records, f"{self.path}[]")

    def values(self) -> Around:
        return Around(self.records, f"{self.path}{{}}")


NOTHING_AROUND: Final = Around()


@dataclass(frozen=True, slots=True)
class Routed:
    """A column and the writer field that feeds it; without one the row has null or the column's default (`absent`).

    `inside` is the kept route inside the field, None where none was kept.
    """

    column: Field
    source: Field | None
    inside: KeptRoute | None = None

    @property
    def absent(self) -> Any:
        """The JSON default of a row that nothing feeds."""
        if prop(self.column.props, ABSENT) == "null" or not self.column.has_default:
            return None
        return self.column.default


@dataclass(frozen=True, slots=True)
class Route:
    """Where the fields of a writer's record go, in the order of the load record.

    `unplaced` names writer fields that no column takes and columns that need a value and get none: messages of a
    writer schema that is not of this topic's history, which cannot be loaded.
    """

    columns: tuple[Routed, ...]
    unplaced: tuple[str, ...]


def route_by_kept(load: Record, record: Record, kept: KeptRoute) -> Route:
    """Which field of a writer's record feeds which column, as it was when the writer's version was folded in."""
    taken = {
        place.column: (field, place.inside)
        for field, place in zip(record.fields, places(kept, len(record.fields)), strict=True)
    }
    routed = [Routed(column, *taken.get(i, (None, None))) for i, column in enumerate(load.fields)]
    return Route(tuple(routed), ())


def route_fields(load: Record, writer: Schema, record: Record, around: Around = NOTHING_AROUND) -> Route:
    """Which writer field feeds which column, by the names and types of the columns.

    Args:
        load: a record of the load schema (not one of members).
        writer: the writer's schema, to resolve its references.
        record: the writer's record, `root_record(writer)` at the top.
        around: both records.
    """
    folding = Folding(writer, set(), growing=False)
    fed, folded = folding.feed(load.fields, record, around.path, around.records | {record.name})
    columns: list[Routed] = []
    used: set[str] = set()
    unplaced: list[str] = []
    for column, feeding, grown in zip(load.fields, fed, folded, strict=True):
        source = feeding.field if feeding is not None and grown == column else None
        if source is not None:
            used.add(source.name)
        elif not _may_lack(column):
            unplaced.append(column.name)
        columns.append(Routed(column, source))
    unplaced.extend(field.name or "the message" for field in record.fields if field.name not in used)
    return Route(tuple(columns), tuple(dict.fromkeys(unplaced)))


def route_branch(members: Record, writer: Schema, branch: Type, around: Around = NOTHING_AROUND) -> Field | None:
    """The member of a record of members that holds a writer's branch, which is not null; None when none does."""
    branch = writer.resolve(branch)
    for member in members.fields:
        if prop(member.props, BRANCH) not in branch_names(branch):
            continue
        inner, _ = split(member.type)
        folding = Folding(writer, set(), growing=False)
        laid = folding.merge_branch(inner, branch, around.column(member.name).path, around.records)
        if laid is not None and laid.type == inner:
            return member
    return None


def _may_lack(column: Field) -> bool:
    return column.has_default or split(column.type)[1] or column.type == Primitive(PrimitiveType.NULL)
