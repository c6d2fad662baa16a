"""Time of a message: the one rule that every tier applies, so that counts of the same window are comparable.

The time fields of a writer schema are the one that the subject's metadata property `headrace.time` names; in a schema
that has no such field, those fields among the candidates (the setting `loader.time_fields`) that exist and can hold a
time, in their order. The time of a message is in the first of these fields that has one in this message: fields that
are null, or text that is not a time, are passed over. Without any, it is the record's own timestamp. Times are UTC.

A time is a long, which is milliseconds since 1970, a number with a logical type, or an ISO 8601 text with a zone
(`parse_time_text`). A field is found by its name, or by an alias that connects an older name with it: an alias in the
writer schema, or in the newest version of the subject.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.avro_schema.model import Field, Primitive, PrimitiveType, Record, Schema, Type, Union

TIME_PROPERTY = "headrace.time"
"""Metadata property of a subject that names the time field as a dotted path."""


class TimeUnit(StrEnum):
    """How a value in a time field states its time: a number of units since 1970, or `TEXT`, an ISO 8601 text."""

    MILLIS = "millis"
    MICROS = "micros"
    NANOS = "nanos"
    DAYS = "days"
    TEXT = "text"


_UNITS: Mapping[str, TimeUnit] = {
    "timestamp-millis": TimeUnit.MILLIS,
    "timestamp-micros": TimeUnit.MICROS,
    "timestamp-nanos": TimeUnit.NANOS,
    "local-timestamp-millis": TimeUnit.MILLIS,
    "local-timestamp-micros": TimeUnit.MICROS,
    "local-timestamp-nanos": TimeUnit.NANOS,
    "date": TimeUnit.DAYS,
}

TO_MS: Mapping[TimeUnit, Callable[[int], int]] = {
    TimeUnit.MILLIS: lambda value: value,
    TimeUnit.MICROS: lambda value: value // 1_000,
    TimeUnit.NANOS: lambda value: value // 1_000_000,
    TimeUnit.DAYS: lambda value: value * 86_400_000,
}
"""By unit of numbers: converts a number to milliseconds since 1970, rounded down."""

_TIME_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)", re.ASCII
)
TIME_TEXT_BYTES_MAX = len("2026-01-31T07:00:00.123456789+02:00")
"""The length of the longest text that `parse_time_text` accepts."""

_HOURS, _SIXTY = 24, 60
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MILLISECOND = datetime.timedelta(milliseconds=1)


def parse_time_text(text: str) -> int | None:
    """Returns the time in an ISO 8601 text, in milliseconds since 1970, rounded down; None if it is not a time.

    The text has a date, `T` or a space, hours and minutes, optionally seconds with up to nine digits of a fraction,
    and a zone: `Z`, or an offset such as `+02:00`, `+0200` or `+02`. RFC 3339 is a subset. A text without a zone is no
    time, because its hour is unknown. The C core has the same rule (`core/time_text.c`).
    """
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        return None
    day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = found.groups()
    clock = int(hour), int(minute), int(second or 0)
    offset = int(zone_hours or 0), int(zone_minutes or 0)
    if max(clock[0], offset[0]) >= _HOURS or max(*clock[1:], offset[1]) >= _SIXTY:
        return None
    try:
        days = datetime.date.fromisoformat(day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    minutes = days * 1_440 + clock[0] * 60 + clock[1] - (offset[0] * 60 + offset[1]) * (-1 if sign == "-" else 1)
    return (minutes * 60 + clock[2]) * 1_000 + int((fraction or "")[:3].ljust(3, "0"))


def time_unit(leaf: Type) -> TimeUnit | None:
    """Returns how values of a type that is no union state a time; None if they do not."""
    if not isinstance(leaf, Primitive):
        return None
    if leaf.logical is not None:
        return _UNITS.get(leaf.logical.name)
    if leaf.type is PrimitiveType.STRING:
        return TimeUnit.TEXT
    return TimeUnit.MILLIS if leaf.type is PrimitiveType.LONG else None


@dataclass(frozen=True, slots=True)
class TimeField:
    """A field that may hold a message's time.

    `path` are the field names in the writer schema. `source` is the dotted path in the settings or the subject's
    metadata; it is recorded with the counts of the messages. `unit` is the unit of a number in the field, None if
    numbers are no times. `has_text` means that a text in the field may be a time. A union may have both.
    """

    path: tuple[str, ...]
    unit: TimeUnit | None
    source: str
    has_text: bool = False

    def to_ms(self, value: Any) -> int | None:
        """Converts a decoded value to milliseconds since 1970, rounded down; None if it is not a time."""
        if isinstance(value, str):
            return parse_time_text(value) if self.has_text else None
        if self.unit is None:
            return None
        if isinstance(value, datetime.datetime):
            # A local timestamp decodes to a datetime without zone, which is interpreted as UTC.
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return (aware - _EPOCH) // _MILLISECOND
        if isinstance(value, datetime.date):
            return (value.toordinal() - _EPOCH_DAY) * 86_400_000
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return TO_MS[self.unit](value)

    def read(self, value: Mapping[str, Any]) -> int | None:
        """Returns the time in a decoded message (`value`) in milliseconds since 1970; None if the field has none, or
        the field or an enclosing record is null."""
        inner: Any = value
        for name in self.path:
            if not isinstance(inner, Mapping):
                return None
            inner = inner.get(name)
        return self.to_ms(inner)


def read_time(fields: Sequence[TimeField], value: Any) -> int | None:
    """Returns the time of a decoded message (`value`) in milliseconds since 1970; None if none of its time fields has
    one, so that the record's timestamp is used."""
    if isinstance(value, Mapping):
        for field in fields:
            time_ms = field.read(value)
            if time_ms is not None:
                return time_ms
    return None


def find_time_fields(
    schema: Schema, time_property: str, candidates: Sequence[str], newest: Schema | None = None
) -> tuple[TimeField, ...]:
    """Returns the time fields of messages written with `schema`, the preferred one first; none if the schema has none,
    so that the record's timestamp is used.

    A schema version without the named field uses the candidates: the property belongs to the subject's newest version,
    and messages of older versions may still arrive.

    Args:
        time_property: the subject's `headrace.time`, "" if it has none.
        candidates: dotted paths; all existing fields among them that can hold a time are used.
        newest: the newest version of the subject. Its aliases are the names of fields in older versions. None to find
            fields only by the names and aliases in `schema`.
    """
    named = _resolve(schema, time_property, newest) if time_property else None
    if isinstance(named, TimeField):
        return (named,)
    by_path: dict[tuple[str, ...], TimeField] = {}
    for candidate in candidates:
        found = _resolve(schema, candidate, newest)
        if isinstance(found, TimeField):
            by_path.setdefault(found.path, found)
    return tuple(by_path.values())


@dataclass(frozen=True, slots=True)
class UnusableTimeField:
    """The reason why a name is no time field of a schema. `exists` is False if the schema has no such field. `reason`
    continues a sentence about the field, such as `is a double, which states no unit`."""

    name: str
    exists: bool
    reason: str


def unusable_time_fields(schema: Schema, names: Sequence[str]) -> tuple[UnusableTimeField, ...]:
    """Returns those names that are no time fields of the schema, each with the reason.

    Args:
        names: dotted paths.
    """
    return tuple(found for name in names if isinstance(found := _resolve(schema, name, None), UnusableTimeField))


def _resolve(schema: Schema, name: str, newest: Schema | None) -> TimeField | UnusableTimeField:
    """Returns the time field that a dotted path (`name`) names in a schema, or the reason why it is none."""
    node: Type = schema.root
    newest_node: Type | None = newest.root if newest is not None else None
    path: list[str] = []
    for step in name.split("."):
        record = _only_branch(schema, node)
        if not isinstance(record, Record):
            return UnusableTimeField(name, False, f"does not exist ({'.'.join(path) or 'the message'} is no record)")
        newest_field = _field(newest, newest_node, step)
        field = _named_field(record, step, newest_field)
        if field is None:
            similar = next((one.name for one in record.fields if _folded(one.name) == _folded(step)), "")
            hint = f" (the schema has {'.'.join((*path, similar))})" if similar else ""
            return UnusableTimeField(name, False, f"does not exist{hint}")
        path.append(field.name)
        node, newest_node = field.type, newest_field.type if newest_field is not None else None
    branches = tuple(_branches(schema, node))
    units = [time_unit(branch) for branch in branches]
    numbers = [branch for branch in branches if _is_integer(branch)]
    if not any(units) or len(numbers) > 1:
        return UnusableTimeField(name, True, _reason(branches))
    unit = next((one for one in units if one not in (None, TimeUnit.TEXT)), None)
    return TimeField(tuple(path), unit, name, TimeUnit.TEXT in units)


def _field(schema: Schema | None, node: Type | None, name: str) -> Field | None:
    record = _only_branch(schema, node) if schema is not None and node is not None else None
    return _named_field(record, name, None) if isinstance(record, Record) else None


def _named_field(record: Record, name: str, newest: Field | None) -> Field | None:
    """Returns the field of a record that has the name, or another name of the same field; None if there is none.

    Args:
        newest: the field with this name in the subject's newest version; its aliases are names in older versions.
    """
    by_name = {field.name: field for field in record.fields}
    for one in (name, *(newest.aliases if newest is not None else ())):
        if one in by_name:
            return by_name[one]
    return next((field for field in record.fields if name in field.aliases), None)


def _branches(schema: Schema, node: Type) -> Iterator[Type]:
    """Yields the types that the values of a type have, except null: the branches of a union, or the type itself."""
    node = schema.resolve(node)
    for branch in node.branches if isinstance(node, Union) else (node,):
        resolved = schema.resolve(branch)
        if not (isinstance(resolved, Primitive) and resolved.type is PrimitiveType.NULL):
            yield resolved


def _only_branch(schema: Schema, node: Type) -> Type | None:
    """Returns the type `node`, or the other branch if it is a union of null and one other type; None for a union with
    several."""
    branches = tuple(_branches(schema, node))
    return branches[0] if len(branches) == 1 else None


def _is_integer(branch: Type) -> bool:
    return isinstance(branch, Primitive) and branch.type in (PrimitiveType.INT, PrimitiveType.LONG)


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


_REASONS: Mapping[PrimitiveType, str] = {
    PrimitiveType.INT: "is an int, which states no unit",
    PrimitiveType.FLOAT: "is a float, which states no unit",
    PrimitiveType.DOUBLE: "is a double, which states no unit",
}


def _reason(branches: Sequence[Type]) -> str:
    """Returns the reason why values of a field are no times, as the rest of a sentence.

    Args:
        branches: the types of the values, except null.
    """
    if len(branches) > 1:
        return "is a union without exactly one type that can be a time"
    if not branches:
        return "is always null"
    (leaf,) = branches
    if isinstance(leaf, Primitive):
        if leaf.logical is None and leaf.type in _REASONS:
            return _REASONS[leaf.type]
        return (
            f"is a {leaf.logical.name if leaf.logical is not None else leaf.type.value}, which states no point in time"
        )
    return f"is of type {type(leaf).__name__.lower()}, which states no point in time"
