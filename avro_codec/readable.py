"""Rejects values that are valid Avro but that queries of a table cannot show, and notes values that Spark shows wrong.

One row with a value on which queries fail makes a table unreadable; a value that queries show as null is lost without a
notice. The list comes from experiments with Spark 4.3 and its Avro SerDe of Hive 2.3. In the same experiments all other
values could be read: NaN, any UTF-8 text, and every logical type that Hive shows as its underlying type.

    decimal           zero bytes: "Zero length BigInteger" fails every query, even one of other columns only.
                      Very many bytes: reading a megabyte took six seconds, eight megabytes more than five minutes.
                      More digits than the column's type has: shown as null, inside an array as a null item.
    timestamp-millis  beyond the range of microseconds: "long overflow" fails every query of the column.

Only the column's type matters. Values that are loaded as text or as bytes are not affected. A decimal on fixed or with
more than 38 digits has a binary column: queries show the bytes of any number.

A date or timestamp-millis before 1582-10-15 is loaded and noted for the report: Spark shows it as a day of the Julian
calendar. HiveServer2 4 shows it right, and so does the view `<table>_latest`. Such messages are not quarantined,
because 0001-01-01 is common: Go and .NET send it for "no time".
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.avro_codec.walk import BadBody, Skip, read_varint
from headrace.avro_schema import LogicalType, Primitive

DECIMAL_BYTES_MAX = 1_024
"""Size of the largest decimal that is loaded. The widest column needs 16 bytes, and writers may pad. Reading 1,024
bytes takes 0.2 milliseconds; reading a megabyte takes six seconds to a minute, depending on the reader."""

TIMESTAMP_MS_MAX = 9_223_372_036_854_775
"""Largest absolute value of a timestamp-millis: Spark uses microseconds, and a query with a larger value fails ("long
overflow")."""

DECIMAL_WORDS = "<4I"
"""Format of the largest unscaled value of a decimal for the core: four 32-bit words, the lowest first. A column has at
most 38 digits, which take 127 bits."""

SAFE_TIMESTAMP_BYTES = 6
"""A varint of at most this many bytes is within 2^41, so times of the years 1901 to 2039 need no further check."""

GREGORIAN_DAY = -141_427
"""1582-10-15 in days since 1970: the first day that Spark's readers of Hive tables count in the Gregorian calendar."""

SAFE_DATE_BYTES = 2
"""A varint of at most this many bytes is within 2^13, so dates of the years 1948 to 1992 need no further check."""

_DAY_MS = 86_400_000


class UnreadableValue(BadBody):
    """The body is a valid value, but queries of the table would fail on it or show null instead."""


@dataclass(slots=True)
class OldDay:
    """Whether a body has a date or timestamp before 1582-10-15. The caller clears `is_found` before each body."""

    is_found: bool = False


def skip_readable(load: Primitive, skip: Skip, path: str, old_day: OldDay) -> Skip:
    """Returns a walk that validates the values of a column, rejects values that queries cannot show, and notes a day
    before 1582-10-15 in `old_day`.

    Args:
        load: the type of the column.
        skip: the walk without this check; it is returned unchanged for types that need none.
        path: path of the writer's field, for messages.
        old_day: the variable to set.
    """
    if load.logical is None:
        return skip
    if load.logical.name == "decimal":
        return _decimal(load.logical, path)
    if load.logical.name == "date":
        return _date(skip, old_day)
    if load.logical.name == "timestamp-millis":
        return _timestamp(skip, path, old_day)
    return skip


def unscaled_max(decimal: LogicalType) -> int:
    """Returns the largest unscaled value that a column of the type `decimal` shows: as many nines as its precision."""
    assert decimal.precision is not None
    return int("9" * decimal.precision)


def _decimal(decimal: LogicalType, path: str) -> Skip:
    largest = unscaled_max(decimal)
    safe_bytes = (largest + 1).bit_length() // 8

    def skip(b: bytes, p: int) -> int:
        n = b[p]
        if n & 1 == 0 and 0 < n >> 1 <= safe_bytes:
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
        unscaled = int.from_bytes(b[p : p + n], "big", signed=True)
        if abs(unscaled) > largest:
            raise UnreadableValue(
                f"{path}: a decimal of {len(str(abs(unscaled)))} digits, which queries would show as null, because the "
                f"column is decimal({decimal.precision},{decimal.scale}); register a version with a larger precision"
            )
        return p + n

    return skip


def _date(inner: Skip, old_day: OldDay) -> Skip:
    def skip(b: bytes, p: int) -> int:
        q = inner(b, p)
        if q - p > SAFE_DATE_BYTES and read_varint(b, p)[0] < GREGORIAN_DAY:
            old_day.is_found = True
        return q

    return skip


def _timestamp(inner: Skip, path: str, old_day: OldDay) -> Skip:
    def skip(b: bytes, p: int) -> int:
        q = inner(b, p)
        if q - p > SAFE_TIMESTAMP_BYTES:
            n, _ = read_varint(b, p)
            if abs(n) > TIMESTAMP_MS_MAX:
                raise UnreadableValue(
                    f"{path}: the timestamp-millis {n} ms overflows in queries, which convert it to microseconds; "
                    f"the limit is ±{TIMESTAMP_MS_MAX} ms"
                )
            if n < GREGORIAN_DAY * _DAY_MS:
                old_day.is_found = True
        return q

    return skip
