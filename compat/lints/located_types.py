"""The types in a schema's own text with their field paths, and the matching types of an earlier version.

A type that another file defines is checked with that file, because its positions are in that file. Types inside it are
therefore not listed.
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
class LocatedType:
    """A type in a schema's own text, with its field path. `field` is set if the type is the type of that field, not a
    part of it."""

    node: Type
    path: Path
    field: Field | None = None


@dataclass(frozen=True, slots=True)
class NodePair:
    """A type of the candidate (the new schema) and the matching type of an earlier version, with references resolved.

    `position` is the place in the candidate's text where the type is used.
    """

    new: Type
    old: Type
    path: Path
    position: Position


def located_types(schema: Schema) -> Iterator[LocatedType]:
    """Yields every type in a schema's own text, in text order."""
    pending = [LocatedType(schema.root, ())]
    while pending:
        located = pending.pop()
        yield located
        pending.extend(reversed(list(_inside(located))))


def _inside(located: LocatedType) -> Iterator[LocatedType]:
    match located.node:
        case Record(fields=fields):
            for field in fields:
                yield LocatedType(field.type, (*located.path, field.name), field)
        case Array(items=items):
            yield LocatedType(items, (*located.path, "[]"))
        case Map(values=values):
            yield LocatedType(values, (*located.path, "{}"))
        case Union(branches=branches):
            for branch in branches:
                yield LocatedType(branch, located.path)


def node_pairs(candidate: Schema, earlier: Schema) -> Iterator[NodePair]:
    """Yields pairs of matching types: a type of the candidate (the new schema) and its counterpart in the earlier
    version. Types without a counterpart are omitted. A pair that occurs several times is yielded once."""
    own_names = defined_names(candidate)
    seen: set[tuple[int, int]] = set()
    pending = [NodePair(candidate.root, earlier.root, (), candidate.root.position)]
    while pending:
        pair = pending.pop()
        if isinstance(pair.new, Reference) and pair.new.name not in own_names:
            continue
        new, old = candidate.resolve(pair.new), earlier.resolve(pair.old)
        if (id(new), id(old)) in seen:
            continue
        seen.add((id(new), id(old)))
        found = NodePair(new, old, pair.path, pair.position)
        yield found
        pending.extend(reversed(list(_pairs_inside(found, candidate, earlier))))


def _pairs_inside(pair: NodePair, candidate: Schema, earlier: Schema) -> Iterator[NodePair]:
    match pair.new, pair.old:
        case Record() as new, Record() as old:
            for field in new.fields:
                old_field = earlier_field(field, old)
                if old_field is not None:
                    yield NodePair(field.type, old_field.type, (*pair.path, field.name), field.type.position)
        case Array(items=new_items), Array(items=old_items):
            yield NodePair(new_items, old_items, (*pair.path, "[]"), new_items.position)
        case Map(values=new_values), Map(values=old_values):
            yield NodePair(new_values, old_values, (*pair.path, "{}"), new_values.position)
        case (Union(), _) | (_, Union()):
            old_branches = [earlier.resolve(node) for node in _branches(pair.old)]
            new_branches = [(node, candidate.resolve(node)) for node in _branches(pair.new)]
            for branch, old_branch in _matched(new_branches, old_branches):
                yield NodePair(branch, old_branch, pair.path, branch.position)


def earlier_field(field: Field, record: Record) -> Field | None:
    """Returns the field of an earlier record that matches `field`: its name is the name of `field`, or else an alias of
    `field`. Returns None if no field matches."""
    by_name = {old_field.name: old_field for old_field in record.fields}
    return next((by_name[name] for name in (field.name, *field.aliases) if name in by_name), None)


def _branches(node: Type) -> Sequence[Type]:
    return node.branches if isinstance(node, Union) else (node,)


def _matched(new: Sequence[tuple[Type, Type]], old: Sequence[Type]) -> Iterator[tuple[Type, Type]]:
    """Yields pairs of a new union branch and the old branch that matches it: the one with an equal full name (or kind,
    if it has no name), else one with an equal short name, or with a full name that is an alias of the new branch.

    Args:
        new: the branches of the candidate's union: each as written, and the type that it refers to.
        old: the branches of the earlier version's union.
    """
    full = [
        (node, old_branch)
        for node, resolved in new
        for old_branch in old
        if _branch_identity(resolved) == _branch_identity(old_branch)
    ]
    yield from full
    for node, resolved in new:
        for old_branch in old:
            is_unmatched = all(node is not one for one, _ in full) or all(old_branch is not other for _, other in full)
            if (
                _branch_identity(resolved) != _branch_identity(old_branch)
                and is_unmatched
                and _is_same_branch(resolved, old_branch)
            ):
                yield node, old_branch


def _branch_identity(node: Type) -> object:
    """Returns a value that distinguishes a union branch (`node`) from all other branches of its union: the full name of
    a named type, else the kind of type."""
    if isinstance(node, NamedType):
        return type(node), node.name
    return node.type if isinstance(node, Primitive) else type(node)


def _is_same_branch(new: Type, old: Type) -> bool:
    if isinstance(new, NamedType) and isinstance(old, NamedType):
        is_same_name = new.name.name == old.name.name or old.name in new.aliases
        return is_same_name and type(new) is type(old)
    if isinstance(new, Primitive):
        return isinstance(old, Primitive) and new.type is old.type
    return type(new) is type(old)
