"""Key-value table in the log of one partition: the latest record of a key is its row; a record without a value deletes
it.

The owner of the table reads the log at start and holds all rows in memory; this module writes the log. A batch is
atomic, because a partly written one fails its checksum.

Compaction appends the live rows as ordinary records, fsyncs them, and drops the older segments. After a crash in
between, old and new records together give the same table, so no repair is needed.
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
from headrace.broker.log.scan import LocatedBatch
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import build_batch, read_batch_header

BATCH_RECORDS_MAX = 1000
"""Maximum number of records per batch in compactions and deletions. A batch takes about 4 ms, during which other
requests wait."""

TableEntry = tuple[bytes, bytes | None]
Key = TypeVar("Key")


class LogTable:
    """Writes a key-value table to the log of one partition: the latest record of a key is its row. Not thread-safe.

    Args:
        unlink: deletes files in the background.
        growth_bytes: a compaction is due when the log has grown by this much since the last one; before the first one
            since the start, when the log is larger than this.
    """

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flusher,
        fsync: FsyncMode,
        now_ms: Callable[[], int],
        *,
        unlink: Callable[[list[Path]], object],
        growth_bytes: int,
    ) -> None:
        self.log = log
        self._flusher, self._fsync, self._now_ms, self._unlink = flusher, fsync, now_ms, unlink
        self._growth_bytes = self._compact_above_bytes = growth_bytes

    def batches(self) -> Iterator[tuple[LocatedBatch, bytes]]:
        """Yields all batches of the table's log, from its log start offset on: the header of each with its file
        position, and its bytes. Their CRCs were verified when the log was opened."""
        return self.log.batches(self.log.log_start_offset)

    def append(self, entries: Sequence[TableEntry], *, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Appends records to the table's log in one batch; in the transaction of a producer if its id and epoch are
        given.

        Args:
            entries: encoded key and value of each record; a value of None deletes the row.

        Raises:
            RequestRefused: the log could not be written.
        """
        now_ms = self._now_ms()
        batch = build_batch(entries, now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        try:
            self.log.append_unchecked(batch, read_batch_header(batch), now_ms)
        except RequestRefused as refused:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused
        self._flusher.mark_dirty(self.log)

    async def wait_until_durable(self) -> None:
        """Waits until everything appended to the table's log is on disk, unless fsync is `none`."""
        if self._fsync is not FsyncMode.NONE:
            await self._flusher.flush(self.log)

    @property
    def is_compaction_due(self) -> bool:
        """True if the log has grown enough to be compacted."""
        return self.log.size > self._compact_above_bytes

    async def compact(
        self,
        keys: Iterable[Key],
        row_for: Callable[[Key], TableEntry | None],
        append_extra: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Appends the existing rows and drops the older segments. Returns the size of the log before and after, in
        bytes.

        Args:
            keys: keys of all rows. They are processed in batches, and other requests run in between; rows changed
                meanwhile are appended later and take precedence.
            row_for: returns the current row of a key, None if it was deleted.
            append_extra: called last; appends records that are not rows, such as pending offsets.

        Raises:
            OSError, RequestRefused: the log could not be written. The rows appended so far are harmless; the next
                compaction is due after the same growth again.
        """
        before = self.log.size
        # The limit is raised before the rows are appended, so that they do not make another compaction due.
        self._compact_above_bytes = before + self._growth_bytes
        self.log.roll(self._now_ms())
        old_segments = len(self.log.closed)
        for batch in in_batches(keys):
            live_rows = [row for row in map(row_for, batch) if row is not None]
            if live_rows:
                self.append(live_rows)
            await asyncio.sleep(0)
        append_extra()
        await self._flusher.flush(self.log)
        for _ in range(old_segments):
            # The next segment's name must be durable before a segment is removed: it may be the only record of where
            # the log ends.
            await self._flusher.sync_directory(self.log.directory)
            self._unlink(self.log.drop_segments(1))
        self._compact_above_bytes = self.log.size + self._growth_bytes
        return before, self.log.size


def in_batches(keys: Iterable[Key]) -> Iterator[Sequence[Key]]:
    remaining = iter(keys)
    while batch := list(itertools.islice(remaining, BATCH_RECORDS_MAX)):
        yield batch
