"""From a Python value to the bytes of a message, under one registered schema: compiled once, used for every message."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import fastavro

from headrace.avro_codec import BadBody, Check, compile_check, the_core
from headrace.avro_codec.check import NESTED_MAX
from headrace.avro_codec.encode import encode_default
from headrace.avro_schema import (
    Field,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    TimeField,
    find_time_field,
    frame,
    self_contained_text,
)
from headrace.avro_schema.logical import logical_type
from headrace.avro_schema.message_time import TimeUnit
from headrace.clients.branches import compile_choice
from headrace.clients.datum import Problem, find_problem, is_deeper, is_recursive
from headrace.clients.errors import ValueRefused
from headrace.clients.fast_encoder import MISFITS, compile_encoder
from headrace.clients.value_guard import compile_guard

_TOO_DEEP: Final = "its values are inside each other too many times"

_AS_IN_JSON: Final = frozenset({PrimitiveType.BOOLEAN, PrimitiveType.INT, PrimitiveType.LONG, PrimitiveType.STRING})


class Encoding:
    """Encodes the values of one topic under one schema.

    `encode` makes the message value, prefix and Avro binary, of a value, or raises `ValueRefused`, which names the
    field that does not fit. `read_time` says the message time in milliseconds, of a value and its encoded form, or None
    when the record's timestamp is it; it is None itself where the schema has no time field.

    `time_property` is the subject's metadata property that names the time field, `time_fields` the candidates
    without it.
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
    ) -> None:
        self.topic = topic
        self.subject = subject
        self.schema_id = schema_id
        self._schema = schema
        self._compiled = compiled_schema(schema)
        self._prefix = frame(schema_id, b"")
        self.encode = compile_encoder(schema, self._prefix, self._encode_any)
        self._guard = compile_guard(schema)
        self._choosing = compile_choice(schema)
        # Only of these can a value be more than whoever reads it bears.
        self._check = _check_of(schema) if is_recursive(schema) else None
        self._checking = threading.Lock()
        field = find_time_field(schema, time_property, time_fields)
        self._time_field = field
        self.read_time = _time_reader(field, self._decoded_time) if field is not None else None
        self._plain = compiled_schema(schema, logical_types=False) if field is not None else None

    def _encode_any(self, value: Any) -> bytes:
        if self._check is not None and is_deeper(value, NESTED_MAX):  # fastavro would end the process
            raise self._refused(_TOO_DEEP, "")
        if not self._is_passed(value):
            problem = self._find_problem(value)
            if problem is not None:
                raise self._refused(str(problem), problem.path)
        choose, is_always = self._choosing
        try:
            encoded = self._written(choose(value) if is_always else value)
        except MISFITS as error:
            problem = self._find_problem(value)
            if problem is not None:
                raise self._refused(str(problem), problem.path) from error
            try:
                encoded = self._written(choose(value))
            except MISFITS:
                raise self._refused(str(error) or type(error).__name__, "") from error
        if self._check is not None:
            try:
                with self._checking:
                    self._check(encoded[len(self._prefix) :])
            except BadBody as error:
                raise self._refused(f"nobody would read it: {error}", "") from error
        return encoded

    def _written(self, value: Any) -> bytes:
        body = BytesIO()
        body.write(self._prefix)
        fastavro.schemaless_writer(body, self._compiled, value, strict_allow_default=True)
        return body.getvalue()

    def _is_passed(self, value: Any) -> bool:
        try:
            return self._guard is None or self._guard(value)
        except RecursionError as error:
            raise self._refused(_TOO_DEEP, "") from error

    def _find_problem(self, value: Any) -> Problem | None:
        try:
            return find_problem(self._schema, value)
        except RecursionError as error:
            raise self._refused(_TOO_DEEP, "") from error

    def _decoded_time(self, encoded: bytes) -> int | None:
        """What consumers will decode decides, where the value given says nothing plain: a default, a datetime, a chosen
        branch."""
        assert self._time_field is not None
        decoded = fastavro.schemaless_reader(BytesIO(encoded[len(self._prefix) :]), self._plain, None)
        return self._time_field.read(decoded) if isinstance(decoded, dict) else None

    def _refused(self, sentence: str, field: str) -> ValueRefused:
        return ValueRefused(
            f"topic {self.topic}: the value does not fit the schema of {self.subject} (id {self.schema_id}): "
            f"{sentence}",
            topic=self.topic,
            subject=self.subject,
            field=field,
        )


def _check_of(schema: Schema) -> Check:
    try:
        return compile_check(schema, the_core())
    except BadBody as error:
        refused = str(error)  # consumers say the same of each message

    def check(body: bytes) -> None:
        raise BadBody(refused)

    return check


def compiled_schema(schema: Schema, *, logical_types: bool = True) -> Any:
    """A schema for fastavro; without logical types, values are those of the underlying types.

    fastavro takes the JSON of a default for the value itself, where it writes a record without the field and where it
    reads into a schema that has one more. So its defaults are changed into the values they stand for.
    """
    compiled = _parsed(schema, logical_types)
    records = {name.full: node for name, node in schema.names.items() if isinstance(node, Record)}
    for defined in _records(compiled):
        for field, its_json in zip(records[defined["name"]].fields, defined["fields"], strict=True):
            if not _stands_for_itself(schema, field):
                its_json["default"] = _default_value(schema, field, logical_types)
    return compiled


def _parsed(schema: Schema, logical_types: bool) -> Any:
    """fastavro marks the records that it has parsed, so that they are not parsed again with each message. A root that
    is an array or a map has no mark, and the changed default of a record in it would be refused."""
    its_json = json.loads(self_contained_text(schema), object_hook=_valid if logical_types else _without_logical_type)
    aliases = _aliases(schema)
    named: dict[str, Any] = {alias: {} for alias in aliases}
    parsed = fastavro.parse_schema(its_json, named)
    parsed = _renamed(parsed, aliases)
    for alias in aliases:
        del named[alias]
    for root in parsed if isinstance(parsed, list) else [parsed]:
        if isinstance(root, dict):
            root.setdefault("__fastavro_parsed", True)
            root.setdefault("__named_schemas", named)
    return parsed


def _aliases(schema: Schema) -> dict[str, str]:
    """What fastavro takes the names of types without a namespace for where they are named inside one; Avro Java knows
    them there, too."""
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
    """The records that are defined in a schema of fastavro."""
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


def _stands_for_itself(schema: Schema, field: Field) -> bool:
    """Whether there is no default, or its JSON is the value already, as most are."""
    if not field.has_default or field.default is None or field.default == []:
        return True
    node = schema.resolve(field.type)
    return isinstance(node, Primitive) and node.logical is None and node.type in _AS_IN_JSON


def _default_value(schema: Schema, field: Field, logical_types: bool) -> Any:
    """What would be read had the default been written; the JSON where it is no value of the type, as in old schemas."""
    its_schema = dataclasses.replace(schema, root=field.type)
    try:
        body = encode_default(schema, field.type, field.default)
        return fastavro.schemaless_reader(BytesIO(body), _parsed(its_schema, logical_types), None)
    except Exception:  # fastavro raises whatever its C code meets
        return field.default


def _valid(node: dict[str, Any]) -> dict[str, Any]:
    """A logical type that is none of its type counts for nothing, as to Avro Java; fastavro refuses such schemas."""
    kind, size = node.get("type"), node.get("size")
    if isinstance(kind, str) and logical_type(node, kind, size if isinstance(size, int) else None) is None:
        node.pop("logicalType", None)
    return node


def _without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("logicalType", None)
    return node


TimeReader = Callable[[Any, bytes], int | None]


def _time_reader(field: TimeField, of_encoded: Callable[[bytes], int | None]) -> TimeReader:
    """Reads the time of a value given as plain integers; any other is read `of_encoded` bytes."""
    path, to_ms = field.path, field.to_ms

    def read(value: Any, encoded: bytes) -> int | None:
        try:
            for name in path:
                value = value[name]
        except (KeyError, TypeError, IndexError):
            return of_encoded(encoded)
        return to_ms(value) if value.__class__ is int else of_encoded(encoded)

    def read_millis(value: Any, encoded: bytes) -> int | None:
        """Of a field of the message itself."""
        try:
            time_ms = value[first]
        except (KeyError, TypeError, IndexError):
            return of_encoded(encoded)
        return time_ms if time_ms.__class__ is int else of_encoded(encoded)

    first, *inner = path
    return read_millis if field.unit is TimeUnit.MILLIS and not inner else read
