"""Checks a data directory: every batch, and what indexes, checkpoints, epochs and producer states say of the batches.

Nothing is written, and no broker may be at work on the directory. What a start would put right by itself, as it does
after a crash, is a note; a finding is what was forced to disk and is not there, or a file that contradicts the log.

Memory does not grow with the logs: of a partition FINDINGS_MAX findings are kept, and one window of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.data_directory import CLEAN_MARKER, STRAY_DIRECTORY, partition_directories
from headrace.broker.errors import CorruptFile
from headrace.broker.inspect.walk import Damage, SegmentFile, SegmentWalk, segment_files
from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, read_checkpoint
from headrace.broker.log.damage import CORRUPT
from headrace.broker.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, offset_entries, time_entries
from headrace.broker.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from headrace.broker.log.leader_epochs import LeaderEpochs, read_leader_epochs
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.segment import INDEX, SNAPSHOT, TIME_INDEX, base_offsets, segment_path
from headrace.broker.producer_ids import FILE_NAME as PRODUCER_IDS
from headrace.broker.producer_ids import MADE_UP_FROM, read_producer_ids
from headrace.broker.topic_config import is_compacted
from headrace.broker.topics import FILE_NAME as TOPICS_FILE
from headrace.broker.topics import Topic, TopicStore
from headrace.kafka_wire.record_batch import BatchHeader

FINDINGS_MAX = 100
INDEX_READ_BYTES = 48 * 1024
"""Of an index at once; a multiple of the entries of both."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is what was compared: directories, batches, offsets, indexes, checkpoints, epochs or producers."""

    check: str
    where: str
    message: str
    is_note: bool = False


@dataclass(slots=True)
class Verified:
    """One partition, or the directory around them, which has no batches. `more` findings beside those that are kept."""

    name: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    largest_producer_id: int = -1
    findings: list[Finding] = field(default_factory=list)
    more: int = 0

    def add(self, check: str, where: str, message: str, *, is_note: bool = False) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(check, where, message, is_note))
        else:
            self.more += not is_note

    @property
    def is_sound(self) -> bool:
        return not self.more and all(finding.is_note for finding in self.findings)


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    """What the files beside the partitions say. `is_clean`: the broker ended in an orderly way."""

    is_clean: bool
    recovery_points: Mapping[PartitionKey, int]
    log_starts: Mapping[PartitionKey, int]
    clean_to: Mapping[PartitionKey, int]


@dataclass(frozen=True, slots=True)
class _Promised:
    """What the log of one partition must hold: all below `forced_to` was forced to disk."""

    topic: Topic
    forced_to: int
    is_clean: bool
    log_start: int
    clean_to: int
    has_epochs: bool

    @property
    def may_have_holes(self) -> bool:
        """Compaction takes records, also out of the broker's own topics."""
        return self.topic.is_internal or is_compacted(self.topic.configs)


def verify(directory: Path, progress: Callable[[str], None] = lambda where: None) -> Iterator[Verified]:
    """First the directory, then its partitions one by one; at the end, what these tell of the directory is added to it.

    Args:
        progress: is told which file is being read.

    Raises:
        CorruptFile: there is no telling which topics there should be.
    """
    if not (directory / TOPICS_FILE).exists():
        raise CorruptFile(directory / TOPICS_FILE, "it is missing; expected the directory of a broker")
    topics = TopicStore.load(directory, "")
    around = Verified(str(directory))
    checkpoints = _Checkpoints(
        (directory / CLEAN_MARKER).exists(),
        *(_read(directory / name, around) for name in (RECOVERY_POINTS, LOG_STARTS, CLEAN_TO)),
    )
    names = {f"{topic.name}-{index}" for topic in topics for index in range(topic.partitions)}
    _check_directories(directory, names, around)
    yield around
    largest_id = -1
    for topic in topics:
        for index in range(topic.partitions):
            key = (topic.name, index)
            place = directory / f"{topic.name}-{index}"
            promised = _Promised(
                topic,
                checkpoints.recovery_points.get(key, 0),
                checkpoints.is_clean,
                checkpoints.log_starts.get(key, 0),
                checkpoints.clean_to.get(key, 0),
                topics.had_epochs,
            )
            verified = Verified(place.name)
            if place.is_dir():
                _Checking(place, promised, verified, progress).run()
            else:
                verified.add("directories", place.name, "the partition's directory is missing")
            largest_id = max(largest_id, verified.largest_producer_id)
            yield verified
    _check_producer_ids(directory / PRODUCER_IDS, largest_id, around)


def _read(path: Path, around: Verified) -> Mapping[PartitionKey, int]:
    try:
        return read_checkpoint(path)
    except CorruptFile as error:
        around.add("checkpoints", path.name, str(error))
        return {}


def _check_directories(directory: Path, wanted: set[str], around: Verified) -> None:
    for entry in sorted(directory.iterdir()):
        if entry.is_dir() and STRAY_DIRECTORY in entry.name:
            around.add("directories", entry.name, "was put aside, since no topic has it", is_note=True)
    for entry in partition_directories(directory):
        if entry.name not in wanted and STRAY_DIRECTORY not in entry.name:
            around.add("directories", entry.name, "belongs to no topic; a start puts it aside", is_note=True)


def _check_producer_ids(path: Path, largest_id: int, around: Verified) -> None:
    try:
        following = read_producer_ids(path)
    except CorruptFile as error:
        around.add("producers", path.name, str(error))
        return
    if following is None and largest_id >= 0:
        around.add("producers", path.name, f"it is missing, and producer {largest_id} wrote into the logs")
    if following is not None and following <= largest_id:
        around.add("producers", path.name, f"it says {following}, and producer {largest_id} wrote into the logs")


class _Checking:
    """One partition's check; `verified` gets what is found."""

    def __init__(
        self, directory: Path, promised: _Promised, verified: Verified, progress: Callable[[str], None]
    ) -> None:
        self._directory, self._promised, self._verified = directory, promised, verified
        self._progress = progress
        self._epochs: LeaderEpochs | None = None
        self._is_cut = False  # here a start would cut the log
        self._misdated = 0
        self._producers_end_at: set[int] = set()

    def run(self) -> None:
        verified, promised = self._verified, self._promised
        segments = segment_files(self._directory)
        first = segments[0].base_offset if segments else 0
        verified.segments, verified.log_end_offset = len(segments), first
        verified.log_start_offset = max(first, promised.log_start)
        self._epochs = read_leader_epochs(self._directory)
        self._read_snapshot(first)
        for segment in segments:
            if self._is_cut:
                break
            self._segment(segment)
        self._check_end()
        for path in sorted(self._directory.iterdir()):
            if path.name.endswith(CORRUPT):
                verified.add("directories", path.name, "was set aside by an earlier start", is_note=True)

    def _add(self, check: str, where: str, message: str, *, is_note: bool = False) -> None:
        self._verified.add(check, where, message, is_note=is_note)

    # Batches

    def _segment(self, segment: SegmentFile) -> None:
        self._progress(f"{self._directory.name}/{segment.path.name}")
        try:
            self._read_segment(segment)
        except OSError as error:
            self._add("batches", segment.path.name, f"cannot be read: {error.strerror or error}")

    def _read_segment(self, segment: SegmentFile) -> None:
        verified, due = self._verified, segment.base_offset
        self._check_end_of_segment(segment.path.name, verified.log_end_offset, due)
        indexes = (_OffsetIndexCheck(segment), _TimeIndexCheck(segment))
        is_damaged = False
        with SegmentWalk(segment) as walk:
            for found in walk.batches():
                if isinstance(found, Damage):
                    is_damaged = True
                    if self._damage(segment, found, walk.size):
                        break
                    continue
                self._check_gap(f"{segment.path.name} position {found.position}", due, found.header.base_offset)
                self._note_batch(segment, found.header)
                for index in indexes:
                    index.add(found.position, found.header)
                due = found.header.last_offset + 1
            verified.log_end_offset = due
            is_written = segment.end is not None or (self._promised.is_clean and walk.size > 0)
        if is_written and not is_damaged:
            for index in indexes:
                if fault := index.end():
                    self._add("indexes", index.path.name, fault)

    def _damage(self, segment: SegmentFile, found: Damage, size: int) -> bool:
        """Takes note of damage; returns whether a start would cut the log there."""
        where = f"{segment.path.name} position {found.position}"
        if self._promised.is_clean or found.next_offset < self._promised.forced_to:
            self._add(
                "batches",
                where,
                f"{found.reason}; {found.end - found.position:,} bytes are no batches, "
                f"from offset {found.next_offset} on",
            )
            return False
        self._is_cut = True
        self._add(
            "batches",
            where,
            f"{found.reason}; this was not forced to disk, and a start cuts the log at offset {found.next_offset}, "
            f"with {size - found.position:,} bytes of this file",
            is_note=True,
        )
        return True

    def _check_end_of_segment(self, where: str, due: int, found: int) -> None:
        """Compaction, too, lets a segment end where the next one begins."""
        if found <= due:
            return
        if self._promised.is_clean or due < self._promised.forced_to:
            self._add("offsets", where, f"offsets [{due}, {found}) are missing before it")
        else:
            self._is_cut = True
            message = f"offsets [{due}, {found}) are missing before it; this was not forced to disk, and a start cuts"
            self._add("offsets", where, f"{message} the log at offset {due}", is_note=True)

    def _check_gap(self, where: str, due: int, found: int) -> None:
        # What was set aside leaves holes too.
        if found > due and not self._promised.may_have_holes:
            is_known = any(path.name.endswith(CORRUPT) for path in self._directory.iterdir())
            self._add("offsets", where, f"offsets [{due}, {found}) are missing", is_note=is_known)

    def _note_batch(self, segment: SegmentFile, header: BatchHeader) -> None:
        verified = self._verified
        verified.batches += 1
        verified.records += header.record_count
        verified.size_bytes += header.size
        if header.producer_id < MADE_UP_FROM:
            verified.largest_producer_id = max(verified.largest_producer_id, header.producer_id)
        self._producers_end_at.discard(header.last_offset)
        is_promised = self._promised.is_clean or header.base_offset < self._promised.forced_to
        if not (self._promised.has_epochs and is_promised and header.base_offset >= self._promised.log_start):
            return
        if self._epochs is not None and self._epochs.at(header.base_offset) != header.leader_epoch:
            self._misdated += 1
            if self._misdated == 1:
                self._add(
                    "epochs",
                    f"{segment.path.name} offset {header.base_offset}",
                    f"the batch is of leader epoch {header.leader_epoch}, {EPOCHS_FILE} says "
                    f"{self._epochs.at(header.base_offset)}",
                )

    # What else says something of them

    def _read_snapshot(self, first: int) -> None:
        offsets = base_offsets(self._directory, SNAPSHOT)
        if not offsets:
            return
        path = segment_path(self._directory, offsets[-1], SNAPSHOT)
        states = ProducerStates.from_snapshot(path.read_bytes())
        if states is None:
            self._add("producers", path.name, "it cannot be read; a start takes what the log says instead")
        elif not self._promised.may_have_holes:
            self._producers_end_at = {offset for offset in states.last_offsets() if first <= offset < offsets[-1]}

    def _check_end(self) -> None:
        verified, promised = self._verified, self._promised
        end = verified.log_end_offset
        if end < promised.forced_to or (promised.is_clean and end > promised.forced_to):
            self._add(
                "checkpoints",
                RECOVERY_POINTS,
                f"the log ends at offset {end}, and was forced to disk up to {promised.forced_to}",
            )
        for file, offset in ((LOG_STARTS, promised.log_start), (CLEAN_TO, promised.clean_to)):
            if offset > end and end >= promised.forced_to:
                self._add("checkpoints", file, f"offset {offset}, and the log ends at {end}", is_note=self._is_cut)
        if self._epochs is None and promised.has_epochs and verified.batches:
            self._add("epochs", EPOCHS_FILE, "it is missing or cannot be read; a start takes what the batches say")
        if self._misdated > 1:
            self._add("epochs", EPOCHS_FILE, f"{self._misdated:,} batches are of another epoch than it says")
        missing = sorted(offset for offset in self._producers_end_at if offset < end)
        if missing:
            self._add(
                "producers", SNAPSHOT, f"{len(missing):,} batches it knows of are not in the log, first {missing[0]}"
            )


EntriesOf = Callable[[bytes], Iterator[tuple[int, int]]]


class _IndexCheck:
    """Compares the entries of an index file with the batches that go by; `fault` is the first that does not fit."""

    def __init__(self, segment: SegmentFile, suffix: str, entry_bytes: int, entries_of: EntriesOf) -> None:
        self._base = segment.base_offset
        self.path = segment_path(segment.path.parent, segment.base_offset, suffix)
        self.fault = ""
        self._entries = self._read(entry_bytes, entries_of)
        self.pending: tuple[int, int] | None = next(self._entries, None)

    def _read(self, entry_bytes: int, entries_of: EntriesOf) -> Iterator[tuple[int, int]]:
        try:
            with self.path.open("rb") as file:
                while content := file.read(INDEX_READ_BYTES):
                    whole = len(content) - len(content) % entry_bytes
                    yield from entries_of(content[:whole])
                    if whole < len(content):
                        self.fault = self.fault or f"it ends with {len(content) - whole} bytes that are no entry"
        except FileNotFoundError:
            self.fault = "it is missing; a start makes it anew"

    def _next(self) -> None:
        self.pending = next(self._entries, None)

    def _wrong(self, message: str) -> None:
        self.fault = self.fault or f"{message}; a start makes it anew where it looks"
        self._next()

    def add(self, position: int, header: BatchHeader) -> None:
        raise NotImplementedError

    def end(self) -> str:
        raise NotImplementedError


class _OffsetIndexCheck(_IndexCheck):
    def __init__(self, segment: SegmentFile) -> None:
        super().__init__(segment, INDEX, OFFSET_ENTRY_BYTES, offset_entries)

    def add(self, position: int, header: BatchHeader) -> None:
        while self.pending is not None and self.pending[1] <= position:
            offset, at = self.pending
            if at == position and self._base + offset == header.last_offset:
                self._next()
            else:
                self._wrong(f"offset {self._base + offset} at position {at}, where no batch with it begins")

    def end(self) -> str:
        if self.pending is not None:
            self._wrong(f"position {self.pending[1]}, behind the last batch")
        return self.fault


class _TimeIndexCheck(_IndexCheck):
    def __init__(self, segment: SegmentFile) -> None:
        super().__init__(segment, TIME_INDEX, TIME_ENTRY_BYTES, time_entries)
        self._largest: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None

    def add(self, position: int, header: BatchHeader) -> None:
        last = header.last_offset - self._base
        if self._largest is None or header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, last)
        while self.pending is not None and self.pending[1] <= last:
            self._last = self.pending
            if self.pending == (header.max_timestamp, last):
                self._next()
            else:
                self._wrong(f"timestamp {self.pending[0]} at offset {self._base + self.pending[1]}, which has another")

    def end(self) -> str:
        if self.pending is not None:
            self._wrong(f"offset {self._base + self.pending[1]}, behind the last batch")
        elif self._last != self._largest and not self.fault:
            self._wrong("its last entry is not the largest timestamp")
        return self.fault
