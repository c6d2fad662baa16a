"""Requests of the control APIs that are too large to be read at once, read a little at a time.

A megabyte may name half a million things, which take seconds to be made objects of. So others have their turns while
it is read, and there is a largest number of names, which bounds what it takes to answer them. The decoders that
kafka-python compiles do neither; besides, endless varints and many tagged fields cost them time that grows with its
square. What is read is the same, but for tagged fields: none of them means anything to this broker.
"""

from __future__ import annotations

import io
import struct
from typing import Any

from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32

from headrace.broker.protocol.framing import NAMES_MAX
from headrace.broker.turns import Turns
from headrace.kafka_wire.errors import MalformedMessage

AT_ONCE_BYTES = 32 * 1024
"""Of a frame that is read without others having their turn."""

WRONG_BYTES = (struct.error, IndexError, ValueError, AssertionError, OverflowError, MemoryError)
"""What kafka-python's decoders raise when the bytes are none of a request."""


async def read_in_turns(request_class: Any, frame: bytes, body_at: int, version: int) -> Any:
    """
    Raises:
        MalformedMessage: it ends early, has more than NAMES_MAX names, or is not what the protocol says.
    """
    reading = _Reading(frame, body_at, version, is_flexible=request_class.flexible_version_q(version))
    try:
        return await reading.structure(request_class._struct, request_class[None])
    except WRONG_BYTES as error:
        raise MalformedMessage(f"{type(error).__name__}: {error}") from error


class _Reading:
    """One request, as far as it has been read."""

    def __init__(self, frame: bytes, body_at: int, version: int, *, is_flexible: bool) -> None:
        self._stream = io.BytesIO(frame)
        self._stream.seek(body_at)
        self._version, self._is_flexible = version, is_flexible
        self._encoding = {"version": version, "compact": is_flexible, "tagged": is_flexible}
        # What a list has beyond its first is counted, so that a topic and its one partition are one name.
        self._names_left = NAMES_MAX - 1
        self._turns = Turns()

    async def structure(self, field: Any, data_class: Any) -> Any:
        values = {}
        for each in field.untagged_fields(self._version):
            if each.is_array():
                values[each.name] = await self._array(each)
            else:
                values[each.name] = each.decode(self._stream, **self._encoding)
        if self._is_flexible:
            await self._pass_tags()
        return data_class(version=self._version, **values)

    async def _array(self, field: Any) -> list[Any] | None:
        size = UnsignedVarInt32.decode(self._stream) - 1 if self._is_flexible else Int32.decode(self._stream)
        if size == -1:
            return None
        self._count(size - 1)
        item, items = field.array_of, []
        for _ in range(size):
            await self._turns.give()
            if item.is_struct():
                items.append(await self.structure(item, item.data_class))
            else:
                items.append(item.decode(self._stream, **self._encoding))
        return items

    async def _pass_tags(self) -> None:
        """Skips the tagged fields of a structure: the versions that are served have none that they know."""
        count = UnsignedVarInt32.decode(self._stream)
        self._count(count)
        for _ in range(count):
            await self._turns.give()
            UnsignedVarInt32.decode(self._stream)
            size = UnsignedVarInt32.decode(self._stream)
            if size < 0 or len(self._stream.read(size)) < size:
                raise MalformedMessage(f"a tagged field of {size} bytes, of which not all have come")

    def _count(self, names: int) -> None:
        if names > 0:
            self._names_left -= names
            if self._names_left < 0:
                raise MalformedMessage(f"{names} items more, of at most {NAMES_MAX} in one request")
