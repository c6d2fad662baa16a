"""From a request's bytes to its answer's: one row per API key, each with its handler module.

Produce and Fetch have codecs of their own; the control APIs use those that kafka-python generates from Kafka's
message definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol import consumer, metadata, producer

from broker.errors import MalformedRequest
from broker.handlers import (
    api_versions,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from broker.handlers import metadata as metadata_handler
from broker.handlers.context import RequestContext
from broker.protocol import api_versions as api
from broker.protocol import fetch as fetch_codec
from broker.protocol import produce as produce_codec

Pieces = list[bytes | bytearray]
Result = Any


@dataclass(frozen=True, slots=True)
class Handler:
    """How requests of one API key are read, answered and written.

    `handle` returns the answer, an awaitable of it, or None where the client wants none. It must take all it needs
    from the frame before it waits. `refuse` is the answer to a version that is advertised but not served.
    """

    decode: Callable[[memoryview, int, int], Any]
    handle: Callable[[RequestContext, Any], Result | Awaitable[Result]]
    encode: Callable[[Any, int], Pieces]


def _generated(request_class: Any, handle: Callable[[RequestContext, Any], Result]) -> Handler:
    def decode(frame: memoryview, body_at: int, version: int) -> Any:
        # The class's own `decode` does not tell how far it read, and strings cut off at the end pass unnoticed.
        flexible = request_class.flexible_version_q(version)
        compiled = request_class._struct.compiled_decode_from(
            version, compact=flexible, tagged=flexible, data_class=request_class[None]
        )
        try:
            request, end = compiled(frame, body_at)
        except (struct.error, IndexError, ValueError, AssertionError, OverflowError, MemoryError) as error:
            raise MalformedRequest(f"{type(error).__name__}: {error}") from error
        if end > len(frame):
            raise MalformedRequest(f"the frame ends {end - len(frame)} bytes early")
        return request

    return Handler(decode, handle, lambda response, version: [response.encode()])


def _encode_fetch(answer: fetch.FetchAnswer, version: int) -> Pieces:
    return fetch_codec.encode(answer.topics, answer.error, version)


HANDLERS: Mapping[int, Handler] = {
    api.PRODUCE: Handler(
        produce_codec.decode, produce.handle, lambda answer, version: [produce_codec.encode(answer, version)]
    ),
    api.FETCH: Handler(fetch_codec.decode, fetch.handle, _encode_fetch),
    api.LIST_OFFSETS: _generated(consumer.ListOffsetsRequest, list_offsets.handle),
    api.METADATA: _generated(metadata.MetadataRequest, metadata_handler.handle),
    api.FIND_COORDINATOR: _generated(metadata.FindCoordinatorRequest, find_coordinator.handle),
    api.API_VERSIONS: _generated(metadata.ApiVersionsRequest, api_versions.handle),
    api.INIT_PRODUCER_ID: _generated(producer.InitProducerIdRequest, init_producer_id.handle),
    api.OFFSET_FOR_LEADER_EPOCH: _generated(consumer.OffsetForLeaderEpochRequest, offset_for_leader_epoch.handle),
}


def refuse_version(key: int, version: int) -> Pieces | None:
    """The answer to a version that is not served, in a form its client can read; None where there is none.

    Clients learn the versions first, so this is for those that ask for a newer ApiVersions, and for the old produce
    versions that are advertised only for librdkafka's sake.
    """
    if key == api.API_VERSIONS:
        return [api_versions.unsupported_version().encode()]
    if key == api.PRODUCE and 0 <= version < api.BY_KEY[api.PRODUCE].served_from:
        return [_old_produce_refusal(version)]
    return None


def _old_produce_refusal(version: int) -> bytearray:
    response = producer.ProduceResponse(version=version, responses=[])
    return bytearray(response.encode())
