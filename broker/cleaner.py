"""The cleaner: compacts the logs of topics that want it, one after the other, beside everything else.

A log is due when what was added since the last time (its dirty part) is at least `min.cleanable.dirty.ratio` of its
closed segments, or older than `max.compaction.lag.ms`. The active segment is never touched, nor what has not been
forced to disk, nor what lies behind the first open transaction. Up to where each log is clean stands in
`cleaner-offset-checkpoint`; without it all is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.broker.log import compaction
from headrace.broker.log.checkpoints import PartitionKey
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.scan import SegmentFacts
from headrace.broker.log.segment import ClosedSegment
from headrace.broker.log.transactions import Outcomes
from headrace.kafka_wire.errors import CorruptBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """How a topic wants to be compacted; times in milliseconds, the share of [0, 1]."""

    tombstones_ms: int
    dirty_share_min: float
    lag_ms_min: int
    lag_ms_max: int


class Cleaner:
    """Not for use by threads, but works in one of `executor`'s.

    Args:
        clean_to: up to where each log is clean.
        before_change: writes down what had been forced to disk, since a start takes holes for losses above that.
        unlink: removes files some time.
        is_closing: whether the broker ends: what has not been written by then is not, but what is begun is finished.
    """

    def __init__(
        self,
        executor: Executor,
        flusher: Flusher,
        clean_to: Mapping[PartitionKey, int],
        *,
        before_change: Callable[[], Awaitable[None]],
        unlink: Callable[[list[Path]], object],
        is_closing: Callable[[], bool],
    ) -> None:
        self._executor, self._flusher, self._is_closing = executor, flusher, is_closing
        self.clean_to = dict(clean_to)
        self._before_change, self._unlink = before_change, unlink
        self._given_up: set[PartitionKey] = set()
        self._ending: dict[PartitionKey, Callable[[], list[Path] | None]] = {}
        """What is left to do where something is being replaced; returns files to be unlinked."""
        self.compactions = self.freed_bytes = 0

    @property
    def given_up_count(self) -> int:
        """Logs that are left as they are, since a batch of theirs is damaged."""
        return len(self._given_up)

    async def clean(
        self, key: PartitionKey, log: PartitionLog, wish: Wish, now_ms: int, is_there: Callable[[], bool]
    ) -> bool:
        """Compacts a log if it is due; returns whether it did. `is_there` says that the log is still the topic's.

        Raises:
            OSError: a file could not be read or written; the log is whole.
        """
        segments = self._due(key, log, wish, now_ms)
        if not segments:
            return False
        try:
            return await self._compact(key, log, wish, now_ms, segments, is_there)
        except compaction.Interrupted:
            return False
        except FileNotFoundError:
            # Retention, or who deleted the topic, may have been faster.
            if is_there() and all(segment in log.closed for segment in segments):
                raise
            return False
        except CorruptBatch as error:
            if not is_there():
                return False
            self._given_up.add(key)
            logger.error("log not compacted any more directory=%s reason=%s", log.directory.name, error)
            return False

    def _due(self, key: PartitionKey, log: PartitionLog, wish: Wish, now_ms: int) -> Sequence[ClosedSegment]:
        if key in self._given_up:
            return ()
        log.roll_if_older(now_ms - wish.lag_ms_max, now_ms)
        if log.has_unforced_segments:
            self._flusher.note(log)
        end = min(log.recovery_point, log.last_stable_offset)
        segments = [segment for segment in log.closed if segment.next_offset <= end]
        young = (at for at, each in enumerate(segments) if now_ms - each.timestamp_ms < wish.lag_ms_min)
        segments = segments[: next(young, len(segments))]
        dirty = [segment for segment in segments if segment.next_offset > self.clean_to.get(key, 0)]
        if not dirty:
            return ()
        share = sum(segment.size for segment in dirty) / sum(segment.size for segment in segments)
        is_old = now_ms - dirty[0].timestamp_ms > wish.lag_ms_max
        return segments if is_old or share >= wish.dirty_share_min else ()

    async def _compact(
        self,
        key: PartitionKey,
        log: PartitionLog,
        wish: Wish,
        now_ms: int,
        segments: Sequence[ClosedSegment],
        is_there: Callable[[], bool],
    ) -> bool:
        loop, pace = asyncio.get_running_loop(), compaction.Pace(lambda: is_there() and not self._is_closing())
        start = max(self.clean_to.get(key, 0), log.log_start_offset)
        outcomes = Outcomes(log.aborted(segments[0].base_offset, segments[-1].next_offset))
        found = await loop.run_in_executor(self._executor, compaction.newest_records, segments, start, outcomes, pace)
        rules = compaction.Rules(now_ms + wish.tombstones_ms, now_ms, log.producers.last_offsets())
        before = log.size
        await self._before_change()
        for group in compaction.in_groups(segments, log.limits.segment_bytes_max):
            if group[0].base_offset >= found.end:
                break
            try:
                facts = await loop.run_in_executor(
                    self._executor, compaction.write_cleaned, group, found, rules, outcomes, pace
                )
            except BaseException:
                # Also so that a full disk gets back what this took.
                compaction.discard(group)
                raise
            if not is_there() or any(segment not in log.closed for segment in group):
                compaction.discard(group)
                return False
            if facts is not None:
                # For certain before a newer one, where the last trace of a key may end that an older one still has.
                await self._put_in_place(key, log, group, facts, is_there)
        if not is_there():
            # What was learnt of it must not be taken for a new one of its name.
            return False
        self.clean_to[key] = found.end
        self.compactions += 1
        self.freed_bytes += max(before - log.size, 0)
        logger.info(
            "log compacted directory=%s keys=%d clean_to=%d bytes_before=%d bytes_after=%d",
            log.directory.name,
            len(found.newest),
            found.end,
            before,
            log.size,
        )
        return True

    async def _put_in_place(
        self,
        key: PartitionKey,
        log: PartitionLog,
        group: Sequence[ClosedSegment],
        facts: SegmentFacts,
        is_there: Callable[[], bool],
    ) -> None:
        try:
            compaction.begin_replacing(group)
        except OSError:
            compaction.discard(group)
            raise
        log.is_being_replaced = True
        full: compaction.NotReplaced | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, compaction.force_begun, group)
            if not is_there():
                return
            try:
                log.put_in_place(group, facts)
                self._ending[key] = partial(compaction.end_replacing, group)
                self._flusher.note(log)
            except compaction.NotReplaced as error:
                # Also so that a full disk gets back what this took.
                self._ending[key] = partial(compaction.take_back, group)
                full = error
        except OSError as error:
            self._fail(error, is_there)
            return
        await self.end_replacing(key, log, is_there)
        if full is not None:
            raise full

    async def end_replacing(self, key: PartitionKey, log: PartitionLog, is_there: Callable[[], bool]) -> None:
        """Takes away what was replaced in a log, or what found no place there, where that is still to be done. Nothing
        else is dropped of the log until then.

        Raises:
            OSError: it is still to be done; the disk is too full, or has failed.
        """
        if key not in self._ending:
            return
        try:
            renamed = await asyncio.get_running_loop().run_in_executor(self._executor, self._ending[key])
        except compaction.StillStanding:
            raise
        except OSError as error:
            self._fail(error, is_there)
            return
        self._unlink(renamed or [])
        if is_there():
            del self._ending[key]
            log.is_being_replaced = False

    def _fail(self, error: OSError, is_there: Callable[[], bool]) -> None:
        """Where some names may have been changed and others not, which only a start puts right."""
        if is_there():
            self._flusher.fail(error)
            raise error

    def keep_within(self, logs: Mapping[PartitionKey, PartitionLog]) -> None:
        """Where a log lost its end, what is appended in its place is not clean."""
        self.clean_to = {key: min(at, logs[key].log_end_offset) for key, at in self.clean_to.items() if key in logs}

    def forget(self, key: PartitionKey) -> None:
        """The log of this name is gone; a new one of it begins anew."""
        self.clean_to.pop(key, None)
        self._ending.pop(key, None)
        self._given_up.discard(key)
