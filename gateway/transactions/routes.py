"""The HTTP interface of transactions: `POST /v1/store`, `POST /v1/commit_request`, `POST /v1/commit`."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.request_body import body_of, read_json
from headrace.gateway.responses import json_response
from headrace.gateway.sessions.chunk_body import FRAMED, LINES
from headrace.gateway.sessions.routes import (
    CHECKSUM_HEADER,
    OpenRequest,
    check_sum,
    encoder_of,
    failure_response,
    topic_of,
)
from headrace.gateway.sessions.service import SessionTopic
from headrace.gateway.transactions.conversion import RecordsRejected
from headrace.gateway.transactions.identity import TransactionKey
from headrace.gateway.transactions.ledger import ChunkMissing, Committed, NotConverted, OtherContent
from headrace.gateway.transactions.service import Transactions
from headrace.gateway.transactions.spool import StoredChunk

TRANSACTION_ID: Final = "transaction_id"
PARAMETERS: Final = ("topic", "log_type", "format", "host", "file", "partition", TRANSACTION_ID)
PARTITION_DIGITS_MAX: Final = 6


def routes() -> list[Route]:
    """Returns the routes. They need `Transactions` in `app.state.transactions`, and `Sessions`."""
    return [
        Route("/v1/store", _store, methods=["POST"]),
        Route("/v1/commit_request", _request_commit, methods=["POST"]),
        Route("/v1/commit", _commit, methods=["POST"]),
    ]


async def _store(request: Request) -> Response:
    state, caller, query = request.app.state, caller_of(request), dict(request.query_params)
    transactions: Transactions = state.transactions
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (LINES, FRAMED):
        raise GatewayError(
            Kind.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type {LINES} or {FRAMED}, found {media_type!r:.80}"
        )
    if unknown := query.keys() - PARAMETERS:
        raise GatewayError(Kind.BAD_REQUEST, f"unknown parameter {min(unknown)!r:.60}; known: {', '.join(PARAMETERS)}")
    client = caller.principal.name
    partition = query.pop("partition", "")
    query["source_id"] = query.pop(TRANSACTION_ID, "") or transactions.new_id(client)
    wanted = OpenRequest.parse(query, partial(topic_of, state.settings.gateway.log_types))
    caller.require_produce(wanted.topic)
    try:
        key = await transactions.key(client, wanted.source_id)
        number = _partition(partition, key, await state.sessions.topic(wanted.topic))
    except Exception as error:
        return failure_response(request, error)
    check = partial(check_sum, request.headers.get(CHECKSUM_HEADER))
    async with body_of(request, state.budget, has_records=True) as reader:
        chunk = await transactions.store(key, caller.key, wanted, number, media_type, reader, check)
    return json_response(_described(chunk, transactions.url))


def _partition(text: str, key: TransactionKey, topic: SessionTopic) -> int:
    """Returns the partition of a chunk, by default one that its transaction determines."""
    if not text:
        return int.from_bytes(key[8:], "big") % topic.partition_count
    if not text.isascii() or not text.isdecimal() or len(text) > PARTITION_DIGITS_MAX:
        raise GatewayError(Kind.BAD_REQUEST, f"partition={text!r:.40}: expected a number")
    _check_partition(int(text), topic)
    return int(text)


def _check_partition(number: int, topic: SessionTopic) -> None:
    if number >= topic.partition_count:
        raise GatewayError(
            Kind.PARTITION_NOT_FOUND, f"partition {number} does not exist; the topic has {topic.partition_count}"
        )


def _described(chunk: StoredChunk, url: str) -> dict[str, Any]:
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(chunk.expires_ms / 1000))
    return {
        TRANSACTION_ID: chunk.transaction_id,
        "topic": chunk.wanted.topic,
        "length": chunk.length,
        "checksum": f"crc32={chunk.crc32:08x}",
        "records": chunk.record_count,
        "expires": expires,
        "url": url,
    }


async def _request_commit(request: Request) -> Response:
    state, caller = request.app.state, caller_of(request)
    caller.require_any()
    transactions: Transactions = state.transactions
    async with body_of(request, state.budget) as reader:
        body = await read_json(reader)
    transaction_id, length, checksum = _fields(body, TRANSACTION_ID, "length", "checksum")
    try:
        key = await transactions.key(caller.principal.name, transaction_id)
        chunk = transactions.chunk(key, transaction_id)
        caller.require_produce(chunk.wanted.topic)
        if (length, str(checksum).lower()) != (chunk.length, f"crc32={chunk.crc32:08x}"):
            raise GatewayError(
                Kind.CHUNK_DIFFERS,
                f"the stored chunk has {chunk.length:,} bytes, crc32={chunk.crc32:08x}; store the right one with the "
                "same id",
            )
        if chunk.record_count is None:
            topic = await state.sessions.topic(chunk.wanted.topic)
            subject = caller.loader.subject_of(chunk.wanted.topic)
            encoder = await encoder_of(chunk.wanted, subject, state.schemas, state.audit)
            chunk = await transactions.convert(chunk, encoder(time.time_ns() // 1000), topic.record_bytes_max)
    except RecordsRejected as error:
        return _rejected(error)
    except Exception as error:
        return failure_response(request, error)
    return json_response(_described(chunk, transactions.url))


def _rejected(error: RecordsRejected) -> Response:
    refused = GatewayError(Kind.RECORDS_REJECTED, str(error))
    rejected = [{"record": number, "message": reason} for number, reason in error.first]
    return json_response({**refused.body, "rejected_count": error.count, "rejected": rejected}, refused.status)


async def _commit(request: Request) -> Response:
    state, caller = request.app.state, caller_of(request)
    caller.require_any()
    transactions: Transactions = state.transactions
    async with body_of(request, state.budget) as reader:
        (transaction_id,) = _fields(await read_json(reader), TRANSACTION_ID)
    client = caller.principal.name
    try:
        chunk = transactions.spool.find(await transactions.key(client, transaction_id), time.time_ns() // 1_000_000)
        if chunk is not None:
            caller.require_produce(chunk.wanted.topic)
            # An unknown partition would block the lane until its retries end.
            _check_partition(chunk.partition, await state.sessions.topic(chunk.wanted.topic))
            await state.audit.times.prepare(chunk.wanted.topic, map(bytes.fromhex, chunk.prefixes))
        committed = await transactions.commit(client, transaction_id, chunk)
    except ChunkMissing as error:
        missing = transactions.missing(transaction_id)
        raise missing if chunk is None else GatewayError(Kind.TRANSACTION_UNKNOWN, str(error)) from None
    except NotConverted as error:
        raise GatewayError(Kind.NOT_CONVERTED, str(error)) from None
    except OtherContent as error:
        raise GatewayError(Kind.CHUNK_DIFFERS, str(error)) from None
    except Exception as error:
        return failure_response(request, error)
    return json_response(_result(transaction_id, committed))


def _result(transaction_id: str, committed: Committed) -> dict[str, Any]:
    return {
        TRANSACTION_ID: transaction_id,
        "topic": committed.topic,
        "offsets": [{"partition": committed.partition, "start": start, "end": end} for start, end in committed.ranges],
        "records": committed.record_count,
        "length": committed.length,
        "checksum": f"crc32={committed.crc32:08x}",
    }


def _fields(body: Any, *names: str) -> list[Any]:
    """Returns the fields of the body of a request, which must have all of them."""
    if not isinstance(body, dict) or set(body) != set(names):
        raise GatewayError(Kind.BAD_REQUEST, f"expected an object with {', '.join(names)}")
    for name in names:
        expected = int if name == "length" else str
        if not isinstance(body[name], expected) or isinstance(body[name], bool):
            raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected {'an integer' if expected is int else 'a text'}")
    return [body[name] for name in names]
