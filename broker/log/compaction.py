"""Compaction of closed segments: retains the newest record of each key, at its original offset.

The functions here may run in a thread, since closed segments are never written to; `PartitionLog.replace_segments` then
installs the new files. The rules are Kafka's:

- Offsets and order never change. A batch retains its base offset, producer and codec. A batch without remaining records
  is removed, except the last one of a segment, which marks the segment's end, and the last ones of each idempotent
  producer.
- A record without a value (a tombstone) removes older records of its key. It stays for `delete.retention.ms` after the
  first compaction that retains it, so that consumers reading from the start see it. The deadline is stored in its batch
  (attribute bit 6, in place of the base timestamp, KIP-534).
- Records without a key and aborted records are removed. A transaction's marker is removed like a tombstone once none of
  the transaction's batches are left. Nothing is compacted from the first open transaction on.

Several small segments, a group, are merged into one. A segment of which only one batch without records remains is
merged with the next group in the same compaction. Otherwise a log with few keys would keep one such batch per segment.
A swap replaces the segments of a group by their compacted file:

- The compacted file is written as `<base>.log.cleaned`; the next start deletes such a file.
- `stage_swap` renames it to `<base>.log.swap` if the group has several segments; then a start completes the swap.
- `install_swap` gives it the name of the first segment.
- `complete_swap` removes the other segments, and then the name `.swap`.

`stage_swap` and `install_swap` run in the event loop: they only rename or link files and delete indexes. The fsyncs and
deletions between and after them run in a thread.
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

from headrace.broker.errors import RequestRefused, StartError
from headrace.broker.log.decoding import decode_records
from headrace.broker.log.files import DISK_FULL_ERRNOS, sync_directory, write_fully
from headrace.broker.log.scan import LocatedBatch, SegmentFacts
from headrace.broker.log.segment import (
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    ClosedSegment,
    base_offsets,
    rename_to_deleted,
    segment_path,
    walk_file,
)
from headrace.broker.log.transactions import TransactionOutcomes
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    BatchHeader,
    Record,
    has_valid_crc,
    read_batch_header,
    rebuild_batch,
)

CLEANED, SWAP = ".cleaned", ".swap"
KEYS_MAX = 500_000
"""Number of keys in memory, about 70 MB, at which one compaction of a log reads no further batch; the next compaction
continues there. The last batch may exceed it."""
KEY_BYTES = 16
"""Longest key that an offset map contains unchanged; a longer key is replaced by a hash."""
OFFSET_SPAN_MAX = (1 << 31) - 1
"""Largest range of offsets in one segment: its index entries have 32 bits for an offset."""
BURST_S = 0.002
"""A thread that has worked for this long sleeps equally long, so that the event loop gets the interpreter lock."""
WRITE_BYTES = 1024 * 1024

NewestOffsets = Mapping[bytes, int]
"""Newest offset of each key, by the key's digest (see `_key_digest`)."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """The newest offset of each key, among the records that a compaction of a log has read, which are below the offset
    `end`. Batches that reach `end` are not compacted."""

    newest: NewestOffsets
    end: int


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """Determines which records and batches compaction retains besides the newest record of each key.

    Args:
        tombstones_until_ms: deadline given to tombstones, and to markers of transactions without remaining batches, if
            they have none yet.
        now_ms: tombstones and markers with a deadline before this time are removed.
        retained_last_offsets: last offsets of the batches that stay even without records, because they are the last
            batches of idempotent producers.
    """

    tombstones_until_ms: int
    now_ms: int
    retained_last_offsets: AbstractSet[int]


class CompactionCancelled(Exception):
    """The compaction ended early, because the topic was deleted or the broker is stopping."""


class NoSpaceForSwap(OSError):
    """The disk is too full to put a compacted file in the place of its segments; the log is unchanged except for
    indexes."""


class SwapPending(OSError):
    """A swap, which replaces segments by their compacted file, cannot be finished yet: the disk is too full to rename
    or delete files. The compacted file still exists, as `.swap` or, for a single segment, as `.cleaned`."""


class DutyCycle:
    """Throttles a thread: after each BURST_S of work, the thread sleeps as long as it worked. Ends the work with the
    exception CompactionCancelled once `should_continue` returns False. `clock` and `pause` are functions for the time
    and for sleeping, in seconds."""

    def __init__(
        self,
        should_continue: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._should_continue, self._clock, self._pause = should_continue, clock, pause
        self._since_s = clock()

    def pause_if_due(self) -> None:
        """Sleeps if the thread has worked for BURST_S since its last sleep.

        Raises:
            CompactionCancelled: the work is no longer needed.
        """
        if not self._should_continue():
            raise CompactionCancelled
        worked_s = self._clock() - self._since_s
        if worked_s >= BURST_S:
            self._pause(worked_s)
            self._since_s = self._clock()


def build_offset_map(
    segments: Sequence[ClosedSegment], start: int, outcomes: TransactionOutcomes, duty_cycle: DutyCycle
) -> OffsetMap:
    """Returns the newest offset of each key in the records from offset `start` to the end of the segments. Stops before
    the next batch once KEYS_MAX keys are reached.

    Args:
        outcomes: the aborted transactions; their records do not count.
        duty_cycle: makes this thread pause, and ends the work when it is no longer needed.

    Raises:
        CompactionCancelled: the topic was deleted, or the broker is stopping.
        CorruptBatch: a batch cannot be decoded.
        OSError: a segment cannot be read.
    """
    newest: dict[bytes, int] = {}
    for segment in segments:
        if segment.next_offset <= start:
            continue
        for located, batch in _batches(segment):
            header = located.header
            if header.last_offset < start or header.attributes & CONTROL or outcomes.is_aborted(header):
                continue
            if len(newest) >= KEYS_MAX:
                return OffsetMap(newest, header.base_offset)
            for offset, _, key, _, _ in decode_records(batch, is_own_batch=True):
                if key is not None and offset >= start:
                    newest[_key_digest(key)] = offset
            duty_cycle.pause_if_due()
    return OffsetMap(newest, segments[-1].next_offset)


def group_segments(segments: Sequence[ClosedSegment], bytes_max: int) -> Iterator[tuple[ClosedSegment, ...]]:
    """Yields groups of adjacent segments that fit into one segment of `bytes_max` bytes and OFFSET_SPAN_MAX offsets. A
    larger segment forms a group alone."""
    group: list[ClosedSegment] = []
    for segment in segments:
        is_full = bool(group) and (
            sum(each.size for each in group) + segment.size > bytes_max
            or segment.next_offset - group[0].base_offset > OFFSET_SPAN_MAX
        )
        if is_full:
            yield tuple(group)
            group = []
        group.append(segment)
    if group:
        yield tuple(group)


def only_if_empty(segment: ClosedSegment | None) -> tuple[ClosedSegment, ...]:
    """Returns a tuple with `segment` if it contains one batch without records and nothing else; otherwise an empty
    tuple. `segment` is None if it was deleted."""
    return (segment,) if segment is not None and segment.size <= HEADER_BYTES else ()


def with_empty_segment(empty: tuple[ClosedSegment, ...], group: tuple[ClosedSegment, ...]) -> tuple[ClosedSegment, ...]:
    """Returns the group with the segment before it, a result of `only_if_empty`, as its first segment. Compaction then
    removes the batch of that segment. Returns the group unchanged if there is no such segment, or if the offsets of
    both exceed OFFSET_SPAN_MAX."""
    if empty and group[-1].next_offset - empty[0].base_offset > OFFSET_SPAN_MAX:
        return group
    return empty + group


def write_cleaned_segment(
    group: Sequence[ClosedSegment],
    offset_map: OffsetMap,
    rules: CleaningRules,
    outcomes: TransactionOutcomes,
    duty_cycle: DutyCycle,
) -> SegmentFacts | None:
    """Writes the compacted file of a group of segments and fsyncs it. Returns the `SegmentFacts` of the new segment, or
    None if compaction would change nothing.

    Args:
        offset_map: the newest offset of each key; older records of the key are removed.
        rules: which tombstones and batches without records are retained.
        outcomes: the aborted transactions. All groups of a log need the same object, in order from the start of the
            log.
        duty_cycle: makes this thread pause, and ends the work when it is no longer needed.

    Raises:
        CompactionCancelled: the topic was deleted, or the broker is stopping.
        CorruptBatch: a batch cannot be decoded.
        OSError: a file could not be read or written.
    """
    first = group[0]
    facts = SegmentFacts(first.base_offset, first.base_offset)
    path = _cleaned_path(first)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        is_changed, pieces, written = len(group) > 1, [], 0
        for segment in group:
            for located, batch in _batches(segment):
                is_last = segment is group[-1] and located.position + located.header.size == segment.size
                retained = clean_batch(batch, located.header, offset_map, rules, outcomes, must_retain=is_last)
                is_changed = is_changed or retained is not batch
                if retained is not None:
                    outcomes.note_retained(located.header)
                    facts.add(read_batch_header(retained), retained)
                    pieces.append(retained)
                if facts.size - written >= WRITE_BYTES:
                    write_fully(fd, [b"".join(pieces)], written)
                    pieces, written = [], facts.size
                duty_cycle.pause_if_due()
        if not is_changed:
            path.unlink()
            return None
        write_fully(fd, [b"".join(pieces)], written)
        os.fsync(fd)
    finally:
        os.close(fd)
    facts.next_offset = group[-1].next_offset
    return facts


def clean_batch(
    batch: bytes,
    header: BatchHeader,
    offset_map: OffsetMap,
    rules: CleaningRules,
    outcomes: TransactionOutcomes,
    *,
    must_retain: bool,
) -> bytes | None:
    """Removes the records of a batch that compaction does not retain. Gives retained tombstones without a deadline
    their deadline. Returns the rewritten batch; the same object if nothing changes, None if the batch is removed.

    Args:
        header: the header of `batch`, already parsed.
        offset_map: the newest offset of each key; older records of the key are removed.
        rules: which tombstones and batches without records are retained.
        outcomes: the aborted transactions; their records are removed.
        must_retain: retain the batch even without records.

    Raises:
        CorruptBatch: the batch cannot be decoded.
    """
    if header.attributes & CONTROL:
        must_retain = must_retain or header.last_offset >= offset_map.end
        return batch if outcomes.needs_marker(header) or must_retain else _cleaned_marker(batch, header, rules)
    if header.last_offset >= offset_map.end:
        return batch
    must_retain = must_retain or header.last_offset in rules.retained_last_offsets
    records = decode_records(batch, is_own_batch=True)
    has_horizon = bool(header.attributes & DELETE_HORIZON)
    retains_tombstones = not has_horizon or header.base_timestamp >= rules.now_ms
    is_aborted = outcomes.is_aborted(header)
    retained = [
        record for record in records if not is_aborted and _is_retained(record, offset_map.newest, retains_tombstones)
    ]
    if not retained:
        return (batch if not records else rebuild_batch(header, ())) if must_retain else None
    if not has_horizon and any(value is None for _, _, _, value, _ in retained):
        return rebuild_batch(header, retained, delete_horizon_ms=rules.tombstones_until_ms)
    return batch if len(retained) == len(records) else rebuild_batch(header, retained)


def _cleaned_marker(batch: bytes, header: BatchHeader, rules: CleaningRules) -> bytes | None:
    """Returns `batch`, the marker of a transaction of which no batches remain, with a deadline like that of a
    tombstone; None after the deadline. `rules` gives the deadline and the current time. A consumer that reads the
    transaction before the deadline still finds the marker."""
    if header.attributes & DELETE_HORIZON:
        return batch if header.base_timestamp >= rules.now_ms else None
    return rebuild_batch(header, decode_records(batch, is_own_batch=True), delete_horizon_ms=rules.tombstones_until_ms)


def _is_retained(record: Record, newest: NewestOffsets, retains_tombstones: bool) -> bool:
    offset, _, key, value, _ = record
    if key is None or newest.get(_key_digest(key), -1) > offset:
        return False
    return value is not None or retains_tombstones


def _key_digest(key: bytes) -> bytes:
    """Returns a key of up to KEY_BYTES bytes unchanged, and the digest of a longer one. Digests are one byte longer
    than KEY_BYTES, so that no key equals a digest."""
    return key if len(key) <= KEY_BYTES else hashlib.blake2b(key, digest_size=KEY_BYTES + 1).digest()


def _batches(segment: ClosedSegment) -> Iterator[tuple[LocatedBatch, bytes]]:
    fd = os.open(segment.path(), os.O_RDONLY)
    try:
        for located in walk_file(fd, 0, segment.size):
            batch = os.pread(fd, located.header.size, located.position)
            if not has_valid_crc(memoryview(batch), located.header):
                # Rewriting the batch would give it a valid checksum and hide the corruption.
                raise CorruptBatch(f"the batch at offset {located.header.base_offset} fails its CRC check")
            yield located, batch
    except RequestRefused as refused:
        raise CorruptBatch(str(refused)) from refused
    finally:
        os.close(fd)


def _cleaned_path(first: ClosedSegment) -> Path:
    path = first.path(LOG)
    return path.with_name(path.name + CLEANED)


def discard_cleaned(group: Sequence[ClosedSegment]) -> None:
    """Deletes the compacted file of a group (adjacent segments that are merged) that will not be installed."""
    _cleaned_path(group[0]).unlink(missing_ok=True)


def stage_swap(group: Sequence[ClosedSegment]) -> None:
    """Renames the compacted file of a group of several segments to `.swap`. If the broker stops after this, its next
    start completes the swap.

    Raises:
        OSError: the files are unchanged.
    """
    if len(group) > 1:
        _cleaned_path(group[0]).rename(_swap_path(group[0]))


def fsync_staged_swap(group: Sequence[ClosedSegment]) -> None:
    """Makes the name `.swap` of a compacted file durable. This must precede the removal of any segment of the group,
    the adjacent segments that the file replaces.

    Raises:
        OSError: the state on disk is unknown; the log must not change any more.
    """
    if len(group) > 1:
        sync_directory(group[0].directory)


def install_swap(group: Sequence[ClosedSegment]) -> None:
    """Gives a compacted file the name of the first of the segments that it replaces (`group`), and deletes the indexes
    of that segment.

    Raises:
        OSError: the log is unchanged except for the indexes if the disk is full; then call `abort_swap`. After other
            errors the state on disk is unknown.
    """
    first = group[0]
    if len(group) > 1:
        _link_into_place(_swap_path(first), first.base_offset)
    else:
        _remove_indexes(first.directory, first.base_offset)
        _cleaned_path(first).replace(first.path(LOG))


def abort_swap(group: Sequence[ClosedSegment]) -> None:
    """Deletes the compacted file of a group of segments that could not be installed, so that no start installs it
    later.

    Raises:
        SwapPending: call it again later; until it succeeds, no segment of the group may be deleted.
        OSError: the state on disk is unknown; the log must not change any more.
    """
    with _raising_swap_pending():
        discard_cleaned(group)
        _swap_path(group[0]).unlink(missing_ok=True)
    sync_directory(group[0].directory)


def complete_swap(group: Sequence[ClosedSegment]) -> list[Path]:
    """Renames the files of the second and later replaced segments to `.deleted`; the compacted file has the name of the
    first. Then fsyncs the directory and deletes the `.swap` file.

    At every moment, and with any subset of these renames on disk, a start finds either all old segments or the
    compacted file. After a power failure the name `.swap` may exist again; its content is then that of the installed
    file. The deletion of `.swap` is made durable before any other segment is renamed or deleted.

    Args:
        group: the replaced segments, in order of their offsets.

    Returns:
        The new names of the renamed files, also of files that did not exist; the caller deletes them.

    Raises:
        SwapPending: call it again later; until it succeeds, the installed segment may not be deleted.
        OSError: the state on disk is unknown; the log must not change any more.
    """
    first, *others = group
    paths = [segment.path(suffix) for segment in others for suffix in SEGMENT_SUFFIXES]
    with _raising_swap_pending():
        for path in paths:
            rename_to_deleted(path)
    sync_directory(first.directory)
    if others:
        with _raising_swap_pending():
            _swap_path(first).unlink()
    return [path.with_name(path.name + DELETED) for path in paths]


@contextlib.contextmanager
def _raising_swap_pending() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise SwapPending(error.errno, error.strerror) from error


def _swap_path(first: ClosedSegment) -> Path:
    path = first.path(LOG)
    return path.with_name(path.name + SWAP)


def _link_into_place(swap_path: Path, base: int) -> None:
    """Gives a compacted file (`.swap`) a second name as a hard link: the name of the first segment that it replaces.

    Args:
        base: base offset of the first segment.
    """
    path = segment_path(swap_path.parent, base, LOG)
    link = path.with_name(path.name + ".tmp")
    link.unlink(missing_ok=True)
    os.link(swap_path, link)
    try:
        _remove_indexes(swap_path.parent, base)
        link.replace(path)
    finally:
        # Renaming between two names of the same file, as after a crash, leaves both (POSIX).
        link.unlink(missing_ok=True)


def _remove_indexes(directory: Path, base: int) -> None:
    for suffix in INDEX_SUFFIXES:
        segment_path(directory, base, suffix).unlink(missing_ok=True)


def recover_swaps(directory: Path) -> None:
    """Completes the replacements of segments by compacted files that a crash interrupted: deletes `.cleaned` files and
    installs `.swap` files."""
    for path in sorted(directory.iterdir()):
        if path.name.endswith(LOG + CLEANED):
            path.unlink()
        elif path.name.endswith(LOG + SWAP):
            _recover_swap(directory, path)


def _recover_swap(directory: Path, path: Path) -> None:
    base = int(path.name[:20])
    end = base
    fd = os.open(path, os.O_RDONLY)
    try:
        for located in walk_file(fd, 0, os.fstat(fd).st_size):
            end = located.header.last_offset + 1
    except RequestRefused as refused:
        raise StartError(f"{path} is damaged: {refused}; restore a copy of its directory") from refused
    finally:
        os.close(fd)
    for other in base_offsets(directory):
        if base < other < end:
            for suffix in SEGMENT_SUFFIXES:
                segment_path(directory, other, suffix).unlink(missing_ok=True)
    _link_into_place(path, base)
    sync_directory(directory)
    path.unlink()  # the name may reappear after a power failure; see `complete_swap`
