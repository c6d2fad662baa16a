"""Values that are fine Avro and make queries fail: which they are, and walks that refuse them.

One row with such a value fails every query that reads it, so a single message would make a whole table unreadable.
Found by experiment with Spark 4.3 and the Avro SerDe of Hive 2.3 that it carries; whatever is not refused here was
read in the same experiment, if only as null: dates of any year, decimals of more digits than declared, NaN, texts of
any UTF-8, and every logical type that Hive shows as its plain type.

    decimal           no bytes at all: "Zero length BigInteger" fails every query, also of other columns alone.
                      Very many bytes: a megabyte took six seconds to read, eight of them more than five minutes.
    timestamp-millis  beyond what microseconds can count: "long overflow" fails every query of the column. So does a
                      local-timestamp-millis those of the view, where it is a time; in the table it is a number.

What counts is the column's type: a value that is loaded as text or as plain bytes harms nobody.
"""

from __future__ import annotations

from typing import Final

from headrace.avro_codec.walk import BadBody, Skip, read_varint
from headrace.avro_schema import Primitive

DECIMAL_BYTES_MAX = 1_024
"""Largest decimal that is loaded. The widest column needs 16 bytes; writers may pad. Reading 1,024 bytes takes a fifth
of a millisecond, reading a megabyte six seconds to a minute, depending on the reader."""

TIMESTAMP_MS_MAX = 9_223_372_036_854_775
"""Bound of the absolute value of `MILLIS_TIMES`: Spark counts in microseconds, and a query of a column or view with a
larger value fails ("long overflow")."""

MILLIS_TIMES: Final = frozenset({"timestamp-millis", "local-timestamp-millis"})
"""The logical types of times in milliseconds. Hive shows the second as a number, which the `_latest` view converts to a
time."""

SAFE_TIMESTAMP_BYTES = 7
"""A varint of so many bytes is within 2^48, so that ordinary times need not be read to be checked."""


class UnreadableValue(BadBody):
    """The body is a value of its schema, and a row of it would make queries of the table fail."""


def skip_readable(load: Primitive, skip: Skip, where: str) -> Skip:
    """`skip`, the walk over the values of a column of this type, or one that refuses what queries fail on.

    Args:
        where: the path of the writer's field, for the reason.
    """
    logical = load.logical.name if load.logical is not None else ""
    if logical == "decimal":
        return _decimal(where)
    return _millis_time(skip, f"{where}: the {logical}") if logical in MILLIS_TIMES else skip


def _decimal(where: str) -> Skip:
    def skip(b: bytes, p: int) -> int:
        n = b[p]
        if n & 129 == 0 and n:
            return p + 1 + (n >> 1)
        n, p = read_varint(b, p)
        if n < 0:
            raise BadBody("bytes have a negative length")
        if n == 0:
            raise UnreadableValue(f"{where}: a decimal of no bytes, on which every query of the table would fail")
        if n > DECIMAL_BYTES_MAX:
            raise UnreadableValue(
                f"{where}: a decimal of {n} bytes, which queries would take too long to read; "
                f"at most {DECIMAL_BYTES_MAX} are loaded"
            )
        return p + n

    return skip


def _millis_time(inner: Skip, what: str) -> Skip:
    def skip(b: bytes, p: int) -> int:
        q = inner(b, p)
        if q - p > SAFE_TIMESTAMP_BYTES:
            n, _ = read_varint(b, p)
            if abs(n) > TIMESTAMP_MS_MAX:
                raise UnreadableValue(
                    f"{what} {n} is beyond what queries can count in microseconds, {TIMESTAMP_MS_MAX}"
                )
        return q

    return skip
