"""Decodes the bytes of a message to a Python value with the schema that wrote it, or resolved to a reader schema.

fastavro decodes without validation. Each body is therefore validated first: it must be exactly one value of the schema.
Loads use the same validation, but also quarantine some values on which queries would fail (`avro_codec.readable`).

With a reader schema, `avro_codec.resolve` converts the body to a body of that schema, and fastavro decodes the result
with the reader schema alone. fastavro's own resolution takes the first union branch that a value is promoted to, even
if a later one is exact, and decodes logical types as the writer declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from headrace.avro_codec import (
    BadBody,
    CapturedTime,
    Check,
    UnresolvableValue,
    compile_check,
    compile_resolution,
    core_library,
)
from headrace.avro_schema import (
    AvroSchemaError,
    FramingError,
    Schema,
    SchemaParseError,
    TimeField,
    find_time_fields,
    read_time,
    unframe,
)
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.clients.encoding import compiled_schema
from headrace.clients.errors import SourceUnavailable, UndecodableMessage, error_line
from headrace.registry.client import RegistryClient
from headrace.registry.errors import INCONCLUSIVE_ERRORS, AccessDenied, RegistryError, SchemaNotFound
from headrace.settings import LoaderSettings


class FetchedRecord(NamedTuple):
    """A record of a partition; its value is not decoded. If `is_end` is True, it is no record: it reports that reading
    has reached the current end of the partition, at `offset`."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    is_end: bool = False


class _Writer(NamedTuple):
    """The compiled forms of one writer schema.

    Attributes:
        check: validates a body. If the schema cannot be used, rejects every body with the reason.
        resolve: with a reader schema, validates a body and returns the body of the same value in that schema.
        compiled: the schema of the checked or resolved bodies, for fastavro.
        time_fields: the fields that may hold the message time, the preferred one first.
        captured_time: with a reader schema, receives the message time from `resolve`.
    """

    check: Check
    resolve: Callable[[bytes], bytes] | None
    compiled: Any
    time_fields: tuple[TimeField, ...]
    captured_time: CapturedTime


class _NewestVersion(NamedTuple):
    """The newest version of a topic's subject: the metadata property `headrace.time`, and the schema. "" and None if
    the subject has no version that can be used."""

    time_property: str = ""
    schema: Schema | None = None


class Decoder:
    """Decodes the values of records. The prefix of a value, or a header, contains the id of its schema.

    Args:
        registry: fetches the schemas by id.
        reader_schema: schema that values are resolved to; None returns them as written.
        loader: settings with the subjects and time fields of topics.

    Raises:
        ValueError: `reader_schema` is not a schema, or fastavro rejects it.
    """

    def __init__(self, registry: RegistryClient, reader_schema: Schema | None, loader: LoaderSettings) -> None:
        if not isinstance(reader_schema, Schema | None):
            found = f"{type(reader_schema).__name__} {reader_schema!r:.60}"
            raise ValueError(f"expected reader_schema to be JSON text or None, found {found}")
        self._registry = registry
        self._reader_schema = reader_schema
        try:
            self._reader = compiled_schema(reader_schema) if reader_schema is not None else None
        except AvroSchemaError as error:
            raise ValueError(f"reader_schema cannot be used: {error}") from error
        self._loader = loader
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._newest: dict[str, _NewestVersion] = {}

    def decode(self, record: FetchedRecord) -> tuple[int | None, Any, int | None]:
        """Returns three values of a record: the schema id, the decoded value, and the message time, which is the time
        of the event, or None to use the record timestamp; all None for a tombstone. Raises the same errors as
        `decode_with_fields`."""
        return self.decode_with_fields(record)[:3]

    def decode_with_fields(self, record: FetchedRecord) -> tuple[int | None, Any, int | None, tuple[TimeField, ...]]:
        """Returns the values of `decode`, and the fields of the schema that may hold the message time.

        Raises:
            UndecodableMessage: the value has no valid schema id or does not match its schema, or the schema is not
                registered or cannot be used.
            SourceUnavailable: its schema cannot be fetched.
        """
        if record.value is None:
            return None, None, None, ()
        try:
            framed = unframe(record.value, record.headers)
        except FramingError as error:
            raise _undecodable(record, str(error)) from error
        writer = self._writers.get((record.topic, framed.schema_id))
        if writer is None:
            writer = self._find_writer(record, framed.schema_id)
        try:
            body = framed.body
            if writer.resolve is None:
                writer.check(body)
            else:
                body = writer.resolve(body)
            value = fastavro.schemaless_reader(BytesIO(body), writer.compiled, None)
            time_ms = self._time_ms(writer, value)
        except UnresolvableValue as error:
            reason = f"a value of schema {framed.schema_id} cannot be read with reader_schema: {error}"
            raise _undecodable(record, reason) from error
        except BadBody as error:
            raise _undecodable(record, f"the value does not match schema {framed.schema_id}: {error}") from error
        except Exception as error:  # fastavro raises errors of many types
            raise _undecodable(
                record, f"the value does not match schema {framed.schema_id}: {error_line(error)}"
            ) from error
        return framed.schema_id, value, time_ms, writer.time_fields

    def _time_ms(self, writer: _Writer, value: Any) -> int | None:
        if not writer.time_fields:
            return None
        if self._reader_schema is None:
            return read_time(writer.time_fields, value)
        return None if writer.captured_time.value is None else writer.captured_time.time_ms

    def _find_writer(self, record: FetchedRecord, schema_id: int) -> _Writer:
        try:
            schema = self._registry.parsed(self._registry.schema_by_id(schema_id))
            if record.topic not in self._newest:
                self._newest[record.topic] = self._newest_version(self._loader.subject_of(record.topic))
        except SchemaNotFound as error:
            raise _undecodable(
                record,
                f"the registry has no schema with id {schema_id}; check that registry.url names the registry of the "
                "producer",
            ) from error
        except SchemaParseError as error:
            raise _undecodable(record, f"schema {schema_id} of the registry is invalid: {error}") from error
        except (*INCONCLUSIVE_ERRORS, AccessDenied) as error:
            raise SourceUnavailable(f"schema {schema_id}: {error}", topic=record.topic) from error
        writer = self._writer(record.topic, schema)
        self._writers[record.topic, schema_id] = writer
        return writer

    def _writer(self, topic: str, schema: Schema) -> _Writer:
        candidates, newest = self._loader.of_topic(topic).time_fields, self._newest[topic]
        captured_time = CapturedTime()
        try:
            time_fields = find_time_fields(schema, newest.time_property, candidates, newest.schema)
            if self._reader_schema is None:
                check = compile_check(schema, core_library())
                return _Writer(check, None, compiled_schema(schema), time_fields, captured_time)
            resolve = compile_resolution(schema, self._reader_schema, core_library(), time_fields, captured_time)
            return _Writer(_accept, resolve, self._reader, time_fields, captured_time)
        except Exception as error:  # fastavro rejects some valid schemas
            check = _always_raising(f"the schema cannot be used: {error_line(error)}")
            return _Writer(check, None, None, (), captured_time)

    def _newest_version(self, subject: str) -> _NewestVersion:
        try:
            registered = self._registry.version(subject, "latest")
            return _NewestVersion(registered.metadata.get(TIME_PROPERTY, ""), self._registry.parsed(registered))
        except (*INCONCLUSIVE_ERRORS, AccessDenied):
            raise
        except (RegistryError, AvroSchemaError):
            return _NewestVersion()  # the topic may have no subject; its messages are decoded nevertheless


def _accept(body: bytes) -> None:
    """Accepts each body; `resolve` validates it."""


def _always_raising(reason: str) -> Check:
    def check(body: bytes) -> None:
        raise BadBody(reason)

    return check


def _undecodable(record: FetchedRecord, reason: str) -> UndecodableMessage:
    return UndecodableMessage(
        f"topic {record.topic} partition {record.partition} offset {record.offset}: {reason}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
    )
