"""Opens the log of a partition after a clean shutdown or a crash.

After a clean shutdown a segment is used without a scan, unless its indexes do not match it or the epoch file is missing
or corrupt. After a crash everything above the recovery point, the end of the fsynced data, is read batch by batch. The
log is truncated at the first batch that is incomplete, fails its CRC or does not continue the offsets, so that a prefix
of the written data remains. Below the recovery point data can be missing only because of corruption: then the start
fails, or repairs the log if the operator has allowed it (see `repair`).

Below the recovery point, offsets may have gaps and epochs may be in any order: compaction leaves such logs. Even there
a closed segment ends where the next one begins: compaction retains its last batch, possibly without records, and repair
adds one. A segment that ends earlier has lost its last batches, even if the remaining ones are intact.

The broker's internal logs are read completely at every start, and every batch must pass its CRC: consumers check the
CRC of messages, but nothing else would check these.

Indexes of scanned segments are rebuilt, and so are indexes that do not match their log.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.broker.errors import LogDamaged, RequestRefused
from headrace.broker.log.compaction import recover_swaps
from headrace.broker.log.files import OpenFiles, sync_directory, sync_file
from headrace.broker.log.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    floor_position_in_file,
    last_time_entry_in_file,
)
from headrace.broker.log.leader_epochs import FIRST_EPOCH, LeaderEpochs, read_leader_epochs
from headrace.broker.log.partition_log import LogLimits, PartitionLog, RecoveredLog
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.repair import pad_segment, remove_expired_corrupt_files, repair_segment, truncate_log
from headrace.broker.log.scan import ScanExpectations, ScanResult, SegmentFacts, scan_segment, walk_batches
from headrace.broker.log.segment import (
    DELETED,
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    ClosedSegment,
    aborted_in,
    base_offsets,
    ends_with,
    header_at,
    is_in_log,
    segment_path,
    walk_file,
    write_indexes,
)
from headrace.kafka_wire.record_batch import has_valid_crc

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Result of `open_log`: the log, and the number of bytes that recovery truncated."""

    log: PartitionLog
    truncated_bytes: int


def open_log(
    directory: Path,
    files: OpenFiles,
    limits: LogLimits,
    *,
    is_clean: bool,
    recovery_point: int | None,
    log_start_offset: int,
    leader_epoch: int,
    repairs_corruption: bool = False,
    verifies_fsynced: bool = False,
    now_ms: int,
) -> OpenLog:
    """Opens the log in `directory`, which must exist, and repairs it if necessary. Returns it with the number of
    truncated bytes.

    Args:
        limits: when segments are closed, and whether consumers read only fsynced batches.
        is_clean: the last broker shut down cleanly, so segments are not scanned if their indexes match.
        recovery_point: offset up to which the log was fsynced, None if unknown.
        log_start_offset: offset of the first record that can be read, from the checkpoint file.
        leader_epoch: epoch of batches to be appended; stored batches have this or an older one.
        repairs_corruption: repair a corrupt log below the recovery point instead of raising LogDamaged.
        verifies_fsynced: check the CRC of batches below the recovery point too.
        now_ms: wall clock, the time of the broker's start or of the partition's creation.

    Raises:
        LogDamaged: the log is corrupt below the recovery point, and `repairs_corruption` is False.
        StartError: a compacted file that a crash left uninstalled is corrupt.
        OSError: a file cannot be read or written.
    """
    _remove_leftovers(directory)
    recover_swaps(directory)
    remove_expired_corrupt_files(directory, log_start_offset)
    bases = base_offsets(directory) or [0]
    _check_writable(directory, bases)
    persisted = read_leader_epochs(directory)
    known = [(FIRST_EPOCH, bases[0])] if persisted is None else list(persisted)
    epochs = LeaderEpochs(known)
    reader = _LogReader(directory, recovery_point, epochs, leader_epoch, repairs_corruption, verifies_fsynced)
    scans_all = persisted is None
    segments: list[SegmentFacts] = []
    for at, base in enumerate(bases):
        later = bases[at + 1 :]
        is_trusted = is_clean or bool(later and later[0] <= reader.fsynced_to)
        if scans_all or (verifies_fsynced and not _passes_crc(segment_path(directory, base, LOG))):
            is_trusted = False
        facts = _facts_from_indexes(directory, base, *later[:1]) if is_trusted else None
        segments.append(facts or reader.read(base, later))
        if reader.is_truncated:
            break
    reader.check_end(segments)
    if list(epochs) != known or (persisted is None and segments[-1].next_offset > bases[0]):
        reader.dirty_paths += [epochs.write(directory), directory]
    if limits.fsynced_reads_only:
        # Recovered batches may only be in the page cache, but consumers must not read data that is not durable.
        for path in reader.dirty_paths:
            sync_file(path)
        reader.dirty_paths.clear()
    active = segments.pop()
    closed = [ClosedSegment.of(directory, facts) for facts in segments]
    recovered = RecoveredLog(
        closed=closed,
        active=active,
        producers=_producer_states(directory, closed, active, now_ms),
        epochs=epochs,
        leader_epoch=leader_epoch,
        log_start_offset=log_start_offset,
        recovery_point=active.next_offset if is_clean or limits.fsynced_reads_only else reader.fsynced_to,
        dirty_paths=reader.dirty_paths,
        is_state_saved=is_clean and not reader.dirty_paths,
        active_since_ms=_active_since_ms(directory, active, now_ms),
    )
    return OpenLog(PartitionLog(directory, files, limits, recovered), reader.truncated_bytes)


@dataclass(slots=True)
class _LogReader:
    """Scans and repairs the segments of one log. `fsynced_to` is the recovery point, 0 if that is unknown.
    `dirty_paths` are files that may not be durable yet."""

    directory: Path
    recovery_point: int | None
    epochs: LeaderEpochs
    newest_epoch: int
    repairs_corruption: bool
    verifies_fsynced: bool
    truncated_bytes: int = 0
    is_truncated: bool = False
    dirty_paths: list[Path] = field(default_factory=list)

    @property
    def fsynced_to(self) -> int:
        return self.recovery_point or 0

    def read(self, base: int, later: list[int]) -> SegmentFacts:
        """Scans one segment, rebuilds its indexes (those of the last segment only in memory) and returns the facts
        about it. At a fault above the recovery point, truncates the log; below it, repairs the segment.

        Args:
            base: base offset of the segment.
            later: base offsets of the segments that follow.

        Raises:
            LogDamaged: the segment is corrupt below the recovery point, and a repair is not allowed.
        """
        following = later[0] if later else None
        expected = ScanExpectations(
            self.epochs,
            self.newest_epoch,
            self.fsynced_to,
            following,
            may_have_holes=self.recovery_point is None and following is not None,
            verifies_fsynced=self.verifies_fsynced,
        )
        path = segment_path(self.directory, base, LOG)
        scan = _scan(path, base, expected)
        if scan.fault and scan.facts.next_offset < self.fsynced_to:
            where = f"{scan.fault} at byte {scan.facts.size}, after offset {scan.facts.next_offset - 1}"
            self._check_may_repair(path, where)
            repair_segment(
                self.directory,
                base,
                following,
                scan.fault,
                self.epochs.at(base if following is None else following - 1),
            )
            scan = _scan(path, base, replace(expected, may_have_holes=True))
        if following is not None and scan.facts.next_offset < following and not scan.fault:
            scan = self._handle_early_end(path, scan, following)
        if scan.fault:
            self.truncated_bytes += truncate_log(self.directory, base, scan, later)
            self.is_truncated = True
        if following is not None:
            write_indexes(self.directory, scan.facts)
        suffixes = (LOG, *(INDEX_SUFFIXES if following is not None else ()))
        if scan.facts.size:
            self.dirty_paths += [self.directory, *(segment_path(self.directory, base, suffix) for suffix in suffixes)]
        return scan.facts

    def _handle_early_end(self, path: Path, scan: ScanResult, following: int) -> ScanResult:
        next_offset = scan.facts.next_offset
        if next_offset >= self.fsynced_to:
            return ScanResult(scan.facts, f"it ends before offset {following}, where the next segment begins")
        self._check_may_repair(path, f"it ends at offset {next_offset}, but the next segment begins at {following}")
        pad_segment(self.directory, scan.facts, following, self.epochs.at(following - 1))
        return scan

    def check_end(self, segments: list[SegmentFacts]) -> None:
        """Ensures that no fsynced offset is assigned a second time: if the log ends before the recovery point, starts a
        new segment at the recovery point and appends it to `segments`.

        Raises:
            LogDamaged: the log ends before the recovery point, and the operator has not allowed a repair.
        """
        end = segments[-1].next_offset
        if end >= self.fsynced_to:
            return
        self._check_may_repair(
            segment_path(self.directory, segments[-1].base_offset, LOG), f"the log ends at offset {end}"
        )
        last = segments[-1]
        if last.size or len(segments) > 1:
            pad_segment(self.directory, last, self.fsynced_to, self.epochs.at(self.fsynced_to - 1))
            write_indexes(self.directory, last)
        else:
            segment_path(self.directory, segments.pop().base_offset, LOG).unlink(missing_ok=True)
        path = segment_path(self.directory, self.fsynced_to, LOG)
        path.touch()
        sync_directory(self.directory)
        segments.append(SegmentFacts(self.fsynced_to, self.fsynced_to))
        logger.error(
            "log ends before its recovery point; new records begin at the recovery point directory=%s "
            "log_end_offset=%d recovery_point=%d",
            self.directory.name,
            end,
            self.fsynced_to,
        )

    def _check_may_repair(self, path: Path, reason: str) -> None:
        if not self.repairs_corruption:
            raise LogDamaged(path, reason, self.fsynced_to)


def _remove_leftovers(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name.endswith((DELETED, ".tmp")):
            path.unlink()


def _check_writable(directory: Path, bases: list[int]) -> None:
    """Checks, when the log is opened, that the log's directory and files are writable. A copy that another user
    restored is often read-only, and would otherwise fail at the first append.

    Args:
        bases: base offsets of the log's segments.

    Raises:
        PermissionError: a file or the directory is not writable.
    """
    for path in (directory, *(segment_path(directory, base, LOG) for base in bases)):
        if not os.access(path, os.W_OK) and path.exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _scan(path: Path, base_offset: int, expected: ScanExpectations) -> ScanResult:
    if not path.exists() or path.stat().st_size == 0:
        return ScanResult(SegmentFacts(base_offset, base_offset), "")
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return scan_segment(view, base_offset, expected)


def _passes_crc(path: Path) -> bool:
    """Returns whether a file consists of complete batches that pass their CRCs."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        end = 0
        for at, header in walk_batches(view):
            end = at + header.size
            if not has_valid_crc(view[at:end], header):
                return False
        return end == len(view)


def _facts_from_indexes(directory: Path, base: int, following: int | None = None) -> SegmentFacts | None:
    """Returns the facts about a segment from its indexes, without reading all of its batches; None if the indexes do
    not match the segment, so that it must be scanned.

    Args:
        base: base offset of the segment.
        following: base offset of the next segment, None for the last one.
    """
    path = segment_path(directory, base, LOG)
    size = path.stat().st_size if path.exists() else 0
    try:
        if following is None:
            return _active_facts(directory, base, size)
        return _closed_facts(directory, base, size, following)
    except RequestRefused:  # the segment is corrupt, so the indexes do not match it
        return None


def _closed_facts(directory: Path, base: int, size: int, following: int) -> SegmentFacts | None:
    """Returns the facts about a closed segment of `size` bytes from its indexes; None if they do not match the segment,
    so that it must be scanned. The offset and time indexes in the result are empty, because those of closed segments
    are searched on disk.

    Args:
        base: base offset of the segment.
        following: base offset of the next segment.
    """
    index = segment_path(directory, base, INDEX)
    for path, entry_bytes in (
        (index, OFFSET_ENTRY_BYTES),
        (segment_path(directory, base, TIME_INDEX), TIME_ENTRY_BYTES),
    ):
        if not path.exists() or path.stat().st_size % entry_bytes:
            return None
    largest = last_time_entry_in_file(segment_path(directory, base, TIME_INDEX))
    log = segment_path(directory, base, LOG)
    if largest is None or not is_in_log(log, base, size, floor_position_in_file(index, largest.offset), largest):
        return None
    if not ends_with(log, size, floor_position_in_file(index, following - base), following, largest):
        return None
    return SegmentFacts(base, following, size, largest, aborted=aborted_in(directory, base, size))


def _active_facts(directory: Path, base: int, size: int) -> SegmentFacts | None:
    """Returns the facts about the last segment, of `size` bytes, from its indexes and the batch headers after the last
    index entry; None if the indexes do not match the segment, so that it must be scanned.

    Args:
        base: base offset of the segment.
    """
    if size == 0:
        return SegmentFacts(base, base)
    try:
        index = OffsetIndex.from_bytes(segment_path(directory, base, INDEX).read_bytes(), size)
        time_index = TimeIndex.from_bytes(segment_path(directory, base, TIME_INDEX).read_bytes())
    except FileNotFoundError:
        return None
    if index is None or time_index is None or time_index.last is None:
        return None
    largest = time_index.last
    entry = index.floor(largest.offset)
    if not is_in_log(segment_path(directory, base, LOG), base, size, entry.position if entry else 0, largest):
        return None
    facts = SegmentFacts(base, base, index.last_position, largest, index, time_index)
    fd = os.open(segment_path(directory, base, LOG), os.O_RDONLY)
    try:
        for located in walk_file(fd, index.last_position, size):
            facts.add(located.header, b"")
    finally:
        os.close(fd)
    facts.aborted = aborted_in(directory, base, size)
    return facts if facts.size == size else None


def _active_since_ms(directory: Path, active: SegmentFacts, now_ms: int) -> int:
    """Returns the start time of the active segment: the largest timestamp of its first batch, as in Apache Kafka.

    The time of the broker's start, `now_ms`, is used only if the batch has no timestamp or one in the future, or if the
    segment is empty. If it were always used, a broker that restarts daily would never roll a segment by age.
    """
    if not active.size:
        return now_ms
    fd = os.open(segment_path(directory, active.base_offset, LOG), os.O_RDONLY)
    try:
        first = header_at(fd, 0, active.size)
    finally:
        os.close(fd)
    return first.max_timestamp if first is not None and 0 <= first.max_timestamp <= now_ms else now_ms


def _producer_states(directory: Path, closed: list[ClosedSegment], active: SegmentFacts, now_ms: int) -> ProducerStates:
    """Returns the state of the idempotent producers: loads the newest intact snapshot that does not lie beyond the end
    of the log, and adds the batches after it. Deletes the snapshots that cannot be used.

    Args:
        closed: the closed segments of the log.
        active: the facts about its active segment, where the log ends.
        now_ms: wall clock, the time at which the producers of the added batches count as last active.
    """
    states, covered = ProducerStates(), 0
    for offset in reversed(base_offsets(directory, SNAPSHOT)):
        path = segment_path(directory, offset, SNAPSHOT)
        loaded = ProducerStates.from_snapshot(path.read_bytes()) if offset <= active.next_offset else None
        if loaded is not None:
            states, covered = loaded, offset
            break
        path.unlink()
        # The deletion must be durable: the log may later grow past this offset with other batches.
        sync_directory(directory)
    ends = [*((segment.base_offset, segment.next_offset, segment.size) for segment in closed)]
    ends.append((active.base_offset, active.next_offset, active.size))
    for base, next_offset, size in ends:
        if next_offset > covered and size:
            _replay(segment_path(directory, base, LOG), states, covered, now_ms)
    return states


def _replay(path: Path, states: ProducerStates, from_offset: int, now_ms: int) -> None:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        for located in walk_batches(view):
            if located.header.base_offset >= from_offset:
                states.record(located.header, located.header.base_offset, now_ms)
