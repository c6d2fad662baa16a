"""Frames, request headers and response headers.

A frame is a 4-byte big-endian length, followed by that many bytes. A request begins with API key i16, version i16,
correlation id i32, client id (nullable string with a 2-byte length, also in flexible versions) and, in flexible
versions, tagged fields (request header version 2). A response begins with the correlation id and, in flexible versions,
tagged fields. The response to ApiVersions never has tagged fields, because the client may not know the version yet.
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
"""Largest Produce request: Kafka's `socket.request.max.bytes`. Clients keep their requests below it."""
CONTROL_FRAME_BYTES_MAX = 1024 * 1024
"""Largest request of an API without records. Such requests are decoded into objects of many times their size. The limit
is enough for REQUEST_ITEMS_MAX partitions."""
REQUEST_ITEMS_MAX = 25_000
"""Maximum number of list items in one request. The first item of each list is not counted, so that a topic with one
partition counts as one. That is enough to name all partitions that a broker may have, and some deleted ones. A response
to that many takes 0.1 s. Requests that kafka-python's decoders read are limited by SYNC_DECODE_BYTES_MAX instead."""
FRAME_BYTES_MIN = 10
"""Smallest request: API key, version, correlation id and a null client id."""

_HEADER = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")
_LENGTH_AND_KEY = struct.Struct(">ih")
_RESPONSE_HEADER = struct.Struct(">ii")


Piece = bytes | bytearray | FileSlice
Pieces = list[Piece]
"""A response in pieces: encoded bytes, and slices of log files."""


class RequestHeader(NamedTuple):
    """Header of a request. The request's own fields begin at position `body_at` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_frame_length(view: memoryview, start: int, end: int) -> int:
    """Reads the length prefix of a frame and returns it. Checks it against the limit of the request's API if the API
    key has been received too, else against the largest limit.

    Args:
        start: position of the length prefix in the view.
        end: end of the received bytes, at least 4 bytes after `start`.

    Raises:
        FrameRefused: no request of this API key can have this length. TLS or HTTP traffic on this port causes it too.
    """
    if end - start >= _LENGTH_AND_KEY.size:
        length, api_key = _LENGTH_AND_KEY.unpack_from(view, start)
        length_max = FRAME_BYTES_MAX if api_key == PRODUCE else CONTROL_FRAME_BYTES_MAX
    else:
        (length,) = _LENGTH.unpack_from(view, start)
        length_max = FRAME_BYTES_MAX
    if not FRAME_BYTES_MIN <= length <= length_max:
        raise FrameRefused(
            f"the client sends a request of {length} bytes; expected {FRAME_BYTES_MIN} to {length_max}; check that the "
            "client uses Kafka's protocol, with TLS if and only if the broker uses TLS"
        )
    return int(length)


def read_header(frame: memoryview) -> RequestHeader:
    """Reads the header of the request in `frame`. If the API key or the version is unknown, reads only the fixed fields
    and the client id.

    Raises:
        MalformedMessage: the header is truncated or malformed.
    """
    try:
        api_key, api_version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessage(f"a request of {len(frame)} bytes is too short for a request header") from None
    client_id, body_at = "", _HEADER.size
    if client_id_bytes > 0:
        client_id, body_at = text_at(frame, body_at, client_id_bytes)
    api = BY_KEY.get(api_key)
    # The response to an unsupported version of ApiVersions does not depend on the body (KIP-511), so its tags are not
    # read.
    if api is not None and api.flexible_from <= api_version <= api.highest:
        body_at = after_tags(frame, body_at)
    return RequestHeader(api_key, api_version, correlation_id, client_id, body_at)


def response_header(header: RequestHeader, body_bytes: int) -> bytes:
    """Encodes the length prefix and header of a response. `header` is the request's; `body_bytes` is the size of the
    response's body."""
    api = BY_KEY[header.api_key]
    if api.is_flexible(header.api_version) and header.api_key != API_VERSIONS:
        return _RESPONSE_HEADER.pack(5 + body_bytes, header.correlation_id) + b"\0"
    return _RESPONSE_HEADER.pack(4 + body_bytes, header.correlation_id)
