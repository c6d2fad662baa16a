"""The record of a raw line, with its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

LOG_LINE: Final = json.dumps(
    {
        "type": "record",
        "name": "LogLine",
        "namespace": "headrace.gateway",
        "fields": [
            {"name": "line", "type": "string"},
            {"name": "host", "type": "string"},
            {"name": "file", "type": "string"},
            {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "raw", "type": ["null", "bytes"], "default": None},
        ],
    }
)
"""`time` is when the gateway received the line. `raw` are the bytes of a line that is not valid UTF-8; `line` then has
U+FFFD in place of the invalid bytes."""

_NO_RAW: Final = b"\x00"
_RAW: Final = b"\x02"


def line_encoder(prefix: bytes, host: str, file: str, time_us: int) -> Callable[[Any], bytes]:
    """Returns the encoder of the lines that a chunk brings.

    Args:
        prefix: bytes before the record, which name its schema.
        host, file: where the lines are from.
        time_us: microseconds since 1970.
    """
    rest = _text(host.encode()) + _text(file.encode()) + _long(time_us)
    plain = rest + _NO_RAW

    def encode(line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError:
            return prefix + _text(line.decode(errors="replace").encode()) + rest + _RAW + _text(line)
        return prefix + _text(line) + plain

    return encode


def _text(content: bytes) -> bytes:
    return _long(len(content)) + content


def _long(number: int) -> bytes:
    """Returns Avro's zigzag varint of a number that is not negative."""
    left = number << 1
    if left < 128:
        return bytes((left,))
    raw = bytearray()
    while left > 127:
        raw.append(left & 127 | 128)
        left >>= 7
    raw.append(left)
    return bytes(raw)
