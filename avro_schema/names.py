"""Full names, namespaces and the resolution of unqualified names (Avro 1.12, Names)."""

from __future__ import annotations

import re

from headrace.avro_schema.model import Array, Enum, Fixed, Name, Primitive, PrimitiveType, Record, Type

PRIMITIVES: dict[str, PrimitiveType] = {kind.value: kind for kind in PrimitiveType}

COMPLEX_TYPES = ("record", "error", "enum", "array", "map", "fixed")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

NAME_RULE = "a letter or underscore, then letters, digits and underscores"


def is_name(text: str) -> bool:
    """Whether the text is a valid part of a full name; ASCII only, as in the specification."""
    return _NAME.match(text) is not None


def full_name(text: str, namespace: str) -> Name:
    """Returns the full name that `text` (a simple or full name) denotes inside a namespace, without validation."""
    space, dot, name = text.rpartition(".")
    return Name(name, space if dot else namespace)


def name_problem(name: Name, *, check_namespace: bool = True) -> str | None:
    """Returns a description of why a full name is invalid, or None if it is valid. The namespace is checked only with
    `check_namespace`."""
    if not is_name(name.name):
        return f'"{name.name}" is not a name; expected {NAME_RULE}'
    if check_namespace and name.namespace:
        for part in name.namespace.split("."):
            if not is_name(part):
                return f'"{part}" in the namespace "{name.namespace}" is not a name; expected {NAME_RULE}'
    return None


def shortest_name(name: Name, namespace: str) -> str:
    """Returns the shortest text that denotes `name` inside `namespace`.

    A simple name that equals a built-in type stays qualified, otherwise it would denote that type.
    """
    if name.namespace != namespace or not name.namespace:
        return name.full
    if name.name in PRIMITIVES or name.name in COMPLEX_TYPES or name.name == "union":
        return name.full
    return name.name


def branch_name(node: Type) -> str:
    """Returns the name of a type as a branch of a union, in Avro's JSON encoding and in fastavro's pairs: `string`, or
    the full name of a named type. The type is no reference and no union."""
    if isinstance(node, (Record, Enum, Fixed)):
        return node.name.full
    if isinstance(node, Primitive):
        return node.type.value
    return "array" if isinstance(node, Array) else "map"
