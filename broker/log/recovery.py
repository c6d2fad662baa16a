"""Opens the log of a partition after a clean stop or a crash.

After a clean stop the files are taken as they are. After a crash every segment that was not forced to disk before the
recovery point is read batch by batch; at the first batch that is cut off, fails its CRC or does not continue the
offsets the file is truncated and later segments are dropped, so that what remains is a prefix of what was written.
Indexes of what was read are rebuilt; those below the recovery point were forced with their segment.
"""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.log.files import OpenFiles, sync_file, sync_folder
from headrace.broker.log.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    last_time_entry_in_file,
)
from headrace.broker.log.leader_epochs import FIRST_EPOCH, LeaderEpochs, read_leader_epochs
from headrace.broker.log.partition_log import LogLimits, PartitionLog
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.scan import Scan, SegmentFacts, scan_segment, walk_batches
from headrace.broker.log.segment import (
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    ClosedSegment,
    base_offsets,
    segment_path,
    walk_file,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """`truncated_bytes` is what recovery had to let go of."""

    log: PartitionLog
    truncated_bytes: int


def open_log(
    folder: Path,
    files: OpenFiles,
    limits: LogLimits,
    *,
    is_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    leader_epoch: int,
    had_epochs: bool = True,
    now_ms: int,
) -> OpenLog:
    """Opens, and if need be repairs, the log in `folder`, which must exist.

    Args:
        leader_epoch: of what will be appended; all that is there is of it or of older ones.
        had_epochs: whether whoever wrote the log counted epochs; else all of it is of the first one.
    """
    _remove_leftovers(folder)
    bases = base_offsets(folder) or [0]
    on_file = read_leader_epochs(folder)
    known = [(FIRST_EPOCH, bases[0])] if on_file is None else list(on_file)
    epochs = LeaderEpochs(known)
    if on_file is None and had_epochs:
        is_clean, recovery_point = False, 0
    segments: list[SegmentFacts] = []
    truncated = 0
    for at, base in enumerate(bases):
        following = bases[at + 1] if at + 1 < len(bases) else None
        if is_clean or (following is not None and following <= recovery_point):
            segments.append(_trusted(folder, base, following, epochs, leader_epoch))
            continue
        scan, size = _scan(segment_path(folder, base, LOG), base, epochs, leader_epoch)
        if not scan.fault and following not in (None, scan.facts.next_offset):
            scan = Scan(scan.facts, f"the next segment begins at {following}")
        segments.append(scan.facts)
        if scan.fault:
            truncated += _truncate(folder, base, scan, size, bases[at + 1 :])
        if following is not None:
            _write_indexes(folder, scan.facts)
        if size and limits.forced_reads_only:
            # What was read may so far only be in the page cache, and consumers are about to see it.
            sync_file(segment_path(folder, base, LOG))
        if scan.fault:
            break
    if list(epochs) != known or (on_file is None and segments[-1].next_offset > bases[0]):
        sync_file(epochs.write(folder))
    active = segments.pop()
    closed = [
        ClosedSegment(folder, facts.base_offset, facts.next_offset, facts.size, facts.largest) for facts in segments
    ]
    log = PartitionLog(
        folder,
        files,
        limits,
        closed=closed,
        active=active,
        producers=_producer_states(folder, closed, active, now_ms),
        epochs=epochs,
        leader_epoch=leader_epoch,
        log_start_offset=log_start_offset,
        recovery_point=active.next_offset if is_clean or limits.forced_reads_only else recovery_point,
        is_saved=is_clean,
        now_ms=now_ms,
    )
    return OpenLog(log, truncated)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.endswith((DELETED, ".tmp")):
            path.unlink()


def _scan(path: Path, base_offset: int, epochs: LeaderEpochs, newest_epoch: int) -> tuple[Scan, int]:
    if not path.exists() or path.stat().st_size == 0:
        return Scan(SegmentFacts(base_offset, base_offset), ""), 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return scan_segment(view, base_offset, epochs, newest_epoch), len(view)


def _truncate(folder: Path, base: int, scan: Scan, size: int, later: list[int]) -> int:
    """Cuts a segment behind its last good batch and drops the later ones; returns the bytes lost."""
    path = segment_path(folder, base, LOG)
    lost = size - scan.facts.size
    os.truncate(path, scan.facts.size)
    sync_file(path)
    for dropped in later:
        lost += segment_path(folder, dropped, LOG).stat().st_size
        for suffix in SEGMENT_SUFFIXES:
            segment_path(folder, dropped, suffix).unlink(missing_ok=True)
    sync_folder(folder)
    logger.warning(
        "log truncated folder=%s offset=%d bytes=%d segments_dropped=%d reason=%s",
        folder.name,
        scan.facts.next_offset,
        lost,
        len(later),
        scan.fault,
    )
    return lost


def _trusted(folder: Path, base: int, following: int | None, epochs: LeaderEpochs, newest_epoch: int) -> SegmentFacts:
    """The facts of a segment whose bytes are known to be good; indexes that do not fit are rebuilt."""
    path = segment_path(folder, base, LOG)
    size = path.stat().st_size if path.exists() else 0
    facts = _indexed(folder, base, size) if following is None else _closed(folder, base, size, following)
    if facts is not None:
        return facts
    scan, _ = _scan(path, base, epochs, newest_epoch)
    _write_indexes(folder, scan.facts)
    return scan.facts


def _closed(folder: Path, base: int, size: int, following: int) -> SegmentFacts | None:
    """A closed segment needs its indexes as files only; None when they cannot be right."""
    for suffix, entry_bytes in ((INDEX, OFFSET_ENTRY_BYTES), (TIME_INDEX, TIME_ENTRY_BYTES)):
        path = segment_path(folder, base, suffix)
        if not path.exists() or path.stat().st_size % entry_bytes:
            return None
    largest = last_time_entry_in_file(segment_path(folder, base, TIME_INDEX))
    return SegmentFacts(base, following, size, largest) if largest is not None else None


def _indexed(folder: Path, base: int, size: int) -> SegmentFacts | None:
    """The last segment: its indexes are read, and the batches behind their last entry."""
    if size == 0:
        return SegmentFacts(base, base)
    try:
        index = OffsetIndex.from_bytes(segment_path(folder, base, INDEX).read_bytes(), size)
        time_index = TimeIndex.from_bytes(segment_path(folder, base, TIME_INDEX).read_bytes())
    except FileNotFoundError:
        return None
    if index is None or time_index is None or time_index.last is None:
        return None
    facts = SegmentFacts(base, base, index.last_position, time_index.last, index, time_index)
    fd = os.open(segment_path(folder, base, LOG), os.O_RDONLY)
    try:
        for placed in walk_file(fd, index.last_position, size):
            facts.add(placed.header, placed.header.size)
    finally:
        os.close(fd)
    return facts if facts.size == size else None


def _write_indexes(folder: Path, facts: SegmentFacts) -> None:
    facts.complete_time_index()
    segment_path(folder, facts.base_offset, INDEX).write_bytes(facts.index.to_bytes())
    segment_path(folder, facts.base_offset, TIME_INDEX).write_bytes(facts.time_index.to_bytes())


def _producer_states(folder: Path, closed: list[ClosedSegment], active: SegmentFacts, now_ms: int) -> ProducerStates:
    """The newest snapshot that is good and within the log, and what was appended after it."""
    states, covered = ProducerStates(), 0
    for offset in reversed(base_offsets(folder, SNAPSHOT)):
        path = segment_path(folder, offset, SNAPSHOT)
        loaded = ProducerStates.from_snapshot(path.read_bytes()) if offset <= active.next_offset else None
        if loaded is not None:
            states, covered = loaded, offset
            break
        path.unlink()
    ends = [*((segment.base_offset, segment.next_offset, segment.size) for segment in closed)]
    ends.append((active.base_offset, active.next_offset, active.size))
    for base, next_offset, size in ends:
        if next_offset > covered and size:
            _replay(segment_path(folder, base, LOG), states, covered, now_ms)
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
