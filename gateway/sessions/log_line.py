"""The record of a raw line, with its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from headrace.avro_codec.encode import encode_long

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
    rest = _text(host.encode()) + _text(file.encode()) + encode_long(time_us)
    plain = rest + _NO_RAW

    def encode(line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError:
            return prefix + _text(line.decode(errors="replace").encode()) + rest + _RAW + _text(line)
        return prefix + _length(len(line)) + line + plain

    return encode


def _text(content: bytes) -> bytes:
    return _length(len(content)) + content


_length: Final = lru_cache(8_192)(encode_long)
"""Cached: the lengths of lines are few small numbers."""
