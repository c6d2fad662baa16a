"""Fetch, versions 4 to 17: batches from the given offsets on, waiting a while when there is little to read.

9: leader epochs are checked; 12: compact encoding; 13: topics by id. Every fetch is a full one (session id 0): clients
fall back to that, and incremental sessions are a known source of errors. There are no transactions, so the last
stable offset is the high watermark and no transaction is ever aborted: both isolation levels read the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import (
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""Of records in one answer, whatever the client allows: it is read and handed to the socket while all others wait, and
kept until the client has read it. Larger answers are slower, not faster."""
WAIT_MS_MAX = 300_000
"""A client that asks to wait longer is answered then, so that a forgotten connection does not wait for ever."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    error: ErrorCode
    topics: tuple[FetchedTopic, ...]


@dataclass(slots=True)
class _Reading:
    """One pass over a request: what it found, and the logs that a waiting fetch must watch."""

    rest: int
    found_bytes: int = 0
    has_error: bool = False


def handle(context: RequestContext, request: FetchRequest) -> FetchAnswer | Awaitable[FetchAnswer]:
    if request.session_id != 0:
        return FetchAnswer(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
    answer, enough = _read(context, request)
    if enough or request.wait_ms_max <= 0:
        return answer
    return _wait(context, request)


async def _wait(context: RequestContext, request: FetchRequest) -> FetchAnswer:
    """Reads again whenever a partition grows, until there is enough or time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.wait_ms_max, WAIT_MS_MAX) / 1000
    grown = asyncio.Event()
    logs = _watched(context, request)
    for log in logs:
        log.waiters.add(grown.set)
    try:
        while True:
            answer, enough = _read(context, request)
            remaining = deadline - loop.time()
            if enough or remaining <= 0:
                return answer
            grown.clear()
            try:
                async with asyncio.timeout(remaining):
                    await grown.wait()
            except TimeoutError:
                return _read(context, request)[0]
    finally:
        for log in logs:
            log.waiters.discard(grown.set)


def _watched(context: RequestContext, request: FetchRequest) -> list[PartitionLog]:
    found = []
    for topic in request.topics:
        name = _name(context, topic)
        logs = (context.node.logs.get((name, wanted.partition)) for wanted in topic.partitions)
        found += [log for log in logs if log is not None]
    return found


def _name(context: RequestContext, topic: FetchTopic) -> str:
    """The topic's name; "" for an id that no topic has."""
    if context.version < TOPIC_IDS_FROM:
        return topic.name
    known = context.node.topics.by_id(topic.topic_id)
    return known.name if known else ""


def _read(context: RequestContext, request: FetchRequest) -> tuple[FetchAnswer, bool]:
    """What there is now, and whether that is enough to answer."""
    reading = _Reading(min(max(request.bytes_max, 0), RESPONSE_BYTES_MAX))
    topics = []
    for topic in request.topics:
        name = _name(context, topic)
        partitions = tuple(_partition(context, name, wanted, reading) for wanted in topic.partitions)
        topics.append(FetchedTopic(topic.name, topic.topic_id, partitions))
    enough = reading.has_error or reading.found_bytes >= request.bytes_min or not request.topics
    return FetchAnswer(ErrorCode.NONE, tuple(topics)), enough


def _partition(context: RequestContext, name: str, wanted: FetchPartition, reading: _Reading) -> FetchedPartition:
    try:
        log = _log(context, name, wanted)
        limit = min(wanted.bytes_max, reading.rest)
        records = b""
        if limit > 0 or reading.found_bytes == 0:
            # The first batch of an answer is sent whole whatever its size, so that every consumer gets on.
            records = log.read(wanted.offset, max(limit, 0), whole_first=reading.found_bytes == 0)
        reading.rest -= len(records)
        reading.found_bytes += len(records)
        return FetchedPartition(
            wanted.partition,
            ErrorCode.NONE,
            log.high_watermark,
            log.high_watermark,
            log.log_start_offset,
            records,
        )
    except RequestRefused as refused:
        reading.has_error = True
        start, end = -1, -1
        if refused.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            log = context.node.log(name, wanted.partition)
            start, end = log.log_start_offset, log.high_watermark
        return FetchedPartition(wanted.partition, refused.code, end, end, start, b"")


def _log(context: RequestContext, name: str, wanted: FetchPartition) -> PartitionLog:
    if not name:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    return context.node.log(name, wanted.partition, wanted.leader_epoch)
