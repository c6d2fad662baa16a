"""Converts bodies of a writer schema to bodies of a reader schema, as a decoder with both schemas would read them.

Source: Avro 1.12, Schema Resolution. Where the specification leaves a choice, it is that of Avro Java 1.12
(`org.apache.avro.Resolver`): a value gets the reader's union branch of its own type, else a record with compatible
fields (preferably one with the same short name), else the first type to which its own is promoted. The reader's aliases
rename the writer's types and fields first.

The conversion differs from Avro Java where Java fails or changes the value, and nowhere else:

- Aliases of fields apply even if the names of the records differ.
- An alias does not rename a type or field that would then have the name of another one of the writer.
- An enum or fixed also matches a union branch of the same short name in another namespace.
- Numbers keep their meaning if the logical types differ: other units of time and other scales of decimals are
  converted. A value that the reader's type cannot hold exactly, or that would mean something else, is rejected.

Values that cannot be converted are rejected one by one: a branch or field that does not fit affects only the messages
that contain it.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from headrace.avro_codec import program
from headrace.avro_codec.check import NESTED_MAX, deepest_nesting, walk_program
from headrace.avro_codec.core.library import Library, c_program
from headrace.avro_codec.encode import encode_bytes, encode_default, encode_long
from headrace.avro_codec.program import UNITS_BY_NUMBER, Code
from headrace.avro_codec.rewrite import (
    PROMOTIONS,
    SAME_BYTES,
    Convert,
    Plan,
    add_prefix,
    array_of,
    by_branch,
    convert_record,
    map_of,
    walk_first,
)
from headrace.avro_codec.walk import (
    DEPTH_MAX,
    MALFORMED,
    BadBody,
    CapturedTime,
    Limits,
    RankedPath,
    Skip,
    WalkCompiler,
    below,
    length_problem,
    malformed_reason,
    read_index,
    read_varint,
    skip_array,
    skip_capturing,
    skip_map,
    skip_record,
    skip_union,
    skip_zero_width_array,
    walk_body,
)
from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    LogicalType,
    Map,
    Name,
    NamedType,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    Schema,
    TimeField,
    Type,
    Union,
    default_problem,
)
from headrace.avro_schema.message_time import time_unit

BUFFER_BYTES_MIN: Final = 16_384
GROWTH: Final = 4
"""A converted body is expected to have at most this many times the size of the body. The core leaves larger ones to
Python."""

_READABLE: Final = SAME_BYTES | {(PrimitiveType.BYTES, PrimitiveType.STRING)}
"""The promotions that do not change the bytes of a value: (writer, reader)."""

_UNITS: Final = {
    "time-millis": ("time", 10**3),
    "time-micros": ("time", 10**6),
    "timestamp-millis": ("timestamp", 10**3),
    "timestamp-micros": ("timestamp", 10**6),
    "timestamp-nanos": ("timestamp", 10**9),
    "local-timestamp-millis": ("timestamp", 10**3),
    "local-timestamp-micros": ("timestamp", 10**6),
    "local-timestamp-nanos": ("timestamp", 10**9),
}
"""Logical types with a unit: the kind, and units per second. Numbers are converted within a kind."""

SCALE_DIFFERENCE_MAX: Final = 1_000
"""Decimals whose scales differ by more digits are rejected: schemas may contain any scale, and converting numbers of a
million digits takes seconds."""

_LONGS: Final = range(-(2**63), 2**63)

TimePaths = tuple[RankedPath, ...]
"""The paths from a type to the time fields in it."""


class UnresolvableValue(BadBody):
    """The body is a value of the writer schema that the reader schema cannot represent."""


def compile_resolution(
    writer: Schema, reader: Schema, core: Library | None, time_fields: Sequence[TimeField], captured_time: CapturedTime
) -> Callable[[bytes], bytes]:
    """Returns a function that converts a body of the writer schema to the body of the same value in the reader schema.
    It is not thread-safe.

    The function raises `BadBody` for a body that is not exactly one value of the writer schema, and its subclass
    `UnresolvableValue` for a value that the reader schema cannot represent.

    Args:
        core: the compiled core, which converts most bodies faster; None to convert all in Python.
        time_fields: the time fields of the writer, the preferred one first.
        captured_time: receives the time in them; its `value` is None if the body has none.

    Raises:
        BadBody: values of a schema are nested too deeply even without recursion.
    """
    nested = max(deepest_nesting(writer), deepest_nesting(reader))
    if nested > NESTED_MAX:
        raise BadBody(f"a schema nests values {nested} levels deep; at most {NESTED_MAX} are supported")
    limits = Limits(min(DEPTH_MAX, NESTED_MAX // nested - 1))
    is_supported = core is not None and walk_program(writer) is not None
    resolver = _Resolver(writer, reader, limits, captured_time, has_code=is_supported)
    plan = resolver.root(tuple((rank, field.path) for rank, field in enumerate(time_fields)))
    in_python = _converter(plan, limits, captured_time)
    found = program.assemble(plan.code) if is_supported else None
    if core is None or found is None:
        return in_python
    if plan.copies and not time_fields:
        return _checked_in_core(core, found, in_python)
    return _in_core(core, found, captured_time, in_python)


def _converter(plan: Plan, limits: Limits, captured_time: CapturedTime) -> Callable[[bytes], bytes]:
    skip, convert = plan.skip, plan.convert

    def copied(body: bytes) -> bytes:
        captured_time.value = None
        walk_body(skip, limits, body)
        return body

    def converted(body: bytes) -> bytes:
        captured_time.value = None
        limits.reset()
        try:
            found, end = convert(body, 0)
        except BadBody:
            walk_body(skip, limits, body)  # a malformed body is reported as without a reader schema
            raise
        except MALFORMED as error:
            raise BadBody(malformed_reason(error)) from error
        if end != len(body):
            raise BadBody(length_problem(end, len(body)))
        return found

    return copied if plan.copies else converted


def _checked_in_core(
    core: Library, compiled: program.Program, in_python: Callable[[bytes], bytes]
) -> Callable[[bytes], bytes]:
    """Returns the function that validates bodies with a program of the core and returns them unchanged. `in_python`
    validates those that the core rejects."""
    structure, words = c_program(compiled, 0, has_time_field=False)
    is_value, of_program = core.is_value, ctypes.addressof(structure)

    def convert(body: bytes, *, _references: object = (structure, words)) -> bytes:  # the core has only their addresses
        return body if is_value(of_program, body, len(body)) else in_python(body)

    return convert


def _in_core(
    core: Library, compiled: program.Program, captured_time: CapturedTime, in_python: Callable[[bytes], bytes]
) -> Callable[[bytes], bytes]:
    """Returns the function that converts bodies with a program of the core. `in_python` converts those that the core
    rejects, or reports the error."""
    structure, words = c_program(compiled, 0, has_time_field=False)
    buffer = ctypes.create_string_buffer(BUFFER_BYTES_MIN)
    unit, number = ctypes.c_int32(), ctypes.c_int64()
    convert_one, string_at, of_program = core.convert_one, ctypes.string_at, ctypes.addressof(structure)
    of_unit, of_number = ctypes.addressof(unit), ctypes.addressof(number)
    row, capacity = ctypes.addressof(buffer), BUFFER_BYTES_MIN

    def convert(body: bytes, *, _references: object = (structure, words)) -> bytes:  # the core has only their addresses
        nonlocal buffer, row, capacity
        size = len(body)
        if size * GROWTH > capacity:
            capacity = size * GROWTH
            buffer = ctypes.create_string_buffer(capacity)
            row = ctypes.addressof(buffer)
        written = convert_one(of_program, body, size, row, capacity, of_unit, of_number)
        if written < 0:
            return in_python(body)
        captured_time.value = None
        if unit.value:
            captured_time.capture(0, UNITS_BY_NUMBER[unit.value], number.value)
        return string_at(row, written)

    return convert


class _Resolver:
    """Compiles the types of a writer and a reader schema to plans.

    In its methods, `time` are the paths to the time fields. Records without them are compiled once for each pair of
    names. The plan of a recursive record calls itself.
    """

    def __init__(
        self, writer: Schema, reader: Schema, limits: Limits, captured_time: CapturedTime, *, has_code: bool
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._limits = limits
        self._walks = WalkCompiler(writer, limits)
        self._captured_time = captured_time
        self._has_code = has_code
        self._names = _Names(writer, reader)
        self._records: dict[tuple[Name, Name], Plan] = {}
        self._open: set[tuple[Name, Name]] = set()

    def root(self, time: TimePaths) -> Plan:
        """Returns the plan that converts whole bodies."""
        if self._writer.root == self._reader.root and dict(self._writer.names) == dict(self._reader.names):
            return self._copy(self._writer.root, time)
        return self._plan(self._writer.root, self._reader.root, time, "the value")

    def _plan(self, writer: Type, reader: Type, time: TimePaths, where: str) -> Plan:
        """Returns the plan that converts values of the writer's type to the reader's type. `where` names the field that
        contains them, for errors."""
        writer, reader = self._writer.resolve(writer), self._reader.resolve(reader)
        if isinstance(writer, Union):
            return self._union(writer, reader, time, where)
        if isinstance(reader, Union):
            index, plan = self._branch(writer, reader, time, where)
            return self._prefixed(index, plan)
        problem = self._names.problem(writer, reader)
        if problem is not None:
            return self._reject(writer, time, f"{where}: {problem}")
        match writer, reader:
            case Record(), Record():
                return self._record(writer, reader, time)
            case Enum(), Enum():
                return self._enum(writer, reader, where)
            case Array(), Array():
                return self._array(writer, reader, where)
            case Map(), Map():
                value = self._plan(writer.values, reader.values, (), where)
                skip = skip_map(value.skip)
                code = self._code(program.map_of(value.code, rewritten=not value.copies))
                return Plan.copy(skip, code) if value.copies else Plan(skip, map_of(value.convert), False, code)
            case ((Primitive() | Fixed()), (Primitive() | Fixed())):
                return self._scalar(writer, reader, time, where)
        raise AssertionError(f"{writer} does not match {reader}")

    def _union(self, writer: Union, reader: Type, time: TimePaths, where: str) -> Plan:
        branches = [self._writer.resolve(branch) for branch in writer.branches]
        if isinstance(reader, Union):
            found = [self._branch(branch, reader, time, where) for branch in branches]
            if all(index == own and plan.copies for own, (index, plan) in enumerate(found)):
                code = self._code(program.union([plan.code for _, plan in found], keeps_index=True))
                return Plan.copy(skip_union([plan.skip for _, plan in found]), code)
            plans = [self._prefixed(index, plan) for index, plan in found]
        else:
            plans = [self._plan(branch, reader, time, where) for branch in branches]
        code = self._code(program.union([plan.code for plan in plans], keeps_index=False))
        return Plan(skip_union([plan.skip for plan in plans]), by_branch([plan.convert for plan in plans]), False, code)

    def _branch(self, writer: Type, reader: Union, time: TimePaths, where: str) -> tuple[int, Plan]:
        """Returns the reader's branch for values of the writer's type, which is not a union, and the plan that converts
        them to this branch; -1 and a plan that rejects them if no branch matches."""
        index = self._names.branch(writer, reader)
        if index is None:
            reason = f"{where}: no branch of the reader's union matches {_kind(writer)}"
            return -1, self._reject(writer, time, reason)
        return index, self._plan(writer, reader.branches[index], time, where)

    def _prefixed(self, index: int, plan: Plan) -> Plan:
        if index < 0:
            return plan
        prefix = encode_long(index)
        code = self._code(program.concatenate(program.emit(prefix), plan.code))
        return Plan(plan.skip, add_prefix(prefix, plan.convert), False, code)

    def _array(self, writer: Array, reader: Array, where: str) -> Plan:
        item = self._plan(writer.items, reader.items, (), where)
        zero_width = self._limits if self._walks.zero_width.has(writer.items) else None
        skip = skip_array(item.skip) if zero_width is None else skip_zero_width_array(self._limits)
        code = self._code(program.array(item.code, zero_width=zero_width is not None, rewritten=not item.copies))
        return Plan.copy(skip, code) if item.copies else Plan(skip, array_of(item.convert, zero_width), False, code)

    def _enum(self, writer: Enum, reader: Enum, where: str) -> Plan:
        skip = self._walks.skip(writer)
        known = {symbol: index for index, symbol in enumerate(reader.symbols)}
        default = None if reader.default is None else known.get(reader.default)
        indexes = [known.get(symbol, default) for symbol in writer.symbols]
        if indexes == list(range(len(writer.symbols))):
            return Plan.copy(skip, self._code(program.enum(len(indexes))))
        rows = [b"" if index is None else encode_long(index) for index in indexes]

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            index, p = read_index(b, p, len(rows))
            if not rows[index]:
                raise UnresolvableValue(
                    f"{where}: the reader's enum {reader.name} has neither the symbol "
                    f"{writer.symbols[index]} nor a default"
                )
            return rows[index], p

        return Plan(skip, convert, False, self._code(program.enum_map(rows)))

    def _scalar(self, writer: Primitive | Fixed, reader: Primitive | Fixed, time: TimePaths, where: str) -> Plan:
        """Returns the plan of a primitive or fixed type, whose types and logical types match."""
        plan = self._copy(writer, time)
        if isinstance(writer, Primitive) and isinstance(reader, Primitive):
            promote = PROMOTIONS.get((writer.type, reader.type))
            if promote is not None:
                code = program.concatenate(_capture(writer, time), program.promote(writer.type, reader.type))
                return Plan(plan.skip, walk_first(plan.skip, promote), False, self._code(code))
        scaled = _scaled(writer, reader, where)
        return plan if scaled is None else Plan(plan.skip, walk_first(plan.skip, scaled), False, None)

    def _record(self, writer: Record, reader: Record, time: TimePaths) -> Plan:
        if time:
            return self._fields(writer, reader, time)
        key = (writer.name, reader.name)
        if key in self._open:
            return Plan(self._walks.skip(Reference(writer.name)), self._recursive(key), False, None)
        if key not in self._records:
            self._open.add(key)
            self._records[key] = self._fields(writer, reader, ())
            self._open.discard(key)
        return self._records[key]

    def _recursive(self, key: tuple[Name, Name]) -> Convert:
        records, limits = self._records, self._limits

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            limits.enter()
            found = records[key].convert(b, p)
            limits.level -= 1
            return found

        return convert

    def _fields(self, writer: Record, reader: Record, time: TimePaths) -> Plan:
        columns = {field.name: index for index, field in enumerate(reader.fields)}
        dropped = len(reader.fields)
        targets = self._names.targets(writer, reader)
        plans: list[tuple[int, Plan]] = []
        for field in writer.fields:
            column = columns.get(targets.get(field.name, ""), dropped)
            inner_time = below(time, field.name)
            if column == dropped:
                plans.append((dropped, self._drop(field, inner_time)))
            else:
                where = f"field {field.name} of {writer.name}"
                plans.append((column, self._plan(field.type, reader.fields[column].type, inner_time, where)))
        skip = skip_record([plan.skip for _, plan in plans])
        if [column for column, _ in plans] == list(range(dropped)) and all(plan.copies for _, plan in plans):
            return Plan.copy(skip, self._code(program.concatenate(*(plan.code for _, plan in plans))))
        read = {column for column, _ in plans}
        constants = [
            b"" if column in read else self._names.default_body(field) for column, field in enumerate(reader.fields)
        ]
        codes = [
            (dropped + 1 + index if column == dropped else column, plan.code)
            for index, (column, plan) in enumerate(plans)
        ]
        code = self._code(program.record(codes, constants))
        return Plan(skip, convert_record([*constants, b""], plans), False, code)

    def _drop(self, field: Field, time: TimePaths) -> Plan:
        plan = self._copy(field.type, time)
        skip = plan.skip

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            return b"", skip(b, p)

        return Plan(skip, convert, False, plan.code)

    def _copy(self, writer: Type, time: TimePaths) -> Plan:
        """Returns the plan that validates a value of the writer's type and does not change its bytes."""
        code = self._walk_code(writer, time) if self._has_code else None
        return Plan.copy(self._skip(writer, time), code)

    def _walk_code(self, node: Type, time: TimePaths) -> Code | None:
        """Returns the operations of the core that validate a value of the writer's type `node`."""
        node = self._writer.resolve(node)
        match node:
            case Primitive(type=kind):
                return program.concatenate(_capture(node, time), program.walk_primitive(kind))
            case Fixed(size=size):
                return program.fixed(size)
            case Enum(symbols=symbols):
                return program.enum(len(symbols))
            case Union(branches=branches):
                return program.union([self._walk_code(branch, time) for branch in branches], keeps_index=True)
            case Array(items=items):
                zero_width = self._walks.zero_width.has(items)
                return program.array(self._walk_code(items, ()), zero_width=zero_width, rewritten=False)
            case Map(values=values):
                return program.map_of(self._walk_code(values, ()), rewritten=False)
            case Record(fields=fields):
                return program.concatenate(*(self._walk_code(field.type, below(time, field.name)) for field in fields))
        raise AssertionError(f"the reference to type {node} was not resolved")

    def _reject(self, writer: Type, time: TimePaths, reason: str) -> Plan:
        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            raise UnresolvableValue(reason)

        return Plan(self._skip(writer, time), convert, False, program.REFUSE)

    def _skip(self, writer: Type, time: TimePaths) -> Skip:
        return skip_capturing(self._walks, writer, time, self._captured_time)

    def _code(self, code: Code | None) -> Code | None:
        """Returns `code`, or None if the core cannot be used. The code of a schema that uses its types many times would
        be very large."""
        return code if self._has_code else None


class _Names:
    """Which types, fields and branches of the two schemas match. In its methods, types are not references."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._writer = writer
        self._reader = reader
        self._aliases = {alias: node.name for node in reader.names.values() for alias in node.aliases}
        self._trials: dict[tuple[Name, Name], bool] = {}

    def problem(self, writer: Type, reader: Type) -> str | None:
        """Returns the reason why no value of the writer's type, which is not a union, can be read as the reader's type;
        None if they match. The types of fields, items and values are not compared."""
        if isinstance(reader, Union):
            if self.branch(writer, reader) is None:
                return f"no branch of the reader's union matches {_kind(writer)}"
            return None
        match writer, reader:
            case Record(), Record():
                return self._missing(writer, reader)
            case Enum(), Enum():
                return self._name_problem(writer, reader)
            case Fixed(), Fixed():
                if writer.size != reader.size:
                    return f"{_kind(writer)} of {writer.size} bytes cannot be read as {reader.size} bytes"
                return self._name_problem(writer, reader) or _logical_problem(writer.logical, reader.logical)
            case (Array(), Array()) | (Map(), Map()):
                return None
            case Primitive(), Primitive() if _is_readable(writer.type, reader.type):
                return _logical_problem(writer.logical, reader.logical)
        return f"{_kind(writer)} cannot be read as {_kind(reader)}"

    def branch(self, writer: Type, reader: Union) -> int | None:
        """Returns the index of the reader's branch for values of the writer's type, which is not a union; None if no
        branch matches."""
        branches = [self._reader.resolve(branch) for branch in reader.branches]
        alike = [index for index, branch in enumerate(branches) if _is_same_kind(writer, branch)]
        if isinstance(writer, NamedType):
            named = {index: branch.name for index in alike if isinstance(branch := branches[index], NamedType)}
            name = self._name(writer)
            exact = [index for index in alike if named[index] == name]
            if exact:
                return exact[0]
            if isinstance(writer, Record):
                alike = [index for index in alike if self._fits(writer, branches[index])]
            else:
                alike = [index for index in alike if named[index].name == name.name]
            short = [index for index in alike if named[index].name == name.name]
            # Avro Java uses the last of several records with the same short name.
            return short[-1] if short else next(iter(alike), None)
        if alike:
            return alike[0]
        promoted = [
            index
            for index, branch in enumerate(branches)
            if isinstance(writer, Primitive)
            and isinstance(branch, Primitive)
            and _is_readable(writer.type, branch.type)
        ]
        return next(iter(promoted), None)

    def targets(self, writer: Record, reader: Record) -> dict[str, str]:
        """Returns for each of the writer's fields the name that it has for the reader: another one if the reader has an
        alias for it. A field is missing if two fields have aliases of the same name."""
        aliases = {alias: field.name for field in reader.fields for alias in field.aliases}
        own = {field.name for field in writer.fields}
        renamed: dict[str, str] = {}
        for name in own:
            target = aliases.get(name, name)
            renamed[name] = name if target in own else target
        return renamed

    def _missing(self, writer: Record, reader: Record) -> str | None:
        counts = Counter(self.targets(writer, reader).values())
        for field in reader.fields:
            count = counts[field.name]
            if count > 1:
                return f"several fields match the aliases of the reader's field {field.name}"
            if count == 0 and not field.has_default:
                return f"it lacks the reader's field {field.name}, which has no default"
            if count == 0 and not self._has_valid_default(field):
                return f"the default of the reader's field {field.name} is invalid"
        return None

    def default_body(self, field: Field) -> bytes:
        """Returns the encoded default of a field of the reader. The default must be valid."""
        return encode_default(self._reader, field.type, field.default)

    def _has_valid_default(self, field: Field) -> bool:
        if default_problem(field.type, field.default, self._reader.resolve) is not None:
            return False
        try:
            body = self.default_body(field)
            limits = Limits()
            walk_body(WalkCompiler(self._reader, limits).skip(field.type), limits, body)
        except (ValueError, BadBody):  # an enum without the symbol, a fixed of another size, text that is not UTF-8
            return False
        return True

    def _fits(self, writer: Record, reader: Type) -> bool:
        """Returns whether the record can be read as the reader's record, looking at the types of its fields, but not
        deeper."""
        assert isinstance(reader, Record)
        key = (writer.name, reader.name)
        if key not in self._trials:
            self._trials[key] = True  # for a recursive record
            self._trials[key] = self._missing(writer, reader) is None and self._fields_fit(writer, reader)
        return self._trials[key]

    def _fields_fit(self, writer: Record, reader: Record) -> bool:
        targets = self.targets(writer, reader)
        types = {field.name: self._reader.resolve(field.type) for field in reader.fields}
        for field in writer.fields:
            node, other = self._writer.resolve(field.type), types.get(targets[field.name])
            if other is not None and not isinstance(node, Union) and self.problem(node, other) is not None:
                return False
        return True

    def _name(self, writer: NamedType) -> Name:
        """Returns the name that a type of the writer has for the reader, another one if the reader has an alias for
        it."""
        found = self._aliases.get(writer.name, writer.name)
        return writer.name if found in self._writer.names else found

    def _name_problem(self, writer: Enum | Fixed, reader: Enum | Fixed) -> str | None:
        if self._name(writer).name == reader.name.name:
            return None
        return f"{_kind(writer)} cannot be read as {_kind(reader)}, which has another name; add an alias"


def _is_readable(writer: PrimitiveType, reader: PrimitiveType) -> bool:
    return writer is reader or (writer, reader) in PROMOTIONS or (writer, reader) in _READABLE


def _is_same_kind(writer: Type, reader: Type) -> bool:
    if isinstance(writer, Primitive):
        return isinstance(reader, Primitive) and writer.type is reader.type
    return type(writer) is type(reader)


def _capture(node: Primitive, time: TimePaths) -> Code | None:
    """Returns the core's operations that capture the time in a value; none if it is no time field. Returns None if the
    core cannot capture it."""
    unit, rank = time_unit(node), next((rank for rank, path in time if not path), None)
    return program.NOTHING if unit is None or rank is None else program.capture_time(rank, unit)


def _logical_problem(writer: LogicalType | None, reader: LogicalType | None) -> str | None:
    """Returns the reason why a number, text or bytes would mean something else with the reader's logical type; None if
    the meaning is the same, can be converted, or is not declared by one of the schemas."""
    if writer is None or reader is None:
        return None
    if writer.name == reader.name:
        if abs(_digits_between(writer, reader)) > SCALE_DIFFERENCE_MAX:
            return f"the scales of the decimals differ by more than {SCALE_DIFFERENCE_MAX} digits"
        return None
    if writer.name in _UNITS and reader.name in _UNITS and _UNITS[writer.name][0] == _UNITS[reader.name][0]:
        return None
    return f"{writer.name} cannot be read as {reader.name}"


def _digits_between(writer: LogicalType, reader: LogicalType) -> int:
    return (reader.scale or 0) - (writer.scale or 0)


def _scaled(writer: Primitive | Fixed, reader: Primitive | Fixed, where: str) -> Convert | None:
    """Returns the conversion of a number to the reader's unit of time or scale; None if the number stays the same.

    Args:
        where: path of the value, for errors.
    """
    before, after = writer.logical, reader.logical
    if before is None or after is None:
        return None
    if before.name == "decimal":
        digits = _digits_between(before, after)
        return _rescaled(digits, writer.size if isinstance(writer, Fixed) else None, where) if digits else None
    return _in_unit(before.name, after.name, where) if before.name in _UNITS else None


def _in_unit(before: str, after: str, where: str) -> Convert | None:
    old, new = _UNITS[before][1], _UNITS[after][1]
    if old == new:
        return None

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        number, p = read_varint(b, p)
        found, rest = divmod(number * new, old)
        if rest or found not in _LONGS:
            raise UnresolvableValue(f"{where}: {before} {number} has no exact {after}; declare {before} in the reader")
        return encode_long(found), p

    return convert


def _rescaled(digits: int, size: int | None, where: str) -> Convert:
    """Returns the conversion of a decimal to a scale with this many more digits. `size` is that of a fixed."""
    factor = 10 ** abs(digits)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        length = size
        if length is None:
            length, p = read_varint(b, p)
        number = int.from_bytes(b[p : p + length], "big", signed=True)
        found, rest = (number * factor, 0) if digits > 0 else divmod(number, factor)
        try:
            body = found.to_bytes(found.bit_length() // 8 + 1 if size is None else size, "big", signed=True)
        except OverflowError:
            rest = 1
        if rest:
            raise UnresolvableValue(f"{where}: the decimal has no exact value with the reader's scale")
        return encode_bytes(body) if size is None else body, p + length

    return convert


def _kind(node: Type) -> str:
    match node:
        case Union():
            return "a union"
        case Record() | Enum() | Fixed():
            return f"the {type(node).__name__.lower()} {node.name}"
        case Primitive(type=kind, logical=logical):
            return kind.value + (f" ({logical.name})" if logical else "")
    return type(node).__name__.lower()
