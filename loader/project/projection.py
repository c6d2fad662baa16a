"""Converts a body in its writer's schema to the body of a row in the load schema. This is the specification, in Python.

A conversion is compiled once per writer and load schema and rewrites bytes to bytes. No values are built, except for
columns of JSON text, so floats, decimals, timestamps, repeated map keys and union branches survive exactly. If both
schemas agree, the body is only validated by `avro_codec.walk`, which defines whether bytes are a value of a schema, and
copied. The tests compare the result with fastavro and Avro Java.

`loader.load_schema` decides which field goes into which column. A union with several types has a column that is a
record with one field per type, called members; `loader.load_schema` also decides which branch goes into which member. A
writer schema without a stored route is routed by the present names and types of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.avro_codec import program
from headrace.avro_codec.encode import encode_default, encode_long
from headrace.avro_codec.program import Code, Program
from headrace.avro_codec.readable import OldDay, UnreadableValue, skip_readable
from headrace.avro_codec.rewrite import (
    PROMOTIONS,
    SAME_BYTES,
    Plan,
    add_prefix,
    array_of,
    by_branch,
    convert_record,
    map_of,
    reject,
    surround,
    walk_first,
)
from headrace.avro_codec.to_json import compile_json_text
from headrace.avro_codec.walk import (
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
    skip_array,
    skip_capturing,
    skip_map,
    skip_nothing,
    skip_record,
    skip_union,
    skip_zero_width_array,
    walk_body,
)
from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    TimeField,
    Type,
    Union,
)
from headrace.avro_schema.message_time import time_unit
from headrace.loader.load_schema import (
    IDENTITY_ROUTE,
    JSON,
    MEMBERS,
    LoadSchemaTooLarge,
    Route,
    RoutedColumn,
    StoredRoute,
    kind_of,
    member_of,
    root_record,
    route_by_stored,
    route_entries,
    route_fields,
    split,
    stored_route,
)


class Unconvertible(Exception):
    """Raised if no value of the writer schema can be loaded: the load schema has no column for a part of it or requires
    a column that it lacks, or its types nest too deep or need too many columns. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Converts bodies of one writer schema to rows.

    `convert` is the specification. `program` does the same in the core, for the bodies that it accepts; None if a
    program cannot express the conversion. `convert` sets `old_day`; the caller clears it.
    """

    convert: Callable[[bytes], bytes]
    program: Program | None
    old_day: OldDay


def compile_projection(
    writer: Schema,
    load: Schema,
    time_fields: Sequence[TimeField],
    captured_time: CapturedTime,
    route: StoredRoute | None = None,
) -> Projection:
    """Compiles the conversion of one writer schema.

    The conversion raises `BadBody` for a body that is not exactly one value of the writer schema, or whose value the
    load schema cannot hold, and its subclass `UnreadableValue` for a value that queries of the table cannot show.

    Args:
        time_fields: the time fields of the writer, the preferred one first.
        captured_time: receives the time in them, even if the conversion raises later; the caller clears it before each
            body.
        route: the route of the writer schema; None for one that is not a version of the subject.

    Raises:
        Unconvertible: no value of the writer schema could be loaded.
    """
    compiler = _Compiler(writer, load, _ranked(time_fields), captured_time)
    try:
        plan, validate = compiler.message(route), compiler.validator()
    except RecursionError as error:
        raise Unconvertible("the types of the writer schema nest too deep") from error
    except LoadSchemaTooLarge as error:
        raise Unconvertible(f"no columns can be derived from the writer schema: {error}") from error
    limits, skip, convert = compiler.limits, plan.skip, plan.convert

    def copied(body: bytes) -> bytes:
        try:
            walk_body(skip, limits, body)
        except UnreadableValue:
            check(body)
            raise
        return body

    def converted(body: bytes) -> bytes:
        limits.reset()
        try:
            row, end = convert(body, 0)
        except UnreadableValue:
            check(body)
            raise
        except MALFORMED as error:
            raise BadBody(malformed_reason(error)) from error
        if end != len(body):
            raise BadBody(length_problem(end, len(body)))
        return row

    def check(body: bytes) -> None:
        """Walks the whole body after an unreadable value, to find out whether it is malformed too, and to find its
        time."""
        walk_body(validate, limits, body)

    return Projection(copied if plan.copies else converted, program.assemble(plan.code), compiler.old_day)


def compile_time_capture(
    writer: Schema, time_fields: Sequence[TimeField], captured_time: CapturedTime
) -> Callable[[bytes], None]:
    """Returns a function that finds the message time in a body and nothing else, without a load schema.

    The function never raises. In a malformed body it finds the time if that precedes the error; in types that nest too
    deep it finds none.

    Args:
        time_fields: the time fields of the writer, the preferred one first.
        captured_time: receives the time in them; the caller clears it before each body.
    """
    limits = Limits()
    try:
        skip = skip_capturing(WalkCompiler(writer, limits), writer.root, _ranked(time_fields), captured_time)
    except RecursionError:
        return lambda body: None

    def walk(body: bytes) -> None:
        limits.reset()
        with suppress(BadBody, *MALFORMED):
            skip(body, 0)

    return walk


def _ranked(time_fields: Sequence[TimeField]) -> tuple[RankedPath, ...]:
    return tuple((rank, field.path) for rank, field in enumerate(time_fields))


class _Compiler:
    """Compiles the nodes (types) of one writer schema and one load schema. In its methods, `where` is the path of the
    node in the writer schema, and `stored` is the stored route of the node."""

    def __init__(
        self, writer: Schema, load: Schema, time_paths: tuple[RankedPath, ...], captured_time: CapturedTime
    ) -> None:
        self.writer = writer
        self.load = load
        self.limits = Limits()
        self.walks = WalkCompiler(writer, self.limits)
        self._time_paths = time_paths
        self._captured_time = captured_time
        self.old_day = OldDay()

    def message(self, route: StoredRoute | None) -> Plan:
        """Returns the plan that converts whole messages to rows. A message that is no record is treated as a record
        with one field, which has the same bytes.

        Args:
            route: the route of the writer schema, None without one.
        """
        writer, load = root_record(self.writer), self.load.root
        assert isinstance(load, Record)
        if route is not None:
            return self.record(writer, load, "", route)
        return self.routed_record(writer, load, "", route_fields(load, self.writer, writer))

    def validator(self) -> Skip:
        """Returns the function that validates a whole message and records the number in its time field."""
        return self._walk(self.writer.resolve(self.writer.root), "")

    def plan(self, writer: Type, load: Type, where: str, stored: StoredRoute) -> Plan:
        """Returns the plan that converts a writer's node (a type in its schema) to a column, list item or map value,
        each possibly nullable.

        `where` is the node's path in the writer schema, and `stored` its stored route.

        Raises:
            Unconvertible: the load node can hold no value of the writer node.
        """
        writer = self.writer.resolve(writer)
        inner, is_nullable = split(load)
        if not isinstance(writer, Union):
            if is_nullable and _is_null(writer):
                return self._nullable(Plan.copy(self._walk(writer, where), program.NOTHING), load, is_null=True)
            plan = self.branch(writer, inner, where, stored)
            return self._nullable(plan, load) if is_nullable else plan
        branches = [self.writer.resolve(branch) for branch in writer.branches]
        values = [branch for branch in branches if not _is_null(branch)]
        if kind_of(inner) == JSON and len(values) > 1:
            return self._union_text(writer, load, where)
        routes = iter(_branch_routes(inner, stored, len(values)))
        plans = [
            self._union_branch(branch, load, where, IDENTITY_ROUTE if _is_null(branch) else next(routes))
            for branch in branches
        ]
        skip = skip_union([plan.skip for plan in plans])
        is_unchanged = isinstance(load, Union) and all(
            plan.copies and index < len(load.branches) and is_null == _is_null(load.branches[index])
            for index, (plan, is_null) in enumerate(zip(plans, map(_is_null, branches), strict=True))
        )
        if is_unchanged:
            return Plan.copy(skip, program.union([plan.code for plan in plans], keeps_index=True))
        indexes = [_index(load, is_null=_is_null(branch)) for branch in branches]
        converts = [add_prefix(index, plan.convert) for index, plan in zip(indexes, plans, strict=True)]
        codes = [
            program.concatenate(program.emit(index), plan.code) for index, plan in zip(indexes, plans, strict=True)
        ]
        return Plan(skip, by_branch(converts), False, program.union(codes, keeps_index=False))

    def branch(self, writer: Type, load: Type, where: str, stored: StoredRoute) -> Plan:
        """Returns the plan that converts a writer's type to a load type. Neither type is a union.

        `where` is the type's path in the writer schema, and `stored` its stored route.
        """
        skip = self._walk(writer, where)
        if _is_null(writer) and _is_null(load):
            return Plan.copy(skip, program.NOTHING)
        if kind_of(load) == JSON:
            # The bytes are validated first, because the text conversion would trust any length in invalid bytes.
            return Plan(skip, walk_first(skip, compile_json_text(self.walks, writer)), False, None)
        match writer, load:
            case _, Record() if kind_of(load) == MEMBERS:
                return self._members(writer, load, where, stored)
            case Record(), Record():
                return self.record(writer, load, where, stored)
            case Primitive(), Primitive():
                return self._primitive(writer, load, skip, where)
            case Fixed(), Fixed() if writer.size == load.size:
                return Plan.copy(skip, program.fixed(writer.size))
            case Enum(), Enum():
                return _enum_plan(writer, load, skip)
            case Array(), Array():
                return self._array(writer, load, where, stored)
            case Map(), Map():
                value = self.plan(writer.values, load.values, f"{where}{{}}", stored)
                skip = skip_map(value.skip)
                code = program.map_of(value.code, rewritten=not value.copies)
                return Plan.copy(skip, code) if value.copies else Plan(skip, map_of(value.convert), False, code)
        raise Unconvertible(
            f"{where or 'the message'} is {_kind(writer)} and does not fit its column, which is {_kind(load)}"
        )

    def _array(self, writer: Array, load: Array, where: str, stored: StoredRoute) -> Plan:
        item = self.plan(writer.items, load.items, f"{where}[]", stored)
        if self.walks.zero_width.has(writer.items):
            skip, zero_width = skip_zero_width_array(self.limits), self.limits
        else:
            skip, zero_width = skip_array(item.skip), None
        code = program.array(item.code, zero_width=zero_width is not None, rewritten=not item.copies)
        return Plan.copy(skip, code) if item.copies else Plan(skip, array_of(item.convert, zero_width), False, code)

    def record(self, writer: Record, load: Record, where: str, stored: StoredRoute) -> Plan:
        return self.routed_record(writer, load, where, route_by_stored(load, writer, stored))

    def routed_record(self, writer: Record, load: Record, where: str, route: Route) -> Plan:
        """Returns the plan that converts a writer's record to a load record, field by field.

        `where` is the record's path in the writer schema, and `route` has the column of each field.

        Raises:
            Unconvertible: a field has no column, or a column that requires a value has no field.
        """
        if route.unmatched:
            fields = ", ".join(f"{where}.{name}" if where else name for name in route.unmatched)
            raise Unconvertible(
                f"the writer schema and the load schema differ in {fields}: a field has no column, or a column "
                "without a default has no field"
            )
        indexes = {field.name: index for index, field in enumerate(writer.fields)}
        field_plans: dict[int, tuple[int, Plan]] = {}
        for column, routed in enumerate(route.columns):
            if routed.source is not None:
                name = routed.source.name
                path = f"{where}.{name}" if where else name
                plan = self.plan(routed.source.type, routed.column.type, path, routed.nested)
                field_plans[indexes[name]] = column, plan
        skip = skip_record([field_plans[index][1].skip for index in range(len(writer.fields))])
        in_order = [field_plans[index][0] for index in range(len(writer.fields))] == list(range(len(load.fields)))
        if in_order and all(plan.copies for _, plan in field_plans.values()):
            return Plan.copy(
                skip, program.concatenate(*(field_plans[index][1].code for index in range(len(field_plans))))
            )
        template = self._template(route.columns)
        code = program.record([(column, plan.code) for _, (column, plan) in sorted(field_plans.items())], template)
        plans = [field_plans[index] for index in range(len(field_plans))]
        return Plan(skip, convert_record(template, plans), False, code)

    def _walk(self, writer: Type, where: str) -> Skip:
        """Returns the function that validates a value of the node at the path `where` of the writer schema (a node is a
        type in the schema). The function records the message time if the node is or contains the time field."""
        return skip_capturing(self.walks, writer, self._paths_below(where), self._captured_time)

    def _paths_below(self, where: str) -> tuple[RankedPath, ...]:
        """Returns the paths to time fields that lead through the node at the path `where`, from that node on."""
        paths = self._time_paths
        for name in where.split(".") if where and paths else ():
            paths = below(paths, name)
        return paths

    def _nullable(self, plan: Plan, load: Type, *, is_null: bool = False) -> Plan:
        index = _index(load, is_null=is_null)
        return Plan(
            plan.skip, add_prefix(index, plan.convert), False, program.concatenate(program.emit(index), plan.code)
        )

    def _union_branch(self, branch: Type, load: Type, where: str, stored: StoredRoute) -> Plan:
        """Returns the plan that converts one branch of a writer's union to a column. If the column cannot hold the
        branch, the plan rejects each value with this branch; other branches are not affected.

        `load` is the column's type, `where` the union's path in the writer schema, and `stored` the stored route of the
        branch.
        """
        inner, is_nullable = split(load)
        if _is_null(branch) and is_nullable:
            return Plan.copy(skip_nothing, program.NOTHING)
        try:
            return self.branch(branch, inner, where, stored)
        except Unconvertible as error:
            return Plan(self._walk(branch, where), reject(str(error)), False, program.REFUSE)

    def _union_text(self, writer: Union, load: Type, where: str) -> Plan:
        """Returns the plan that converts a union of several branches to JSON text, which names the branch. Null stays
        null if the column is nullable.

        Args:
            writer: the union in the writer schema.
            load: the column's type in the load schema: text that holds JSON, possibly nullable.
            where: the union's path in the writer schema.
        """
        skip = self._walk(writer, where)
        text = walk_first(skip, compile_json_text(self.walks, writer))
        if not isinstance(load, Union):
            return Plan(skip, text, False, None)
        nulls = [_is_null(self.writer.resolve(branch)) for branch in writer.branches]
        null_row, value = _index(load, is_null=True), add_prefix(_index(load, is_null=False), text)

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            index, q = read_index(b, p, len(nulls))
            return (null_row, q) if nulls[index] else value(b, p)

        return Plan(skip, convert, False, None)

    def _members(self, writer: Type, load: Record, where: str, stored: StoredRoute) -> Plan:
        """Returns the plan that converts a writer's type to a column that is a record of members (one nullable field
        per type). The member for this type gets the value, the other members are null.

        `load` is the column's type, `where` the path of the writer's type in its schema, and `stored` its stored route.
        """
        member, member_route = member_of(load, stored)
        plan = self.plan(writer, member.type, where, member_route)
        at = load.fields.index(member)
        before, after = (
            b"".join(encode_default(self.load, field.type, None) for field in fields)
            for fields in (load.fields[:at], load.fields[at + 1 :])
        )
        code = program.concatenate(program.emit(before), plan.code, program.emit(after))
        return Plan(plan.skip, surround(before, plan.convert, after), False, code)

    def _primitive(self, writer: Primitive, load: Primitive, skip: Skip, where: str) -> Plan:
        skip = skip_readable(load, skip, where or "the message", self.old_day)
        note = self._capture(writer, where)
        if writer.type is load.type or (writer.type, load.type) in SAME_BYTES:
            return Plan.copy(skip, program.concatenate(note, program.walk_readable(writer, load)))
        promote = PROMOTIONS.get((writer.type, load.type))
        if promote is None:
            raise Unconvertible(f"{where} is {_kind(writer)} and does not fit its column, which is {_kind(load)}")
        return Plan(
            skip, walk_first(skip, promote), False, program.concatenate(note, program.promote(writer.type, load.type))
        )

    def _capture(self, writer: Primitive, where: str) -> Code | None:
        """Returns the core's operations that capture the time in a value at the path `where` of the writer schema; none
        if it is no time field. Returns None if the core cannot capture it."""
        unit = time_unit(writer)
        rank = next((rank for rank, path in self._paths_below(where) if not path), None)
        return program.NOTHING if unit is None or rank is None else program.capture_time(rank, unit)

    def _template(self, columns: Sequence[RoutedColumn]) -> list[bytes]:
        """Returns the parts that all rows have in common: one item per column, in the order of the columns. If no
        writer field is converted to the column, the item is the encoded null or default that every row gets, otherwise
        it is empty."""
        return [
            encode_default(self.load, routed.column.type, routed.absent_value) if routed.source is None else b""
            for routed in columns
        ]


def _branch_routes(load: Type, stored: StoredRoute, count: int) -> list[StoredRoute]:
    """Returns a route for each non-null branch of a writer's union. Each is the route that the branch would have if it
    were the writer's whole type and not a branch (`loader.load_schema.stored_route`).

    Args:
        load: the load type for the union.
        stored: the stored route of the union.
        count: number of the branches.
    """
    if kind_of(load) != MEMBERS:
        return [stored] * count
    return [stored_route([entry]) for entry in route_entries(stored, count)]


def _enum_plan(writer: Enum, load: Enum, skip: Skip) -> Plan:
    index_by_symbol = {symbol: index for index, symbol in enumerate(load.symbols)}
    indexes = [index_by_symbol.get(symbol, -1) for symbol in writer.symbols]
    if indexes == list(range(len(writer.symbols))):
        return Plan.copy(skip, program.enum(len(indexes)))
    rows = [encode_long(index) for index in indexes]

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        index, p = read_index(b, p, len(rows))
        if indexes[index] < 0:
            raise BadBody(f"the column's enum {load.name} has no symbol {writer.symbols[index]}")
        return rows[index], p

    code = program.enum_map([row if index >= 0 else b"" for row, index in zip(rows, indexes, strict=True)])
    return Plan(skip, convert, False, code)


def _is_null(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type is PrimitiveType.NULL


def _index(load: Type, *, is_null: bool) -> bytes:
    """Returns the encoded branch index of null, or of the value, in the nullable type `load`; b"" if `load` is not
    nullable."""
    if not isinstance(load, Union):
        return b""
    return encode_long(next(i for i, branch in enumerate(load.branches) if _is_null(branch) is is_null))


def _kind(node: Type) -> str:
    logical = getattr(node, "logical", None)
    match node:
        case Union(branches=branches):
            return f"a union of {len(branches)}"
        case Record() | Enum() | Fixed():
            return f"the {type(node).__name__.lower()} {node.name}"
        case Primitive(type=kind):
            return kind.value + (f" ({logical.name})" if logical else "")
    return type(node).__name__.lower()
