"""Topics come, grow, are configured and go.

One change after the other. A change is on disk before anybody sees it, and is then seen as a whole; the file of the
topics is written by one thread, so that nobody waits for the disk but who wants the change.
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
from headrace.broker.coordinator.commits import Commits
from headrace.broker.data_directory import DELETED_DIRECTORY, partition_directory, put_stray_aside, remove_directories
from headrace.broker.errors import RequestRefused
from headrace.broker.log.checkpoints import PartitionKey
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import log_limits
from headrace.broker.topics import INTERNAL_TOPICS, Topic, TopicStore, check_partition_count, check_topic_name
from headrace.broker.turns import Turns

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 100
"""Created for one client that asks for them, while all others wait."""
PARTITIONS_TOTAL_MAX = 20_000
"""Of all topics: clients create topics by asking for them, and each partition costs a directory and a start's time."""

Result = TypeVar("Result")


class TopicChanges:
    """Not for use by threads. `groups` are there before the first topic that is not the broker's own.

    Args:
        logs: all there are, which this adds to and takes from.
        open_new: opens the log of a new partition.
        writer: of one thread, which writes checkpoints too.
        executor: of threads that have time.
    """

    commits: Commits

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
        self._changing = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def ended(self) -> None:
        """Waits for all that are under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raises:
        RequestRefused: a topic of this name and size cannot be created.
        """
        check_topic_name(name)
        check_partition_count(partitions)
        if self._topics.get(name) is not None:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
        self._check_room(partitions)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Creates a topic while all others wait: for the start, and for few partitions.

        Raises:
            RequestRefused: it cannot be created; it does not exist.
        """
        assert not self._changing.locked()
        self.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(dict(configs)))
        places = [(topic, index) for index in range(partitions)]
        if not topic.is_internal:
            for _ in self.commits.forget_before(name):
                pass
        try:
            for write in self._adding([topic], places):
                if write is not None:
                    write.result()
        except (OSError, RequestRefused) as error:
            remove_directories(self._new_directories(places))
            if isinstance(error, RequestRefused):
                raise
            raise RequestRefused(ErrorCode.STORAGE_ERROR, error.strerror or str(error)) from error
        return topic

    async def create_topics(self, topics: Sequence[Topic]) -> dict[str, RequestRefused]:
        """Creates topics, with one write of the topic file for all; returns why some of them could not be.

        Where there would be too many partitions, or the disk is full, none of them exists.
        """
        return await self._to_its_end(self._create_topics(topics))

    async def _create_topics(self, topics: Sequence[Topic]) -> dict[str, RequestRefused]:
        refusals: dict[str, RequestRefused] = {}
        async with self._changing:
            missing = []
            for topic in topics:
                try:
                    # Somebody else may have created it meanwhile.
                    self.check_new_topic(topic.name, topic.partitions)
                    missing.append(topic)
                except RequestRefused as refused:
                    refusals[topic.name] = refused
            refusals.update(await self._create_missing(missing))
        return refusals

    async def ensure_topics(self, names: Iterable[str]) -> dict[str, RequestRefused]:
        """Creates those of these topics that are missing, and returns why some could not be.

        Beyond TOPICS_AT_ONCE they are as unknown as before: clients ask again for what they do not find. So are the
        broker's own, which it makes as it needs them.
        """
        return await self._to_its_end(self._ensure_topics(tuple(names)))

    async def _ensure_topics(self, names: Sequence[str]) -> dict[str, RequestRefused]:
        missing: list[Topic] = []
        refusals: dict[str, RequestRefused] = {}
        async with self._changing:
            for name in names:
                if name in INTERNAL_TOPICS:
                    continue
                if self._topics.get(name) is None and len(missing) < TOPICS_AT_ONCE:
                    try:
                        self.check_new_topic(name, self._config.partitions)
                        self._check_room(self._config.partitions * (len(missing) + 1))
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
            RequestRefused: there is no such topic, it has as many, there would be too many partitions, or the disk is
                full; the topic is as before.
        """
        await self._to_its_end(self._add_partitions(name, count))

    async def _add_partitions(self, name: str, count: int) -> None:
        async with self._changing:
            topic = self._topics.existing(name)
            if count <= topic.partitions:
                raise RequestRefused(
                    ErrorCode.INVALID_PARTITIONS,
                    f"topic {name!r} has {topic.partitions} partitions; {count} would not be more",
                )
            grown = replace(topic, partitions=count)
            await self._add([grown], [(grown, index) for index in range(topic.partitions, count)])
        logger.info("partitions added topic=%s partitions=%d", name, count)

    async def _add(self, topics: Sequence[Topic], places: Sequence[tuple[Topic, int]]) -> None:
        turns = Turns()
        for topic in topics:
            if self._topics.get(topic.name) is None and not topic.is_internal:
                await self.commits.forgotten_before(topic.name)
        try:
            for write in self._adding(topics, places):
                if write is not None:
                    await asyncio.wrap_future(write)
                await turns.give()
        except (OSError, RequestRefused) as error:
            await asyncio.wrap_future(self._writer.submit(remove_directories, self._new_directories(places)))
            if isinstance(error, RequestRefused):
                raise
            raise RequestRefused(ErrorCode.STORAGE_ERROR, error.strerror or str(error)) from error

    def _adding(self, topics: Sequence[Topic], places: Sequence[tuple[Topic, int]]) -> Iterator[Future[None] | None]:
        """Makes the directories of new partitions and then writes their topics: what has no topic yet is a leftover.

        Yields what has to be written before it goes on; None where others may have their turn.
        """
        self._check_room(len(places))
        if self._checkpoints.have_deleted_topics:
            yield self._checkpoints.write()
        opened: dict[PartitionKey, PartitionLog] = {}
        for (topic, index), directory in zip(places, self._new_directories(places), strict=True):
            if directory.exists():
                # Of a topic that was deleted, which the disk did not let go; the records are no new one's.
                put_stray_aside(directory)
            opened[topic.name, index] = self._open_new(topic, index)
            yield None
        changed = self._topics.with_topics(topics)
        yield self._writer.submit(self._topics.write, changed)
        new = [topic for topic in topics if self._topics.get(topic.name) is None]
        self._logs.update(opened)
        self._topics.take(changed)
        for topic in new:
            logger.info("topic created topic=%s partitions=%d id=%s", topic.name, topic.partitions, topic.topic_id)

    def _new_directories(self, places: Iterable[tuple[Topic, int]]) -> list[Path]:
        return [partition_directory(self._config.data_dir, topic.name, index) for topic, index in places]

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Waits for work that goes on where the client who wants it is gone, since half of it must not be left."""
        change = asyncio.get_running_loop().create_task(work)
        self._under_way.add(change)
        change.add_done_callback(self._under_way.discard)
        return await asyncio.shield(change)

    def _check_room(self, partitions: int) -> None:
        if len(self._logs) + partitions > PARTITIONS_TOTAL_MAX:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions beside {len(self._logs)}; at most {PARTITIONS_TOTAL_MAX} are kept in all",
            )

    async def delete_topic(self, topic: Topic) -> None:
        """Raises:
        RequestRefused: it is the broker's own, it is gone, or its deletion cannot be stored.
        """
        if topic.name in INTERNAL_TOPICS:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        await self._to_its_end(self._delete_topic(topic))

    async def _delete_topic(self, asked_for: Topic) -> None:
        async with self._changing:
            # Meanwhile it may have been altered, or deleted and created anew.
            topic = self._topics.existing(asked_for.name)
            if topic.topic_id != asked_for.topic_id:
                raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} is another one now")
            remaining = self._topics.without(topic.name)
            await asyncio.wrap_future(self._writer.submit(self._topics.write, remaining))
            self._topics.take(remaining)
            self._checkpoints.note_deletion()
            await self._let_go(topic, [self._logs.pop((topic.name, index)) for index in range(topic.partitions)])
            try:
                await asyncio.wrap_future(self._checkpoints.write())
            except OSError as error:
                logger.error("checkpoints not written error=%s; written before the next topic is created", error)
        # Until this waits for the disk nobody else has a turn: what is committed in a new topic of the name stays.
        try:
            await self.commits.forget_topic(topic.name)
        except RequestRefused as refused:
            logger.error(
                "offsets of a deleted topic not forgotten topic=%s reason=%s; tried again", topic.name, refused
            )

    async def _let_go(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Removes the logs of a topic that is not there any more."""
        for index, log in enumerate(logs):
            self._flusher.forget(log)
            self._cleaner.forget((topic.name, index))
        turns, doomed = Turns(), []
        for index, log in enumerate(logs):
            log.forget_files()
            try:
                # Renamed first, so that the topic can be created anew while the files of the old one are removed.
                doomed.append(
                    log.directory.rename(log.directory.with_name(f"{topic.topic_id.hex}-{index}{DELETED_DIRECTORY}"))
                )
            except OSError as error:
                logger.error(
                    "deleted partition not renamed directory=%s error=%s; removed at once", log.directory.name, error
                )
                await asyncio.get_running_loop().run_in_executor(self._executor, remove_directories, [log.directory])
            log.wake(sys.maxsize)
            await turns.give()
        self._executor.submit(remove_directories, doomed)
        logger.info("topic deleted topic=%s id=%s", topic.name, topic.topic_id)

    async def alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        """Alters a topic, to a configuration that is made of it as it is then.

        Raises:
            RequestRefused: there is no such topic, `configs_of` refuses it, or it cannot be stored.
        """
        await self._to_its_end(self._alter_topic(name, configs_of))

    async def _alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        async with self._changing:
            topic = self._topics.existing(name)
            configs = configs_of(topic)
            if configs == topic.configs:
                return  # as who keeps two clusters alike asks for again and again
            changed = replace(topic, configs=MappingProxyType(dict(configs)))
            topics = self._topics.with_topics([changed])
            await asyncio.wrap_future(self._writer.submit(self._topics.write, topics))
            self._topics.take(topics)
            for index in range(changed.partitions):
                self._logs[changed.name, index].limits = log_limits(changed.configs, self._config)
        logger.info("topic altered topic=%s configs=%s", changed.name, dict(changed.configs))
