"""Opens the log of a partition after a clean stop or a crash.

After a clean stop the files are taken as they are. After a crash everything above the recovery point, up to which the
log had been forced to disk, is read batch by batch; at the first batch that is cut off, fails its CRC or does not
continue the offsets the log is cut, so that what remains is a prefix of what was written. Below the recovery point
nothing can be missing but by damage: that stops the start, or is set aside by whoever chose so (see `damage`).

Whatever does not begin a batch there, offsets that are missing between two of them and epochs of any kind are taken
below the recovery point as they are: compaction leaves such logs. A segment that is closed ends where the next one
begins all the same; compaction keeps its last batch, emptied if need be, and what was set aside is made up for by one.
So a segment that ends early has lost its last batches, be they whole.

Logs that the broker itself goes by are read whole at every start, and each batch must pass its CRC wherever it is:
their readers check it for messages, and nobody would for these.

Indexes of what was read are rebuilt, and so are those that do not fit their log.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.broker.errors import LogDamaged
from headrace.broker.log.compaction import finish_replacing
from headrace.broker.log.damage import cut, fill, mend, remove_outlived
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
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.scan import Expected, Scan, SegmentFacts, scan_segment, walk_batches
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
    ends_at,
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
    """`truncated_bytes` is what recovery had to let go of."""

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
    had_epochs: bool = True,
    sets_aside: bool = False,
    checks_forced: bool = False,
    now_ms: int,
) -> OpenLog:
    """Opens, and if need be repairs, the log in `directory`, which must exist.

    Args:
        recovery_point: the offset up to which it was forced to disk, None where that is not known.
        leader_epoch: of what will be appended; all that is there is of it or of older ones.
        had_epochs: whether whoever wrote the log counted epochs; else all of it is of the first one.
        sets_aside: whether what is damaged below the recovery point is set aside.
        checks_forced: whether a batch below it that fails its CRC is damage, too.

    Raises:
        LogDamaged: it is damaged there, and nothing is to be set aside.
        OSError: some of it cannot be read or written.
    """
    _remove_leftovers(directory)
    finish_replacing(directory)
    remove_outlived(directory, log_start_offset)
    bases = base_offsets(directory) or [0]
    _check_writable(directory, bases)
    on_file = read_leader_epochs(directory)
    known = [(FIRST_EPOCH, bases[0])] if on_file is None else list(on_file)
    epochs = LeaderEpochs(known)
    reading = _Reading(directory, recovery_point, epochs, leader_epoch, sets_aside, checks_forced)
    is_read_whole = on_file is None and had_epochs
    segments: list[SegmentFacts] = []
    for at, base in enumerate(bases):
        later = bases[at + 1 :]
        is_trusted = is_clean or bool(later and later[0] <= reading.forced_to)
        if is_read_whole or (checks_forced and not _passes_crc(segment_path(directory, base, LOG))):
            is_trusted = False
        facts = _trusted(directory, base, *later[:1]) if is_trusted else None
        segments.append(facts or reading.read(base, later))
        if reading.is_cut:
            break
    reading.check_end(segments)
    if list(epochs) != known or (on_file is None and segments[-1].next_offset > bases[0]):
        reading.unforced += [epochs.write(directory), directory]
    if limits.forced_reads_only:
        # What was read may so far only be in the page cache, and consumers are about to see it.
        for path in reading.unforced:
            sync_file(path)
        reading.unforced.clear()
    active = segments.pop()
    closed = [ClosedSegment.of(directory, facts) for facts in segments]
    log = PartitionLog(
        directory,
        files,
        limits,
        closed=closed,
        active=active,
        producers=_producer_states(directory, closed, active, now_ms),
        epochs=epochs,
        leader_epoch=leader_epoch,
        log_start_offset=log_start_offset,
        recovery_point=active.next_offset if is_clean or limits.forced_reads_only else reading.forced_to,
        unforced=reading.unforced,
        is_saved=is_clean and not reading.unforced,
        active_since_ms=_begun_ms(directory, active, now_ms),
    )
    return OpenLog(log, reading.truncated_bytes)


@dataclass(slots=True)
class _Reading:
    """What reading the segments of a log has come to. `unforced` are files that may not be on disk as they are."""

    directory: Path
    recovery_point: int | None
    epochs: LeaderEpochs
    newest_epoch: int
    sets_aside: bool
    checks_forced: bool
    truncated_bytes: int = 0
    is_cut: bool = False
    unforced: list[Path] = field(default_factory=list)

    @property
    def forced_to(self) -> int:
        return self.recovery_point or 0

    def read(self, base: int, later: list[int]) -> SegmentFacts:
        """Reads one segment, cuts the log if it ends in it, rebuilds the indexes.

        Raises:
            LogDamaged: it is damaged below the recovery point.
        """
        following = later[0] if later else None
        expected = Expected(
            self.epochs,
            self.newest_epoch,
            self.forced_to,
            following,
            may_have_holes=self.recovery_point is None and following is not None,
            checks_forced=self.checks_forced,
        )
        path = segment_path(self.directory, base, LOG)
        scan = _scan(path, base, expected)
        if scan.fault and scan.facts.next_offset < self.forced_to:
            where = f"{scan.fault} at byte {scan.facts.size}, behind offset {scan.facts.next_offset - 1}"
            self._may_set_aside(path, where)
            mend(
                self.directory,
                base,
                following,
                scan.fault,
                self.epochs.at(base if following is None else following - 1),
            )
            scan = _scan(path, base, replace(expected, may_have_holes=True))
        if following is not None and scan.facts.next_offset < following and not scan.fault:
            scan = self._ending_early(path, scan, following)
        if scan.fault:
            self.truncated_bytes += cut(self.directory, base, scan, later)
            self.is_cut = True
        if following is not None:
            write_indexes(self.directory, scan.facts)
        suffixes = (LOG, *(INDEX_SUFFIXES if following is not None else ()))
        if scan.facts.size:
            self.unforced += [self.directory, *(segment_path(self.directory, base, suffix) for suffix in suffixes)]
        return scan.facts

    def _ending_early(self, path: Path, scan: Scan, following: int) -> Scan:
        next_offset = scan.facts.next_offset
        if next_offset >= self.forced_to:
            return Scan(scan.facts, f"the next segment begins at {following}")
        self._may_set_aside(path, f"it ends at offset {next_offset} and the next segment begins at {following}")
        fill(self.directory, scan.facts, following, self.epochs.at(following - 1))
        return scan

    def check_end(self, segments: list[SegmentFacts]) -> None:
        """Sees to it that no offset is given out again that was forced to disk.

        Raises:
            LogDamaged: the log ends before it.
        """
        end = segments[-1].next_offset
        if end >= self.forced_to:
            return
        self._may_set_aside(
            segment_path(self.directory, segments[-1].base_offset, LOG), f"the log ends at offset {end}"
        )
        last = segments[-1]
        if last.size or len(segments) > 1:
            fill(self.directory, last, self.forced_to, self.epochs.at(self.forced_to - 1))
            write_indexes(self.directory, last)
        else:
            segment_path(self.directory, segments.pop().base_offset, LOG).unlink(missing_ok=True)
        path = segment_path(self.directory, self.forced_to, LOG)
        path.touch()
        sync_directory(self.directory)
        segments.append(SegmentFacts(self.forced_to, self.forced_to))
        logger.error("log ends early directory=%s offset=%d log_goes_on=%d", self.directory.name, end, self.forced_to)

    def _may_set_aside(self, path: Path, reason: str) -> None:
        if not self.sets_aside:
            raise LogDamaged(path, reason, self.forced_to)


def _remove_leftovers(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name.endswith((DELETED, ".tmp")):
            path.unlink()


def _check_writable(directory: Path, bases: list[int]) -> None:
    """A copy that was put back by another user can often be read, and would be served until somebody writes to it.

    Raises:
        PermissionError: this process may not.
    """
    for path in (directory, *(segment_path(directory, base, LOG) for base in bases)):
        if not os.access(path, os.W_OK) and path.exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _scan(path: Path, base_offset: int, expected: Expected) -> Scan:
    if not path.exists() or path.stat().st_size == 0:
        return Scan(SegmentFacts(base_offset, base_offset), "")
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return scan_segment(view, base_offset, expected)


def _passes_crc(path: Path) -> bool:
    """Does every batch of a file? What is no batch ends the reading, and is for the rest of recovery to notice."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return all(has_valid_crc(view[at : at + header.size], header) for at, header in walk_batches(view))


def _trusted(directory: Path, base: int, following: int | None = None) -> SegmentFacts | None:
    """The facts of a segment whose bytes are known to be good; None when its indexes do not fit."""
    path = segment_path(directory, base, LOG)
    size = path.stat().st_size if path.exists() else 0
    return _indexed(directory, base, size) if following is None else _closed(directory, base, size, following)


def _closed(directory: Path, base: int, size: int, following: int) -> SegmentFacts | None:
    """A closed segment needs its indexes as files only; None when they cannot be right."""
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
    if not ends_at(log, size, floor_position_in_file(index, following - base), following, largest):
        return None
    return SegmentFacts(base, following, size, largest, aborted=aborted_in(directory, base, size))


def _indexed(directory: Path, base: int, size: int) -> SegmentFacts | None:
    """The last segment: its indexes are read, and the batches behind their last entry."""
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
        for placed in walk_file(fd, index.last_position, size):
            facts.add(placed.header, b"")
    finally:
        os.close(fd)
    facts.aborted = aborted_in(directory, base, size)
    return facts if facts.size == size else None


def _begun_ms(directory: Path, active: SegmentFacts, now_ms: int) -> int:
    """When the active segment was begun: its first batch's timestamp, as Apache Kafka has it.

    Not the time of the start, or a broker that is started every day would never close a segment by its age. Where the
    batch has no time, or one that is still to come, nothing better than the start is known.
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
    """The newest snapshot that is good and within the log, and what was appended after it."""
    states, covered = ProducerStates(), 0
    for offset in reversed(base_offsets(directory, SNAPSHOT)):
        path = segment_path(directory, offset, SNAPSHOT)
        loaded = ProducerStates.from_snapshot(path.read_bytes()) if offset <= active.next_offset else None
        if loaded is not None:
            states, covered = loaded, offset
            break
        path.unlink()
        # It must not come back when the log has grown past it with other batches.
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
        for placed in walk_batches(view):
            if placed.header.base_offset >= from_offset:
                states.record(placed.header, placed.header.base_offset, now_ms)
