"""Writes the broker's checkpoint files, which its next start reads: recovery points (ends of the fsynced data), log
start offsets, and clean offsets (ends of the compacted data).

A `write…` method copies the current offsets before it returns. A single thread then writes the files, in the order of
the calls, so the event loop need not wait for the disk. The returned future completes when the files are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path

from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, write_checkpoint
from headrace.broker.log.partition_log import PartitionLog

Checkpoints = Mapping[str, Mapping[PartitionKey, int]]


class CheckpointWriter:
    """Writes the broker's checkpoint files for recovery points, log start offsets and ends of the compacted data. The
    first has a row for each partition, the second for each log start offset above 0, the third for each compacted log.

    Args:
        writer: an executor with one thread, which keeps the writes in order.
        logs: the current logs; the mapping changes over time.
        clean_to: returns the end offset of the compacted part of each compacted log.
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
    def may_hold_deleted_topics(self) -> bool:
        """True if the checkpoint files may contain rows of deleted topics. They must then be rewritten before a topic
        is created, which could have the name of a deleted one and would inherit its offsets."""
        return self._deletions_on_disk < self._deletions

    def note_deletion(self) -> None:
        """Records that a topic was deleted: its rows may stay in the checkpoint files until the next `write`."""
        self._deletions += 1

    def write(self) -> Future[None]:
        """Schedules a write of the three checkpoint files (recovery points, log start offsets, ends of the compacted
        data) with the current offsets of all logs; the future completes when they are on disk."""
        checkpoints = {**self._recovery_points(), **self._log_starts(), CLEAN_TO: dict(self._clean_to())}
        return self._writer.submit(self._write_all, checkpoints, self._deletions)

    def write_recovery_points(self) -> Future[None]:
        """Schedules a write of the current recovery point of each log; the future completes when they are on disk."""
        return self._writer.submit(self._write_each, self._recovery_points())

    def write_log_starts(self) -> Future[None]:
        """Schedules a write of the current log start offset of each log; the future completes when they are on disk."""
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
