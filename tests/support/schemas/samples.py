"""Random values of a schema, encoded with fastavro."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    branch_name,
    self_contained_text,
)

DATA = 8
"""Values written with each writer."""

DEPTH_MAX = 12
"""Deepest value; a type without a value of this depth is skipped."""

PRIMITIVES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "int": [0, -1, 2**31 - 1],
    "long": [0, -1, 2**40, 2**53 + 1],
    "float": [0.5, -2.0],
    "double": [0.5, 1e200],
    "bytes": [b"", b"abc", b"\x00\x7f"],
    "string": ["", "abc", "é", "00000000-0000-0000-0000-00000000000a"],
}


class UnboundedValue(Exception):
    """The value would contain itself without end."""


def value(schema: Schema, node: Type, rng: random.Random, depth: int = 0) -> Any:
    """Returns a value for fastavro; arrays and maps are rarely empty, so that their items are tested."""
    node = schema.resolve(node)
    if depth > DEPTH_MAX:
        raise UnboundedValue
    match node:
        case Primitive():
            return rng.choice(PRIMITIVES[node.type.value])
        case Enum():
            return rng.choice(node.symbols)
        case Fixed():
            return rng.randbytes(node.size)
        case Array():
            return [value(schema, node.items, rng, depth + 1) for _ in range(count(rng, depth))]
        case Map():
            return {str(n): value(schema, node.values, rng, depth + 1) for n in range(count(rng, depth))}
        case Union():
            return branch_value(schema, node, rng, depth)
        case Record():
            return {field.name: value(schema, field.type, rng, depth + 1) for field in node.fields}
    raise AssertionError(node)


def count(rng: random.Random, depth: int) -> int:
    return 0 if depth > DEPTH_MAX // 2 else rng.choice((0, 1, 1, 2))


def branch_value(schema: Schema, node: Union, rng: random.Random, depth: int) -> Any:
    """Returns a value of a random branch; at great depth, of the first branch that ends."""
    branches = list(node.branches)
    rng.shuffle(branches)
    for branch in branches:
        try:
            return branch_name(schema.resolve(branch)), value(schema, branch, rng, depth + 1)
        except UnboundedValue:
            continue
    raise UnboundedValue


def encode_samples(writer: Schema, rng: random.Random) -> list[bytes]:
    """Returns different encoded values; empty if the type has no value or fastavro refuses it."""
    parsed = fastavro.parse_schema(json.loads(self_contained_text(writer)))
    found: dict[bytes, None] = {}
    for _ in range(DATA):
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, parsed, value(writer, writer.root, rng))
        except (UnboundedValue, IndexError):  # IndexError: a union without branches or an enum without symbols
            continue
        found[stream.getvalue()] = None
    return list(found)
