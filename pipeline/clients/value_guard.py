"""Which values may the encoder be given without a closer look?

fastavro's encoder finds most misfits itself. The guard of a schema watches the places where it writes something else
than it was given (1.5 as the int 1, 2**40 as an int, 1e39 as the float infinity, any object as a boolean or null, a
text as the array of its characters, a fixed from whatever has bytes), and passes nothing that `find_problem` refuses
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.avro_schema import Array, Fixed, Map, Primitive, PrimitiveType, Record, Schema, Type, Union
from headrace.pipeline.clients.datum import FLOAT_LIMIT, INT_RANGES, UUID_TEXT, is_narrow, is_uuid, range_of

Guard = Callable[[Any], bool]
"""True for a value that the encoder takes as it is; False asks for `find_problem`."""


def compile_guard(schema: Schema) -> Guard | None:
    """The guard of a schema, or None where the encoder needs none."""
    return _compile(schema, schema.root, frozenset())


def _compile(schema: Schema, node: Type, inside: frozenset[Any]) -> Guard | None:
    node = schema.resolve(node)
    if isinstance(node, Primitive):
        return _compile_primitive(node)
    if isinstance(node, Record):
        if node.name in inside:
            # A recursive value is looked at whole: a guard that calls itself is not worth its upkeep.
            return lambda value: False
        return _compile_record(schema, node, inside | {node.name})
    if isinstance(node, (Array, Map)):
        item = _compile(schema, node.items if isinstance(node, Array) else node.values, inside)
        if isinstance(node, Array):
            if item is None:
                return lambda value: value.__class__ is list
            return lambda value: value.__class__ is list and all(map(item, value))
        if item is None:
            return None
        return lambda value: value.__class__ is dict and all(map(item, value.values()))
    if isinstance(node, Fixed):
        return lambda value: value.__class__ is bytes
    if isinstance(node, Union) and any(is_narrow(schema.resolve(branch)) for branch in node.branches):
        return lambda value: value.__class__ is not int and value.__class__ is not str
    # The encoder finds the branch of another union and the symbol of an enum by checking the value.
    return None


def _compile_primitive(node: Primitive) -> Guard | None:
    if is_uuid(node):
        return lambda value: value.__class__ is str and UUID_TEXT(value) is not None
    if node.type in INT_RANGES:
        least, most = range_of(node)
        return lambda value: value.__class__ is int and least <= value <= most
    if node.type is PrimitiveType.NULL:
        return lambda value: value is None
    if node.type is PrimitiveType.BOOLEAN:
        return lambda value: value.__class__ is bool
    if node.type is PrimitiveType.FLOAT:
        return lambda value: value.__class__ is float and -FLOAT_LIMIT < value < FLOAT_LIMIT
    if node.type is PrimitiveType.DOUBLE:
        return lambda value: value.__class__ is float or value.__class__ is int
    return None


def _compile_record(schema: Schema, node: Record, inside: frozenset[Any]) -> Guard | None:
    checks: list[tuple[str, bool, Guard]] = []
    ints: list[str] = []
    longs: list[str] = []
    for field in node.fields:
        kind = schema.resolve(field.type)
        plain = isinstance(kind, Primitive) and not field.has_default and not is_narrow(kind)
        if plain and isinstance(kind, Primitive) and kind.type is PrimitiveType.INT:
            ints.append(field.name)
        elif plain and isinstance(kind, Primitive) and kind.type is PrimitiveType.LONG:
            longs.append(field.name)
        else:
            check = _compile(schema, kind, inside)
            if check is not None:
                checks.append((field.name, field.has_default, check))
    if not (checks or ints or longs):
        return None
    int_least, int_most = INT_RANGES[PrimitiveType.INT]
    long_least, long_most = INT_RANGES[PrimitiveType.LONG]

    def guard(value: Any) -> bool:
        # Integers are checked in loops of this one function: a call per field would cost as much as encoding it.
        try:
            for name in ints:
                number = value[name]
                if number.__class__ is not int or not int_least <= number <= int_most:
                    return False
            for name in longs:
                number = value[name]
                if number.__class__ is not int or not long_least <= number <= long_most:
                    return False
            for name, has_default, check in checks:
                if has_default and name not in value:
                    continue
                if not check(value[name]):
                    return False
        except (KeyError, TypeError):
            return False
        return True

    return guard
