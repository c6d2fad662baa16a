"""The record of a raw line, with its schema, and its encoders: one for each line, and the core for many."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headrace.avro_codec.core.library import FULL, CLines, Library
from headrace.avro_codec.encode import encode_long
from headrace.gateway.sessions.chunk_body import ChunkBody

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


class LineEncoder:
    """Encodes the lines of a chunk. A value is `before`, the line with its length, and `after`, unless the line is not
    valid UTF-8.

    Args:
        prefix: bytes before the record, which name its schema.
        host, file: where the lines are from.
        time_us: microseconds since 1970.
    """

    __slots__ = ("_rest", "after", "before")

    def __init__(self, prefix: bytes, host: str, file: str, time_us: int) -> None:
        self._rest = _text(host.encode()) + _text(file.encode()) + encode_long(time_us)
        self.before = prefix
        self.after = self._rest + _NO_RAW

    def __call__(self, line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError:
            text = _text(line.decode(errors="replace").encode())
            return self.before + text + self._rest + _RAW + _text(line)
        return self.before + _length(len(line)) + line + self.after


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of a body, encoded as records of a batch.

    Attributes:
        size: size of the records for the limit of a batch.
        value_bytes: size of their values.
        fingerprint: sum of the message hashes.
        end: position in the body after the last line.
        is_full: whether the next line does not fit into the batch. Otherwise, the core rejects a line before the end of
            the body.
    """

    records: bytes
    count: int
    size: int
    value_bytes: int
    fingerprint: int
    end: int
    is_full: bool


class BlockEncoder:
    """Encodes lines with the core. Not thread-safe.

    Args:
        size_max: largest size of the records of a batch.
        record_overhead: size of a record without its value and headers, at least the encoded size.
    """

    def __init__(self, core: Library, size_max: int, record_overhead: int) -> None:
        self._encode = core.encode_lines
        self._size_max = size_max
        self._records: ctypes.Array[ctypes.c_char] | None = None  # few lanes may have lines
        self._record_overhead = record_overhead

    def encode(
        self,
        body: ChunkBody,
        position: int,
        encoder: LineEncoder,
        headers: bytes,
        record_size_max: int,
        size_max: int,
        delta: int,
    ) -> LineBlock:
        """Encodes lines until the end, the limit, or a line that the core rejects.

        Args:
            position: where the first line begins.
            headers: encoded headers of each record, before its sequence number.
            record_size_max, size_max: limits for the size of a record, and of all.
            delta: number of records that the batch has.
        """
        if self._records is None:
            self._records = ctypes.create_string_buffer(self._size_max)
        content, records = body.content, ctypes.addressof(self._records)
        lines = CLines(
            *(content, len(content), encoder.before, len(encoder.before), encoder.after, len(encoder.after)),
            *(headers, len(headers), records, len(self._records), body.begin, delta),
            *(self._record_overhead, record_size_max, size_max, position),
        )
        self._encode(lines)
        return LineBlock(
            ctypes.string_at(records, lines.records_size),
            lines.count,
            lines.sizes,
            lines.value_bytes,
            lines.fingerprint,
            lines.at,
            lines.status == FULL,
        )


def _text(content: bytes) -> bytes:
    return _length(len(content)) + content


_length: Final = lru_cache(8_192)(encode_long)
"""Cached: the lengths of lines are few small numbers."""
