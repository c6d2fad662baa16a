"""From a message body in its writer's schema to the body of a row in the load schema: the meaning, in Python.

A plan is compiled once per pair of writer and load schema and rewrites bytes to bytes; values are never made, so
that floats, decimals, timestamps, repeated map keys and the branch of a union survive exactly. Where writer and load
schema agree the body is copied after a strict walk (`walk.py`), which is the meaning of "this is a value of that
schema". fastavro and Avro Java, which know nothing of plans, say in the tests whether it is right.

How a load schema names its sources is stated in `loader/load_schema.py`; in short:

- a column takes the writer's field that its property `headrace.source` names, else its own name, else an alias;
- of several columns with one source the first whose type can hold the writer's type gets the value, the others
  their default;
- a record with `headrace.kind` = `union` holds the branches of a union as nullable members;
- a string with `headrace.kind` = `json` holds a value as Avro-JSON text.

Bytes to bytes: what may stand for what is Avro 1.12, Schema Resolution, with one rule more: a logical type is part of
a column's meaning, so a decimal is not put into plain bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
)
from loader.native.encode import encode_default, encode_long
from loader.native.json_text import compile_json_text
from loader.native.walk import (
    BadBody,
    Depth,
    Skip,
    WalkCompiler,
    check_block,
    check_count,
    is_zero_width,
    read_block,
    read_index,
    read_varint,
    skip_string,
)

BUILD = "python"

SOURCE = "headrace.source"
KIND = "headrace.kind"
KIND_UNION = "union"
KIND_JSON = "json"

Convert = Callable[[bytes, int], tuple[bytes, int]]
"""The load schema's binary of the value at a position, and the position after the value."""


class Unconvertible(Exception):
    """A writer schema whose values have no place in the load schema; the message says which part of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one node is converted: `copy` is set when the bytes stay as they are, else `convert` rewrites them."""

    skip: Skip
    convert: Convert
    copies: bool

    @classmethod
    def copy(cls, skip: Skip) -> Plan:
        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            q = skip(b, p)
            return b[p:q], q

        return cls(skip, convert, True)


def compile_projection(writer: Schema, load: Schema) -> Callable[[bytes], bytes]:
    """Returns the function from bodies to rows.

    The function raises `BadBody` for a body that is not one value of the writer schema, or whose value the load
    schema cannot hold.

    Raises:
        Unconvertible: no value of the writer schema could be loaded.
    """
    compiler = _Compiler(writer, load)
    plan = compiler.plan(writer.root, load.root, "")
    depth, skip, convert = compiler.depth, plan.skip, plan.convert

    def copied(body: bytes) -> bytes:
        depth.level = 0
        end = _checked(skip, body)
        if end != len(body):
            raise BadBody(_misfit(end, len(body)))
        return body

    def converted(body: bytes) -> bytes:
        depth.level = 0
        try:
            row, end = convert(body, 0)
        except _MALFORMED as error:
            raise BadBody(_reason(error)) from error
        if end != len(body):
            raise BadBody(_misfit(end, len(body)))
        return row

    return copied if plan.copies else converted


_MALFORMED = (IndexError, UnicodeDecodeError, RecursionError, struct.error)


def _checked(skip: Skip, body: bytes) -> int:
    try:
        return skip(body, 0)
    except _MALFORMED as error:
        raise BadBody(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    if isinstance(error, RecursionError):
        return "values are nested too deep"
    return "the body ends inside a value"


def _misfit(end: int, length: int) -> str:
    return f"{length - end} bytes follow the value" if end < length else "the body ends inside a value"


class _Compiler:
    def __init__(self, writer: Schema, load: Schema) -> None:
        self.writer = writer
        self.load = load
        self.depth = Depth()
        self.walks = WalkCompiler(writer, self.depth)
        self._open: set[tuple[Name, Name]] = set()

    def plan(self, writer: Type, load: Type, where: str) -> Plan:
        """The plan from one node to another.

        Raises:
            Unconvertible: the load node can hold no value of the writer node.
        """
        writer, load = self.writer.resolve(writer), self.load.resolve(load)
        if _prop(load, KIND) == KIND_JSON:
            # The walk comes first: reading text from bytes that are no value would believe any length.
            skip, text = self.walks.skip(writer), compile_json_text(self.writer, writer, self.depth)
            return Plan(skip, _after_walk(skip, text), False)
        if isinstance(writer, Union):
            return self._from_union(writer, load, where)
        if isinstance(load, Union):
            return self._into_union(writer, load, where)
        if _prop(load, KIND) == KIND_UNION:
            return self._into_members(writer, load, where)
        match writer, load:
            case Record(), Record():
                return self._record(writer, load, where)
            case Primitive() | Fixed(), Primitive() | Fixed():
                return self._simple(writer, load, where)
            case Enum(), Enum():
                return self._enum(writer, load)
            case Array(), Array():
                item = self.plan(writer.items, load.items, f"{where}[]")
                zero_width = is_zero_width(self.writer, writer.items)
                return self._keeping(item, writer, _convert_array(item.convert, zero_width=zero_width))
            case Map(), Map():
                value = self.plan(writer.values, load.values, f"{where}{{}}")
                return self._keeping(value, writer, _convert_map(value.convert))
        raise Unconvertible(f"{where or 'the value'} is {_kind(writer)} and the column is {_kind(load)}")

    def _keeping(self, inner: Plan, writer: Type, convert: Convert) -> Plan:
        """A container copies when what is inside copies."""
        skip = self.walks.skip(writer)
        return Plan.copy(skip) if inner.copies else Plan(skip, convert, False)

    def _simple(self, writer: Primitive | Fixed, load: Primitive | Fixed, where: str) -> Plan:
        skip = self.walks.skip(writer)
        if isinstance(writer, Fixed) or isinstance(load, Fixed):
            if isinstance(writer, Fixed) and isinstance(load, Fixed) and writer.size == load.size:
                return Plan.copy(skip)
            raise Unconvertible(f"{where} is {_kind(writer)} and the column is {_kind(load)}")
        if not _same_meaning(writer, load):
            raise Unconvertible(f"{where} is {_kind(writer)} and the column is {_kind(load)}")
        if writer.type is load.type or (writer.type, load.type) in _SAME_BYTES:
            return Plan.copy(skip)
        if (writer.type, load.type) == (PrimitiveType.BYTES, PrimitiveType.STRING):
            return Plan.copy(skip_string)
        promote = _PROMOTIONS.get((writer.type, load.type))
        if promote is None:
            raise Unconvertible(f"{where} is {_kind(writer)} and the column is {_kind(load)}")
        return Plan(skip, promote, False)

    def _enum(self, writer: Enum, load: Enum) -> Plan:
        skip = self.walks.skip(writer)
        default = load.symbols.index(load.default) if load.default is not None else None
        indexes = [load.symbols.index(symbol) if symbol in load.symbols else default for symbol in writer.symbols]
        if indexes == list(range(len(writer.symbols))):
            return Plan.copy(skip)
        encoded = [None if index is None else encode_long(index) for index in indexes]

        def convert(b: bytes, p: int) -> tuple[bytes, int]:
            index, p = read_index(b, p, len(encoded))
            row = encoded[index]
            if row is None:
                raise BadBody(f"the enum {load.name} has no symbol {writer.symbols[index]}")
            return row, p

        return Plan(skip, convert, False)

    def _into_union(self, writer: Type, load: Union, where: str) -> Plan:
        index, plan = self._branch(writer, load, where)
        return Plan(plan.skip, _prefixed(encode_long(index), plan.convert), False)

    def _branch(self, writer: Type, load: Union, where: str) -> tuple[int, Plan]:
        """The branch of a load union that takes a writer's type: one that copies, else the first that can hold it."""
        found: list[tuple[int, Plan]] = []
        reasons: list[str] = []
        for index, branch in enumerate(load.branches):
            try:
                found.append((index, self.plan(writer, branch, where)))
            except Unconvertible as error:
                reasons.append(str(error))
        if not found:
            raise Unconvertible(reasons[-1] if reasons else f"{where}: the column's union is empty")
        return next(((index, plan) for index, plan in found if plan.copies), found[0])

    def _from_union(self, writer: Union, load: Type, where: str) -> Plan:
        """Each branch by itself; a branch without a place is an error of the messages that carry it, not of all."""
        converts: list[Convert] = []
        reasons: list[str] = []
        same = isinstance(load, Union)
        for index, branch in enumerate(writer.branches):
            try:
                if isinstance(load, Union):
                    chosen, plan = self._branch(branch, load, where)
                    same = same and chosen == index and plan.copies
                    converts.append(_prefixed(encode_long(chosen), plan.convert))
                else:
                    converts.append(self.plan(branch, load, where).convert)
            except Unconvertible as error:
                same = False
                reasons.append(str(error))
                converts.append(_refusing(str(error)))
        if len(reasons) == len(writer.branches):
            raise Unconvertible(reasons[-1] if reasons else f"{where}: the writer's union is empty")
        skip = self.walks.skip(writer)
        return Plan.copy(skip) if same else Plan(skip, _by_branch(converts), False)

    def _into_members(self, writer: Type, load: Type, where: str) -> Plan:
        """A value that is one branch of the union that a record of nullable members stands for."""
        assert isinstance(load, Record)
        name = _branch_name(writer)
        exact = [field for field in load.fields if _source(field) == name]
        for field in (*exact, *(field for field in load.fields if field not in exact)):
            try:
                plan = self.plan(writer, field.type, where)
            except Unconvertible:
                continue
            return Plan(plan.skip, self._member(load, field, plan.convert), False)
        if name == PrimitiveType.NULL:
            return Plan(self.walks.skip(writer), _constant(self._defaults(load, load.fields)), False)
        raise Unconvertible(f"{where} is {_kind(writer)}, which no member of the column's record holds")

    def _member(self, load: Record, chosen: Field, convert: Convert) -> Convert:
        at = load.fields.index(chosen)
        before, after = self._defaults(load, load.fields[:at]), self._defaults(load, load.fields[at + 1 :])

        def converted(b: bytes, p: int) -> tuple[bytes, int]:
            row, p = convert(b, p)
            return before + row + after, p

        return converted

    def _defaults(self, load: Record, fields: Sequence[Field]) -> bytes:
        for field in fields:
            if not field.has_default:
                raise Unconvertible(f"the column {load.name}.{field.name} has neither a source nor a default")
        return b"".join(encode_default(self.load, field.type, field.default) for field in fields)

    def _record(self, writer: Record, load: Record, where: str) -> Plan:
        pair = (writer.name, load.name)
        if pair in self._open:
            raise Unconvertible(f"{where} is the recursive record {writer.name}")
        self._open.add(pair)
        try:
            taken = self._match_fields(writer, load, where)
        finally:
            self._open.discard(pair)
        skip = self.walks.skip(writer)
        by_column = {column: (index, plan) for index, (column, plan) in taken.items()}
        in_order = [by_column[column][0] if column in by_column else None for column in range(len(load.fields))]
        if in_order == list(range(len(writer.fields))) and all(plan.copies for _, plan in taken.values()):
            return Plan.copy(skip)
        return Plan(skip, self._rewrite(writer, load, taken), False)

    def _match_fields(self, writer: Record, load: Record, where: str) -> dict[int, tuple[int, Plan]]:
        """Index of each writer field that is loaded, to its column's index and plan."""
        taken: dict[int, tuple[int, Plan]] = {}
        columns_of: dict[int, list[int]] = {}
        names = {field.name: index for index, field in enumerate(writer.fields)}
        for column, field in enumerate(load.fields):
            source = next((name for name in (_source(field), *field.aliases) if name in names), None)
            if source is not None:
                columns_of.setdefault(names[source], []).append(column)
        for index, columns in columns_of.items():
            reason = None
            for column in columns:
                path = f"{where}.{writer.fields[index].name}" if where else writer.fields[index].name
                try:
                    taken[index] = column, self.plan(writer.fields[index].type, load.fields[column].type, path)
                    break
                except Unconvertible as error:
                    reason = reason or error
            else:
                assert reason is not None
                raise reason
        return taken

    def _rewrite(self, writer: Record, load: Record, taken: dict[int, tuple[int, Plan]]) -> Convert:
        """Reads the writer's fields in their order and joins the columns in theirs.

        `template` holds a column's default, or its encoded value once the field has been read. Neighbours that are
        copied to neighbouring columns are taken as one slice, and fields that are not loaded are walked over.
        """
        filled = {column for column, _ in taken.values()}
        template = [
            b"" if column in filled else self._defaults(load, [field]) for column, field in enumerate(load.fields)
        ]
        steps: list[tuple[int, Convert]] = []
        run: list[Skip] = []
        run_start = -1  # the column of the run's first field, -2 for fields that are not loaded

        def close_run() -> None:
            nonlocal run
            if run:
                steps.append((run_start, _slice(run, keep=run_start >= 0)))
                run = []

        for index, field in enumerate(writer.fields):
            column, plan = taken.get(index, (-2, None))
            if plan is not None and not plan.copies:
                close_run()
                steps.append((column, plan.convert))
                continue
            continues = run and (run_start == -2 if column == -2 else run_start >= 0 and column == run_start + len(run))
            if not continues:
                close_run()
                run_start = column
            run.append(self.walks.skip(field.type) if plan is None else plan.skip)
        close_run()
        return _joined([piece if piece else b"" for piece in template], steps)


def _joined(template: list[bytes], steps: list[tuple[int, Convert]]) -> Convert:
    """Values of fields that are not loaded go to a last place, which is left out of the row."""
    width = len(template)
    template = [*template, b""]
    placed = [(column if column >= 0 else width, convert) for column, convert in steps]

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        row = template[:]
        for column, step in placed:
            row[column], p = step(b, p)
        row[width] = b""
        return b"".join(row), p

    return convert


def _slice(run: Sequence[Skip], *, keep: bool) -> Convert:
    skips = tuple(run)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        q = p
        for skip in skips:
            q = skip(b, q)
        return b[p:q] if keep else b"", q

    return convert


def _after_walk(skip: Skip, convert: Convert) -> Convert:
    def converted(b: bytes, p: int) -> tuple[bytes, int]:
        if skip(b, p) > len(b):
            raise BadBody("the body ends inside a value")
        return convert(b, p)

    return converted


def _prefixed(prefix: bytes, convert: Convert) -> Convert:
    def converted(b: bytes, p: int) -> tuple[bytes, int]:
        row, p = convert(b, p)
        return prefix + row, p

    return converted


def _constant(row: bytes) -> Convert:
    return lambda b, p: (row, p)


def _refusing(reason: str) -> Convert:
    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        raise BadBody(reason)

    return convert


def _by_branch(converts: Sequence[Convert]) -> Convert:
    count = len(converts)

    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        index, p = read_index(b, p, count)
        return converts[index](b, p)

    return convert


def _convert_array(item: Convert, *, zero_width: bool) -> Convert:
    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                break
            check_count(count, len(b) - p, zero_width=zero_width)
            parts.append(encode_long(count))
            for _ in range(count):
                row, p = item(b, p)
                parts.append(row)
            check_block(p, end)
        else:
            p += 1
        parts.append(b"\x00")
        return b"".join(parts), p

    return convert


def _convert_map(value: Convert) -> Convert:
    def convert(b: bytes, p: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        while b[p]:
            count, p, end = read_block(b, p)
            if count == 0:
                break
            check_count(count, len(b) - p, zero_width=False)
            parts.append(encode_long(count))
            for _ in range(count):
                q = skip_string(b, p)
                parts.append(b[p:q])
                row, p = value(b, q)
                parts.append(row)
            check_block(p, end)
        else:
            p += 1
        parts.append(b"\x00")
        return b"".join(parts), p

    return convert


def nearest_float(n: int) -> float:
    """A double that rounds to the float nearest to `n`; a plain conversion would round twice beyond 2^53."""
    size = abs(n).bit_length()
    if size <= 53:
        return float(n)
    shift = size - 53
    kept = abs(n) >> shift
    if kept << shift != abs(n):
        kept |= 1
    return math.ldexp(-kept if n < 0 else kept, shift)


def _int_to_float(b: bytes, p: int) -> tuple[bytes, int]:
    n, p = read_varint(b, p)
    return struct.pack("<f", nearest_float(n)), p


def _int_to_double(b: bytes, p: int) -> tuple[bytes, int]:
    n, p = read_varint(b, p)
    return struct.pack("<d", float(n)), p


def _float_to_double(b: bytes, p: int) -> tuple[bytes, int]:
    return struct.pack("<d", struct.unpack_from("<f", b, p)[0]), p + 4


_SAME_BYTES = frozenset({(PrimitiveType.INT, PrimitiveType.LONG), (PrimitiveType.STRING, PrimitiveType.BYTES)})

_PROMOTIONS: dict[tuple[PrimitiveType, PrimitiveType], Convert] = {
    (PrimitiveType.INT, PrimitiveType.FLOAT): _int_to_float,
    (PrimitiveType.LONG, PrimitiveType.FLOAT): _int_to_float,
    (PrimitiveType.INT, PrimitiveType.DOUBLE): _int_to_double,
    (PrimitiveType.LONG, PrimitiveType.DOUBLE): _int_to_double,
    (PrimitiveType.FLOAT, PrimitiveType.DOUBLE): _float_to_double,
}


def _same_meaning(writer: Primitive, load: Primitive) -> bool:
    return True


def _prop(node: Type, name: str) -> object:
    return dict(getattr(node, "props", ())).get(name)


def _source(field: Field) -> str:
    return str(dict(field.props).get(SOURCE, field.name))


def _branch_name(node: Type) -> str:
    match node:
        case Primitive(type=kind):
            return kind.value
        case Record(name=name) | Enum(name=name) | Fixed(name=name):
            return name.full
    return "array" if isinstance(node, Array) else "map"


def _kind(node: Type) -> str:
    logical = getattr(node, "logical", None)
    match node:
        case Union(branches=branches):
            return f"a union of {len(branches)}"
        case Record() | Enum() | Fixed():
            return f"the {type(node).__name__.lower()} {node.name}"
    return _branch_name(node) + (f" ({logical.name})" if logical else "")
