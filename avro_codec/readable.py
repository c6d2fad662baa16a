"""Rejects values that are valid Avro but make queries fail.

One row with such a value fails every query that reads it, so a single message would make a table unreadable. The list
comes from experiments with Spark 4.3 and its Avro SerDe of Hive 2.3. In the same experiments all other values could be
read, some as null: dates of any year, decimals with more digits than declared, NaN, any UTF-8 text, and every logical
type that Hive shows as its underlying type.

    decimal           zero bytes: "Zero length BigInteger" fails every query, even one of other columns only.
                      Very many bytes: reading a megabyte took six seconds, eight megabytes more than five minutes.
    timestamp-millis  beyond the range of microseconds: "long overflow" fails every query of the column. For
                      local-timestamp-millis this affects the view, which shows a time; the table shows a number.

Only the column's type matters: values that are loaded as text or as bytes are not affected.
"""

from __future__ import annotations

from typing import Final

from headrace.avro_codec.walk import BadBody, Skip, read_varint
from headrace.avro_schema import Primitive

DECIMAL_BYTES_MAX = 1_024
"""Size of the largest decimal that is loaded. The widest column needs 16 bytes, and writers may pad. Reading 1,024
bytes takes 0.2 milliseconds; reading a megabyte takes six seconds to a minute, depending on the reader."""

TIMESTAMP_MS_MAX = 9_223_372_036_854_775
"""Largest absolute value of `MILLIS_TIMES`: Spark uses microseconds, and a query with a larger value fails ("long
overflow")."""

MILLIS_TIMES: Final = frozenset({"timestamp-millis", "local-timestamp-millis"})
"""Logical types of times in milliseconds. Hive shows a `local-timestamp-millis` as a number; the view `<table>_latest`
converts it to a time."""

SAFE_TIMESTAMP_BYTES = 7
"""A varint of at most this many bytes is within 2^48, so ordinary times need no further check."""


class UnreadableValue(BadBody):
    """The body is a valid value, but queries would fail on the row with this value."""


def skip_readable(load: Primitive, skip: Skip, path: str) -> Skip:
    """Returns a walk that validates the values of a column and rejects values on which queries fail.

    Args:
        load: the type of the column.
        skip: the walk without this check; it is returned unchanged for types that need none.
        path: path of the writer's field, for messages.
    """
    logical = load.logical.name if load.logical is not None else ""
    if logical == "decimal":
        return _decimal(path)
    return _millis_time(skip, f"{path}: the {logical}") if logical in MILLIS_TIMES else skip


def _decimal(path: str) -> Skip:
    def skip(b: bytes, p: int) -> int:
        n = b[p]
        if n & 129 == 0 and n:
            return p + 1 + (n >> 1)
        n, p = read_varint(b, p)
        if n < 0:
            raise BadBody("bytes have a negative length")
        if n == 0:
            raise UnreadableValue(f"{path}: a decimal of zero bytes, on which every query of the table would fail")
        if n > DECIMAL_BYTES_MAX:
            raise UnreadableValue(
                f"{path}: a decimal of {n} bytes, which queries would take too long to read; "
                f"at most {DECIMAL_BYTES_MAX} are loaded"
            )
        return p + n

    return skip


def _millis_time(inner: Skip, name: str) -> Skip:
    def skip(b: bytes, p: int) -> int:
        q = inner(b, p)
        if q - p > SAFE_TIMESTAMP_BYTES:
            n, _ = read_varint(b, p)
            if abs(n) > TIMESTAMP_MS_MAX:
                raise UnreadableValue(
                    f"{name} {n} ms overflows in queries, which convert it to microseconds; the limit is "
                    f"±{TIMESTAMP_MS_MAX} ms"
                )
        return q

    return skip
