"""Fsyncs appended batches in threads, outside the event loop.

`flush` is a group commit: while one round of fdatasync runs, all further requests wait for the next round, so that
concurrent producers share the cost.

After a failed fdatasync the kernel may have dropped the dirty pages, and the next call may succeed without writing
them. Durability can then no longer be guaranteed, so `on_failure` must stop the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from headrace.broker.errors import RequestRefused
from headrace.broker.log.files import sync_file
from headrace.broker.log.partition_log import FlushJob, PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.request_counts import Histogram

logger = logging.getLogger(__name__)

SYNC_THREADS = 8
"""Number of threads, and so the most files fsynced at the same time."""

_DISK_FAILED = "the broker's disk has failed, and the broker is stopping; retry when it has been restarted"


class Flusher:
    """Fsyncs the logs that have dirty files. `seconds` is a histogram of the durations of `sync`, which fsyncs several
    files.

    Args:
        on_failure: called when an fsync has failed, or when `fail` is called after another failure; it must stop the
            broker.
    """

    def __init__(self, executor: Executor, on_failure: Callable[[OSError], None]) -> None:
        self._executor = executor
        self._on_failure = on_failure
        self._dirty: set[PartitionLog] = set()
        self._waiting: list[tuple[PartitionLog, asyncio.Future[None]]] = []
        self._round: asyncio.Task[None] | None = None
        self.failure: OSError | None = None
        """The first failure of the disk. Later fsyncs may succeed, but prove nothing."""
        self.seconds = Histogram()

    def mark_dirty(self, log: PartitionLog) -> None:
        """Includes a log in the next periodic flush."""
        self._dirty.add(log)

    def discard(self, log: PartitionLog) -> None:
        """Removes a log that is being deleted from the next periodic flush. Requests that wait for its fsync still
        complete in the next round."""
        self._dirty.discard(log)

    def flush(self, log: PartitionLog) -> asyncio.Future[None]:
        """Returns a future that completes when all batches that were appended to the log before this call are durable.
        It fails with RequestRefused if the disk has failed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            waiter.set_exception(RequestRefused(ErrorCode.STORAGE_ERROR, _DISK_FAILED))
            return waiter
        self._waiting.append((log, waiter))
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run_rounds())
        return waiter

    async def flush_dirty(self) -> None:
        """Fsyncs every log that was marked dirty since the previous call."""
        await self._flush_dirty_logs(lambda log: log.flush_job() if log.needs_flush else None)

    async def flush_closed_segments(self) -> None:
        """Fsyncs the closed segments of every log that was marked dirty since the previous call."""
        await self._flush_dirty_logs(lambda log: log.flush_job(closed_only=True) if log.has_dirty_segments else None)

    async def _flush_dirty_logs(self, job_of: Callable[[PartitionLog], FlushJob | None]) -> None:
        dirty, self._dirty = self._dirty, set()
        try:
            jobs = ((log, job_of(log)) for log in dirty)
            await self._flush([(log, job) for log, job in jobs if job is not None])
        except Exception:
            # Mark the logs dirty again: otherwise one without further writes would never be fsynced.
            self._dirty |= dirty
            raise

    async def _run_rounds(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            unexpected: Exception | None = None
            try:
                await self._flush([(log, log.flush_job()) for log in {log for log, _ in waiting}])
            except Exception as error:
                # A bug here must not block later requests, so the rounds continue.
                logger.exception("fsync failed unexpectedly waiting_requests=%d", len(waiting))
                unexpected = error
            for _, waiter in waiting:
                if waiter.done():
                    continue
                if self.failure is not None:
                    waiter.set_exception(RequestRefused(ErrorCode.STORAGE_ERROR, _DISK_FAILED))
                elif unexpected is not None:
                    waiter.set_exception(unexpected)
                else:
                    waiter.set_result(None)
        self._round = None

    async def _flush(self, jobs: Sequence[tuple[PartitionLog, FlushJob]]) -> None:
        paths = [path for _, job in jobs for path in job.paths]
        if not paths or self.failure is not None:
            return
        try:
            await self.sync(paths)
        except OSError as error:
            self.fail(error)
            return
        for log, job in jobs:
            log.flushed(job)

    def fail(self, error: OSError) -> None:
        """Reports the disk failure `error`: all waiting requests fail, and the broker stops, since durability can no
        longer be guaranteed."""
        logger.critical("disk failed error=%s", error)
        self.failure = self.failure or error
        self._on_failure(error)

    async def sync_directory(self, directory: Path) -> None:
        """Makes the names of files in a directory durable. A directory that was deleted is ignored.

        Raises:
            OSError: the fsync failed; the broker stops.
        """
        try:
            await self.sync([directory])
        except OSError as error:
            self.fail(error)
            raise

    async def sync(self, paths: Sequence[Path]) -> None:
        """Fsyncs files in several threads, because a file system can commit concurrent fsyncs together.

        Raises:
            OSError: one of the fsyncs failed.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        chunks = [paths[at::SYNC_THREADS] for at in range(min(SYNC_THREADS, len(paths)))]
        await asyncio.gather(*(loop.run_in_executor(self._executor, sync_files, chunk) for chunk in chunks))
        self.seconds.add(loop.time() - began)


def sync_files(paths: Sequence[Path]) -> None:
    """Fsyncs files. Missing files are ignored: they belonged to a deleted topic or segment."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
