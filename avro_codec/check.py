"""Checks that a body is exactly one value of its schema, before another decoder reads it.

Other decoders are less strict. They ignore bytes after the value, accept numbers out of range and negative indexes,
create as many items as a count claims, and recurse on the C stack for each nesting level until the process crashes. The
walk of `walk.py` is the specification and finds the errors. The core only confirms valid bodies faster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from headrace.avro_codec import program
from headrace.avro_codec.core.library import Library, c_program
from headrace.avro_codec.program import Code, Program
from headrace.avro_codec.walk import DEPTH_MAX, BadBody, Limits, WalkCompiler, ZeroWidth, walk_body
from headrace.avro_schema import Array, Enum, Fixed, Map, Name, Primitive, Record, Reference, Schema, Type, Union

NESTED_MAX: Final = 1_000
"""Maximum nesting of values of any type. fastavro needs 0.9 KB of the 8 MB C stack per level. Python's recursion limit
would also stop the walk, but some applications raise it."""

OPERATIONS_MAX: Final = 10_000
"""Maximum number of types that are compiled to a program. A type counts at each use, so a short schema can have a very
large program."""

Check = Callable[[bytes], None]
"""A function that raises `BadBody` for a body that is not exactly one value, or is nested too deeply."""


def compile_check(schema: Schema, core: Library | None) -> Check:
    """Returns a function that validates message bodies with one writer schema; it raises BadBody for an invalid body.
    It is not thread-safe.

    Args:
        schema: the writer schema of the bodies.
        core: the compiled core, which confirms valid bodies faster; None to validate each body in Python.

    Raises:
        BadBody: values of the schema are nested too deeply even without recursion.
    """
    nested = deepest_nesting(schema)
    if nested > NESTED_MAX:
        raise BadBody(f"the schema nests values {nested} levels deep; at most {NESTED_MAX} are supported")
    limits = Limits(min(DEPTH_MAX, NESTED_MAX // nested - 1))
    skip = WalkCompiler(schema, limits).skip(schema.root)

    def walk(body: bytes) -> None:
        walk_body(skip, limits, body)

    found = walk_program(schema) if core is not None else None
    if core is None or found is None:
        return walk
    compiled, words = c_program(found, 0, has_time_field=False)
    is_value, address = core.is_value, ctypes.addressof(compiled)

    def check(body: bytes, *, _references: object = (compiled, words)) -> None:  # the core has only their addresses
        if not is_value(address, body, len(body)):
            walk(body)

    return check


def deepest_nesting(schema: Schema) -> int:
    """Returns the maximum number of levels to which values of the schema are nested, counting a recursive type once.

    Each recursion in a body adds at most this many levels. `compile_check` therefore limits the number of recursions so
    that no body exceeds `NESTED_MAX`.
    """
    depths: dict[Name, int] = {}
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
        if name not in depths:
            is_open.add(name)
            depths[name] = 1 + max((nesting(field.type) for field in definition.fields), default=0)
            is_open.discard(name)
        return depths[name]

    return max(nesting(schema.root), *depths.values(), 1)


class _Unsupported(Exception):
    """The schema cannot be compiled to a program of the core, or has more than `OPERATIONS_MAX` types."""


def walk_program(schema: Schema) -> Program | None:
    """Returns the program of the core that validates bodies of a schema without output, or None if the core does not
    support it or the program would be too large."""
    try:
        return program.assemble(_Walk(schema).code(schema.root, frozenset()))
    except (_Unsupported, RecursionError):
        return None


class _Walk:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._zero_width = ZeroWidth(schema)
        self._operations = 0

    def code(self, node: Type, within: frozenset[Name]) -> Code:
        self._operations += 1
        if self._operations > OPERATIONS_MAX:
            raise _Unsupported
        node = self._schema.resolve(node)
        match node:
            case Primitive():
                return program.walk_primitive(node.type)
            case Fixed(size=size):
                return program.fixed(size)
            case Enum(symbols=symbols):
                return program.enum(len(symbols))
            case Union(branches=branches):
                codes = [self.code(branch, within) for branch in branches]
                return _not_none(program.union(codes, keeps_index=True))
            case Array(items=items):
                zero_width = self._zero_width.has(items)
                return _not_none(program.array(self.code(items, within), zero_width=zero_width, rewritten=False))
            case Map(values=values):
                return _not_none(program.map_of(self.code(values, within), rewritten=False))
            case Record(name=name, fields=fields) if name not in within:
                return _not_none(program.concatenate(*(self.code(field.type, within | {name}) for field in fields)))
        raise _Unsupported


def _not_none(code: Code | None) -> Code:
    assert code is not None
    return code
