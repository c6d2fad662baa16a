"""The log of one partition: segments in a row, the last of which is appended to.

Invariants: `log_start_offset` <= `high_watermark` <= `log_end_offset`; bytes below `recovery_point` have been forced to
disk; a consumer sees nothing at or above the high watermark, and one that reads what is committed nothing at or above
the last stable offset, which is the first of the oldest open transaction or the high watermark, whatever comes first.
The high watermark is the log end, except where acknowledgement waits for the disk (fsync `always`): there it is what
has been forced, so that nobody reads a message that a power failure could take back.

Files per partition: `<base>.log`, `.index`, `.timeindex`, `.txnindex` and, where a segment begins,
`<offset>.snapshot` with the state of idempotent producers up to that offset; `leader-epoch-checkpoint` says which
leader epochs its batches are of.

Not for use by threads. Only `flush_job` results are meant to be carried out by one.
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
from headrace.broker.log import compaction, leader_epochs, produced
from headrace.broker.log.files import FULL, FileSlice, OpenFiles, write_fully
from headrace.broker.log.leader_epochs import LeaderEpochs
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.scan import PlacedBatch, SegmentFacts
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
from headrace.broker.log.segments import Bound, Segments
from headrace.broker.log.transactions import AbortedTransaction, end_marker
from headrace.broker.log.unforced import Unforced
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import CONTROL, PREFIX_BYTES, BatchHeader, read_batch_header

logger = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX = (1 << 31) - 1
SNAPSHOTS_KEPT = 2
"""The newest, and one to fall back on when a crash damaged it."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Sizes in bytes. `forced_reads_only` keeps unforced batches from consumers."""

    segment_bytes_max: int = 1 << 30
    segment_ms_max: int = 7 * 86_400_000
    forced_reads_only: bool = False


@dataclass(frozen=True, slots=True)
class FlushJob:
    """Files to force to disk; once done, `PartitionLog.flushed(job)` may be called.

    `changes` is how many changes of files there had been (see `Unforced`).
    """

    paths: tuple[Path, ...]
    next_offset: int
    base_offset: int
    position: int
    changes: int


class PartitionLog:
    """See the module. Built by `recovery.open_log`."""

    __slots__ = (
        "_active_since_ms",
        "_files",
        "_is_saved",
        "_stable",
        "_unforced",
        "_visible_in",
        "_visible_to",
        "directory",
        "epochs",
        "high_watermark",
        "is_being_replaced",
        "leader_epoch",
        "limits",
        "log_start_offset",
        "producers",
        "recovery_point",
        "segments",
        "waiters",
    )

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        limits: LogLimits,
        *,
        closed: list[ClosedSegment],
        active: SegmentFacts,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        leader_epoch: int,
        log_start_offset: int,
        recovery_point: int,
        unforced: Sequence[Path],
        is_saved: bool,
        active_since_ms: int,
    ) -> None:
        self.directory = directory
        self.limits = limits
        self._unforced = Unforced(unforced)
        self.segments = Segments(directory, files, closed, active, self._unforced.note)
        self.producers = producers
        self.epochs = epochs
        self.leader_epoch = leader_epoch
        self.log_start_offset = min(max(log_start_offset, self.segments.first_base_offset), active.next_offset)
        self.recovery_point = min(recovery_point, active.next_offset)
        self.high_watermark = active.next_offset
        self.epochs.cut(self.log_start_offset, self.log_end_offset)
        self.waiters: set[Callable[[int], None]] = set()  # are told how many bytes more can be read
        self.is_being_replaced = False  # by what compaction wrote: nothing is dropped until that is certain
        self._files = files
        self._active_since_ms = active_since_ms
        self._is_saved = is_saved
        self._visible_in, self._visible_to = active.base_offset, active.size
        self._stable = self._visible  # of the last stable offset, as it was looked for last

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
        """Up to here every transaction has ended."""
        first = self.producers.first_open()
        if first is None:
            return self.high_watermark
        return max(min(first, self.high_watermark), self.log_start_offset)

    @property
    def size(self) -> int:
        """Bytes of all record batches, as stored."""
        return self.segments.size

    @property
    def needs_flush(self) -> bool:
        return bool(self._unforced) or self.recovery_point < self.log_end_offset

    # Appending

    def append(self, batch: memoryview | bytes, header: BatchHeader, now_ms: int) -> int:
        """Stores a checked batch and returns the base offset it was given.

        A repetition of one of the producer's last batches is not stored again; its first offset is returned.

        Raises:
            RequestRefused: an idempotence rule, or the disk, refused it; the log is as before.
        """
        known = self.producers.duplicate_of(header)
        return known if known is not None else self.put(batch, header, now_ms)

    def end_transaction(self, producer_id: int, epoch: int, *, is_commit: bool, now_ms: int) -> bool:
        """Writes the marker that ends a producer's transaction; returns whether there was one to end.

        Raises:
            RequestRefused: the disk refused it; the transaction is open as before.
        """
        ending = self.producers.open.get(producer_id)
        if ending is None:
            return False
        others = self.producers.first_open(but=producer_id)
        marker = end_marker(
            producer_id,
            epoch,
            is_commit=is_commit,
            first_offset=ending.first_offset,
            last_stable_offset=self.log_end_offset + 1 if others is None else others,
            now_ms=now_ms,
        )
        self.put(marker, read_batch_header(marker), now_ms)
        # How much that lets readers see is theirs to find out.
        self.wake(sys.maxsize)
        return True

    def put(self, batch: memoryview | bytes, header: BatchHeader, now_ms: int) -> int:
        """Stores a batch whose producer need not be asked about; returns the base offset it was given.

        Raises:
            RequestRefused: the disk refused it; the log is as before.
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
        self._write(produced.prefix(base_offset, header, self.leader_epoch), memoryview(batch)[PREFIX_BYTES:])
        self._is_saved = False
        if header.attributes & CONTROL:
            active.add(header._replace(base_offset=base_offset), batch)
        else:
            active.add_plain(base_offset + header.last_offset_delta, header.max_timestamp, size)
        self.producers.record(header, base_offset, now_ms)
        if not self.limits.forced_reads_only:
            self._advance(active.next_offset, active.base_offset, active.size)
            self.wake(size)
        return base_offset

    def _begin_epoch(self, offset: int) -> None:
        """Notes that the leader's epoch begins, before its first batch is written."""
        begun = LeaderEpochs(self.epochs)
        begun.cut(self.log_start_offset, offset)
        begun.begin(self.leader_epoch, offset)
        try:
            path = begun.write(self.directory)
        except OSError as error:
            raise _refusal(self.directory / leader_epochs.FILE_NAME, error) from error
        self.epochs = begun
        # With the directory, which has that name, and that of the first segment of a new log.
        self._unforced.note(path, self.directory)

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
            self._visible_in, self._visible_to = base_offset, position

    def wake(self, byte_count: int) -> None:
        """Tells those who wait that so many bytes more can be read."""
        for grown in tuple(self.waiters):
            grown(byte_count)

    def roll(self, now_ms: int) -> None:
        """Closes the active segment and begins a new, empty one; nothing happens while it is empty.

        Raises:
            OSError: it could not be closed, and goes on.
        """
        active = self.active
        if not active.size:
            return
        write_indexes(self.directory, active)
        self._write_snapshot()
        self.segments.begin_new()
        # With its indexes: below the recovery point they are taken as they are.
        suffixes = SEGMENT_SUFFIXES if self.recovery_point < active.next_offset else INDEX_SUFFIXES
        paths = (segment_path(self.directory, active.base_offset, suffix) for suffix in suffixes)
        # And the directory, which has the name of the new one.
        self._unforced.note(*paths, self.directory)
        self._active_since_ms = now_ms

    def _write_snapshot(self) -> None:
        path = segment_path(self.directory, self.log_end_offset, SNAPSHOT)
        if not path.exists():
            try:
                path.write_bytes(self.producers.to_snapshot())
            except OSError:
                # What a full disk took of it would be found the next time, and not be written any more.
                path.unlink(missing_ok=True)
                raise
            for old in base_offsets(self.directory, SNAPSHOT)[:-SNAPSHOTS_KEPT]:
                segment_path(self.directory, old, SNAPSHOT).unlink(missing_ok=True)

    # Durability

    @property
    def has_unforced_segments(self) -> bool:
        """Are there closed segments that have not been forced to disk?"""
        return bool(self._unforced)

    def flush_job(self, *, closed_only: bool = False) -> FlushJob:
        """What has to be forced to disk for everything appended so far, or all closed segments, to be durable."""
        active = self.active
        paths, changes = self._unforced.paths, self._unforced.changes
        if closed_only:
            return FlushJob(paths, active.base_offset, active.base_offset, 0, changes)
        if active.size and self.recovery_point < active.next_offset:
            paths += (segment_path(self.directory, active.base_offset, LOG),)
        return FlushJob(paths, active.next_offset, active.base_offset, active.size, changes)

    def flushed(self, job: FlushJob) -> None:
        """Takes note that the files of `job` were forced, as they were when it was made."""
        self._unforced.note_forced(job.changes)
        self.recovery_point = max(self.recovery_point, job.next_offset)
        if self.limits.forced_reads_only and job.next_offset > self.high_watermark:
            before = self.segments.bytes_behind(self._visible)
            self._advance(job.next_offset, job.base_offset, job.position)
            self.wake(before - self.segments.bytes_behind(self._visible))

    def close(self) -> list[Path]:
        """Writes what a clean start reads instead of scanning; returns the files that are still to be forced."""
        unforced = list(self.flush_job().paths) if self.needs_flush else []
        if self.log_end_offset and not self._is_saved:
            if self.active.size:
                write_indexes(self.directory, self.active)
                unforced += [segment_path(self.directory, self.active.base_offset, suffix) for suffix in INDEX_SUFFIXES]
            self._write_snapshot()
            unforced += [segment_path(self.directory, self.log_end_offset, SNAPSHOT), self.directory]
            self._is_saved = True
        self.segments.forget_active_file()
        return unforced

    # Reading

    def read(self, offset: int, bytes_max: int, *, whole_first: bool) -> bytes | FileSlice:
        """The stored batches from the one that holds `offset` on, as many bytes as allowed.

        The last batch may be cut off, as the protocol permits. With `whole_first` the first batch is whole even when
        it is larger than `bytes_max`, so that a consumer always gets on.

        Raises:
            RequestRefused: the offset is outside [log_start_offset, log_end_offset].
        """
        return self._read(offset, bytes_max, whole_first, self._visible)[0]

    def read_committed(
        self, offset: int, bytes_max: int, *, whole_first: bool
    ) -> tuple[bytes | FileSlice, Sequence[AbortedTransaction]]:
        """As `read`, but to the last stable offset, and with what was aborted of what is returned.

        Raises:
            RequestRefused: the offset is outside [log_start_offset, log_end_offset].
        """
        bound = self._stable_bound()
        records, base, end = self._read(offset, bytes_max, whole_first, bound)
        if not records:
            return records, ()
        return records, self.aborted(offset, min(self.segments.offset_at(base, end), bound.offset))

    def _read(self, offset: int, bytes_max: int, whole_first: bool, bound: Bound) -> tuple[bytes | FileSlice, int, int]:
        """What can be read, and in which segment and at which position of it that ends."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise RequestRefused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside [{self.log_start_offset}, {self.log_end_offset}]",
            )
        return self.segments.read(offset, bytes_max, bound, whole_first=whole_first)

    @property
    def _visible(self) -> Bound:
        return Bound(self.high_watermark, self._visible_in, self._visible_to)

    def _stable_bound(self) -> Bound:
        end = self.last_stable_offset
        if end >= self.high_watermark:
            return self._visible
        if self._stable.offset != end:
            self._stable = Bound(end, *self.segments.place_of(end, self._visible))
        return self._stable

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The transactions that were aborted and have something in [start, end)."""
        return self.segments.aborted(start, end)

    def is_in_last_segment(self, offset: int) -> bool:
        """Is all that can be read from here on in one segment? A read ends with the segment that it begins in."""
        return offset >= self._visible_in

    def batches(self, offset: int) -> Iterator[tuple[PlacedBatch, bytes]]:
        """Every readable batch from the one that holds `offset` on, with its bytes."""
        for base, placed in self.placed_batches(offset):
            yield placed, self.segments.bytes_of(base, placed)

    def placed_batches(self, offset: int) -> Iterator[tuple[int, PlacedBatch]]:
        """As `batches`: of each the segment that it is in, and where. The log must stay as it is meanwhile."""
        return self.segments.placed_batches(offset, self._visible)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """The newest epoch that is not above `epoch`, and the offset behind its last batch; None when there is none."""
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if epoch > self.leader_epoch:
            return None
        found = self.epochs.end_of(epoch, self.high_watermark)
        if found is not None and not self._is_epoch_end(epoch, *found):
            self._rebuild_epochs()
            found = self.epochs.end_of(epoch, self.high_watermark)
        return found

    def _is_epoch_end(self, asked: int, epoch: int, end: int) -> bool:
        """Do the batches around an end say so, too? The file of epochs has no checksum."""
        before = self.segments.batch_at(max(end - 1, self.log_start_offset), self._visible)
        behind = self.segments.batch_at(end, self._visible)
        return (before is None or before.base_offset >= end or before.leader_epoch <= epoch) and (
            behind is None or behind.leader_epoch > asked
        )

    def _rebuild_epochs(self) -> None:
        """Makes the epochs anew from the batches; on a full disk they are as they were at the next start."""
        self.epochs = LeaderEpochs(self.segments.epochs(self.log_start_offset, self._visible))
        with contextlib.suppress(OSError):
            self._unforced.note(self.epochs.write(self.directory), self.directory)
        logger.warning("leader epochs rebuilt directory=%s", self.directory.name)

    # Compaction

    def roll_if_older(self, since_ms: int, now_ms: int) -> None:
        """Closes the active segment if it was begun before `since_ms`.

        Raises:
            OSError: it could not be closed, and goes on.
        """
        if self.active.size and self._active_since_ms < since_ms:
            self.roll(now_ms)

    def put_in_place(self, group: Sequence[ClosedSegment], facts: SegmentFacts) -> None:
        """Takes what compaction wrote of neighbouring closed segments for them.

        It is certain, and they are gone, when `compaction.end_replacing` has ended.

        Raises:
            NotReplaced: there is no space for that; the log is as before.
            OSError: the next start puts it right.
        """
        self.segments.forget_files(group)
        try:
            compaction.take_place(group)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise compaction.NotReplaced(error.errno, error.strerror) from error
        self.segments.put_in_place(group, facts)
        # Without them, on a full disk, reading begins with the segment.
        with contextlib.suppress(OSError):
            write_indexes(self.directory, facts)
        self._unforced.note(*(group[0].path(suffix) for suffix in INDEX_SUFFIXES))

    # Letting go

    def advance_log_start(self, offset: int) -> None:
        """Hides everything below `offset`; segments wholly below it can then be dropped."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.high_watermark))

    def drop_segments(self, count: int) -> list[Path]:
        """Takes the oldest `count` closed segments out of the log; returns their renamed files, to be unlinked.

        Raises:
            OSError: one of them could not be; it and those behind it are as they were.
        """
        try:
            return self.segments.take_out(count)
        finally:
            self.log_start_offset = max(self.log_start_offset, self.segments.first_base_offset)
            self._unforced.forget_gone()

    def forget_files(self) -> None:
        """Closes what is open, before the directory is renamed."""
        self.segments.forget_files(self.closed)
        self.segments.forget_active_file()


def _refusal(path: Path, error: OSError) -> RequestRefused:
    return RequestRefused(ErrorCode.STORAGE_ERROR, f"{path.name}: {error.strerror or error}")
