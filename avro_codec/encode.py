"""Encodes single values to Avro binary: numbers, byte strings and the defaults of fields. The loader encodes each
default once, when it compiles a conversion."""

from __future__ import annotations

import math
import struct
from typing import Any

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    JsonValue,
    Map,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
    default_datum,
    default_problem,
)


def encode_long(n: int) -> bytes:
    """Returns the encoding of an Avro int or long, a zigzag varint."""
    n = (n << 1) ^ (n >> 63)
    if n < 128:
        return bytes((n,))
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def encode_bytes(data: bytes) -> bytes:
    return encode_long(len(data)) + data


def encode_float(value: float) -> bytes:
    """Encodes the nearest float; values beyond the range of a float become infinity, as in Avro Java."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def encode_default(schema: Schema, node: Type, default: JsonValue) -> bytes:
    """Encodes a field's default. The default must be valid for its type; otherwise the result is wrong, or an exception
    of any type is raised.

    Args:
        schema: resolves references to named types.
        node: the type of the field.
        default: the default as a JSON value of the schema text.
    """
    return _encode(schema, node, default)


def _encode(schema: Schema, node: Type, value: JsonValue) -> bytes:
    node = schema.resolve(node)
    match node:
        case Primitive(type=kind):
            return _encode_primitive(kind, default_datum(schema, node, value))
        case Enum(symbols=symbols):
            return encode_long(symbols.index(value))
        case Fixed():
            return bytes(default_datum(schema, node, value))
        case Array(items=items):
            parts = b"".join(_encode(schema, items, item) for item in value)
            return (encode_long(len(value)) + parts if value else b"") + b"\x00"
        case Map(values=values):
            pairs = b"".join(encode_bytes(k.encode()) + _encode(schema, values, v) for k, v in value.items())
            return (encode_long(len(value)) + pairs if value else b"") + b"\x00"
        case Union(branches=branches):
            for index, branch in enumerate(branches):
                if default_problem(branch, value, schema.resolve) is None:
                    return encode_long(index) + _encode(schema, branch, value)
        case Record(fields=fields):
            return b"".join(_encode(schema, field.type, value.get(field.name, field.default)) for field in fields)
    raise ValueError(f"{value!r} is not a valid default of {node}")


def _encode_primitive(kind: PrimitiveType, value: Any) -> bytes:
    match kind:
        case PrimitiveType.NULL:
            return b""
        case PrimitiveType.BOOLEAN:
            return b"\x01" if value else b"\x00"
        case PrimitiveType.INT | PrimitiveType.LONG:
            return encode_long(int(value))
        case PrimitiveType.FLOAT:
            return encode_float(float(value))
        case PrimitiveType.DOUBLE:
            return struct.pack("<d", float(value))
        case PrimitiveType.BYTES:
            return encode_bytes(bytes(value))
        case PrimitiveType.STRING:
            return encode_bytes(str(value).encode())
