"""Readers and writers of the primitive types of the Kafka protocol, for the APIs in which speed matters.

Flexible versions have compact strings and arrays (varint of length + 1), and end each structure with tagged fields.
"""

from __future__ import annotations

import struct
from typing import Any

from headrace.kafka_wire.errors import MalformedMessage

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

ITEMS_MAX = 100_000
"""Default limit of items in all arrays of a message: more than a broker has partitions."""


def _overrun(view: memoryview, pos: int, size: int) -> MalformedMessage:
    return MalformedMessage(f"the message has {len(view)} bytes, too few to read {size} bytes at position {pos}")


def uvarint_at(view: memoryview, pos: int) -> tuple[int, int]:
    """Reads an unsigned varint at the position `pos` of a frame; returns the number and the position after it."""
    value = shift = 0
    while pos < len(view):
        byte = view[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 28:
            raise MalformedMessage("the message has a varint of more than five bytes")
    raise _overrun(view, pos, 1)


def text_at(view: memoryview, pos: int, size: int) -> tuple[str, int]:
    """Reads a string of `size` bytes at the position `pos` of a frame; returns the string and the position after it."""
    end = pos + size
    if end > len(view):
        raise _overrun(view, pos, size)
    try:
        return str(view[pos:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedMessage("the message has a string that is not UTF-8") from error


def after_tags(view: memoryview, pos: int) -> int:
    """Returns the position after the tagged fields, usually none, of a structure. They begin at the position `pos` of a
    frame."""
    if pos < len(view) and not view[pos]:
        return pos + 1
    reader = Reader(view, pos, flexible=True)
    reader.tags()
    return reader.pos


class Reader:
    """Reads one frame sequentially; reading beyond its end raises `MalformedMessage`.

    Args:
        pos: position in `view` at which to begin.
        flexible: whether the frame has a flexible version (KIP-482): lengths are varints, and structures have tagged
            fields.
        items_max: limit of items in all arrays together; the first item of each array does not count.
    """

    __slots__ = ("_end", "_items_left", "_items_max", "flexible", "pos", "view")

    def __init__(self, view: memoryview, pos: int, *, flexible: bool, items_max: int = ITEMS_MAX) -> None:
        self.view = view
        self.pos = pos
        self.flexible = flexible
        self._end = len(view)
        self._items_left = self._items_max = items_max

    def _advance(self, size: int) -> int:
        start = self.pos
        if size < 0 or start + size > self._end:
            raise _overrun(self.view, start, size)
        self.pos = start + size
        return start

    def i8(self) -> int:
        value = self.view[self._advance(1)]
        return value - 256 if value > 127 else value

    def i16(self) -> int:
        return int(self.fixed(_I16)[0])

    def i32(self) -> int:
        return int(self.fixed(_I32)[0])

    def i64(self) -> int:
        return int(self.fixed(_I64)[0])

    def fixed(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Reads several numbers of fixed size, in the struct format `fields`."""
        start = self.pos
        try:
            values = fields.unpack_from(self.view, start)
        except struct.error:
            raise _overrun(self.view, start, fields.size) from None
        self.pos = start + fields.size
        return values

    def uvarint(self) -> int:
        start = self.pos
        if start < self._end and (byte := self.view[start]) < 0x80:
            self.pos = start + 1
            return byte
        value, self.pos = uvarint_at(self.view, start)
        return value

    def raw(self, size: int) -> memoryview:
        start = self._advance(size)
        return self.view[start : start + size]

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1 if self.flexible else self.i16()
        if size < 0:
            return None
        value, self.pos = text_at(self.view, self.pos, size)
        return value

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedMessage("the message has null in place of a required string")
        return value

    def nullable_bytes(self) -> memoryview | None:
        size = self.uvarint() - 1 if self.flexible else self.i32()
        return None if size < 0 else self.raw(size)

    def array_size(self) -> int:
        """Reads the length of an array and returns its number of items; a null array counts as empty."""
        return self._counted(self.uvarint() - 1 if self.flexible else self.i32())

    def _counted(self, items: int) -> int:
        if items <= 0:
            return 0
        self._items_left -= items - 1
        if self._items_left < 0:
            raise MalformedMessage(
                f"an array of {items} items exceeds the limit of {self._items_max} items in all arrays of the message"
            )
        return items

    def tags(self) -> None:
        """Skips the tagged fields of a structure; none of them is used."""
        if not self.flexible:
            return
        for _ in range(self._counted(self.uvarint())):
            self.uvarint()
            self.raw(self.uvarint())


class Writer:
    """Writes a response sequentially to one buffer.

    Args:
        flexible: whether the response has a flexible version (KIP-482): lengths are varints, and structures have tagged
            fields.
    """

    __slots__ = ("buffer", "flexible")

    def __init__(self, *, flexible: bool) -> None:
        self.buffer = bytearray()
        self.flexible = flexible

    def i8(self, value: int) -> None:
        self.buffer.append(value & 0xFF)

    def i16(self, value: int) -> None:
        self.buffer += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.buffer += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.buffer += _I64.pack(value)

    def fixed(self, fields: struct.Struct, *values: int) -> None:
        """Writes several numbers of fixed size, in the struct format `fields`."""
        self.buffer += fields.pack(*values)

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def string(self, value: str) -> None:
        raw = value.encode()
        if self.flexible:
            self.uvarint(len(raw) + 1)
        else:
            self.i16(len(raw))
        self.buffer += raw

    def nullable_string(self, value: str | None) -> None:
        if value is not None:
            self.string(value)
        elif self.flexible:
            self.uvarint(0)
        else:
            self.i16(-1)

    def array_size(self, size: int) -> None:
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.i32(size)

    def bytes_size(self, size: int) -> None:
        """Writes the length prefix of `size` bytes that are sent from another buffer."""
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.i32(size)

    def tags(self) -> None:
        if self.flexible:
            self.buffer.append(0)
