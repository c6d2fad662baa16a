"""Strict walks over Avro binary: validate that a body is exactly one value of a schema, and find the ends of its parts.

A schema is compiled once to nested functions `(body, position) -> position after the value`. They are stricter than
common decoders, because a body that is copied to a container file must not corrupt its block: ints have at most 32 bits
and 5 bytes, longs 64 bits and 10 bytes, booleans are 0 or 1, indexes of unions and enums exist, strings are UTF-8, byte
counts of array and map blocks are correct, and no bytes follow the value. Avro Java reads every accepted body to the
same value.

Two properties of a short body can cost its reader much time and memory, so they are limited: the nesting of recursive
types, and the items of a type without bytes (an `array<null>` of 2^60 items has ten bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)
from headrace.avro_schema.message_time import TIME_TEXT_BYTES_MAX, TO_MS, TimeUnit, parse_time_text, time_unit

DEPTH_MAX = 96  # nesting of recursive types; each level needs a few of Python's 1,000 frames
ZERO_WIDTH_ITEMS_MAX = 65_536  # per body

Skip = Callable[[bytes, int], int]


class BadBody(Exception):
    """The body is not a value of its schema, or its value cannot be converted."""


def read_varint(b: bytes, p: int) -> tuple[int, int]:
    """Reads the zigzag long at position `p` of the body `b`; returns its value and the position after it."""
    n = b[p]
    p += 1
    if n > 127:
        n &= 127
        shift = 7
        while (c := b[p]) > 127:
            n |= (c & 127) << shift
            shift += 7
            p += 1
            if shift > 63:
                raise BadBody("a long takes more than 10 bytes")
        if shift == 63 and c > 1:
            raise BadBody("a long is beyond 64 bits")
        n |= c << shift
        p += 1
    return (n >> 1) ^ -(n & 1), p


def skip_long(b: bytes, p: int) -> int:
    if b[p] < 128:
        return p + 1
    q = p + 1
    while b[q] > 127:
        q += 1
    if q - p > 8 and (q - p > 9 or b[q] > 1):
        raise BadBody("a long is beyond 64 bits")
    return q + 1


def skip_int(b: bytes, p: int) -> int:
    if b[p] < 128:
        return p + 1
    q = p + 1
    while b[q] > 127:
        q += 1
    if q - p > 3 and (q - p > 4 or b[q] > 15):
        raise BadBody("an int is beyond 32 bits")
    return q + 1


def skip_boolean(b: bytes, p: int) -> int:
    if b[p] > 1:
        raise BadBody(f"a boolean is the byte {b[p]} instead of 0 or 1")
    return p + 1


def skip_string(b: bytes, p: int) -> int:
    n = b[p]
    if n & 129:
        n, p = read_varint(b, p)
        if n < 0:
            raise BadBody("a string has a negative length")
        n += p
    else:
        p += 1
        n = p + (n >> 1)
    b[p:n].decode()
    return n


def skip_bytes(b: bytes, p: int) -> int:
    n, p = read_varint(b, p)
    if n < 0:
        raise BadBody("bytes have a negative length")
    return p + n


def skip_nothing(b: bytes, p: int) -> int:
    return p


def skip_fixed(size: int) -> Skip:
    if size == 0:
        return skip_nothing

    def skip(b: bytes, p: int) -> int:
        return p + size

    return skip


PRIMITIVE_SKIPS: dict[PrimitiveType, Skip] = {
    PrimitiveType.NULL: skip_nothing,
    PrimitiveType.BOOLEAN: skip_boolean,
    PrimitiveType.INT: skip_int,
    PrimitiveType.LONG: skip_long,
    PrimitiveType.FLOAT: skip_fixed(4),
    PrimitiveType.DOUBLE: skip_fixed(8),
    PrimitiveType.BYTES: skip_bytes,
    PrimitiveType.STRING: skip_string,
}


class Limits:
    """Counts properties of one body that are limited: nested values of recursive types, and items without bytes. Also
    counts the bytes of names in JSON texts."""

    __slots__ = ("depth_max", "level", "named_bytes", "zero_width_items")

    def __init__(self, depth_max: int = DEPTH_MAX) -> None:
        self.depth_max = depth_max
        self.reset()

    def reset(self) -> None:
        """Sets the counters to 0 before the next body."""
        self.level = self.zero_width_items = self.named_bytes = 0

    def enter(self) -> None:
        """Counts a nested value of a recursive type; the caller decrements `level` after it.

        Raises:
            BadBody: values are nested deeper than `depth_max`.
        """
        self.level += 1
        if self.level > self.depth_max:
            raise BadBody(f"values are nested deeper than {self.depth_max} levels")

    def count_zero_width(self, count: int) -> None:
        """Counts `count` array items or record fields that take no bytes.

        Raises:
            BadBody: the body has too many of them.
        """
        self.zero_width_items += count
        if self.zero_width_items > ZERO_WIDTH_ITEMS_MAX:
            raise BadBody(f"the body claims more than {ZERO_WIDTH_ITEMS_MAX} items that take no bytes")


def skip_enum(symbols: int) -> Skip:
    def skip(b: bytes, p: int) -> int:
        n = b[p]
        if n & 129:
            n, p = read_varint(b, p)
        else:
            n >>= 1
            p += 1
        if not 0 <= n < symbols:
            raise BadBody(f"the enum index {n} is out of range: the enum has {symbols} symbols")
        return p

    return skip


def read_index(b: bytes, p: int, branches: int) -> tuple[int, int]:
    n, p = read_varint(b, p)
    if not 0 <= n < branches:
        raise BadBody(f"the union index {n} is out of range: the union has {branches} branches")
    return n, p


def skip_union(branches: Sequence[Skip]) -> Skip:
    count = len(branches)

    def skip(b: bytes, p: int) -> int:
        n = b[p]
        if n & 129 or n >> 1 >= count:
            n, p = read_index(b, p, count)
            return branches[n](b, p)
        return branches[n >> 1](b, p + 1)

    return skip


def skip_record(fields: Sequence[Skip]) -> Skip:
    """Returns the walk of a record from the walks of its fields. It is `skip_nothing` for a record without bytes,
    because walking nested records without bytes could take exponentially many calls."""
    fields = tuple(field for field in fields if field is not skip_nothing)
    if not fields:
        return skip_nothing

    def skip(b: bytes, p: int) -> int:
        for field in fields:
            p = field(b, p)
        return p

    return skip


def read_block(b: bytes, p: int) -> tuple[int, int, int]:
    """Reads the head of an array or map block at position `p` of the body `b`. Returns the item count, the position of
    the first item, and the position after the last item (-1 if the block does not state its size).

    Count 0 ends the array or map, even if it is encoded in more bytes than necessary.
    """
    count, p = read_varint(b, p)
    if count >= 0:
        return count, p, -1
    size, p = read_varint(b, p)
    if size < 0 or p + size > len(b):
        raise BadBody(f"a block of an array or map claims {size} bytes, but only {len(b) - p} are left")
    return -count, p, p + size


def check_block(p: int, end: int) -> None:
    if end not in (-1, p):
        raise BadBody("the byte count of a block of an array or map does not match its items")


def check_count(count: int, bytes_left: int) -> None:
    """Raises `BadBody` for an item count that exceeds the number of bytes left; each item has at least one byte."""
    if count > bytes_left:
        raise BadBody(f"an array or map claims {count} items, but only {bytes_left} bytes are left")


def skip_array(item: Skip) -> Skip:
    def skip(b: bytes, p: int) -> int:
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                return p
            check_count(count, len(b) - p)
            for _ in range(count):
                p = item(b, p)
            check_block(p, end)
        return p + 1

    return skip


def skip_zero_width_array(limits: Limits) -> Skip:
    """Returns the walk of an array with items that take no bytes; the walk only counts the items in `limits`."""

    def skip(b: bytes, p: int) -> int:
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                return p
            limits.count_zero_width(count)
            check_block(p, end)
        return p + 1

    return skip


def skip_map(value: Skip) -> Skip:
    def skip(b: bytes, p: int) -> int:
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                return p
            check_count(count, len(b) - p)
            for _ in range(count):
                p = value(b, skip_string(b, p))
            check_block(p, end)
        return p + 1

    return skip


class ZeroWidth:
    """Determines which types of a schema have values without bytes: null, fixed of size 0, and records of such types.

    Each record is examined once.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[Name, bool] = {}

    def has(self, node: Type) -> bool:
        node = self._schema.resolve(node)
        match node:
            case Primitive(type=kind):
                return kind is PrimitiveType.NULL
            case Fixed(size=size):
                return size == 0
            case Record(name=name, fields=fields):
                if name not in self._known:
                    # A recursive record contains itself through a union, array or map, which have bytes.
                    self._known[name] = False
                    self._known[name] = all(self.has(field.type) for field in fields)
                return self._known[name]
        return False


class WalkCompiler:
    """Compiles the types of one schema to walks. A named type is compiled once; the walk of a recursive type calls
    itself."""

    def __init__(self, schema: Schema, limits: Limits | None = None) -> None:
        self.schema = schema
        self.limits = limits or Limits()
        self.zero_width = ZeroWidth(schema)
        self._done: dict[Name, Skip] = {}
        self._open: set[Name] = set()

    def skip(self, node: Type) -> Skip:
        match node:
            case Primitive(type=kind):
                return PRIMITIVE_SKIPS[kind]
            case Fixed(size=size):
                return skip_fixed(size)
            case Enum(symbols=symbols):
                return skip_enum(len(symbols))
            case Union(branches=branches):
                return skip_union([self.skip(branch) for branch in branches])
            case Array(items=items):
                return (
                    skip_zero_width_array(self.limits) if self.zero_width.has(items) else skip_array(self.skip(items))
                )
            case Map(values=values):
                return skip_map(self.skip(values))
            case Reference(name=name):
                return self._by_name(name)
            case Record(name=name):
                return self._by_name(name)

    def _by_name(self, name: Name) -> Skip:
        if name in self._done:
            return self._done[name]
        if name in self._open:
            return self._recursive(name)
        definition = self.schema.names[name]
        if not isinstance(definition, Record):
            return self._done.setdefault(name, self.skip(definition))
        self._open.add(name)
        skip = skip_record([self.skip(field.type) for field in definition.fields])
        self._open.discard(name)
        return self._done.setdefault(name, skip)

    def _recursive(self, name: Name) -> Skip:
        done, limits = self._done, self.limits

        def skip(b: bytes, p: int) -> int:
            limits.enter()
            p = done[name](b, p)
            limits.level -= 1
            return p

        return skip


MALFORMED = (IndexError, UnicodeDecodeError, RecursionError, struct.error)
"""Exceptions besides `BadBody` that walks raise for invalid bytes."""


def malformed_reason(error: Exception) -> str:
    """Returns the reason why a message body is malformed, as a phrase.

    Args:
        error: the exception with which a walk of the body failed, of one of the types `MALFORMED`.
    """
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    if isinstance(error, RecursionError):
        return "values are nested too deeply"
    return "the body ends inside a value"


def length_problem(end: int, length: int) -> str:
    """Returns the description of the error that a value does not end where its body ends.

    Args:
        end: the position after the value.
        length: the size of the body.
    """
    return f"{length - end} bytes follow the value" if end < length else "the body ends inside a value"


def walk_body(skip: Skip, limits: Limits, body: bytes) -> None:
    """Validates a complete body with the walk `skip`.

    Args:
        skip: the walk of the writer schema.
        limits: the counters that `skip` uses; they are reset first.

    Raises:
        BadBody: the body is not exactly one value.
    """
    limits.reset()
    try:
        end = skip(body, 0)
    except MALFORMED as error:
        raise BadBody(malformed_reason(error)) from error
    if end != len(body):
        raise BadBody(length_problem(end, len(body)))


@dataclass(slots=True)
class CapturedTime:
    """Variable in which a walk stores the time that it reads in a body (see `skip_capturing`).

    `rank` is the number of the time field with this time, by preference from 0. `value` is the number in the field, in
    `unit`; for a text it is the time in milliseconds. It is None if no time was found. `unread` has a bit for each rank
    whose field has a text that is not a time. The caller clears `value` and `unread` before each body.
    """

    value: int | None = None
    rank: int = 0
    unit: TimeUnit = TimeUnit.MILLIS
    unread: int = 0

    @property
    def time_ms(self) -> int:
        """The captured time in milliseconds since 1970. Only if `value` is not None."""
        assert self.value is not None
        return self.value if self.unit is TimeUnit.TEXT else TO_MS[self.unit](self.value)

    def capture(self, rank: int, unit: TimeUnit, value: int) -> None:
        """Stores a time, unless that of a preferred field is stored."""
        if self.value is None or rank < self.rank:
            self.value, self.rank, self.unit = value, rank, unit


RankedPath = tuple[int, tuple[str, ...]]
"""The rank of a time field, and the names of the nested fields that lead to it from the current type."""


def skip_capturing(compiler: WalkCompiler, node: Type, paths: Sequence[RankedPath], captured: CapturedTime) -> Skip:
    """Returns a walk of the type `node` that also stores the time in the first of several time fields that has one.

    A time is stored as soon as it is read, so it is known even if the rest of the body is malformed.

    Args:
        compiler: compiles the walks of fields outside `paths`.
        node: the type of the values.
        paths: the time fields; their types may be unions.
        captured: the variable to set.
    """
    if not paths:
        return compiler.skip(node)
    node = compiler.schema.resolve(node)
    match node:
        case Record(fields=fields):
            return skip_record(
                [skip_capturing(compiler, field.type, below(paths, field.name), captured) for field in fields]
            )
        case Union(branches=branches):
            return skip_union([skip_capturing(compiler, branch, paths, captured) for branch in branches])
    unit, rank = time_unit(node), next((rank for rank, path in paths if not path), None)
    if unit is None or rank is None:
        return compiler.skip(node)
    return _capture_text(rank, captured) if unit is TimeUnit.TEXT else _capture_number(compiler, node, rank, captured)


def below(paths: Sequence[RankedPath], name: str) -> tuple[RankedPath, ...]:
    """Returns those of the paths that lead through the field `name`, from that field on."""
    return tuple((rank, path[1:]) for rank, path in paths if path[:1] == (name,))


def _capture_number(compiler: WalkCompiler, node: Type, rank: int, captured: CapturedTime) -> Skip:
    check, unit = compiler.skip(node), time_unit(node)
    assert unit is not None

    def skip(b: bytes, p: int) -> int:
        q = check(b, p)
        captured.capture(rank, unit, read_varint(b, p)[0])
        return q

    return skip


def _capture_text(rank: int, captured: CapturedTime) -> Skip:
    def skip(b: bytes, p: int) -> int:
        q = skip_string(b, p)
        length, start = read_varint(b, p)
        time_ms = parse_time_text(b[start:q].decode()) if length <= TIME_TEXT_BYTES_MAX else None
        if time_ms is None:
            captured.unread |= 1 << rank
        else:
            captured.capture(rank, TimeUnit.TEXT, time_ms)
        return q

    return skip
