"""ListOffsets, versions 1 to 9: the start and end offsets of partitions, and the first record at or after a timestamp.

From version 2 on, read-committed consumers see nothing from the last stable offset on. Version 4 adds leader epochs.
From version 7 on, timestamp -3 requests the record with the largest timestamp. Versions 8 and 9 add -4 (local log
start) and -5 (end of tiered storage). This broker has no tiered storage: it returns the log start offset for -4, and no
offset for -5. As in Kafka, a partition that is named twice gets one error.

A search by timestamp reads from disk and decompresses batches in a thread, and the event loop serves other requests in
between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.files import NotCached, nonblocking_reads
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.time_search import CandidateBatch, TimeSearch, TimestampOffset, largest_timestamp_ms
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import READ_COMMITTED

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NO_TIMESTAMP = -1
READ_AHEAD_ROUNDS = 20
"""Maximum number of disk reads, one after another, that a search waits for until it makes progress: two indexes, the
batch headers they point to, and a batch. Data that is still not in memory afterwards is read in the event loop."""
READ_AHEAD_PARTITIONS_MAX = 32
"""Maximum number of partitions that are read from disk at the same time for one request."""
TIME_SEARCHES_BEFORE_YIELD = 8
"""Maximum number of partitions that one request searches by timestamp before other requests are served. It stops
earlier after a search that one call of `TimeSearch.step` does not complete. The remaining partitions are searched one
at a time, and other requests are served in between."""

_TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse
_PartitionResponse = _TopicResponse.ListOffsetsPartitionResponse


def handle(context: RequestContext, request: Any) -> Any | Awaitable[Any]:
    is_read_committed = context.version >= 2 and request.isolation_level == READ_COMMITTED
    times = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics or ()
        for partition in topic.partitions or ()
    )
    lookups = [
        [
            _PartitionLookup(context, topic.name or "", requested, is_read_committed, times=times.pop(topic_partition))
            for requested in topic.partitions or ()
            if (topic_partition := (topic.name, requested.partition_index)) in times
        ]
        for topic in request.topics or ()
    ]
    searches_left = TIME_SEARCHES_BEFORE_YIELD
    for lookup in chain.from_iterable(lookups):
        if lookup.is_by_time and not searches_left:
            continue
        with suppress(NotCached), nonblocking_reads():
            lookup.advance()
        if lookup.is_by_time:
            searches_left = searches_left - 1 if lookup.response is not None else 0
    pending = [lookup for lookup in chain.from_iterable(lookups) if lookup.response is None]
    return _respond_later(context, request, lookups, pending) if pending else _response(context, request, lookups)


def _response(context: RequestContext, request: Any, lookups: Sequence[Sequence[_PartitionLookup]]) -> Any:
    topics = [
        _TopicResponse(
            version=context.version, name=topic.name or "", partitions=[lookup.response for lookup in topic_lookups]
        )
        for topic, topic_lookups in zip(request.topics or (), lookups, strict=True)
    ]
    return ListOffsetsResponse(version=context.version, topics=topics)


async def _respond_later(
    context: RequestContext,
    request: Any,
    lookups: Sequence[Sequence[_PartitionLookup]],
    pending: Sequence[_PartitionLookup],
) -> Any:
    lock = asyncio.Lock()
    for start in range(0, len(pending), READ_AHEAD_PARTITIONS_MAX):
        chunk = pending[start : start + READ_AHEAD_PARTITIONS_MAX]
        await asyncio.gather(*(_run_lookup(context, lookup, lock) for lookup in chunk))
    return _response(context, request, lookups)


async def _run_lookup(context: RequestContext, lookup: _PartitionLookup, lock: asyncio.Lock) -> None:
    """Runs the lookup of one partition's offset until `lookup.response` is set. Threads read from disk and decompress
    batches while the event loop serves other requests.

    Args:
        lock: shared by the lookups of a request, so that each iteration of the event loop runs a step of only one.
    """
    loop = asyncio.get_running_loop()
    rounds, searched_to = READ_AHEAD_ROUNDS, lookup.searched_to
    while lookup.response is None:
        cold: NotCached | None = None
        async with lock:
            if lookup.candidate is not None:
                lookup.record_result(
                    await loop.run_in_executor(context.node.decode_executor, lookup.candidate.first_record_throttled)
                )
            try:
                with nonblocking_reads(rounds > 0):
                    lookup.advance()
            except NotCached as error:
                cold = error.with_traceback(None)
            await asyncio.sleep(0)
        has_advanced = lookup.searched_to > searched_to
        rounds, searched_to = READ_AHEAD_ROUNDS if cold is None or has_advanced else rounds - 1, lookup.searched_to
        if cold is not None:
            await loop.run_in_executor(None, cold.read_ahead)


class _PartitionLookup:
    """Finds the offset that a ListOffsets request asks for in one partition. `response` is set when the lookup is
    complete. If `candidate` is set, a thread must first search this batch for the first record with at least the
    requested timestamp."""

    __slots__ = (
        "_context",
        "_is_read_committed",
        "_name",
        "_name_count",
        "_requested",
        "_search",
        "candidate",
        "response",
    )

    def __init__(
        self, context: RequestContext, name: str, requested: Any, is_read_committed: bool, *, times: int
    ) -> None:
        self._context, self._name, self._requested, self._is_read_committed = (
            context,
            name,
            requested,
            is_read_committed,
        )
        self._name_count = times
        self._search: TimeSearch | None = None
        self.response: Any | None = None
        self.candidate: CandidateBatch | None = None  # a thread must search it before the lookup continues

    @property
    def is_by_time(self) -> bool:
        return bool(self._requested.timestamp >= 0 or self._requested.timestamp == LARGEST_TIMESTAMP)

    @property
    def searched_to(self) -> int:
        return self._search.searched_to if self._search is not None else 0

    def record_result(self, found: TimestampOffset | None) -> None:
        """Continues the lookup of a partition's offset after a thread has searched the batch `candidate`: `found` is
        its first record with at least the requested timestamp, None if the batch does not contain such a record."""
        assert self._search is not None and self.candidate is not None
        self._search.record_result(self.candidate, found)
        self.candidate = None

    def advance(self) -> None:
        """Continues the lookup of a partition's offset by one step, which may set `response`, its result, or
        `candidate`, a batch that a thread must search before the next step. If it sets neither, call it again.

        Raises:
            NotCached: the step needs data that is only on disk, and the caller has forbidden waiting for the disk with
                `nonblocking_reads`.
        """
        context, requested = self._context, self._requested
        code, found, epoch = ErrorCode.NONE, None, -1
        try:
            context.check_topic(self._name)
            if self._name_count > 1:
                raise RequestRefused(
                    ErrorCode.INVALID_REQUEST,
                    f"partition {self._name}-{requested.partition_index} is in the request {self._name_count} times; "
                    "name it once",
                )
            leader_epoch = requested.current_leader_epoch if context.version >= 4 else -1
            log = context.node.log(self._name, requested.partition_index, leader_epoch)
            end = log.last_stable_offset if self._is_read_committed else log.high_watermark
            if self.is_by_time:
                search = self._search_in(log)
                if not search.is_done:
                    return
                found = search.found if search.found is not None and search.found.offset < end else None
            else:
                found = _bound_of(log, requested.timestamp, end)
            if found is not None:
                epoch = log.leader_epoch if found.offset >= log.log_end_offset else log.epochs.at(found.offset)
        except RequestRefused as refused:
            code = refused.code
        self.response = _PartitionResponse(
            version=context.version,
            partition_index=requested.partition_index,
            error_code=code,
            timestamp=found.timestamp_ms if found else NO_TIMESTAMP,
            offset=found.offset if found else -1,
            leader_epoch=epoch,
        )

    def _search_in(self, log: PartitionLog) -> TimeSearch:
        """Continues the search by timestamp in `log` with one call of `TimeSearch.step`, and returns the search, which
        may still be incomplete. The first call begins the search; so does a call after the topic was deleted and
        recreated."""
        search = self._search
        if search is None or search.log is not log:
            timestamp_ms = self._requested.timestamp
            search = TimeSearch(log, largest_timestamp_ms(log) if timestamp_ms == LARGEST_TIMESTAMP else timestamp_ms)
            self._search = search
        if not search.is_done:
            self.candidate = search.step()
        return search


def _bound_of(log: PartitionLog, timestamp: int, end: int) -> TimestampOffset | None:
    """Returns the offset that a special timestamp requests from `log`: -1 requests `end`, the end of the log visible to
    the client; -2 and -4 request the log start offset. Returns None for -5, the end of tiered storage, which this
    broker does not have.

    Raises:
        RequestRefused: the timestamp is less than -5.
    """
    if timestamp == LATEST:
        return TimestampOffset(NO_TIMESTAMP, end)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimestampOffset(NO_TIMESTAMP, log.log_start_offset)
    if timestamp == LATEST_TIERED:
        return None
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST,
        f"timestamp {timestamp}: expected milliseconds since 1970, or a special value from -5 to -1",
    )
