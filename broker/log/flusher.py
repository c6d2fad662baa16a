"""Forces appended batches to disk, away from the event loop.

`force` is a group commit: while one round of fdatasync runs in a thread, all that ask meanwhile wait for the next
round together, so the cost of the disk is shared by whoever produces at the same time. After a failed fdatasync the
system may have thrown the dirty pages away and a second call may lie, so nothing can be promised any more:
`on_failure` must stop the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from headrace.broker.counts import Histogram
from headrace.broker.errors import RequestRefused
from headrace.broker.log.files import sync_file
from headrace.broker.log.partition_log import FlushJob, PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

SYNC_THREADS = 8
"""Files forced at once."""


class Flusher:
    """Keeps the set of logs with unforced batches. `seconds` is how long the disk took, each time."""

    def __init__(self, executor: Executor, on_failure: Callable[[OSError], None]) -> None:
        self._executor = executor
        self._on_failure = on_failure
        self._dirty: set[PartitionLog] = set()
        self._waiting: list[tuple[PartitionLog, asyncio.Future[None]]] = []
        self._round: asyncio.Task[None] | None = None
        self._failed = False
        self.seconds = Histogram()

    def note(self, log: PartitionLog) -> None:
        """Remembers that the log has unforced batches."""
        self._dirty.add(log)

    def forget(self, log: PartitionLog) -> None:
        """Drops a log that is being deleted; whoever waits for it is told by the next round."""
        self._dirty.discard(log)

    def force(self, log: PartitionLog) -> asyncio.Future[None]:
        """A future that is done when everything appended to the log so far is on disk."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failed:
            waiter.set_exception(RequestRefused(ErrorCode.STORAGE_ERROR, "the disk has failed"))
            return waiter
        self._waiting.append((log, waiter))
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run_rounds())
        return waiter

    async def flush_dirty(self) -> None:
        """Forces every log that was noted since the last call."""
        await self._flush_noted(lambda log: log.flush_job() if log.needs_flush else None)

    async def flush_closed_segments(self) -> None:
        """Forces the closed segments of every log that was noted since the last call."""
        await self._flush_noted(lambda log: log.flush_job(closed_only=True) if log.has_unforced_segments else None)

    async def _flush_noted(self, job_of: Callable[[PartitionLog], FlushJob | None]) -> None:
        noted, self._dirty = self._dirty, set()
        try:
            jobs = ((log, job_of(log)) for log in noted)
            await self._flush([(log, job) for log, job in jobs if job is not None])
        except Exception:
            # Nobody may note them again, as of a topic to which nothing more is sent.
            self._dirty |= noted
            raise

    async def _run_rounds(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            unforeseen: Exception | None = None
            try:
                await self._flush([(log, log.flush_job()) for log in {log for log, _ in waiting}])
            except Exception as error:
                # A mistake of ours must not keep those waiting who come later, so the rounds go on.
                logger.exception("nothing forced for waiters=%d", len(waiting))
                unforeseen = error
            for _, waiter in waiting:
                if waiter.done():
                    continue
                if self._failed:
                    waiter.set_exception(RequestRefused(ErrorCode.STORAGE_ERROR, "the disk has failed"))
                elif unforeseen is not None:
                    waiter.set_exception(unforeseen)
                else:
                    waiter.set_result(None)
        self._round = None

    async def _flush(self, jobs: Sequence[tuple[PartitionLog, FlushJob]]) -> None:
        paths = [path for _, job in jobs for path in job.paths]
        if not paths or self._failed:
            return
        try:
            await self.sync(paths)
        except OSError as error:
            self.fail(error)
            return
        for log, job in jobs:
            log.flushed(job)

    def fail(self, error: OSError) -> None:
        """Nothing can be promised any more: whoever waits is told, and the broker ends."""
        logger.critical("disk failed error=%s", error)
        self._failed = True
        self._on_failure(error)

    async def sync_names(self, directory: Path) -> None:
        """Forces the names in a directory; in one that is gone there are none.

        Raises:
            OSError: they could not be forced; the broker ends.
        """
        try:
            await self.sync([directory])
        except OSError as error:
            self.fail(error)
            raise

    async def sync(self, paths: Sequence[Path]) -> None:
        """Forces files to disk, several at once: a file system commits what waits together.

        Raises:
            OSError: one of them could not be forced.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        shares = [paths[at::SYNC_THREADS] for at in range(min(SYNC_THREADS, len(paths)))]
        await asyncio.gather(*(loop.run_in_executor(self._executor, sync_files, share) for share in shares))
        self.seconds.add(loop.time() - began)


def sync_files(paths: Sequence[Path]) -> None:
    """Forces files to disk. One that is gone belonged to a deleted topic or segment."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
