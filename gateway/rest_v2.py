"""Version 2 of the REST Proxy's interface: producing.

A body has records of one format, which the media type names. The response has a result for each record, in the order of
the records, unless the request itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.gateway.access import Caller
from headrace.gateway.encoding import PLAIN, Encode, Format, avro_encoder, encode_null, encoded
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.kafka_problems import problem_of
from headrace.gateway.record_fields import headers_of, time_ms, whole_number
from headrace.gateway.responses import V2_JSON, json_bytes
from headrace.gateway.schemas import ResolvedSchema, SchemaChoice, Schemas
from headrace.gateway.sender import OutgoingRecord, RecordSender, SendResult
from headrace.gateway.turn import Turn

MEDIA_TYPE: Final = V2_JSON
_PRODUCE_TYPE: Final = re.compile(r"application/vnd\.kafka\.(binary|json|avro)(\.v[12])?\+json")
_TYPE_OF_ANY_FORMAT: Final = re.compile(r"application/vnd\.kafka(\.v[12])?\+json")
_UNSUPPORTED_TYPE: Final = re.compile(r"application/vnd\.kafka\.(jsonschema|protobuf)\.v2\+json")
_WEIGHT: Final = re.compile(r"q *= *([01](?:\.[0-9]{0,3})?)")
_ACCEPTED: Final = re.compile(r"\*/\*|application/\*|\*/json|application/(vnd\.kafka(\.[a-z]+)?(\.v[12])?\+)?json")

PIECE_RECORDS: Final = 200
"""Records of a large request that are sent at a time; other requests run between the pieces."""
PARTITION_MAX: Final = 2**31 - 1
SCHEMA_ID_MAX: Final = 2**31 - 1
BODY_FIELDS: Final = frozenset(
    {"records", "key_schema", "key_schema_id", "value_schema", "value_schema_id", "key_format"}
)
RECORD_FIELDS: Final = frozenset({"key", "value", "partition", "headers", "timestamp"})


@dataclass(frozen=True, slots=True)
class ProduceBody:
    """A body that was parsed, before its keys and values are encoded."""

    records: Sequence[Mapping[str, Any]]
    key_format: Format
    value_format: Format
    key_schema: SchemaChoice | None
    value_schema: SchemaChoice | None


def format_of(content_type: str, json_records: Format) -> Format:
    """Returns the format of the records of a body.

    Args:
        json_records: the format of bodies with the media type application/json or application/octet-stream.

    Raises:
        GatewayError: the interface does not have the media type.
    """
    name = content_type.partition(";")[0].strip().lower()
    found = _PRODUCE_TYPE.fullmatch(name)
    if found is not None:
        return Format(found[1])
    if name in ("application/json", "application/octet-stream"):
        return json_records
    if _TYPE_OF_ANY_FORMAT.fullmatch(name):
        return Format.BINARY
    unsupported = _UNSUPPORTED_TYPE.fullmatch(name)
    reason = f"schemas of type {unsupported[1]} are not supported" if unsupported else f"found {name or 'none'!r}"
    raise GatewayError(
        Kind.UNSUPPORTED_MEDIA_TYPE,
        f"expected Content-Type application/vnd.kafka.FORMAT.v2+json with the format binary, json or avro; {reason}",
    )


def accepted_types(accept: str) -> list[str]:
    """Returns the media types of JSON that a client accepts, in lower case, the preferred ones first.

    Args:
        accept: the header (RFC 9110, 12.5.1). Without it, all types are accepted.
    """
    weights: dict[str, float] = {}
    for one in accept.lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        found = (_WEIGHT.fullmatch(part) for part in parameters)
        weights[name or "*/*"] = next((float(weight[1]) for weight in found if weight), 1.0)
    names = [name for name, weight in weights.items() if weight > 0 and _ACCEPTED.fullmatch(name)]
    return sorted(names, key=lambda name: (-weights[name], "*" in name))


def check_accept(accept: str) -> None:
    """Checks that a client accepts JSON.

    Raises:
        GatewayError: it accepts only other media types.
    """
    if not accepted_types(accept):
        raise GatewayError(Kind.NOT_ACCEPTABLE, f"expected Accept {MEDIA_TYPE}, found {accept!r:.80}")


async def parse_produce(topic: str, partition: int | None, body: Any, form: Format, turn: Turn) -> ProduceBody:
    """Checks the form of a body. Values of another type are bad requests; other errors make it unprocessable.

    Args:
        topic: the topic, for the subjects of the schemas.
        partition: the partition of the URL, if it has one. Records then have none.
        turn: other requests run when it is over.

    Raises:
        GatewayError: the body has not the form of the interface.
    """
    _check_body(body)
    names = RECORD_FIELDS if partition is None else RECORD_FIELDS - {"partition"}
    for index, record in enumerate(body["records"]):
        if not isinstance(record, dict):
            raise GatewayError(Kind.BAD_REQUEST, f"records[{index}]: expected an object")
        _check_fields(record, names, f"records[{index}]: ")
        if turn.is_over:
            await turn.next()
    key_format = body.get("key_format", form.value)
    if key_format not in tuple(Format):
        raise GatewayError(Kind.MALFORMED, f"key_format: expected one of {', '.join(Format)}, found {key_format!r:.80}")
    formats = {"key": Format(key_format), "value": form}
    schemas = {part: _schema_choice(topic, body, part) if one is Format.AVRO else None for part, one in formats.items()}
    for part, kind in (("value", Kind.VALUE_SCHEMA_MISSING), ("key", Kind.KEY_SCHEMA_MISSING)):
        has_schema = schemas[part] is not None or formats[part] is not Format.AVRO
        if not has_schema and any(record.get(part) is not None for record in body["records"]):
            raise GatewayError(kind, f"expected {part}_schema or {part}_schema_id with Avro {part}s")
    return ProduceBody(body["records"], formats["key"], form, schemas["key"], schemas["value"])


def _check_body(body: Any) -> None:
    if body is None:
        raise GatewayError(Kind.MALFORMED, "the body is empty")
    if not isinstance(body, dict):
        raise GatewayError(Kind.BAD_REQUEST, "expected an object")
    _check_fields(body, BODY_FIELDS, "")
    records = body.get("records")
    if records is not None and not isinstance(records, list):
        raise GatewayError(Kind.BAD_REQUEST, "records: expected a list")
    if not records:
        raise GatewayError(Kind.MALFORMED, "records: expected at least one record")


def _check_fields(value: Mapping[str, Any], names: frozenset[str], where: str) -> None:
    if not value.keys() <= names:
        raise GatewayError(Kind.MALFORMED, f"{where}unrecognized field {min(value.keys() - names)!r:.80}")


def _schema_choice(topic: str, body: Mapping[str, Any], part: str) -> SchemaChoice | None:
    subject, text = f"{topic}-{part}", body.get(f"{part}_schema")
    if body.get(f"{part}_schema_id") is not None:
        schema_id = whole_number(body[f"{part}_schema_id"])
        if schema_id is None:
            raise GatewayError(Kind.BAD_REQUEST, f"{part}_schema_id: expected a number")
        if not 0 <= schema_id <= SCHEMA_ID_MAX:
            raise GatewayError(Kind.MALFORMED, f"expected {part}_schema_id to be a number from 0 to {SCHEMA_ID_MAX}")
        return SchemaChoice(subject, schema_id=schema_id)
    if text is not None:
        if not isinstance(text, str):
            raise GatewayError(Kind.BAD_REQUEST, f"expected {part}_schema to be a text")
        return SchemaChoice(subject, text=text)
    return None


async def encode_records(
    request: ProduceBody, encode_key: Encode, encode_value: Encode, partition: int | None, turn: Turn
) -> list[OutgoingRecord]:
    """Encodes the records of a request.

    Args:
        partition: the partition of the URL; None if it has none, so that each record may have one.
        turn: other requests run when it is over.

    Raises:
        GatewayError: a record cannot be encoded; none is sent.
    """
    records = []
    key_kind, value_kind = map(_kind_of_mismatch, (request.key_format, request.value_format))
    for index, record in enumerate(request.records):
        if turn.is_over:
            await turn.next()
        where = f"records[{index}]"
        records.append(
            OutgoingRecord(
                encoded(encode_value, record.get("value"), f"{where}.value", value_kind),
                encoded(encode_key, record.get("key"), f"{where}.key", key_kind),
                _partition(record.get("partition"), where) if partition is None else partition,
                headers_of(record.get("headers"), f"{where}.headers"),
                time_ms(record.get("timestamp"), f"{where}.timestamp"),
            )
        )
    return records


def _kind_of_mismatch(form: Format) -> Kind:
    """Returns the kind of error for a value that cannot be encoded; invalid base64 has the general code."""
    return Kind.MALFORMED if form is Format.BINARY else Kind.UNCONVERTIBLE


def _partition(value: Any, where: str) -> int | None:
    if value is None:
        return None
    number = whole_number(value)
    if number is None or number > PARTITION_MAX:
        raise GatewayError(Kind.BAD_REQUEST, f"{where}.partition: expected the number of a partition")
    if number < 0:
        raise GatewayError(Kind.MALFORMED, f"{where}.partition: expected a number from 0 on")
    return number


async def produce(
    topic: str, partition: int | None, body: Any, form: Format, schemas: Schemas, sender: RecordSender, caller: Caller
) -> bytes:
    """Sends the records of a body. Returns the body of the response.

    Raises:
        GatewayError: nothing was sent, or the brokers denied a record.
    """
    turn = Turn()
    request = await parse_produce(topic, partition, body, form, turn)
    caller.require_schema(topic, request.key_schema)
    caller.require_schema(topic, request.value_schema)
    key_schema = None if request.key_schema is None else await schemas.find(request.key_schema)
    value_schema = None if request.value_schema is None else await schemas.find(request.value_schema)
    encode_key = _encoder(request.key_format, key_schema)
    encode_value = _encoder(request.value_format, value_schema)
    records = await encode_records(request, encode_key, encode_value, partition, turn)
    results = await _send(topic, records, sender, turn)
    for one in results:
        if one.error is not None and problem_of(one.error).kind is Kind.NOT_AUTHORIZED:
            raise problem_of(one.error)  # of the whole request, as in the REST Proxy
    ids = {
        "key_schema_id": None if key_schema is None else key_schema.schema_id,
        "value_schema_id": None if value_schema is None else value_schema.schema_id,
    }
    return b'{"offsets":[' + await _offsets(results, turn) + b"]," + json_bytes(ids)[1:]


async def _send(topic: str, records: Sequence[OutgoingRecord], sender: RecordSender, turn: Turn) -> list[SendResult]:
    """Sends records. Returns their results."""
    sent = []
    for start in range(0, len(records), PIECE_RECORDS):
        if turn.is_over:
            await turn.next()
        sent.append(await sender.start(topic, records[start : start + PIECE_RECORDS]))
    return [result for future in sent for result in await future]


def _encoder(form: Format, schema: ResolvedSchema | None) -> Encode:
    if form is not Format.AVRO:
        return PLAIN[form]
    return encode_null if schema is None else avro_encoder(schema)


async def _offsets(results: Sequence[SendResult], turn: Turn) -> bytes:
    """Returns the items of the list of results in JSON."""
    pieces = []
    for start in range(0, len(results), PIECE_RECORDS):
        pieces.append(json_bytes([_result(one) for one in results[start : start + PIECE_RECORDS]])[1:-1])
        if turn.is_over:
            await turn.next()
    return b",".join(pieces)


def _result(result: SendResult) -> dict[str, Any]:
    if result.error is None:
        return {"partition": result.partition, "offset": result.offset, "error_code": None, "error": None}
    problem = problem_of(result.error)
    return {"partition": None, "offset": None, "error_code": problem.kind.value.code, "error": problem.message}
