"""Default values: validation, and conversion to the datum they represent (Avro 1.12, Record fields)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.avro_schema.model import (
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    Map,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)

Resolve = Callable[[Type], Type]

_INT_BITS = {PrimitiveType.INT: 32, PrimitiveType.LONG: 64}


def default_problem(node: Type, value: JsonValue, resolve: Resolve) -> str | None:
    """Returns a description of why `value` is not a valid default of type `node`, or None if it is valid.

    A default of a union may match any of its branches (Avro 1.12; earlier versions allowed only the first). A record's
    default may omit members if their fields have defaults. As in Avro Java, any string is valid for an enum, a fixed or
    bytes.

    Args:
        resolve: returns the type that a reference denotes.
    """
    return DefaultValidator(resolve).problem(node, value)


class DefaultValidator:
    """Validates the defaults of one schema. Each field's own default is validated once, so that the work is bounded by
    the length of the schema text."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._own: dict[int, str | None] = {}

    def problem(self, node: Type, value: JsonValue) -> str | None:
        """Returns a description of why `value` is not a valid default of the type `node`, or None if it is valid."""
        node = self._resolve(node)
        match node:
            case Primitive():
                return _primitive_problem(node.type, value)
            case Enum() | Fixed():
                kind = "an enum symbol" if isinstance(node, Enum) else "the bytes of a fixed"
                return None if isinstance(value, str) else f"{shorten(value)} is not {kind}; expected a string"
            case Array():
                if not isinstance(value, list):
                    return f"{shorten(value)} is not an array"
                return self._first(node.items, [(f"item {i}", item) for i, item in enumerate(value)])
            case Map():
                if not isinstance(value, dict):
                    return f"{shorten(value)} is not a map"
                return self._first(node.values, [(f'"{key}"', item) for key, item in value.items()])
            case Union():
                if any(self.problem(branch, value) is None for branch in node.branches):
                    return None
                expected = " or ".join(_kind(self._resolve(branch)) for branch in node.branches) or "nothing"
                return f"{shorten(value)} is not of any branch of the union; expected {expected}"
            case Record():
                return self._record(node, value)
            case Reference():
                raise AssertionError(f"the reference to type {node.name} was not resolved")

    def own(self, field: Field) -> str | None:
        """Returns a description of why the default of this field is not valid, or None if it is. The field must have a
        default."""
        key = id(field)
        if key not in self._own:
            self._own[key] = "the default contains itself recursively"  # found by a default that depends on itself
            self._own[key] = self.problem(field.type, field.default)
        return self._own[key]

    def _first(self, node: Type, members: Iterable[tuple[str, JsonValue]]) -> str | None:
        for where, member in members:
            if problem := self.problem(node, member):
                return f"{where}: {problem}"
        return None

    def _record(self, node: Record, value: JsonValue) -> str | None:
        if not isinstance(value, dict):
            return f"{shorten(value)} is not a record {node.name.full}; expected an object"
        for field in node.fields:
            if field.name in value:
                problem = self.problem(field.type, value[field.name])
            elif field.has_default:
                problem = self.own(field)
            else:
                return f'the member "{field.name}" of record {node.name.full} is missing and has no default'
            if problem:
                return f'member "{field.name}": {problem}'
        return None


def default_datum(schema: Schema, node: Type, value: JsonValue) -> Any:
    """Converts a valid default from JSON to the value that a decoder returns: bytes for bytes and fixed, a float for
    float and double, records with all members, else the JSON value.

    Args:
        schema: resolves references to named types.
        node: the type of the default.
        value: the default as a JSON value of the schema text.
    """
    node = schema.resolve(node)
    match node:
        case Primitive(type=PrimitiveType.BYTES) | Fixed():
            return value.encode("latin-1")
        case Primitive(type=PrimitiveType.FLOAT | PrimitiveType.DOUBLE):
            return _double(value)
        case Array():
            return [default_datum(schema, node.items, item) for item in value]
        case Map():
            return {key: default_datum(schema, node.values, item) for key, item in value.items()}
        case Union():
            branch = next(b for b in node.branches if default_problem(b, value, schema.resolve) is None)
            return default_datum(schema, branch, value)
        case Record():
            members: dict[str, Any] = {}
            for field in node.fields:
                members[field.name] = default_datum(schema, field.type, value.get(field.name, field.default))
            return members
    return value


def shorten(value: JsonValue) -> str:
    """Returns the JSON text of a value for an error message, truncated to at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _primitive_problem(kind: PrimitiveType, value: JsonValue) -> str | None:
    bits = _INT_BITS.get(kind)
    if bits is not None:
        if type(value) is not int:
            return f"{shorten(value)} is not {_article(kind)}; expected an integer"
        limit = 1 << (bits - 1)
        return None if -limit <= value < limit else f"{value} is outside the range of {_article(kind)} ({bits} bits)"
    valid = {
        PrimitiveType.NULL: value is None,
        PrimitiveType.BOOLEAN: isinstance(value, bool),
        PrimitiveType.FLOAT: _is_number(value),
        PrimitiveType.DOUBLE: _is_number(value),
        PrimitiveType.BYTES: isinstance(value, str),
        PrimitiveType.STRING: isinstance(value, str),
    }[kind]
    return None if valid else f"{shorten(value)} is not {_article(kind)}; expected {_EXPECTED[kind]}"


_EXPECTED: Mapping[PrimitiveType, str] = {
    PrimitiveType.NULL: "null",
    PrimitiveType.BOOLEAN: "true or false",
    PrimitiveType.FLOAT: "a number",
    PrimitiveType.DOUBLE: "a number",
    PrimitiveType.BYTES: "a string with one character per byte",
    PrimitiveType.STRING: "a string",
}


def _double(number: int | float) -> float:
    """Returns the nearest double; a number with too many digits is infinite, as in Avro Java."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _article(kind: PrimitiveType) -> str:
    return {"int": "an int", "null": "null", "bytes": "bytes"}.get(kind.value, f"a {kind.value}")


def _kind(node: Type) -> str:
    match node:
        case Primitive():
            return node.type.value
        case Record() | Enum() | Fixed():
            return node.name.full
    return type(node).__name__.lower()
