"""Converts the model to text: canonical text (stored by registries), normalized text and self-contained text.

The canonical text equals Avro Java's `Schema.toString()` byte for byte, because it identifies schemas in the registry.
Attributes of a named type have the order type, name, namespace, doc, fields | symbols | size, default, properties,
aliases. A namespace is written only if it differs from the enclosing one, a named type in full at its first use.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from headrace.avro_schema.model import (
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    LogicalType,
    Map,
    Name,
    NamedType,
    Order,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)
from headrace.avro_schema.names import shortest_name
from headrace.avro_schema.walk import defined_names


def canonical_text(schema: Schema) -> str:
    """Returns the text that the Confluent registry stores: compact JSON, in which types of referenced schemas are only
    names."""
    return to_json_text(_Writer(schema, inline=defined_names(schema)).json(schema.root, ""))


def normalized_text(schema: Schema) -> str:
    """Returns the canonical text with sorted aliases and properties, converted defaults, no empty documentation of
    types, and error types as records. Schemas that differ only in these have the same text."""
    return to_json_text(_NormalWriter(schema, inline=defined_names(schema)).json(schema.root, ""))


def self_contained_text(schema: Schema) -> str:
    """Returns a text that contains every named type, also types of referenced schemas, in full at its first use."""
    return to_json_text(schema_to_json(schema))


def schema_to_json(schema: Schema) -> JsonValue:
    """Returns a schema as a JSON value that contains every named type, also types of referenced schemas, in full at its
    first use."""
    return _Writer(schema, inline=defined_names(schema) | set(schema.names)).json(schema.root, "")


def to_json_text(value: JsonValue) -> str:
    """Returns a JSON value as compact text, with numbers formatted as in Java."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quoted(key)}:{to_json_text(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_json_text(item) for item in value]) + "]"
    if isinstance(value, float):
        return java_double(value)
    return json.dumps(value)


def java_double(value: float) -> str:
    """Formats a double like Java's `Double.toString`: decimal from 10^-3 up to 10^7, else scientific notation. NaN and
    infinity become JSON strings."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    exponent += len(text) - 1
    tail = text[1:].rstrip("0") or "0"
    return f"{'-' if sign else ''}{text[0]}.{tail}E{exponent}"


_escape: Callable[[str], str] = json.encoder.encode_basestring
_ESCAPE_SEQUENCE = re.compile(r"\\(?:u00[01][0-9a-f]|.)")


def _quoted(text: str) -> str:
    quoted = _escape(text)
    if "\\u00" not in quoted:
        return quoted
    # Jackson writes the other control characters in upper-case hex, Python in lower case.
    return _ESCAPE_SEQUENCE.sub(lambda match: match[0][:2] + match[0][2:].upper(), quoted)


class _Writer:
    """Converts types to JSON values. A named type in `inline` is written in full at its first use, all others only as
    names."""

    def __init__(self, schema: Schema, inline: set[Name]) -> None:
        self.schema = schema
        self.inline = inline
        self.written: set[Name] = set()

    def json(self, node: Type, namespace: str) -> JsonValue:
        if isinstance(node, Primitive):
            props = self.props(node.props, node.logical)
            return {"type": node.type.value, **props} if props else node.type.value
        if isinstance(node, Union):
            return [self.json(branch, namespace) for branch in node.branches]
        if isinstance(node, Array):
            return {"type": "array", "items": self.json(node.items, namespace), **self.props(node.props)}
        if isinstance(node, Map):
            return {"type": "map", "values": self.json(node.values, namespace), **self.props(node.props)}
        name = node.name
        if name in self.written or name not in self.inline:
            return shortest_name(name, namespace)
        self.written.add(name)
        named = self.schema.names[name] if isinstance(node, Reference) else node
        return self.named(named, namespace)

    def named(self, node: NamedType, namespace: str) -> JsonValue:
        kind = "fixed" if isinstance(node, Fixed) else "enum" if isinstance(node, Enum) else "record"
        out: dict[str, Any] = {"type": "error" if self.is_error(node) else kind}
        out["name"] = node.name.name
        if node.name.namespace != namespace:
            out["namespace"] = node.name.namespace
        if self.has_doc(node):
            out["doc"] = node.doc
        if isinstance(node, Record):
            out["fields"] = [self.field(field, node.name.namespace) for field in node.fields]
        elif isinstance(node, Enum):
            out["symbols"] = list(node.symbols)
            if node.default is not None:
                out["default"] = node.default
        else:
            out["size"] = node.size
        out.update(self.props(node.props, node.logical if isinstance(node, Fixed) else None))
        if node.aliases:
            out["aliases"] = [shortest_name(alias, node.name.namespace) for alias in self.aliases(node)]
        return out

    def field(self, field: Field, namespace: str) -> JsonValue:
        out: dict[str, Any] = {"name": field.name, "type": self.json(field.type, namespace)}
        if field.doc is not None:
            out["doc"] = field.doc
        if field.has_default:
            out["default"] = self.default(field)
        if field.order is not Order.ASCENDING:
            out["order"] = field.order.value
        if field.aliases:
            out["aliases"] = self.field_aliases(field)
        out.update(self.props(field.props))
        return out

    def is_error(self, node: NamedType) -> bool:
        return isinstance(node, Record) and node.is_error

    def has_doc(self, node: NamedType) -> bool:
        return node.doc is not None

    def default(self, field: Field) -> JsonValue:
        return field.default

    def aliases(self, node: NamedType) -> Sequence[Name]:
        return node.aliases

    def field_aliases(self, field: Field) -> list[str]:
        return list(field.aliases)

    def props(self, props: Props, _logical: LogicalType | None = None) -> dict[str, JsonValue]:
        return dict(props)


class _NormalWriter(_Writer):
    """Converts types to JSON values in normalized form: sorted aliases and properties, converted defaults, error types
    as records."""

    def is_error(self, node: NamedType) -> bool:
        return False

    def has_doc(self, node: NamedType) -> bool:
        return bool(node.doc)

    def aliases(self, node: NamedType) -> Sequence[Name]:
        return sorted(node.aliases, key=lambda alias: alias.full)

    def field_aliases(self, field: Field) -> list[str]:
        return sorted(field.aliases)

    def props(self, props: Props, logical: LogicalType | None = None) -> dict[str, JsonValue]:
        members = {key: _sorted(value) for key, value in sorted(props, key=lambda member: member[0])}
        if logical is None:
            return members
        front = {"logicalType": members.pop("logicalType")}
        if logical.name == "decimal":
            for key in ("precision", "scale"):
                value = members.pop(key, None)
                if value is not None and not (key == "scale" and value == 0):
                    front[key] = value
        return {**front, **members}

    def default(self, field: Field) -> JsonValue:
        return _sorted(_retyped(self.schema, field.type, field.default))


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def _as_float(value: float, *, single: bool) -> JsonValue:
    """Converts the default of a float or double field to a double; a number out of range is returned unchanged.

    Args:
        single: the field is a float. The result is then the double with the shortest text among all doubles that are
            rounded to the same float.
    """
    try:
        if not single:
            return float(value)
        bits = struct.pack(">f", value)
    except OverflowError:
        return value
    exact = struct.unpack(">f", bits)[0]
    texts = (format(exact, f".{digits}g") for digits in range(1, 10))
    return next(float(text) for text in texts if struct.pack(">f", float(text)) == bits)


def _retyped(schema: Schema, node: Type, value: JsonValue) -> JsonValue:
    """Converts the numbers in a default to the number types of their fields, so that `1` and `1.0` for a double have
    the same text.

    Args:
        schema: resolves references to named types.
        node: the type of the default.
        value: the default as a JSON value.
    """
    node = schema.resolve(node)
    if isinstance(node, Union) and node.branches:
        return _retyped(schema, node.branches[0], value)
    if isinstance(node, Primitive):
        if type(value) not in (int, float) or node.type not in (PrimitiveType.FLOAT, PrimitiveType.DOUBLE):
            return value
        return _as_float(value, single=node.type is PrimitiveType.FLOAT)
    if isinstance(node, Array) and isinstance(value, list):
        return [_retyped(schema, node.items, item) for item in value]
    if isinstance(node, Map) and isinstance(value, dict):
        return {key: _retyped(schema, node.values, item) for key, item in value.items()}
    if isinstance(node, Record) and isinstance(value, dict):
        kinds = {field.name: field.type for field in node.fields}
        return {k: _retyped(schema, kinds[k], item) if k in kinds else item for k, item in value.items()}
    return value
