"""The loop over the messages of one range.

Records arrive in lists from the reader. Each body is converted to a row by the projection of its writer schema. When a
message stops the reading, the rows of all messages before it have been passed on. Messages are counted twice for the
audit: in the tier `broker` as read from the log, and in the tier `loader` when their row is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.audit import window
from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.latency import SLICE_MS, SLICES
from headrace.audit.window import TIME_MS_MAX, WINDOW_MS, counted_window
from headrace.avro_codec import BadBody, UnreadableValue
from headrace.avro_codec.core.library import OLD_DAY, SOURCE_FUTURE, SOURCE_NONE, SOURCES, UNREAD
from headrace.avro_codec.program import UNITS_BY_NUMBER
from headrace.avro_schema.message_time import TimeUnit
from headrace.avro_schema.wire import PREFIX_BYTES, VALUE_HEADER
from headrace.kafka_wire.record_batch import NO_HEADERS, Record
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.policy import QUARANTINE
from headrace.loader.project.batches import Columns, CoreResult, RowRun, RowsOfBatches
from headrace.loader.project.implausible_times import NO_TIMESTAMP, ImplausibleTimes
from headrace.loader.project.kafka_column import Suffix
from headrace.loader.project.quarantine import BadMessage, QuarantineCode, encode_row
from headrace.loader.project.topic_projection import (
    FUTURE_TIME,
    OUT_OF_RANGE_TIME,
    RECORD_TIME,
    TopicProjection,
    UnknownSchema,
    WriterProjection,
    unframe_message,
)
from headrace.loader.read.batch_neighbors import CorruptSpan
from headrace.loader.read.range_reader import ReadProgress, StopBefore
from headrace.loader.work_unit import AuditCount, FileKind, ImplausibleTimeCount, SkippedOffsets

ID_HEADER = VALUE_HEADER.encode()

BROKER, WRITTEN, QUARANTINED = 0, 3, 6
"""A window begins with nine numbers: count, bytes and fingerprint of the messages read, written and quarantined. These
are the indexes of the three counts."""
NO_TIME, TOTAL_MS, FIRST_MS, FIRST_SLICE = 9, 10, 11, 12
"""The indexes of the other numbers of a window: the arguments of `audit.latency.WindowTimes.of`."""
AUDIT_KINDS = ((BROKER, "broker", ""), (WRITTEN, "loader", "written"), (QUARANTINED, "loader", "quarantined"))

AddRow = Callable[[FileKind, str, int, bytes], None]
"""Receives a row: kind (table or quarantine), time partition, offset and encoded row. Offsets of one kind and time
partition increase."""


class StopBeforeUnknownSchema(StopBefore):
    """Raised at the message at `offset`, because it has a schema id that the plan does not know."""

    def __init__(self, offset: int, schema_id: int) -> None:
        super().__init__(offset)
        self.schema_id = schema_id


@dataclass(frozen=True, slots=True)
class Clamp:
    """Limits how far a message's time may be after its arrival. Beyond `future_ms_max`, the time of the arrival decides
    the time partition instead.

    The arrival is the record's timestamp, or `now_ms`, the start of the run, if the record has no timestamp or one in
    the future too (a producer's wrong clock). The audit still counts the message in the window of the message's time.
    """

    future_ms_max: int
    now_ms: int

    def arrival_ms(self, timestamp_ms: int) -> int:
        return timestamp_ms if 0 <= timestamp_ms <= self.now_ms else self.now_ms

    def is_future(self, time_ms: int, timestamp_ms: int) -> bool:
        return time_ms > self.arrival_ms(timestamp_ms) + self.future_ms_max


@dataclass(frozen=True, slots=True)
class CoreConversion:
    """The objects with which the C core converts one range: `rows` converts batches of records, and `add_run` receives
    the converted rows, with their kind (table or quarantine) and time partition."""

    rows: RowsOfBatches
    period_ms: int
    add_run: Callable[[FileKind, str, RowRun], None]


def _source_of(writer: WriterProjection, source: int) -> str:
    """Returns the name of the place from which a message time came, such as the time field; messages are counted by
    this name.

    Args:
        writer: the conversion of the message.
        source: the core's number for the place.
    """
    if source == SOURCE_FUTURE:
        return FUTURE_TIME
    return writer.timeless_source if source == SOURCE_NONE or not writer.time_sources else writer.time_sources[source]


class RangeMessages:
    """Converts the messages of one range to rows, and counts them.

    Args:
        add: receives each row.
        time_partition_of: returns the time partition of a time in milliseconds.
        suffix: encodes the `kafka` column.
        topic_windows: the windows counted so far for this topic, shared by the ranges of a task. They are at most
            `WINDOWS_MAX`.
        clamp: corrects times in the future; None for no correction.
        core: converts whole batches if available.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        projection: TopicProjection,
        add: AddRow,
        time_partition_of: Callable[[int], str],
        suffix: Suffix,
        topic_windows: set[int],
        clamp: Clamp | None,
        core: CoreConversion | None = None,
    ) -> None:
        self.written = self.tombstones = self.quarantined = self.by_reference = 0
        self.time_sources: dict[str, int] = {}
        self.quarantine_codes: dict[str, int] = {}
        self._topic = topic_partition.topic
        self._partition = topic_partition.partition
        self._projection = projection
        self._add = add
        self._time_partition_of = time_partition_of
        self._suffix = suffix
        self._by_prefix: dict[bytes, WriterProjection] = {}
        self._windows: dict[int, list[int]] = {}
        self._special_windows: dict[int, list[int]] = {}
        self._topic_windows = topic_windows
        self._clamp = clamp
        self._core = core
        self._writers: dict[int, WriterProjection] = {}
        self._implausible_times = ImplausibleTimes()

    def convert(self, records: Sequence[Record]) -> None:
        """Makes a row of every record of a batch that has a value.

        Raises:
            StopBeforeUnknownSchema: a schema id is unknown; the messages before it are converted.
        """
        is_near_cap = len(self._topic_windows) + len(records) > window.WINDOWS_MAX
        if self._core is None or not isinstance(records, Columns) or is_near_cap:
            self._convert_in_python(records)
        else:
            self._convert_in_core(self._core, records)

    def _convert_in_core(self, core: CoreConversion, records: Columns) -> None:
        """Converts the records of a batch in the core. Each message that the core does not accept is converted in
        Python."""
        position = 0
        while position < len(records):
            result = core.rows.convert(records, position)
            self._count(core.rows, result)
            for run in result.runs:
                core.add_run(FileKind.DATA, self._time_partition_of(run.period * core.period_ms), run)
            position = result.next
            if result.is_refused:
                self.by_reference += 1
                self._convert_in_python((records[position],))
                position += 1

    def _count(self, rows: RowsOfBatches, result: CoreResult) -> None:
        """Adds the counts in `result`, the result of a conversion by the core, to the counts of the range.

        Args:
            rows: the conversion that returned `result`; its `schema_ids` give the meaning of the program numbers.
        """
        writers = [self._writers[schema_id] for schema_id in rows.schema_ids]
        self.tombstones += result.tombstones
        for one in result.windows:
            counters = self._windows.get(one.start_ms)
            if counters is None:
                writer = writers[one.program]
                source = _source_of(writer, one.source)
                unit = UNITS_BY_NUMBER[one.unit] if one.source < SOURCE_NONE and writer.time_sources else None
                counters = self._open_window(one.time_ms, source, unit, one.value)
            for at in (BROKER, WRITTEN):
                counters[at] += one.count
                counters[at + 1] += one.bytes
                counters[at + 2] += one.fingerprint
            counters[NO_TIME] += one.no_time
            counters[TOTAL_MS] += one.total_ms
            counters[FIRST_MS] = min(counters[FIRST_MS], one.first_ms)
            counters[FIRST_SLICE:] = map(operator.add, counters[FIRST_SLICE:], memoryview(one.slices).cast("I"))
            self.written += one.count
        for index, count in enumerate(result.sources):
            if count:
                number, writer = index % SOURCES, writers[index // SOURCES]
                if number == OLD_DAY:
                    self._implausible_times.note_old_days(count)
                    continue
                if number >= UNREAD:
                    self._implausible_times.note_unread(writer.time_sources[number - UNREAD], count)
                    continue
                source = _source_of(writer, number)
                self.time_sources[source] = self.time_sources.get(source, 0) + count

    def _convert_in_python(self, records: Iterable[Record]) -> None:
        """Converts the records one by one in Python. This is the specification of the conversion; it is also a hot
        loop."""
        by_prefix, windows, sources = self._by_prefix, self._windows, self.time_sources
        add, suffix, time_partition_of, clamp = self._add, self._suffix, self._time_partition_of, self._clamp
        for offset, timestamp, key, value, headers in records:
            if value is None:
                self.tombstones += 1
                continue
            # Searching for the header's name costs less than parsing the headers, and few messages have it.
            is_framed = headers is NO_HEADERS or ID_HEADER not in headers
            writer = by_prefix.get(value[:PREFIX_BYTES]) if is_framed else None
            body = value[PREFIX_BYTES:]
            if writer is None:
                writer, body = self._find_writer(offset, value, NO_HEADERS if is_framed else headers)
            captured_time = writer.captured_time
            captured_time.value, captured_time.unread, writer.old_day.is_found = None, 0, False
            row = bad = None
            if writer.project is None:
                bad = writer.bad
                if writer.note_time is not None:
                    writer.note_time(body)
            else:
                try:
                    row = writer.project(body)
                except BadBody as error:
                    is_readable = not isinstance(error, UnreadableValue)
                    code = QuarantineCode.MALFORMED if is_readable else QuarantineCode.UNREADABLE
                    bad = BadMessage(code, str(error), writer.schema_id)
            if captured_time.unread:
                self._note_unread(writer)
            time_ms = number = timestamp
            unit: TimeUnit | None = None
            source = writer.timeless_source
            if captured_time.value is not None:
                time_ms, number, unit = captured_time.time_ms, captured_time.value, captured_time.unit
                source = writer.time_sources[captured_time.rank]
            since_start_ms = time_ms % WINDOW_MS
            counters = windows.get(time_ms - since_start_ms)
            if counters is None:
                counters = self._open_window(time_ms, source, unit, number)
            size = len(value) if key is None else len(key) + len(value)
            fingerprint = message_hash(key, value)
            counters[0] += 1
            counters[1] += size
            counters[2] += fingerprint
            counters[NO_TIME] += captured_time.value is None and bool(writer.time_sources)
            counters[TOTAL_MS] += since_start_ms
            counters[FIRST_MS] = min(counters[FIRST_MS], since_start_ms)
            counters[FIRST_SLICE + since_start_ms // SLICE_MS] += 1
            if row is not None:
                if not 0 <= time_ms <= TIME_MS_MAX:
                    time_ms = timestamp
                    source = OUT_OF_RANGE_TIME if unit is not None else source
                if clamp is not None and clamp.is_future(time_ms, timestamp):
                    time_ms, source = clamp.arrival_ms(timestamp), FUTURE_TIME
                add(FileKind.DATA, time_partition_of(time_ms), offset, row + suffix(offset, timestamp, key, headers))
                self.written += 1
                counters[3] += 1
                counters[4] += size
                counters[5] += fingerprint
                sources[source] = sources.get(source, 0) + 1
                if writer.old_day.is_found:
                    self._implausible_times.note_old_days(1)
            else:
                assert bad is not None
                quarantined = encode_row(self._partition, offset, timestamp, key, value, headers, bad)
                add(FileKind.QUARANTINE, time_partition_of(timestamp), offset, quarantined)
                self.quarantined += 1
                self._count_code(bad.code)
                counters[6] += 1
                counters[7] += size
                counters[8] += fingerprint

    def _count_code(self, code: QuarantineCode) -> None:
        self.quarantine_codes[code.value] = self.quarantine_codes.get(code.value, 0) + 1

    def _note_unread(self, writer: WriterProjection) -> None:
        """Counts the texts in the time fields of the last message that are not times.

        Args:
            writer: the conversion of the message.
        """
        for rank, source in enumerate(writer.time_sources):
            if writer.captured_time.unread >> rank & 1:
                self._implausible_times.note_unread(source, 1)

    def _open_window(self, time_ms: int, source: str, unit: TimeUnit | None, value: int) -> list[int]:
        """Returns the counters for a message time in a window that has no counters yet: new ones, or the counters of a
        special window if the time is implausible.

        Args:
            source: the name of the place from which the time came.
            unit: the unit of the number in that place, None if the time is the record's timestamp.
            value: this number, before conversion to milliseconds.
        """
        start_ms = counted_window(time_ms, self._topic_windows)
        if unit is not None:
            self._implausible_times.note(start_ms, source, unit, value, time_ms)
        elif value != NO_TIMESTAMP:
            self._implausible_times.note(start_ms, RECORD_TIME, TimeUnit.MILLIS, value, time_ms)
        if start_ms < 0:
            return self._special_windows.setdefault(start_ms, _new_counters())
        self._topic_windows.add(start_ms)
        return self._windows.setdefault(start_ms, _new_counters())

    def _find_writer(self, offset: int, value: bytes, headers: bytes) -> tuple[WriterProjection, bytes]:
        """Returns the projection for a message, and its body. Called for messages that may have a schema id in a
        header, for those without a valid id, and for the first message with each prefix (the first bytes, with the
        schema id).

        Args:
            offset: the message's offset, for the error.
            value: the message's value: the body, with or without a prefix.

        Raises:
            StopBeforeUnknownSchema: the plan does not know the schema id.
        """
        found = unframe_message(value, headers)
        if isinstance(found, BadMessage):
            return WriterProjection.unconvertible(found), value
        schema_id, body = found
        try:
            writer = self._projection.writer(schema_id)
        except UnknownSchema as error:
            raise StopBeforeUnknownSchema(offset, schema_id) from error
        if headers is NO_HEADERS:
            self._by_prefix[value[:PREFIX_BYTES]] = writer
            if self._core is not None and writer.program is not None and schema_id not in self._writers:
                self._writers[schema_id] = writer
                self._core.rows.add(schema_id, writer.program, has_time_field=bool(writer.time_sources))
        return writer, body

    def skip_corrupt(self, corrupt_batches: str, span: CorruptSpan) -> SkippedOffsets:
        """Skips a corrupt batch, and returns its offsets for the commit.

        With `quarantine`, one quarantine row with the bytes of the whole batch is written. It has the batch's first
        offset in the range, and is in the time partition of the timestamp in the batch's header if that is plausible.
        The messages of the batch are unknown, so the audit does not count them.

        Args:
            corrupt_batches: the setting `loader.corrupt_batches`: `quarantine` or `skip`.
            span: the batch.
        """
        is_quarantined = corrupt_batches == QUARANTINE
        if is_quarantined:
            time_ms = span.timestamp_ms if 0 <= span.timestamp_ms <= TIME_MS_MAX else NO_TIMESTAMP
            reason = f"offsets {span.start} to {span.end - 1}: {span.reason}"
            bad = BadMessage(QuarantineCode.CORRUPT_BATCH, reason)
            row = encode_row(self._partition, span.start, time_ms, None, span.batch, NO_HEADERS, bad)
            self._add(FileKind.QUARANTINE, self._time_partition_of(time_ms), span.start, row)
            self._count_code(bad.code)
        return SkippedOffsets(span.start, span.end, span.reason, is_quarantined)

    def audit(self) -> tuple[AuditCount, ...]:
        """Returns the audit counts of the range, ordered by tier and outcome, then by window."""
        topic, partition = self._topic, self._partition
        return tuple(
            AuditCount(
                tier,
                topic,
                partition,
                start,
                n[at],
                n[at + 1],
                n[at + 2] & FINGERPRINT_MASK,
                outcome,
                *((n[NO_TIME], n[TOTAL_MS], n[FIRST_MS], tuple(n[FIRST_SLICE:])) if at == BROKER else ()),
            )
            for at, tier, outcome in AUDIT_KINDS
            for start, n in (*sorted(self._special_windows.items()), *sorted(self._windows.items()))
            if n[at]
        )

    def implausible_times(self) -> tuple[ImplausibleTimeCount, ...]:
        """Returns the implausible times of the range, for the report."""
        return self._implausible_times.counts(self._windows)


def _new_counters() -> list[int]:
    return [*[0] * FIRST_MS, WINDOW_MS, *[0] * SLICES]


class LookAheadLimitReached(Exception):
    """Raised by `UnknownIds` to stop reading when the maximum number of ids, or of bytes to look ahead, is reached."""


class UnknownIds:
    """Collects, from the rest of a range, the schema ids that the plan does not know, in the order of the log.
    Pass `collect` to `read_range`.

    Args:
        first: the unknown id that stopped the range.
        tally: the tally that the same `read_range` updates; its `bytes_read` is compared with `bytes_max`.
        ids_max: limits the number of ids.
        bytes_max: limits the bytes read ahead; all of them are read again later.
    """

    def __init__(
        self, first: int, projection: TopicProjection, tally: ReadProgress, *, ids_max: int, bytes_max: int
    ) -> None:
        self._found = {first: None}
        self._projection = projection
        self._tally = tally
        self._ids_max = ids_max
        self._bytes_max = bytes_max

    @property
    def found(self) -> tuple[int, ...]:
        return tuple(self._found)[: self._ids_max]

    def collect(self, records: Sequence[Record]) -> None:
        for _, _, _, value, headers in records:
            if value is None:
                continue
            message = unframe_message(value, headers)
            if not isinstance(message, BadMessage) and not self._projection.knows(message[0]):
                self._found[message[0]] = None
        if len(self._found) >= self._ids_max or self._tally.bytes_read >= self._bytes_max:
            raise LookAheadLimitReached
