"""Verifies a data directory: every batch, and its offset and time indexes, checkpoints, epochs, newest producer
snapshots and producer id file.

Read-only; no broker may be running on the directory. Each discrepancy is a note or a finding. A note is normal after a
crash, or the trace of an earlier repair. A finding is fsynced data that is missing or damaged, or another file that is
missing, damaged or contradicts the log, even if a start rebuilds it.

Memory does not grow with the logs: at most FINDINGS_MAX findings per partition and one chunk of a file are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.data_directory import CLEAN_MARKER, STRAY_DIRECTORY, partition_directories
from headrace.broker.errors import CorruptFile
from headrace.broker.inspect.walk import Damage, SegmentFile, SegmentWalk, segment_files
from headrace.broker.log.checkpoints import CLEAN_TO, LOG_STARTS, RECOVERY_POINTS, PartitionKey, read_checkpoint
from headrace.broker.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, offset_entries, time_entries
from headrace.broker.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from headrace.broker.log.leader_epochs import LeaderEpochs, read_leader_epochs
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.log.repair import CORRUPT
from headrace.broker.log.segment import INDEX, SNAPSHOT, TIME_INDEX, base_offsets, segment_path
from headrace.broker.producer_ids import FILE_NAME as PRODUCER_IDS
from headrace.broker.producer_ids import UNASSIGNED_ID_MIN, read_producer_ids
from headrace.broker.topic_config import is_compacted
from headrace.broker.topics import FILE_NAME as TOPICS_FILE
from headrace.broker.topics import Topic, TopicStore
from headrace.kafka_wire.record_batch import BatchHeader

FINDINGS_MAX = 100
INDEX_READ_BYTES = 48 * 1024
"""Read size for index files; a multiple of the entry sizes of both indexes."""


@dataclass(frozen=True, slots=True)
class BrokerFinding:
    """One discrepancy found in a data directory: a note, which is normal after a crash or an earlier repair, if
    `is_note` is True, otherwise a finding. `check` is its category: directories, batches, offsets, indexes,
    checkpoints, epochs or producers."""

    check: str
    where: str
    message: str
    is_note: bool = False


@dataclass(slots=True)
class PartitionReport:
    """The result of verifying one partition, or of verifying the files that belong to no single partition, for which
    all counts are 0. `omitted` is the number of findings beyond FINDINGS_MAX."""

    name: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    largest_producer_id: int = -1
    findings: list[BrokerFinding] = field(default_factory=list)
    omitted: int = 0

    def add(self, check: str, where: str, message: str, *, is_note: bool = False) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(BrokerFinding(check, where, message, is_note))
        else:
            self.omitted += not is_note

    @property
    def is_intact(self) -> bool:
        return not self.omitted and all(finding.is_note for finding in self.findings)


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    """Contents of a data directory's checkpoint files, and whether the last broker on it shut down cleanly."""

    is_clean: bool
    recovery_points: Mapping[PartitionKey, int]
    log_starts: Mapping[PartitionKey, int]
    clean_to: Mapping[PartitionKey, int]


@dataclass(frozen=True, slots=True)
class _ExpectedLog:
    """Bounds that a partition's log must have according to the checkpoint files. Everything below `fsynced_to` was
    fsynced and must exist, unless retention has deleted it."""

    topic: Topic
    fsynced_to: int
    is_clean: bool
    log_start: int
    clean_to: int

    @property
    def may_have_holes(self) -> bool:
        """Whether compaction may have removed records, as in compacted topics and the broker's internal ones. Gaps
        between offsets are then no findings."""
        return self.topic.is_internal or is_compacted(self.topic.configs)


def verify(directory: Path, progress: Callable[[str], None] = lambda where: None) -> Iterator[PartitionReport]:
    """Yields the report on the data directory, then one report per partition. Checks that concern several partitions
    add to the directory's report at the end.

    Args:
        progress: called with the name of each segment before it is read.

    Raises:
        CorruptFile: the topics file is missing or corrupt.
        OSError: a file other than a segment cannot be read.
    """
    if not (directory / TOPICS_FILE).exists():
        raise CorruptFile(
            directory / TOPICS_FILE, "the file is missing", "choose the data directory of a broker with --directory"
        )
    topics = TopicStore.load(directory, "")
    directory_report = PartitionReport(str(directory))
    checkpoints = _Checkpoints(
        (directory / CLEAN_MARKER).exists(),
        *(_read(directory / name, directory_report) for name in (RECOVERY_POINTS, LOG_STARTS, CLEAN_TO)),
    )
    names = {f"{topic.name}-{index}" for topic in topics for index in range(topic.partitions)}
    _check_directories(directory, names, directory_report)
    yield directory_report
    largest_id = -1
    for topic in topics:
        for index in range(topic.partitions):
            key = (topic.name, index)
            partition_path = directory / f"{topic.name}-{index}"
            expected = _ExpectedLog(
                topic,
                checkpoints.recovery_points.get(key, 0),
                checkpoints.is_clean,
                checkpoints.log_starts.get(key, 0),
                checkpoints.clean_to.get(key, 0),
            )
            report = PartitionReport(partition_path.name)
            if partition_path.is_dir():
                _PartitionCheck(partition_path, expected, report, progress).run()
            else:
                report.add(
                    "directories", partition_path.name, "the partition's directory is missing; restore it from a copy"
                )
            largest_id = max(largest_id, report.largest_producer_id)
            yield report
    _check_producer_ids(directory / PRODUCER_IDS, largest_id, directory_report)


def _read(path: Path, directory_report: PartitionReport) -> Mapping[PartitionKey, int]:
    try:
        return read_checkpoint(path)
    except CorruptFile as error:
        directory_report.add("checkpoints", path.name, str(error))
        return {}


def _check_directories(directory: Path, known_names: set[str], directory_report: PartitionReport) -> None:
    for entry in sorted(directory.iterdir()):
        if entry.is_dir() and STRAY_DIRECTORY in entry.name:
            directory_report.add("directories", entry.name, "was renamed, since it belongs to no topic", is_note=True)
    for entry in partition_directories(directory):
        if entry.name not in known_names and STRAY_DIRECTORY not in entry.name:
            directory_report.add("directories", entry.name, "belongs to no topic; a start renames it", is_note=True)


def _check_producer_ids(path: Path, largest_id: int, directory_report: PartitionReport) -> None:
    try:
        following = read_producer_ids(path)
    except CorruptFile as error:
        directory_report.add("producers", path.name, str(error))
        return
    if following is None and largest_id >= 0:
        directory_report.add(
            "producers",
            path.name,
            f"it is missing, but producer {largest_id} wrote to the logs; a start writes it again, with ids above "
            "those in the logs",
        )
    if following is not None and following <= largest_id:
        directory_report.add(
            "producers",
            path.name,
            f"the next id in it is {following}, but producer {largest_id} already wrote to the logs; a start raises it",
        )


class _PartitionCheck:
    """Checks the files of one partition, and adds the findings to `report`.

    Args:
        expected: bounds that the log must have according to the checkpoint files.
        progress: called with the name of each segment before it is read.
    """

    def __init__(
        self, directory: Path, expected: _ExpectedLog, report: PartitionReport, progress: Callable[[str], None]
    ) -> None:
        self._directory, self._expected, self._report = directory, expected, report
        self._progress = progress
        self._epochs: LeaderEpochs | None = None
        self._is_truncated = False  # a start would truncate the log here
        self._wrong_epoch_count = 0
        self._producers_end_at: set[int] = set()

    def run(self) -> None:
        report, expected = self._report, self._expected
        segments = segment_files(self._directory)
        first = segments[0].base_offset if segments else 0
        report.segments, report.log_end_offset = len(segments), first
        report.log_start_offset = max(first, expected.log_start)
        self._epochs = read_leader_epochs(self._directory)
        self._read_snapshot(first)
        for segment in segments:
            if self._is_truncated:
                break
            self._check_segment(segment)
        self._check_end()
        for path in sorted(self._directory.iterdir()):
            if path.name.endswith(CORRUPT):
                report.add(
                    "directories", path.name, "was saved by an earlier start that repaired the log", is_note=True
                )

    def _add(self, check: str, where: str, message: str, *, is_note: bool = False) -> None:
        self._report.add(check, where, message, is_note=is_note)

    # Batches

    def _check_segment(self, segment: SegmentFile) -> None:
        self._progress(f"{self._directory.name}/{segment.path.name}")
        try:
            self._read_segment(segment)
        except OSError as error:
            self._add(
                "batches",
                segment.path.name,
                f"cannot be read: {error.strerror or error}; check the disk and the file's permissions",
            )

    def _read_segment(self, segment: SegmentFile) -> None:
        report, expected_offset = self._report, segment.base_offset
        self._check_end_of_segment(segment.path.name, report.log_end_offset, expected_offset)
        indexes = (_OffsetIndexCheck(segment), _TimeIndexCheck(segment))
        is_damaged = False
        with SegmentWalk(segment) as walk:
            for found in walk.batches():
                if isinstance(found, Damage):
                    is_damaged = True
                    if self._record_damage(segment, found, walk.size):
                        break
                    continue
                self._check_gap(
                    f"{segment.path.name} position {found.position}", expected_offset, found.header.base_offset
                )
                self._note_batch(segment, found.header)
                for index in indexes:
                    index.add(found.position, found.header)
                expected_offset = found.header.last_offset + 1
            report.log_end_offset = expected_offset
            is_written = segment.end is not None or (self._expected.is_clean and walk.size > 0)
        if is_written and not is_damaged:
            for index in indexes:
                if fault := index.end():
                    self._add("indexes", index.path.name, fault)

    def _record_damage(self, segment: SegmentFile, found: Damage, size: int) -> bool:
        """Adds a finding for damaged bytes to the report, or a note if a start of the broker would truncate the log
        there. Returns whether it would.

        Args:
            found: the damaged bytes.
            size: size of the segment's file.
        """
        where = f"{segment.path.name} position {found.position}"
        if self._expected.is_clean or found.next_offset < self._expected.fsynced_to:
            self._add(
                "batches",
                where,
                f"{found.reason}; {found.end - found.position:,} bytes are no batches, "
                f"after offset {found.next_offset - 1}",
            )
            return False
        self._is_truncated = True
        self._add(
            "batches",
            where,
            f"{found.reason}; this was not fsynced, and a start truncates the log at offset {found.next_offset}, "
            f"with {size - found.position:,} bytes of this file",
            is_note=True,
        )
        return True

    def _check_end_of_segment(self, where: str, expected_offset: int, found: int) -> None:
        """Checks that the previous segment ends at the offset at which this one begins. Compaction and repair preserve
        this.

        Args:
            where: the file that the finding names.
            expected_offset: offset at which the previous segment ends.
            found: offset at which this one begins.
        """
        if found <= expected_offset:
            return
        if self._expected.is_clean or expected_offset < self._expected.fsynced_to:
            self._add(
                "offsets",
                where,
                f"offsets [{expected_offset}, {found}), which were fsynced, are missing before it; restore the "
                "directory from a copy",
            )
        else:
            self._is_truncated = True
            message = f"offsets [{expected_offset}, {found}) are missing before it; this was not fsynced, and a start"
            self._add("offsets", where, f"{message} truncates the log at offset {expected_offset}", is_note=True)

    def _check_gap(self, where: str, expected_offset: int, found: int) -> None:
        # Repair leaves gaps too; a `.corrupt` file shows that the log was repaired.
        if found > expected_offset and not self._expected.may_have_holes:
            is_known = any(path.name.endswith(CORRUPT) for path in self._directory.iterdir())
            self._add("offsets", where, f"offsets [{expected_offset}, {found}) are missing", is_note=is_known)

    def _note_batch(self, segment: SegmentFile, header: BatchHeader) -> None:
        report = self._report
        report.batches += 1
        report.records += header.record_count
        report.size_bytes += header.size
        if header.producer_id < UNASSIGNED_ID_MIN:
            report.largest_producer_id = max(report.largest_producer_id, header.producer_id)
        self._producers_end_at.discard(header.last_offset)
        is_covered = self._expected.is_clean or header.base_offset < self._expected.fsynced_to
        if not (is_covered and header.base_offset >= self._expected.log_start):
            return
        if self._epochs is not None and self._epochs.at(header.base_offset) != header.leader_epoch:
            self._wrong_epoch_count += 1
            if self._wrong_epoch_count == 1:
                self._add(
                    "epochs",
                    f"{segment.path.name} offset {header.base_offset}",
                    f"the batch has leader epoch {header.leader_epoch}, {EPOCHS_FILE} has "
                    f"{self._epochs.at(header.base_offset)}",
                )

    # Snapshots, checkpoints and epochs

    def _read_snapshot(self, first: int) -> None:
        offsets = base_offsets(self._directory, SNAPSHOT)
        if not offsets:
            return
        path = segment_path(self._directory, offsets[-1], SNAPSHOT)
        states = ProducerStates.from_snapshot(path.read_bytes())
        if states is None:
            self._add("producers", path.name, "it cannot be read; a start rebuilds it from the log")
        elif not self._expected.may_have_holes:
            self._producers_end_at = {offset for offset in states.last_offsets() if first <= offset < offsets[-1]}

    def _check_end(self) -> None:
        report, expected = self._report, self._expected
        end = report.log_end_offset
        if end < expected.fsynced_to or (expected.is_clean and end > expected.fsynced_to):
            self._add(
                "checkpoints",
                RECOVERY_POINTS,
                f"the log ends at offset {end}, but was fsynced up to {expected.fsynced_to}",
            )
        for file, offset in ((LOG_STARTS, expected.log_start), (CLEAN_TO, expected.clean_to)):
            if offset > end and end >= expected.fsynced_to:
                self._add(
                    "checkpoints", file, f"offset {offset}, but the log ends at {end}", is_note=self._is_truncated
                )
        if self._epochs is None and report.batches:
            self._add("epochs", EPOCHS_FILE, "it is missing or cannot be read; a start rebuilds it from the batches")
        if self._wrong_epoch_count > 1:
            self._add("epochs", EPOCHS_FILE, f"{self._wrong_epoch_count:,} batches have a different epoch")
        missing = sorted(offset for offset in self._producers_end_at if offset < end)
        if missing:
            self._add("producers", SNAPSHOT, f"{len(missing):,} of its batches are not in the log, first {missing[0]}")


EntriesOf = Callable[[bytes], Iterator[tuple[int, int]]]


class _IndexCheck:
    """Compares the entries of a segment's index file with the batches of its log. `fault` describes the first fault, ""
    without one: a difference, an incomplete entry, or a missing file.

    Args:
        suffix: suffix of the index file.
        entry_bytes: size of an entry.
        entries_of: decodes the entries in a byte string.
    """

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
                    complete_bytes = len(content) - len(content) % entry_bytes
                    yield from entries_of(content[:complete_bytes])
                    if complete_bytes < len(content):
                        self.fault = (
                            self.fault or f"it ends with {len(content) - complete_bytes} bytes that are no entry"
                        )
        except FileNotFoundError:
            self.fault = "it is missing; a start rebuilds it"

    def _next(self) -> None:
        self.pending = next(self._entries, None)

    def _set_fault(self, message: str) -> None:
        self.fault = self.fault or f"{message}; a start that reads this entry rebuilds the index"
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
                self._set_fault(
                    f"offset {self._base + offset} at position {at}, where no batch with this offset begins"
                )

    def end(self) -> str:
        if self.pending is not None:
            self._set_fault(f"position {self.pending[1]}, after the last batch")
        return self.fault


class _TimeIndexCheck(_IndexCheck):
    def __init__(self, segment: SegmentFile) -> None:
        super().__init__(segment, TIME_INDEX, TIME_ENTRY_BYTES, time_entries)
        self._largest: tuple[int, int] | None = None
        self._last_entry: tuple[int, int] | None = None

    def add(self, position: int, header: BatchHeader) -> None:
        last = header.last_offset - self._base
        if self._largest is None or header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, last)
        while self.pending is not None and self.pending[1] <= last:
            self._last_entry = self.pending
            if self.pending == (header.max_timestamp, last):
                self._next()
            else:
                self._set_fault(
                    f"timestamp {self.pending[0]} at offset {self._base + self.pending[1]}, which has another timestamp"
                )

    def end(self) -> str:
        if self.pending is not None:
            self._set_fault(f"offset {self._base + self.pending[1]}, after the last batch")
        elif self._last_entry != self._largest and not self.fault:
            self._set_fault("its last entry is not the largest timestamp")
        return self.fault
