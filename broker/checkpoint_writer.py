"""Writes down, for the next start, how far each log is forced, where it begins and how far it is clean.

One thread writes, in the order that is asked for, so that nobody waits for the disk but who wants them written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path

from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, write_checkpoint
from headrace.broker.log.partition_log import PartitionLog

Checkpoints = Mapping[str, Mapping[PartitionKey, int]]


class CheckpointWriter:
    """
    Args:
        writer: of one thread.
        logs: all there are, now and later.
        clean_to: up to where each of them is clean.
    """

    def __init__(
        self,
        directory: Path,
        writer: Executor,
        logs: Mapping[PartitionKey, PartitionLog],
        clean_to: Callable[[], Mapping[PartitionKey, int]],
    ) -> None:
        self._directory, self._writer, self._logs, self._clean_to = directory, writer, logs, clean_to
        self._deletions = self._deletions_on_disk = 0

    @property
    def have_deleted_topics(self) -> bool:
        """May there be rows on disk of topics that were deleted? They must not meet new ones of their names."""
        return self._deletions_on_disk < self._deletions

    def note_deletion(self) -> None:
        self._deletions += 1

    def write(self) -> Future[None]:
        """Has all of them written, of everything as it is now."""
        checkpoints = {**self._recovery_points(), **self._log_starts(), CLEAN_TO: dict(self._clean_to())}
        return self._writer.submit(self._write_all, checkpoints, self._deletions)

    def write_recovery_points(self) -> Future[None]:
        return self._writer.submit(self._write_each, self._recovery_points())

    def write_log_starts(self) -> Future[None]:
        """Has written where the logs begin now."""
        return self._writer.submit(self._write_each, self._log_starts())

    def _recovery_points(self) -> Checkpoints:
        return {RECOVERY_POINTS: {key: log.recovery_point for key, log in self._logs.items()}}

    def _log_starts(self) -> Checkpoints:
        return {LOG_STARTS: {key: log.log_start_offset for key, log in self._logs.items() if log.log_start_offset}}

    def _write_all(self, checkpoints: Checkpoints, deletions: int) -> None:
        self._write_each(checkpoints)
        self._deletions_on_disk = deletions

    def _write_each(self, checkpoints: Checkpoints) -> None:
        for name, offsets in checkpoints.items():
            write_checkpoint(self._directory / name, offsets)
