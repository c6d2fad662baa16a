"""From a message body in its writer's schema to the body of a row in the load schema: the meaning, in Python.

A plan is compiled once per pair of writer and load schema and rewrites bytes to bytes; values are never made, so
that floats, decimals, timestamps, repeated map keys and the branch of a union survive exactly. Where writer and load
schema agree the body is copied after a strict walk (`walk.py`), which is the meaning of "this is a value of that
schema". fastavro and Avro Java, which know nothing of plans, say in the tests whether it is right.

Which column takes which field, and which member which branch, is committed by `loader.load_schema`; here is only how
the bytes get there. A kept route goes along with the nodes it is for; without one (None) the columns are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.avro_codec import program
from headrace.avro_codec.encode import encode_default, encode_long
from headrace.avro_codec.json_text import compile_json_text
from headrace.avro_codec.program import Code, Program
from headrace.avro_codec.readable import UnreadableValue, skip_readable
from headrace.avro_codec.rewrite import (
    PROMOTIONS,
    SAME_BYTES,
    Convert,
    after_walk,
    array_of,
    between,
    by_branch,
    copied_run,
    joined,
    map_of,
    prefixed,
    refusing,
)
from headrace.avro_codec.walk import (
    MALFORMED,
    BadBody,
    Limits,
    Seen,
    Skip,
    WalkCompiler,
    misfit,
    read_index,
    reason,
    skip_array,
    skip_map,
    skip_nothing,
    skip_noting,
    skip_record,
    skip_union,
    skip_zero_width_array,
    walk_whole,
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
    Type,
    Union,
)
from headrace.loader.load_schema import (
    JSON,
    MEMBERS,
    NOTHING_AROUND,
    Around,
    KeptRoute,
    LoadSchemaTooLarge,
    Routed,
    keep,
    kind_of,
    member_of,
    places,
    root_record,
    route_branch,
    route_by_kept,
    route_fields,
    split,
)


class Unconvertible(Exception):
    """A writer schema whose values have no place in the load schema; the message says which part of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one node is converted: `copies` is set when the bytes stay as they are, else `convert` rewrites them.

    `code` says the same for the core; it is None where no program can say it.
    """

    skip: Skip
    convert: Convert
    copies: bool
    code: Code | None

    @classmethod
    def copy(cls, skip: Skip, code: Code | None) -> Plan:
        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            q = skip(b, p)
            return b[p:q], q

        return cls(skip, convert, True, code)


@dataclass(frozen=True, slots=True)
class Projection:
    """From bodies to rows of one pair of schemas.

    `convert` is the meaning. `program` does the same in the core, as far as it accepts a body; None where there is
    none, since the pair needs more than a program can say.
    """

    convert: Callable[[bytes], bytes]
    program: Program | None


def compile_projection(
    writer: Schema, load: Schema, time_path: Sequence[str] | None, seen: Seen, route: KeptRoute | None = None
) -> Projection:
    """Returns the function from bodies to rows, and its program.

    The function raises `BadBody` for a body that is not one value of the writer schema, or whose value the load
    schema cannot hold, and its kind `UnreadableValue` for a body that is, and that queries of the table would fail on.

    Args:
        time_path: fields of nested records to an int or long of the writer, or None.
        seen: where the function leaves the number it met at `time_path`, also when it raises further on; the caller
            empties it before each body.
        route: how the writer schema was folded into the load schema; None for one that was not.

    Raises:
        Unconvertible: no value of the writer schema could be loaded.
    """
    compiler = _Compiler(writer, load, tuple(time_path or ()), seen)
    try:
        plan, whole = compiler.message(route), compiler.whole()
    except RecursionError as error:
        raise Unconvertible("its types hold each other too deep") from error
    except LoadSchemaTooLarge as error:
        raise Unconvertible(f"no load schema could hold it: {error}") from error
    limits, skip, convert = compiler.limits, plan.skip, plan.convert

    def copied(body: bytes) -> bytes:
        try:
            walk_whole(skip, limits, body)
        except UnreadableValue:
            check(body)
            raise
        return body

    def converted(body: bytes) -> bytes:
        limits.begin()
        try:
            row, end = convert(body, 0)
        except UnreadableValue:
            check(body)
            raise
        except MALFORMED as error:
            raise BadBody(reason(error)) from error
        if end != len(body):
            raise BadBody(misfit(end, len(body)))
        return row

    def check(body: bytes) -> None:
        """Walks all of a body that turned out unreadable before its end: it may be malformed too, and has a time."""
        walk_whole(whole, limits, body)

    return Projection(copied if plan.copies else converted, program.assemble(plan.code))


def compile_time_walk(writer: Schema, time_path: Sequence[str], seen: Seen) -> Callable[[bytes], None]:
    """Returns the function that only looks for the time in a body, whatever the load schema has a place for.

    It never raises: of a malformed body it leaves in `seen` what it met before, and of types that hold each other too
    deep nothing.

    Args:
        time_path, seen: as for `compile_projection`.
    """
    limits = Limits()
    try:
        skip = skip_noting(WalkCompiler(writer, limits), writer.root, tuple(time_path), seen)
    except RecursionError:
        return lambda body: None

    def walk(body: bytes) -> None:
        limits.begin()
        with suppress(BadBody, *MALFORMED):
            skip(body, 0)

    return walk


class _Compiler:
    """Compiles the nodes of one pair of schemas. `around` is what a node lies in, `where` its path in the writer."""

    def __init__(self, writer: Schema, load: Schema, time_path: tuple[str, ...], seen: Seen) -> None:
        self.writer = writer
        self.load = load
        self.limits = Limits()
        self.walks = WalkCompiler(writer, self.limits)
        self._time_path = time_path
        self._seen = seen

    def message(self, route: KeptRoute | None) -> Plan:
        """The plan of whole messages; one that is no record is the only field of one, which has the same bytes."""
        assert isinstance(self.load.root, Record)
        return self.record(root_record(self.writer), self.load.root, "", NOTHING_AROUND, route)

    def whole(self) -> Skip:
        """The walk over whole messages that asks only whether they are well-formed, and notes the time."""
        return self._walk(self.writer.resolve(self.writer.root), "")

    def plan(self, writer: Type, load: Type, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        """The plan from one node to a column, an item or a value, any of which may be nullable.

        Raises:
            Unconvertible: the load node can hold no value of the writer node.
        """
        writer = self.writer.resolve(writer)
        inner, is_nullable = split(load)
        if not isinstance(writer, Union):
            if is_nullable and _is_null(writer):
                return self._nullable(Plan.copy(self._walk(writer, where), program.NOTHING), load, is_null=True)
            plan = self.branch(writer, inner, where, around, kept)
            return self._nullable(plan, load) if is_nullable else plan
        branches = [self.writer.resolve(branch) for branch in writer.branches]
        values = [branch for branch in branches if not _is_null(branch)]
        if kind_of(inner) == JSON and len(values) > 1:
            return self._union_text(writer, load, where)
        routes = iter(_of_branches(inner, kept, len(values)))
        plans = [
            self._union_branch(branch, load, where, around, None if _is_null(branch) else next(routes))
            for branch in branches
        ]
        skip = skip_union([plan.skip for plan in plans])
        same = isinstance(load, Union) and all(
            plan.copies and index < len(load.branches) and is_null == _is_null(load.branches[index])
            for index, (plan, is_null) in enumerate(zip(plans, map(_is_null, branches), strict=True))
        )
        if same:
            return Plan.copy(skip, program.union([plan.code for plan in plans], keeps_index=True))
        indexes = [_index(load, is_null=_is_null(branch)) for branch in branches]
        converts = [prefixed(index, plan.convert) for index, plan in zip(indexes, plans, strict=True)]
        codes = [program.joined(program.emit(index), plan.code) for index, plan in zip(indexes, plans, strict=True)]
        return Plan(skip, by_branch(converts), False, program.union(codes, keeps_index=False))

    def branch(self, writer: Type, load: Type, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        """The plan from a type that is no union to one that is none."""
        skip = self._walk(writer, where)
        if _is_null(writer) and _is_null(load):
            return Plan.copy(skip, program.NOTHING)
        if kind_of(load) == JSON:
            # The walk comes first: reading text from bytes that are no value would believe any length.
            return Plan(skip, after_walk(skip, compile_json_text(self.walks, writer)), False, None)
        match writer, load:
            case _, Record() if kind_of(load) == MEMBERS:
                return self._members(writer, load, where, around, kept)
            case Record(), Record():
                return self.record(writer, load, where, around, kept)
            case Primitive(), Primitive():
                return self._primitive(writer, load, skip, where)
            case Fixed(), Fixed() if writer.size == load.size:
                return Plan.copy(skip, program.fixed(writer.size))
            case Enum(), Enum():
                return _enum_plan(writer, load, skip)
            case Array(), Array():
                return self._array(writer, load, where, around, kept)
            case Map(), Map():
                value = self.plan(writer.values, load.values, f"{where}{{}}", around.values(), kept)
                skip = skip_map(value.skip)
                code = program.map_of(value.code, rewritten=not value.copies)
                return Plan.copy(skip, code) if value.copies else Plan(skip, map_of(value.convert), False, code)
        raise Unconvertible(f"{where or 'the message'} is {_kind(writer)}, and its column is {_kind(load)}")

    def _array(self, writer: Array, load: Array, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        item = self.plan(writer.items, load.items, f"{where}[]", around.items(), kept)
        if self.walks.zero_width.has(writer.items):
            skip, zero_width = skip_zero_width_array(self.limits), self.limits
        else:
            skip, zero_width = skip_array(item.skip), None
        code = program.array(item.code, zero_width=zero_width is not None, rewritten=not item.copies)
        return Plan.copy(skip, code) if item.copies else Plan(skip, array_of(item.convert, zero_width), False, code)

    def record(self, writer: Record, load: Record, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        if kept is not None:
            route = route_by_kept(load, writer, kept)
        else:
            route = route_fields(load, self.writer, writer, around)
        if route.unplaced:
            fields = ", ".join(f"{where}.{name}" if where else name for name in route.unplaced)
            raise Unconvertible(f"the load schema has no place for {fields}, or needs it and the writer has none")
        indexes = {field.name: index for index, field in enumerate(writer.fields)}
        taken: dict[int, tuple[int, Plan]] = {}
        for column, routed in enumerate(route.columns):
            if routed.source is not None:
                name = routed.source.name
                path = f"{where}.{name}" if where else name
                inside = around.column(routed.column.name, writer.name)
                plan = self.plan(routed.source.type, routed.column.type, path, inside, routed.inside)
                taken[indexes[name]] = column, plan
        skip = skip_record([taken[index][1].skip for index in range(len(writer.fields))])
        in_order = [taken[index][0] for index in range(len(writer.fields))] == list(range(len(load.fields)))
        if in_order and all(plan.copies for _, plan in taken.values()):
            return Plan.copy(skip, program.joined(*(taken[index][1].code for index in range(len(taken)))))
        template = self._template(route.columns)
        code = program.record([(column, plan.code) for _, (column, plan) in sorted(taken.items())], template)
        return Plan(skip, self._rewrite(template, taken), False, code)

    def _walk(self, writer: Type, where: str) -> Skip:
        """The walk over a writer's node, which notes the time when the time field is the node or inside it."""
        steps = tuple(where.split(".")) if where else ()
        if self._time_path and steps == self._time_path[: len(steps)]:
            return skip_noting(self.walks, writer, self._time_path[len(steps) :], self._seen)
        return self.walks.skip(writer)

    def _nullable(self, plan: Plan, load: Type, *, is_null: bool = False) -> Plan:
        index = _index(load, is_null=is_null)
        return Plan(plan.skip, prefixed(index, plan.convert), False, program.joined(program.emit(index), plan.code))

    def _union_branch(self, branch: Type, load: Type, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        """One branch by itself; one without a place is an error of the messages that carry it, not of all."""
        inner, is_nullable = split(load)
        if _is_null(branch) and is_nullable:
            return Plan.copy(skip_nothing, program.NOTHING)
        try:
            return self.branch(branch, inner, where, around, kept)
        except Unconvertible as error:
            return Plan(self._walk(branch, where), refusing(str(error)), False, program.REFUSE)

    def _union_text(self, writer: Union, load: Type, where: str) -> Plan:
        """Text of a union of several branches, whose JSON names the branch; null stays null where it can."""
        skip = self._walk(writer, where)
        text = after_walk(skip, compile_json_text(self.walks, writer))
        if not isinstance(load, Union):
            return Plan(skip, text, False, None)
        nulls = [_is_null(self.writer.resolve(branch)) for branch in writer.branches]
        null_row, value = _index(load, is_null=True), prefixed(_index(load, is_null=False), text)

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            index, q = read_index(b, p, len(nulls))
            return (null_row, q) if nulls[index] else value(b, p)

        return Plan(skip, convert, False, None)

    def _members(self, writer: Type, load: Record, where: str, around: Around, kept: KeptRoute | None) -> Plan:
        """A value that is one branch of the union that a record of nullable members stands for."""
        inside: KeptRoute | None = None
        if kept is not None:
            member, inside = member_of(load, kept)
        else:
            found = route_branch(load, self.writer, writer, around)
            if found is None:
                raise Unconvertible(f"{where} is {_kind(writer)}, which no member of its column holds")
            member = found
        plan = self.plan(writer, member.type, where, around.column(member.name), inside)
        at = load.fields.index(member)
        before, after = (
            b"".join(encode_default(self.load, field.type, None) for field in fields)
            for fields in (load.fields[:at], load.fields[at + 1 :])
        )
        code = program.joined(program.emit(before), plan.code, program.emit(after))
        return Plan(plan.skip, between(before, plan.convert, after), False, code)

    def _primitive(self, writer: Primitive, load: Primitive, skip: Skip, where: str) -> Plan:
        skip = skip_readable(load, skip, where or "the message")
        note = program.NOTE if self._is_time(writer, where) else program.NOTHING
        if writer.type is load.type or (writer.type, load.type) in SAME_BYTES:
            return Plan.copy(skip, note + program.walked(writer, load))
        promote = PROMOTIONS.get((writer.type, load.type))
        if promote is None:
            raise Unconvertible(f"{where} is {_kind(writer)}, and its column is {_kind(load)}")
        return Plan(skip, after_walk(skip, promote), False, note + program.promoted(writer.type, load.type))

    def _is_time(self, writer: Primitive, where: str) -> bool:
        """Whether `_walk` notes this very node."""
        is_number = writer.type in (PrimitiveType.INT, PrimitiveType.LONG)
        return is_number and bool(where) and tuple(where.split(".")) == self._time_path

    def _template(self, columns: Sequence[Routed]) -> list[bytes]:
        """What stands in the columns that nothing feeds."""
        return [
            encode_default(self.load, routed.column.type, routed.absent) if routed.source is None else b""
            for routed in columns
        ]

    def _rewrite(self, template: list[bytes], taken: dict[int, tuple[int, Plan]]) -> Convert:
        """Reads the writer's fields in their order and joins the columns in theirs.

        Neighbours that are copied to neighbouring columns are taken as one slice.
        """
        steps: list[tuple[int, Convert]] = []
        run: list[Skip] = []
        run_start = -1
        for index in range(len(taken)):
            column, plan = taken[index]
            if run and not (plan.copies and column == run_start + len(run)):
                steps.append((run_start, copied_run(run)))
                run = []
            if plan.copies:
                run_start = run_start if run else column
                run.append(plan.skip)
            else:
                steps.append((column, plan.convert))
        if run:
            steps.append((run_start, copied_run(run)))
        return joined(template, steps)


def _of_branches(load: Type, kept: KeptRoute | None, count: int) -> list[KeptRoute | None]:
    """The route of each branch that is not null, as of a type that is no union, from that of their union."""
    if kept is None or kind_of(load) != MEMBERS:
        return [kept] * count
    return [keep([place]) for place in places(kept, count)]


def _enum_plan(writer: Enum, load: Enum, skip: Skip) -> Plan:
    known = {symbol: index for index, symbol in enumerate(load.symbols)}
    indexes = [known.get(symbol, -1) for symbol in writer.symbols]
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
    """The index of a nullable type's null or value, or nothing for a type that is not nullable."""
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
