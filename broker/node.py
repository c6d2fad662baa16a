"""The broker without its sockets: topics, their logs, and what keeps them durable.

Files in the data folder: `.lock` (held by the running broker), `topics.json`, `producer-ids`, the two offset
checkpoints, `.kafka_cleanshutdown` (only while no broker runs, and only after an orderly end), and a folder
`<topic>-<partition>` per partition.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

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
from headrace.broker.log.recovery import open_log
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

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 100
"""Created for one client that asks for them, while all others wait."""
OFFSETS_PARTITION = (OFFSETS_TOPIC, 0)
TRANSACTIONS_PARTITION = (TRANSACTIONS_TOPIC, 0)

PARTITIONS_TOTAL_MAX = 20_000
"""Of all topics: clients create topics by asking for them, and each partition costs a folder and a start's time."""


class BrokerNode:
    """Everything of the broker that outlives a connection. `now_ms` is the wall clock, in milliseconds."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files_max: int = descriptors.FILES_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_disk_failure: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.now_ms = now_ms
        self.address = (config.host, config.port)
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self._executor = ThreadPoolExecutor(max_workers=SYNC_THREADS, thread_name_prefix="broker-disk")
        self.flusher = Flusher(self._executor, on_disk_failure)
        self.fetch_sessions = FetchSessions()
        self._tasks: list[asyncio.Task[None]] = []
        self._has_old_checkpoints = False  # of deleted topics, which must not meet new ones of their names
        self._closing = asyncio.Event()
        self._lock_fd = lock(config.data_dir)
        try:
            self._open(files_max)
        except BaseException:
            self._executor.shutdown()
            os.close(self._lock_fd)
            raise

    def _open(self, files_max: int) -> None:
        folder = self.config.data_dir
        self._files = OpenFiles(files_max)
        self.topics = TopicStore.load(folder, base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        self.topics.begin_leader_epoch(self.now_ms())
        self.producer_ids = ProducerIds(folder)
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
            before_change=self._write_recovery_points,
            unlink=self.unlink_later,
        )
        started = time.monotonic()
        truncated = 0
        for topic in self.topics:
            for index in range(topic.partitions):
                key = (topic.name, index)
                truncated += self._open_log(topic, index, is_clean, recovery_points.get(key), log_starts.get(key, 0))
        self.cleaner.keep_within(self.logs)
        # Rows of partitions that are gone must not meet a new partition of the same name.
        self._write_checkpoints()
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

    def _new_transaction_table(self) -> LogTable:
        """
        Raises:
            RequestRefused: the disk refused it.
        """
        self.create_topic(TRANSACTIONS_TOPIC, 1, {})
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
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
            self._write_checkpoints()
            # Where the power takes that mark, the next start reads from the recovery points on, which is nothing.
            (self.config.data_dir / CLEAN_MARKER).touch()
        except OSError as error:
            logger.warning("closed without the mark of a clean end; the next start reads the logs error=%s", error)
        self._files.close()
        self._executor.shutdown()
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
        self.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(dict(configs)))
        self.create_topics([topic])
        return topic

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Creates topics that were checked, with one write of the topic file for all.

        Raises:
            RequestRefused: there would be too many partitions, or the disk is full; none of them exists.
        """
        self._add_logs(topics, [(topic, index) for topic in topics for index in range(topic.partitions)])
        for topic in topics:
            logger.info("topic created topic=%s partitions=%d id=%s", topic.name, topic.partitions, topic.topic_id)

    def ensure_topics(self, names: Iterable[str]) -> dict[str, RequestRefused]:
        """Creates those of these topics that are missing, and returns why some could not be.

        Beyond TOPICS_AT_ONCE they are as unknown as before: clients ask again for what they do not find.
        """
        missing: list[Topic] = []
        refusals: dict[str, RequestRefused] = {}
        for name in names:
            if self.topics.get(name) is None and len(missing) < TOPICS_AT_ONCE:
                try:
                    self.check_new_topic(name, self.config.partitions)
                    self._check_room(self.config.partitions * (len(missing) + 1))
                    missing.append(Topic(name, uuid.uuid4(), self.config.partitions))
                except RequestRefused as refused:
                    refusals[name] = refused
        try:
            if missing:
                self.create_topics(missing)
        except RequestRefused as refused:
            refusals.update({topic.name: refused for topic in missing})
        return refusals

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Raises the number of partitions to `count`.

        Raises:
            RequestRefused: there would be too many partitions, or the disk is full; the topic is as before.
        """
        grown = replace(topic, partitions=count)
        self._add_logs([grown], [(grown, index) for index in range(topic.partitions, count)])
        logger.info("partitions added topic=%s partitions=%d", topic.name, count)

    def _add_logs(self, topics: Sequence[Topic], places: Sequence[tuple[Topic, int]]) -> None:
        """Makes the folders of new partitions and then writes their topics: what has no topic yet is a leftover."""
        self._check_room(len(places))
        opened: list[tuple[str, int]] = []
        try:
            if self._has_old_checkpoints:
                self._write_checkpoints()
            for topic, index in places:
                opened.append((topic.name, index))
                self._open_log(topic, index, True, 0, 0)
            for topic in topics:
                if self.topics.get(topic.name) is None and not topic.is_internal:
                    self.groups.forget_before(topic.name)
            self.topics.put(*topics)
        except (OSError, RequestRefused) as error:
            for key in opened:
                self.logs.pop(key, None)
            remove_folders(self._folder(*key) for key in opened)
            if isinstance(error, RequestRefused):
                raise
            raise RequestRefused(ErrorCode.STORAGE_ERROR, error.strerror or str(error)) from error

    def _check_room(self, partitions: int) -> None:
        if len(self.logs) + partitions > PARTITIONS_TOTAL_MAX:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions beside {len(self.logs)}; at most {PARTITIONS_TOTAL_MAX} are kept in all",
            )

    async def delete_topic(self, topic: Topic) -> None:
        """Raises:
        RequestRefused: it is the broker's own, or its deletion cannot be stored.
        """
        if topic.name in INTERNAL_TOPICS:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        self.topics.remove(topic.name)
        doomed = []
        for index in range(topic.partitions):
            log = self.logs.pop((topic.name, index))
            self.flusher.forget(log)
            self.cleaner.forget((topic.name, index))
            log.forget_files()
            # Renamed first, so that the topic can be created anew while the files of the old one are removed.
            doomed.append(log.folder.rename(log.folder.with_name(f"{topic.topic_id.hex}-{index}{DELETED_FOLDER}")))
            log.wake(sys.maxsize)
        self._has_old_checkpoints = True
        try:
            self._write_checkpoints()
        except OSError as error:
            logger.error("checkpoints not written error=%s; written before the next topic is created", error)
        self._executor.submit(remove_folders, doomed)
        logger.info("topic deleted topic=%s id=%s", topic.name, topic.topic_id)
        try:
            await self.groups.forget_topic(topic.name)
        except RequestRefused as refused:
            logger.error("offsets of a deleted topic not forgotten topic=%s reason=%s", topic.name, refused)

    def alter_topic(self, topic: Topic, configs: Mapping[str, str]) -> None:
        if configs == topic.configs:
            return  # as who keeps two clusters alike asks for again and again
        changed = self.topics.with_configs(topic, configs)
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

    def _open_log(self, topic: Topic, index: int, is_clean: bool, recovery_point: int | None, log_start: int) -> int:
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
        self.logs[topic.name, index] = opened.log
        if opened.log.needs_flush:
            self.flusher.note(opened.log)
        return opened.truncated_bytes

    # Upkeep

    async def _keep_house(self) -> None:
        """Retention, forgotten producers, unused groups, checkpoints.

        Raises:
            OSError: a log could not be rolled; the others were looked after.
            RequestRefused: the groups' log cannot be written.
        """
        full: OSError | None = None
        for name, index in tuple(self.logs):
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
        self._write_checkpoints()

    async def _retain(self, key: PartitionKey, topic: Topic, log: PartitionLog, now_ms: int) -> None:
        is_limited = is_deleted(topic.configs)
        retention_ms = effective_number(topic.configs, "retention.ms", self.config) if is_limited else UNLIMITED
        await self._drop_expired(key, topic, log, retention_ms, now_ms)
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
        count = expired(retention_ms)
        if count:
            self.unlink_later(log.drop_segments(count))
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
        for key in tuple(self.logs):
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
            self._write_checkpoints()
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

    def _write_checkpoints(self) -> None:
        self._write_recovery_points()
        self.write_log_starts()
        write_checkpoint(self.config.data_dir / CLEAN_TO, self.cleaner.clean_to)
        self._has_old_checkpoints = False

    def _write_recovery_points(self) -> None:
        recovery_points = {key: log.recovery_point for key, log in self.logs.items()}
        write_checkpoint(self.config.data_dir / RECOVERY_POINTS, recovery_points)

    def write_log_starts(self) -> None:
        write_checkpoint(
            self.config.data_dir / LOG_STARTS,
            {key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset},
        )
