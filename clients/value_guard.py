"""Checks which values can be passed to fastavro's encoder without `find_problem`.

The encoder finds most invalid values itself. The guard of a schema checks the types for which the encoder would
silently change an invalid value: 1.5 as the int 1, 2**40 as an int, 2**53 + 1 as a double, 1e39 as the float infinity,
any object as a boolean or null, a text as the array of its characters, a fixed from any bytes-like object. The guard
accepts no value that `find_problem` rejects for these types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.avro_schema import (
    Array,
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
from headrace.clients.datum import (
    EXACT_DOUBLE_INTEGER_MAX,
    FLOAT_LIMIT,
    INT_RANGES,
    UUID_TEXT,
    fits,
    is_narrow,
    is_pair,
    is_uuid,
    range_of,
)

Guard = Callable[[Any], bool]
"""Function that returns True for a value that the encoder writes correctly or rejects. After False, `find_problem` must
decide."""


def compile_guard(schema: Schema) -> Guard | None:
    """Returns the guard of a schema: a function that returns True for a value that fastavro's encoder writes correctly
    or rejects. After False, `find_problem` must decide. Returns None if the encoder itself rejects all invalid values.
    """
    return _Compiler(schema).guard(schema.root)


class _Compiler:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records: dict[Name, Guard | None] = {}

    def guard(self, node: Type) -> Guard | None:
        node = self._schema.resolve(node)
        if isinstance(node, Primitive):
            return self._primitive(node)
        if isinstance(node, Record):
            return self._record(node)
        if isinstance(node, Union):
            return self._union(node)
        if isinstance(node, (Array, Map)):
            item = self.guard(node.items if isinstance(node, Array) else node.values)
            if isinstance(node, Array):
                if item is None:
                    return lambda value: value.__class__ is list
                return lambda value: value.__class__ is list and all(map(item, value))
            if item is None:
                return None
            return lambda value: value.__class__ is dict and all(map(item, value.values()))
        if isinstance(node, Fixed):
            return lambda value: value.__class__ is bytes or self._fits(node, value)
        return None  # the encoder looks up the symbol of an enum

    def _primitive(self, node: Primitive) -> Guard | None:
        if is_uuid(node):
            return lambda value: value.__class__ is str and UUID_TEXT(value) is not None
        if node.type in INT_RANGES:
            least, most = range_of(node)
            if is_narrow(node):  # the value may also be an object of a logical type
                return lambda value: least <= value <= most if value.__class__ is int else self._fits(node, value)
            return lambda value: value.__class__ is int and least <= value <= most
        if node.type is PrimitiveType.NULL:
            return lambda value: value is None
        if node.type is PrimitiveType.BOOLEAN:
            return lambda value: value.__class__ is bool
        if node.type is PrimitiveType.FLOAT:
            return lambda value: value.__class__ is float and -FLOAT_LIMIT < value < FLOAT_LIMIT
        if node.type is PrimitiveType.DOUBLE:
            bound = EXACT_DOUBLE_INTEGER_MAX
            return lambda value: value.__class__ is float or (value.__class__ is int and -bound <= value <= bound)
        if (
            node.type is PrimitiveType.BYTES and node.logical is not None
        ):  # the encoder ignores trailing zeros of decimals
            return lambda value: value.__class__ is bytes or self._fits(node, value)
        return None

    def _union(self, node: Union) -> Guard:
        """Returns the guard of a union: a function that returns True only for values that fastavro's encoder writes
        correctly or rejects. The encoder chooses the branch by the value's class and the underlying types alone, so the
        guard returns False for values for which this choice may be wrong."""
        branches = [self._schema.resolve(branch) for branch in node.branches]
        guards = {branch_name(branch): self.guard(branch) for branch in branches}
        kinds = {branch.type for branch in branches if isinstance(branch, Primitive)}
        ranges = [
            range_of(branch) for branch in branches if isinstance(branch, Primitive) and branch.type in INT_RANGES
        ]
        if PrimitiveType.DOUBLE in kinds:
            ranges.append((-EXACT_DOUBLE_INTEGER_MAX, EXACT_DOUBLE_INTEGER_MAX))
        dict_branches = [branch_name(branch) for branch in branches if isinstance(branch, (Record, Map))]

        def check_fit(value: Any) -> bool:
            return self._fits(node, value)

        def check_int(value: int) -> bool:
            return any(least <= value <= most for least, most in ranges) or check_fit(value)

        def check_tuple(value: tuple[Any, ...]) -> bool:
            if not is_pair(value) or value[0] not in guards:
                return check_fit(value)
            check = guards[value[0]]
            return check is None or check(value[1])

        checks: dict[type, Guard | None] = {type(None): None, bool: None, int: check_int, tuple: check_tuple}
        checks[list] = guards.get("array")
        if len(dict_branches) == 1 or not any(guards[name] for name in dict_branches):
            checks[dict] = guards[dict_branches[0]] if dict_branches else None
        if not any(is_narrow(branch) for branch in branches):
            checks[str] = None
            if not kinds & {PrimitiveType.FLOAT, PrimitiveType.DOUBLE}:
                checks[int] = None
        if PrimitiveType.FLOAT not in kinds or PrimitiveType.DOUBLE in kinds:
            checks[float] = None
        if "array" not in guards:  # bytes would pass as an array of numbers
            checks[bytes] = None

        def guard(value: Any) -> bool:
            check = checks.get(value.__class__, check_fit)
            return check is None or check(value)

        return guard

    def _fits(self, node: Type, value: Any) -> bool:
        return fits(self._schema, node, value)

    def _record(self, node: Record) -> Guard | None:
        if node.name not in self._records:
            # For a recursive record, until it is compiled.
            self._records[node.name] = lambda value: (guard := self._records[node.name]) is None or guard(value)
            self._records[node.name] = self._fields(node)
        return self._records[node.name]

    def _fields(self, node: Record) -> Guard | None:
        checks: list[tuple[str, bool, Guard]] = []
        ints: list[str] = []
        longs: list[str] = []
        for field in node.fields:
            kind = self._schema.resolve(field.type)
            is_unguarded = isinstance(kind, Primitive) and not field.has_default and not is_narrow(kind)
            if is_unguarded and isinstance(kind, Primitive) and kind.type is PrimitiveType.INT:
                ints.append(field.name)
            elif is_unguarded and isinstance(kind, Primitive) and kind.type is PrimitiveType.LONG:
                longs.append(field.name)
            else:
                check = self.guard(kind)
                if check is not None:
                    checks.append((field.name, field.has_default, check))
        return _guard_of_fields(checks, ints, longs)


def _guard_of_fields(checks: list[tuple[str, bool, Guard]], ints: list[str], longs: list[str]) -> Guard | None:
    if not (checks or ints or longs):
        return None
    int_least, int_most = INT_RANGES[PrimitiveType.INT]
    long_least, long_most = INT_RANGES[PrimitiveType.LONG]

    def guard(value: Any) -> bool:
        # Integers are checked in loops of this one function: a call per field would cost as much as encoding it.
        try:
            for name in ints:
                number = value[name]
                if number.__class__ is not int or not int_least <= number <= int_most:
                    return False
            for name in longs:
                number = value[name]
                if number.__class__ is not int or not long_least <= number <= long_most:
                    return False
            for name, has_default, check in checks:
                if has_default and name not in value:
                    continue
                if not check(value[name]):
                    return False
        except (KeyError, TypeError):
            return False
        return True

    return guard
