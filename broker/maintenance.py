"""Periodic maintenance of the logs: retention and compaction.

Works on one log at a time and yields to the event loop in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

from headrace.broker.checkpoint_writer import CheckpointWriter
from headrace.broker.cleaner import Cleaner, CompactionPolicy
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.coordinator import GroupCoordinator
from headrace.broker.log.checkpoints import PartitionKey
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.retention import UNLIMITED, expired_segments
from headrace.broker.log.segment import read_facts
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.topic_config import BY_NAME, effective_int, has_delete_policy, is_compacted
from headrace.broker.topics import Topic, TopicStore

logger = logging.getLogger(__name__)

FAILED = "maintenance failed topic=%s partition=%d; continuing with the next partition"
"""Log message for an unexpected error in the maintenance of one log. The other logs are still processed; otherwise one
bug would stop retention everywhere and the disk would fill."""


class LogMaintenance:
    """Applies retention and compaction to the logs of all topics that are not internal. Not thread-safe; slow disk
    access runs in `executor`.

    Args:
        logs: the current logs; the mapping changes over time.
        unlink: deletes files in a thread, and retries files that it could not delete before.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicStore,
        logs: Mapping[PartitionKey, PartitionLog],
        *,
        groups: GroupCoordinator,
        cleaner: Cleaner,
        flusher: Flusher,
        checkpoints: CheckpointWriter,
        executor: Executor,
        unlink: Callable[[list[Path]], Future[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._config, self._topics, self._logs = config, topics, logs
        self._groups, self._cleaner, self._flusher, self._checkpoints = groups, cleaner, flusher, checkpoints
        self._executor, self._unlink, self._now_ms = executor, unlink, now_ms

    async def run_housekeeping(self) -> None:
        """Applies retention, removes expired state of producers and groups, and writes the checkpoints.

        Raises:
            OSError: a segment could not be closed, files could not be deleted, or the checkpoints could not be written;
                all other logs were still processed.
            RequestRefused: the groups' log cannot be written.
        """
        failure: OSError | None = None
        yielder = LoopYielder()
        for name, index in tuple(self._logs):
            await yielder.yield_if_due()
            topic, log = self._topics.get(name), self._logs.get((name, index))
            if topic is None or log is None:
                continue
            log.producers.expire(self._now_ms())
            if topic.is_internal:
                continue
            try:
                await self._apply_retention((name, index), topic, log, self._now_ms())
            except OSError as error:
                failure = error
            except Exception:
                logger.exception(FAILED, name, index)
        try:
            await self._groups.run_housekeeping()
        finally:
            await asyncio.wrap_future(self._checkpoints.write())
        await asyncio.wrap_future(self._unlink([]))
        if failure is not None:
            raise failure

    async def drop_below_log_start(self, key: PartitionKey) -> None:
        """Deletes the segments of a log that lie completely below its log start offset, which frees disk space at once.
        Does nothing while a compaction swap of the log is pending.

        Args:
            key: topic name and partition number of the log.

        Raises:
            OSError: some files could not be deleted.
        """
        topic, log = self._topics.get(key[0]), self._logs.get(key)
        if topic is not None and log is not None:
            await self._drop_expired(key, log, UNLIMITED, UNLIMITED, self._now_ms())

    async def _apply_retention(self, key: PartitionKey, topic: Topic, log: PartitionLog, now_ms: int) -> None:
        is_limited = has_delete_policy(topic.configs)
        retention_ms, retention_bytes = (
            effective_int(topic.configs, name, self._config) if is_limited else UNLIMITED
            for name in ("retention.ms", "retention.bytes")
        )
        await self._drop_expired(key, log, retention_ms, retention_bytes, now_ms)
        if self._logs.get(key) is not log:
            return  # Deleted meanwhile; a new partition may use the same directory name.
        largest = log.active.largest
        if largest is not None and retention_ms >= 0 and 0 <= largest.timestamp_ms < now_ms - retention_ms:
            # On a full disk the new segment uses the space that was just freed.
            log.roll(now_ms)
            self._flusher.mark_dirty(log)
            await self._drop_expired(key, log, retention_ms, retention_bytes, now_ms)

    async def _drop_expired(
        self, key: PartitionKey, log: PartitionLog, retention_ms: int, retention_bytes: int, now_ms: int
    ) -> None:
        def expired(retention_ms: int) -> int:
            return expired_segments(
                log.closed,
                now_ms=now_ms,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                total_bytes=log.size,
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
            )

        # Expiry by age relies on the largest timestamp in the time index, so compare it with the batches first.
        for segment in log.closed[expired(UNLIMITED) : expired(retention_ms)]:
            facts = await asyncio.get_running_loop().run_in_executor(
                self._executor, read_facts, segment.directory, segment.base_offset, segment.size
            )
            if self._logs.get(key) is not log:
                return
            is_current = segment in log.closed and not log.is_swapping
            if is_current and facts.largest != segment.largest and facts.size == segment.size:
                log.segments.rebuild_indexes(segment)
                self._flusher.mark_dirty(log)
        count = 0
        # A segment in a compaction swap must not be deleted: the next start would complete the swap and restore it.
        while not log.is_swapping and expired(retention_ms):
            # Delete in order, also on a power failure: a gap between segments would be treated as data loss. First make
            # the name of the following segment durable: it alone may give the log end offset afterwards.
            await self._flusher.sync_directory(log.directory)
            if self._logs.get(key) is not log:
                return
            if not log.is_swapping and expired(retention_ms):
                await asyncio.wrap_future(self._unlink(log.drop_segments(1)))
                count += 1
        if count:
            logger.info(
                "segments deleted directory=%s count=%d log_start_offset=%d",
                log.directory.name,
                count,
                log.log_start_offset,
            )

    async def clean(self) -> None:
        """Compacts the logs that are due.

        Raises:
            OSError: a log could not be compacted, but all other logs were still processed; or the checkpoints could not
                be written.
        """
        failure: OSError | None = None
        is_changed = False
        yielder = LoopYielder()
        for key in tuple(self._logs):
            await yielder.yield_if_due()
            topic, log = self._topics.get(key[0]), self._logs.get(key)
            if topic is None or log is None:
                continue
            is_current = partial(self._is_current, key, log)
            try:
                await self._cleaner.complete_swap(key, log, is_current)
                if is_current() and not topic.is_internal and is_compacted(topic.configs):
                    is_changed |= await self._cleaner.clean(
                        key, log, self._compaction_policy(topic), self._now_ms(), is_current
                    )
            except OSError as error:
                failure = error
            except Exception:
                logger.exception(FAILED, *key)
        if is_changed:
            await asyncio.wrap_future(self._checkpoints.write())
        if failure is not None:
            raise failure

    def _is_current(self, key: PartitionKey, log: PartitionLog) -> bool:
        return self._logs.get(key) is log

    def _compaction_policy(self, topic: Topic) -> CompactionPolicy:
        ratio = topic.configs.get("min.cleanable.dirty.ratio") or BY_NAME["min.cleanable.dirty.ratio"].default(
            self._config
        )
        return CompactionPolicy(
            effective_int(topic.configs, "delete.retention.ms", self._config),
            float(ratio),
            effective_int(topic.configs, "min.compaction.lag.ms", self._config),
            effective_int(topic.configs, "max.compaction.lag.ms", self._config),
        )
