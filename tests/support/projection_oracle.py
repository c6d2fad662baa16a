"""What a row must say, computed on values, and Avro binary by fastavro: oracles that share no code with the plans."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
from hypothesis import assume

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    parse_schema,
    self_contained_text,
)
from headrace.loader.load_schema import (
    EMPTY,
    JSON,
    MEMBERS,
    fold,
    kind_of,
    root_record,
    route_branch,
    route_fields,
    split,
)
from headrace.loader.native import Seen, compile_projection
from strategies import branch_name


def load_schema_of(*versions: Schema) -> Schema:
    state = EMPTY
    for number, version in enumerate(versions, 1):
        state = fold(state, number, version)
    return parse_schema(state.text)


def project(writer: Schema, load: Schema, body: bytes) -> bytes:
    return compile_projection(writer, load, None, Seen())(body)


def encode(schema: Schema, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _plain(schema), value)
    return out.getvalue()


def decode(schema: Schema, row: bytes) -> Any:
    source = io.BytesIO(row)
    value = fastavro.schemaless_reader(source, _plain(schema), None)
    assert source.read() == b"", "bytes follow the row"
    return value


def _plain(schema: Schema) -> Any:
    """The schema for fastavro, without logical types, so that numbers and bytes stay what they are, and without
    defaults, which play no part in reading by the writer's schema and of which fastavro refuses some that Avro takes.
    """
    try:
        return fastavro.parse_schema(_stripped(json.loads(self_contained_text(schema))))
    except fastavro.schema.UnknownType:
        # fastavro does not look for a name without dots in the null namespace, as Avro Java does.
        assume(False)
        raise


def _stripped(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _stripped(value) for key, value in node.items() if key not in ("logicalType", "default")}
    return [_stripped(item) for item in node] if isinstance(node, list) else node


def expected_row(writer: Schema, load: Schema, value: Any) -> Any:
    root = root_record(writer)
    record = value if root is writer.resolve(writer.root) else {"": value}
    assert isinstance(load.root, Record)
    return _record(writer, root, load.root, record, frozenset())


def _record(writer: Schema, node: Record, load: Record, value: Any, within: frozenset[Name]) -> Any:
    row = {}
    for routed in route_fields(load, writer, node, within=within).columns:
        column = routed.column
        if routed.source is None:
            row[column.name] = _default(column.type, routed.absent)
        else:
            inner = value[routed.source.name]
            row[column.name] = _value(writer, routed.source.type, column.type, inner, within | {node.name})
    return row


def _default(node: Type, value: Any) -> Any:
    inner, _ = split(node)
    is_binary = isinstance(inner, Fixed) or (isinstance(inner, Primitive) and inner.type.value == "bytes")
    return value.encode("latin-1") if is_binary and isinstance(value, str) else value


def _value(writer: Schema, node: Type, load: Type, value: Any, within: frozenset[Name]) -> Any:
    node = writer.resolve(node)
    inner, _ = split(load)
    if isinstance(node, Union):
        if value is None:
            return None
        branches = [writer.resolve(branch) for branch in node.branches]
        branch = next(branch for branch in branches if branch_name(branch) == value[0])
        values = [b for b in branches if not (isinstance(b, Primitive) and b.type.value == "null")]
        if kind_of(inner) == JSON and len(values) > 1:
            return _Text({value[0]: _json(writer, branch, value[1])})
        return _value(writer, branch, load, value[1], within)
    if kind_of(inner) == JSON:
        return _Text(_json(writer, node, value))
    match node, inner:
        case _, Record() if kind_of(inner) == MEMBERS:
            member = route_branch(inner, writer, node, within=within)
            assert member is not None
            row: dict[str, Any] = dict.fromkeys((field.name for field in inner.fields), None)
            row[member.name] = _value(writer, node, member.type, value, within)
            return row
        case Record(), Record():
            return _record(writer, node, inner, value, within)
        case Array(), Array():
            return [_value(writer, node.items, inner.items, item, within) for item in value]
        case Map(), Map():
            return {key: _value(writer, node.values, inner.values, item, within) for key, item in value.items()}
        case Primitive(), Primitive():
            return _promoted(node.type.value, inner.type.value, value)
    return value


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
    """Equal to a text that holds this JSON."""

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
    """Equal to a number that is the same float of 32 bits."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and struct.pack("<f", self) == struct.pack("<f", other)

    __hash__ = float.__hash__
