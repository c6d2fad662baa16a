"""Traversal of a schema's tree."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.avro_schema.model import Array, Enum, Fixed, Map, Name, Record, Schema, Type, Union


def walk(schema: Schema) -> Iterator[Type]:
    """Yields every type of the schema, outer before inner, in document order; references are not resolved."""
    return walk_type(schema.root)


def walk_type(node: Type) -> Iterator[Type]:
    """Yields a type and all types inside it, outer before inner, in document order; references are not resolved."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def children(node: Type) -> tuple[Type, ...]:
    """Returns the types directly inside a type; empty for a reference."""
    if isinstance(node, Record):
        return tuple(field.type for field in node.fields)
    if isinstance(node, Union):
        return node.branches
    if isinstance(node, Array):
        return (node.items,)
    if isinstance(node, Map):
        return (node.values,)
    return ()


def defined_names(schema: Schema) -> set[Name]:
    """Returns the names of the types that the schema's own text defines, without types of referenced schemas."""
    return {node.name for node in walk(schema) if isinstance(node, Record | Enum | Fixed)}
