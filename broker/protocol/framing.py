"""Frames and request headers.

A frame is a 4-byte big-endian length and that many bytes. A request begins with API key i16, version i16,
correlation id i32, client id (a nullable string with a 2-byte length, also in flexible versions) and, in flexible
versions, tagged fields (request header version 2). A response begins with the correlation id and, in flexible
versions, tagged fields; the answer to ApiVersions never has them, since its client may not know the version yet.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.broker.errors import FrameRefused
from headrace.broker.log.files import FileSlice
from headrace.broker.protocol.api_versions import API_VERSIONS, BY_KEY, PRODUCE
from headrace.kafka_wire.primitives import Reader

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Of one request: Kafka's `socket.request.max.bytes`. Clients build their produce requests below it."""
CONTROL_FRAME_BYTES_MAX = 1024 * 1024
"""Of a request that carries no records, which is decoded into objects of many times its size. Thirty thousand
partitions can be named in it."""
FRAME_BYTES_MIN = 10
"""API key, version, correlation id and a null client id."""

_HEADER = struct.Struct(">hhi")
_LENGTH = struct.Struct(">i")
_LENGTH_AND_KEY = struct.Struct(">ih")
_RESPONSE_START = struct.Struct(">ii")


Piece = bytes | bytearray | FileSlice
Pieces = list[Piece]
"""Of an answer: what was encoded, and records as they are in a log file."""


class RequestHeader(NamedTuple):
    """`body_at` is where the request's own fields begin in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int


def frame_length(start: memoryview) -> int:
    """Reads the four bytes in front of a frame, and the API key behind them if that has come too.

    Raises:
        FrameRefused: no request, or none of that API key, has this length. TLS or HTTP sent to this port looks like
            that too.
    """
    (length,) = _LENGTH.unpack_from(start)
    longest = FRAME_BYTES_MAX
    if len(start) >= _LENGTH_AND_KEY.size and _LENGTH_AND_KEY.unpack_from(start)[1] != PRODUCE:
        longest = CONTROL_FRAME_BYTES_MAX
    if not FRAME_BYTES_MIN <= length <= longest:
        raise FrameRefused(
            f"a frame of {length} bytes; expected {FRAME_BYTES_MIN} to {longest} of plaintext Kafka protocol"
        )
    return int(length)


def read_header(frame: memoryview) -> RequestHeader:
    """Reads the header of a request; of an unknown API only the fixed fields and the client id."""
    reader = Reader(frame, 0, flexible=False)
    api_key, api_version, correlation_id = reader.fixed(_HEADER)
    client_id = reader.nullable_string() or ""
    api = BY_KEY.get(api_key)
    # A version of ApiVersions above ours is answered without reading its body (KIP-511), so its tags do not matter.
    if api is not None and api.is_flexible(api_version) and api_version <= api.highest:
        reader.flexible = True
        reader.tags()
    return RequestHeader(api_key, api_version, correlation_id, client_id, reader.pos)


def response_start(header: RequestHeader, body_bytes: int) -> bytes:
    """Length prefix and response header for a body of `body_bytes`."""
    api = BY_KEY[header.api_key]
    if api.is_flexible(header.api_version) and header.api_key != API_VERSIONS:
        return _RESPONSE_START.pack(5 + body_bytes, header.correlation_id) + b"\0"
    return _RESPONSE_START.pack(4 + body_bytes, header.correlation_id)
