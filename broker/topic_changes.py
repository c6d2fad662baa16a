"""Creates, extends, configures and deletes topics.

Changes run one after another. Each change is fsynced before clients can see it, and they see all of it at once. One
thread writes the topics file, so that requests that change no topic do not wait for these writes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from headrace.broker.checkpoint_writer import CheckpointWriter
from headrace.broker.cleaner import Cleaner
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.commits import OffsetCommits
from headrace.broker.data_directory import DELETED_DIRECTORY, partition_directory, remove_directories, rename_stray
from headrace.broker.errors import RequestRefused
from headrace.broker.log.checkpoints import PartitionKey
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import log_limits
from headrace.broker.topics import INTERNAL_TOPICS, Topic, TopicStore, check_partition_count, check_topic_name

logger = logging.getLogger(__name__)

AUTO_CREATED_TOPICS_MAX = 100
"""Maximum number of topics created for one metadata request, since other requests wait meanwhile. The client retries
for the remaining topics."""
PARTITIONS_TOTAL_MAX = 20_000
"""Maximum number of partitions of all topics. A client can create topics merely by naming them, and each partition
costs a directory and time at every start."""

Result = TypeVar("Result")


class TopicChanges:
    """Creates, extends, configures and deletes the topics of a broker. Not thread-safe.

    `commits` stores the committed offsets of all groups; a deleted topic's offsets are deleted through it. The owner
    sets it before it creates the first topic that is not internal.

    Args:
        logs: the logs of all partitions; logs of new partitions are added to it, those of deleted topics removed.
        open_new: opens the log of a new partition, given its topic and number.
        writer: an executor with one thread, which also writes the checkpoints.
        executor: threads for slow work.
    """

    commits: OffsetCommits

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicStore,
        logs: dict[PartitionKey, PartitionLog],
        *,
        open_new: Callable[[Topic, int], PartitionLog],
        flusher: Flusher,
        cleaner: Cleaner,
        checkpoints: CheckpointWriter,
        writer: Executor,
        executor: Executor,
    ) -> None:
        self._config, self._topics, self._logs = config, topics, logs
        self._open_new, self._flusher, self._cleaner = open_new, flusher, cleaner
        self._checkpoints, self._writer, self._executor = checkpoints, writer, executor
        self._change_lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    async def wait_until_done(self) -> None:
        """Waits until all running changes of topics have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Checks whether a topic with this name and number of partitions can be created.

        Raises:
            RequestRefused: it cannot; the message gives the reason.
        """
        check_topic_name(name)
        check_partition_count(partitions)
        if self._topics.get(name) is not None:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
        self._check_partition_total(partitions)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Creates and returns a topic. The call blocks the event loop until the topic is stored, so it is only for the
        broker's start and a topic with few partitions.

        Args:
            configs: the topic's own values by configuration key; the broker's defaults apply to the other keys.

        Raises:
            RequestRefused: the topic could not be created; nothing of it is left.
        """
        assert not self._change_lock.locked()
        self.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(dict(configs)))
        new_partitions = [(topic, index) for index in range(partitions)]
        if not topic.is_internal:
            for _ in self.commits.delete_before_create(name):
                pass
        try:
            for write in self._creation_steps([topic], new_partitions):
                if write is not None:
                    write.result()
        except (OSError, RequestRefused) as error:
            remove_directories(self._new_directories(new_partitions))
            if isinstance(error, RequestRefused):
                raise
            raise _not_created(error) from error
        return topic

    async def create_topics(self, topics: Sequence[Topic]) -> dict[str, RequestRefused]:
        """Creates topics with one write of the topics file; returns, by topic name, why a topic could not be created.

        A topic that is refused by itself does not affect the others. If these would be too many partitions together, or
        a write fails, none of the topics is created.
        """
        return await self._uninterrupted(self._create_topics(topics))

    async def _create_topics(self, topics: Sequence[Topic]) -> dict[str, RequestRefused]:
        refusals: dict[str, RequestRefused] = {}
        async with self._change_lock:
            missing = []
            for topic in topics:
                try:
                    # Checked again: another request may have created the topic since.
                    self.check_new_topic(topic.name, topic.partitions)
                    missing.append(topic)
                except RequestRefused as refused:
                    refusals[topic.name] = refused
            refusals.update(await self._create_missing(missing))
        return refusals

    async def ensure_topics(self, names: Iterable[str]) -> dict[str, RequestRefused]:
        """Creates the named topics that do not exist; returns, by topic name, why a topic could not be created.

        Topics beyond AUTO_CREATED_TOPICS_MAX are not created, and clients retry. Neither are internal topics: the
        broker creates them when it needs them. The result contains neither of these.
        """
        return await self._uninterrupted(self._ensure_topics(tuple(names)))

    async def _ensure_topics(self, names: Sequence[str]) -> dict[str, RequestRefused]:
        missing: list[Topic] = []
        refusals: dict[str, RequestRefused] = {}
        async with self._change_lock:
            for name in names:
                if name in INTERNAL_TOPICS:
                    continue
                if self._topics.get(name) is None and len(missing) < AUTO_CREATED_TOPICS_MAX:
                    try:
                        self.check_new_topic(name, self._config.partitions)
                        self._check_partition_total(self._config.partitions * (len(missing) + 1))
                        missing.append(Topic(name, uuid.uuid4(), self._config.partitions))
                    except RequestRefused as refused:
                        refusals[name] = refused
            refusals.update(await self._create_missing(missing))
        return refusals

    async def _create_missing(self, topics: Sequence[Topic]) -> dict[str, RequestRefused]:
        try:
            if topics:
                await self._add(topics, [(topic, index) for topic in topics for index in range(topic.partitions)])
        except RequestRefused as refused:
            return {topic.name: refused for topic in topics}
        return {}

    async def add_partitions(self, name: str, count: int) -> None:
        """Raises the number of partitions of a topic to `count`.

        Raises:
            RequestRefused: the topic does not exist or has at least `count` partitions, all topics together would have
                too many, or the disk rejects a write; the topic is unchanged.
        """
        await self._uninterrupted(self._add_partitions(name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        async with self._change_lock:
            topic = self._topics.require(name)
            if count <= topic.partitions:
                raise RequestRefused(
                    ErrorCode.INVALID_PARTITIONS,
                    f"topic {name!r} has {topic.partitions} partitions; the new number of partitions must be larger, "
                    f"not {count}",
                )
            enlarged = replace(topic, partitions=count)
            await self._add([enlarged], [(enlarged, index) for index in range(topic.partitions, count)])
        logger.info("partitions added topic=%s partitions_now=%d", name, count)

    async def _add(self, topics: Sequence[Topic], new_partitions: Sequence[tuple[Topic, int]]) -> None:
        yielder = LoopYielder()
        for topic in topics:
            if self._topics.get(topic.name) is None and not topic.is_internal:
                await self.commits.delete_before_create_durably(topic.name)
        try:
            for write in self._creation_steps(topics, new_partitions):
                if write is not None:
                    await asyncio.wrap_future(write)
                await yielder.yield_if_due()
        except (OSError, RequestRefused) as error:
            await asyncio.wrap_future(self._writer.submit(remove_directories, self._new_directories(new_partitions)))
            if isinstance(error, RequestRefused):
                raise
            raise _not_created(error) from error

    def _creation_steps(
        self, topics: Sequence[Topic], new_partitions: Sequence[tuple[Topic, int]]
    ) -> Iterator[Future[None] | None]:
        """Creates the directories of new partitions, then adds their topics to the topics file. After a crash in
        between, the directories are strays, which the next start removes.

        Yields a future that the caller waits for before it continues the iteration, or None where it may let other
        tasks run.

        Args:
            topics: the topics that are created or extended, as they will be in the topics file.
            new_partitions: each new partition, as (topic, partition number).
        """
        self._check_partition_total(len(new_partitions))
        if self._checkpoints.may_hold_deleted_topics:
            yield self._checkpoints.write()
        opened: dict[PartitionKey, PartitionLog] = {}
        for (topic, index), directory in zip(new_partitions, self._new_directories(new_partitions), strict=True):
            if directory.exists():
                # Left by a deleted topic because a disk operation failed; its records do not belong to the new topic.
                rename_stray(directory)
            opened[topic.name, index] = self._open_new(topic, index)
            yield None
        changed = self._topics.with_topics(topics)
        yield self._writer.submit(self._topics.write, changed)
        new = [topic for topic in topics if self._topics.get(topic.name) is None]
        self._logs.update(opened)
        self._topics.apply(changed)
        for topic in new:
            logger.info("topic created topic=%s partitions=%d id=%s", topic.name, topic.partitions, topic.topic_id)

    def _new_directories(self, new_partitions: Iterable[tuple[Topic, int]]) -> list[Path]:
        return [partition_directory(self._config.data_dir, topic.name, index) for topic, index in new_partitions]

    async def _uninterrupted(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the coroutine `work`, a change of topics, to its end even if the client disconnects: a half-done change
        would be inconsistent. Returns the result of `work`."""
        change = asyncio.get_running_loop().create_task(work)
        self._running.add(change)
        change.add_done_callback(self._running.discard)
        return await asyncio.shield(change)

    def _check_partition_total(self, partitions: int) -> None:
        if len(self._logs) + partitions > PARTITIONS_TOTAL_MAX:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"there are {len(self._logs)} partitions, and {partitions} more would exceed the limit of "
                f"{PARTITIONS_TOTAL_MAX}; delete unused topics",
            )

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic.

        Raises:
            RequestRefused: the topic is internal, it does not exist or was created again since, or the deletion cannot
                be stored.
        """
        if topic.name in INTERNAL_TOPICS:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic and cannot be deleted")
        await self._uninterrupted(self._delete_topic(topic))

    async def _delete_topic(self, requested: Topic) -> None:
        async with self._change_lock:
            # The topic may have been altered meanwhile, or deleted and created again.
            topic = self._topics.require(requested.name)
            if topic.topic_id != requested.topic_id:
                raise RequestRefused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic.name!r} was deleted and created again during the request; the new topic was not "
                    "deleted",
                )
            remaining = self._topics.without(topic.name)
            await asyncio.wrap_future(self._writer.submit(self._topics.write, remaining))
            self._topics.apply(remaining)
            self._checkpoints.note_deletion()
            await self._remove_logs(topic, [self._logs.pop((topic.name, index)) for index in range(topic.partitions)])
            try:
                await asyncio.wrap_future(self._checkpoints.write())
            except OSError as error:
                logger.error("checkpoint files not written error=%s; retried before the next topic is created", error)
        # The offsets are deleted from memory before another task can create a topic of the same name, so offsets that
        # are committed for the new topic stay.
        try:
            await self.commits.delete_topic_offsets(topic.name)
        except RequestRefused as refused:
            logger.error(
                "offsets of a deleted topic not deleted topic=%s reason=%s; retrying later", topic.name, refused
            )

    async def _remove_logs(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Closes `logs`, the logs of a topic that is no longer in the topics file, and renames their directories, which
        a thread then deletes. A directory that cannot be renamed is deleted before this returns."""
        for index, log in enumerate(logs):
            self._flusher.discard(log)
            self._cleaner.forget((topic.name, index))
        yielder, renamed = LoopYielder(), []
        for index, log in enumerate(logs):
            log.close_files()
            try:
                # Renamed first, so that a topic of this name can be created while the old files are being deleted.
                renamed.append(
                    log.directory.rename(log.directory.with_name(f"{topic.topic_id.hex}-{index}{DELETED_DIRECTORY}"))
                )
            except OSError as error:
                logger.error(
                    "deleted partition not renamed directory=%s error=%s; deleting it now", log.directory.name, error
                )
                await asyncio.get_running_loop().run_in_executor(self._executor, remove_directories, [log.directory])
            log.notify_waiters(sys.maxsize)
            await yielder.yield_if_due()
        self._executor.submit(remove_directories, renamed)
        logger.info("topic deleted topic=%s id=%s", topic.name, topic.topic_id)

    async def alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        """Replaces a topic's configuration.

        Args:
            configs_of: called with the current topic; returns its new configuration, or raises `RequestRefused`.

        Raises:
            RequestRefused: the topic does not exist, `configs_of` refuses the change, or it cannot be stored.
        """
        await self._uninterrupted(self._alter_topic(name, configs_of))

    async def _alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        async with self._change_lock:
            topic = self._topics.require(name)
            configs = configs_of(topic)
            if configs == topic.configs:
                return  # no change: tools that synchronize clusters send the same request repeatedly
            changed = replace(topic, configs=MappingProxyType(dict(configs)))
            topics = self._topics.with_topics([changed])
            await asyncio.wrap_future(self._writer.submit(self._topics.write, topics))
            self._topics.apply(topics)
            for index in range(changed.partitions):
                self._logs[changed.name, index].limits = log_limits(changed.configs, self._config)
        logger.info("topic altered topic=%s configs=%s", changed.name, dict(changed.configs))


def _not_created(error: OSError) -> RequestRefused:
    return RequestRefused(
        ErrorCode.STORAGE_ERROR,
        f"no partition directory could be created: {error.strerror or error}; check the disk of the data directory",
    )
