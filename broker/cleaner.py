"""The cleaner compacts the logs of topics with `cleanup.policy=compact`, one log at a time.

The clean part of a log ends where its last compaction ended; the dirty part is everything after it. The cleaner never
compacts the active segment, data that is not fsynced, segments younger than `min.compaction.lag.ms`, or anything after
the start of the first open transaction. A log is due when its dirty part is at least `min.cleanable.dirty.ratio` of the
segments that may be compacted, or older than `max.compaction.lag.ms`. `cleaner-offset-checkpoint` stores the end of the
clean part of each log; without it every log counts as dirty.

The remaining records of some segments are written to a new file. A swap then puts this file in the place of those
segments. The swap takes several renames and fsyncs (see `log.compaction`), and may be interrupted by a full disk;
`Cleaner.complete_swap` then continues it later.
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
from headrace.broker.log.transactions import TransactionOutcomes
from headrace.kafka_wire.errors import CorruptBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """A topic's compaction settings: `tombstone_retention_ms` is `delete.retention.ms`, `dirty_ratio_min` is
    `min.cleanable.dirty.ratio` in [0, 1], and the lags are `min.compaction.lag.ms` and `max.compaction.lag.ms`."""

    tombstone_retention_ms: int
    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int


class Cleaner:
    """Compacts logs and records in `clean_to` how far each one is compacted. Not thread-safe; reading and writing of
    records runs in `executor`.

    Args:
        clean_to: end offset of the compacted part of each log.
        before_change: called before each compaction; persists the recovery points. Compaction leaves gaps between
            offsets, and the next start accepts gaps only below the stored recovery point; above it a gap would count
            as data loss.
        unlink: deletes files in the background.
        is_closing: returns whether the broker is stopping. Compaction then ends, but a replacement of segments by
            their compacted file that has begun is continued.
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
        self._uncleanable: set[PartitionKey] = set()
        self._pending_swaps: dict[PartitionKey, Callable[[], list[Path] | None]] = {}
        """For each log with a swap in progress: the function that completes or aborts it and returns the files to
        delete."""
        self.compactions = self.freed_bytes = 0

    @property
    def uncleanable_count(self) -> int:
        """Number of logs that are not compacted because a batch is corrupt."""
        return len(self._uncleanable)

    async def clean(
        self,
        key: PartitionKey,
        log: PartitionLog,
        policy: CompactionPolicy,
        now_ms: int,
        is_current: Callable[[], bool],
    ) -> bool:
        """Compacts a log if it is due according to `policy`; returns whether it was compacted completely.

        Args:
            key: topic name and partition number of the log.
            policy: the topic's compaction settings.
            now_ms: wall clock; the ages of records and tombstones are measured from it.
            is_current: returns False once the partition was deleted, even if one of the same name was created since.

        Raises:
            OSError: a file could not be read or written; segments that were already replaced remain so.
        """
        segments = self._due_segments(key, log, policy, now_ms)
        if not segments:
            return False
        try:
            return await self._compact(key, log, policy, now_ms, segments, is_current)
        except compaction.CompactionCancelled:
            return False
        except FileNotFoundError:
            # Retention or a topic deletion may have removed the files.
            if is_current() and all(segment in log.closed for segment in segments):
                raise
            return False
        except CorruptBatch as error:
            if not is_current():
                return False
            self._uncleanable.add(key)
            logger.error(
                "compaction disabled until a restart; stop the broker and run headrace broker verify "
                "directory=%s reason=%s",
                log.directory.name,
                error,
            )
            return False

    def _due_segments(
        self, key: PartitionKey, log: PartitionLog, policy: CompactionPolicy, now_ms: int
    ) -> Sequence[ClosedSegment]:
        if key in self._uncleanable:
            return ()
        log.roll_if_older(now_ms - policy.lag_ms_max, now_ms)
        if log.has_dirty_segments:
            self._flusher.mark_dirty(log)
        end = min(log.recovery_point, log.last_stable_offset)
        segments = [segment for segment in log.closed if segment.next_offset <= end]
        first_young = (at for at, each in enumerate(segments) if now_ms - each.timestamp_ms < policy.lag_ms_min)
        segments = segments[: next(first_young, len(segments))]
        dirty = [segment for segment in segments if segment.next_offset > self.clean_to.get(key, 0)]
        if not dirty:
            return ()
        ratio = sum(segment.size for segment in dirty) / sum(segment.size for segment in segments)
        is_old = now_ms - dirty[0].timestamp_ms > policy.lag_ms_max
        return segments if is_old or ratio >= policy.dirty_ratio_min else ()

    async def _compact(
        self,
        key: PartitionKey,
        log: PartitionLog,
        policy: CompactionPolicy,
        now_ms: int,
        segments: Sequence[ClosedSegment],
        is_current: Callable[[], bool],
    ) -> bool:
        loop = asyncio.get_running_loop()
        duty_cycle = compaction.DutyCycle(lambda: is_current() and not self._is_closing())
        start = max(self.clean_to.get(key, 0), log.log_start_offset)
        outcomes = TransactionOutcomes(log.aborted(segments[0].base_offset, segments[-1].next_offset))
        offset_map = await loop.run_in_executor(
            self._executor, compaction.build_offset_map, segments, start, outcomes, duty_cycle
        )
        rules = compaction.CleaningRules(now_ms + policy.tombstone_retention_ms, now_ms, log.producers.last_offsets())
        before = log.size
        await self._before_change()
        empty: tuple[ClosedSegment, ...] = ()
        for small_segments in compaction.group_segments(segments, log.limits.segment_bytes_max):
            if small_segments[0].base_offset >= offset_map.end:
                break
            group = compaction.with_empty_segment(empty, small_segments)
            try:
                facts = await loop.run_in_executor(
                    self._executor, compaction.write_cleaned_segment, group, offset_map, rules, outcomes, duty_cycle
                )
            except BaseException:
                # Also frees space, since the disk may be full.
                self._discard_cleaned(key, group)
                raise
            if not is_current() or any(segment not in log.closed for segment in group):
                compaction.discard_cleaned(group)
                return False
            if facts is not None:
                # Make this swap durable before the next one, which may remove the last trace of a key that this segment
                # still holds.
                await self._swap_in(key, log, group, facts, is_current)
            empty = compaction.only_if_empty(log.segments.closed_at(group[0].base_offset))
        if not is_current():
            # The results must not be applied to a new topic of the same name.
            return False
        self.clean_to[key] = offset_map.end
        self.compactions += 1
        self.freed_bytes += max(before - log.size, 0)
        logger.info(
            "log compacted directory=%s keys=%d clean_to=%d bytes_before=%d bytes_after=%d",
            log.directory.name,
            len(offset_map.newest),
            offset_map.end,
            before,
            log.size,
        )
        return True

    async def _swap_in(
        self,
        key: PartitionKey,
        log: PartitionLog,
        group: Sequence[ClosedSegment],
        facts: SegmentFacts,
        is_current: Callable[[], bool],
    ) -> None:
        try:
            compaction.stage_swap(group)
        except OSError:
            self._discard_cleaned(key, group)
            raise
        log.is_swapping = True
        no_space: compaction.NoSpaceForSwap | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, compaction.fsync_staged_swap, group)
            if not is_current():
                return
            try:
                log.replace_segments(group, facts)
                self._pending_swaps[key] = partial(compaction.complete_swap, group)
                self._flusher.mark_dirty(log)
            except compaction.NoSpaceForSwap as error:
                # Also frees space, since the disk may be full.
                self._pending_swaps[key] = partial(compaction.abort_swap, group)
                no_space = error
        except OSError as error:
            self._fail(error, is_current)
            return
        await self.complete_swap(key, log, is_current)
        if no_space is not None:
            raise no_space

    def _discard_cleaned(self, key: PartitionKey, group: Sequence[ClosedSegment]) -> None:
        """Deletes the compacted file of a group of segments that will not be installed. If that fails, for example
        because the disk is full, `complete_swap` tries it again: later compactions may form other groups."""
        try:
            compaction.discard_cleaned(group)
        except OSError:
            self._pending_swaps[key] = partial(compaction.abort_swap, group)

    async def complete_swap(self, key: PartitionKey, log: PartitionLog, is_current: Callable[[], bool]) -> None:
        """Continues the interrupted swap of a log, if there is one. A swap replaces segments by their compacted file;
        it is completed if that file is in its place, else aborted. While a swap is pending, no segment of the log is
        deleted.

        Args:
            key: topic name and partition number of the log.
            is_current: returns False once the partition was deleted.

        Raises:
            OSError: the swap is still pending; the disk is full or has failed.
        """
        if key not in self._pending_swaps:
            return
        try:
            renamed = await asyncio.get_running_loop().run_in_executor(self._executor, self._pending_swaps[key])
        except compaction.SwapPending:
            raise
        except OSError as error:
            self._fail(error, is_current)
            return
        self._unlink(renamed or [])
        if is_current():
            del self._pending_swaps[key]
            log.is_swapping = False

    def _fail(self, error: OSError, is_current: Callable[[], bool]) -> None:
        """Stops the broker and raises `error`, with which the replacement of segments by their compacted file failed
        halfway: it is unknown which files were renamed, and only the next start can repair that. Does nothing if the
        partition was deleted (`is_current` returns False)."""
        if is_current():
            self._flusher.fail(error)
            raise error

    def limit_clean_to(self, logs: Mapping[PartitionKey, PartitionLog]) -> None:
        """Corrects `clean_to`, the end offset of the compacted part of each log, after the logs were opened. If a log
        lost its end, its compacted part ends at the new end of the log, since records that are appended there are not
        compacted. Removes the entries of logs that are not in `logs`."""
        self.clean_to = {key: min(at, logs[key].log_end_offset) for key, at in self.clean_to.items() if key in logs}

    def forget(self, key: PartitionKey) -> None:
        """Removes the compaction state of a deleted log, so that a new log of the same name begins without it. `key` is
        the log's topic name and partition number."""
        self.clean_to.pop(key, None)
        self._pending_swaps.pop(key, None)
        self._uncleanable.discard(key)
