"""Checks whether a Python value fits an Avro schema.

`find_problem` is the complete check and returns the path of the field. It does not run for every message: fastavro's
encoder finds most invalid values much faster, and `value_guard` finds the invalid values that the encoder accepts.
"""

from __future__ import annotations

import datetime
import decimal
import re
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastavro.write import LOGICAL_WRITERS

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
    branch_name,
)
from headrace.clients.logical_types import name_for_fastavro

INT_RANGES: Final[Mapping[PrimitiveType, tuple[int, int]]] = {
    PrimitiveType.INT: (-(2**31), 2**31 - 1),
    PrimitiveType.LONG: (-(2**63), 2**63 - 1),
}
_MS_RANGE: Final = (-62_135_596_800_000, 253_402_300_799_999)
_US_RANGE: Final = (_MS_RANGE[0] * 1000, _MS_RANGE[1] * 1000 + 999)
LOGICAL_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "date": (-719_162, 2_932_896),
    "time-millis": (0, 86_399_999),
    "time-micros": (0, 86_399_999_999),
    "timestamp-millis": _MS_RANGE,
    "timestamp-micros": _US_RANGE,
    "local-timestamp-millis": _MS_RANGE,
    "local-timestamp-micros": _US_RANGE,
}
"""The smallest and largest number of each logical type: the years 1 to 9999, and the times of a day. Python consumers
cannot represent a number outside, which usually has another unit by mistake."""

UUID_TEXT: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
"""The canonical form of a UUID; Python also accepts other forms."""

_FLOATS: Final = {PrimitiveType.FLOAT: struct.Struct("<f"), PrimitiveType.DOUBLE: struct.Struct("<d")}
EXACT_DOUBLE_INTEGER_MAX: Final = 2**53
"""Largest integer up to which a double represents every integer."""
FLOAT_LIMIT: Final = 2.0**128 - 2.0**103
"""A double of at least this size rounds to infinity as a 32-bit float."""

_CLASSES: Final[Mapping[PrimitiveType, tuple[type, ...]]] = {
    PrimitiveType.NULL: (type(None),),
    PrimitiveType.BOOLEAN: (bool,),
    PrimitiveType.INT: (int,),
    PrimitiveType.LONG: (int,),
    PrimitiveType.FLOAT: (int, float),
    PrimitiveType.DOUBLE: (int, float),
    PrimitiveType.BYTES: (bytes, bytearray),
    PrimitiveType.STRING: (str,),
}
_LOGICAL_CLASSES: Final[Mapping[str, tuple[type, ...]]] = {
    "date": (datetime.date,),
    "time-millis": (datetime.time,),
    "time-micros": (datetime.time,),
    "timestamp-millis": (datetime.datetime,),
    "timestamp-micros": (datetime.datetime,),
    "local-timestamp-millis": (datetime.datetime,),
    "local-timestamp-micros": (datetime.datetime,),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
"""Python classes of logical types, besides those of the underlying type. Python has no class with nanoseconds."""
_LOGICAL_CLASSES_OF_FIXED: Final[Mapping[str, tuple[type, ...]]] = {
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
_NON_ARRAY_TYPES: Final = (str, bytes, bytearray, memoryview, Mapping)
"""Iterable classes that are not accepted as Avro arrays, because such a value is probably a mistake."""


@dataclass(frozen=True, slots=True)
class DatumProblem:
    """The first field of a value that does not fit the schema. `path` is the dotted path of the field; "" means the
    whole value. `sentence` describes the problem."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"field {self.path}: {self.sentence}" if self.path else self.sentence


def find_problem(schema: Schema, value: Any) -> DatumProblem | None:
    """Returns the path of the first field of a value that does not fit the schema, with the reason; None if the whole
    value fits."""
    return _find(schema, schema.root, value, "")


def fits(schema: Schema, node: Type, value: Any) -> bool:
    """Returns whether a value fits the type `node` of the schema."""
    return _find(schema, node, value, "") is None


def _find(schema: Schema, node: Type, value: Any, path: str) -> DatumProblem | None:
    node = schema.resolve(node)
    if isinstance(node, Primitive):
        return _find_in_primitive(node, value, path)
    if isinstance(node, Record):
        return _find_in_record(schema, node, value, path)
    if isinstance(node, Union):
        return _find_in_union(schema, node, value, path)
    if isinstance(node, Array):
        if isinstance(value, _NON_ARRAY_TYPES) or not isinstance(value, Sequence):
            return _expected("array (a list)", value, path)
        items = ((f"[{index}]", item) for index, item in enumerate(value))
        return _find_in_items(schema, node.items, items, path)
    if isinstance(node, Map):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return _expected("map (a dict with text keys)", value, path)
        return _find_in_items(schema, node.values, ((f"[{key!r}]", item) for key, item in value.items()), path)
    if isinstance(node, Enum):
        if value in node.symbols:
            return None
        return _expected(f"one of {', '.join(node.symbols[:10])}{', …' if len(node.symbols) > 10 else ''}", value, path)
    assert isinstance(node, Fixed)
    if _is_logical(node, value, _LOGICAL_CLASSES_OF_FIXED):
        return _decimal_problem(node, value, path) if isinstance(value, decimal.Decimal) else None
    if isinstance(value, (bytes, bytearray)) and len(value) == node.size:
        return None
    is_uuid_type = node.logical is not None and node.logical.name == "uuid"
    return _expected(f"uuid or {node.size} bytes" if is_uuid_type else f"{node.size} bytes", value, path)


def _find_in_primitive(node: Primitive, value: Any, path: str) -> DatumProblem | None:
    if _is_logical(node, value, _LOGICAL_CLASSES):
        if isinstance(value, decimal.Decimal):
            return _decimal_problem(node, value, path)
        return _time_problem(node, value, path) if isinstance(value, (datetime.date, datetime.time)) else None
    if not isinstance(value, _CLASSES[node.type]) or (
        isinstance(value, bool) and node.type is not PrimitiveType.BOOLEAN
    ):
        return _expected(node.logical.name if node.logical else node.type.value, value, path)
    if node.type in INT_RANGES and isinstance(value, int):
        least, most = INT_RANGES[node.type]
        if not least <= value <= most:
            return DatumProblem(path, f"{value!s:.60} is outside the range of {node.type}, {least} to {most}")
        if node.logical is not None and node.logical.name in LOGICAL_RANGES:
            least, most = LOGICAL_RANGES[node.logical.name]
            if not least <= value <= most:
                sentence = f"{value} is outside the range of {node.logical.name}, {least} to {most}"
                return DatumProblem(path, f"{sentence}; does it have another unit?")
    if node.type in _FLOATS:
        try:
            (found,) = _FLOATS[node.type].unpack(_FLOATS[node.type].pack(value))
        except (OverflowError, struct.error):
            return DatumProblem(path, f"{value!r:.60} is outside the range of {node.type}")
        if isinstance(value, int) and found != value:
            return DatumProblem(path, f"{value!s:.60} is an integer that {node.type} rounds to {found:.0f}")
    if isinstance(value, str) and not _is_unicode(value):
        return DatumProblem(path, "the text contains half of a surrogate pair and has no UTF-8 form")
    if isinstance(value, str) and is_uuid(node) and not _is_uuid_text(value):
        return _expected("uuid", value, path)
    return None


def _find_in_record(schema: Schema, node: Record, value: Any, path: str) -> DatumProblem | None:
    if not isinstance(value, Mapping):
        return _expected(f"record {node.name} (a dict)", value, path)
    names = {field.name for field in node.fields}
    for name in value:
        if name not in names:
            return DatumProblem(_below(path, str(name)), f"record {node.name} has no such field")
    for field in node.fields:
        if field.name not in value:
            if field.has_default:
                continue
            return DatumProblem(_below(path, field.name), "missing, and it has no default")
        problem = _find(schema, field.type, value[field.name], _below(path, field.name))
        if problem is not None:
            return problem
    return None


def _find_in_union(schema: Schema, node: Union, value: Any, path: str) -> DatumProblem | None:
    branches = [schema.resolve(branch) for branch in node.branches]
    if isinstance(value, datetime.datetime):
        branches = branches_of_datetimes(branches)
    if is_pair(value):
        for branch in branches:
            if branch_name(branch) == value[0]:
                return _find(schema, branch, value[1], path)
    problems = [_find(schema, branch, value, path) for branch in branches]
    if None in problems:
        return None
    others = [
        (branch, problem)
        for branch, problem in zip(branches, problems, strict=True)
        if not (isinstance(branch, Primitive) and branch.type is PrimitiveType.NULL)
    ]
    of_class = [
        (branch, problem)
        for branch, problem in others
        if isinstance(branch, Primitive) and _is_logical(branch, value, _LOGICAL_CLASSES)
    ]
    for problems_of in (others, of_class):
        if len(problems_of) == 1:
            return problems_of[0][1]
    return _expected(f"one of the branches {', '.join(branch_name(branch) for branch in branches)}", value, path)


def _find_in_items(schema: Schema, node: Type, items: Any, path: str) -> DatumProblem | None:
    for suffix, item in items:
        problem = _find(schema, node, item, f"{path}{suffix}")
        if problem is not None:
            return problem
    return None


def is_pair(value: Any) -> bool:
    """Returns whether a value is a tuple (branch name, value), with which an application selects a branch of a union.
    The caller must check that the union has such a branch; otherwise the tuple is an array's value."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _is_logical(node: Primitive | Fixed, value: Any, classes: Mapping[str, tuple[type, ...]]) -> bool:
    return node.logical is not None and isinstance(value, classes.get(node.logical.name, ()))


def _time_problem(node: Primitive, value: datetime.date | datetime.time, path: str) -> DatumProblem | None:
    """Returns the problem of a date or time that its type cannot hold exactly, or a datetime that is outside of the
    years 1 to 9999, else None.

    Args:
        node: the type of the value, with a logical type of dates or times.
        path: dotted path of the field that has the value, for the problem.
    """
    assert node.logical is not None
    name = node.logical.name
    lost = _lost_part(name, value)
    if lost is not None:
        part, remedy = lost
        return DatumProblem(path, f"{value} has {part}, which {name} cannot hold; {remedy}")
    if isinstance(value, datetime.datetime) and name != "date":
        return _instant_problem(node, value, path)
    return None


def _lost_part(name: str, value: datetime.date | datetime.time) -> tuple[str, str] | None:
    """Returns the part of a value that the logical type `name` cannot hold, and the remedy; None if it can hold all."""
    if name == "date":
        if isinstance(value, datetime.datetime) and value.time() != datetime.time.min:
            return "a time of day", "pass its date()"
        return None
    if not isinstance(value, (datetime.datetime, datetime.time)):
        return None
    if value.tzinfo is not None and name.startswith(("time-", "local-")):
        return "a time zone", "pass it with replace(tzinfo=None)"
    if name.endswith("-millis") and value.microsecond % 1000:
        return "microseconds", f"round it to milliseconds, or declare {name.replace('millis', 'micros')} in the schema"
    if getattr(value, "nanosecond", 0):  # pandas.Timestamp is a datetime with nanoseconds
        return "nanoseconds", "round it to microseconds"
    return None


def _instant_problem(node: Primitive, value: datetime.datetime, path: str) -> DatumProblem | None:
    """Returns the problem of a datetime that is outside of the years 1 to 9999, else None. The year in UTC counts,
    which near the end of a year may differ from the year in the datetime's own time zone.

    Args:
        node: the type of the value, with a logical type such as timestamp-millis.
        path: dotted path of the field that has the value, for the problem.
    """
    assert node.logical is not None
    name = node.logical.name
    least, most = LOGICAL_RANGES[name]
    try:
        instant = LOGICAL_WRITERS[f"{node.type.value}-{name_for_fastavro(node.type.value, name)}"](value, {})
        if least <= instant <= most:
            return None
    except OverflowError:
        pass
    except (ArithmeticError, ValueError, TypeError) as error:  # from the system's time zone, or from the datetime's own
        return DatumProblem(path, f"{value} is not a valid {name}: {error}")
    return DatumProblem(path, f"{value} is outside of the years 1 to 9999 in UTC, in which {name} is read")


def _decimal_problem(node: Primitive | Fixed, value: decimal.Decimal, path: str) -> DatumProblem | None:
    """Returns the problem of a decimal with more digits than the type's precision or scale allows, else None. Decimals
    are not rounded.

    Args:
        node: the type of the value, with the logical type decimal.
        path: dotted path of the field that has the value, for the problem.
    """
    assert node.logical is not None
    precision, scale = node.logical.precision or 0, node.logical.scale or 0
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return DatumProblem(path, f"{value} is not a finite number")
    if -exponent > scale:
        return DatumProblem(
            path, f"{value!s:.60} has more digits behind the point than the scale {scale} of the decimal"
        )
    if len(digits) > precision:
        return DatumProblem(path, f"{value!s:.60} has more digits than the precision {precision} of the decimal")
    if value and len(digits) + exponent + scale > precision:  # zeros down to the scale count as digits
        sentence = f"{value!s:.60} has more digits before the point than the decimal's {precision - scale}"
        return DatumProblem(path, f"{sentence} (precision {precision}, scale {scale})")
    return None


def is_uuid(node: Primitive) -> bool:
    return node.type is PrimitiveType.STRING and node.logical is not None and node.logical.name == "uuid"


def _is_uuid_text(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _expected(expected: str, value: Any, path: str) -> DatumProblem:
    found = "null" if value is None else f"{type(value).__name__} {value!r:.60}"
    return DatumProblem(path, f"expected {expected}, found {found}")


def branches_of_datetimes(branches: Sequence[Type]) -> list[Type]:
    """Returns the branches of a union to try for a datetime: all, or all except dates if one is a timestamp, because a
    date drops the time of day."""
    times = [_is_logical_type(branch, "timestamp") for branch in branches]
    return [branch for branch in branches if not (any(times) and _is_logical_type(branch, "date"))]


def _is_logical_type(node: Type, part: str) -> bool:
    return isinstance(node, Primitive) and node.logical is not None and part in node.logical.name


def is_narrow(node: Type) -> bool:
    """Returns whether the type `node` has a logical type that allows fewer values than its underlying type, such as
    uuid on string. fastavro's encoder checks only the underlying type."""
    return isinstance(node, Primitive) and (
        is_uuid(node) or (node.logical is not None and node.logical.name in LOGICAL_RANGES)
    )


def range_of(node: Primitive) -> tuple[int, int]:
    """Returns the smallest and the largest number that an int or long type allows, or its logical type if that allows
    fewer."""
    ranges = LOGICAL_RANGES.get(node.logical.name) if node.logical is not None else None
    return INT_RANGES[node.type] if ranges is None else ranges


def is_recursive(schema: Schema) -> bool:
    """Returns whether a type of the schema contains itself."""

    is_open: set[Name] = set()
    done: set[Name] = set()

    def is_found(node: Type) -> bool:
        node = schema.resolve(node)
        if isinstance(node, (Array, Map)):
            return is_found(node.items if isinstance(node, Array) else node.values)
        if isinstance(node, Union):
            return any(map(is_found, node.branches))
        if not isinstance(node, Record) or node.name in done:
            return False
        if node.name in is_open:
            return True
        is_open.add(node.name)
        found = any(is_found(field.type) for field in node.fields)
        is_open.remove(node.name)
        done.add(node.name)
        return found

    return is_found(schema.root)


def is_deeper(value: Any, depth_max: int) -> bool:
    """Returns whether lists and dicts in `value` are nested more than `depth_max` times, or contain themselves."""
    rest = [(value, 0)]
    while rest:
        inner, depth = rest.pop()
        if depth > depth_max:
            return True
        if isinstance(inner, Mapping):
            rest.extend((each, depth + 1) for each in inner.values())
        elif isinstance(inner, (list, tuple)):
            rest.extend((each, depth + 1) for each in inner)
    return False
