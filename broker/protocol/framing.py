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
from headrace.kafka_wire.errors import MalformedMessage
from headrace.kafka_wire.primitives import after_tags, text_at

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Of one request: Kafka's `socket.request.max.bytes`. Clients build their produce requests below it."""
CONTROL_FRAME_BYTES_MAX = 1024 * 1024
"""Of a request that carries no records, which is decoded into objects of many times its size. NAMES_MAX partitions can
be named in it."""
NAMES_MAX = 25_000
"""Of all lists of one request, beside the first item of each, so that a topic with one partition is one: all partitions
that a broker may have, and some that are gone. Answering so many takes a tenth of a second."""
FRAME_BYTES_MIN = 10
"""API key, version, correlation id and a null client id."""

_HEADER = struct.Struct(">hhih")
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


def frame_length(view: memoryview, start: int, end: int) -> int:
    """Reads the four bytes in front of a frame, and the API key behind them if that has come too.

    Args:
        start: where they begin in the view.
        end: of what has come, at least the four bytes.

    Raises:
        FrameRefused: no request, or none of that API key, has this length. TLS or HTTP sent to this port looks like
            that too.
    """
    if end - start >= _LENGTH_AND_KEY.size:
        length, api_key = _LENGTH_AND_KEY.unpack_from(view, start)
        longest = FRAME_BYTES_MAX if api_key == PRODUCE else CONTROL_FRAME_BYTES_MAX
    else:
        (length,) = _LENGTH.unpack_from(view, start)
        longest = FRAME_BYTES_MAX
    if not FRAME_BYTES_MIN <= length <= longest:
        raise FrameRefused(
            f"a frame of {length} bytes; expected {FRAME_BYTES_MIN} to {longest} of plaintext Kafka protocol"
        )
    return int(length)


def read_header(frame: memoryview) -> RequestHeader:
    """Reads the header of a request; of an unknown API only the fixed fields and the client id."""
    try:
        api_key, api_version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessage(f"a request header in {len(frame)} bytes") from None
    client_id, body_at = "", _HEADER.size
    if client_id_bytes > 0:
        client_id, body_at = text_at(frame, body_at, client_id_bytes)
    api = BY_KEY.get(api_key)
    # A version of ApiVersions above ours is answered without reading its body (KIP-511), so its tags do not matter.
    if api is not None and api.flexible_from <= api_version <= api.highest:
        body_at = after_tags(frame, body_at)
    return RequestHeader(api_key, api_version, correlation_id, client_id, body_at)


def response_start(header: RequestHeader, body_bytes: int) -> bytes:
    """Length prefix and response header for a body of `body_bytes`."""
    api = BY_KEY[header.api_key]
    if api.is_flexible(header.api_version) and header.api_key != API_VERSIONS:
        return _RESPONSE_START.pack(5 + body_bytes, header.correlation_id) + b"\0"
    return _RESPONSE_START.pack(4 + body_bytes, header.correlation_id)
