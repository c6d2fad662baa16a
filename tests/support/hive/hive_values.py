"""Converts results of engines, and expected values, to one common form.

The form is plain: null, booleans, numbers, strings, lists and dicts by lower-case names; bytes as hex digits, dates and
timestamps as ISO texts, decimals as texts. Servers return an array, map or struct as JSON; `nested_bytes` converts the
strings in it to bytes.
"""

from __future__ import annotations

import datetime
import json
import re
import struct
from collections.abc import Callable, Collection
from decimal import Context, Decimal
from typing import Any

from headrace.avro_schema import Array, Enum, Fixed, Map, Primitive, PrimitiveType, Record, Schema, Type, Union

EPOCH = datetime.datetime(1970, 1, 1)


DAY_MS = 86_400_000
GREGORIAN_DAY = (datetime.date(1582, 10, 15) - EPOCH.date()).days
"""The first day that the readers of Hive 2.3 count in the Gregorian calendar."""


def julian_day(days: int) -> int:
    """Returns the day that the readers of Hive 2.3 show, in days since 1970 like `days`: before 1582-10-15 the day with
    the same year, month and day number as in the Julian calendar. A Julian day that the Gregorian calendar does not
    have, such as 1500-02-29, is shown as the next day.

    Source: E. G. Richards, Calendars, in: Explanatory Supplement to the Astronomical Almanac, 3rd edition, chapter 15.
    """
    if days >= GREGORIAN_DAY:
        return days
    e = 4 * (days + 2_440_588 + 1401) + 3
    h = 5 * (e % 1461 // 4) + 2
    month = (h // 153 + 2) % 12 + 1
    year, day = e // 1461 - 4716 + (14 - month) // 12, h % 153 // 5 + 1
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    shown = datetime.date(year, 3, 1) if (month, day, is_leap) == (2, 29, False) else datetime.date(year, month, day)
    return (shown - EPOCH.date()).days


def expected_value(schema: Schema, node: Type, raw: Any, julian_types: Collection[str] = ()) -> Any:
    """Returns a value of Avro's binary encoding in the common form of this module.

    Args:
        node: its type.
        raw: the value as decoded without logical types: dates and timestamps are numbers, decimals are bytes.
        julian_types: logical types whose days before 1582-10-15 are those of the Julian calendar (`julian_day`).
    """

    def inner_value(kind: Type, value: Any) -> Any:
        return expected_value(schema, kind, value, julian_types)

    node = schema.resolve(node)
    if raw is None:
        return None
    match node:
        case Union(branches=branches):
            return inner_value(next(branch for branch in branches if not _is_null(branch)), raw)
        case Record(fields=fields):
            return {field.name.lower(): inner_value(field.type, raw[field.name]) for field in fields}
        case Array(items=items):
            return [inner_value(items, item) for item in raw]
        case Map(values=values):
            return {key: inner_value(values, item) for key, item in raw.items()}
        case Primitive():
            return _primitive(node, raw, julian_types)
        case Fixed():
            return raw.hex()
    return raw


def _primitive(node: Primitive, raw: Any, julian_types: Collection[str]) -> Any:
    logical = node.logical.name if node.logical is not None else ""
    match node.type, logical:
        case PrimitiveType.INT, "date":
            days = julian_day(raw) if logical in julian_types else raw
            return (EPOCH + datetime.timedelta(days=days)).date().isoformat()
        case PrimitiveType.LONG, "timestamp-millis":
            days, time_ms = divmod(raw, DAY_MS)
            days = julian_day(days) if logical in julian_types else days
            return timestamp_text(EPOCH + datetime.timedelta(days=days, milliseconds=time_ms))
        case PrimitiveType.BYTES, "decimal":
            assert node.logical is not None
            unscaled = int.from_bytes(raw, "big", signed=True)
            return decimal_text(Decimal(unscaled).scaleb(-(node.logical.scale or 0), ALL_DIGITS))
        case PrimitiveType.BYTES, _:
            return raw.hex()
        case PrimitiveType.FLOAT, _:
            return struct.unpack("<f", struct.pack("<f", raw))[0]
    return raw


def timestamp_text(time: datetime.datetime) -> str:
    """Formats a timestamp with four digits of the year; `strftime` omits leading zeros."""
    return time.replace(tzinfo=None).isoformat(" ", "microseconds")


NestedBytes = Callable[[str], bytes]
STRINGS = json.JSONDecoder(parse_float=str)
BARE_END = ",]}"
HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def is_nested(schema: Schema, node: Type) -> bool:
    node = schema.resolve(node)
    if isinstance(node, Union):
        node = next(schema.resolve(branch) for branch in node.branches if not _is_null(branch))
    return isinstance(node, Record | Array | Map)


def normalize_value(
    schema: Schema, node: Type, value: Any, nested_bytes: NestedBytes | None = str.encode, expected: Any = None
) -> Any:
    """Returns a value of an engine's result in the common form of this module.

    Args:
        node: type of the column.
        nested_bytes: converts the strings for bytes inside arrays, maps and structs. Without it, such bytes are raw, as
            HiveServer2 writes them inside JSON. Their end is then where the expected value ends, or before the next
            character that ends a value.
    """
    node = schema.resolve(node)
    if isinstance(node, Union):
        node = next(schema.resolve(branch) for branch in node.branches if not _is_null(branch))
    if isinstance(value, str) and isinstance(node, Record | Array | Map):
        value = STRINGS.decode(value) if nested_bytes else _bare(schema, node, value, 0, expected)[0]
    return _normalize(schema, node, value, nested_bytes or str.encode)


def _bare(schema: Schema, node: Type, text: str, at: int, expected: Any) -> tuple[Any, int]:
    """Parses the value that begins at an offset of a JSON text with raw bytes. Returns it and the offset of its end.

    Args:
        expected: the expected value, which shows the length of raw bytes.
    """
    node = schema.resolve(node)
    if isinstance(node, Union):
        node = next(schema.resolve(branch) for branch in node.branches if not _is_null(branch))
    if text.startswith("null", at) and expected is None:
        return None, at + 4
    match node:
        case Array(items=items):
            listed: list[Any] = []
            expected_items = expected or ()
            at += 1
            while text[at] != "]" or len(listed) < len(expected_items):
                item, at = _bare(schema, items, text, at, next(iter(expected_items[len(listed) :]), None))
                listed.append(item)
                if text[at] == "]":
                    break
                at += 1
            return listed, at + 1
        case Map() | Record():
            named: dict[str, Any] = {}
            at += 1
            while text[at] != "}":
                name, at = STRINGS.raw_decode(text, at)
                named[name], at = _bare(schema, _member(node, name), text, at + 1, (expected or {}).get(name))
                at += text[at] == ","
            return named, at + 1
        case Primitive() | Fixed() if _is_bytes(node):
            known = bytes.fromhex(expected) if isinstance(expected, str) else b""
            if known and text.startswith(shown := _as_java_shows(known), at):
                return known, at + len(shown)
            end = min((end for sign in BARE_END if (end := text.find(sign, at)) >= 0), default=len(text))
            return text[at:end].encode(), end
    return STRINGS.raw_decode(text, at)


def _member(node: Map | Record, name: str) -> Type:
    if isinstance(node, Map):
        return node.values
    return next(field.type for field in node.fields if field.name.lower() == name)


def _is_bytes(node: Primitive | Fixed) -> bool:
    """Returns whether the column is binary; a decimal stored as `bytes` is not."""
    is_decimal = node.logical is not None and node.logical.name == "decimal"
    return isinstance(node, Fixed) or (node.type is PrimitiveType.BYTES and not is_decimal)


def _as_java_shows(raw: bytes) -> str:
    """Decodes bytes as UTF-8 like Java, which replaces half of a surrogate pair by one character; Python replaces each
    byte.
    """
    return HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}".encode(), raw).decode(errors="replace")


def _normalize(schema: Schema, node: Type, value: Any, nested_bytes: NestedBytes) -> Any:
    node = schema.resolve(node)
    if value is None:
        return None
    match node:
        case Union(branches=branches):
            return _normalize(schema, next(branch for branch in branches if not _is_null(branch)), value, nested_bytes)
        case Record(fields=fields):
            values = value.asDict() if hasattr(value, "asDict") else value
            types = {field.name.lower(): field.type for field in fields}
            return {name: _normalize(schema, kind, values[name], nested_bytes) for name, kind in types.items()}
        case Array(items=items):
            return [_normalize(schema, items, item, nested_bytes) for item in value]
        case Map(values=values):
            return {key: _normalize(schema, values, item, nested_bytes) for key, item in value.items()}
        case Enum():
            return value
        case Primitive() | Fixed():
            return _normalize_plain(node, value, nested_bytes)
    return value


def _normalize_plain(node: Primitive | Fixed, value: Any, nested_bytes: NestedBytes) -> Any:
    logical = node.logical.name if node.logical is not None else ""
    if isinstance(value, datetime.datetime):
        return timestamp_text(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(node, Primitive) and (node.type, logical) == (PrimitiveType.BYTES, "decimal"):
        return decimal_text(Decimal(str(value)))
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(node, Fixed) or node.type is PrimitiveType.BYTES:
        return nested_bytes(str(value)).hex()
    if logical == "timestamp-millis" and node.type is PrimitiveType.LONG:
        return timestamp_text(datetime.datetime.fromisoformat(str(value)))
    if node.type is PrimitiveType.FLOAT:
        return struct.unpack("<f", struct.pack("<f", float(value)))[0]
    return float(value) if node.type is PrimitiveType.DOUBLE else value


ALL_DIGITS = Context(prec=100)


def decimal_text(value: Decimal) -> str:
    """Formats a decimal without trailing zeros."""
    return format(value.normalize(ALL_DIGITS), "f") if value else "0"


def _is_null(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type is PrimitiveType.NULL
