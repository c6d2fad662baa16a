"""Is this body exactly one value of its schema? For those who have another decoder read it afterwards.

Such decoders ask less: they take what follows a value, numbers that their types do not hold and negative indexes, make
as many items as a few bytes claim, and go as deep on the C stack as a body is nested, until the process dies. The walk
of `walk.py` is the meaning here, and says what is wrong. The core only says, sooner, that nothing is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from headrace.avro_codec import program
from headrace.avro_codec.core.library import Library, c_program
from headrace.avro_codec.program import Code, Program
from headrace.avro_codec.walk import DEPTH_MAX, BadBody, Limits, WalkCompiler, ZeroWidth, walk_whole
from headrace.avro_schema import Array, Enum, Fixed, Map, Name, Primitive, Record, Reference, Schema, Type, Union

NESTED_MAX: Final = 1_000
"""Values inside each other, of whatever types. fastavro takes 0.9 KB of the C stack for each, of the 8 MB that there
are; the walk's own bound, Python's frames, is raised by some applications."""

OPERATIONS_MAX: Final = 10_000
"""Of a program, which says a type anew wherever it is used: few lines of schema may say very much."""

Check = Callable[[bytes], None]
"""Raises `BadBody` for a body that is not one value, or whose values are nested deeper than is read."""


def compile_check(schema: Schema, core: Library | None) -> Check:
    """The check of bodies of one writer schema. It is for one thread at a time.

    Args:
        core: says yes sooner; None has the walk look at each body.

    Raises:
        BadBody: already the schema nests values deeper than is read.
    """
    nested = deepest_nesting(schema)
    if nested > NESTED_MAX:
        raise BadBody(f"its schema nests values {nested} deep, expected {NESTED_MAX} at most")
    limits = Limits(min(DEPTH_MAX, NESTED_MAX // nested - 1))
    skip = WalkCompiler(schema, limits).skip(schema.root)

    def walk(body: bytes) -> None:
        walk_whole(skip, limits, body)

    found = walk_program(schema) if core is not None else None
    if core is None or found is None:
        return walk
    made, words = c_program(found, 0, 0)
    is_value, address = core.is_value, ctypes.addressof(made)

    def check(body: bytes, *, _kept: object = (made, words)) -> None:  # the core has but their addresses
        if not is_value(address, body, len(body)):
            walk(body)

    return check


def deepest_nesting(schema: Schema) -> int:
    """How many values are inside each other at most before one of a recursive type is inside itself again.

    Goes through the types as `WalkCompiler` does, which counts each time that happens.
    """
    done: dict[Name, int] = {}
    is_open: set[Name] = set()

    def nesting(node: Type) -> int:
        match node:
            case Union(branches=branches):
                return 1 + max(map(nesting, branches), default=0)
            case Array(items=inner) | Map(values=inner):
                return 1 + nesting(inner)
            case Record(name=name) | Reference(name=name):
                return by_name(name)
        return 1

    def by_name(name: Name) -> int:
        definition = schema.names[name]
        if name in is_open or not isinstance(definition, Record):
            return 1
        if name not in done:
            is_open.add(name)
            done[name] = 1 + max((nesting(field.type) for field in definition.fields), default=0)
            is_open.discard(name)
        return done[name]

    return max(nesting(schema.root), *done.values(), 1)


class _TooMuch(Exception):
    """No program says this schema, or only one that is too long."""


def walk_program(schema: Schema) -> Program | None:
    """The program that walks bodies of a schema and writes nothing; None where the core has none."""
    try:
        return program.assemble(_Walk(schema).code(schema.root, frozenset()))
    except (_TooMuch, RecursionError):
        return None


class _Walk:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._zero_width = ZeroWidth(schema)
        self._operations = 0

    def code(self, node: Type, within: frozenset[Name]) -> Code:
        self._operations += 1
        if self._operations > OPERATIONS_MAX:
            raise _TooMuch
        node = self._schema.resolve(node)
        match node:
            case Primitive():
                return program.walk_of(node.type)
            case Fixed(size=size):
                return program.fixed(size)
            case Enum(symbols=symbols):
                return program.enum(len(symbols))
            case Union(branches=branches):
                codes = [self.code(branch, within) for branch in branches]
                return _known(program.union(codes, keeps_index=True))
            case Array(items=items):
                zero_width = self._zero_width.has(items)
                return _known(program.array(self.code(items, within), zero_width=zero_width, rewritten=False))
            case Map(values=values):
                return _known(program.map_of(self.code(values, within), rewritten=False))
            case Record(name=name, fields=fields) if name not in within:
                return _known(program.joined(*(self.code(field.type, within | {name}) for field in fields)))
        raise _TooMuch


def _known(code: Code | None) -> Code:
    assert code is not None
    return code
