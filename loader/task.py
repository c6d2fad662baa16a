"""One task of the pool: its ranges read, projected and written to staged files; errors come back as values.

Nothing here knows Spark. For every range the offsets are classified without remainder, so that records, tombstones,
control records, aborted records, gaps and quarantined messages add up to what was read. Messages are counted twice
for the audit: as tier `broker` when they come out of a raw batch, and as tier `loader` where a row for them is made.

A range that fails in the middle gives back the prefix before the failure, which is whole, since messages are worked
through in offset order and each is counted when its row is kept. A failure that puts the whole range in doubt (the
topic was re-created, a file cannot be written) drops all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.window import WINDOW_MS, window_start
from headrace.avro_schema import AvroSchemaError
from headrace.avro_schema.wire import PREFIX_BYTES, VALUE_HEADER
from headrace.kafka_wire.cluster import FetchSlice, KafkaCluster
from headrace.kafka_wire.errors import KafkaError, LogChanged
from headrace.loader.build import current_build
from headrace.loader.load_schema import load_schema_with_kafka
from headrace.loader.native import BadBody, UnreadableValue
from headrace.loader.project.kafka_column import TIME_MS_MAX, compile_suffix
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.project.topic_projection import (
    ABSURD_TIME,
    NULL_TIME,
    RECORD_TIME,
    TopicProjection,
    UnknownSchema,
    WriterProjection,
    framed,
)
from headrace.loader.read.range_reader import NO_HEADERS, Record, Tally, read_range
from headrace.loader.work_unit import (
    AuditCount,
    FileKind,
    OffsetRange,
    RangeCounts,
    RangeResult,
    TaskSettings,
    UnitResult,
    WorkUnit,
)
from headrace.loader.write.container import SYNC_BYTES, ContainerFormat
from headrace.loader.write.task_files import RangeRows, TaskFiles

logger = logging.getLogger(__name__)

PERIOD_MS = {"hour": 3_600_000, "day": 86_400_000}
ID_HEADER = VALUE_HEADER.encode()
UNKNOWN_IDS_MAX = 1_000  # told of one range: enough to ask for together, few enough to travel
LOOK_AHEAD_BYTES_MAX = 64 * 1024 * 1024  # for these ids; all of it is read again

BROKER, WRITTEN, QUARANTINED = 0, 3, 6
"""Where a window's nine numbers hold count, bytes and fingerprint of each kind."""
AUDIT_KINDS = ((BROKER, "broker", ""), (WRITTEN, "loader", "written"), (QUARANTINED, "loader", "quarantined"))


def run_work_unit(unit: WorkUnit) -> UnitResult:
    """Reads the ranges of a unit and stages their files. Never raises for what can go wrong outside this process."""
    started = time.monotonic()
    build = current_build()

    def result(ranges: Sequence[RangeResult], error: str = "") -> UnitResult:
        duration_ms = round((time.monotonic() - started) * 1000)
        return UnitResult(unit.task, tuple(ranges), (), build, duration_ms, error)

    if unit.build and unit.build != build:
        nothing = [_nothing(offsets, "not read") for offsets in unit.ranges]
        return result(nothing, f"task {unit.task} runs {build}, and the driver {unit.build}")
    try:
        staging_dir = Path(unit.settings.staging_dir)
        task = _Task(unit, staging_dir)
    except (OSError, ValueError) as error:
        reason = f"cannot start in {unit.settings.staging_dir} with {unit.settings.bootstrap_servers}: {error}"
        return result([_nothing(offsets, reason) for offsets in unit.ranges], reason)
    try:
        ranges = [task.run(offsets) for offsets in unit.ranges]
        return dataclasses.replace(result(ranges), files=task.files.finish())
    except OSError as error:
        # A file that several ranges share may be cut, so none of them counts as read.
        reason = f"cannot write to {staging_dir}: {error}"
        return result([_nothing(offsets, reason) for offsets in unit.ranges], reason)
    finally:
        task.close()


def _nothing(offsets: OffsetRange, error: str) -> RangeResult:
    return RangeResult(dataclasses.replace(offsets, end=offsets.start), RangeCounts(), error=error)


class _Task:
    """What the ranges of one unit share: the connections, the projections of each topic, the files."""

    def __init__(self, unit: WorkUnit, staging_dir: Path) -> None:
        self._unit = unit
        self._settings = unit.settings
        self._staging_dir = staging_dir
        self._sync = secrets.token_bytes(SYNC_BYTES)
        self._formats: dict[tuple[FileKind, str], ContainerFormat] = {}
        self._projections: dict[str, TopicProjection] = {}
        self._bucket_of = Buckets(self._settings.partition_by)
        self._cluster = KafkaCluster(self._settings.bootstrap_servers, self._settings.fetch_timeout_ms / 1000)
        self.files = TaskFiles(
            staging_dir,
            unit.task,
            self._format,
            {"headrace.work_id": unit.work_id, "headrace.task": str(unit.task)},
            block_bytes=self._settings.block_bytes,
            file_bytes_target=self._settings.file_bytes_target,
        )

    def close(self) -> None:
        self._cluster.close()
        self.files.abandon()

    def run(self, offsets: OffsetRange) -> RangeResult:
        """Works through one range.

        Raises:
            OSError: the files cannot be written.
        """
        topic_partition = offsets.topic_partition
        where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
        try:
            projection = self._projection(topic_partition.topic)
        except (AvroSchemaError, KeyError) as error:
            return _nothing(offsets, f"{where} offset {offsets.start}: the load schema cannot be read: {error}")
        rows = RangeRows(
            topic_partition.topic,
            topic_partition.partition,
            self._format,
            block_bytes=self._settings.block_bytes,
            spill_dir=self._staging_dir,
        )
        work = _RangeWork(offsets, projection, rows, self._bucket_of, self._settings)
        try:
            work.read(self._fetcher(offsets))
        except LogChanged as error:
            rows.drop()
            return _nothing(offsets, str(error))
        except OSError:
            raise
        except Exception as error:
            # A defect of ours must not take the other ranges with it; what was counted so far is not trusted.
            logger.exception("range failed %s offset=%d", where, work.tally.position)
            rows.drop()
            return _nothing(offsets, f"{where} offset {work.tally.position}: {type(error).__name__}: {error}")
        rows.finish_into(self.files)
        return work.result()

    def _fetcher(self, offsets: OffsetRange) -> Callable[[int], FetchSlice]:
        def fetch(offset: int) -> FetchSlice:
            return self._cluster.fetch(
                offsets.topic_partition,
                offset,
                self._settings.fetch_bytes,
                topic_id=offsets.topic_id,
                leader_epoch=offsets.leader_epoch,
            )

        return fetch

    def _projection(self, topic: str) -> TopicProjection:
        found = self._projections.get(topic)
        if found is None:
            found = TopicProjection(self._unit.topics[topic], self._settings.time_fields)
            self._projections[topic] = found
        return found

    def _format(self, kind: FileKind, topic: str) -> ContainerFormat:
        found = self._formats.get((kind, topic))
        if found is None:
            quarantine = kind is FileKind.QUARANTINE
            load_schema = self._unit.topics[topic].load_schema
            text = SCHEMA if quarantine else load_schema_with_kafka(load_schema, self._settings.kafka_column)
            found = self._formats[kind, topic] = ContainerFormat(text, self._settings.codec, self._sync)
        return found


class _RangeWork:
    """One range on its way from records to rows."""

    def __init__(
        self,
        offsets: OffsetRange,
        projection: TopicProjection,
        rows: RangeRows,
        bucket_of: Buckets,
        settings: TaskSettings,
    ) -> None:
        self.tally = Tally(offsets.start)
        self._offsets = offsets
        self._partition = offsets.topic_partition.partition
        self._projection = projection
        self._rows = rows
        self._settings = settings
        self._suffix = compile_suffix(settings.kafka_column, self._partition)
        self._bucket_of = bucket_of
        self._by_prefix: dict[bytes, WriterProjection] = {}
        self._windows: dict[int, list[int]] = {}
        self._sources: dict[str, int] = {}
        self._written = self._tombstones = self._quarantined = 0
        self._error = ""
        self._unknown_ids: tuple[int, ...] = ()

    def read(self, fetch: Callable[[int], FetchSlice]) -> None:
        """Reads until the end, a message of an unknown schema, or an error of the brokers, which is kept."""
        try:
            for records in self._batches(fetch, self.tally):
                self._work_through(records)
        except UnknownSchema as stop:
            self._unknown_ids = self._ids_from_here_on(fetch, stop.schema_id)
        except LogChanged:
            raise
        except KafkaError as error:
            topic_partition = self._offsets.topic_partition
            where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
            said = str(error)
            self._error = said if where in said else f"{where} offset {self.tally.position}: {said}"

    def _batches(self, fetch: Callable[[int], FetchSlice], tally: Tally) -> Iterator[list[Record]]:
        return read_range(
            fetch,
            self._offsets,
            tally,
            batch_bytes_max=self._settings.record_bytes_max,
            patience_s=self._settings.fetch_timeout_ms / 1000,
        )

    def _ids_from_here_on(self, fetch: Callable[[int], FetchSlice], first: int) -> tuple[int, ...]:
        """The schema ids that the plan does not know, from the position on: asked for together, they stop the range
        once and not one after the other."""
        found = {first: None}
        with contextlib.suppress(KafkaError):  # whoever reads on from here will meet it
            ahead = Tally(self.tally.position)
            for records in self._batches(fetch, ahead):
                for _, _, _, value, headers in records:
                    if value is None:
                        continue
                    message = framed(value, headers)
                    if not isinstance(message, BadMessage) and not self._projection.knows(message[0]):
                        found[message[0]] = None
                if len(found) >= UNKNOWN_IDS_MAX or ahead.bytes_read >= LOOK_AHEAD_BYTES_MAX:
                    break
        return tuple(found)[:UNKNOWN_IDS_MAX]

    def result(self) -> RangeResult:
        tally = self.tally
        counts = RangeCounts(
            records=self._written,
            tombstones=self._tombstones,
            control=tally.control,
            aborted=tally.aborted,
            gaps=tally.gap_offsets,
            quarantined=self._quarantined,
        )
        done = dataclasses.replace(self._offsets, end=tally.position)
        assert counts.total == done.end - done.start, f"{counts} do not add up to {done}"
        return RangeResult(
            done=done,
            counts=counts,
            gaps=tuple(tally.gaps),
            audit=self._audit(),
            time_sources=dict(self._sources),
            bytes_read=tally.bytes_read,
            error=self._error,
            unknown_ids=self._unknown_ids,
        )

    def _audit(self) -> tuple[AuditCount, ...]:
        topic = self._offsets.topic_partition.topic
        return tuple(
            AuditCount(tier, topic, self._partition, start, n[at], n[at + 1], n[at + 2] & FINGERPRINT_MASK, outcome)
            for at, tier, outcome in AUDIT_KINDS
            for start, n in sorted(self._windows.items())
            if n[at]
        )

    def _work_through(self, records: list[Record]) -> None:
        """The loop over messages; everything it calls for each of them is meant to be cheap.

        Raises:
            UnknownSchema: the tally has been cut back to before that message.
        """
        by_prefix, windows, sources = self._by_prefix, self._windows, self._sources
        add, suffix, bucket_of = self._rows.add, self._suffix, self._bucket_of
        for offset, timestamp, key, value, headers in records:
            if value is None:
                self._tombstones += 1
                continue
            # A search for the header's name costs less than taking headers apart, which few messages need.
            is_framed = headers is NO_HEADERS or ID_HEADER not in headers
            writer = by_prefix.get(value[:PREFIX_BYTES]) if is_framed else None
            body = value[PREFIX_BYTES:]
            if writer is None:
                try:
                    writer, body = self._find_writer(value, NO_HEADERS if is_framed else headers)
                except UnknownSchema:
                    self.tally.cut_to(offset)
                    raise
            seen = writer.seen
            seen.value = None
            row = bad = None
            if writer.project is None:
                bad = writer.bad
            else:
                try:
                    row = writer.project(body)
                except BadBody as error:
                    is_readable = not isinstance(error, UnreadableValue)
                    code = QuarantineCode.MALFORMED if is_readable else QuarantineCode.UNREADABLE
                    bad = BadMessage(code, str(error), writer.schema_id)
            source = writer.time_source
            if seen.value is None:
                time_ms = timestamp
                if source is not RECORD_TIME:
                    source = NULL_TIME
            else:
                time_ms = seen.value if writer.to_ms is None else writer.to_ms(seen.value)
            window = time_ms - time_ms % WINDOW_MS
            counted = windows.get(window)
            if counted is None:
                counted = windows.setdefault(window_start(window), [0] * 9)
            size = len(value) if key is None else len(key) + len(value)
            fingerprint = message_hash(key, value)
            counted[0] += 1
            counted[1] += size
            counted[2] += fingerprint
            if row is not None:
                if not 0 <= time_ms <= TIME_MS_MAX:
                    time_ms = timestamp
                    source = ABSURD_TIME if seen.value is not None else source
                add(FileKind.DATA, bucket_of(time_ms), offset, row + suffix(offset, timestamp, key, headers))
                self._written += 1
                counted[3] += 1
                counted[4] += size
                counted[5] += fingerprint
                sources[source] = sources.get(source, 0) + 1
            else:
                assert bad is not None
                quarantined = encode_row(self._partition, offset, timestamp, key, value, headers, bad)
                add(FileKind.QUARANTINE, bucket_of(timestamp), offset, quarantined)
                self._quarantined += 1
                counted[6] += 1
                counted[7] += size
                counted[8] += fingerprint

    def _find_writer(self, value: bytes, headers: bytes) -> tuple[WriterProjection, bytes]:
        """The projection of a message whose prefix is met for the first time, or whose schema id is in a header.

        Raises:
            UnknownSchema: the plan does not know its schema id.
        """
        found = framed(value, headers)
        if isinstance(found, BadMessage):
            return WriterProjection.never(found), value
        schema_id, body = found
        writer = self._projection.writer(schema_id)
        if headers is NO_HEADERS:
            self._by_prefix[value[:PREFIX_BYTES]] = writer
        return writer, body


class Buckets:
    """The partition path of a time in milliseconds, in UTC; a time that no day has is filed under 1970-01-01."""

    def __init__(self, partition_by: str) -> None:
        self._period_ms = PERIOD_MS[partition_by]
        self._hourly = partition_by == "hour"
        self._known: dict[int, str] = {}

    def __call__(self, time_ms: int) -> str:
        period = time_ms // self._period_ms
        bucket = self._known.get(period)
        if bucket is None:
            bucket = self._known[period] = self._name(period)
        return bucket

    def _name(self, period: int) -> str:
        start_ms = period * self._period_ms
        if not 0 <= start_ms <= TIME_MS_MAX:
            start_ms = 0
        start = time.gmtime(start_ms // 1000)
        day = f"dt={start.tm_year:04d}-{start.tm_mon:02d}-{start.tm_mday:02d}"
        return f"{day}/hr={start.tm_hour:02d}" if self._hourly else day
