"""The broker without its sockets: topics, their logs, and what keeps them durable.

Files in the data folder: `.lock` (held by the running broker), `topics.json`, `producer-ids`, the two offset
checkpoints, `.kafka_cleanshutdown` (only while no broker runs, and only after an orderly end), and a folder
`<topic>-<partition>` per partition.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import logging
import os
import resource
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from broker.config import BrokerConfig, FsyncMode
from broker.coordinator.coordinator import GroupCoordinator
from broker.errors import DataFolderInUse, RequestRefused, StartError
from broker.log.checkpoints import LOG_STARTS, RECOVERY_POINTS, PartitionKey, read_checkpoint, write_checkpoint
from broker.log.files import OpenFiles, sync_folder
from broker.log.flusher import SYNC_THREADS, Flusher
from broker.log.partition_log import LogLimits, PartitionLog
from broker.log.recovery import open_log
from broker.log.retention import expired_segments
from broker.producer_ids import ProducerIds
from broker.protocol.error_codes import ErrorCode
from broker.topic_config import effective_number
from broker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, Topic, TopicStore, check_partition_count, check_topic_name

logger = logging.getLogger(__name__)

CLEAN_MARKER = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
DELETED_FOLDER = "-delete"
OPEN_FILES_MAX = 4096
"""Log files kept open; lower when the process may hold fewer, since connections need descriptors too."""


class BrokerNode:
    """Everything of the broker that outlives a connection. `now_ms` is the wall clock, in milliseconds."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_disk_failure: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.now_ms = now_ms
        self.address = (config.host, config.port)
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self._executor = ThreadPoolExecutor(max_workers=SYNC_THREADS, thread_name_prefix="broker-disk")
        self.flusher = Flusher(self._executor, on_disk_failure)
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._lock_fd = _lock(config.data_dir)
        try:
            self._open()
        except BaseException:
            self._executor.shutdown()
            os.close(self._lock_fd)
            raise

    def _open(self) -> None:
        folder = self.config.data_dir
        self._files = OpenFiles(_open_files_max())
        self.topics = TopicStore.load(folder, base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        self.producer_ids = ProducerIds(folder)
        marker = folder / CLEAN_MARKER
        is_clean = marker.exists()
        self._remove_orphans()
        recovery_points = read_checkpoint(folder / RECOVERY_POINTS)
        log_starts = read_checkpoint(folder / LOG_STARTS)
        started = time.monotonic()
        truncated = 0
        for topic in self.topics:
            for index in range(topic.partitions):
                key = (topic.name, index)
                truncated += self._open_log(topic, index, is_clean, recovery_points.get(key, 0), log_starts.get(key, 0))
        # Rows of partitions that are gone must not meet a new partition of the same name.
        self._write_checkpoints()
        marker.unlink(missing_ok=True)
        sync_folder(folder)
        if OFFSETS_TOPIC not in {topic.name for topic in self.topics}:
            self.create_topic(OFFSETS_TOPIC, 1, {})
        self.groups = GroupCoordinator(
            self.logs[OFFSETS_TOPIC, 0], self.flusher, self.config.fsync, self.now_ms, unlink=self.unlink_later
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

    def _remove_orphans(self) -> None:
        """Folders of partitions that no topic has: a deletion that a crash cut short."""
        wanted = {f"{topic.name}-{index}" for topic in self.topics for index in range(topic.partitions)}
        for entry in self.config.data_dir.iterdir():
            if entry.is_dir() and entry.name not in wanted:
                logger.info("orphan removed folder=%s", entry.name)
                shutil.rmtree(entry)

    def start(self) -> None:
        """Starts what runs beside the connections; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._repeat(self.config.housekeeping_interval_ms, self._keep_house)),
            loop.create_task(self.groups.run()),
        ]
        flush = self.flusher.flush_closed_segments if self.config.fsync is FsyncMode.NONE else self.flusher.flush_dirty
        self._tasks.append(loop.create_task(self._repeat(self.config.flush_interval_ms, flush)))

    async def close(self) -> None:
        """Forces and closes everything and leaves the mark of a clean end."""
        self._closing.set()
        self.groups.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.flusher.sync([path for log in self.logs.values() for path in log.close()])
        for log in self.logs.values():
            log.recovery_point = log.log_end_offset
        self._write_checkpoints()
        self._files.close()
        self._executor.shutdown()
        (self.config.data_dir / CLEAN_MARKER).touch()
        sync_folder(self.config.data_dir)
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
            except OSError:
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

    def log(self, name: str, partition: int) -> PartitionLog:
        """Raises:
        RequestRefused: there is no such partition.
        """
        log = self.logs.get((name, partition))
        if log is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}")
        return log

    def check_new_topic(self, name: str, partitions: int) -> None:
        """Raises:
        RequestRefused: a topic of this name and size cannot be created.
        """
        check_topic_name(name)
        check_partition_count(partitions)
        if self.topics.get(name) is not None:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists")

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        self.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(dict(configs)))
        self.create_topics([topic])
        return topic

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Creates topics that were checked, with one write of the topic file for all."""
        self.topics.put(*topics)
        for topic in topics:
            for index in range(topic.partitions):
                self._open_log(topic, index, True, 0, 0)
            logger.info("topic created topic=%s partitions=%d id=%s", topic.name, topic.partitions, topic.topic_id)
        sync_folder(self.config.data_dir)

    def ensure_topic(self, name: str) -> Topic:
        """The topic, created with the broker's defaults when there is none."""
        return self.topics.get(name) or self.create_topic(name, self.config.partitions, {})

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Raises the number of partitions to `count`."""
        grown = replace(topic, partitions=count)
        self.topics.put(grown)
        for index in range(topic.partitions, count):
            self._open_log(grown, index, True, 0, 0)
        sync_folder(self.config.data_dir)
        logger.info("partitions added topic=%s partitions=%d", topic.name, count)

    def delete_topic(self, topic: Topic) -> None:
        if topic.name in INTERNAL_TOPICS:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        self.topics.remove(topic.name)
        doomed = []
        for index in range(topic.partitions):
            log = self.logs.pop((topic.name, index))
            self.flusher.forget(log)
            log.forget_files()
            # Renamed first, so that the topic can be created anew while the files of the old one are removed.
            doomed.append(log.folder.rename(log.folder.with_name(f"{topic.topic_id.hex}-{index}{DELETED_FOLDER}")))
            for wake in tuple(log.waiters):
                wake()
        self.groups.forget_topic(topic.name)
        self._write_checkpoints()
        self._executor.submit(_remove_folders, doomed)
        logger.info("topic deleted topic=%s id=%s", topic.name, topic.topic_id)

    def alter_topic(self, topic: Topic, configs: Mapping[str, str]) -> None:
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

    def _open_log(self, topic: Topic, index: int, is_clean: bool, recovery_point: int, log_start: int) -> int:
        folder = self.config.data_dir / f"{topic.name}-{index}"
        folder.mkdir(exist_ok=True)
        opened = open_log(
            folder,
            self._files,
            self._limits(topic),
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            now_ms=self.now_ms(),
        )
        self.logs[topic.name, index] = opened.log
        if opened.log.needs_flush:
            self.flusher.note(opened.log)
        return opened.truncated_bytes

    # Upkeep

    def _keep_house(self) -> None:
        """Retention, forgotten producers, checkpoints."""
        now_ms = self.now_ms()
        for topic in self.topics:
            if not topic.is_internal:
                for log in self._logs_of(topic):
                    self._retain(topic, log, now_ms)
                    log.producers.expire(now_ms)
        self.groups.keep_house()
        self._write_checkpoints()

    def _logs_of(self, topic: Topic) -> Iterator[PartitionLog]:
        return (self.logs[topic.name, index] for index in range(topic.partitions))

    def _retain(self, topic: Topic, log: PartitionLog, now_ms: int) -> None:
        retention_ms = effective_number(topic.configs, "retention.ms", self.config)
        largest = log.active.largest
        if largest is not None and retention_ms >= 0 and 0 <= largest.timestamp_ms < now_ms - retention_ms:
            log.roll(now_ms)
        count = expired_segments(
            log.closed,
            now_ms=now_ms,
            retention_ms=retention_ms,
            retention_bytes=effective_number(topic.configs, "retention.bytes", self.config),
            total_bytes=log.size,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
        if count:
            self.unlink_later(log.drop_segments(count))
            logger.info(
                "segments deleted folder=%s count=%d log_start_offset=%d",
                log.folder.name,
                count,
                log.log_start_offset,
            )

    def unlink_later(self, paths: list[Path]) -> None:
        """Removes files in a thread: freeing a large one takes its time."""
        self._executor.submit(_unlink, paths)

    def _write_checkpoints(self) -> None:
        folder = self.config.data_dir
        write_checkpoint(folder / RECOVERY_POINTS, {key: log.recovery_point for key, log in self.logs.items()})
        self.write_log_starts()

    def write_log_starts(self) -> None:
        write_checkpoint(
            self.config.data_dir / LOG_STARTS,
            {key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset},
        )


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StartError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DataFolderInUse(folder) from error
    return fd


def _open_files_max() -> int:
    """Raises the process's own limit as far as it may, and leaves half of it to connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else OPEN_FILES_MAX * 4
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        soft = max(soft, wanted)
    return max(16, min(OPEN_FILES_MAX, soft // 2))


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_folders(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
