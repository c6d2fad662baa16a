"""Converts Avro binary to Avro's JSON encoding: message bodies to JSON values, and values of types that Hive columns
cannot have, such as recursive types, to text. `from_json` is the inverse.

Union values other than null are objects with the name of the branch, bytes are texts of the code points 0 to 255, and
the numbers without JSON form are the texts NaN, Infinity and -Infinity (Avro 1.12, JSON Encoding).

Apart from names and from values that take no bytes, the text of a value has up to about seven times as many bytes as
the value. Names of fields, symbols and branches may have any length, so their total per message is limited in
proportion to the message; so is the number of values that take no bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any, Final

from headrace.avro_codec.check import compile_check
from headrace.avro_codec.core.library import Library
from headrace.avro_codec.encode import encode_bytes, encode_float
from headrace.avro_codec.readable import UnreadableValue
from headrace.avro_codec.walk import BadBody, Limits, WalkCompiler, read_block, read_index, read_varint
from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    JsonValue,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    Schema,
    Type,
    Union,
    branch_name,
)

NAMES_BYTES_FREE: Final = 4_096
NAMES_PER_BYTE_MAX: Final = 256
NAMES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum length of all names (fields, symbols, branches) in the JSON texts of a message: `NAMES_BYTES_FREE`, and
`NAMES_PER_BYTE_MAX` for each byte of the message, but never more than `NAMES_BYTES_MAX`. A field or union branch takes
at least a byte of the message, and hardly a name has 256 characters. Without the proportion, each small message could
become a row of 64 MiB."""

Read = Callable[[bytes, int], tuple[Any, int]]
"""A function that reads a validated value; it returns an object for `json.dumps` and the position after the value."""

DecodeJson = Callable[[bytes], JsonValue]
"""Function that returns the JSON value of a body. Raises `BadBody` or `UnreadableValue`."""


def compile_to_json(schema: Schema, core: Library | None) -> DecodeJson:
    """Compiles the conversion of message bodies to JSON values. The function is not thread-safe.

    Args:
        schema: the writer schema of the bodies.
        core: the compiled core, which validates bodies faster; None to validate them in Python.

    Raises:
        BadBody: values of the schema are nested too deeply even without recursion.
    """
    check, limits = compile_check(schema, core), Limits()
    read = _JsonCompiler(WalkCompiler(schema, limits)).read(schema.root)

    def decode(body: bytes) -> JsonValue:
        check(body)
        limits.reset()
        try:
            value, _ = read(body, 0)
        except RecursionError:
            raise BadBody("values are nested too deeply") from None
        return value

    return decode


def compile_json_text(walks: WalkCompiler, node: Type) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Compiles the conversion of values of the type `node` to JSON text.

    Args:
        walks: walks of the writer's schema; the function requires values that they have validated.

    Returns:
        A function from a body and the position of a value to the value's JSON, encoded as an Avro string, and the
        position after the value.
    """
    read = _JsonCompiler(walks).read(node)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        value, p = read(b, p)
        return encode_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()), p

    return convert


class _JsonCompiler:
    def __init__(self, walks: WalkCompiler) -> None:
        self._schema = walks.schema
        self._zero_width = walks.zero_width
        self._limits = walks.limits
        self._done: dict[Name, Read] = {}
        self._open: set[Name] = set()

    def read(self, node: Type) -> Read:
        match node:
            case Primitive(type=kind):
                return _PRIMITIVES[kind]
            case Fixed(size=size):
                return lambda b, p: (b[p : p + size].decode("latin-1"), p + size)
            case Enum(symbols=symbols):
                return _enum(symbols, self._limits)
            case Union(branches=branches):
                named = [(branch_name(self._schema.resolve(branch)), self.read(branch)) for branch in branches]
                return _union(named, self._limits)
            case Array(items=items):
                return _array(self.read(items))
            case Map(values=values):
                return _map(self.read(values))
            case Reference(name=name) | Record(name=name):
                return self._by_name(name)

    def _by_name(self, name: Name) -> Read:
        if name in self._done:
            return self._done[name]
        if name in self._open:
            return self._recursive(name)
        definition = self._schema.names[name]
        if not isinstance(definition, Record):
            return self._done.setdefault(name, self.read(definition))
        self._open.add(name)
        zero_width = sum(self._zero_width.has(field.type) for field in definition.fields)
        read = _record([(field.name, self.read(field.type)) for field in definition.fields], zero_width, self._limits)
        self._open.discard(name)
        return self._done.setdefault(name, read)

    def _recursive(self, name: Name) -> Read:
        done, limits = self._done, self._limits

        def read(b: bytes, p: int) -> tuple[Any, int]:
            limits.enter()
            value, p = done[name](b, p)
            limits.level -= 1
            return value, p

        return read


def _take_names(limits: Limits, named_bytes: int, body_bytes: int) -> None:
    """Adds the length of names (a record's field names, an enum's symbol, a union's branch) to the total of the
    message, before they are written to the JSON text.

    Args:
        limits: holds the total of the message.
        named_bytes: the length to add.
        body_bytes: the size of the message's body.

    Raises:
        UnreadableValue: the names would make the row much larger than the message.
    """
    limits.named_bytes += named_bytes
    names_bytes_max = min(NAMES_BYTES_FREE + NAMES_PER_BYTE_MAX * body_bytes, NAMES_BYTES_MAX)
    if limits.named_bytes > names_bytes_max:
        raise UnreadableValue(
            "in columns stored as JSON text, which repeats the names of fields, the names alone would take more than "
            f"{names_bytes_max} bytes, for a message of {body_bytes}; use shorter names in the schema"
        )


def _enum(symbols: tuple[str, ...], limits: Limits) -> Read:
    def read(b: bytes, p: int) -> tuple[Any, int]:
        index, p = read_index(b, p, len(symbols))
        _take_names(limits, len(symbols[index]), len(b))
        return symbols[index], p

    return read


def _union(branches: list[tuple[str, Read]], limits: Limits) -> Read:
    def read(b: bytes, p: int) -> tuple[Any, int]:
        index, p = read_index(b, p, len(branches))
        name, branch = branches[index]
        _take_names(limits, len(name), len(b))
        value, p = branch(b, p)
        return None if name == "null" else {name: value}, p

    return read


def _record(fields: list[tuple[str, Read]], zero_width: int, limits: Limits) -> Read:
    """Returns a function that reads a record from a body as a dict, which becomes JSON text.

    Args:
        fields: name and reader of each field.
        zero_width: number of fields that take no bytes in the message. They take space in the text, so they are counted
            and limited like array items without bytes.
        limits: counts the fields without bytes, and the bytes of names in the text, for the whole message.
    """
    named_bytes = sum(len(name) for name, _ in fields)

    def read(b: bytes, p: int) -> tuple[Any, int]:
        limits.count_zero_width(zero_width)
        _take_names(limits, named_bytes, len(b))
        value = {}
        for name, field in fields:
            value[name], p = field(b, p)
        return value, p

    return read


def _array(item: Read) -> Read:
    def read(b: bytes, p: int) -> tuple[Any, int]:
        items: list[Any] = []
        while b[p]:
            count, p, _ = read_block(b, p)
            if count == 0:
                return items, p
            for _ in range(count):
                value, p = item(b, p)
                items.append(value)
        return items, p + 1

    return read


def _map(read_value: Read) -> Read:
    def read(b: bytes, p: int) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        while b[p]:
            count, p, _ = read_block(b, p)
            if count == 0:
                return found, p
            for _ in range(count):
                key, p = _string(b, p)
                found[key], p = read_value(b, p)
        return found, p + 1

    return read


def _null(b: bytes, p: int) -> tuple[Any, int]:
    return None, p


def _boolean(b: bytes, p: int) -> tuple[Any, int]:
    return b[p] == 1, p + 1


def _string(b: bytes, p: int) -> tuple[Any, int]:
    n, p = read_varint(b, p)
    return b[p : p + n].decode(), p + n


def _bytes(b: bytes, p: int) -> tuple[Any, int]:
    n, p = read_varint(b, p)
    return b[p : p + n].decode("latin-1"), p + n


def _float(b: bytes, p: int) -> tuple[Any, int]:
    packed = b[p : p + 4]
    (value,) = struct.unpack("<f", packed)
    if not math.isfinite(value):
        return _not_finite(value), p + 4
    # The fewest digits that read back as the same float; the digits of the double would be more.
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(shorter for shorter in rounded if encode_float(shorter) == packed), p + 4


def _double(b: bytes, p: int) -> tuple[Any, int]:
    (value,) = struct.unpack_from("<d", b, p)
    return value if math.isfinite(value) else _not_finite(value), p + 8


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_PRIMITIVES: dict[PrimitiveType, Read] = {
    PrimitiveType.NULL: _null,
    PrimitiveType.BOOLEAN: _boolean,
    PrimitiveType.INT: read_varint,
    PrimitiveType.LONG: read_varint,
    PrimitiveType.FLOAT: _float,
    PrimitiveType.DOUBLE: _double,
    PrimitiveType.BYTES: _bytes,
    PrimitiveType.STRING: _string,
}
