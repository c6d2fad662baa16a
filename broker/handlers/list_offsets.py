"""ListOffsets, versions 1 to 9: the ends of partitions, and the first record at or above a timestamp.

2: who reads what is committed is told of nothing behind the last stable offset; 4: leader epochs; 7: timestamp -3
asks for the record with the largest timestamp; 8 and 9: -4 and -5 ask for the local start and the tiered end; without
tiered storage that is the start of the log, and none. Where a record is looked for that is not in memory, a thread
waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.by_time import FoundTimestamp, find_timestamp, largest_timestamp
from headrace.broker.log.files import NotCached, without_waiting
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import READ_COMMITTED

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NO_TIMESTAMP = -1
READ_AHEAD_ROUNDS = 20
"""Of one partition: two indexes, the headers that they tell of, and the batches from there on."""
READ_AHEAD_AT_ONCE = 32
"""Partitions of a request for which a disk is waited for together."""

_TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse
_PartitionResponse = _TopicResponse.ListOffsetsPartitionResponse


Look = Callable[[], Any]
"""Looks something up for a partition, and returns what is answered for it."""


def handle(context: RequestContext, request: Any) -> Any | Awaitable[Any]:
    is_committed = context.version >= 2 and request.isolation_level == READ_COMMITTED
    looks: list[list[Look]] = [
        [partial(_partition, context, topic.name or "", wanted, is_committed) for wanted in topic.partitions or ()]
        for topic in request.topics or ()
    ]
    found = [[_found_at_once(look) for look in topic] for topic in looks]
    cold = [(row, at) for row, topic in enumerate(found) for at, partition in enumerate(topic) if partition is None]
    if cold:
        return _found_later(context, request, looks, found, cold)
    return _answer(context, request, found)


def _answer(context: RequestContext, request: Any, found: list[list[Any]]) -> Any:
    topics = [
        _TopicResponse(version=context.version, name=topic.name or "", partitions=partitions)
        for topic, partitions in zip(request.topics or (), found, strict=True)
    ]
    return ListOffsetsResponse(version=context.version, topics=topics)


def _found_at_once(look: Look) -> Any | None:
    try:
        with without_waiting():
            return look()
    except NotCached:
        return None


async def _found_later(
    context: RequestContext, request: Any, looks: list[list[Look]], found: list[list[Any]], cold: list[tuple[int, int]]
) -> Any:
    for start in range(0, len(cold), READ_AHEAD_AT_ONCE):
        some = cold[start : start + READ_AHEAD_AT_ONCE]
        partitions = await asyncio.gather(*(_found(looks[row][at]) for row, at in some))
        for (row, at), partition in zip(some, partitions, strict=True):
            found[row][at] = partition
    return _answer(context, request, found)


async def _found(look: Look) -> Any:
    """Has a thread wait for the disk, while the broker serves others."""
    for _ in range(READ_AHEAD_ROUNDS):
        try:
            with without_waiting():
                return look()
        except NotCached as cold:
            await asyncio.get_running_loop().run_in_executor(None, cold.read_ahead)
    return look()


def _partition(context: RequestContext, name: str, wanted: Any, is_committed: bool) -> Any:
    code, found, epoch = ErrorCode.NONE, None, -1
    try:
        context.check_topic(name)
        leader_epoch = wanted.current_leader_epoch if context.version >= 4 else -1
        log = context.node.log(name, wanted.partition_index, leader_epoch)
        end = log.last_stable_offset if is_committed else log.high_watermark
        found = _look_up(log, wanted.timestamp, end)
        if found is not None:
            epoch = log.leader_epoch if found.offset >= log.log_end_offset else log.epochs.at(found.offset)
    except RequestRefused as refused:
        code = refused.code
    return _PartitionResponse(
        version=context.version,
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=found.timestamp_ms if found else NO_TIMESTAMP,
        offset=found.offset if found else -1,
        leader_epoch=epoch,
    )


def _look_up(log: PartitionLog, timestamp_ms: int, end: int) -> FoundTimestamp | None:
    """What is asked for, below `end`."""
    if timestamp_ms == LATEST:
        return FoundTimestamp(NO_TIMESTAMP, end)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return FoundTimestamp(NO_TIMESTAMP, log.log_start_offset)
    if timestamp_ms == LARGEST_TIMESTAMP:
        return _below(end, largest_timestamp(log))
    if timestamp_ms == LATEST_TIERED:
        return None
    if timestamp_ms < 0:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp_ms}")
    return _below(end, find_timestamp(log, timestamp_ms))


def _below(end: int, found: FoundTimestamp | None) -> FoundTimestamp | None:
    return found if found is not None and found.offset < end else None
