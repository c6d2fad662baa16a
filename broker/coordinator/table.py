"""A table in the log of one partition: the newest record of a key is its row, and one without a value deletes it.

Who holds the table folds the log when it starts and has all rows in memory; this is what is left to do with the log. A
batch is in it as a whole or not at all, by its checksum.

The log is compacted by writing what is alive anew, as ordinary records behind the rest, forcing that, and dropping the
older segments. Reading old and new after a crash in between gives the same table, so there is nothing to mend.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.broker.config import FsyncMode
from headrace.broker.errors import RequestRefused
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.log.scan import PlacedBatch
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import build_batch, read_batch_header

BATCH_RECORDS_MAX = 1000
"""Of one batch that compaction or a deletion writes: some 4 ms, in which everything else waits."""

Entry = tuple[bytes, bytes | None]
Key = TypeVar("Key")


class LogTable:
    """Not for use by threads. `grows_by` bytes after it was compacted it is due again; `unlink` removes files some
    time."""

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flusher,
        fsync: FsyncMode,
        now_ms: Callable[[], int],
        *,
        unlink: Callable[[list[Path]], object],
        grows_by: int,
    ) -> None:
        self.log = log
        self._flusher, self._fsync, self._now_ms, self._unlink = flusher, fsync, now_ms, unlink
        self._grows_by = self._compact_above = grows_by

    def batches(self) -> Iterator[tuple[PlacedBatch, bytes]]:
        """Everything there is, from the start; that it passes its CRCs was seen to when the log was opened."""
        return self.log.batches(self.log.log_start_offset)

    def append(self, entries: Sequence[Entry], *, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Appends one batch; with a producer, as a part of its transaction.

        Raises:
            RequestRefused: the disk refused it.
        """
        now_ms = self._now_ms()
        batch = build_batch(entries, now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        try:
            self.log.put(batch, read_batch_header(batch), now_ms)
        except RequestRefused as refused:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
        self._flusher.note(self.log)

    async def forced(self) -> None:
        """Waits until all of it is on disk, unless fsync is `none`."""
        if self._fsync is not FsyncMode.NONE:
            await self._flusher.force(self.log)

    @property
    def is_due(self) -> bool:
        """Has it grown by so much that it should be compacted?"""
        return self.log.size > self._compact_above

    async def compact(
        self,
        keys: Iterable[Key],
        row_of: Callable[[Key], Entry | None],
        write_rest: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Writes what is alive behind the rest and drops the rest; returns the bytes before and after.

        Args:
            keys: of all rows, some at a time, between which others have their turn. What changes meanwhile is behind
                what is written here.
            row_of: a key's row as it is now, None where it is gone.
            write_rest: appends what is no row, last.

        Raises:
            OSError, RequestRefused: the disk refused it. What was written so far does no harm; the next attempt is due
                when as much has been added again.
        """
        before = self.log.size
        # Raised first, since appending what is alive must not ask for another compaction.
        self._compact_above = before + self._grows_by
        self.log.roll(self._now_ms())
        older = len(self.log.closed)
        for some in in_batches(keys):
            alive = [row for row in map(row_of, some) if row is not None]
            if alive:
                self.append(alive)
            await asyncio.sleep(0)
        write_rest()
        await self._flusher.force(self.log)
        for _ in range(older):
            # The name of what follows is on disk before one goes, since that alone may then tell where the log ends.
            await self._flusher.sync_names(self.log.directory)
            self._unlink(self.log.drop_segments(1))
        self._compact_above = self.log.size + self._grows_by
        return before, self.log.size


def in_batches(keys: Iterable[Key]) -> Iterator[Sequence[Key]]:
    remaining = iter(keys)
    while some := list(itertools.islice(remaining, BATCH_RECORDS_MAX)):
        yield some
