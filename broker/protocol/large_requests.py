"""Decoder for large requests of APIs without records, which yields to the event loop while it decodes.

A request of a megabyte may contain half a million items, and decoding them takes seconds. This decoder lets other
connections proceed meanwhile. It also bounds the number of items, and so the time to respond.

The compiled decoders of kafka-python do neither, and their time is quadratic for endless varints and many tagged
fields. The results are the same, except that this decoder skips tagged fields, none of which this broker uses.
"""

from __future__ import annotations

import io
import struct
from typing import Any

from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32

from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.framing import REQUEST_ITEMS_MAX
from headrace.kafka_wire.errors import MalformedMessage

SYNC_DECODE_BYTES_MAX = 32 * 1024
"""Requests of more bytes, except Produce and Fetch, are decoded by the yielding decoder."""

DECODE_ERRORS = (struct.error, IndexError, ValueError, AssertionError, OverflowError, MemoryError)
"""Exceptions that kafka-python's decoders raise for malformed bytes."""


async def decode_yielding(request_class: Any, frame: bytes, body_at: int, version: int) -> Any:
    """Decodes a request, lets other tasks of the event loop run in between, and returns an instance of `request_class`.

    Args:
        request_class: kafka-python's class of the request.
        body_at: position in the frame at which the request's own fields begin.
        version: API version of the request.

    Raises:
        MalformedMessage: the request is truncated or malformed, or has more than REQUEST_ITEMS_MAX items.
    """
    decoder = _YieldingDecoder(frame, body_at, version, is_flexible=request_class.flexible_version_q(version))
    try:
        return await decoder.structure(request_class._struct, request_class[None])
    except DECODE_ERRORS as error:
        raise MalformedMessage(f"the request cannot be decoded: {type(error).__name__}: {error}") from error


class _YieldingDecoder:
    """Decodes one request, which begins at position `body_at` of `frame`, and lets other tasks run in between."""

    def __init__(self, frame: bytes, body_at: int, version: int, *, is_flexible: bool) -> None:
        self._stream = io.BytesIO(frame)
        self._stream.seek(body_at)
        self._version, self._is_flexible = version, is_flexible
        self._encoding = {"version": version, "compact": is_flexible, "tagged": is_flexible}
        # The first item of each list is not counted, so that a topic with one partition counts as one.
        self._items_left = REQUEST_ITEMS_MAX - 1
        self._yielder = LoopYielder()

    async def structure(self, field: Any, data_class: Any) -> Any:
        values = {}
        for each in field.untagged_fields(self._version):
            if each.is_array():
                values[each.name] = await self._array(each)
            else:
                values[each.name] = each.decode(self._stream, **self._encoding)
        if self._is_flexible:
            await self._skip_tags()
        return data_class(version=self._version, **values)

    async def _array(self, field: Any) -> list[Any] | None:
        size = UnsignedVarInt32.decode(self._stream) - 1 if self._is_flexible else Int32.decode(self._stream)
        if size == -1:
            return None
        self._count_items(size - 1)
        item, items = field.array_of, []
        for _ in range(size):
            await self._yielder.yield_if_due()
            if item.is_struct():
                items.append(await self.structure(item, item.data_class))
            else:
                items.append(item.decode(self._stream, **self._encoding))
        return items

    async def _skip_tags(self) -> None:
        """Skips the tagged fields of a structure. The broker uses none in the versions that it serves."""
        count = UnsignedVarInt32.decode(self._stream)
        self._count_items(count)
        for _ in range(count):
            await self._yielder.yield_if_due()
            UnsignedVarInt32.decode(self._stream)
            size = UnsignedVarInt32.decode(self._stream)
            if size < 0 or len(self._stream.read(size)) < size:
                raise MalformedMessage(f"the request ends within a tagged field of {size} bytes")

    def _count_items(self, item_count: int) -> None:
        if item_count > 0:
            self._items_left -= item_count
            if self._items_left < 0:
                raise MalformedMessage(f"the request has more than {REQUEST_ITEMS_MAX} list items; split it")
