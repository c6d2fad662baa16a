"""Computes the values that the view `<table>_latest` shows for values of earlier types, as an oracle for its SQL
expressions: in Python's exact numbers, from the rules in docs/tables.md. It shares no code with the view.

A value has the form of Avro's binary encoding: a number for dates and times, bytes for a decimal. A shown value is a
number too: microseconds since 1970 for a timestamp with or without time zone, days for a date.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

from support.hive.hive_cases import fixed, logical

LONG_MAX = 2**63 - 1
DAY = 86_400_000_000
INSTANT = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
LOCAL = tuple(f"local-{name}" for name in INSTANT)
TIME = ("time-millis", "time-micros")
PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
BYTES_OF_DECIMALS = {"fixed-decimal": (9, 2), "decimal(40,2)": (40, 2)}
RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), LONG_MAX)}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def unscaled(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def single(number: float) -> float:
    """Returns the nearest number of single precision, which is the value that a float column has."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


@dataclass(frozen=True)
class Kind:
    """A type of a field, and values with edges of its range and of the ranges of other types."""

    type: Any
    values: tuple[Any, ...]


def _times(per_second: int, *more: int) -> tuple[int, ...]:
    recent = (0, -1, 1, 1_767_225_600 * per_second + 1, 86_400 * per_second - 1)
    # The years 1 and 1500, and both sides of the change to the Gregorian calendar.
    old = (-62_135_596_800, -14_825_808_000, -12_219_292_801, -12_219_292_800)
    return (*recent, *(seconds * per_second for seconds in old), *more)


TEXTS_OF_TIMES = (
    *("2026-01-31", "2026-02-30", "2026-01-31T12:00:00.000001Z", "2026-01-31 12:00:00+02:00"),
    *("2026-03-08T02:30:00", "12:30", "2026"),
)
MICROS_EDGES = (LONG_MAX, -(2**63))
KINDS: Mapping[str, Kind] = {
    "boolean": Kind("boolean", (True, False)),
    "int": Kind("int", (0, 1, -1, 20_484, 2**31 - 1, -(2**31), 16_777_217)),
    "long": Kind("long", (0, 1, -1, 1_767_225_600_001, LONG_MAX, -(2**63), 2**31, 2**53 + 1, 9_223_372_036_854_776)),
    "float": Kind(
        "float",
        tuple(map(single, (0.0, 1.0, -0.0, 0.1, 7.5, 2.0**31, 2.0**63, math.nan, math.inf, -math.inf, 3e38))),
    ),
    "double": Kind(
        "double", (0.0, 1.0, 0.1, 1.005, 2.675, 7.9, -(2.0**31), 2.0**63, 1e300, math.nan, -math.inf, 9.5e6, 1e-9)
    ),
    "string": Kind(
        "string",
        ("7", "-1", "1", "1.005", "1.01", "x", "true", "", "99999999999999999999", "1e2", *TEXTS_OF_TIMES),
    ),
    "enum": Kind({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ("A", "B")),
    "bytes": Kind("bytes", (b"", b"\x01", b"\xff\x85", b"abc", b"\x00" * 40)),
    "fixed": Kind(fixed(3), (b"\x00\x00\x64", b"abc", b"\xff\xff\x85")),
    "date": Kind(logical("int", "date"), (0, -1, 20_484, 2_932_896, -719_162, -171_597, -141_428, -141_427)),
    "time-millis": Kind(logical("int", "time-millis"), (0, 1, 86_399_999, -1)),
    "time-micros": Kind(logical("long", "time-micros"), (0, 999, 86_399_999_999, -1, LONG_MAX)),
    "timestamp-millis": Kind(
        logical("long", "timestamp-millis"), _times(1_000, 253_402_300_799_999, 9_214_646_400_000)
    ),
    "timestamp-micros": Kind(logical("long", "timestamp-micros"), _times(1_000_000, 999, *MICROS_EDGES)),
    "timestamp-nanos": Kind(logical("long", "timestamp-nanos"), _times(10**8, 999_999, *MICROS_EDGES)),
    "local-timestamp-millis": Kind(
        logical("long", "local-timestamp-millis"), _times(1_000, 1_772_937_000_000, 9_223_372_036_854_775)
    ),
    "local-timestamp-micros": Kind(
        logical("long", "local-timestamp-micros"), _times(1_000_000, 1_772_937_000_000_000, *MICROS_EDGES)
    ),
    "local-timestamp-nanos": Kind(logical("long", "local-timestamp-nanos"), _times(10**8, 999_999, *MICROS_EDGES)),
    "decimal(9,2)": Kind(decimal(9, 2), tuple(map(unscaled, (0, 100, -101, 999_999_999, 1)))),
    "decimal(9,3)": Kind(decimal(9, 3), tuple(map(unscaled, (0, 1_000, 1_005, -1_010, 999_999_999)))),
    "decimal(38,10)": Kind(decimal(38, 10), tuple(map(unscaled, (0, 10**10, 10**38 - 1, -(10**12) + 1, 15 * 10**9)))),
    "fixed-decimal": Kind(
        fixed(4, logicalType="decimal", precision=9, scale=2), (b"\x00\x00\x00\x64", b"\xff\xff\xff\x9b", b"\x7f" * 4)
    ),
    "decimal(40,2)": Kind(decimal(40, 2), (b"\x64", unscaled(-(10**37)), unscaled(10**39), b"\x00" * 20)),
}
"""The kinds of plain columns by name, each with its Avro type."""


def shown(kind: str, value: Any) -> Any:
    """Returns what the view shows for a value of the present type."""
    if kind in (*INSTANT, *LOCAL):
        micros = math.floor(Fraction(value * 1_000_000, PER_SECOND[kind.rpartition("-")[2]]))
        return _in_range("long", micros)
    return _decimal_of(kind, value) if kind.startswith("decimal") and kind not in BYTES_OF_DECIMALS else value


def converted(source: str, target: str, value: Any) -> Any:
    """Returns what the view shows for a value of an earlier type `source`, None for null."""
    if source == target or (source, target) in SAME_COLUMN or (source, target) in SAME_VALUE:
        return shown(source, value)
    if source in TIMES or target in TIMES:
        number = _time_number(source, target, value)
        return None if number is None else (number if target == "string" else shown(target, number))
    if target in ("bytes", "fixed"):
        if source == "string":
            return value.encode() if target == "bytes" else None
        is_plain = source in ("bytes", "fixed")
        return value if is_plain and (target == "bytes" or len(value) == KINDS["fixed"].type["size"]) else None
    if target in BYTES_OF_DECIMALS or target == "enum":
        return None
    exact = _exact(source, target, value)
    return None if exact is None else CONVERSIONS[target.partition("(")[0]](source, target, exact)


SAME_VALUE = {("enum", "string"), ("string", "enum")}
SAME_COLUMN: Mapping[tuple[str, str], Callable[[Any], Any]] = {
    ("long", "int"): int,
    ("double", "int"): float,
    ("double", "float"): float,
    ("bytes", "string"): str.encode,
    ("decimal(40,2)", "decimal(9,2)"): bytes,
}
"""Pairs of types whose column keeps the earlier type, because that holds every value of the later one. The function
converts a value of the later type."""


def shown_later(source: str, target: str, value: Any) -> Any:
    """Returns what the view shows for a value of the present type `target`, after versions with the type `source`."""
    held = SAME_COLUMN.get((source, target))
    return shown(target, value) if held is None else held(value)


TIMES = frozenset({"date", *TIME, *INSTANT, *LOCAL})


def _exact(source: str, target: str, value: Any) -> Any:
    """Returns a value as an exact number, or as a boolean, a text, or a float that is no number."""
    if source in ("bytes", *BYTES_OF_DECIMALS):
        if not target.startswith("decimal(") or not 1 <= len(value) <= 16:
            return None
        scale = BYTES_OF_DECIMALS[source][1] if source != "bytes" else _digits(target)[1]
        return _within(Fraction(int.from_bytes(value, "big", signed=True), 10**scale), 38 - scale)
    if source.startswith("decimal"):
        return _decimal_of(source, value)
    if source in ("float", "double"):
        return Fraction(value) if math.isfinite(value) else value
    return None if source in ("fixed", "enum") else value if source in ("boolean", "string") else Fraction(value)


def _number_of(source: str, exact: Any) -> Fraction | float | None:
    if source == "string":
        try:
            number = float(exact)
            return Fraction(Decimal(exact)) if math.isfinite(number) else None
        except (ValueError, ArithmeticError):
            return None
    return Fraction(int(exact)) if isinstance(exact, bool) else exact


def _integer(source: str, target: str, exact: Any) -> int | None:
    if source == "string" and not re.fullmatch("[+-]?[0-9]+", exact):
        return None
    number = _number_of(source, exact)
    if not isinstance(number, Fraction) or number.denominator != 1:
        return None
    return _in_range(target, int(number))


def _fraction(source: str, target: str, exact: Any) -> float | None:
    number = _number_of(source, exact)
    if number is None or not isinstance(number, Fraction):
        return number
    # Spark converts long to float in one step, but Python has no such conversion: both kinds use the nearest value.
    try:
        return float(number) if target == "double" else single(float(number))
    except OverflowError:
        return None


def _to_decimal(source: str, target: str, exact: Any) -> Fraction | None:
    number = _number_of(source, exact)
    if not isinstance(number, Fraction):
        return None
    precision, scale = _digits(target)
    if source in ("float", "double"):
        # The shortest text of the double, rounded half up.
        with localcontext(prec=400):
            number = Fraction(Decimal(repr(float(number))).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP))
    if (number * 10**scale).denominator != 1:
        return None
    return _within(number, precision - scale)


def _boolean(source: str, target: str, exact: Any) -> bool | None:
    if source == "string":
        return {"true": True, "1": True, "false": False, "0": False}.get(exact.lower())
    return exact if isinstance(exact, bool) else {Fraction(1): True, Fraction(0): False}.get(exact)


def _text(source: str, target: str, exact: Any) -> Any:
    if isinstance(exact, bool):
        return "true" if exact else "false"
    if source in ("float", "double"):
        return float(exact)  # the reader of the test parses Java's text of the number
    if source.startswith("decimal"):
        with localcontext(prec=60):
            scale = _digits(source)[1]
            return f"{Decimal(exact.numerator) / Decimal(exact.denominator):.{scale}f}"
    return str(int(exact))


CONVERSIONS: Mapping[str, Callable[[str, str, Any], Any]] = {
    "int": _integer,
    "long": _integer,
    "float": _fraction,
    "double": _fraction,
    "decimal": _to_decimal,
    "boolean": _boolean,
    "string": _text,
}


def _time_number(source: str, target: str, value: Any) -> Any:
    """Returns the number of a date or time of the type `target`, or a text or number of another type `target`."""
    if source not in TIMES:
        if source == "string":
            micros = _micros_of_text(target, value)
            return None if micros is None else _from_micros(target, micros)
        return value if source == KINDS[target].type["type"] else None
    if target not in TIMES:
        if target == "string":
            return _text_of_time(source, value)
        return value if target == KINDS[source].type["type"] else None
    if (source in TIME) != (target in TIME):
        return None
    if {source, target} == {"timestamp-nanos", "local-timestamp-nanos"}:
        return value
    micros = _micros(source, value)
    return None if micros is None else _from_micros(target, micros)


def _micros(source: str, value: int) -> int | None:
    if source == "date":
        return value * DAY
    return _in_range("long", math.floor(Fraction(value * 1_000_000, PER_SECOND[source.rpartition("-")[2]])))


def _from_micros(target: str, micros: int) -> Any:
    if target == "date":
        return micros // DAY
    if target == "timestamp-millis":
        return Fraction(micros, 1_000)  # the view shows microseconds
    number = micros * PER_SECOND[target.rpartition("-")[2]] // 1_000_000
    return _in_range("int" if target == "time-millis" else "long", number)


def _micros_of_text(target: str, text: str) -> int | None:
    has_zone = re.search(r"T?[0-9:.]{8,}(Z|[+-]\d\d:\d\d)$", text) is not None
    forms = {"date": r"\d{4}-\d\d-\d\d", **dict.fromkeys((*INSTANT, *LOCAL), r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d.*")}
    if target not in forms or not re.fullmatch(forms[target], text) or has_zone != (target in INSTANT):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at.replace(tzinfo=None) - (at.utcoffset() or timedelta()) - datetime(1970, 1, 1)) // timedelta(
        microseconds=1
    )


def _text_of_time(source: str, value: int) -> str | None:
    if source in TIME:
        return None
    micros = _micros(source, value)
    if micros is None:
        return None
    days, rest = divmod(micros, DAY)
    date = _date_text(days)
    if source == "date":
        return date
    seconds, fraction = divmod(rest, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + f".{fraction:06}".rstrip("0").rstrip(".")
    return f"{date}T{time}{'Z' if source in INSTANT else ''}"


def _date_text(days: int) -> str:
    # The calendar repeats after 400 years, which have 146,097 days.
    cycles, rest = divmod(days, 146_097)
    at = datetime(1970, 1, 1) + timedelta(days=rest)
    year = at.year + 400 * cycles
    return f"{'+' if year > 9999 else '-' if year < 0 else ''}{abs(year):04}-{at.month:02}-{at.day:02}"


def _digits(kind: str) -> tuple[int, int]:
    precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
    return int(precision), int(scale)


def _decimal_of(kind: str, value: bytes) -> Fraction:
    return Fraction(int.from_bytes(value, "big", signed=True), 10 ** _digits(kind)[1])


def _within(number: Fraction, digits_before_point: int) -> Fraction | None:
    return number if abs(number) < 10**digits_before_point else None


def _in_range(kind: str, number: int) -> int | None:
    low, high = RANGES[kind]
    return number if low <= number <= high else None
