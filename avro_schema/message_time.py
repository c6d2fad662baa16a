"""Time of a message: the one rule that every tier applies, so that counts of the same window are comparable.

The time is the field that the subject's metadata property `headrace.time` names, else the first candidate field that
exists and has a unit, else the record's own timestamp, which is also used if the field is null. A long without logical
type is milliseconds since 1970. Strings and doubles have no unit and are never used. Times are UTC.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.avro_schema.errors import MessageTimeError
from headrace.avro_schema.model import Primitive, PrimitiveType, Record, Schema, Type, Union

TIME_PROPERTY = "headrace.time"
"""Metadata property of a subject that names the time field as a dotted path."""


class TimeUnit(StrEnum):
    MILLIS = "millis"
    MICROS = "micros"
    NANOS = "nanos"
    DAYS = "days"


_UNITS: Mapping[str, TimeUnit] = {
    "timestamp-millis": TimeUnit.MILLIS,
    "timestamp-micros": TimeUnit.MICROS,
    "timestamp-nanos": TimeUnit.NANOS,
    "local-timestamp-millis": TimeUnit.MILLIS,
    "local-timestamp-micros": TimeUnit.MICROS,
    "local-timestamp-nanos": TimeUnit.NANOS,
    "date": TimeUnit.DAYS,
}

_TO_MS: Mapping[TimeUnit, Callable[[int], int]] = {
    TimeUnit.MILLIS: lambda value: value,
    TimeUnit.MICROS: lambda value: value // 1_000,
    TimeUnit.NANOS: lambda value: value // 1_000_000,
    TimeUnit.DAYS: lambda value: value * 86_400_000,
}

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class TimeField:
    """The field that holds a message's time: its path, its unit, and its dotted path as text (`source`), which is
    recorded with the counts of the messages."""

    path: tuple[str, ...]
    unit: TimeUnit
    source: str

    def to_ms(self, value: Any) -> int | None:
        """Converts a decoded value to milliseconds since 1970, rounded down; None if it is not a time."""
        if isinstance(value, datetime.datetime):
            # A local timestamp decodes to a datetime without zone, which is interpreted as UTC.
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return (aware - _EPOCH) // _MILLISECOND
        if isinstance(value, datetime.date):
            return (value.toordinal() - 719_163) * 86_400_000
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return _TO_MS[self.unit](value)

    def read(self, value: Mapping[str, Any]) -> int | None:
        """Returns the time in a decoded message (`value`) in milliseconds since 1970; None if the field or an enclosing
        record is null."""
        inner: Any = value
        for name in self.path:
            if not isinstance(inner, Mapping):
                return None
            inner = inner.get(name)
        return self.to_ms(inner)


def find_time_field(schema: Schema, time_property: str, candidates: Sequence[str]) -> TimeField | None:
    """Returns the time field of messages written with `schema`, or None to use the record's timestamp.

    A schema version without the named field uses the candidates: the property belongs to the subject's newest version,
    and messages of older versions may still arrive.

    Args:
        time_property: the subject's `headrace.time`, "" if it has none.
        candidates: dotted paths; the first existing field with a unit is used.
    """
    for text in (time_property, *candidates):
        found = _time_field(schema, text) if text else None
        if found is not None:
            return found
    return None


def check_time_property(schema: Schema, time_property: str) -> TimeField:
    """Returns the field of the schema that a subject's property `headrace.time` names.

    Args:
        time_property: the value of the property: the dotted path of the field.

    Raises:
        MessageTimeError: the field does not exist, or its type has no unit of time.
    """
    found = _time_field(schema, time_property)
    if found is None:
        raise MessageTimeError(
            f"{TIME_PROPERTY}={time_property}: expected the dotted path of a field of type long, date or a timestamp",
            time_property,
        )
    return found


def _time_field(schema: Schema, text: str) -> TimeField | None:
    path = tuple(text.split("."))
    node: Type | None = schema.root
    for name in path:
        record = _without_null(schema, node)
        if not isinstance(record, Record):
            return None
        node = next((field.type for field in record.fields if field.name == name), None)
        if node is None:
            return None
    leaf = _without_null(schema, node)
    unit = _unit(leaf) if isinstance(leaf, Primitive) else None
    return TimeField(path, unit, text) if unit is not None else None


def _unit(leaf: Primitive) -> TimeUnit | None:
    if leaf.logical is not None:
        return _UNITS.get(leaf.logical.name)
    return TimeUnit.MILLIS if leaf.type is PrimitiveType.LONG else None


def _without_null(schema: Schema, node: Type | None) -> Type | None:
    """Returns the type `node`, or the other branch if it is a union of null and one other type. References are
    resolved; None is returned for None."""
    if node is None:
        return None
    node = schema.resolve(node)
    if isinstance(node, Union):
        others = [b for b in node.branches if not (isinstance(b, Primitive) and b.type is PrimitiveType.NULL)]
        if len(others) == 1:
            return schema.resolve(others[0])
    return node
