"""Encodes JSON values to Avro binary, as a schema defines their types.

Reads Avro's JSON encoding (Avro 1.12, JSON Encoding), which REST Proxy and Avro Java write: bytes are texts of the code
points 0 to 255, a union value other than null is an object with the name of its branch, and NaN and the infinities are
texts. In addition, a union value without the name of its branch is read if exactly one branch fits it, and a record may
omit fields with a default.

A value that its type cannot represent is refused: a number out of range, an integer that a double would round.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.avro_codec.encode import encode_bytes, encode_default, encode_long
from headrace.avro_schema import (
    Array,
    Enum,
    Field,
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

RECURSIONS_MAX: Final = 100
"""Maximum number of times that a recursive type contains itself in a value."""

BRANCH_TRIES_MAX: Final = 10_000
"""Maximum number of branches that are tried for union values without a branch name, per value. Nested unions of similar
records would otherwise take time that grows exponentially with the nesting."""

NUMBER_BITS_SHOWN_MAX: Final = 200

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

EncodeJson = Callable[[JsonValue], bytes]
"""Function that returns the Avro binary of a JSON value. Raises `JsonMismatch`."""


class JsonMismatch(ValueError):
    """A JSON value does not fit its schema.

    Attributes:
        path: dotted path of the field, with `[0]` for items; "" for the whole value.
        sentence: what was expected, and what was found.
    """

    def __init__(self, sentence: str, *, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path = ""
        self.is_final = is_final

    def __str__(self) -> str:
        return f"field {self.path}: {self.sentence}" if self.path else self.sentence

    def below(self, step: str) -> JsonMismatch:
        """Returns this mismatch, found in a field or item of the enclosing value."""
        self.path = f"{step}{self.path}" if not self.path or self.path.startswith("[") else f"{step}.{self.path}"
        return self


@dataclass(slots=True)
class _Limits:
    """How often one value contains itself at the current position, and the branches that were tried for it."""

    recursions: int = 0
    branch_tries: int = 0


_Write = Callable[[JsonValue, bytearray], None]


def compile_from_json(schema: Schema) -> EncodeJson:
    """Compiles the conversion of JSON values to the schema's Avro binary. The function is not thread-safe."""
    limits = _Limits()
    write = _Compiler(schema, limits).write(schema.root)

    def encode(value: JsonValue) -> bytes:
        out = bytearray()
        limits.recursions = limits.branch_tries = 0
        write(value, out)
        return bytes(out)

    return encode


class _Compiler:
    def __init__(self, schema: Schema, limits: _Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._records: dict[Name, _Write] = {}
        self._open: set[Name] = set()

    def write(self, node: Type) -> _Write:
        match node:
            case Primitive(type=kind):
                return _PRIMITIVES[kind]
            case Fixed(size=size):
                return _fixed(size)
            case Enum(symbols=symbols):
                return _enum(symbols)
            case Array(items=items):
                return _array(self.write(items))
            case Map(values=values):
                return _map(self.write(values))
            case Union(branches=branches):
                return self._union(branches)
            case Record() | Reference():
                return self._named(node.name)

    def _named(self, name: Name) -> _Write:
        definition = self._schema.names[name]
        if not isinstance(definition, Record):
            return self.write(definition)
        if name in self._records:
            return self._records[name]
        if name in self._open:
            return self._recursive(name)
        self._open.add(name)
        fields = [(one.name, self.write(one.type), self._default(one)) for one in definition.fields]
        self._open.discard(name)
        return self._records.setdefault(name, _record(name, fields))

    def _recursive(self, name: Name) -> _Write:
        records, limits = self._records, self._limits

        def write(value: JsonValue, out: bytearray) -> None:
            limits.recursions += 1
            if limits.recursions > RECURSIONS_MAX:
                raise JsonMismatch(f"{name} contains itself more than {RECURSIONS_MAX} times", is_final=True)
            records[name](value, out)
            limits.recursions -= 1

        return write

    def _default(self, one: Field) -> bytes | None:
        return encode_default(self._schema, one.type, one.default) if one.has_default else None

    def _union(self, branches: Sequence[Type]) -> _Write:
        named = {branch_name(self._schema.resolve(branch)): (encode_long(index), self.write(branch))
                 for index, branch in enumerate(branches)}  # fmt: skip
        return _union(named, self._limits)


def _union(branches: dict[str, tuple[bytes, _Write]], limits: _Limits) -> _Write:
    """Returns the writer of a union.

    Args:
        branches: by name, the encoded index and the writer of each branch.
    """
    null = branches.get("null")
    others = {name: branch for name, branch in branches.items() if name != "null"}

    def write(value: JsonValue, out: bytearray) -> None:
        if value is None:
            if null is None:
                raise JsonMismatch(f"expected {_one_of(others)}, found null")
            out += null[0]
            return
        start, recursions = len(out), limits.recursions
        tagged: JsonMismatch | None = None
        if value.__class__ is dict and len(value) == 1:
            ((name, inner),) = value.items()
            if name in others:
                index, write_branch = others[name]
                out += index
                try:
                    write_branch(inner, out)
                    return
                except JsonMismatch as error:
                    tagged = error
                    if error.is_final:
                        raise
                    del out[start:]
                    limits.recursions = recursions
        _write_unnamed(value, out, tagged)

    def _write_unnamed(value: JsonValue, out: bytearray, tagged: JsonMismatch | None) -> None:
        fitting: dict[str, bytes] = {}
        problems: list[JsonMismatch] = []
        recursions = limits.recursions
        for name, (index, write_branch) in others.items():
            limits.branch_tries += 1
            if limits.branch_tries > BRANCH_TRIES_MAX:
                raise JsonMismatch("too many unions without the name of a branch; name the branches", is_final=True)
            encoded = bytearray(index)
            try:
                write_branch(value, encoded)
                fitting[name] = bytes(encoded)
            except JsonMismatch as error:
                if error.is_final:
                    raise
                problems.append(error)
                limits.recursions = recursions
        if len(fitting) == 1:
            out += next(iter(fitting.values()))
            return
        if fitting:
            example = next(iter(fitting))
            raise JsonMismatch(
                f'the value fits {" and ".join(fitting)}; name the branch of the union, such as {{"{example}": …}}'
            )
        if tagged is not None:
            raise tagged
        if len(others) == 1:
            raise problems[0]
        raise JsonMismatch(f"expected {_one_of(branches)}, found {_shown(value)}")

    return write


def _record(name: Name, fields: list[tuple[str, _Write, bytes | None]]) -> _Write:
    """Returns the writer of a record.

    Args:
        fields: name, writer and encoded default of each field; None if it has no default.
    """
    names = frozenset(one for one, _, _ in fields)

    def write(value: JsonValue, out: bytearray) -> None:
        if value.__class__ is not dict:
            raise JsonMismatch(f"expected record {name} (an object), found {_shown(value)}")
        given = 0
        for field_name, write_field, default in fields:
            if field_name in value:
                given += 1
                try:
                    write_field(value[field_name], out)
                except JsonMismatch as error:
                    raise error.below(field_name) from None
            elif default is not None:
                out += default
            else:
                raise JsonMismatch("missing, and it has no default").below(field_name)
        if given != len(value):
            unknown = next(one for one in value if one not in names)
            raise JsonMismatch(f"record {name} has no such field").below(unknown)

    return write


def _array(write_item: _Write) -> _Write:
    def write(value: JsonValue, out: bytearray) -> None:
        if value.__class__ is not list:
            raise JsonMismatch(f"expected an array, found {_shown(value)}")
        if value:
            out += encode_long(len(value))
            for index, item in enumerate(value):
                try:
                    write_item(item, out)
                except JsonMismatch as error:
                    raise error.below(f"[{index}]") from None
        out += b"\x00"

    return write


def _map(write_value: _Write) -> _Write:
    def write(value: JsonValue, out: bytearray) -> None:
        if value.__class__ is not dict:
            raise JsonMismatch(f"expected a map (an object), found {_shown(value)}")
        if value:
            out += encode_long(len(value))
            for key, item in value.items():
                try:
                    _string(key, out)
                    write_value(item, out)
                except JsonMismatch as error:
                    raise error.below(f"[{key!r}]") from None
        out += b"\x00"

    return write


def _enum(symbols: tuple[str, ...]) -> _Write:
    indexes = {symbol: encode_long(index) for index, symbol in enumerate(symbols)}

    def write(value: JsonValue, out: bytearray) -> None:
        index = indexes.get(value) if value.__class__ is str else None
        if index is None:
            more = ", …" if len(symbols) > 10 else ""
            raise JsonMismatch(f"expected one of {', '.join(symbols[:10])}{more}, found {_shown(value)}")
        out += index

    return write


def _fixed(size: int) -> _Write:
    def write(value: JsonValue, out: bytearray) -> None:
        content = _latin(value)
        if len(content) != size:
            raise JsonMismatch(f"expected {size:,} bytes, found {len(content):,}")
        out += content

    return write


def _null(value: JsonValue, out: bytearray) -> None:
    if value is not None:
        raise JsonMismatch(f"expected null, found {_shown(value)}")


def _boolean(value: JsonValue, out: bytearray) -> None:
    if value.__class__ is not bool:
        raise JsonMismatch(f"expected true or false, found {_shown(value)}")
    out.append(value)


def _int(value: JsonValue, out: bytearray) -> None:
    _whole(value, out, "int", _INT_MIN, _INT_MAX)


def _long(value: JsonValue, out: bytearray) -> None:
    _whole(value, out, "long", _LONG_MIN, _LONG_MAX)


def _whole(value: JsonValue, out: bytearray, kind: str, least: int, most: int) -> None:
    if value.__class__ is not int:
        raise JsonMismatch(f"expected {kind}, found {_shown(value)}")
    if not least <= value <= most:
        raise JsonMismatch(f"{_shown(value)} is outside the range of {kind}, {least} to {most}")
    out += encode_long(value)


def _float(value: JsonValue, out: bytearray) -> None:
    _real(value, out, "float", "<f")


def _double(value: JsonValue, out: bytearray) -> None:
    _real(value, out, "double", "<d")


def _real(value: JsonValue, out: bytearray, kind: str, packing: str) -> None:
    if value.__class__ is str and value in _NOT_FINITE:
        out += struct.pack(packing, _NOT_FINITE[value])
        return
    if value.__class__ is not float and value.__class__ is not int:
        raise JsonMismatch(f"expected {kind}, found {_shown(value)}")
    try:
        packed = struct.pack(packing, value)
    except (OverflowError, struct.error):
        packed = b""
    if not packed or (value.__class__ is float and not math.isfinite(value)):
        raise JsonMismatch(f"{_shown(value)} is outside the range of {kind}")
    if value.__class__ is int and struct.unpack(packing, packed)[0] != value:
        raise JsonMismatch(f"{_shown(value)} is an integer that a {kind} rounds")
    out += packed


def _bytes(value: JsonValue, out: bytearray) -> None:
    out += encode_bytes(_latin(value))


def _latin(value: JsonValue) -> bytes:
    if value.__class__ is not str:
        raise JsonMismatch(f"expected bytes (a text of the code points 0 to 255), found {_shown(value)}")
    try:
        return bytes(value, "latin-1")
    except UnicodeEncodeError as error:
        raise JsonMismatch(
            f"expected bytes (a text of the code points 0 to 255), found the character {value[error.start]!a}"
        ) from None


def _string(value: JsonValue, out: bytearray) -> None:
    if value.__class__ is not str:
        raise JsonMismatch(f"expected a string, found {_shown(value)}")
    try:
        out += encode_bytes(value.encode())
    except UnicodeEncodeError:
        raise JsonMismatch("the text contains half of a surrogate pair and has no UTF-8 form") from None


def _one_of(branches: dict[str, Any]) -> str:
    return " or ".join(branches)


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"the text {value[:40]!r}{'…' if len(value) > 40 else ''}"
    if isinstance(value, int) and value.bit_length() > NUMBER_BITS_SHOWN_MAX:
        return "a number of many digits"
    return json.dumps(value)


_PRIMITIVES: dict[PrimitiveType, _Write] = {
    PrimitiveType.NULL: _null,
    PrimitiveType.BOOLEAN: _boolean,
    PrimitiveType.INT: _int,
    PrimitiveType.LONG: _long,
    PrimitiveType.FLOAT: _float,
    PrimitiveType.DOUBLE: _double,
    PrimitiveType.BYTES: _bytes,
    PrimitiveType.STRING: _string,
}
