"""From a Python value to the bytes of a message, under one registered schema: compiled once, used for every message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro

from headrace.avro_schema import Schema, TimeField, find_time_field, frame, self_contained_text
from headrace.avro_schema.message_time import TimeUnit
from headrace.pipeline.clients.datum import compile_guard, find_problem
from headrace.pipeline.clients.errors import ValueRefused
from headrace.pipeline.clients.fast_encoder import compile_encoder


class Encoding:
    """Encodes the values of one topic under one schema.

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
        self._encode_plain = compile_encoder(schema, self._prefix)
        self._guard = compile_guard(schema)
        field = find_time_field(schema, time_property, time_fields)
        self._time_field = field
        self._time_of = _time_reader(field) if field is not None else None
        self._plain = compiled_schema(schema, logical_types=False) if field is not None else None

    def encode(self, value: Any) -> bytes:
        """The message value: prefix and Avro binary.

        Raises:
            ValueRefused: the value does not fit the schema; names the field.
        """
        if self._encode_plain is None:
            return self._encode_any(value)
        try:
            return self._encode_plain(value)
        except Exception:  # whatever is not plain is for those who know all that a value may be
            return self._encode_any(value)

    def _encode_any(self, value: Any) -> bytes:
        guard = self._guard
        if guard is not None and not guard(value):
            problem = find_problem(self._schema, value)
            if problem is not None:
                raise self._refused(str(problem), problem.path)
        body = BytesIO()
        body.write(self._prefix)
        try:
            fastavro.schemaless_writer(body, self._compiled, value, strict_allow_default=True)
        except Exception as error:  # fastavro raises whatever its C code meets: ValueError, TypeError, AttributeError …
            problem = find_problem(self._schema, value)
            if problem is None:
                raise self._refused(str(error) or type(error).__name__, "") from error
            raise self._refused(str(problem), problem.path) from error
        return body.getvalue()

    def time_ms(self, value: Any, encoded: bytes) -> int | None:
        """The message time, or None when the record's timestamp is it.

        What consumers will decode decides: where the value given says nothing plain (a default, a datetime, a chosen
        branch), the encoded bytes are read back.
        """
        if self._time_of is None:
            return None
        time_ms = self._time_of(value)
        if time_ms is None and self._time_field is not None:
            decoded = fastavro.schemaless_reader(BytesIO(encoded[len(self._prefix) :]), self._plain, None)
            time_ms = self._time_field.read(decoded) if isinstance(decoded, dict) else None
        return time_ms

    def _refused(self, sentence: str, field: str) -> ValueRefused:
        return ValueRefused(
            f"topic {self.topic}: the value does not fit the schema of {self.subject} (id {self.schema_id}): "
            f"{sentence}",
            topic=self.topic,
            subject=self.subject,
            field=field,
        )


def compiled_schema(schema: Schema, *, logical_types: bool = True) -> Any:
    """A schema for fastavro; without logical types, values are those of the underlying types."""
    text = self_contained_text(schema)
    return fastavro.parse_schema(json.loads(text, object_hook=None if logical_types else _without_logical_type))


def _without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("logicalType", None)
    return node


def _time_reader(field: TimeField) -> Callable[[Any], int | None]:
    """Reads the time of a value given as plain integers; None asks for the encoded bytes."""
    path, to_ms, is_ms = field.path, field.to_ms, field.unit is TimeUnit.MILLIS

    def read(value: Any) -> int | None:
        try:
            for name in path:
                value = value[name]
        except (KeyError, TypeError, IndexError):
            return None
        if value.__class__ is not int:
            return None
        return value if is_ms else to_ms(value)

    return read
