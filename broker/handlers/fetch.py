"""Fetch, versions 4 to 17: record batches from the requested offsets on; waits up to the client's time limit for more
data.

Version 7 adds sessions (see `fetch_sessions`), version 9 checks leader epochs, version 12 uses compact encoding,
version 13 names topics by id. With isolation level 1 (read committed) a consumer reads up to the last stable offset,
and the response lists the aborted transactions that overlap its batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import INITIAL_EPOCH, FetchSession, TopicKey
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.files import FileSlice, NotCached, nonblocking_reads
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.transactions import TransactionIndexEntry
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
"""Maximum record bytes per response, even if the client allows more; only the first batch may be larger. The limit is
large enough for the fixed cost of a request for many partitions to be small in comparison."""
COPIED_BYTES_MAX = 8 * 1024 * 1024
"""Once this many record bytes of a response have been copied to memory, the response gets no further records. Records
that are sent from their files do not count. Copying blocks other clients, and the copy stays in memory until the client
has received it."""
NO_ABORTED_TRANSACTIONS: Sequence[TransactionIndexEntry] = ()
READ_AHEAD_ROUNDS = 5
"""Maximum number of disk reads, one after another, that a response waits for: an index, then the batch header it points
to, and so on. Data that is still not in memory afterwards (a rebuilt index, an unreadable page) is read in the event
loop, which blocks other clients. If the response has records of other partitions, that is done only for partitions that
were not in memory in any round."""
READ_AHEAD_PARTITIONS_MAX = 32
"""Maximum number of partitions that are read from disk at the same time for one request. Further partitions are read in
a later one of the READ_AHEAD_ROUNDS, or the response contains no records of them."""
WAIT_MS_MAX = 300_000
"""Longest wait for records, even if the client allows more, so that an abandoned connection does not wait forever."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    error: ErrorCode
    topics: tuple[FetchedTopic, ...]
    session_id: int = 0


@dataclass(slots=True)
class _ReadPass:
    """State of one read of all partitions of a Fetch request. Partitions with data that is not in the page cache are
    skipped and added to `cold`. `bytes_left` is how many more bytes may be read, `copied_bytes_left` how many may be
    copied to memory."""

    bytes_left: int
    copied_bytes_left: int
    is_read_committed: bool
    read_bytes: int = 0
    has_error: bool = False
    is_capped: bool = False  # more data is available than the client or RESPONSE_BYTES_MAX allows
    blocking_partitions: Collection[TopicPartition] = ()  # these may be read from disk in the event loop
    cold: dict[TopicPartition, NotCached] = field(default_factory=dict)


class _ReadResult(NamedTuple):
    """Result of one read of the partitions of a Fetch request: the available records, and how many bytes are missing to
    the request's `bytes_min`. It contains no records of the partitions in `cold`, whose data is not in the page cache.
    """

    fetch_result: FetchResult
    read_bytes: int
    missing_bytes: int
    cold: Mapping[TopicPartition, NotCached]


def handle(context: RequestContext, request: FetchRequest) -> FetchResult | Awaitable[FetchResult]:
    now_s = asyncio.get_running_loop().time()
    try:
        session = context.node.fetch_sessions.resolve(request, is_by_id=context.version >= TOPIC_IDS_FROM, now_s=now_s)
    except RequestRefused as refused:
        return FetchResult(refused.code, ())
    with nonblocking_reads():
        read_result = _read(context, request, session)
    if read_result.cold:
        return _wait_for_disk(context, request, session, read_result.cold)
    return _respond_or_wait(context, request, session, read_result)


def _respond_or_wait(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, read_result: _ReadResult
) -> FetchResult | Awaitable[FetchResult]:
    """Returns the response to a Fetch request. Returns an awaitable of it if `read_result` has fewer bytes than the
    request's `bytes_min` and the client is willing to wait for more records. Must run in the same event loop iteration
    as the read that returned `read_result`: otherwise it would miss appends in between.

    Args:
        session: the fetch session of the request; None if it belongs to none.
    """
    if not read_result.missing_bytes or request.wait_ms_max <= 0:
        return _session_result(read_result.fetch_result, request, session)
    growth = _Growth(read_result.missing_bytes)
    logs = _watched_logs(context, request, session)
    for log in logs:
        log.waiters.add(growth.add)
    # A task, because a coroutine that is never awaited would not run its cleanup.
    waiting = asyncio.ensure_future(_wait(context, request, session, growth))
    waiting.add_done_callback(lambda _: _remove_waiters(logs, growth))
    return waiting


def _remove_waiters(logs: Sequence[PartitionLog], growth: _Growth) -> None:
    for log in logs:
        log.waiters.discard(growth.add)


def _session_result(result: FetchResult, request: FetchRequest, session: FetchSession | None) -> FetchResult:
    """Returns the response to a Fetch request: without a session, and for the request that starts one, all of `result`,
    which was read for the request; else `result` without the partitions that have not changed since the session's last
    response."""
    if session is None:
        return result
    topics = session.filter_response(result.topics, is_full=request.session_epoch == INITIAL_EPOCH)
    return FetchResult(result.error, topics, session.session_id if len(session) else 0)


async def _wait_for_disk(
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    cold: Mapping[TopicPartition, NotCached],
) -> FetchResult:
    result = _respond_or_wait(context, request, session, await _read_with_disk_waits(context, request, session, cold))
    return result if isinstance(result, FetchResult) else await result


async def _wait(
    context: RequestContext, request: FetchRequest, session: FetchSession | None, growth: _Growth
) -> FetchResult:
    """Waits until the partitions of a Fetch request have grown by the bytes that are missing to its `bytes_min`, which
    `growth` counts, or until the client's time limit, at most WAIT_MS_MAX. Then reads again and returns the response;
    if bytes are still missing before the limit, waits again. While it waits it holds no records, so that their memory
    and files are available to other requests.

    Args:
        session: the fetch session of the request; None if it belongs to none.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.wait_ms_max, WAIT_MS_MAX) / 1000
    while True:
        is_late = False
        try:
            async with asyncio.timeout_at(deadline):
                await growth.has_grown.wait()
        except TimeoutError:
            is_late = True
        read_result = await _read_with_disk_waits(context, request, session)
        if is_late or not read_result.missing_bytes:
            return _session_result(read_result.fetch_result, request, session)
        growth.restart(read_result.missing_bytes)
        del read_result


async def _read_with_disk_waits(
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    cold: Mapping[TopicPartition, NotCached] = MappingProxyType({}),
) -> _ReadResult:
    """Reads the partitions of a Fetch request and returns the result. Where data is not in the page cache, threads read
    it from disk while the event loop serves other clients.

    Args:
        session: the fetch session of the request, which then determines the partitions; None if it belongs to none.
        cold: partitions that the previous read had to skip, because their data was only on disk.
    """
    loop = asyncio.get_running_loop()
    always_cold: set[TopicPartition] | None = None
    for _ in range(READ_AHEAD_ROUNDS):
        if cold:
            always_cold = set(cold) if always_cold is None else always_cold & set(cold)
            await asyncio.gather(*(loop.run_in_executor(None, each.read_ahead) for each in cold.values()))
        with nonblocking_reads():
            read_result = _read(context, request, session)
        if not read_result.cold:
            return read_result
        cold, has_records = read_result.cold, read_result.read_bytes > 0
        del read_result
    always_cold = set(cold) & (always_cold or set())
    with nonblocking_reads():
        return _read(context, request, session, always_cold if has_records else cold)


class _Growth:
    """Detects that partitions have grown by `missing_bytes` in total, without reading them: their logs call `add` when
    bytes become readable, and `has_grown` is set when the sum is reached."""

    def __init__(self, missing_bytes: int) -> None:
        self.has_grown = asyncio.Event()
        self._missing_bytes = missing_bytes

    def restart(self, missing_bytes: int) -> None:
        self.has_grown.clear()
        self._missing_bytes = missing_bytes

    def add(self, byte_count: int) -> None:
        self._missing_bytes -= byte_count
        if self._missing_bytes <= 0:
            self.has_grown.set()


def _watched_logs(context: RequestContext, request: FetchRequest, session: FetchSession | None) -> list[PartitionLog]:
    if session is not None:
        return session.logs(context.node.logs, partial(_topic_name, context))
    found = []
    for topic in request.topics:
        name = _topic_name(context, (topic.name, topic.topic_id))
        logs = (context.node.logs.get((name, requested.partition)) for requested in topic.partitions)
        found += [log for log in logs if log is not None]
    return found


def _topic_name(context: RequestContext, topic: TopicKey) -> str:
    """Returns the name of a topic of a Fetch request, which newer versions of the API give by id; "" if no topic has
    the id. `topic` is the pair of name and id in the request."""
    name, topic_id = topic
    if context.version < TOPIC_IDS_FROM:
        return name
    known = context.node.topics.by_id(topic_id)
    return known.name if known else ""


def _read(
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    blocking_partitions: Collection[TopicPartition] = (),
) -> _ReadResult:
    # With a rate limit, a response contains at most the bytes of one second, so that the client need not wait long for
    # the next one.
    bytes_max = min(max(request.bytes_max, 0), context.node.config.bytes_per_second_max or RESPONSE_BYTES_MAX)
    bytes_max = min(bytes_max, RESPONSE_BYTES_MAX)
    read_pass = _ReadPass(
        bytes_max, COPIED_BYTES_MAX, request.isolation_level == READ_COMMITTED, blocking_partitions=blocking_partitions
    )
    topics_to_read = (
        request.topics if session is None else session.topics_to_read(context.node.logs, partial(_topic_name, context))
    )
    topics = []
    for topic in topics_to_read:
        name = _topic_name(context, (topic.name, topic.topic_id))
        partitions = tuple(_fetch_partition(context, name, requested, read_pass) for requested in topic.partitions)
        topics.append(FetchedTopic(topic.name, topic.topic_id, partitions))
    has_partitions = bool(request.topics if session is None else session)
    is_complete = read_pass.has_error or read_pass.is_capped or bool(read_pass.cold) or not has_partitions
    missing_bytes = 0 if is_complete else max(request.bytes_min - read_pass.read_bytes, 0)
    result = FetchResult(ErrorCode.NONE, tuple(topics))
    return _ReadResult(result, read_pass.read_bytes, missing_bytes, read_pass.cold)


def _fetch_partition(
    context: RequestContext, name: str, requested: FetchPartition, read_pass: _ReadPass
) -> FetchedPartition:
    try:
        log = _log(context, name, requested)
        limit = min(requested.bytes_max, read_pass.bytes_left)
        records: bytes | FileSlice = b""
        aborted = NO_ABORTED_TRANSACTIONS
        topic_partition = (name, requested.partition)
        may_block = topic_partition in read_pass.blocking_partitions
        if (limit > 0 or read_pass.read_bytes == 0) and (may_block or len(read_pass.cold) < READ_AHEAD_PARTITIONS_MAX):
            try:
                if may_block:
                    with nonblocking_reads(False):
                        records, aborted = _records(log, requested.offset, limit, read_pass)
                else:
                    records, aborted = _records(log, requested.offset, limit, read_pass)
            except NotCached as cold:
                # The traceback is removed, because its frames reference all records read so far.
                read_pass.cold[topic_partition] = cold.with_traceback(None)
        read_pass.bytes_left -= len(records)
        read_pass.read_bytes += len(records)
        if not isinstance(records, FileSlice):
            read_pass.copied_bytes_left -= len(records)
            if read_pass.copied_bytes_left <= 0:
                read_pass.bytes_left = 0
        # `records` is also empty if the first batch is larger than the limit.
        is_cut = not records or len(records) >= limit or not log.is_in_last_segment(requested.offset)
        high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
        read_pass.is_capped |= is_cut and requested.offset < (
            last_stable_offset if read_pass.is_read_committed else high_watermark
        )
        return FetchedPartition(
            requested.partition,
            ErrorCode.NONE,
            high_watermark,
            last_stable_offset,
            log.log_start_offset,
            records,
            aborted,
        )
    except RequestRefused as refused:
        read_pass.has_error = True
        return FetchedPartition(requested.partition, refused.code, -1, -1, -1, b"")


def _records(
    log: PartitionLog, offset: int, limit: int, read_pass: _ReadPass
) -> tuple[bytes | FileSlice, Sequence[TransactionIndexEntry]]:
    # The first batch of a response is always complete, even above the limit, so that every consumer makes progress.
    min_one_batch = read_pass.read_bytes == 0
    if read_pass.is_read_committed:
        return log.read_committed(offset, max(limit, 0), min_one_batch=min_one_batch)
    return log.read(offset, max(limit, 0), min_one_batch=min_one_batch), NO_ABORTED_TRANSACTIONS


def _log(context: RequestContext, name: str, requested: FetchPartition) -> PartitionLog:
    if not name:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with the topic id of the request")
    context.check_topic(name, BrokerPermission.READ)
    return context.node.log(name, requested.partition, requested.leader_epoch)
