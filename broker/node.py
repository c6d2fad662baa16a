"""The broker without its sockets: topics, their logs, and what keeps them durable.

Files in the data folder: `.lock` (held by the running broker), `topics.json`, `producer-ids`, the two offset
checkpoints, `.kafka_cleanshutdown` (only while no broker runs, and only after an orderly end), and a folder
`<topic>-<partition>` per partition.

Topics and checkpoints are written by one thread, in the order that is asked for, so that nobody waits for the disk but
who wants them written. Topics are changed one after the other. A change is on disk before anybody sees it, and is then
seen as a whole.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from headrace.broker import descriptors
from headrace.broker.cleaner import Cleaner, Wish
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import transactions
from headrace.broker.coordinator.coordinator import GroupCoordinator
from headrace.broker.coordinator.table import LogTable
from headrace.broker.coordinator.transactions import TransactionCoordinator
from headrace.broker.data_folder import (
    CLEAN_MARKER,
    DELETED_FOLDER,
    boot_id,
    lock,
    put_strays_aside,
    remove_folders,
    unlink_files,
)
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.log.checkpoints import (
    CLEAN_TO,
    LOG_STARTS,
    RECOVERY_POINTS,
    PartitionKey,
    read_checkpoint,
    write_checkpoint,
)
from headrace.broker.log.files import OpenFiles, sync_folder
from headrace.broker.log.flusher import SYNC_THREADS, Flusher
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.recovery import OpenLog, open_log
from headrace.broker.log.retention import UNLIMITED, expired_segments
from headrace.broker.log.segment import facts_of
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import BY_NAME, effective_number, is_compacted, is_deleted
from headrace.broker.topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Topic,
    TopicStore,
    check_partition_count,
    check_topic_name,
)
from headrace.broker.turns import Turns

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 100
"""Created for one client that asks for them, while all others wait."""
OFFSETS_PARTITION = (OFFSETS_TOPIC, 0)
TRANSACTIONS_PARTITION = (TRANSACTIONS_TOPIC, 0)

Result = TypeVar("Result")
Checkpoints = Mapping[str, Mapping[PartitionKey, int]]

PARTITIONS_TOTAL_MAX = 20_000
"""Of all topics: clients create topics by asking for them, and each partition costs a folder and a start's time."""


class BrokerNode:
    """Everything of the broker that outlives a connection. `now_ms` is the wall clock, in milliseconds, and
    `monotonic_ms` the one that deadlines of groups go by."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files_max: int = descriptors.FILES_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        on_disk_failure: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self.address = (config.host, config.port)
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self._executor = ThreadPoolExecutor(max_workers=SYNC_THREADS, thread_name_prefix="broker-disk")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-files")
        # One thread, so that the event loop shares the interpreter with no more.
        self.opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-open")
        self.flusher = Flusher(self._executor, on_disk_failure)
        self.fetch_sessions = FetchSessions()
        self._tasks: list[asyncio.Task[None]] = []
        self._changing_topics = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        # How many topics were deleted, and how many of them had gone when the checkpoints on disk were made: rows of
        # deleted topics must not meet new ones of their names.
        self._deletions = self._deletions_on_disk = 0
        self._closing = asyncio.Event()
        self._lock_fd = lock(config.data_dir)
        try:
            self._open(files_max)
        except BaseException:
            self._executor.shutdown()
            self._writer.shutdown()
            os.close(self._lock_fd)
            raise

    def _open(self, files_max: int) -> None:
        folder = self.config.data_dir
        self._files = OpenFiles(files_max)
        self.topics = TopicStore.load(folder, base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        self.topics.begin_leader_epoch(self.now_ms())
        self.producer_ids = ProducerIds(folder, self._executor)
        marker = folder / CLEAN_MARKER
        is_clean = marker.exists()
        put_strays_aside(
            folder, {f"{topic.name}-{index}" for topic in self.topics for index in range(topic.partitions)}
        )
        recovery_points = read_checkpoint(folder / RECOVERY_POINTS)
        log_starts = read_checkpoint(folder / LOG_STARTS)
        self.cleaner = Cleaner(
            self._executor,
            self.flusher,
            read_checkpoint(folder / CLEAN_TO),
            before_change=lambda: asyncio.wrap_future(self._write_recovery_points()),
            unlink=self.unlink_later,
        )
        started = time.monotonic()
        truncated = 0
        for topic in self.topics:
            for index in range(topic.partitions):
                key = (topic.name, index)
                opened = self._open_log(topic, index, is_clean, recovery_points.get(key), log_starts.get(key, 0))
                self.logs[key] = opened.log
                truncated += opened.truncated_bytes
        self.cleaner.keep_within(self.logs)
        # Rows of partitions that are gone must not meet a new partition of the same name.
        self._write_checkpoints().result()
        marker.unlink(missing_ok=True)
        sync_folder(folder)
        if OFFSETS_TOPIC not in {topic.name for topic in self.topics}:
            self.create_topic(OFFSETS_TOPIC, 1, {})
        self.groups = GroupCoordinator(
            self.logs[OFFSETS_PARTITION],
            self.flusher,
            self.config.fsync,
            self.now_ms,
            topics=self.topics,
            unlink=self.unlink_later,
            rebalance_delay_ms=self.config.rebalance_delay_ms,
            session_timeout_ms_min=self.config.session_timeout_ms_min,
            consumer_session_timeout_ms=self.config.consumer_session_timeout_ms,
            monotonic_ms=self._monotonic_ms,
        )
        self.transactions = TransactionCoordinator(
            self.logs,
            self.groups,
            OFFSETS_PARTITION,
            self.flusher,
            self.config.fsync,
            self.producer_ids,
            self.now_ms,
            table=self._transaction_table() if TRANSACTIONS_PARTITION in self.logs else None,
            open_table=self._new_transaction_table,
            is_clean=is_clean,
            boot_id=boot_id(),
        )
        logger.info(
            "logs opened folder=%s topics=%d partitions=%d clean=%s truncated_bytes=%d duration_ms=%d",
            folder,
            len(self.topics),
            len(self.logs),
            is_clean,
            truncated,
            (time.monotonic() - started) * 1000,
        )

    async def _new_transaction_table(self) -> LogTable:
        """
        Raises:
            RequestRefused: the disk refused it.
        """
        refusals = await self.create_topics([Topic(TRANSACTIONS_TOPIC, uuid.uuid4(), 1)])
        if refusals:
            raise refusals[TRANSACTIONS_TOPIC]
        return self._transaction_table()

    def _transaction_table(self) -> LogTable:
        return LogTable(
            self.logs[TRANSACTIONS_PARTITION],
            self.flusher,
            self.config.fsync,
            self.now_ms,
            unlink=self.unlink_later,
            grows_by=transactions.COMPACT_BYTES,
        )

    def start(self) -> None:
        """Starts what runs beside the connections; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._repeat(self.config.housekeeping_interval_ms, self._keep_house)),
            loop.create_task(self._repeat(self.config.cleaner_interval_ms, self._clean)),
            loop.create_task(self.groups.run()),
            loop.create_task(self._repeat(transactions.LOOK_MS, self.transactions.look)),
        ]
        flush = self.flusher.flush_closed_segments if self.config.fsync is FsyncMode.NONE else self.flusher.flush_dirty
        self._tasks.append(loop.create_task(self._repeat(self.config.flush_interval_ms, flush)))

    async def close(self) -> None:
        """Forces and closes everything, and leaves the mark of a clean end unless the disk is full.

        Raises:
            OSError: something could not be forced to disk.
        """
        self._closing.set()
        self.groups.stop()
        await asyncio.gather(*self._tasks, *self._changes, return_exceptions=True)
        unforced: list[Path] = []
        full: OSError | None = None
        for log in self.logs.values():
            try:
                unforced += log.close()
            except OSError as error:
                full = error
                unforced += log.flush_job().paths
        await self.flusher.sync(unforced)
        try:
            if full is not None:
                raise full
            for log in self.logs.values():
                log.recovery_point = log.log_end_offset
            await asyncio.wrap_future(self._write_checkpoints())
            # Where the power takes that mark, the next start reads from the recovery points on, which is nothing.
            (self.config.data_dir / CLEAN_MARKER).touch()
        except OSError as error:
            logger.warning("closed without the mark of a clean end; the next start reads the logs error=%s", error)
        self._files.close()
        self.opener.shutdown(cancel_futures=True)
        self._executor.shutdown()
        self._writer.shutdown()
        os.close(self._lock_fd)

    async def _repeat(self, interval_ms: int, work: Callable[[], object]) -> None:
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(interval_ms / 1000):
                    await self._closing.wait()
                return
            except TimeoutError:
                pass
            try:
                result = work()
                if asyncio.iscoroutine(result):
                    await result
            except (OSError, RequestRefused) as error:
                logger.error("upkeep failed error=%s; tried again in interval_ms=%d", error, interval_ms)
            except Exception:
                logger.exception("upkeep failed; tried again in interval_ms=%d", interval_ms)

    # Topics

    def topic(self, name: str) -> Topic:
        """Raises:
        RequestRefused: there is no such topic.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def log(self, name: str, partition: int, leader_epoch: int = -1) -> PartitionLog:
        """The log of a partition, for a client that knows this leader epoch; -1 says it knows none.

        Raises:
            RequestRefused: there is no such partition, or no such epoch.
        """
        log = self.logs.get((name, partition))
        if log is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}")
        newest = log.leader_epoch
        if leader_epoch not in (-1, newest):
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch > newest else ErrorCode.FENCED_LEADER_EPOCH
            raise RequestRefused(code, f"leader epoch {leader_epoch}; the newest is {newest}")
        return log

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raises:
        RequestRefused: a topic of this name and size cannot be created.
        """
        check_topic_name(name)
        check_partition_count(partitions)
        if self.topics.get(name) is not None:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")
        self._check_room(partitions)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Creates a topic while all others wait: for the start, and for few partitions.

        Raises:
            RequestRefused: it cannot be created; it does not exist.
        """
        assert not self._changing_topics.locked()
        self.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(dict(configs)))
        places = [(topic, index) for index in range(partitions)]
        try:
            for write in self._adding([topic], places):
                if write is not None:
                    write.result()
        except (OSError, RequestRefused) as error:
            remove_folders(self._new_folders(places))
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
        async with self._changing_topics:
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

        Beyond TOPICS_AT_ONCE they are as unknown as before: clients ask again for what they do not find.
        """
        return await self._to_its_end(self._ensure_topics(tuple(names)))

    async def _ensure_topics(self, names: Sequence[str]) -> dict[str, RequestRefused]:
        missing: list[Topic] = []
        refusals: dict[str, RequestRefused] = {}
        async with self._changing_topics:
            for name in names:
                if self.topics.get(name) is None and len(missing) < TOPICS_AT_ONCE:
                    try:
                        self.check_new_topic(name, self.config.partitions)
                        self._check_room(self.config.partitions * (len(missing) + 1))
                        missing.append(Topic(name, uuid.uuid4(), self.config.partitions))
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
        async with self._changing_topics:
            topic = self.topic(name)
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
        try:
            for write in self._adding(topics, places):
                if write is not None:
                    await asyncio.wrap_future(write)
                await turns.give()
        except (OSError, RequestRefused) as error:
            await asyncio.wrap_future(self._writer.submit(remove_folders, self._new_folders(places)))
            if isinstance(error, RequestRefused):
                raise
            raise RequestRefused(ErrorCode.STORAGE_ERROR, error.strerror or str(error)) from error

    def _adding(self, topics: Sequence[Topic], places: Sequence[tuple[Topic, int]]) -> Iterator[Future[None] | None]:
        """Makes the folders of new partitions and then writes their topics: what has no topic yet is a leftover.

        Yields what has to be written before it goes on; None where others may have their turn.
        """
        self._check_room(len(places))
        if self._deletions_on_disk < self._deletions:
            yield self._write_checkpoints()
        opened: dict[PartitionKey, PartitionLog] = {}
        for topic, index in places:
            opened[topic.name, index] = self._open_log(topic, index, True, 0, 0).log
            yield None
        for topic in topics:
            if self.topics.get(topic.name) is None and not topic.is_internal:
                self.groups.forget_before(topic.name)
        changed = self.topics.with_topics(topics)
        yield self._writer.submit(self.topics.write, changed)
        new = [topic for topic in topics if self.topics.get(topic.name) is None]
        self.logs.update(opened)
        self.topics.take(changed)
        for topic in new:
            logger.info("topic created topic=%s partitions=%d id=%s", topic.name, topic.partitions, topic.topic_id)

    def _new_folders(self, places: Iterable[tuple[Topic, int]]) -> list[Path]:
        return [self._folder(topic.name, index) for topic, index in places]

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Waits for work that goes on where the client who wants it is gone, since half of it must not be left."""
        change = asyncio.get_running_loop().create_task(work)
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return await asyncio.shield(change)

    def _check_room(self, partitions: int) -> None:
        if len(self.logs) + partitions > PARTITIONS_TOTAL_MAX:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions beside {len(self.logs)}; at most {PARTITIONS_TOTAL_MAX} are kept in all",
            )

    async def delete_topic(self, topic: Topic) -> None:
        """Raises:
        RequestRefused: it is the broker's own, it is gone, or its deletion cannot be stored.
        """
        if topic.name in INTERNAL_TOPICS:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        await self._to_its_end(self._delete_topic(topic))

    async def _delete_topic(self, asked_for: Topic) -> None:
        async with self._changing_topics:
            # Meanwhile it may have been altered, or deleted and created anew.
            topic = self.topic(asked_for.name)
            if topic.topic_id != asked_for.topic_id:
                raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} is another one now")
            remaining = self.topics.without(topic.name)
            await asyncio.wrap_future(self._writer.submit(self.topics.write, remaining))
            self.topics.take(remaining)
            self._deletions += 1
            await self._let_go(topic, [self.logs.pop((topic.name, index)) for index in range(topic.partitions)])
            try:
                await asyncio.wrap_future(self._write_checkpoints())
            except OSError as error:
                logger.error("checkpoints not written error=%s; written before the next topic is created", error)
        # Until this waits for the disk nobody else has a turn: what is committed in a new topic of the name stays.
        try:
            await self.groups.forget_topic(topic.name)
        except RequestRefused as refused:
            logger.error("offsets of a deleted topic not forgotten topic=%s reason=%s", topic.name, refused)

    async def _let_go(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Removes the logs of a topic that is not there any more."""
        for index, log in enumerate(logs):
            self.flusher.forget(log)
            self.cleaner.forget((topic.name, index))
        turns, doomed = Turns(), []
        for index, log in enumerate(logs):
            log.forget_files()
            # Renamed first, so that the topic can be created anew while the files of the old one are removed.
            doomed.append(log.folder.rename(log.folder.with_name(f"{topic.topic_id.hex}-{index}{DELETED_FOLDER}")))
            log.wake(sys.maxsize)
            await turns.give()
        self._executor.submit(remove_folders, doomed)
        logger.info("topic deleted topic=%s id=%s", topic.name, topic.topic_id)

    async def alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        """Alters a topic, to a configuration that is made of it as it is then.

        Raises:
            RequestRefused: there is no such topic, `configs_of` refuses it, or it cannot be stored.
        """
        await self._to_its_end(self._alter_topic(name, configs_of))

    async def _alter_topic(self, name: str, configs_of: Callable[[Topic], Mapping[str, str]]) -> None:
        async with self._changing_topics:
            topic = self.topic(name)
            configs = configs_of(topic)
            if configs == topic.configs:
                return  # as who keeps two clusters alike asks for again and again
            changed = replace(topic, configs=MappingProxyType(dict(configs)))
            topics = self.topics.with_topics([changed])
            await asyncio.wrap_future(self._writer.submit(self.topics.write, topics))
            self.topics.take(topics)
            for index in range(changed.partitions):
                self.logs[changed.name, index].limits = self._limits(changed)
        logger.info("topic altered topic=%s configs=%s", changed.name, dict(changed.configs))

    def message_bytes_max(self, topic: Topic) -> int:
        return effective_number(topic.configs, "max.message.bytes", self.config)

    def _limits(self, topic: Topic) -> LogLimits:
        return LogLimits(
            effective_number(topic.configs, "segment.bytes", self.config),
            effective_number(topic.configs, "segment.ms", self.config),
            self.config.fsync is FsyncMode.ALWAYS,
        )

    def _folder(self, topic: str, index: int) -> Path:
        return self.config.data_dir / f"{topic}-{index}"

    def _open_log(
        self, topic: Topic, index: int, is_clean: bool, recovery_point: int | None, log_start: int
    ) -> OpenLog:
        folder = self._folder(topic.name, index)
        folder.mkdir(exist_ok=True)
        opened = open_log(
            folder,
            self._files,
            self._limits(topic),
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            leader_epoch=self.topics.leader_epoch,
            had_epochs=self.topics.had_epochs,
            sets_aside=self.config.sets_damaged_aside,
            now_ms=self.now_ms(),
        )
        if opened.log.needs_flush:
            self.flusher.note(opened.log)
        return opened

    # Upkeep

    async def _keep_house(self) -> None:
        """Retention, forgotten producers, unused groups, checkpoints.

        Raises:
            OSError: a log could not be rolled; the others were looked after.
            RequestRefused: the groups' log cannot be written.
        """
        full: OSError | None = None
        turns = Turns()
        for name, index in tuple(self.logs):
            await turns.give()
            topic, log = self.topics.get(name), self.logs.get((name, index))
            if topic is None or log is None:
                continue
            log.producers.expire(self.now_ms())
            if topic.is_internal:
                continue
            try:
                await self._retain((name, index), topic, log, self.now_ms())
            except OSError as error:
                full = error
        if full is not None:
            raise full
        await self.groups.keep_house()
        await asyncio.wrap_future(self._write_checkpoints())

    async def _retain(self, key: PartitionKey, topic: Topic, log: PartitionLog, now_ms: int) -> None:
        is_limited = is_deleted(topic.configs)
        retention_ms = effective_number(topic.configs, "retention.ms", self.config) if is_limited else UNLIMITED
        await self._drop_expired(key, topic, log, retention_ms, now_ms)
        if self.logs.get(key) is not log:
            return  # deleted meanwhile, and another one may have its folder's name
        largest = log.active.largest
        if largest is not None and retention_ms >= 0 and 0 <= largest.timestamp_ms < now_ms - retention_ms:
            # On a full disk that takes the space which has just been freed.
            log.roll(now_ms)
            self.flusher.note(log)
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
                    effective_number(topic.configs, "retention.bytes", self.config)
                    if is_deleted(topic.configs)
                    else UNLIMITED
                ),
                total_bytes=log.size,
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
            )

        # What goes for its age goes by an index, so that is compared with the batches first.
        for segment in log.closed[expired(UNLIMITED) : expired(retention_ms)]:
            facts = await asyncio.get_running_loop().run_in_executor(self._executor, facts_of, segment)
            if self.logs.get(key) is not log:
                return
            if facts.largest != segment.largest and facts.size == segment.size and segment in log.closed:
                log.rebuild_indexes(segment)
                self.flusher.note(log)
        count = 0
        # What is just being replaced must not be gone when a start would finish that.
        while not log.is_being_replaced and expired(retention_ms):
            # The oldest first, also where the power fails: a hole between segments would be taken for a loss. And not
            # before the name of what follows it is on disk, since that alone may then tell where the log ends.
            with contextlib.suppress(FileNotFoundError):
                await asyncio.get_running_loop().run_in_executor(self._executor, sync_folder, log.folder)
            if self.logs.get(key) is not log:
                return
            if not log.is_being_replaced and expired(retention_ms):
                self.unlink_later(log.drop_segments(1))
                count += 1
        if count:
            logger.info(
                "segments deleted folder=%s count=%d log_start_offset=%d",
                log.folder.name,
                count,
                log.log_start_offset,
            )

    async def _clean(self) -> None:
        """Compacts what is due, one log after the other.

        Raises:
            OSError: a log could not be compacted; the others were looked after.
        """
        failure: OSError | None = None
        is_changed = False
        turns = Turns()
        for key in tuple(self.logs):
            await turns.give()
            topic, log = self.topics.get(key[0]), self.logs.get(key)
            if topic is None or log is None or topic.is_internal or not is_compacted(topic.configs):
                continue
            try:
                is_changed |= await self.cleaner.clean(
                    key, log, self._wish(topic), self.now_ms(), partial(self._is_there, key, log)
                )
            except OSError as error:
                failure = error
        if is_changed:
            await asyncio.wrap_future(self._write_checkpoints())
        if failure is not None:
            raise failure

    def _is_there(self, key: PartitionKey, log: PartitionLog) -> bool:
        return self.logs.get(key) is log and not self._closing.is_set()

    def _wish(self, topic: Topic) -> Wish:
        share = topic.configs.get("min.cleanable.dirty.ratio") or BY_NAME["min.cleanable.dirty.ratio"].default(
            self.config
        )
        return Wish(
            effective_number(topic.configs, "delete.retention.ms", self.config),
            float(share),
            effective_number(topic.configs, "min.compaction.lag.ms", self.config),
            effective_number(topic.configs, "max.compaction.lag.ms", self.config),
        )

    def unlink_later(self, paths: list[Path]) -> None:
        """Removes files in a thread: freeing a large one takes its time."""
        self._executor.submit(unlink_files, paths)

    def _write_checkpoints(self) -> Future[None]:
        """Has all checkpoints written, of everything as it is now."""
        checkpoints = {**self._recovery_points(), **self._log_starts(), CLEAN_TO: dict(self.cleaner.clean_to)}
        return self._writer.submit(self._write_all, checkpoints, self._deletions)

    def _write_recovery_points(self) -> Future[None]:
        return self._writer.submit(self._write_each, self._recovery_points())

    def write_log_starts(self) -> Future[None]:
        """Has written where the logs begin now."""
        return self._writer.submit(self._write_each, self._log_starts())

    def _recovery_points(self) -> Checkpoints:
        return {RECOVERY_POINTS: {key: log.recovery_point for key, log in self.logs.items()}}

    def _log_starts(self) -> Checkpoints:
        return {LOG_STARTS: {key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset}}

    def _write_all(self, checkpoints: Checkpoints, deletions: int) -> None:
        self._write_each(checkpoints)
        self._deletions_on_disk = deletions

    def _write_each(self, checkpoints: Checkpoints) -> None:
        for name, offsets in checkpoints.items():
            write_checkpoint(self.config.data_dir / name, offsets)
