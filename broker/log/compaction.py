"""Compaction of closed segments: of each key the newest record stays, at the offset that it has.

What is decided and written here may run in a thread, since nobody writes to a closed segment;
`PartitionLog.put_in_place` then takes the new files into the log. Rules, as Kafka's:

- Offsets and order never change. A batch keeps its place, its producer and its codec; one without a record left goes,
  but for the last one of a segment, which says where it ends, and the last ones of each idempotent producer.
- A record without a value (a tombstone) takes the older ones of its key with it. It stays itself for
  `delete.retention.ms` after it was met here first, so that whoever reads from the start sees it; until when is
  stamped into its batch (attribute bit 6, in place of the base timestamp, KIP-534).
- A record without a key is taken out, and so is all that was aborted. The marker of a transaction goes as a tombstone
  does once nothing is left of that; nothing is touched from where a transaction is still open.

Several small segments become one. Files: `<base>.log.cleaned` while it is written, which the next start removes, and
`<base>.log.swap` from when it stands for several segments until those are gone, which the next start finishes.
`begin_replacing` and `take_place` change names at once; between them and afterwards a thread has time to force them,
and to take away what was replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.log.files import FULL, sync_directory, write_fully
from headrace.broker.log.opened import opened
from headrace.broker.log.scan import PlacedBatch, SegmentFacts
from headrace.broker.log.segment import (
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    ClosedSegment,
    base_offsets,
    put_away,
    segment_path,
    walk_file,
)
from headrace.broker.log.transactions import Outcomes
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    BatchHeader,
    Record,
    has_valid_crc,
    read_batch_header,
    rebuilt_batch,
)

CLEANED, SWAP = ".cleaned", ".swap"
KEYS_MAX = 500_000
"""Of one pass, some 70 MB; what lies behind the last of them is for the next one."""
KEY_BYTES = 16
"""A longer key is known by its hash."""
SPAN_MAX = (1 << 31) - 1
"""Offsets that one segment's indexes can tell."""
BURST_S = 0.002
"""Of work in a thread, after which it rests as long: the event loop wants the interpreter too."""
WRITE_BYTES = 1024 * 1024

Newest = Mapping[bytes, int]
"""Of each key, in short, the newest record's offset."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest records of all keys in [start, end) of a log."""

    newest: Newest
    end: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays beside the newest record of each key.

    Args:
        tombstones_until_ms: how long those stay that are met for the first time.
        now_ms: those that were to stay until before this go.
        kept_ends: the last offsets of batches that stay, emptied if need be: idempotent producers' last ones.
    """

    tombstones_until_ms: int
    now_ms: int
    kept_ends: AbstractSet[int]


class Interrupted(Exception):
    """Nobody wants the log compacted any more."""


class NotReplaced(OSError):
    """There was no space to put what was written in its place; the log is as before."""


class StillStanding(OSError):
    """The name by which a start knows what was written of a group is there: there was no space to remove files."""


class Pace:
    """Makes a thread rest for as long as it worked, and end when it is wanted no more."""

    def __init__(
        self,
        is_wanted: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_wanted, self._clock, self._rest = is_wanted, clock, rest
        self._since_s = clock()

    def keep(self) -> None:
        """
        Raises:
            Interrupted: it is wanted no more.
        """
        if not self._is_wanted():
            raise Interrupted
        worked_s = self._clock() - self._since_s
        if worked_s >= BURST_S:
            self._rest(worked_s)
            self._since_s = self._clock()


def newest_records(segments: Sequence[ClosedSegment], start: int, outcomes: Outcomes, pace: Pace) -> Found:
    """Reads which records of [start, the segments' end) are the newest of their keys, KEYS_MAX of them at most.

    Raises:
        CorruptBatch: a batch cannot be opened.
        OSError: a segment cannot be read.
    """
    newest: dict[bytes, int] = {}
    for segment in segments:
        if segment.next_offset <= start:
            continue
        for placed, batch in _batches(segment):
            header = placed.header
            if header.last_offset < start or header.attributes & CONTROL or outcomes.is_aborted(header):
                continue
            if len(newest) >= KEYS_MAX:
                return Found(newest, header.base_offset)
            for offset, _, key, _, _ in opened(batch, is_our_own=True):
                if key is not None and offset >= start:
                    newest[_short(key)] = offset
            pace.keep()
    return Found(newest, segments[-1].next_offset)


def in_groups(segments: Sequence[ClosedSegment], bytes_max: int) -> Iterator[tuple[ClosedSegment, ...]]:
    """Segments that become one each: as many as fit one by size and by offsets."""
    group: list[ClosedSegment] = []
    for segment in segments:
        is_full = bool(group) and (
            sum(each.size for each in group) + segment.size > bytes_max
            or segment.next_offset - group[0].base_offset > SPAN_MAX
        )
        if is_full:
            yield tuple(group)
            group = []
        group.append(segment)
    if group:
        yield tuple(group)


def write_cleaned(
    group: Sequence[ClosedSegment], found: Found, rules: Rules, outcomes: Outcomes, pace: Pace
) -> SegmentFacts | None:
    """Writes and forces to disk what stays of a group; returns what is in it, None where nothing would change.

    Args:
        outcomes: the same for all groups of a log, one after the other from its start on.

    Raises:
        CorruptBatch: a batch cannot be opened.
        OSError: it could not be read or written.
    """
    first = group[0]
    facts = SegmentFacts(first.base_offset, first.base_offset)
    path = _cleaned(first)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        is_changed, pieces, written = len(group) > 1, [], 0
        for segment in group:
            for placed, batch in _batches(segment):
                is_last = segment is group[-1] and placed.position + placed.header.size == segment.size
                kept = cleaned_batch(batch, placed.header, found, rules, outcomes, must_stay=is_last)
                is_changed = is_changed or kept is not batch
                if kept is not None:
                    outcomes.keep(placed.header)
                    facts.add(read_batch_header(kept), kept)
                    pieces.append(kept)
                if facts.size - written >= WRITE_BYTES:
                    write_fully(fd, [b"".join(pieces)], written)
                    pieces, written = [], facts.size
                pace.keep()
        if not is_changed:
            path.unlink()
            return None
        write_fully(fd, [b"".join(pieces)], written)
        os.fsync(fd)
    finally:
        os.close(fd)
    facts.next_offset = group[-1].next_offset
    return facts


def cleaned_batch(
    batch: bytes, header: BatchHeader, found: Found, rules: Rules, outcomes: Outcomes, *, must_stay: bool
) -> bytes | None:
    """What stays of a batch: the very same object where all of it does, None where nothing.

    Raises:
        CorruptBatch: it cannot be opened.
    """
    if header.attributes & CONTROL:
        must_stay = must_stay or header.last_offset >= found.end
        return batch if outcomes.is_needed(header) or must_stay else _cleaned_marker(batch, header, rules)
    if header.last_offset >= found.end:
        return batch
    must_stay = must_stay or header.last_offset in rules.kept_ends
    records = opened(batch, is_our_own=True)
    has_horizon = bool(header.attributes & DELETE_HORIZON)
    keeps_tombstones = not has_horizon or header.base_timestamp >= rules.now_ms
    is_aborted = outcomes.is_aborted(header)
    kept = [record for record in records if not is_aborted and _stays(record, found.newest, keeps_tombstones)]
    if not kept:
        return (batch if not records else rebuilt_batch(header, ())) if must_stay else None
    if not has_horizon and any(value is None for _, _, _, value, _ in kept):
        return rebuilt_batch(header, kept, delete_horizon_ms=rules.tombstones_until_ms)
    return batch if len(kept) == len(records) else rebuilt_batch(header, kept)


def _cleaned_marker(batch: bytes, header: BatchHeader, rules: Rules) -> bytes | None:
    """Of a marker whose transaction has nothing left: whoever is reading that just now still meets it."""
    if header.attributes & DELETE_HORIZON:
        return batch if header.base_timestamp >= rules.now_ms else None
    return rebuilt_batch(header, opened(batch, is_our_own=True), delete_horizon_ms=rules.tombstones_until_ms)


def _stays(record: Record, newest: Newest, keeps_tombstones: bool) -> bool:
    offset, _, key, value, _ = record
    if key is None or newest.get(_short(key), -1) > offset:
        return False
    return value is not None or keeps_tombstones


def _short(key: bytes) -> bytes:
    """At most one byte longer than KEY_BYTES, so that no key is taken for another one's hash."""
    return key if len(key) <= KEY_BYTES else hashlib.blake2b(key, digest_size=KEY_BYTES + 1).digest()


def _batches(segment: ClosedSegment) -> Iterator[tuple[PlacedBatch, bytes]]:
    fd = os.open(segment.path(), os.O_RDONLY)
    try:
        for placed in walk_file(fd, 0, segment.size):
            batch = os.pread(fd, placed.header.size, placed.position)
            if not has_valid_crc(memoryview(batch), placed.header):
                # Written anew it would have a checksum that is right.
                raise CorruptBatch(f"offset {placed.header.base_offset}: the batch fails its CRC")
            yield placed, batch
    finally:
        os.close(fd)


def _cleaned(first: ClosedSegment) -> Path:
    path = first.path(LOG)
    return path.with_name(path.name + CLEANED)


def discard(group: Sequence[ClosedSegment]) -> None:
    """Removes what was written of a group that is not as it was any more."""
    _cleaned(group[0]).unlink(missing_ok=True)


def begin_replacing(group: Sequence[ClosedSegment]) -> None:
    """Gives what was written of several segments the name by which a start knows it.

    Raises:
        OSError: the files are as before.
    """
    if len(group) > 1:
        _cleaned(group[0]).rename(_standing(group[0]))


def force_begun(group: Sequence[ClosedSegment]) -> None:
    """Forces that name, before the others lose theirs.

    Raises:
        OSError: nothing is certain, and the log must not change any more.
    """
    if len(group) > 1:
        sync_directory(group[0].directory)


def take_place(group: Sequence[ClosedSegment]) -> None:
    """Gives what was written of a group the name of the first, whose indexes are gone afterwards.

    Raises:
        OSError: the log is as before, but for these; see `take_back`.
    """
    first = group[0]
    if len(group) > 1:
        _take_place(_standing(first), first.base_offset)
    else:
        _remove_indexes(first.directory, first.base_offset)
        _cleaned(first).replace(first.path(LOG))


def take_back(group: Sequence[ClosedSegment]) -> None:
    """Removes what could not be put in the place of a group, and has no start put it there later.

    Raises:
        StillStanding: until this is done none of the group must be dropped.
        OSError: nothing is certain, and the log must not change any more.
    """
    with _still_standing():
        discard(group)
        _standing(group[0]).unlink(missing_ok=True)
    sync_directory(group[0].directory)


def end_replacing(group: Sequence[ClosedSegment]) -> list[Path]:
    """Takes the other segments of a group away, forces the names, and then removes the one that a start would finish.

    At every moment, and whatever of this and of `take_place` is on disk, a start finds either all of the group or what
    was written. Should the name come back, it holds what is there; before anything else is named or dropped its end is
    forced.

    Returns:
        What those files were renamed to, or may have been: to be unlinked.

    Raises:
        StillStanding: until this is done what is in the place of the group must not be dropped.
        OSError: nothing is certain, and the log must not change any more.
    """
    first, *others = group
    paths = [segment.path(suffix) for segment in others for suffix in SEGMENT_SUFFIXES]
    with _still_standing():
        for path in paths:
            put_away(path)
    sync_directory(first.directory)
    if others:
        with _still_standing():
            _standing(first).unlink()
    return [path.with_name(path.name + DELETED) for path in paths]


@contextlib.contextmanager
def _still_standing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StillStanding(error.errno, error.strerror) from error


def _standing(first: ClosedSegment) -> Path:
    path = first.path(LOG)
    return path.with_name(path.name + SWAP)


def _take_place(standing: Path, base: int) -> None:
    """Gives a file that stands for several segments the name of the first besides its own."""
    path = segment_path(standing.parent, base, LOG)
    link = path.with_name(path.name + ".tmp")
    link.unlink(missing_ok=True)
    os.link(standing, link)
    try:
        _remove_indexes(standing.parent, base)
        link.replace(path)
    finally:
        # A rename between two names of one file, as a start may meet them, leaves both (POSIX).
        link.unlink(missing_ok=True)


def _remove_indexes(directory: Path, base: int) -> None:
    for suffix in INDEX_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)


def finish_replacing(directory: Path) -> None:
    """Finishes at the start what a crash cut short: files that are not whole go, those that stand for others do."""
    for path in sorted(directory.iterdir()):
        if path.name.endswith(LOG + CLEANED):
            path.unlink()
        elif path.name.endswith(LOG + SWAP):
            _finish(directory, path)


def _finish(directory: Path, path: Path) -> None:
    base = int(path.name[:20])
    end = base
    fd = os.open(path, os.O_RDONLY)
    try:
        for placed in walk_file(fd, 0, os.fstat(fd).st_size):
            end = placed.header.last_offset + 1
    finally:
        os.close(fd)
    for other in base_offsets(directory):
        if base < other < end:
            for suffix in SEGMENT_SUFFIXES:
                segment_path(directory, other, suffix).unlink(missing_ok=True)
    _take_place(path, base)
    sync_directory(directory)
    path.unlink()  # should it come back, see `end_replacing`
