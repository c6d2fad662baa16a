"""The HTTP interface of sessions: `POST /v1/sessions`, `POST /v1/sessions/{id}/chunks`, `DELETE /v1/sessions/{id}`."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.encoding import Unencodable, avro_encoder
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import MalformedJson, parse_json
from headrace.gateway.request_body import body_of, read_json
from headrace.gateway.responses import json_response
from headrace.gateway.schemas import ResolvedSchema, SchemaChoice, Schemas
from headrace.gateway.sessions.chunk_body import FRAMED, JSON, LINES, ChunkBody, MalformedChunk
from headrace.gateway.sessions.errors import (
    LaneUnavailable,
    SessionChanged,
    SessionEnded,
    SessionUnknown,
    WriteRefused,
    WrongMediaType,
)
from headrace.gateway.sessions.lanes import NotOwner
from headrace.gateway.sessions.log_line import LOG_LINE, LineEncoder
from headrace.gateway.sessions.request import Chunk, ChunkResult, Closing, Encode, Opening, SessionId
from headrace.gateway.sessions.service import Sessions, TopicUnknown
from headrace.gateway.sessions.sources import source_key

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
CHUNK_RECORDS_MAX: Final = 100_000
LEASE_S: Final = 60
RETRY_AFTER_S: Final = 1
NAME_BYTES_MAX: Final = 256
TOPIC_LENGTH_MAX: Final = 249
FILE_BYTES_MAX: Final = 4096
CHECKSUM_HEADER: Final = "headrace-checksum"
LINE_FORMAT, JSON_FORMAT, BINARY_FORMAT = "lines", "json", "binary"
TOPIC_AUTHORIZATION_FAILED: Final = 29


def routes() -> list[Route]:
    """Returns the routes. They need `Sessions` in `app.state.sessions`."""
    return [
        Route("/v1/sessions", _open, methods=["POST"]),
        Route("/v1/sessions/{session}/chunks", _store, methods=["POST"]),
        Route("/v1/sessions/{session}", _close, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The body of a request to open a session."""

    topic: str
    source_id: str
    log_type: str = ""
    host: str = ""
    file: str = ""
    format: str = LINE_FORMAT
    previous: int | None = None

    @classmethod
    def parse(cls, body: Any, topic_of: Callable[[str], str]) -> OpenRequest:
        """Raises:
        GatewayError: the body has another form.
        """
        names = [one.name for one in dataclasses.fields(cls)]
        if not isinstance(body, dict):
            raise GatewayError(Kind.BAD_REQUEST, f"expected an object with {', '.join(names)}")
        if unknown := set(body) - set(names):
            raise GatewayError(Kind.BAD_REQUEST, f"unknown field {sorted(unknown)[0]!r:.60}; known: {', '.join(names)}")
        previous = body.get("previous")
        if previous is not None and (type(previous) is not int or previous < 0):
            raise GatewayError(Kind.BAD_REQUEST, "previous: expected the number of a session, or 0")
        values = {name: _text(name, body[name]) for name in body if name != "previous" and body[name] is not None}
        if not values.get("source_id"):
            raise GatewayError(Kind.BAD_REQUEST, "source_id is missing")
        if values.get("format", LINE_FORMAT) not in (LINE_FORMAT, JSON_FORMAT, BINARY_FORMAT):
            raise GatewayError(Kind.BAD_REQUEST, "format: expected lines, json or binary")
        if not values.get("topic"):
            if not values.get("log_type"):
                raise GatewayError(Kind.BAD_REQUEST, "topic or log_type is required")
            values["topic"] = topic_of(values["log_type"])
        return cls(**values, previous=previous)

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        found = (("host", self.host), ("file", self.file), ("log_type", self.log_type))
        return tuple((name, value.encode()) for name, value in found if value)


def _text(name: str, value: Any) -> str:
    bytes_max = {"file": FILE_BYTES_MAX, "topic": TOPIC_LENGTH_MAX}.get(name, NAME_BYTES_MAX)
    if not isinstance(value, str):
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: the text contains half of a surrogate pair") from None
    if size > bytes_max:
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: {size:,} bytes of UTF-8, at most {bytes_max} are accepted")
    if not value.isprintable():
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: the text contains a control character")
    return value


def topic_of(log_types: Mapping[str, str], log_type: str) -> str:
    """Returns the topic of a log type: that of the first pattern it matches, otherwise the topic of the same name."""
    return next((topic for pattern, topic in log_types.items() if fnmatchcase(log_type, pattern)), log_type)


async def _open(request: Request) -> Response:
    state = request.app.state
    sessions: Sessions = state.sessions
    caller = caller_of(request)
    async with body_of(request, state.budget) as reader:
        wanted = OpenRequest.parse(await read_json(reader), partial(topic_of, state.settings.gateway.log_types))
    caller.require_produce(wanted.topic)
    try:
        topic = await sessions.topic(wanted.topic)
        opening = Opening(
            wanted.topic,
            wanted.source_id,
            wanted.host,
            topic.partition_count,
            await encoder_of(wanted, caller.loader.subject_of(wanted.topic), state.schemas, state.audit),
            wanted.format == JSON_FORMAT,
            wanted.format == LINE_FORMAT,
            topic.record_bytes_max,
            wanted.headers,
            time.time_ns() // 1_000_000,
            wanted.previous,
        )
        opened = await sessions.submit(source_key(wanted.topic, wanted.source_id), opening, opening.result)
    except Exception as error:
        return failure_response(request, error)
    return json_response(
        {
            "session": str(opened.session),
            "session_number": opened.session.number,
            "topic": wanted.topic,
            "partition": opened.partition,
            "last_seqno": opened.last_seqno,
            "max_chunk_bytes": CHUNK_BYTES_MAX,
            "lease_seconds": LEASE_S,
            "url": sessions.url,
        }
    )


async def encoder_of(
    wanted: OpenRequest, subject: str, schemas: Schemas, audit: GatewayAudit
) -> Callable[[int], Encode]:
    """Returns the function that returns the encoder of records by their receive time."""
    if wanted.format == BINARY_FORMAT:
        return _binary_encoder
    is_line = wanted.format == LINE_FORMAT
    found = await schemas.find(SchemaChoice(subject, text=LOG_LINE if is_line else None))
    await audit.times.prepare(wanted.topic, (found.prefix,))
    return partial(LineEncoder, found.prefix, wanted.host, wanted.file) if is_line else partial(_json_encoder, found)


def _binary_encoder(time_us: int) -> Encode:
    return _bytes


def _bytes(content: Any) -> bytes:
    assert isinstance(content, bytes)
    return content


def _json_encoder(schema: ResolvedSchema, time_us: int) -> Encode:
    encode = avro_encoder(schema)

    def encode_text(content: Any) -> bytes | None:
        if isinstance(content, bytes):
            try:
                content = parse_json(content)
            except MalformedJson as error:
                raise Unencodable(str(error)) from None
        return encode(content)

    return encode_text


async def _store(request: Request) -> Response:
    state = request.app.state
    sessions: Sessions = state.sessions
    session = _session_id(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (LINES, FRAMED, JSON):
        raise GatewayError(
            Kind.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type {LINES}, {FRAMED} or {JSON}, found {media_type!r:.80}"
        )
    begin, authorize = _begin(request), caller_of(request).require_produce
    async with body_of(request, state.budget, has_records=True) as reader:
        body = await reader.read()
        if len(body) > CHUNK_BYTES_MAX:
            raise GatewayError(
                Kind.BODY_TOO_LARGE, f"the chunk has {len(body):,} bytes, at most {CHUNK_BYTES_MAX:,} are accepted"
            )
        check_sum(request.headers.get(CHECKSUM_HEADER), zlib.crc32(body))
        try:
            records = ChunkBody(media_type, body, begin)
            if records.count > CHUNK_RECORDS_MAX:
                raise GatewayError(
                    Kind.BODY_TOO_LARGE,
                    f"the chunk has {records.count:,} records, at most {CHUNK_RECORDS_MAX:,} are accepted",
                )
            chunk = Chunk(session, authorize, records, time.time_ns() // 1000)
            result = await sessions.submit(session.key, chunk, chunk.result)
        except MalformedChunk as error:
            raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
        except Exception as error:
            return failure_response(request, error)
    state.metrics.count_records(result.written)
    if result.rejected:
        state.metrics.count_records(0, {"rejected": len(result.rejected)})
    return json_response(_result(result))


def _result(result: ChunkResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "last_seqno": result.last_seqno,
        "written": result.written,
        "skipped": result.skipped,
        "rejected": [
            {"seqno": seqno, "error_code": Kind.UNCONVERTIBLE.value.code, "message": reason}
            for seqno, reason in result.rejected
        ],
    }
    if result.conflict:
        found["conflict"] = True
    return found


async def _close(request: Request) -> Response:
    session = _session_id(request)
    closing = Closing(session, caller_of(request).require_produce)
    sessions: Sessions = request.app.state.sessions
    try:
        await sessions.submit(session.key, closing, closing.result)
    except Exception as error:
        return failure_response(request, error)
    return Response(status_code=204)


def _session_id(request: Request) -> SessionId:
    try:
        return SessionId.parse(request.path_params["session"])
    except ValueError as error:
        raise GatewayError(Kind.SESSION_UNKNOWN, str(error)) from None


def _begin(request: Request) -> int | None:
    text = request.query_params.get("begin")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise GatewayError(Kind.BAD_REQUEST, f"begin={text!r:.40}: expected a number from 0 to 2^63-1")
    return int(text)


def check_sum(text: str | None, crc32: int) -> None:
    """Compares the checksum that a client sent, such as `crc32=1a2b3c4d`, with that of the body.

    Raises:
        GatewayError: they differ.
    """
    if text is None:
        return
    name, _, value = text.partition("=")
    found = f"{crc32:08x}"
    if name != "crc32" or value.lower().rjust(8, "0") != found:
        raise GatewayError(
            Kind.BAD_REQUEST, f"Headrace-Checksum {text!r:.40} differs from that of the body, crc32={found}"
        )


def failure_response(request: Request, error: Exception) -> Response:
    """Returns the response to a failure of the sessions; raises other errors again."""
    match error:
        case NotOwner():
            query = f"?{request.url.query}" if request.url.query else ""
            location = f"{error.url.rstrip('/')}{request.url.path}{query}"
            moved = GatewayError(Kind.NOT_OWNER, str(error))
            return json_response(moved.body, moved.status, Location=location)
        case SessionEnded():
            opened_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(error.opened_ms / 1000))
            ended = GatewayError(Kind.SESSION_ENDED, f"{error} at {opened_at}; only one client may send a source")
            return json_response({**ended.body, "host": error.host, "opened_at": opened_at}, ended.status)
        case SessionChanged():
            changed = GatewayError(Kind.SESSION_CHANGED, f"{error}; open one after it")
            return json_response({**changed.body, "session_number": error.number}, changed.status)
        case _:
            raise _translated(error) from None


def _translated(error: Exception) -> Exception:
    match error:
        case SessionUnknown():
            return GatewayError(Kind.SESSION_UNKNOWN, str(error))
        case WrongMediaType():
            return GatewayError(Kind.UNSUPPORTED_MEDIA_TYPE, str(error))
        case TopicUnknown():
            return GatewayError(Kind.TOPIC_NOT_FOUND, str(error))
        case LaneUnavailable():
            return GatewayError(Kind.KAFKA_UNAVAILABLE, str(error), retry_after_s=RETRY_AFTER_S)
        case WriteRefused():
            is_denied = error.code == TOPIC_AUTHORIZATION_FAILED
            return GatewayError(Kind.NOT_AUTHORIZED if is_denied else Kind.KAFKA_FAILED, str(error))
        case _:
            return error
