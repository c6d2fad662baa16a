"""Avro schemas as immutable values.

A parsed schema is a tree of frozen nodes. A named type (record, enum, fixed) occurs once in the tree, at its
definition; every other use is a `Reference` by full name. Recursive schemas are therefore finite values with structural
equality. `Schema.resolve` resolves a reference.

Positions and source text are excluded from equality: two schemas that differ only in layout are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

JsonValue = Any
"""A value as returned by `json.loads`: None, bool, int, float, str, list or dict."""


class _NoDefault:
    """Marker for a field without default; an explicit JSON null is `None`."""

    _instance: _NoDefault | None = None

    def __new__(cls) -> _NoDefault:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """Position of a node in its source text; `quick_json` has a lazy variant.

    `line` and `column` count from 1 (columns in characters); `pointer` is the JSON pointer of RFC 6901, "" for the
    whole document.
    """

    pointer: str
    line: int
    column: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return (self.pointer, self.line, self.column) == (other.pointer, other.line, other.column)

    def __hash__(self) -> int:
        return hash((self.pointer, self.line, self.column))


NO_POSITION: Final = Position("", 0, 0)
"""Position of a node that was not read from a text."""


class PrimitiveType(StrEnum):
    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"


class Order(StrEnum):
    ASCENDING = "ascending"
    DESCENDING = "descending"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """A full name; `namespace` is "" for the null namespace."""

    name: str
    namespace: str = ""

    @property
    def full(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return self.full


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A valid logical type; an invalid or unknown one is only in the attributes (`props`) of its type.

    `precision` and `scale` are set for decimal, in digits.
    """

    name: str
    precision: int | None = None
    scale: int | None = None


Props = tuple[tuple[str, JsonValue], ...]
"""Attributes that Avro does not reserve, in source order, including `logicalType`, `precision` and `scale`."""


@dataclass(frozen=True, slots=True)
class Primitive:
    type: PrimitiveType
    logical: LogicalType | None = None
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. `default` is the JSON value of the schema text, or `NO_DEFAULT`."""

    name: str
    type: Type
    default: JsonValue = NO_DEFAULT
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    order: Order = Order.ASCENDING
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)

    @property
    def has_default(self) -> bool:
        return self.default is not NO_DEFAULT


@dataclass(frozen=True, slots=True)
class Record:
    """A record, or an error type (`is_error`), which is encoded the same way. Aliases are full names."""

    name: Name
    fields: tuple[Field, ...]
    doc: str | None = None
    aliases: tuple[Name, ...] = ()
    is_error: bool = False
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum. A reader returns `default` for an unknown symbol; `default` is None if the enum does not have one."""

    name: Name
    symbols: tuple[str, ...]
    default: str | None = None
    doc: str | None = None
    aliases: tuple[Name, ...] = ()
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed type: binary data of always `size` bytes."""

    name: Name
    size: int
    logical: LogicalType | None = None
    doc: str | None = None
    aliases: tuple[Name, ...] = ()
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Array:
    items: Type
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Map:
    values: Type
    props: Props = ()
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Type, ...]
    position: Position = field(default=NO_POSITION, compare=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of a named type that is defined elsewhere in the schema or in a referenced schema."""

    name: Name
    position: Position = field(default=NO_POSITION, compare=False)


NamedType = Record | Enum | Fixed
Type = Primitive | Record | Enum | Fixed | Array | Map | Union | Reference


@dataclass(frozen=True, slots=True)
class Schema:
    """A complete schema: its root node and all named types that its references may refer to.

    `names` holds the types of this text and of the schemas it refers to; `text` and `source` (a file name or a subject)
    are its origin.
    """

    root: Type
    names: Mapping[Name, NamedType] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    text: str = field(default="", compare=False, repr=False)
    source: str = field(default="", compare=False)

    def resolve(self, node: Type) -> Type:
        """Returns the referenced type, or the node itself if it is not a reference."""
        if isinstance(node, Reference):
            return self.names[node.name]
        return node
