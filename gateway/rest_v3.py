"""Version 3 of the REST Proxy's interface: producing records one by one, as a stream, or in batches.

A stream is a sequence of JSON objects. The response has a JSON object for each, in the same order. A refused record
does not affect other records.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.gateway.access import Caller
from headrace.gateway.encoding import PLAIN, Format, avro_encoder, encoded
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.kafka_problems import problem_of
from headrace.gateway.record_fields import headers_of, time_ms, usable_text, whole_number
from headrace.gateway.schemas import ResolvedSchema, SchemaChoice, Schemas
from headrace.gateway.sender import OutgoingRecord, RecordSender, SendResult

RECORD_FIELDS: Final = frozenset({"partition_id", "headers", "key", "value", "timestamp"})
DATA_FIELDS: Final = frozenset(
    {"type", "subject", "subject_name_strategy", "schema_id", "schema_version", "schema", "data"}
)
SCHEMA_FIELDS: Final = DATA_FIELDS - {"type", "data"}
TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME = STRATEGIES = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")
BATCH_ENTRIES_MAX: Final = 10
PARTITION_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Data:
    """The encoded key or value of a record, and how it was encoded, for the response."""

    content: bytes | None
    form: Format
    schema: ResolvedSchema | None = None

    def as_json(self) -> dict[str, Any]:
        size = 0 if self.content is None else len(self.content)
        if self.schema is None:
            return {"type": self.form.name, "size": size}
        return {
            "type": self.form.name,
            "subject": self.schema.subject,
            "schema_id": self.schema.schema_id,
            "schema_version": self.schema.version,
            "size": size,
        }


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """A record of a request, with the encoded key and value."""

    record: OutgoingRecord
    key: Data | None
    value: Data | None


def check_media_type(content_type: str) -> None:
    """Raises:
    GatewayError: a request has another media type than JSON.
    """
    name = content_type.partition(";")[0].strip().lower()
    if name != "application/json":
        raise GatewayError(Kind.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type application/json, found {name!r:.80}")


async def prepare(topic: str, body: Any, schemas: Schemas, caller: Caller) -> PreparedRecord:
    """Checks and encodes a record.

    Raises:
        GatewayError: the record is refused.
    """
    check_fields(body, RECORD_FIELDS, "the record")
    key = await _encode(topic, "key", body.get("key"), schemas, caller)
    value = await _encode(topic, "value", body.get("value"), schemas, caller)
    record = OutgoingRecord(
        None if value is None else value.content,
        None if key is None else key.content,
        _partition(body.get("partition_id")),
        headers_of(body.get("headers")),
        time_ms(body.get("timestamp")),
    )
    return PreparedRecord(record, key, value)


def result_of(cluster: str, topic: str, prepared: PreparedRecord, result: SendResult) -> dict[str, Any]:
    """Returns the result of a record that was sent."""
    if result.error is not None:
        return problem_of(result.error).body
    return _result(cluster, topic, result, prepared.key, prepared.value)


async def produce_batch(
    cluster: str, topic: str, body: Any, schemas: Schemas, sender: RecordSender, caller: Caller
) -> dict[str, Any]:
    """Sends the records of a batch. Returns the results of stored and of failed records.

    Raises:
        GatewayError: the batch has not the form of the interface; no record was sent.
    """
    sent: list[tuple[str, PreparedRecord, asyncio.Future[list[SendResult]]]] = []
    failures = []
    for name, record in _entries(body):
        try:
            prepared = await prepare(topic, record, schemas, caller)
            sent.append((name, prepared, await sender.start(topic, (prepared.record,))))
        except GatewayError as error:
            failures.append({"id": name, **error.body})
    successes = []
    for name, prepared, future in sent:
        (result,) = await future
        found = {"id": name, **result_of(cluster, topic, prepared, result)}
        if result.error is None:
            del found["error_code"]
            successes.append(found)
        else:
            failures.append(found)
    return {"successes": successes, "failures": failures}


def _entries(body: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if body is None:
        raise GatewayError(Kind.BATCH, "the body is empty")
    check_fields(body, frozenset({"entries"}), "the batch")
    entries = body.get("entries")
    if not isinstance(entries, list) or not 0 < len(entries) <= BATCH_ENTRIES_MAX:
        raise GatewayError(Kind.BATCH, f'expected a list "entries" of 1 to {BATCH_ENTRIES_MAX} records')
    found: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(entries):
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise GatewayError(Kind.BATCH, f'entries[{index}]: expected an object with a text "id"')
        if name in found:
            raise GatewayError(Kind.BATCH, f"entries[{index}]: another entry has the id {name!r}")
        found[name] = {key: value for key, value in entry.items() if key != "id"}
    return list(found.items())


async def _encode(topic: str, part: str, data: Any, schemas: Schemas, caller: Caller) -> Data | None:
    """Encodes the key or value (`part`) of a record; None if the record has none."""
    if data is None:
        return None
    check_fields(data, DATA_FIELDS, part)
    form, content = _format(part, data), data.get("data")
    if form in PLAIN:
        return Data(encoded(PLAIN[form], content, part, Kind.BAD_REQUEST), form)
    choice = await _schema_choice(topic, part, data, schemas)
    caller.require_schema(topic, choice)
    schema = await schemas.find(choice)
    # With every schema, null is a tombstone, as in the REST Proxy.
    return Data(None if content is None else encoded(avro_encoder(schema), content, part), form, schema)


def _format(part: str, data: Mapping[str, Any]) -> Format:
    name = data.get("type")
    if name is None:
        return Format.AVRO
    if not isinstance(name, str) or name not in Format.__members__:
        known = ", ".join(Format.__members__)
        raise GatewayError(Kind.BAD_REQUEST, f"{part}.type: expected one of {known}, found {name!r:.40}")
    form, given = Format[name], {field for field, value in data.items() if value is not None}
    if form in PLAIN and not SCHEMA_FIELDS.isdisjoint(given):
        raise GatewayError(Kind.BAD_REQUEST, f"{part}: the type {name} has no schema; omit its fields or the type")
    if form is Format.AVRO and ("schema" not in given or {"schema_id", "schema_version"} & given):
        raise GatewayError(
            Kind.BAD_REQUEST,
            f"{part}: with the type AVRO, expected schema, without schema_id and schema_version; omit the type to use "
            "a registered schema",
        )
    return form


async def _schema_choice(topic: str, part: str, data: Mapping[str, Any], schemas: Schemas) -> SchemaChoice:
    schema_id, version = (_number(part, data, name) for name in ("schema_id", "schema_version"))
    subject, text, strategy = (_text(part, data, name) for name in ("subject", "schema", "subject_name_strategy"))
    if sum(one is not None for one in (schema_id, version, text)) > 1:
        raise GatewayError(Kind.BAD_REQUEST, f"{part}: expected only one of schema_id, schema_version and schema")
    if strategy is not None and (strategy not in STRATEGIES or subject):
        expected = f"expected {', '.join(STRATEGIES)}, found {strategy!r:.40}" if not subject else "omit it, or subject"
        raise GatewayError(Kind.BAD_REQUEST, f"{part}.subject_name_strategy: {expected}")
    choice = SchemaChoice(subject or "", schema_id=schema_id, version=version, text=text)
    return choice if subject else replace(choice, subject=await _subject(topic, part, strategy, choice, schemas))


async def _subject(topic: str, part: str, strategy: str | None, choice: SchemaChoice, schemas: Schemas) -> str:
    """Returns the subject of a schema by a strategy."""
    if strategy in (None, TOPIC_NAME):
        return f"{topic}-{part}"
    if choice.schema_id is None and choice.text is None:
        raise GatewayError(
            Kind.BAD_REQUEST, f"{part}.subject_name_strategy: {strategy} needs schema or schema_id; or name the subject"
        )
    name = await schemas.type_name(choice)
    return name if strategy == RECORD_NAME else f"{topic}-{name}"


def _number(part: str, data: Mapping[str, Any], name: str) -> int | None:
    if data.get(name) is None:
        return None
    value = whole_number(data[name])
    if value is None or not 0 <= value <= PARTITION_MAX:
        raise GatewayError(Kind.BAD_REQUEST, f"{part}.{name}: expected a number from 0 on")
    return value


def _text(part: str, data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return usable_text(value, f"{part}.{name}") if name == "subject" else value
    raise GatewayError(Kind.BAD_REQUEST, f"{part}.{name}: expected a text")


def check_fields(value: Any, names: frozenset[str], what: str) -> None:
    """Raises:
    GatewayError: a value is no object, or has other fields than `names`. `what` names it in the error.
    """
    if not isinstance(value, dict):
        raise GatewayError(Kind.BAD_REQUEST, f"{what}: expected an object")
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        raise GatewayError(Kind.BAD_REQUEST, f"{what}: unrecognized field {unknown!r:.80}")


def _partition(value: Any) -> int | None:
    if value is None:
        return None
    number = whole_number(value)
    if number is None or number > PARTITION_MAX:
        raise GatewayError(Kind.BAD_REQUEST, "partition_id: expected a number")
    if number < 0:
        raise GatewayError(Kind.PARTITION_NOT_FOUND, f"partition_id: there is no partition {number}")
    return number


@functools.lru_cache(maxsize=64)
def _second_text(second: int) -> str:
    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _result(cluster: str, topic: str, result: SendResult, key: Data | None, value: Data | None) -> dict[str, Any]:
    second, millisecond = divmod(result.timestamp_ms, 1000)
    found: dict[str, Any] = {
        "error_code": 200,
        "cluster_id": cluster,
        "topic_name": topic,
        "partition_id": result.partition,
        "offset": result.offset,
        "timestamp": f"{_second_text(second)}.{millisecond:03d}Z",
    }
    for name, data in (("key", key), ("value", value)):
        if data is not None:
            found[name] = data.as_json()
    return found
