"""Encodes plain values by Python code that is written for one schema, in half the time that fastavro takes for them.

Plain are values of exactly the classes that Avro's types have in Python: int, float, str, bytes, bool, None, list and
dict, in range, with every field there and none besides. For any other value the code raises whatever it meets, and who
called it asks fastavro and `find_problem`: they are the meaning, and this is only the speed. What it does write is,
byte for byte, what fastavro would.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from headrace.avro_schema import Array, Enum, Map, Primitive, PrimitiveType, Record, Schema, Type, Union

NODES_MAX: Final = 2000
DEPTH_MAX: Final = 12
"""Beyond it, a schema's code would take long to compile, or Python would not take so many blocks in each other."""

FLOAT_MAX: Final = 3.4e38
"""Doubles up to here are floats; the few that are beyond and still round to one are left to fastavro."""


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SHORT: Final = [_varint(number) for number in range(1 << 14)]
"""Unsigned numbers of two bytes at most, as they are written."""
_GOES_ON: Final = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14)]
"""The same as two bytes that others follow."""


def varint(number: int) -> bytes:
    """An unsigned number beyond `_SHORT`, fourteen bits at a time."""
    found = b""
    while number >> 14:
        found += _GOES_ON[number & 0x3FFF]
        number >>= 14
    return found + _SHORT[number]


class _Unfit(Exception):
    """The value is not plain."""


class _TooMuch(Exception):
    """The schema is not for this."""


_CODE: Final = {
    PrimitiveType.NULL: "if {value} is not None: raise Unfit",
    PrimitiveType.BOOLEAN: "if {value}.__class__ is not bool: raise Unfit\nadd(TRUE if {value} else FALSE)",
    PrimitiveType.INT: "if {value}.__class__ is not int or not -0x80000000 <= {value} <= 0x7FFFFFFF: raise Unfit\n"
    "{value} = {value} << 1 if {value} >= 0 else ~({value} << 1)\n"
    "add(SHORT[{value}] if {value} < 16384 else varint({value}))",
    PrimitiveType.LONG: "if {value}.__class__ is not int or not -0x8000000000000000 <= {value} <= 0x7FFFFFFFFFFFFFFF: "
    "raise Unfit\n"
    "{value} = {value} << 1 if {value} >= 0 else ~({value} << 1)\n"
    "add(SHORT[{value}] if {value} < 16384 else varint({value}))",
    PrimitiveType.FLOAT: "if {value}.__class__ is not float or not -FLOAT_MAX < {value} < FLOAT_MAX: raise Unfit\n"
    "add(float32({value}))",
    PrimitiveType.DOUBLE: "if {value}.__class__ is not float: raise Unfit\nadd(float64({value}))",
    PrimitiveType.STRING: "if {value}.__class__ is not str: raise Unfit\n{value} = {value}.encode()\n"
    "size = len({value})\nadd(SHORT[size << 1] if size < 8192 else varint(size << 1))\nadd({value})",
    PrimitiveType.BYTES: "if {value}.__class__ is not bytes: raise Unfit\n"
    "size = len({value})\nadd(SHORT[size << 1] if size < 8192 else varint(size << 1))\nadd({value})",
}
_COUNT: Final = "size = len({value})\nif size: add(SHORT[size << 1] if size < 8192 else varint(size << 1))"


def compile_encoder(schema: Schema, prefix: bytes) -> Callable[[Any], bytes] | None:
    """The code for plain values of a schema, or None where it has types that are left to fastavro: unions of more than
    null and one other type, fixed, recursive ones. What it writes begins with `prefix`."""
    writer = _Writer(schema)
    try:
        body = [f"    {line}" for line in writer.lines(schema.root, "value", frozenset(), 1)]
    except _TooMuch:
        return None
    source = "\n".join(
        ["def encode(value):", "    parts = [prefix]", "    add = parts.append", *body, "    return join(parts)"]
    )
    names = {
        **writer.constants,
        "prefix": prefix,
        "join": b"".join,
        "varint": varint,
        "float32": struct.Struct("<f").pack,
        "float64": struct.Struct("<d").pack,
        "SHORT": _SHORT,
        "TRUE": b"\x01",
        "FALSE": b"\x00",
        "ZERO": b"\x00",
        "FLOAT_MAX": FLOAT_MAX,
        "Unfit": _Unfit,
    }
    # Names of the schema stand in the source as Python's own text of them, and nowhere else.
    exec(compile(source, "<encoder of a schema>", "exec"), names)  # noqa: S102
    encode: Callable[[Any], bytes] = names["encode"]
    return encode


class _Writer:
    """Writes the lines for one schema; `constants` is what they refer to."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers = itertools.count()
        self.constants: dict[str, Any] = {}

    def lines(self, node: Type, value: str, inside: frozenset[Any], depth: int) -> Iterator[str]:
        """For a value that stands in the variable `value`, which they may change."""
        node = self._schema.resolve(node)
        if depth > DEPTH_MAX or next(self._numbers) > NODES_MAX:
            raise _TooMuch
        if isinstance(node, Primitive):
            yield from _CODE[node.type].format(value=value).split("\n")
        elif isinstance(node, Record) and node.name not in inside:
            yield f"if {value}.__class__ is not dict or len({value}) != {len(node.fields)}: raise Unfit"
            for field in node.fields:
                name = self._variable()
                yield f"{name} = {value}[{field.name!r}]"
                yield from self.lines(field.type, name, inside | {node.name}, depth + 1)
        elif isinstance(node, Enum):
            symbols = f"symbols_{next(self._numbers)}"
            self.constants[symbols] = {symbol: varint(number << 1) for number, symbol in enumerate(node.symbols)}
            yield f"add({symbols}[{value}])"
        elif isinstance(node, Array):
            yield f"if {value}.__class__ is not list: raise Unfit"
            yield from _COUNT.format(value=value).split("\n")
            item = self._variable()
            yield f"for {item} in {value}:"
            yield from self._block(node.items, item, inside, depth)
            yield "add(ZERO)"
        elif isinstance(node, Map):
            yield f"if {value}.__class__ is not dict: raise Unfit"
            yield from _COUNT.format(value=value).split("\n")
            key, item = self._variable(), self._variable()
            yield f"for {key}, {item} in {value}.items():"
            yield from (f"    {line}" for line in _CODE[PrimitiveType.STRING].format(value=key).split("\n"))
            yield from self._block(node.values, item, inside, depth)
            yield "add(ZERO)"
        elif isinstance(node, Union):
            yield from self._optional(node, value, inside, depth)
        else:
            raise _TooMuch

    def _optional(self, node: Union, value: str, inside: frozenset[Any], depth: int) -> Iterator[str]:
        branches = [self._schema.resolve(branch) for branch in node.branches]
        is_null = [isinstance(branch, Primitive) and branch.type is PrimitiveType.NULL for branch in branches]
        if sorted(is_null) != [False, True]:
            raise _TooMuch
        null = is_null.index(True)
        yield f"if {value} is None: add({varint(null << 1)!r})"
        yield "else:"
        yield f"    add({varint((1 - null) << 1)!r})"
        yield from self._block(branches[1 - null], value, inside, depth)

    def _block(self, node: Type, value: str, inside: frozenset[Any], depth: int) -> Iterator[str]:
        return (f"    {line}" for line in self.lines(node, value, inside, depth + 1))

    def _variable(self) -> str:
        return f"v{next(self._numbers)}"
