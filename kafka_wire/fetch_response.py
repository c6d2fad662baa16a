"""Parses Fetch responses without copying their records.

The response class of kafka-python copies all records to a bytes object of some megabytes per response. That takes a
loader task as long as reading them from the socket. Here they are views of the receive buffer. Supports versions 4 to
13 of Kafka's `FetchResponse.json`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

OLDEST: Final = 4
NEWEST: Final = 13
LOG_START_FROM: Final = 5
SESSION_FROM: Final = 7
PREFERRED_REPLICA_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
BY_ID_FROM: Final = 13
UUID_BYTES: Final = 16
VARINT_SHIFT_MAX: Final = 28  # an unsigned varint of Kafka has at most 32 bits

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_SESSION = struct.Struct(">hi")  # error code, session
_PARTITION = struct.Struct(">ihqq")  # index, error code, high watermark, last stable offset
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")

T = TypeVar("T")


class PartitionRecords(NamedTuple):
    """The records of one partition in a Fetch response.

    `log_start_offset` is -1 in versions without it. `aborted` has the (producer id, first offset) of each aborted
    transaction.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


class ParsedFetchResponse(NamedTuple):
    throttle_ms: int
    error_code: int
    partitions: tuple[PartitionRecords, ...]


def read_fetch_response(frame: memoryview, version: int) -> ParsedFetchResponse:
    """Parses a Fetch response of the given API version. `frame` has its bytes after the response header.

    Raises:
        ValueError, struct.error: it is truncated or invalid.
    """
    return _Reader(frame, version).response()


class _Reader:
    def __init__(self, frame: memoryview, version: int) -> None:
        if not OLDEST <= version <= NEWEST:
            raise ValueError(f"Fetch version {version} is not supported; use {OLDEST} to {NEWEST}")
        self._frame = frame
        self._at = 0
        self._version = version
        self._is_flexible = version >= FLEXIBLE_FROM

    def response(self) -> ParsedFetchResponse:
        throttle_ms = self._numbers(_INT32)[0]
        error_code = self._numbers(_SESSION)[0] if self._version >= SESSION_FROM else 0
        topics = self._array(self._topic)
        self._skip_tags()
        return ParsedFetchResponse(throttle_ms, error_code, tuple(one for topic in topics for one in topic))

    def _topic(self) -> tuple[PartitionRecords, ...]:
        if self._version >= BY_ID_FROM:
            self._take(UUID_BYTES)
        else:
            self._take(self._size(_INT16))
        partitions = self._array(self._partition)
        self._skip_tags()
        return partitions

    def _partition(self) -> PartitionRecords:
        partition, error_code, high_watermark, last_stable_offset = self._numbers(_PARTITION)
        log_start_offset = self._numbers(_INT64)[0] if self._version >= LOG_START_FROM else -1
        aborted = self._array(self._aborted)
        if self._version >= PREFERRED_REPLICA_FROM:
            self._numbers(_INT32)
        records = self._take(self._size(_INT32))
        self._skip_tags()
        return PartitionRecords(
            partition, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, records
        )

    def _aborted(self) -> tuple[int, int]:
        producer_id, first_offset = self._numbers(_ABORTED)
        self._skip_tags()
        return producer_id, first_offset

    def _array(self, read: Callable[[], T]) -> tuple[T, ...]:
        # Each item has bytes, so a wrong count fails at the end of the frame.
        return tuple(read() for _ in range(self._size(_INT32)))

    def _size(self, fixed: struct.Struct) -> int:
        """Reads the length of bytes or the number of items of an array; null is 0. It is a varint in flexible versions,
        and a number of the format `fixed` in others."""
        size = self._varint() - 1 if self._is_flexible else self._numbers(fixed)[0]
        return max(size, 0)

    def _numbers(self, form: struct.Struct) -> tuple[int, ...]:
        at, self._at = self._at, self._at + form.size
        return form.unpack_from(self._frame, at)

    def _take(self, size: int) -> memoryview:
        at, self._at = self._at, self._at + size
        if self._at > len(self._frame):
            raise ValueError(
                f"the response has {len(self._frame)} bytes, too few to read {size} bytes at position {at}"
            )
        return self._frame[at : self._at]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, VARINT_SHIFT_MAX + 1, 7):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise ValueError(f"the response has a varint of more than 32 bits before position {self._at}")

    def _skip_tags(self) -> None:
        if self._is_flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())
