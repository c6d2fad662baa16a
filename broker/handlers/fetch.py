"""Fetch, versions 4 to 17: batches from the given offsets on, waiting a while when there is little to read.

7: sessions (see `fetch_sessions`); 9: leader epochs are checked; 12: compact encoding; 13: topics by id. Who reads what
is committed (isolation level 1) reads to the last stable offset, and is told which transactions of what it reads were
aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from headrace.broker.access.rights import Right
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import FIRST_EPOCH, FetchSession, TopicKey
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.files import FileSlice, NotCached, without_waiting
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.transactions import AbortedTransaction
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import (
    READ_COMMITTED,
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
)

RESPONSE_BYTES_MAX = 32 * 1024 * 1024
"""Of records in one answer, whatever the client allows: enough that what a request of many partitions costs beside
them is small."""
COPIED_BYTES_MAX = 8 * 1024 * 1024
"""Of them that are not sent from their files: they are read while all others wait, and kept until the client has read
them."""
NOTHING_ABORTED: Sequence[AbortedTransaction] = ()
READ_AHEAD_ROUNDS = 5
"""An index, the header that it tells of, the next ones: each can be waited for only when the one before is known. What
is not in memory then, as an index that has to be made anew or a page that cannot be read, all wait for."""
READ_AHEAD_AT_ONCE = 32
"""Partitions of a request for which a disk is waited for together; there is nothing of further ones in its answer."""
WAIT_MS_MAX = 300_000
"""A client that asks to wait longer is answered then, so that a forgotten connection does not wait for ever."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    error: ErrorCode
    topics: tuple[FetchedTopic, ...]
    session_id: int = 0


Place = tuple[str, int]
"""A topic's name and a partition."""


@dataclass(slots=True)
class _Reading:
    """One pass over a request: what it found, but of partitions for whose next bytes the disk must be waited for."""

    rest: int
    copied_rest: int
    is_committed: bool
    found_bytes: int = 0
    has_error: bool = False
    is_capped: bool = False  # there is more than the client, or RESPONSE_BYTES_MAX, allows
    waits_for: Collection[Place] = ()  # partitions for which the disk is waited for here and now
    cold: dict[Place, NotCached] = field(default_factory=dict)


class _Found(NamedTuple):
    """What there is now, and how many bytes it should be more to be answered. Of partitions that something `cold` was
    to be read for there is nothing in it."""

    answer: FetchAnswer
    found_bytes: int
    missing_bytes: int
    cold: Mapping[Place, NotCached]


def handle(context: RequestContext, request: FetchRequest) -> FetchAnswer | Awaitable[FetchAnswer]:
    now_s = asyncio.get_running_loop().time()
    try:
        session = context.node.fetch_sessions.of(request, is_by_id=context.version >= TOPIC_IDS_FROM, now_s=now_s)
    except RequestRefused as refused:
        return FetchAnswer(refused.code, ())
    with without_waiting():
        found = _read(context, request, session)
    if found.cold:
        return _wait_for_disk(context, request, session, found.cold)
    return _told_or_wait(context, request, session, found)


def _told_or_wait(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, found: _Found
) -> FetchAnswer | Awaitable[FetchAnswer]:
    """To be called in the same turn of the loop in which it was found, so that nothing comes unnoticed in between."""
    if not found.missing_bytes or request.wait_ms_max <= 0:
        return _told(found.answer, request, session)
    growth = _Growth(found.missing_bytes)
    logs = _watched(context, request, session)
    for log in logs:
        log.waiters.add(growth.add)
    # A task, since a coroutine that is never begun would not end either.
    waiting = asyncio.ensure_future(_wait(context, request, session, growth))
    waiting.add_done_callback(lambda _: _forget(logs, growth))
    return waiting


def _forget(logs: Sequence[PartitionLog], growth: _Growth) -> None:
    for log in logs:
        log.waiters.discard(growth.add)


def _told(answer: FetchAnswer, request: FetchRequest, session: FetchSession | None) -> FetchAnswer:
    """The answer without what the client knows by its session."""
    if session is None:
        return answer
    topics = session.told(answer.topics, is_full=request.session_epoch == FIRST_EPOCH)
    return FetchAnswer(answer.error, topics, session.session_id if len(session) else 0)


async def _wait_for_disk(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, cold: Mapping[Place, NotCached]
) -> FetchAnswer:
    answer = _told_or_wait(context, request, session, await _read_cold(context, request, session, cold))
    return answer if isinstance(answer, FetchAnswer) else await answer


async def _wait(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, growth: _Growth
) -> FetchAnswer:
    """Reads again once the partitions have grown by as much as is missing, or time is up. Meanwhile it has nothing of
    what was found: others need the memory and the files."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.wait_ms_max, WAIT_MS_MAX) / 1000
    while True:
        is_late = False
        try:
            async with asyncio.timeout_at(deadline):
                await growth.is_enough.wait()
        except TimeoutError:
            is_late = True
        found = await _read_cold(context, request, session)
        if is_late or not found.missing_bytes:
            return _told(found.answer, request, session)
        growth.begin(found.missing_bytes)
        del found


async def _read_cold(
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    cold: Mapping[Place, NotCached] = MappingProxyType({}),
) -> _Found:
    """Reads, and has threads wait for the disk while the others go on.

    Args:
        cold: what was so when it was read before.
    """
    loop = asyncio.get_running_loop()
    always_cold: set[Place] | None = None
    for _ in range(READ_AHEAD_ROUNDS):
        if cold:
            always_cold = set(cold) if always_cold is None else always_cold & set(cold)
            await asyncio.gather(*(loop.run_in_executor(None, each.read_ahead) for each in cold.values()))
        with without_waiting():
            found = _read(context, request, session)
        if not found.cold:
            return found
        cold, has_some = found.cold, found.found_bytes > 0
        del found
    always_cold = set(cold) & (always_cold or set())
    with without_waiting():
        return _read(context, request, session, always_cold if has_some else cold)


class _Growth:
    """Waits until so many bytes more can be read, without reading them to find out."""

    def __init__(self, missing_bytes: int) -> None:
        self.is_enough = asyncio.Event()
        self._missing_bytes = missing_bytes

    def begin(self, missing_bytes: int) -> None:
        self.is_enough.clear()
        self._missing_bytes = missing_bytes

    def add(self, byte_count: int) -> None:
        self._missing_bytes -= byte_count
        if self._missing_bytes <= 0:
            self.is_enough.set()


def _watched(context: RequestContext, request: FetchRequest, session: FetchSession | None) -> list[PartitionLog]:
    if session is not None:
        return session.logs(context.node.logs, partial(_name, context))
    found = []
    for topic in request.topics:
        name = _name(context, (topic.name, topic.topic_id))
        logs = (context.node.logs.get((name, wanted.partition)) for wanted in topic.partitions)
        found += [log for log in logs if log is not None]
    return found


def _name(context: RequestContext, topic: TopicKey) -> str:
    """The topic's name; "" for an id that no topic has."""
    name, topic_id = topic
    if context.version < TOPIC_IDS_FROM:
        return name
    known = context.node.topics.by_id(topic_id)
    return known.name if known else ""


def _read(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, waits_for: Collection[Place] = ()
) -> _Found:
    # Of a client with a rate one answer is what lasts for a second, so that it does not wait long for the next.
    most = min(max(request.bytes_max, 0), context.node.config.bytes_per_second_max or RESPONSE_BYTES_MAX)
    most = min(most, RESPONSE_BYTES_MAX)
    reading = _Reading(most, COPIED_BYTES_MAX, request.isolation_level == READ_COMMITTED, waits_for=waits_for)
    wanted_topics = request.topics if session is None else session.due(context.node.logs, partial(_name, context))
    topics = []
    for topic in wanted_topics:
        name = _name(context, (topic.name, topic.topic_id))
        partitions = tuple(_partition(context, name, wanted, reading) for wanted in topic.partitions)
        topics.append(FetchedTopic(topic.name, topic.topic_id, partitions))
    is_followed = bool(request.topics if session is None else session)
    is_enough = reading.has_error or reading.is_capped or bool(reading.cold) or not is_followed
    missing_bytes = 0 if is_enough else max(request.bytes_min - reading.found_bytes, 0)
    answer = FetchAnswer(ErrorCode.NONE, tuple(topics))
    return _Found(answer, reading.found_bytes, missing_bytes, reading.cold)


def _partition(context: RequestContext, name: str, wanted: FetchPartition, reading: _Reading) -> FetchedPartition:
    try:
        log = _log(context, name, wanted)
        limit = min(wanted.bytes_max, reading.rest)
        records: bytes | FileSlice = b""
        aborted = NOTHING_ABORTED
        place = (name, wanted.partition)
        is_waited_for = place in reading.waits_for
        if (limit > 0 or reading.found_bytes == 0) and (is_waited_for or len(reading.cold) < READ_AHEAD_AT_ONCE):
            try:
                if is_waited_for:
                    with without_waiting(False):
                        records, aborted = _records(log, wanted.offset, limit, reading)
                else:
                    records, aborted = _records(log, wanted.offset, limit, reading)
            except NotCached as cold:
                # Without the frames that it came through, which have all that was found.
                reading.cold[place] = cold.with_traceback(None)
        reading.rest -= len(records)
        reading.found_bytes += len(records)
        if not isinstance(records, FileSlice):
            reading.copied_rest -= len(records)
            if reading.copied_rest <= 0:
                reading.rest = 0
        # Nothing is read where the first batch is larger than the limit.
        is_cut = not records or len(records) >= limit or not log.is_in_last_segment(wanted.offset)
        high_watermark, stable_end = log.high_watermark, log.last_stable_offset
        reading.is_capped |= is_cut and wanted.offset < (stable_end if reading.is_committed else high_watermark)
        return FetchedPartition(
            wanted.partition,
            ErrorCode.NONE,
            high_watermark,
            stable_end,
            log.log_start_offset,
            records,
            aborted,
        )
    except RequestRefused as refused:
        reading.has_error = True
        return FetchedPartition(wanted.partition, refused.code, -1, -1, -1, b"")


def _records(
    log: PartitionLog, offset: int, limit: int, reading: _Reading
) -> tuple[bytes | FileSlice, Sequence[AbortedTransaction]]:
    # The first batch of an answer is sent whole whatever its size, so that every consumer gets on.
    whole_first = reading.found_bytes == 0
    if reading.is_committed:
        return log.read_committed(offset, max(limit, 0), whole_first=whole_first)
    return log.read(offset, max(limit, 0), whole_first=whole_first), NOTHING_ABORTED


def _log(context: RequestContext, name: str, wanted: FetchPartition) -> PartitionLog:
    if not name:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    context.check_topic(name, Right.READ)
    return context.node.log(name, wanted.partition, wanted.leader_epoch)
