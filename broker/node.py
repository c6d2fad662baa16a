"""The broker without its sockets: topics, their logs, coordinators and background tasks.

Files in the data directory: `.lock` (locked by the running broker), `topics.json`, `producer-ids`, the checkpoints of
recovery points, log start offsets and clean offsets, `.kafka_cleanshutdown` (present only after a clean shutdown while
no broker runs), `snapshot.sock` and `.snapshot` for backups, and a directory `<topic>-<partition>` per partition.

This module opens and closes all of that in the required order. `topic_changes` changes topics, and `maintenance`
deletes and compacts segments.
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

from headrace.broker import file_descriptors
from headrace.broker.checkpoint_writer import CheckpointWriter
from headrace.broker.cleaner import Cleaner
from headrace.broker.config import BrokerConfig, FsyncMode
from headrace.broker.coordinator import transactions
from headrace.broker.coordinator.coordinator import GroupCoordinator
from headrace.broker.coordinator.table import LogTable
from headrace.broker.coordinator.transactions import TransactionCoordinator
from headrace.broker.data_directory import (
    CLEAN_MARKER,
    FileRemover,
    boot_id,
    clean_up_strays,
    lock,
    partition_directory,
)
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, read_checkpoint
from headrace.broker.log.files import OpenFiles, sync_directory
from headrace.broker.log.flusher import SYNC_THREADS, Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.recovery import OpenLog, open_log
from headrace.broker.maintenance import LogMaintenance
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.snapshot import LogSnapshot, remove_snapshot, take_snapshot
from headrace.broker.topic_changes import TopicChanges
from headrace.broker.topic_config import effective_int, log_limits
from headrace.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic, TopicStore

logger = logging.getLogger(__name__)

OFFSETS_PARTITION = (OFFSETS_TOPIC, 0)
TRANSACTIONS_PARTITION = (TRANSACTIONS_TOPIC, 0)

CHECK_INTERVAL_MS = 250
PAUSE_MIN_S = 1.0
"""Shorter pauses of the event loop are not logged: clients have timeouts of several seconds."""
CAUSE_WORK = "the broker was working"
CAUSE_WAIT = "the broker waited for the disk or a processor"


class BrokerNode:
    """The state of the broker that outlives a connection, except for users, rate limits and request counters.

    Args:
        files_max: maximum number of open log files.
        now_ms: wall clock, in milliseconds.
        monotonic_ms: clock for the deadlines of consumer groups.
        on_disk_failure: called when an fsync, or the replacement of files by compaction, has failed; it must stop the
            broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files_max: int = file_descriptors.FILES_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        on_disk_failure: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self.address = (config.host, config.port)
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self._removal = FileRemover()
        self._executor = ThreadPoolExecutor(max_workers=SYNC_THREADS, thread_name_prefix="broker-disk")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-files")
        # A single thread, since more would compete with the event loop for the interpreter lock.
        self.decode_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-open")
        self.flusher = Flusher(self._executor, on_disk_failure)
        self.fetch_sessions = FetchSessions()
        self.pauses = PauseDetector()
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
        remove_snapshot(directory)
        clean_up_strays(
            directory, {f"{topic.name}-{index}" for topic in self.topics for index in range(topic.partitions)}
        )
        self._open_maintenance()
        truncated_bytes = self._open_logs(is_clean)
        self.cleaner.limit_clean_to(self.logs)
        # Removes rows of deleted partitions, so that they do not apply to new partitions of the same name.
        self.checkpoints.write().result()
        marker.unlink(missing_ok=True)
        sync_directory(directory)
        self._open_coordinators(is_clean)
        self.producer_ids.skip_past(self._known_producer_ids(), is_in_use=any(map(_has_records, self.logs.values())))
        self.maintenance = LogMaintenance(
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
            "logs opened directory=%s topics=%d partitions=%d clean_shutdown=%s truncated_bytes=%d duration_ms=%d",
            directory,
            len(self.topics),
            len(self.logs),
            is_clean,
            truncated_bytes,
            (time.monotonic() - started) * 1000,
        )

    def _open_maintenance(self) -> None:
        """Creates the cleaner, the writer of the checkpoint files and the object that changes topics. They need no open
        logs yet."""
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
        """Opens the logs of all topics; returns the number of bytes that were truncated from them.

        Args:
            is_clean: whether the last broker on this directory shut down cleanly; if so, a log is scanned only if its
                files do not match each other.
        """
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
        """Loads the groups and transactions from the logs of their internal topics. Creates the topic of the groups if
        it does not exist.

        Args:
            is_clean: whether the last broker on this directory shut down cleanly.
        """
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
            was_clean_shutdown=is_clean,
            boot_id=boot_id(),
        )

    def _known_producer_ids(self) -> Iterator[int]:
        for log in self.logs.values():
            yield from log.producers.ids()
        for transaction in self.transactions.all.values():
            yield transaction.producer_id

    async def _new_transaction_table(self) -> LogTable:
        """Returns the table of transactional ids, which is stored in the log of the internal topic
        `__transaction_state`. Creates the topic if it does not exist.

        Raises:
            RequestRefused: the topic could not be created.
        """
        if TRANSACTIONS_PARTITION not in self.logs:
            refusals = await self.changes.create_topics([Topic(TRANSACTIONS_TOPIC, uuid.uuid4(), 1)])
            if refusals:
                raise refusals[TRANSACTIONS_TOPIC]
        return self._transaction_table()

    def _transaction_table(self) -> LogTable:
        return LogTable(
            self.logs[TRANSACTIONS_PARTITION],
            self.flusher,
            self.config.fsync,
            self.now_ms,
            unlink=self._unlink_later,
            growth_bytes=transactions.COMPACT_BYTES,
        )

    def start(self) -> None:
        """Starts the broker's background tasks: housekeeping, compaction, fsyncs, timeouts of groups and transactions,
        and the detection of pauses. Requires a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(
                repeat(self._closing, self.config.housekeeping_interval_ms, self.maintenance.run_housekeeping)
            ),
            loop.create_task(repeat(self._closing, self.config.cleaner_interval_ms, self.maintenance.clean)),
            loop.create_task(self.groups.run()),
            loop.create_task(
                repeat(self._closing, transactions.TIMEOUT_CHECK_INTERVAL_MS, self.transactions.run_maintenance)
            ),
            loop.create_task(repeat(self._closing, CHECK_INTERVAL_MS, self.pauses.check)),
        ]
        flush = self.flusher.flush_closed_segments if self.config.fsync is FsyncMode.NONE else self.flusher.flush_dirty
        self._tasks.append(loop.create_task(repeat(self._closing, self.config.flush_interval_ms, flush)))

    async def close(self) -> None:
        """Ends the background tasks, fsyncs and closes the logs, and writes the marker of a clean shutdown. Without the
        marker, which is missing if a file could not be written or the disk failed earlier, the next start scans the
        logs above their recovery points.

        Raises:
            OSError: an fsync failed.
        """
        self._closing.set()
        self.groups.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.changes.wait_until_done()
        dirty_paths: list[Path] = []
        failure = self.flusher.failure
        for log in self.logs.values():
            try:
                dirty_paths += log.close()
            except OSError as error:
                failure = error
                dirty_paths += log.flush_job().paths
        await self.flusher.sync(dirty_paths)
        try:
            if failure is not None:
                raise failure
            for log in self.logs.values():
                log.recovery_point = log.log_end_offset
            await asyncio.wrap_future(self.checkpoints.write())
            # The marker need not be fsynced: without it the next start scans the logs after the recovery points, and
            # those are now the ends of the logs.
            (self.config.data_dir / CLEAN_MARKER).touch()
        except OSError as error:
            logger.warning(
                "broker closed without the marker of a clean shutdown; the next start scans the logs error=%s", error
            )
        self._files.close()
        self.decode_executor.shutdown(cancel_futures=True)
        self._executor.shutdown()
        self._writer.shutdown()
        os.close(self._lock_fd)

    def snapshot(self) -> LogSnapshot:
        """Takes a snapshot of all logs, see the module `snapshot`.

        Raises:
            OSError: a segment cannot be linked.
        """
        return take_snapshot(self.config.data_dir, self.topics, self.logs)

    # Topics

    def topic(self, name: str) -> Topic:
        """Returns the topic with this name.

        Raises:
            RequestRefused: the topic does not exist.
        """
        return self.topics.require(name)

    def log(self, name: str, partition: int, leader_epoch: int = -1) -> PartitionLog:
        """Returns the log of a partition.

        Args:
            leader_epoch: the leader epoch that the client knows; -1 if it knows none.

        Raises:
            RequestRefused: the partition does not exist, or the client's epoch is older or newer than the current one.
        """
        log = self.logs.get((name, partition))
        if log is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{partition} does not exist")
        newest = log.leader_epoch
        if leader_epoch not in (-1, newest):
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch > newest else ErrorCode.FENCED_LEADER_EPOCH
            raise RequestRefused(
                code, f"the request has leader epoch {leader_epoch}, but the partition's current one is {newest}"
            )
        return log

    def message_bytes_max(self, topic: Topic) -> int:
        return effective_int(topic.configs, "max.message.bytes", self.config)

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
            repairs_corruption=self.config.repairs_corrupt_logs,
            verifies_fsynced=topic.is_internal,
            now_ms=self.now_ms(),
        )
        if log_start > opened.log.log_end_offset:
            logger.error(
                "log start offset of the checkpoint is beyond the log's end, no older record can be read directory=%s "
                "log_start_offset=%d log_end_offset=%d; if files of different copies were mixed, stop the broker and "
                "remove the partition's line from %s",
                directory.name,
                log_start,
                opened.log.log_end_offset,
                LOG_STARTS,
            )
        if opened.log.needs_flush:
            self.flusher.mark_dirty(opened.log)
        return opened

    def _unlink_later(self, paths: list[Path]) -> Future[None]:
        """Deletes files in a thread, because freeing a large file takes time; the returned future completes when they
        are deleted."""
        return self._executor.submit(self._removal.remove, paths)


def _has_records(log: PartitionLog) -> bool:
    """True if the log has or had records."""
    return log.log_end_offset > 0


async def repeat(closing: asyncio.Event, interval_ms: int, work: Callable[[], object]) -> None:
    """Calls `work`, which may be a coroutine function, until `closing` is set: each time `interval_ms` after the
    previous call has ended. Logs its errors and continues."""
    name = getattr(work, "__name__", repr(work))
    while not closing.is_set():
        try:
            async with asyncio.timeout(interval_ms / 1000):
                await closing.wait()
            return
        except TimeoutError:
            pass
        try:
            result = work()
            if asyncio.iscoroutine(result):
                await result
        except (OSError, RequestRefused) as error:
            logger.error(
                "background task failed task=%s error=%s; retrying in interval_ms=%d", name, error, interval_ms
            )
        except Exception:
            logger.exception("background task failed task=%s; retrying in interval_ms=%d", name, interval_ms)


class PauseDetector:
    """Detects pauses of the event loop, in which no client is served: the process was stopped, waited for a slow disk
    or a processor, or was busy with one long task.

    Call `check` every CHECK_INTERVAL_MS. `total_s` is the sum of all pauses of at least PAUSE_MIN_S.

    Args:
        now_s: a monotonic clock.
        cpu_s: returns the processor time of this thread, which shows whether the thread worked during a pause.
    """

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self.total_s = 0.0
        self._now_s, self._cpu_s = now_s, cpu_s
        self._previous: tuple[float, float] | None = None

    def check(self) -> None:
        """Logs and counts a pause of the event loop if the last call was longer ago than CHECK_INTERVAL_MS, by at least
        PAUSE_MIN_S."""
        now, cpu = self._now_s(), self._cpu_s()
        previous, self._previous = self._previous, (now, cpu)
        if previous is None:
            return
        pause_s, work_s = now - previous[0] - CHECK_INTERVAL_MS / 1000, cpu - previous[1]
        if pause_s < PAUSE_MIN_S:
            return
        self.total_s += pause_s
        logger.warning(
            "event loop paused pause_ms=%d of_which_working_ms=%d reason=%s",
            round(pause_s * 1000),
            round(work_s * 1000),
            CAUSE_WORK if work_s > pause_s / 2 else CAUSE_WAIT,
        )
