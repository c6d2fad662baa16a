"""Encodes the values of the `kafka` column, which states the partition, offset and timestamp of a row's message.
`load_schema_with_kafka` declares the column.

`kafka {partition, offset, timestamp}`, with `key` and `headers` if the whole message is to be stored. The column is the
last one: if a body needs no conversion, the row is the body followed by this column. `timestamp` is the record's own.
It is null if the record has no timestamp or one outside the years 1970 to 9999, because queries fail on such values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from headrace.audit.window import TIME_MS_MAX
from headrace.avro_codec.encode import encode_long
from headrace.loader.project.quarantine import encode_headers, encode_optional

Suffix = Callable[[int, int, bytes | None, bytes], bytes]
"""Encodes the column from (offset, timestamp in ms, key, headers as stored in the log): the bytes at the end of a row.
"""


def compile_suffix(mode: str, partition: int) -> Suffix:
    """Returns the encoder of the `kafka` column for the messages of one partition.

    A varint begins with the lower bits of its number. The upper bits of offsets and times are equal in consecutive
    messages, so their bytes are encoded once and cached; the first two bytes come from a table.

    Args:
        mode: the setting `loader.kafka_column`: `none`, `position` or `full`.
    """
    if mode == "none":
        return lambda offset, timestamp, key, headers: b""
    start = b"\x02" + encode_long(partition)
    low = _low_bytes()
    offset_high = time_high = -1
    offset_rest = time_rest = b""

    def position(offset: int, timestamp: int, key: bytes | None, headers: bytes) -> bytes:
        nonlocal offset_high, offset_rest, time_high, time_rest
        high = offset >> 13
        if high != offset_high:
            offset_high, offset_rest = high, _unsigned(high)
        at = start + low[offset & 8191] + offset_rest if high else start + encode_long(offset)
        if not 0 <= timestamp <= TIME_MS_MAX:
            return at + b"\x00"
        high = timestamp >> 13
        if high != time_high:
            time_high, time_rest = high, _unsigned(high)
        if not high:
            return at + b"\x02" + encode_long(timestamp)
        return at + b"\x02" + low[timestamp & 8191] + time_rest

    if mode == "position":
        return position
    return lambda offset, timestamp, key, headers: (
        position(offset, timestamp, key, headers) + encode_optional(key) + b"\x02" + encode_headers(headers)
    )


@cache
def _low_bytes() -> list[bytes]:
    """Returns the first two bytes of the varint of a number, for each value of the number's lowest 13 bits. Valid for
    numbers that are not negative and have varints of more than two bytes."""
    return [bytes((n << 1 & 127 | 128, n >> 6 | 128)) for n in range(8192)]


def _unsigned(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
