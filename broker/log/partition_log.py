"""The log of one partition: a sequence of segments. Batches are appended to the last one, the active segment; the
others are closed.

Invariants:

- `log_start_offset` <= `high_watermark` <= `log_end_offset`.
- Bytes below `recovery_point` have been fsynced.
- Consumers read below the high watermark; with isolation level `read_committed`, below the last stable offset. That is
  the first offset of the oldest open transaction, at least the log start offset and at most the high watermark; without
  an open transaction, the high watermark.
- The high watermark equals the log end offset, except with fsync `always`: there it is the end of the fsynced data, so
  that no consumer reads a message that a power failure could remove.

Files per partition: `<base>.log`, `.index`, `.timeindex`, `.txnindex`, and `<offset>.snapshot` with the state of the
producers up to that offset, written when a segment or the log is closed. `leader-epoch-checkpoint` holds the leader
epochs of the batches.

Not thread-safe. The fsyncs of a `FlushJob` and the compaction of closed segments run in threads, on the files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.errors import RequestRefused
from headrace.broker.log import compaction, leader_epochs, produce_validation
from headrace.broker.log.dirty_files import DirtyFiles
from headrace.broker.log.files import DISK_FULL_ERRNOS, FileSlice, OpenFiles, write_fully
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.scan import LocatedBatch, SegmentFacts
from headrace.broker.log.segment import (
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    ClosedSegment,
    base_offsets,
    segment_path,
    write_indexes,
)
from headrace.broker.log.segments import ReadBound, Segments
from headrace.broker.log.transactions import NO_OFFSET, TransactionIndexEntry, end_marker
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import CONTROL, PREFIX_BYTES, BatchHeader, read_batch_header

logger = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX = (1 << 31) - 1
SNAPSHOTS_MAX = 2
"""Most producer snapshots that stay on disk: the newest one, and an older one in case a crash has corrupted it."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits of one log. An append first closes the active segment if it would exceed `segment_bytes_max` bytes with
    the new batch, or is older than `segment_ms_max`. With `fsynced_reads_only`, consumers read only fsynced batches."""

    segment_bytes_max: int = 1 << 30
    segment_ms_max: int = 7 * 86_400_000
    fsynced_reads_only: bool = False


@dataclass(frozen=True, slots=True)
class FlushJob:
    """A list of files of one log that must be fsynced, and the log's state when the list was made. After the fsyncs,
    call `PartitionLog.flushed(job)`.

    Attributes:
        next_offset: everything below this offset is durable after the fsyncs.
        base_offset: base offset of the active segment.
        position: number of bytes of that segment that lie below `next_offset`.
        changes: number of file changes when the job was created (see `DirtyFiles`).
    """

    paths: tuple[Path, ...]
    next_offset: int
    base_offset: int
    position: int
    changes: int


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The state of a log that recovery has read from its directory; an argument of `PartitionLog`.

    Attributes:
        leader_epoch: leader epoch of the batches that will be appended.
        recovery_point: offset up to which the log is fsynced.
        dirty_paths: files that may not be durable yet.
        is_state_saved: whether the producers' snapshot and the indexes of the active segment on disk are current, so
            that `close` need not write them.
        active_since_ms: time from which the age of the active segment counts.
    """

    closed: Sequence[ClosedSegment]
    active: SegmentFacts
    producers: ProducerStates
    epochs: LeaderEpochs
    leader_epoch: int
    log_start_offset: int
    recovery_point: int
    dirty_paths: Sequence[Path]
    is_state_saved: bool
    active_since_ms: int


class PartitionLog:
    """The log of one partition, opened by `recovery.open_log`. The module lists its invariants.

    Args:
        files: cache of open files that all logs share.
        limits: when segments are closed, and whether consumers read only fsynced batches.
        recovered: the state that recovery has read from the directory.
    """

    __slots__ = (
        "_active_since_ms",
        "_cached_stable_bound",
        "_dirty_files",
        "_files",
        "_is_state_saved",
        "_visible_base",
        "_visible_position",
        "directory",
        "epochs",
        "high_watermark",
        "is_swapping",
        "leader_epoch",
        "limits",
        "log_start_offset",
        "producers",
        "recovery_point",
        "segments",
        "waiters",
    )

    def __init__(self, directory: Path, files: OpenFiles, limits: LogLimits, recovered: RecoveredLog) -> None:
        active = recovered.active
        self.directory = directory
        self.limits = limits
        self._dirty_files = DirtyFiles(recovered.dirty_paths)
        self.segments = Segments(directory, files, list(recovered.closed), active, self._dirty_files.mark_dirty)
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.leader_epoch = recovered.leader_epoch
        first_base_offset = self.segments.first_base_offset
        self.log_start_offset = min(max(recovered.log_start_offset, first_base_offset), active.next_offset)
        self.recovery_point = min(recovered.recovery_point, active.next_offset)
        self.high_watermark = active.next_offset
        self.epochs.trim(self.log_start_offset, self.log_end_offset)
        self.waiters: set[Callable[[int], None]] = set()  # called with the number of bytes that became readable
        self.is_swapping = False  # a compaction swap is not durable yet: no segment may be dropped
        self._files = files
        self._active_since_ms = recovered.active_since_ms
        self._is_state_saved = recovered.is_state_saved
        self._visible_base, self._visible_position = active.base_offset, active.size
        self._cached_stable_bound = self._visible  # position of the last stable offset, cached

    @property
    def closed(self) -> list[ClosedSegment]:
        return self.segments.closed

    @property
    def active(self) -> SegmentFacts:
        return self.segments.active

    @property
    def log_end_offset(self) -> int:
        return self.segments.active.next_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which consumers with `read_committed` read: all readable transactions that begin below it
        have ended."""
        first = self.producers.first_open()
        if first is None:
            return self.high_watermark
        return max(min(first, self.high_watermark), self.log_start_offset)

    @property
    def size(self) -> int:
        """Stored bytes of all record batches."""
        return self.segments.size

    @property
    def needs_flush(self) -> bool:
        return bool(self._dirty_files) or self.recovery_point < self.log_end_offset

    # Appending

    def append(self, batch: memoryview | bytes, header: BatchHeader, now_ms: int) -> int:
        """Appends a validated batch and returns its base offset.

        If the batch is a retry of one of the producer's last five batches, it is not stored again, and the base offset
        of the stored batch is returned.

        Args:
            header: the header of `batch`, already parsed.
            now_ms: wall clock, for the age of the active segment and the time at which the producer was last active.

        Raises:
            RequestRefused: an idempotence check or the disk rejected the batch; it was not appended.
        """
        known = self.producers.duplicate_of(header)
        return known if known is not None else self.append_unchecked(batch, header, now_ms)

    def end_transaction(self, producer_id: int, epoch: int, *, is_commit: bool, now_ms: int) -> None:
        """Appends the marker that ends a producer's transaction in this partition. The marker fences producers with a
        lower epoch, so it is also written for a transaction without records in this partition.

        Args:
            epoch: the producer's epoch, for the marker.
            is_commit: write a commit marker; False writes an abort marker.
            now_ms: wall clock: the timestamp of the marker and the time of the append.

        Raises:
            RequestRefused: the disk rejected the write; the transaction stays open.
        """
        ending = self.producers.open.get(producer_id)
        others = self.producers.first_open(excluding=producer_id)
        marker = end_marker(
            producer_id,
            epoch,
            is_commit=is_commit,
            first_offset=NO_OFFSET if ending is None else ending.first_offset,
            last_stable_offset=self.log_end_offset + 1 if others is None else others,
            now_ms=now_ms,
        )
        self.append_unchecked(marker, read_batch_header(marker), now_ms)
        # The last stable offset may advance past any number of bytes. The waiting fetches read again to find out.
        self.notify_waiters(sys.maxsize)

    def append_unchecked(self, batch: memoryview | bytes, header: BatchHeader, now_ms: int) -> int:
        """Appends a batch without checking its producer's sequence numbers, and returns its base offset. Batches that
        the broker itself writes, such as transaction markers, have no sequence numbers.

        Args:
            header: the header of `batch`, already parsed.
            now_ms: wall clock, for the age of the active segment and the time at which the producer was last active.

        Raises:
            RequestRefused: the disk rejected the write; the batch was not appended.
        """
        size = len(batch)
        active = self.segments.active
        if active.size and (
            active.size + size > self.limits.segment_bytes_max
            or active.next_offset + header.last_offset_delta - active.base_offset > RELATIVE_OFFSET_MAX
            or now_ms - self._active_since_ms > self.limits.segment_ms_max
        ):
            try:
                self.roll(now_ms)
            except OSError as error:
                raise _refusal(self.directory, error) from error
            active = self.segments.active
        base_offset = active.next_offset
        if not active.size:
            self._active_since_ms = now_ms
        if self.epochs.latest != self.leader_epoch:
            self._begin_epoch(base_offset)
        self._write(
            produce_validation.stored_prefix(base_offset, header, self.leader_epoch), memoryview(batch)[PREFIX_BYTES:]
        )
        self._is_state_saved = False
        if header.attributes & CONTROL:
            active.add(header._replace(base_offset=base_offset), batch)
        else:
            active.add_plain(base_offset + header.last_offset_delta, header.max_timestamp, size)
        self.producers.record(header, base_offset, now_ms)
        if not self.limits.fsynced_reads_only:
            self._advance(active.next_offset, active.base_offset, active.size)
            self.notify_waiters(size)
        return base_offset

    def _begin_epoch(self, offset: int) -> None:
        """Adds the broker's leader epoch, which begins at `offset`, to the epoch file. Called before the first batch of
        the epoch is appended at that offset."""
        epochs = LeaderEpochs(self.epochs)
        epochs.trim(self.log_start_offset, offset)
        epochs.begin(self.leader_epoch, offset)
        try:
            path = epochs.write(self.directory)
        except OSError as error:
            raise _refusal(self.directory / leader_epochs.FILE_NAME, error) from error
        self.epochs = epochs
        # The directory must be fsynced for the file's name and, in a new log, for that of the first segment.
        self._dirty_files.mark_dirty(path, self.directory)

    def _write(self, prefix: bytes, rest: memoryview) -> None:
        active = self.segments.active
        path = self.segments.log_path(active.base_offset)
        try:
            fd = self._files.fd(path)
            write_fully(fd, [prefix, rest], active.size)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._files.fd(path), active.size)
            raise _refusal(path, error) from error

    def _advance(self, offset: int, base_offset: int, position: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self._visible_base, self._visible_position = base_offset, position

    def notify_waiters(self, byte_count: int) -> None:
        """Notifies the waiting fetch requests that up to `byte_count` more bytes are readable. `sys.maxsize` makes all
        of them read again."""
        for waiter in tuple(self.waiters):
            waiter(byte_count)

    def roll(self, now_ms: int) -> None:
        """Closes the active segment and starts a new one at the time `now_ms`. Does nothing if the active segment is
        empty. The age of a segment counts from its first append.

        Raises:
            OSError: the segment could not be closed and stays active.
        """
        active = self.active
        if not active.size:
            return
        write_indexes(self.directory, active)
        self._write_snapshot()
        self.segments.start_segment()
        # Indexes must be fsynced too: a start uses those below the recovery point without a scan.
        suffixes = SEGMENT_SUFFIXES if self.recovery_point < active.next_offset else INDEX_SUFFIXES
        paths = (segment_path(self.directory, active.base_offset, suffix) for suffix in suffixes)
        # The directory contains the name of the new segment, which must become durable.
        self._dirty_files.mark_dirty(*paths, self.directory)
        self._active_since_ms = now_ms

    def _write_snapshot(self) -> None:
        path = segment_path(self.directory, self.log_end_offset, SNAPSHOT)
        if not path.exists():
            try:
                path.write_bytes(self.producers.to_snapshot())
            except OSError:
                # A full disk leaves a partial file. It would be found next time and never be rewritten.
                path.unlink(missing_ok=True)
                raise
            for old in base_offsets(self.directory, SNAPSHOT)[:-SNAPSHOTS_MAX]:
                segment_path(self.directory, old, SNAPSHOT).unlink(missing_ok=True)

    # Durability

    @property
    def has_dirty_segments(self) -> bool:
        """Whether files are waiting for an fsync, such as closed segments. Batches that were appended to the active
        segment do not count."""
        return bool(self._dirty_files)

    def flush_job(self, *, closed_only: bool = False) -> FlushJob:
        """Returns a job for the files of this log that must be fsynced.

        Args:
            closed_only: do not include the batches that were appended to the active segment; by default, everything
                appended so far becomes durable.
        """
        active = self.active
        paths, changes = self._dirty_files.paths, self._dirty_files.changes
        if closed_only:
            return FlushJob(paths, active.base_offset, active.base_offset, 0, changes)
        if active.size and self.recovery_point < active.next_offset:
            paths += (segment_path(self.directory, active.base_offset, LOG),)
        return FlushJob(paths, active.next_offset, active.base_offset, active.size, changes)

    def flushed(self, job: FlushJob) -> None:
        """Records that the files in `job`, a result of `flush_job`, were fsynced. Writes after the creation of the job
        remain dirty. With `fsynced_reads_only`, consumers may now read the batches that became durable."""
        self._dirty_files.mark_fsynced(job.changes)
        self.recovery_point = max(self.recovery_point, job.next_offset)
        if self.limits.fsynced_reads_only and job.next_offset > self.high_watermark:
            before = self.segments.bytes_behind(self._visible)
            self._advance(job.next_offset, job.base_offset, job.position)
            self.notify_waiters(before - self.segments.bytes_behind(self._visible))

    def close(self) -> list[Path]:
        """Closes the log, and returns the files that the caller must still fsync. Writes the indexes of the active
        segment and the snapshot of the producers unless those on disk are current, so that the next start need not scan
        the log.

        Raises:
            OSError: an index or the snapshot could not be written.
        """
        dirty_paths = list(self.flush_job().paths) if self.needs_flush else []
        if self.log_end_offset and not self._is_state_saved:
            if self.active.size:
                write_indexes(self.directory, self.active)
                dirty_paths += [
                    segment_path(self.directory, self.active.base_offset, suffix) for suffix in INDEX_SUFFIXES
                ]
            self._write_snapshot()
            dirty_paths += [segment_path(self.directory, self.log_end_offset, SNAPSHOT), self.directory]
            self._is_state_saved = True
        self.segments.close_active_file()
        return dirty_paths

    # Reading

    def read(self, offset: int, bytes_max: int, *, min_one_batch: bool) -> bytes | FileSlice:
        """Returns up to `bytes_max` bytes of stored batches, starting with the first batch that ends at or after
        `offset`. They come from one segment and end at the high watermark at the latest.

        The last batch may be incomplete, as the protocol allows. With `min_one_batch` the first batch is complete even
        if it is larger than `bytes_max`, so that a consumer always makes progress; without it, no bytes are returned
        then.

        Raises:
            RequestRefused: the offset is outside [log_start_offset, log_end_offset].
            NotCached: inside `nonblocking_reads`, if bytes are not in the page cache.
        """
        return self._read(offset, bytes_max, min_one_batch, self._visible)[0]

    def read_committed(
        self, offset: int, bytes_max: int, *, min_one_batch: bool
    ) -> tuple[bytes | FileSlice, Sequence[TransactionIndexEntry]]:
        """Returns up to `bytes_max` bytes of the batches below the last stable offset, starting with the first batch
        that ends at or after `offset`. Also returns the aborted transactions that overlap these batches, and possibly
        some that begin after them.

        With `min_one_batch` the first batch is returned even if it is larger than `bytes_max`; without it, no bytes are
        returned then.

        Raises:
            RequestRefused: the offset is outside [log_start_offset, log_end_offset].
            NotCached: inside `nonblocking_reads`, if bytes are not in the page cache.
        """
        bound = self._stable_bound()
        records, base, end = self._read(offset, bytes_max, min_one_batch, bound)
        if not records:
            return records, ()
        return records, self.aborted(offset, min(self.segments.offset_at(base, end), bound.offset))

    def _read(
        self, offset: int, bytes_max: int, min_one_batch: bool, bound: ReadBound
    ) -> tuple[bytes | FileSlice, int, int]:
        """Reads up to `bytes_max` bytes of the batches before `bound`, the end of the log for this reader, starting
        with the first batch that ends at or after `offset`. Returns the bytes and the place where they end: the base
        offset of the segment and the position in its file; two zeros without bytes.

        With `min_one_batch` the first batch is returned even if it is larger than `bytes_max`; without it, no bytes are
        returned then.

        Raises:
            RequestRefused: the offset is outside [log_start_offset, log_end_offset].
            NotCached: inside `nonblocking_reads`, if bytes are not in the page cache.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise RequestRefused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of the log, which has the offsets [{self.log_start_offset}, "
                f"{self.log_end_offset})",
            )
        return self.segments.read(offset, bytes_max, bound, min_one_batch=min_one_batch)

    @property
    def _visible(self) -> ReadBound:
        return ReadBound(self.high_watermark, self._visible_base, self._visible_position)

    def _stable_bound(self) -> ReadBound:
        end = self.last_stable_offset
        if end >= self.high_watermark:
            return self._visible
        if self._cached_stable_bound.offset != end:
            self._cached_stable_bound = ReadBound(end, *self.segments.position_of(end, self._visible))
        return self._cached_stable_bound

    def aborted(self, start: int, end: int) -> list[TransactionIndexEntry]:
        """Returns the aborted transactions that overlap the offsets [start, end)."""
        return self.segments.aborted(start, end)

    def is_in_last_segment(self, offset: int) -> bool:
        """Returns whether all readable batches from `offset` on are in the last segment that has readable batches. Only
        then can one `read` return all of them, because a read never crosses the end of a segment."""
        return offset >= self._visible_base

    def batches(self, offset: int) -> Iterator[tuple[LocatedBatch, bytes]]:
        """Yields each batch below the high watermark, starting with the first one that ends at or after `offset`: its
        header with its file position, and its bytes."""
        for base, located in self.located_batches(offset):
            yield located, self.segments.bytes_of(base, located)

    def located_batches(self, offset: int) -> Iterator[tuple[int, LocatedBatch]]:
        """Yields two values for each batch below the high watermark, starting with the first one that ends at or after
        `offset`: the base offset of its segment, and its header with its file position. The log must not change during
        iteration."""
        return self.segments.located_batches(offset, self._visible)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Returns the newest leader epoch of the log up to `epoch`, and the offset at which that epoch ends. The
        current leader epoch ends at the high watermark, even if it has no batch yet. Returns None if `epoch` is newer
        than the current leader epoch, or older and no epoch is known. See `LeaderEpochs.end_of`."""
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if epoch > self.leader_epoch:
            return None
        found = self.epochs.end_of(epoch, self.high_watermark)
        if found is not None and not self._is_epoch_end(epoch, *found):
            self._rebuild_epochs()
            found = self.epochs.end_of(epoch, self.high_watermark)
        return found

    def _is_epoch_end(self, requested: int, epoch: int, end: int) -> bool:
        """Verifies a result of the epoch file, which has no checksum, with the batches in the log: returns whether
        `epoch` is the newest epoch up to `requested`, and its batches end at offset `end`.

        This is true if the batch before `end` has at most the epoch `epoch`, and the batch at `end` a newer epoch than
        `requested`. A batch that does not exist is not checked.
        """
        before = self.segments.batch_at(max(end - 1, self.log_start_offset), self._visible)
        behind = self.segments.batch_at(end, self._visible)
        return (before is None or before.base_offset >= end or before.leader_epoch <= epoch) and (
            behind is None or behind.leader_epoch > requested
        )

    def _rebuild_epochs(self) -> None:
        """Rebuilds the leader epochs in memory and in their file from the batches. If the file cannot be written, it
        remains wrong until it is written again."""
        self.epochs = LeaderEpochs(self.segments.epochs(self.log_start_offset, self._visible))
        with contextlib.suppress(OSError):
            self._dirty_files.mark_dirty(self.epochs.write(self.directory), self.directory)
        logger.warning("leader epochs rebuilt directory=%s", self.directory.name)

    # Compaction

    def roll_if_older(self, since_ms: int, now_ms: int) -> None:
        """Closes the active segment if its age counts from a time before `since_ms`, so that compaction can process the
        segment. The new active segment starts at the time `now_ms`.

        Raises:
            OSError: the segment could not be closed and stays active.
        """
        if self.active.size and self._active_since_ms < since_ms:
            self.roll(now_ms)

    def replace_segments(self, group: Sequence[ClosedSegment], facts: SegmentFacts) -> None:
        """Replaces adjacent closed segments by the file that compaction has merged them into: a swap (see
        `compaction`).

        The swap is not durable until `compaction.complete_swap` has returned.

        Args:
            group: the segments to replace.
            facts: describes the file that replaces them.

        Raises:
            NoSpaceForSwap: the disk is full; the log is unchanged except for indexes.
            OSError: the state on disk is unknown; the next start completes or reverts the swap.
        """
        self.segments.close_files(group)
        try:
            compaction.install_swap(group)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            raise compaction.NoSpaceForSwap(error.errno, error.strerror) from error
        self.segments.replace_segments(group, facts)
        # If the disk is too full for indexes, reads start at the beginning of the segment.
        with contextlib.suppress(OSError):
            write_indexes(self.directory, facts)
        self._dirty_files.mark_dirty(*(group[0].path(suffix) for suffix in INDEX_SUFFIXES))

    # Retention

    def advance_log_start(self, offset: int) -> None:
        """Raises the log start offset to `offset`, at most to the high watermark: reads from a lower offset are
        refused. The segments that lie completely below it can then be dropped (`drop_segments`)."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.high_watermark))

    def drop_segments(self, count: int) -> list[Path]:
        """Removes the oldest `count` closed segments from the log and renames their files to `.deleted`. Returns the
        new paths of the files, which the caller must delete. The log start offset rises to the first remaining segment
        if it is lower.

        Raises:
            OSError: a segment could not be removed; this one and later ones are unchanged.
        """
        try:
            return self.segments.drop_oldest(count)
        finally:
            self.log_start_offset = max(self.log_start_offset, self.segments.first_base_offset)
            self._dirty_files.discard_missing()

    def close_files(self) -> None:
        """Closes the log's open files, so that its directory can be renamed."""
        self.segments.close_files(self.closed)
        self.segments.close_active_file()


def _refusal(path: Path, error: OSError) -> RequestRefused:
    return RequestRefused(ErrorCode.STORAGE_ERROR, f"{path.name}: {error.strerror or error}")
