"""Computes the expected row of a message, as an oracle for projections: on decoded values, with fastavro for Avro's
binary encoding. It shares no code with the loader's projection.

To find the column of a writer's field, it reads the properties of the load schema that package `loader.load_schema`
documents. It uses the load schema right after the writer's version was folded in; in later load schemas a column has
the same position.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
from hypothesis import assume

from headrace.avro_codec import BadBody, CapturedTime, compile_check
from headrace.avro_schema import (
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
    TimeField,
    Type,
    Union,
    branch_name,
    parse_schema,
    self_contained_text,
)
from headrace.loader.load_schema import EMPTY, LoadState, StoredRoute, fold
from headrace.loader.project.batches import project as core_project
from headrace.loader.project.projection import compile_projection
from support.loader.compiled_core import core_if_any

ROW_BYTES_MAX = 1 << 14
SIGNALLING_NAN = re.compile(rb"[\x80-\xbf][\x7f\xff]", re.DOTALL)
"""Matches the upper half of a signalling NaN, or bytes that look like it. The core may convert such a NaN, so only the
reference is tested on bodies with a match."""


def states_of(*versions: Schema) -> list[LoadState]:
    """Returns the state of the load schema after each version. Versions and schema ids count from 1."""
    states = [EMPTY]
    for number, version in enumerate(versions, 1):
        states.append(fold(states[-1], number, version, number))
    return states[1:]


def load_schema_of(*versions: Schema) -> Schema:
    return parse_schema(states_of(*versions)[-1].text)


def project(writer: Schema, load: Schema, body: bytes, route: StoredRoute | None = None) -> bytes:
    return core_and_reference(writer, load, (), CapturedTime(), route)(body)


def core_and_reference(
    writer: Schema, load: Schema, time_fields: Sequence[TimeField], seen: CapturedTime, route: StoredRoute | None = None
) -> Callable[[bytes], bytes]:
    """Returns a function that converts a message body to a row with the core and with the reference, and asserts that
    the results are equal.

    Args:
        load: the load schema.
        time_fields: the fields that may have the message's time.
        seen: receives that time.
        route: the stored route of the writer's version.
    """
    compiled = compile_projection(writer, load, time_fields, seen, route)
    core = core_if_any()
    nothing_seen = seen.value
    checks = [compile_check(writer, None), compile_check(writer, core)]

    def convert(body: bytes) -> bytes:
        seen.value = nothing_seen
        reference, twin = (refusal(check, body) for check in checks)
        assert reference == twin, f"of {body.hex()}"
        try:
            row = compiled.convert(body)
            assert not reference, f"the projection accepts a bad body {body.hex()}: {reference}"
        except BadBody:
            if core is not None and compiled.program is not None:
                found = core_project(core, compiled.program, body, ROW_BYTES_MAX)
                assert found is None, f"only the core makes a row of {body.hex()}: {found}\n{compiled.program}"
            raise
        if core is not None and compiled.program is not None:
            found = core_project(core, compiled.program, body, len(row) * 2 + 16)
            if found is None and SIGNALLING_NAN.search(body):
                return row
            assert found == (row, seen.value), f"of {body.hex()}\n{compiled.program}"
        return row

    return convert


def refusal(check: Callable[[bytes], None], body: bytes) -> str:
    """Returns the reason why a check of message bodies rejects a body; "" if it accepts it."""
    try:
        check(body)
    except BadBody as error:
        return str(error)
    return ""


def encode(schema: Schema, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _plain(schema), value)
    return out.getvalue()


def decode(schema: Schema, row: bytes, *, reader: Schema | None = None) -> Any:
    """Decodes a row.

    Args:
        schema: the load schema with which the row was written.
        reader: a later load schema, to which Avro's schema resolution converts the row.
    """
    source = io.BytesIO(row)
    wanted = None if reader is None else fastavro.parse_schema(_stripped(json.loads(reader.text), "logicalType"))
    value = fastavro.schemaless_reader(source, _plain(schema), wanted)
    assert source.read() == b"", "bytes follow the row"
    return value if reader is None else _rounded(reader, reader.root, value)


def _rounded(schema: Schema, node: Type, value: Any) -> Any:
    """Corrects values that fastavro returns for a reader schema. It leaves an int unchanged if the reader's type is
    float, and it returns a default of type bytes as the text in the schema."""
    node = schema.resolve(node)
    if value is None:
        return None
    if isinstance(node, Union):
        choices = [branch for branch in node.branches if branch != Primitive(PrimitiveType.NULL)]
        return _rounded(schema, choices[0], value) if len(choices) == 1 else value
    if isinstance(node, Record):
        return {field.name: _rounded(schema, field.type, value[field.name]) for field in node.fields}
    if isinstance(node, Array):
        return [_rounded(schema, node.items, item) for item in value]
    if isinstance(node, Map):
        return {key: _rounded(schema, node.values, item) for key, item in value.items()}
    if isinstance(value, str) and _is_binary(node):
        return value.encode("latin-1")
    if isinstance(node, Primitive) and node.type is PrimitiveType.FLOAT:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return value


def _plain(schema: Schema) -> Any:
    """Returns the schema for fastavro, without logical types, so that numbers and bytes are not converted. It is also
    without defaults: they do not matter when reading with the writer's schema, and fastavro rejects some valid ones."""
    try:
        return fastavro.parse_schema(_stripped(json.loads(self_contained_text(schema)), "logicalType", "default"))
    except fastavro.schema.UnknownType:
        # Unlike Avro Java, fastavro does not resolve a name without dots in the null namespace.
        assume(False)
        raise


def _stripped(node: Any, *keys: str) -> Any:
    if isinstance(node, dict):
        return {key: _stripped(value, *keys) for key, value in node.items() if key not in keys}
    return [_stripped(item, *keys) for item in node] if isinstance(node, list) else node


def expected_row(writer: Schema, then: Schema, now: Schema, value: Any, *, is_stored: bool = False) -> Any:
    """Returns the expected row of a message in the load schema `now`.

    Args:
        then: the load schema right after the writer's version was folded in.
        now: the same load schema, or a later one.
        is_stored: whether the row was written with `then` and is read with `now`; otherwise it is written with `now`.
    """
    root = writer.resolve(writer.root)
    if not isinstance(root, Record):
        root, value = Record(Name("Message"), (Field("", writer.root),)), {"": value}
    assert isinstance(then.root, Record)
    assert isinstance(now.root, Record)
    return _Row(writer, is_stored).record(root, then.root, now.root, value, frozenset())


class _Row:
    """Computes the expected row of a message, from the top-level record down.

    In its methods, `node` is the writer's type of a value; `then` and `now` are the types of its column in the two load
    schemas. `within` has the names of the writer's records that enclose it.
    """

    def __init__(self, writer: Schema, is_stored: bool) -> None:
        self.writer = writer
        self.is_stored = is_stored

    def record(self, node: Record, then: Record, now: Record, value: Any, within: frozenset[Name]) -> Any:
        within = within | {node.name}
        fed = _fed(self.writer, node, then, within)
        assert fed is not None, f"{node} has fields without a column in {then}"
        row = {}
        for i, column in enumerate(now.fields):
            if i in fed:
                name, kind = fed[i].name, fed[i].type
                row[column.name] = self.value(kind, then.fields[i].type, column.type, value[name], within)
            elif not self.is_stored:
                row[column.name] = _unfed(column)
            elif i < len(then.fields):
                row[column.name] = _read(then.fields[i].type, column.type, _unfed(then.fields[i]))
            else:
                row[column.name] = _default(column)
        return row

    def value(self, node: Type, then: Type, now: Type, value: Any, within: frozenset[Name]) -> Any:
        node, then, now = self.writer.resolve(node), _without_null(then), _without_null(now)
        values = _values(self.writer, node)
        if value is None:
            return None
        if _prop(now, "kind") == "json" and len(values) > 1:
            return _Text(_json(self.writer, node, value))
        if isinstance(node, Union):
            node, value = next((branch, value[1]) for branch in values if branch_name(branch) == value[0])
        if _prop(now, "kind") == "json":
            return _Text(_json(self.writer, node, value))
        if _prop(now, "kind") == "members":
            assert isinstance(then, Record)
            assert isinstance(now, Record)
            at = _members(self.writer, values, then, within)[values.index(node)]
            row: dict[str, Any] = {field.name: None for field in now.fields}
            row[now.fields[at].name] = self.value(node, then.fields[at].type, now.fields[at].type, value, within)
            return row
        match node, then, now:
            case Record(), Record(), Record():
                return self.record(node, then, now, value, within)
            case Array(items=items), Array(), Array():
                return [self.value(items, then.items, now.items, item, within) for item in value]
            case Map(values=kind), Map(), Map():
                return {key: self.value(kind, then.values, now.values, item, within) for key, item in value.items()}
            case Primitive(), _, Primitive():
                return _promoted(node.type.value, now.type.value, value)
        return value


def _prop(node: Type | Field, key: str) -> Any:
    props = node.props if isinstance(node, Primitive | Record | Enum | Fixed | Field) else ()
    return dict(props).get(f"headrace.{key}")


def _is_null(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type.value == "null"


def _values(writer: Schema, node: Type) -> list[Type]:
    """Returns the branches of a union except null; for another type, the type itself."""
    branches = node.branches if isinstance(node, Union) else (node,)
    return [branch for branch in map(writer.resolve, branches) if not _is_null(branch)]


def _without_null(load: Type) -> Type:
    return next(branch for branch in load.branches if not _is_null(branch)) if isinstance(load, Union) else load


def _unfed(column: Field) -> Any:
    """Returns the value of a column in the row of a message that has no value for it."""
    return None if _prop(column, "absent") == "null" else _default(column)


def _default(column: Field) -> Any:
    """Returns the value of a column that a query reads from rows written before the column existed."""
    value = column.default if column.has_default else None
    is_binary = _is_binary(_without_null(column.type))
    return value.encode("latin-1") if is_binary and isinstance(value, str) else value


def _is_binary(node: Type) -> bool:
    return isinstance(node, Fixed) or (isinstance(node, Primitive) and node.type is PrimitiveType.BYTES)


def _read(then: Type, now: Type, value: Any) -> Any:
    """Returns the value that a query reads from a column whose default was written before the column got another
    type."""
    then, now = _without_null(then), _without_null(now)
    if value is None or not isinstance(then, Primitive) or not isinstance(now, Primitive):
        return value
    return _promoted(then.type.value, now.type.value, value)


def _fed(writer: Schema, record: Record, load: Record, within: frozenset[Name]) -> dict[int, Field] | None:
    """Assigns the fields of a writer's record to the columns of a load schema's record. Returns the field for each
    column by the column's position. Returns None if there is no column for a field, or no field for a column without
    default."""
    fed: dict[int, Field] = {}
    free = {field.name: field for field in record.fields}
    for listed in ("source", "former"):
        for i, column in enumerate(load.fields):
            names = _prop(column, listed) or ([column.name] if listed == "source" else [])
            name = next((name for name in names if name in free), None)
            if i not in fed and name is not None and _holds(writer, free[name].type, column.type, within):
                fed[i] = free.pop(name)
    needy = [i for i, column in enumerate(load.fields) if not column.has_default and not _may_be_null(column.type)]
    return None if free or any(i not in fed for i in needy) else fed


def _may_be_null(load: Type) -> bool:
    return _is_null(load) or isinstance(load, Union)


def _members(writer: Schema, values: Sequence[Type], load: Record, within: frozenset[Name]) -> list[int]:
    """Assigns the branches of a writer's union to the fields of a `members` record, which stores a union in a column.
    Returns for each branch the position of its field, -1 for none. No two branches have the same field."""
    found: list[int] = []
    for branch in values:
        fits = (
            i
            for i, member in enumerate(load.fields)
            if i not in found
            and branch_name(branch) in _prop(member, "branch")
            and _holds(writer, branch, member.type, within)
        )
        found.append(next(fits, -1))
    return found


def _holds(writer: Schema, node: Type, load: Type, within: frozenset[Name]) -> bool:
    """Returns whether a column can store the values of a writer's type.

    Args:
        load: type of the column in the load schema right after the writer's version was folded in.
    """
    node, inner = writer.resolve(node), _without_null(load)
    values = _values(writer, node)
    if _prop(inner, "kind") == "json":
        return _is_endless(writer, node, within)
    if len(values) < 2 and (not values or _is_null(node)):
        return _may_be_null(load)
    if len(values) < len(node.branches if isinstance(node, Union) else (node,)) and not _may_be_null(load):
        return False
    if _prop(inner, "kind") == "members":
        assert isinstance(inner, Record)
        return -1 not in _members(writer, values, inner, within)
    return len(values) == 1 and _is_same(writer, values[0], inner, within)


def _is_endless(writer: Schema, node: Type, within: frozenset[Name]) -> bool:
    match writer.resolve(node):
        case Record(name=name):
            return name in within
        case Array(items=inner) | Map(values=inner):
            return _is_endless(writer, inner, within)
        case Union(branches=branches):
            return any(_is_endless(writer, branch, within) for branch in branches)
    return False


def _is_same(writer: Schema, node: Type, load: Type, within: frozenset[Name]) -> bool:
    match node, load:
        case Primitive(), Primitive():
            return _is_exact(node, load)
        case Fixed(), Fixed():
            return _is_called(node, load) and node.size == load.size and _logical(node) == _logical(load)
        case Enum(), Enum():
            return _is_called(node, load) and set(node.symbols) <= set(load.symbols)
        case (Array(items=item), Array(items=column)) | (Map(values=item), Map(values=column)):
            return _holds(writer, item, column, within)
        case Record(), Record():
            inner = within | {node.name}
            return node.name not in within and _is_called(node, load) and _fed(writer, node, load, inner) is not None
    return False


def _is_called(node: Record | Enum | Fixed, load: Record | Enum | Fixed) -> bool:
    return node.name.full in (_prop(load, "names") or [load.name.full])


def _logical(node: Primitive | Fixed) -> tuple[Any, ...] | None:
    """Returns the properties of a logical type that must be equal in the writer's schema and the column; None without a
    logical type. A uuid counts as plain text, and a fixed decimal that is too large for readers as plain bytes."""
    logical = node.logical
    too_wide = isinstance(node, Fixed) and logical is not None and ((logical.precision or 0) > 38 or node.size > 1_024)
    if logical is None or too_wide or (isinstance(node, Primitive) and logical.name == "uuid"):
        return None
    return logical.name, logical.scale if logical.name == "decimal" else None


_EXACT = {"int": ("int", "long", "double"), "float": ("float", "double"), "string": ("string", "bytes")}


def _is_exact(node: Primitive, load: Primitive) -> bool:
    kind, column = node.type.value, load.type.value
    if _prop(load, "kind") == "unscaled":
        scale = int(_prop(load, "decimal").split(",")[1])
        return kind == column and _logical(node) == ("decimal", scale)
    if _logical(node) != _logical(load):
        return False
    if (_logical(node) or ("",))[0] == "decimal":
        assert node.logical is not None
        assert load.logical is not None
        return kind == column and (node.logical.precision or 0) <= (load.logical.precision or 0)
    return column in _EXACT.get(kind, (kind,)) or kind in (_prop(load, "widened") or ())


def _promoted(writer: str, load: str, value: Any) -> Any:
    if load == "bytes" and writer == "string":
        return value.encode()
    if load == "float" and writer in ("int", "long"):
        nearest = struct.unpack("<f", struct.pack("<f", float(value)))[0]
        steps = [_float_step(nearest, step) for step in (-1, 0, 1)]
        return min(steps, key=lambda f: (abs(int(f) - value), struct.pack("<f", f)[0] & 1))
    return float(value) if load == "double" and writer in ("int", "long") else value


def _float_step(value: float, step: int) -> float:
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<i", bits + step if bits else bits))[0])


class _Text:
    """An expected text of JSON, which equals any text with the same JSON value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self.value

    def __repr__(self) -> str:
        return f"text of {self.value!r}"


def _json(schema: Schema, node: Type, value: Any) -> Any:
    node = schema.resolve(node)
    match node:
        case Union():
            if value is None:
                return None
            branch = next(b for b in node.branches if branch_name(schema.resolve(b)) == value[0])
            return {value[0]: _json(schema, branch, value[1])}
        case Record():
            return {field.name: _json(schema, field.type, value[field.name]) for field in node.fields}
        case Array():
            return [_json(schema, node.items, item) for item in value]
        case Map():
            return {key: _json(schema, node.values, item) for key, item in value.items()}
        case Enum():
            return value
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(node, Primitive) and node.type.value == "float":
        return _Float(value)
    return value.decode("latin-1") if isinstance(value, bytes) else value


class _Float(float):
    """An expected number, which equals any number that is the same 32-bit float."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and struct.pack("<f", self) == struct.pack("<f", other)

    __hash__ = float.__hash__
