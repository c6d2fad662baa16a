"""Converts quarantined messages again, file by file.

A message becomes a row, or is quarantined again with the reason that applies now. A message that is not to be retried,
or without a fetched schema, is copied unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.kafka_wire.record_batch import NO_HEADERS, Record
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.checksum import checksum_as
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.state import LoaderState
from headrace.loader.inspect.quarantine import QuarantinedRow, read_rows
from headrace.loader.policy import TopicPolicy
from headrace.loader.project.kafka_column import compile_suffix
from headrace.loader.project.messages import Clamp, RangeMessages, StopBeforeUnknownSchema
from headrace.loader.project.quarantine import BadMessage, QuarantineCode, encode_row
from headrace.loader.project.topic_projection import TopicProjection, unframe_message
from headrace.loader.rewrite.run import RewritePorts, file_path, live_files
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind
from headrace.loader.write.range_rows import RangeRows
from headrace.loader.write.task_files import TaskFiles
from headrace.loader.write.time_partitions import TimePartitions

CODES = frozenset(code.value for code in QuarantineCode)
RESTORE_ADVICE = "restore it from a backup, then run the command again"


@dataclass(frozen=True, slots=True)
class QuarantineSource:
    """A quarantine file that no later commit has replaced or removed; `name` is its path below the warehouse."""

    time_partition: str
    name: str
    file: IndexedFile


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """Numbers of messages of a quarantine file, by quarantine code: `loaded` became rows, `left` remain."""

    source: QuarantineSource
    loaded: Counter[str]
    left: Counter[str]


class SourceUnusable(Exception):
    """Raised if a quarantine file is missing, or differs from its commit."""


def quarantine_sources(ports: RewritePorts, state: LoaderState, topic: str) -> Iterator[QuarantineSource]:
    """Yields the quarantine files of a topic that no later commit has replaced or removed.

    Args:
        state: the newest state of the commit log.
    """
    kind = FileKind.QUARANTINE
    for day in ports.index.days(topic, kind):
        for time_partition, files in live_files(ports, topic, kind, day):
            for file in files:
                yield QuarantineSource(time_partition, file_path(ports, state, topic, kind, time_partition, file), file)


def quarantined_rows(files: WarehouseFiles, source: QuarantineSource) -> Iterator[QuarantinedRow]:
    """Yields all messages of a quarantine file.

    Args:
        files: the files of the warehouse.

    Raises:
        SourceUnusable: the file is missing or differs from its commit.
    """
    where = files.describe(source.name)
    rows = 0
    try:
        with files.open(source.name) as opened:
            checksum = checksum_as(source.file.checksum, opened)
        if checksum != source.file.checksum:
            raise SourceUnusable(f"the quarantine file {where} differs from its commit: {RESTORE_ADVICE}")
        with files.open(source.name) as opened:
            for row in read_rows(opened):
                rows += 1
                yield row
    except FileNotFoundError as error:
        raise SourceUnusable(f"the quarantine file {where} is missing: {RESTORE_ADVICE}") from error
    if rows != source.file.records:
        raise SourceUnusable(
            f"the quarantine file {where} has {rows} messages instead of {source.file.records}: {RESTORE_ADVICE}"
        )


def schema_id_of(row: QuarantinedRow) -> int | None:
    """Returns the schema id of the quarantined message `row`, None if it has none."""
    if row.value is None:
        return None
    message = unframe_message(row.value, raw_headers(row))
    return None if isinstance(message, BadMessage) else message[0]


def raw_headers(row: QuarantinedRow) -> bytes:
    """Returns the headers of the quarantined message `row` in the form in which Kafka's log stores them."""
    if not row.headers:
        return NO_HEADERS
    items = (
        encode_bytes(key.encode()) + (b"\x01" if value is None else encode_bytes(value)) for key, value in row.headers
    )
    return b"".join((encode_long(len(row.headers)), *items))


Add = Callable[[int, FileKind, str, int, bytes], None]
"""Receives partition, kind, time partition, offset and encoded row."""


@dataclass(frozen=True, slots=True)
class Replayer:
    """Retries the messages of a topic that were quarantined with one of `codes`. `projection` converts them to rows
    with the present schemas and policy. `now_ms` is the present time, by which times in the future are recognized."""

    topic: str
    files: WarehouseFiles
    projection: TopicProjection
    policy: TopicPolicy
    codes: Collection[str]
    now_ms: int

    def preview(self, source: QuarantineSource) -> ReplayCounts:
        """Retries the messages of a quarantine file without writing anything. Returns how many would become rows and
        how many would remain; `Replayer.write` later returns the same counts. If the file has a reason code
        that this release does not know, none of its messages is retried.

        Raises:
            SourceUnusable: the file is missing or differs from its commit.
        """
        if all(row.code in CODES for row in quarantined_rows(self.files, source)):
            return self._convert_rows(source, lambda *_: None)
        return ReplayCounts(source, Counter(), Counter(row.code for row in quarantined_rows(self.files, source)))

    def write(self, source: QuarantineSource, into: TaskFiles, new_rows: Callable[[int], RangeRows]) -> ReplayCounts:
        """Retries the messages of a quarantine file. Writes each message of the file to a new file, as a row or as
        quarantined message, and returns how many became rows and how many remain.

        Args:
            into: the new files.
            new_rows: creates the buffer for the rows of a partition, given its number.

        Raises:
            SourceUnusable: the file is missing or differs from its commit.
            OSError: the new files cannot be written.
        """
        with _adding_rows(into, new_rows) as add:
            return self._convert_rows(source, add)

    def _convert_rows(self, source: QuarantineSource, add: Add) -> ReplayCounts:
        by_partition: dict[int, RangeMessages] = {}
        loaded: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for row in quarantined_rows(self.files, source):
            messages = by_partition.get(row.partition)
            if messages is None:
                messages = by_partition[row.partition] = self._messages(source, row.partition, add)
            before = messages.written
            if row.code not in self.codes or not _retry(messages, row):
                add(row.partition, FileKind.QUARANTINE, source.time_partition, row.offset, _unchanged_row(row))
            (loaded if messages.written > before else left)[row.code] += 1
        return ReplayCounts(source, loaded, left)

    def _messages(self, source: QuarantineSource, partition: int, add: Add) -> RangeMessages:
        future_ms_max = self.policy.future_ms_max

        def add_row(kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
            # Remaining messages stay in their time partition, which is the one being rewritten.
            add(partition, kind, source.time_partition if kind is FileKind.QUARANTINE else time_partition, offset, row)

        return RangeMessages(
            TopicPartition(self.topic, partition),
            self.projection,
            add_row,
            TimePartitions(self.policy.partition_by),
            compile_suffix(self.policy.kafka_column, partition),
            set(),
            None if future_ms_max is None else Clamp(future_ms_max, self.now_ms),
        )


@contextmanager
def _adding_rows(into: TaskFiles, new_rows: Callable[[int], RangeRows]) -> Iterator[Add]:
    """Yields a function that receives the rows of any partition, one per call (see `Add`). Passes these rows to the
    files `into`, at the latest at the end.

    Args:
        new_rows: creates the buffer for the rows of a partition, given its number.
    """
    open_rows: dict[int, RangeRows] = {}
    last_offsets: dict[int, int] = {}

    def add(partition: int, kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
        # A merged file may hold an offset twice: from before the log was truncated and from after it grew again.
        if partition in open_rows and offset <= last_offsets[partition]:
            open_rows.pop(partition).finish_into(into)
        if partition not in open_rows:
            open_rows[partition] = new_rows(partition)
        last_offsets[partition] = offset
        open_rows[partition].add(kind, time_partition, offset, row)
        open_rows[partition].limit_memory()

    yield add
    for rows in open_rows.values():
        rows.finish_into(into)


def copy_rows(
    files: WarehouseFiles,
    source: QuarantineSource,
    into: TaskFiles,
    new_rows: Callable[[int], RangeRows],
    is_retained: Callable[[QuarantinedRow], bool],
) -> None:
    """Copies the messages of a quarantine file for which `is_retained` is true to new files of its time partition.

    Args:
        files: the files of the warehouse.
        source: the quarantine file.
        into: the new files.
        new_rows: creates the buffer for the rows of a partition, given its number.

    Raises:
        SourceUnusable: the file is missing or differs from its commit.
        OSError: the new files cannot be written.
    """
    with _adding_rows(into, new_rows) as add:
        for row in quarantined_rows(files, source):
            if is_retained(row):
                add(row.partition, FileKind.QUARANTINE, source.time_partition, row.offset, _unchanged_row(row))


def _retry(messages: RangeMessages, row: QuarantinedRow) -> bool:
    """Retries a quarantined message: adds it as a row or as quarantined message, and returns True. If it is unknown
    whether the registry has the message's schema, returns False without adding it.

    Args:
        messages: converts the message and adds the result.
    """
    record: Record = (row.offset, row.timestamp_ms, row.key, row.value, raw_headers(row))
    try:
        messages.convert([record])
    except StopBeforeUnknownSchema:
        return False
    return True


def _unchanged_row(row: QuarantinedRow) -> bytes:
    bad = BadMessage(QuarantineCode(row.code), row.reason, row.schema_id)
    return encode_row(row.partition, row.offset, row.timestamp_ms, row.key, row.value, raw_headers(row), bad)
