"""What the broker does for its logs beside the requests: what is old goes, what is compacted is cleaned.

One log after the other, a little at a time, so that everything else has its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

from headrace.broker.checkpoint_writer import CheckpointWriter
from headrace.broker.cleaner import Cleaner, Wish
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.coordinator import GroupCoordinator
from headrace.broker.log.checkpoints import PartitionKey
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.retention import UNLIMITED, expired_segments
from headrace.broker.log.segment import facts_of
from headrace.broker.topic_config import BY_NAME, effective_number, is_compacted, is_deleted
from headrace.broker.topics import Topic, TopicStore
from headrace.broker.turns import Turns

logger = logging.getLogger(__name__)

FAILED = "upkeep failed topic=%s partition=%d; the others are looked after"
"""An error of our own in one log must not leave the disk to fill with all that come after it."""


class Upkeep:
    """Not for use by threads, but has the disk waited for in `executor`'s.

    Args:
        logs: all there are, now and later.
        unlink: removes files in a thread, and those that it could not remove before.
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

    async def keep_house(self) -> None:
        """Retention, forgotten producers, unused groups, checkpoints.

        Raises:
            OSError: a log could not be rolled, or files that were to go stay; the others were looked after.
            RequestRefused: the groups' log cannot be written.
        """
        full: OSError | None = None
        turns = Turns()
        for name, index in tuple(self._logs):
            await turns.give()
            topic, log = self._topics.get(name), self._logs.get((name, index))
            if topic is None or log is None:
                continue
            log.producers.expire(self._now_ms())
            if topic.is_internal:
                continue
            try:
                await self._retain((name, index), topic, log, self._now_ms())
            except OSError as error:
                full = error
            except Exception:
                logger.exception(FAILED, name, index)
        try:
            await self._groups.keep_house()
        finally:
            await asyncio.wrap_future(self._checkpoints.write())
        await asyncio.wrap_future(self._unlink([]))
        if full is not None:
            raise full

    async def drop_hidden(self, key: PartitionKey) -> None:
        """Removes the segments of a log that lie wholly below its start; afterwards their space is free.

        Raises:
            OSError: some could not be removed.
        """
        topic, log = self._topics.get(key[0]), self._logs.get(key)
        if topic is not None and log is not None:
            await self._drop_expired(key, topic, log, UNLIMITED, self._now_ms())

    async def _retain(self, key: PartitionKey, topic: Topic, log: PartitionLog, now_ms: int) -> None:
        is_limited = is_deleted(topic.configs)
        retention_ms = effective_number(topic.configs, "retention.ms", self._config) if is_limited else UNLIMITED
        await self._drop_expired(key, topic, log, retention_ms, now_ms)
        if self._logs.get(key) is not log:
            return  # deleted meanwhile, and another one may have its directory's name
        largest = log.active.largest
        if largest is not None and retention_ms >= 0 and 0 <= largest.timestamp_ms < now_ms - retention_ms:
            # On a full disk that takes the space which has just been freed.
            log.roll(now_ms)
            self._flusher.note(log)
            await self._drop_expired(key, topic, log, retention_ms, now_ms)

    async def _drop_expired(
        self, key: PartitionKey, topic: Topic, log: PartitionLog, retention_ms: int, now_ms: int
    ) -> None:
        def expired(retention_ms: int) -> int:
            return expired_segments(
                log.closed,
                now_ms=now_ms,
                retention_ms=retention_ms,
                retention_bytes=(
                    effective_number(topic.configs, "retention.bytes", self._config)
                    if is_deleted(topic.configs)
                    else UNLIMITED
                ),
                total_bytes=log.size,
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
            )

        # What goes for its age goes by an index, so that is compared with the batches first.
        for segment in log.closed[expired(UNLIMITED) : expired(retention_ms)]:
            facts = await asyncio.get_running_loop().run_in_executor(
                self._executor, facts_of, segment.directory, segment.base_offset, segment.size
            )
            if self._logs.get(key) is not log:
                return
            is_there = segment in log.closed and not log.is_being_replaced
            if is_there and facts.largest != segment.largest and facts.size == segment.size:
                log.segments.rebuild_indexes(segment)
                self._flusher.note(log)
        count = 0
        # What is just being replaced must not be gone when a start would finish that.
        while not log.is_being_replaced and expired(retention_ms):
            # The oldest first, also where the power fails: a hole between segments would be taken for a loss. And not
            # before the name of what follows it is on disk, since that alone may then tell where the log ends.
            await self._flusher.sync_names(log.directory)
            if self._logs.get(key) is not log:
                return
            if not log.is_being_replaced and expired(retention_ms):
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
        """Compacts what is due, one log after the other.

        Raises:
            OSError: a log could not be compacted; the others were looked after.
        """
        failure: OSError | None = None
        is_changed = False
        turns = Turns()
        for key in tuple(self._logs):
            await turns.give()
            topic, log = self._topics.get(key[0]), self._logs.get(key)
            if topic is None or log is None:
                continue
            is_there = partial(self._is_there, key, log)
            try:
                await self._cleaner.end_replacing(key, log, is_there)
                if is_there() and not topic.is_internal and is_compacted(topic.configs):
                    is_changed |= await self._cleaner.clean(key, log, self._wish(topic), self._now_ms(), is_there)
            except OSError as error:
                failure = error
            except Exception:
                logger.exception(FAILED, *key)
        if is_changed:
            await asyncio.wrap_future(self._checkpoints.write())
        if failure is not None:
            raise failure

    def _is_there(self, key: PartitionKey, log: PartitionLog) -> bool:
        return self._logs.get(key) is log

    def _wish(self, topic: Topic) -> Wish:
        share = topic.configs.get("min.cleanable.dirty.ratio") or BY_NAME["min.cleanable.dirty.ratio"].default(
            self._config
        )
        return Wish(
            effective_number(topic.configs, "delete.retention.ms", self._config),
            float(share),
            effective_number(topic.configs, "min.compaction.lag.ms", self._config),
            effective_number(topic.configs, "max.compaction.lag.ms", self._config),
        )
