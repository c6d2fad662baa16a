"""Encodes Python values to the bytes of messages. An encoding is compiled once for a registered schema."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from headrace.audit.open_row import CLOSED_ROW
from headrace.avro_codec import BadBody, Check, compile_check, core_library
from headrace.avro_codec.check import NESTED_MAX
from headrace.avro_codec.encode import encode_default
from headrace.avro_schema import (
    AvroSchemaError,
    Field,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    TimeField,
    find_time_fields,
    frame,
    read_time,
    self_contained_text,
)
from headrace.avro_schema.logical import logical_type
from headrace.avro_schema.message_time import TimeUnit
from headrace.clients.datum import DatumProblem, find_problem, is_deeper, is_recursive
from headrace.clients.errors import ValueRefused
from headrace.clients.fast_encoder import ENCODER_ERRORS, compile_encoder
from headrace.clients.logical_types import name_for_fastavro
from headrace.clients.union_branches import compile_choice
from headrace.clients.value_guard import compile_guard

_TOO_DEEP: Final = "its lists, maps and records are nested too deeply, or contain themselves"

_AS_IN_JSON: Final = frozenset({PrimitiveType.BOOLEAN, PrimitiveType.INT, PrimitiveType.LONG, PrimitiveType.STRING})


class Encoding:
    """Encodes the values of one topic with one schema.

    Attributes:
        encode: function that returns the bytes of a message value: the prefix with the schema id, and the Avro binary.
            Raises `ValueRefused`, with the field that does not fit if it is known.
        read_time: function (value, encoded value) that returns the message time, the time of the event, in
            milliseconds, or None to use the record timestamp instead. The attribute is None if the schema has no time
            field.
        row: the running count of the audit to which the latest message with a time was added; the producer sets it.

    Args:
        time_property: dotted path of the time field in the metadata of the subject; "" if it has none.
        time_fields: dotted paths for a schema without that field: the fields that may hold the message time.
        newest: the newest version of the subject; its aliases are names of time fields in older versions. None if it is
            `schema`, or unknown.
    """

    def __init__(
        self,
        topic: str,
        subject: str,
        schema_id: int,
        schema: Schema,
        *,
        time_property: str,
        time_fields: Sequence[str],
        newest: Schema | None = None,
    ) -> None:
        self.topic = topic
        self.subject = subject
        self.schema_id = schema_id
        self.row = CLOSED_ROW
        self._schema = schema
        self._compiled = compiled_schema(schema)
        self._prefix = frame(schema_id, b"")
        self.encode = compile_encoder(schema, self._prefix, self._encode_any)
        self._guard = compile_guard(schema)
        self._branch_choice = compile_choice(schema)
        # Only values of recursive schemas can be nested too deeply for readers.
        self._check = _compile_check(schema) if is_recursive(schema) else None
        self._checking = threading.Lock()
        fields = find_time_fields(schema, time_property, time_fields, newest)
        self.read_time = _time_reader(fields[0], self._time_reader_of(schema, fields)) if fields else None

    def _time_reader_of(self, schema: Schema, fields: tuple[TimeField, ...]) -> Callable[[bytes], int | None]:
        """Returns a function that reads the message time from the encoded value. It is necessary if the value has no
        plain integer in its preferred time field: the field may be missing and have a default, or contain a datetime
        or a named union branch, or another field may have the time."""
        body_time, start = BodyTime(schema, fields), len(self._prefix)
        return lambda encoded: body_time.read(encoded[start:])

    def _encode_any(self, value: Any) -> bytes:
        if self._check is not None and is_deeper(value, NESTED_MAX):  # fastavro would crash the process
            raise self._refused(_TOO_DEEP, "")
        if not self._passes_guard(value):
            problem = self._find_problem(value)
            if problem is not None:
                raise self._refused(str(problem), problem.path)
        choose, is_required = self._branch_choice
        try:
            encoded = self._encode_with_fastavro(choose(value) if is_required else value)
        except ENCODER_ERRORS as error:
            problem = self._find_problem(value)
            if problem is not None:
                raise self._refused(str(problem), problem.path) from error
            try:
                encoded = self._encode_with_fastavro(choose(value))
            except ENCODER_ERRORS:
                raise self._refused(str(error) or type(error).__name__, "") from error
        if self._check is not None:
            try:
                with self._checking:
                    self._check(encoded[len(self._prefix) :])
            except BadBody as error:
                raise self._refused(f"consumers would reject the encoded value: {error}", "") from error
        return encoded

    def _encode_with_fastavro(self, value: Any) -> bytes:
        body = BytesIO()
        body.write(self._prefix)
        fastavro.schemaless_writer(body, self._compiled, value, strict_allow_default=True)
        return body.getvalue()

    def _passes_guard(self, value: Any) -> bool:
        try:
            return self._guard is None or self._guard(value)
        except RecursionError as error:
            raise self._refused(_TOO_DEEP, "") from error

    def _find_problem(self, value: Any) -> DatumProblem | None:
        try:
            return find_problem(self._schema, value)
        except RecursionError as error:
            raise self._refused(_TOO_DEEP, "") from error

    def _refused(self, sentence: str, field: str) -> ValueRefused:
        return ValueRefused(
            f"topic {self.topic}: the value does not fit the schema of {self.subject} (id {self.schema_id}): "
            f"{sentence}",
            topic=self.topic,
            subject=self.subject,
            field=field,
        )


class BodyTime:
    """Reads the message time from Avro binary, as consumers read it.

    Args:
        schema: the schema of the bodies.
        fields: its time fields, the preferred one first, from `find_time_fields`.
    """

    def __init__(self, schema: Schema, fields: tuple[TimeField, ...]) -> None:
        self._fields = fields
        self._plain = compiled_schema(schema, logical_types=False)

    def read(self, body: bytes) -> int | None:
        """Returns milliseconds since 1970; None if no time field has a time."""
        return read_time(self._fields, fastavro.schemaless_reader(BytesIO(body), self._plain, None))


def _compile_check(schema: Schema) -> Check:
    try:
        return compile_check(schema, core_library())
    except BadBody as error:
        refused = str(error)  # consumers report the same error for each message

    def check(body: bytes) -> None:
        raise BadBody(refused)

    return check


def compiled_schema(schema: Schema, *, logical_types: bool = True) -> Any:
    """Returns a schema in the form that fastavro needs. Without `logical_types`, values have the underlying types, such
    as int instead of datetime.

    fastavro uses the JSON of a field's default as the field's value, both when it writes a record without the field and
    when it resolves to a reader schema. In the result each default is therefore replaced by the value that its JSON
    represents.

    Raises:
        AvroSchemaError: fastavro rejects the schema, usually because of an invalid default in an old schema.
    """
    compiled = _parsed(schema, logical_types)
    records = {name.full: node for name, node in schema.names.items() if isinstance(node, Record)}
    for defined in _records(compiled):
        for field, field_json in zip(records[defined["name"]].fields, defined["fields"], strict=True):
            if not _is_json_value(schema, field):
                field_json["default"] = _default_value(schema, field, logical_types)
    return compiled


def _parsed(schema: Schema, logical_types: bool) -> Any:
    """Parses a schema with fastavro, and marks it as parsed where fastavro does not.

    fastavro does not mark a schema whose root is an array or a map. It would parse that schema again for each message,
    and would then reject its fields with a default that `compiled_schema` has replaced.

    Args:
        logical_types: False removes logical types from the schema, so that values have the underlying types.
    """
    schema_json = json.loads(
        self_contained_text(schema), object_hook=_for_fastavro if logical_types else _without_logical_type
    )
    aliases = _aliases(schema)
    named: dict[str, Any] = {alias: {} for alias in aliases}
    try:
        parsed = fastavro.parse_schema(schema_json, named)
    except (SchemaParseException, UnknownType) as error:
        raise AvroSchemaError(f"fastavro rejects it: {' '.join(str(error).split())}") from error
    parsed = _renamed(parsed, aliases)
    for alias in aliases:
        del named[alias]
    for root in parsed if isinstance(parsed, list) else [parsed]:
        if isinstance(root, dict):
            root.setdefault("__fastavro_parsed", True)
            root.setdefault("__named_schemas", named)
    return parsed


def _aliases(schema: Schema) -> dict[str, str]:
    """Returns additional names for types without a namespace, mapped to their own names, so that fastavro finds the
    types.

    A type inside a namespace may refer to a type that has none. fastavro then prepends the namespace to the name and
    does not find it. Avro Java also searches the name as it is.
    """
    bare = [name.full for name in schema.names if not name.namespace]
    spaces = {name.namespace for name in schema.names if name.namespace}
    full = {name.full for name in schema.names}
    return {alias: name for space in spaces for name in bare if (alias := f"{space}.{name}") not in full}


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return names.get(node, node)
    if isinstance(node, list):
        node[:] = [_renamed(branch, names) for branch in node]
    elif names:
        for below in ("type", "items", "values"):
            if below in node:
                node[below] = _renamed(node[below], names)
        for field in node.get("fields", ()):
            field["type"] = _renamed(field["type"], names)
    return node


def _records(node: Any) -> Iterator[dict[str, Any]]:
    """Yields the record definitions anywhere in `node`, a schema or part of a schema that fastavro has parsed."""
    if isinstance(node, list):
        for branch in node:
            yield from _records(branch)
    elif isinstance(node, dict):
        for below in ("type", "items", "values"):
            if isinstance(node.get(below), (dict, list)):
                yield from _records(node[below])
        if "fields" in node:
            yield node
            for field in node["fields"]:
                yield from _records(field["type"])


def _is_json_value(schema: Schema, field: Field) -> bool:
    """Returns whether the default of a field of the schema needs no conversion from its JSON: the field has no default,
    or the default is null, an empty array, or a value of a boolean, int, long or string without a logical type."""
    if not field.has_default or field.default is None or field.default == []:
        return True
    node = schema.resolve(field.type)
    return isinstance(node, Primitive) and node.logical is None and node.type in _AS_IN_JSON


def _default_value(schema: Schema, field: Field, logical_types: bool) -> Any:
    """Returns the value that the default of a field represents: without `logical_types` in the underlying type, such as
    int instead of datetime. Returns the default's JSON if that does not fit the type, as in some old schemas."""
    field_schema = dataclasses.replace(schema, root=field.type)
    try:
        body = encode_default(schema, field.type, field.default)
        return fastavro.schemaless_reader(BytesIO(body), _parsed(field_schema, logical_types), None)
    except Exception:  # fastavro raises errors of many types
        return field.default


def _for_fastavro(node: dict[str, Any]) -> dict[str, Any]:
    """Changes the logical type in `node`, the JSON object of a type, to the one for fastavro, and returns the object.
    An invalid logical type is removed: Avro Java ignores it, fastavro would reject it."""
    kind, size = node.get("type"), node.get("size")
    if isinstance(kind, str):
        found = logical_type(node, kind, size if isinstance(size, int) else None)
        node.pop("logicalType", None)
        if found is not None:
            node["logicalType"] = name_for_fastavro(kind, found.name)
    return node


def _without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("logicalType", None)
    return node


TimeReader = Callable[[Any, bytes], int | None]


def _time_reader(field: TimeField, read_encoded: Callable[[bytes], int | None]) -> TimeReader:
    """Returns a function that reads the message time from a value.

    Args:
        field: the schema's preferred time field.
        read_encoded: reads the message time from the encoded value; used if the value has no plain integer or text with
            a time in this field.
    """
    path, to_ms = field.path, field.to_ms

    def read(value: Any, encoded: bytes) -> int | None:
        try:
            for name in path:
                value = value[name]
        except (KeyError, TypeError, IndexError):
            return read_encoded(encoded)
        time_ms = to_ms(value) if value.__class__ is int or value.__class__ is str else None
        return read_encoded(encoded) if time_ms is None else time_ms

    def read_millis(value: Any, encoded: bytes) -> int | None:
        """Reads the message time from a field in milliseconds at the top level of the value, or from `encoded`, the
        value's Avro binary, if the field has no plain integer."""
        try:
            time_ms = value[first]
        except (KeyError, TypeError, IndexError):
            return read_encoded(encoded)
        return time_ms if time_ms.__class__ is int else read_encoded(encoded)

    first, *inner = path
    return read_millis if field.unit is TimeUnit.MILLIS and not inner else read
