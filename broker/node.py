"""The broker without its sockets: topics, their logs, and what keeps them durable.

Files in the data directory: `.lock` (held by the running broker), `topics.json`, `producer-ids`, the two offset
checkpoints, `.kafka_cleanshutdown` (only while no broker runs, and only after an orderly end), and a directory
`<topic>-<partition>` per partition.

It opens all of that, in the order in which a start needs it, and closes it; topics are changed by `topic_changes`, logs
looked after by `upkeep`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.broker import descriptors
from headrace.broker.checkpoint_writer import CheckpointWriter
from headrace.broker.cleaner import Cleaner
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import transactions
from headrace.broker.coordinator.coordinator import GroupCoordinator
from headrace.broker.coordinator.table import LogTable
from headrace.broker.coordinator.transactions import TransactionCoordinator
from headrace.broker.data_directory import CLEAN_MARKER, Removal, boot_id, lock, partition_directory, put_strays_aside
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, read_checkpoint
from headrace.broker.log.files import OpenFiles, sync_directory
from headrace.broker.log.flusher import SYNC_THREADS, Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.recovery import OpenLog, open_log
from headrace.broker.pauses import LOOK_MS, Pauses
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.supervised import repeat
from headrace.broker.topic_changes import TopicChanges
from headrace.broker.topic_config import effective_number, log_limits
from headrace.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic, TopicStore
from headrace.broker.upkeep import Upkeep

logger = logging.getLogger(__name__)

OFFSETS_PARTITION = (OFFSETS_TOPIC, 0)
TRANSACTIONS_PARTITION = (TRANSACTIONS_TOPIC, 0)


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
        self._removal = Removal()
        self._executor = ThreadPoolExecutor(max_workers=SYNC_THREADS, thread_name_prefix="broker-disk")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-files")
        # One thread, so that the event loop shares the interpreter with no more.
        self.opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-open")
        self.flusher = Flusher(self._executor, on_disk_failure)
        self.fetch_sessions = FetchSessions()
        self.pauses = Pauses()
        self._tasks: list[asyncio.Task[None]] = []
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
        directory, started = self.config.data_dir, time.monotonic()
        self._files = OpenFiles(files_max)
        self.topics = TopicStore.load(directory, base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        self.topics.begin_leader_epoch(self.now_ms())
        self.producer_ids = ProducerIds(directory, self._executor)
        marker = directory / CLEAN_MARKER
        is_clean = marker.exists()
        put_strays_aside(
            directory, {f"{topic.name}-{index}" for topic in self.topics for index in range(topic.partitions)}
        )
        self._open_keepers()
        truncated_bytes = self._open_logs(is_clean)
        self.cleaner.keep_within(self.logs)
        # Rows of partitions that are gone must not meet a new partition of the same name.
        self.checkpoints.write().result()
        marker.unlink(missing_ok=True)
        sync_directory(directory)
        self._open_coordinators(is_clean)
        self.producer_ids.begin_above(self._producers_heard_of(), is_in_use=any(map(_has_records, self.logs.values())))
        self.upkeep = Upkeep(
            self.config,
            self.topics,
            self.logs,
            groups=self.groups,
            cleaner=self.cleaner,
            flusher=self.flusher,
            checkpoints=self.checkpoints,
            executor=self._executor,
            unlink=self._unlink_later,
            now_ms=lambda: self.now_ms(),
        )
        logger.info(
            "logs opened directory=%s topics=%d partitions=%d clean=%s truncated_bytes=%d duration_ms=%d",
            directory,
            len(self.topics),
            len(self.logs),
            is_clean,
            truncated_bytes,
            (time.monotonic() - started) * 1000,
        )

    def _open_keepers(self) -> None:
        """What looks after the logs, which are opened later."""
        self.cleaner = Cleaner(
            self._executor,
            self.flusher,
            read_checkpoint(self.config.data_dir / CLEAN_TO),
            before_change=lambda: asyncio.wrap_future(self.checkpoints.write_recovery_points()),
            unlink=self._unlink_later,
            is_closing=self._closing.is_set,
        )
        self.checkpoints = CheckpointWriter(
            self.config.data_dir, self._writer, self.logs, lambda: self.cleaner.clean_to
        )
        self.changes = TopicChanges(
            self.config,
            self.topics,
            self.logs,
            open_new=lambda topic, index: self._open_log(topic, index, True, 0, 0).log,
            flusher=self.flusher,
            cleaner=self.cleaner,
            checkpoints=self.checkpoints,
            writer=self._writer,
            executor=self._executor,
        )

    def _open_logs(self, is_clean: bool) -> int:
        """Opens those of all topics; returns how many bytes had to be cut off."""
        recovery_points = read_checkpoint(self.config.data_dir / RECOVERY_POINTS)
        log_starts = read_checkpoint(self.config.data_dir / LOG_STARTS)
        truncated_bytes = 0
        for topic in self.topics:
            for index in range(topic.partitions):
                key = (topic.name, index)
                opened = self._open_log(topic, index, is_clean, recovery_points.get(key), log_starts.get(key, 0))
                self.logs[key] = opened.log
                truncated_bytes += opened.truncated_bytes
        return truncated_bytes

    def _open_coordinators(self, is_clean: bool) -> None:
        """Of groups and of transactions, from their logs."""
        if OFFSETS_TOPIC not in {topic.name for topic in self.topics}:
            self.changes.create_topic(OFFSETS_TOPIC, 1, {})
        self.groups = GroupCoordinator(
            self.logs[OFFSETS_PARTITION],
            self.flusher,
            self.config.fsync,
            self.now_ms,
            topics=self.topics,
            unlink=self._unlink_later,
            rebalance_delay_ms=self.config.rebalance_delay_ms,
            session_timeout_ms_min=self.config.session_timeout_ms_min,
            consumer_session_timeout_ms=self.config.consumer_session_timeout_ms,
            monotonic_ms=self._monotonic_ms,
        )
        self.changes.commits = self.groups.commits
        self.transactions = TransactionCoordinator(
            self.logs,
            self.groups.commits,
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

    def _producers_heard_of(self) -> Iterator[int]:
        for log in self.logs.values():
            yield from log.producers.ids()
        for transaction in self.transactions.all.values():
            yield transaction.producer_id

    async def _new_transaction_table(self) -> LogTable:
        """
        Raises:
            RequestRefused: the disk refused it.
        """
        if TRANSACTIONS_PARTITION not in self.logs:
            refusals = await self.changes.create_topics([Topic(TRANSACTIONS_TOPIC, uuid.uuid4(), 1)])
            if refusals:
                raise refusals[TRANSACTIONS_TOPIC]
        return self._transaction_table()

    def _transaction_table(self) -> LogTable:
        partitions = self.topic(TRANSACTIONS_TOPIC).partitions
        if partitions != 1:
            # A client could make it once, with as many as any topic.
            logger.error(
                "topic %s has %d partitions where one was expected; all transactional ids are in the first one, the "
                "others stay empty",
                TRANSACTIONS_TOPIC,
                partitions,
            )
        return LogTable(
            self.logs[TRANSACTIONS_PARTITION],
            self.flusher,
            self.config.fsync,
            self.now_ms,
            unlink=self._unlink_later,
            grows_by=transactions.COMPACT_BYTES,
        )

    def start(self) -> None:
        """Starts what runs beside the connections; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(repeat(self._closing, self.config.housekeeping_interval_ms, self.upkeep.keep_house)),
            loop.create_task(repeat(self._closing, self.config.cleaner_interval_ms, self.upkeep.clean)),
            loop.create_task(self.groups.run()),
            loop.create_task(repeat(self._closing, transactions.LOOK_MS, self.transactions.look)),
            loop.create_task(repeat(self._closing, LOOK_MS, self.pauses.look)),
        ]
        flush = self.flusher.flush_closed_segments if self.config.fsync is FsyncMode.NONE else self.flusher.flush_dirty
        self._tasks.append(loop.create_task(repeat(self._closing, self.config.flush_interval_ms, flush)))

    async def close(self) -> None:
        """Forces and closes everything, and leaves the mark of a clean end unless the disk is full.

        Raises:
            OSError: something could not be forced to disk.
        """
        self._closing.set()
        self.groups.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.changes.ended()
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
            await asyncio.wrap_future(self.checkpoints.write())
            # Where the power takes that mark, the next start reads from the recovery points on, which is nothing.
            (self.config.data_dir / CLEAN_MARKER).touch()
        except OSError as error:
            logger.warning("closed without the mark of a clean end; the next start reads the logs error=%s", error)
        self._files.close()
        self.opener.shutdown(cancel_futures=True)
        self._executor.shutdown()
        self._writer.shutdown()
        os.close(self._lock_fd)

    # Topics

    def topic(self, name: str) -> Topic:
        """Raises:
        RequestRefused: there is no such topic.
        """
        return self.topics.existing(name)

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

    def message_bytes_max(self, topic: Topic) -> int:
        return effective_number(topic.configs, "max.message.bytes", self.config)

    def _open_log(
        self, topic: Topic, index: int, is_clean: bool, recovery_point: int | None, log_start: int
    ) -> OpenLog:
        directory = partition_directory(self.config.data_dir, topic.name, index)
        directory.mkdir(exist_ok=True)
        opened = open_log(
            directory,
            self._files,
            log_limits(topic.configs, self.config),
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            leader_epoch=self.topics.leader_epoch,
            had_epochs=self.topics.had_epochs,
            sets_aside=self.config.sets_damaged_aside,
            checks_forced=topic.is_internal,
            now_ms=self.now_ms(),
        )
        if opened.log.needs_flush:
            self.flusher.note(opened.log)
        return opened

    def _unlink_later(self, paths: list[Path]) -> Future[None]:
        """Removes files in a thread: freeing a large one takes its time."""
        return self._executor.submit(self._removal.remove, paths)


def _has_records(log: PartitionLog) -> bool:
    """Had it ever any?"""
    return log.log_end_offset > 0
