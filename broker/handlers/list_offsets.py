"""ListOffsets, versions 1 to 9: the ends of partitions, and the first record at or above a timestamp.

2: who reads what is committed is told of nothing behind the last stable offset; 4: leader epochs; 7: timestamp -3
asks for the record with the largest timestamp; 8 and 9: -4 and -5 ask for the local start and the tiered end; without
tiered storage that is the start of the log, and none. Where a record is looked for, a thread waits for what is not in
memory and opens batches, and other requests have their turns in between. A partition that is named twice is refused,
once, as by Kafka.
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
from headrace.broker.log.by_time import FoundTimestamp, TimeSearch, UnopenedBatch, largest_timestamp_ms
from headrace.broker.log.files import NotCached, without_waiting
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import READ_COMMITTED

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NO_TIMESTAMP = -1
READ_AHEAD_ROUNDS = 20
"""For the next step of a search: two indexes, the headers that they tell of, and a batch."""
READ_AHEAD_AT_ONCE = 32
"""Partitions of a request for which a disk is waited for together."""
BY_TIME_AT_ONCE = 8
"""Partitions of a request in which records are looked for before others have their turn, to the first one that takes
longer; then one at a time."""

_TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse
_PartitionResponse = _TopicResponse.ListOffsetsPartitionResponse


def handle(context: RequestContext, request: Any) -> Any | Awaitable[Any]:
    is_committed = context.version >= 2 and request.isolation_level == READ_COMMITTED
    times = Counter(
        (topic.name, one.partition_index) for topic in request.topics or () for one in topic.partitions or ()
    )
    looks = [
        [
            _Look(context, topic.name or "", wanted, is_committed, times=times.pop(place))
            for wanted in topic.partitions or ()
            if (place := (topic.name, wanted.partition_index)) in times
        ]
        for topic in request.topics or ()
    ]
    by_time_rest = BY_TIME_AT_ONCE
    for look in chain.from_iterable(looks):
        if look.is_by_time and not by_time_rest:
            continue
        with suppress(NotCached), without_waiting():
            look.go_on()
        if look.is_by_time:
            by_time_rest = by_time_rest - 1 if look.answer is not None else 0
    later = [look for look in chain.from_iterable(looks) if look.answer is None]
    return _answer_later(context, request, looks, later) if later else _answer(context, request, looks)


def _answer(context: RequestContext, request: Any, looks: Sequence[Sequence[_Look]]) -> Any:
    topics = [
        _TopicResponse(version=context.version, name=topic.name or "", partitions=[look.answer for look in of_topic])
        for topic, of_topic in zip(request.topics or (), looks, strict=True)
    ]
    return ListOffsetsResponse(version=context.version, topics=topics)


async def _answer_later(
    context: RequestContext, request: Any, looks: Sequence[Sequence[_Look]], later: Sequence[_Look]
) -> Any:
    turn = asyncio.Lock()
    for start in range(0, len(later), READ_AHEAD_AT_ONCE):
        some = later[start : start + READ_AHEAD_AT_ONCE]
        await asyncio.gather(*(_go_on(context, look, turn) for look in some))
    return _answer(context, request, looks)


async def _go_on(context: RequestContext, look: _Look, turn: asyncio.Lock) -> None:
    """Has threads open batches and wait for the disk, while the broker serves others.

    Args:
        turn: of a request one partition has it at a time, in one round of the loop or while its batch is opened.
    """
    loop = asyncio.get_running_loop()
    rounds, looked_to = READ_AHEAD_ROUNDS, look.looked_to
    while look.answer is None:
        cold: NotCached | None = None
        async with turn:
            if look.unopened is not None:
                look.take(await loop.run_in_executor(context.node.opener, look.unopened.first_record_at_leisure))
            try:
                with without_waiting(rounds > 0):
                    look.go_on()
            except NotCached as error:
                cold = error.with_traceback(None)
            await asyncio.sleep(0)
        is_further = look.looked_to > looked_to
        rounds, looked_to = READ_AHEAD_ROUNDS if cold is None or is_further else rounds - 1, look.looked_to
        if cold is not None:
            await loop.run_in_executor(None, cold.read_ahead)


class _Look:
    """What is asked of one partition, and what is answered for it once that is known."""

    __slots__ = ("_context", "_is_committed", "_name", "_search", "_times", "_wanted", "answer", "unopened")

    def __init__(self, context: RequestContext, name: str, wanted: Any, is_committed: bool, *, times: int) -> None:
        self._context, self._name, self._wanted, self._is_committed = context, name, wanted, is_committed
        self._times = times
        self._search: TimeSearch | None = None
        self.answer: Any | None = None
        self.unopened: UnopenedBatch | None = None  # what is in it is to be told before it goes on

    @property
    def is_by_time(self) -> bool:
        return bool(self._wanted.timestamp >= 0 or self._wanted.timestamp == LARGEST_TIMESTAMP)

    @property
    def looked_to(self) -> int:
        return self._search.looked_to if self._search is not None else 0

    def take(self, found: FoundTimestamp | None) -> None:
        """Takes note of what was found in the batch that was not opened."""
        assert self._search is not None and self.unopened is not None
        self._search.take(self.unopened, found)
        self.unopened = None

    def go_on(self) -> None:
        """
        Raises:
            NotCached: only `without_waiting`.
        """
        context, wanted = self._context, self._wanted
        code, found, epoch = ErrorCode.NONE, None, -1
        try:
            context.check_topic(self._name)
            if self._times > 1:
                raise RequestRefused(ErrorCode.INVALID_REQUEST, f"the partition is named {self._times} times")
            leader_epoch = wanted.current_leader_epoch if context.version >= 4 else -1
            log = context.node.log(self._name, wanted.partition_index, leader_epoch)
            end = log.last_stable_offset if self._is_committed else log.high_watermark
            if self.is_by_time:
                search = self._search_in(log)
                if not search.is_over:
                    return
                found = search.found if search.found is not None and search.found.offset < end else None
            else:
                found = _end_of(log, wanted.timestamp, end)
            if found is not None:
                epoch = log.leader_epoch if found.offset >= log.log_end_offset else log.epochs.at(found.offset)
        except RequestRefused as refused:
            code = refused.code
        self.answer = _PartitionResponse(
            version=context.version,
            partition_index=wanted.partition_index,
            error_code=code,
            timestamp=found.timestamp_ms if found else NO_TIMESTAMP,
            offset=found.offset if found else -1,
            leader_epoch=epoch,
        )

    def _search_in(self, log: PartitionLog) -> TimeSearch:
        """The search, one turn further. It begins anew where there is another log of this name."""
        search = self._search
        if search is None or search.log is not log:
            wanted_ms = self._wanted.timestamp
            search = TimeSearch(log, largest_timestamp_ms(log) if wanted_ms == LARGEST_TIMESTAMP else wanted_ms)
            self._search = search
        if not search.is_over:
            self.unopened = search.go_on()
        return search


def _end_of(log: PartitionLog, timestamp: int, end: int) -> FoundTimestamp | None:
    """What is asked for that is no time; `end` is what comes last."""
    if timestamp == LATEST:
        return FoundTimestamp(NO_TIMESTAMP, end)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return FoundTimestamp(NO_TIMESTAMP, log.log_start_offset)
    if timestamp == LATEST_TIERED:
        return None
    raise RequestRefused(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp}")
