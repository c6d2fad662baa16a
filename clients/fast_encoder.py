"""Encodes plain values with Python code that is generated for one schema, in half the time of fastavro.

Plain values consist of exactly these classes: int, float, str, bytes, bool, None, list and dict, in range, with exactly
the fields of their records. All other values are passed to another encoder, which uses fastavro and `find_problem`.
Those define the result; this module only makes it faster, and its output is byte for byte that of fastavro.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from headrace.avro_schema import Array, Enum, Map, Primitive, PrimitiveType, Record, Schema, Type, Union
from headrace.clients.datum import INT_RANGES, LOGICAL_RANGES, UUID_TEXT

NODES_MAX: Final = 2000
DEPTH_MAX: Final = 12
"""Limits of the schemas for which code is generated: the number of types, variables and constants in the code
(`NODES_MAX`), and the nesting of types. A larger schema would compile slowly, and Python limits nested blocks."""

FLOAT_MAX: Final = 3.4e38
"""Largest value that is encoded here as a float; fastavro encodes the few larger ones that round to a finite float."""


def varint(number: int) -> bytes:
    """Returns the varint of an unsigned number, as in Avro and Protocol Buffers: 7 bits per byte, lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SHORT: Final = [varint(number) for number in range(1 << 14)]
"""The varints of the numbers below 2**14, which have one or two bytes."""
_CONTINUED: Final = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14)]
"""The first two bytes of longer varints, by the lowest 14 bits of their number."""
_EVEN: Final = _SHORT[::2]
_EVEN_CONTINUED: Final = _CONTINUED[::2]
"""`_EVEN` and `_EVEN_CONTINUED` contain the entries of `_SHORT` and `_CONTINUED` for even numbers, by half the number.
They are used for non-negative values: Avro encodes such a value n as the varint of 2n (zigzag)."""


def _long(value: int) -> bytes:
    """Returns the varint of `value`, a 64-bit number for which the generated code has no faster expression: one that is
    negative or at least 2**27.

    Raises:
        _UnsupportedValue: the number has more than 64 bits.
    """
    if 0 <= value < 1 << 41:  # milliseconds until 2039, with few operations on more than 30 bits, which are slow
        low = value & 0x7FFFFFF
        return _EVEN_CONTINUED[low & 0x1FFF] + _CONTINUED[low >> 13] + _SHORT[value >> 27]
    number = value << 1 if value >= 0 else ~(value << 1)
    if number >> 64:
        raise _UnsupportedValue
    found = b""
    while number >> 14:
        found += _CONTINUED[number & 0x3FFF]
        number >>= 14
    return found + _SHORT[number]


def _int(value: int) -> bytes:
    """Returns the varint of `value`, a 32-bit number for which the generated code has no faster expression: one that is
    negative or at least 2**27.

    Raises:
        _UnsupportedValue: the number has more than 32 bits.
    """
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise _UnsupportedValue
    return _long(value)


ENCODER_ERRORS: Final[tuple[type[Exception], ...]] = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    struct.error,
)
"""Errors that encoders raise for values that do not fit."""


class _UnsupportedValue(Exception):
    """The generated encoder does not handle the value, for example a datetime; another encoder must encode it."""


class _UnsupportedSchema(Exception):
    """The schema has a type, such as fixed, for which no encoder is generated, or is too large; another encoder must be
    used."""


class _Part(NamedTuple):
    """A part of an encoded value in the generated code: a Python expression for bytes, or, if `code` is set, for a
    value that `struct` packs with this format code. An expression that begins with a star is a sequence of parts."""

    expression: str
    code: str = ""


class _Code(NamedTuple):
    """Generated code that encodes one value: the statements to run first, and the expressions for parts of the encoded
    value."""

    lines: list[str]
    parts: list[_Part]


_NUMBER: Final = (
    "long_({value}) if {value} >= 0x8000000 or {value} < 0 else "
    "EVEN[{value}] if {value} < 8192 else EVEN_CONTINUED[{value} & 8191] + SHORT[{value} >> 13]"
)
_SIZE: Final = "EVEN[{value}_size] if {value}_size < 8192 else varint({value}_size << 1)"

_PRIMITIVES: Final[dict[PrimitiveType, tuple[str, tuple[_Part, ...]]]] = {
    PrimitiveType.NULL: ("if {value} is not None: raise Unsupported", ()),
    PrimitiveType.BOOLEAN: ("if {value}.__class__ is not bool: raise Unsupported", (_Part("{value}", "?"),)),
    PrimitiveType.INT: (
        "if {value}.__class__ is not int: raise Unsupported",
        (_Part(_NUMBER.replace("long_", "int_")),),
    ),
    PrimitiveType.LONG: ("if {value}.__class__ is not int: raise Unsupported", (_Part(_NUMBER),)),
    PrimitiveType.FLOAT: (
        f"if {{value}}.__class__ is not float or not {-FLOAT_MAX} < {{value}} < {FLOAT_MAX}: raise Unsupported",
        (_Part("{value}", "f"),),
    ),
    PrimitiveType.DOUBLE: ("if {value}.__class__ is not float: raise Unsupported", (_Part("{value}", "d"),)),
    PrimitiveType.STRING: ("{value} = utf8({value})\n{value}_size = len({value})", (_Part(_SIZE), _Part("{value}"))),
    PrimitiveType.BYTES: (
        "if {value}.__class__ is not bytes: raise Unsupported\n{value}_size = len({value})",
        (_Part(_SIZE), _Part("{value}")),
    ),
}
"""The statements and the output of the generated code for each primitive type. The code encodes the variable `value`,
which it may change. For strings, `str.encode` raises an error if the value is not a `str`."""
_BEGIN_BLOCK: Final = (
    "{value}_size = len({value})",
    "{value}_parts = [" + _SIZE + "] if {value} else []",
)
"""The first statements of the generated code for an array or map. They start a list of the output's parts with the
number of items, which all form one block; the items are appended to this list."""


def compile_encoder(schema: Schema, prefix: bytes, encode_any: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Returns a function that encodes values of a schema to bytes that begin with `prefix`.

    The function encodes plain values itself and passes others to `encode_any`. If the schema has unsupported types
    (fixed, recursive types, unions other than null and one type), or exceeds `NODES_MAX` or `DEPTH_MAX`, returns
    `encode_any` itself.
    """
    writer = _Writer(schema)
    try:
        lines, parts = writer.code(schema.root, "value", frozenset(), 1)
    except _UnsupportedSchema:
        return encode_any
    written = writer.join_parts([_Part("prefix"), *parts])
    statements = [*lines, f"return join([{', '.join(written)}])"]
    # `encode_any` handles values that are not plain. Other errors, such as those of signal handlers, are raised.
    source = "\n".join(
        [
            "def encode(given):",
            "    value = given",
            "    try:",
            *_indented(_indented(statements)),
            "    except UNSUPPORTED:",
            "        pass",
            "    return encode_any(given)",
        ]
    )
    names = {
        **writer.constants,
        "prefix": prefix,
        "encode_any": encode_any,
        "join": b"".join,
        "int_": _int,
        "long_": _long,
        "utf8": str.encode,
        "uuid_text": UUID_TEXT,
        "varint": varint,
        "SHORT": _SHORT,
        "EVEN": _EVEN,
        "EVEN_CONTINUED": _EVEN_CONTINUED,
        "Unsupported": _UnsupportedValue,
        "UNSUPPORTED": (*ENCODER_ERRORS, _UnsupportedValue),
    }
    # Names of the schema appear in the source only as `repr`, so they cannot inject code.
    exec(compile(source, "<encoder of a schema>", "exec"), names)  # noqa: S102
    encode: Callable[[Any], bytes] = names["encode"]
    return encode


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


class _Writer:
    """Generates the Python code that encodes values of one schema. `constants` are the values that the code uses, by
    their names in it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers = itertools.count()
        self.constants: dict[str, Any] = {}

    def code(self, node: Type, value: str, inside: frozenset[Any], depth: int) -> _Code:
        """Returns the code that encodes the variable named `value`, which the code may change.

        Args:
            node: the type of the variable's value.
            inside: names of the records that contain this type; a record inside itself is not supported.
            depth: nesting level of the type; 1 for the root of the schema.
        """
        node = self._schema.resolve(node)
        if depth > DEPTH_MAX or next(self._numbers) > NODES_MAX:
            raise _UnsupportedSchema
        if isinstance(node, Primitive):
            lines, parts = _PRIMITIVES[node.type]
            name = node.logical.name if node.logical is not None else ""
            if node.type in INT_RANGES and name in LOGICAL_RANGES:
                least, most = LOGICAL_RANGES[name]
                lines += f"\nif not {least} <= {{value}} <= {most}: raise Unsupported"
            elif node.type is PrimitiveType.STRING and name == "uuid":
                lines = "if uuid_text({value}) is None: raise Unsupported\n" + lines
            return _Code(
                lines.format(value=value).split("\n"),
                [_Part(part.expression.format(value=value), part.code) for part in parts],
            )
        if isinstance(node, Record) and node.name not in inside:
            return self._record(node, value, inside | {node.name}, depth)
        if isinstance(node, Enum):
            symbols = self._constant({symbol: varint(number << 1) for number, symbol in enumerate(node.symbols)})
            return _Code([], [_Part(f"{symbols}[{value}]")])
        if isinstance(node, Array):
            item = self._variable()
            return self._blocks(
                "list", value, f"for {item} in {value}:", self.code(node.items, item, inside, depth + 1)
            )
        if isinstance(node, Map):
            key, item = self._variable(), self._variable()
            keys = self.code(Primitive(PrimitiveType.STRING), key, inside, depth + 1)
            values = self.code(node.values, item, inside, depth + 1)
            entry = _Code(keys.lines + values.lines, keys.parts + values.parts)
            return self._blocks("dict", value, f"for {key}, {item} in {value}.items():", entry)
        if isinstance(node, Union):
            return self._optional(node, value, inside, depth)
        raise _UnsupportedSchema

    def join_parts(self, parts: list[_Part]) -> list[str]:
        """Returns Python expressions that together yield the bytes of these parts of an encoded value. Adjacent parts
        with a `struct` code become one call of `pack`."""
        written = []
        for is_packed, group in itertools.groupby(parts, key=lambda part: part.code != ""):
            run = list(group)
            if is_packed:
                pack = self._constant(struct.Struct("<" + "".join(part.code for part in run)).pack)
                written.append(f"{pack}({', '.join(part.expression for part in run)})")
            else:
                written += [part.expression for part in run]
        return written

    def _record(self, node: Record, value: str, inside: frozenset[Any], depth: int) -> _Code:
        found = _Code(
            [f"if {value}.__class__ is not dict or len({value}) != {len(node.fields)}: raise Unsupported"], []
        )
        for field in node.fields:
            name = self._variable()
            found.lines.append(f"{name} = {value}[{field.name!r}]")
            lines, parts = self.code(field.type, name, inside, depth + 1)
            found.lines.extend(lines)
            found.parts.extend(parts)
        return found

    def _blocks(self, kind: str, value: str, loop: str, item: _Code) -> _Code:
        begin = [line.format(value=value) for line in _BEGIN_BLOCK]
        add = [
            f"{value}_parts += {each[1:]}" if each.startswith("*") else f"{value}_parts.append({each})"
            for each in self.join_parts(item.parts)
        ]
        lines = [
            f"if {value}.__class__ is not {kind}: raise Unsupported",
            *begin,
            loop,
            *_indented([*item.lines, *add, "pass"]),
        ]
        return _Code(lines, [_Part(f"*{value}_parts"), _Part(self._constant(varint(0)))])

    def _optional(self, node: Union, value: str, inside: frozenset[Any], depth: int) -> _Code:
        branches = [self._schema.resolve(branch) for branch in node.branches]
        is_null = [isinstance(branch, Primitive) and branch.type is PrimitiveType.NULL for branch in branches]
        if sorted(is_null) != [False, True]:
            raise _UnsupportedSchema
        null = is_null.index(True)
        null_branch, value_branch = self._constant((varint(null << 1),)), self._constant(varint((1 - null) << 1))
        lines, parts = self.code(branches[1 - null], value, inside, depth + 1)
        found = self._variable()
        written = ", ".join([value_branch, *self.join_parts(parts)])
        return _Code(
            [f"if {value} is None: {found} = {null_branch}", "else:", *_indented([*lines, f"{found} = ({written},)"])],
            [_Part(f"*{found}")],
        )

    def _variable(self) -> str:
        return f"v{next(self._numbers)}"

    def _constant(self, value: Any) -> str:
        name = f"c{next(self._numbers)}"
        self.constants[name] = value
        return name
