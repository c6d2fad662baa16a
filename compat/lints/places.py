"""The places of a schema's own text, and which place of an earlier version each of them was.

What another file defines is judged with that file, whose text the positions are in; a reference to it ends the walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.avro_schema import (
    Array,
    Field,
    Map,
    NamedType,
    Position,
    Primitive,
    Record,
    Reference,
    Schema,
    Type,
    Union,
    defined_names,
)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A type where it stands in the text; `field` is the one it is the whole type of."""

    node: Type
    path: Path
    field: Field | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A type of the candidate and the one of an earlier version that stood at its place, references followed.

    `position` is where the candidate uses it.
    """

    here: Type
    there: Type
    path: Path
    position: Position


def places(schema: Schema) -> Iterator[Place]:
    """Every type in the order of the text."""
    pending = [Place(schema.root, ())]
    while pending:
        place = pending.pop()
        yield place
        pending.extend(reversed(list(_inside(place))))


def _inside(place: Place) -> Iterator[Place]:
    match place.node:
        case Record(fields=fields):
            for field in fields:
                yield Place(field.type, (*place.path, field.name), field)
        case Array(items=items):
            yield Place(items, (*place.path, "[]"))
        case Map(values=values):
            yield Place(values, (*place.path, "{}"))
        case Union(branches=branches):
            for branch in branches:
                yield Place(branch, place.path)


def pairs(candidate: Schema, earlier: Schema) -> Iterator[Pair]:
    """Each place of the candidate that the earlier version had too, once however often a type is used."""
    own = defined_names(candidate)
    seen: set[tuple[int, int]] = set()
    pending = [Pair(candidate.root, earlier.root, (), candidate.root.position)]
    while pending:
        pair = pending.pop()
        if isinstance(pair.here, Reference) and pair.here.name not in own:
            continue
        here, there = candidate.resolve(pair.here), earlier.resolve(pair.there)
        if (id(here), id(there)) in seen:
            continue
        seen.add((id(here), id(there)))
        found = Pair(here, there, pair.path, pair.position)
        yield found
        pending.extend(reversed(list(_pairs_inside(found, candidate, earlier))))


def _pairs_inside(pair: Pair, candidate: Schema, earlier: Schema) -> Iterator[Pair]:
    match pair.here, pair.there:
        case Record() as here, Record() as there:
            for field in here.fields:
                known = earlier_field(field, there)
                if known is not None:
                    yield Pair(field.type, known.type, (*pair.path, field.name), field.type.position)
        case Array(items=here_items), Array(items=there_items):
            yield Pair(here_items, there_items, (*pair.path, "[]"), here_items.position)
        case Map(values=here_values), Map(values=there_values):
            yield Pair(here_values, there_values, (*pair.path, "{}"), here_values.position)
        case (Union(), _) | (_, Union()):
            there_branches = [earlier.resolve(node) for node in _branches(pair.there)]
            here_branches = [(node, candidate.resolve(node)) for node in _branches(pair.here)]
            for branch, known_branch in _matched(here_branches, there_branches):
                yield Pair(branch, known_branch, pair.path, branch.position)


def earlier_field(field: Field, record: Record) -> Field | None:
    """The field of an earlier record that this one was: of the same name, else of an alias."""
    by_name = {known.name: known for known in record.fields}
    return next((by_name[name] for name in (field.name, *field.aliases) if name in by_name), None)


def _branches(node: Type) -> Sequence[Type]:
    return node.branches if isinstance(node, Union) else (node,)


def _matched(here: Sequence[tuple[Type, Type]], there: Sequence[Type]) -> Iterator[tuple[Type, Type]]:
    """The branches that belong together: of one full name, else, where that has no counterpart, of one short name.

    Args:
        here: branches as they stand, and with references followed.
    """
    full = [(node, known) for node, resolved in here for known in there if _full(resolved) == _full(known)]
    yield from full
    for node, resolved in here:
        for known in there:
            is_alone = all(node is not one for one, _ in full) or all(known is not other for _, other in full)
            if _full(resolved) != _full(known) and is_alone and _is_same_branch(resolved, known):
                yield node, known


def _full(node: Type) -> object:
    """What a branch is known by in its union."""
    if isinstance(node, NamedType):
        return type(node), node.name
    return node.type if isinstance(node, Primitive) else type(node)


def _is_same_branch(here: Type, there: Type) -> bool:
    if isinstance(here, NamedType) and isinstance(there, NamedType):
        is_same_name = here.name.name == there.name.name or there.name in here.aliases
        return is_same_name and type(here) is type(there)
    if isinstance(here, Primitive):
        return isinstance(there, Primitive) and here.type is there.type
    return type(here) is type(there)
