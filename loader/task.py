"""One task of the pool: reads ranges, converts messages to rows and writes staged files. Returns errors as values.

Does not depend on Spark. `read.range_reader` passes batches to `project.messages`, which converts each body to a row
for `write.range_rows`. When the read of the range has ended, its rows are added to files. Every offset that was read is
classified: records, tombstones, control records, aborted records, gaps, quarantined messages and skipped corrupt
batches add up to the offsets read.

If a range fails in the middle, the part before the failure is returned. It is complete, because messages are processed
in offset order and each is counted when its row is added. If a failure makes the whole range unreliable (the topic was
re-created, a defect of Headrace), nothing of it is returned. If a file cannot be written, nothing of any range is
returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from headrace.avro_codec import core_library
from headrace.avro_schema import AvroSchemaError
from headrace.kafka_wire.cluster import FetchSlice, KafkaCluster
from headrace.kafka_wire.errors import CorruptBatch, ErrorResponse, KafkaError, KafkaUnavailable, LogChanged
from headrace.kafka_wire.record_batch import Record
from headrace.loader.build import current_build
from headrace.loader.load_schema import load_schema_with_kafka
from headrace.loader.policy import FAIL, TopicPolicy
from headrace.loader.project.batches import OutputBuffers, RecordColumns, RowsOfBatches
from headrace.loader.project.kafka_column import compile_suffix
from headrace.loader.project.messages import (
    Clamp,
    CoreConversion,
    LookAheadLimitReached,
    RangeMessages,
    StopBeforeUnknownSchema,
    UnknownIds,
)
from headrace.loader.project.quarantine import SCHEMA
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.read.batch_neighbors import CorruptSpan
from headrace.loader.read.range_reader import ReadOptions, ReadProgress, read_range
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import BlockSink
from headrace.loader.work_unit import (
    CorruptBatchStop,
    FileKind,
    OffsetRange,
    RangeCounts,
    RangeResult,
    SkippedOffsets,
    StagedFile,
    UnitResult,
    WorkUnit,
)
from headrace.loader.write.container import SYNC_BYTES, ContainerFormat
from headrace.loader.write.range_rows import RangeRows
from headrace.loader.write.task_files import TaskFiles
from headrace.loader.write.time_partitions import TimePartitions

logger = logging.getLogger(__name__)

UNKNOWN_IDS_MAX = 1_000  # per range: limits the size of the result
LOOK_AHEAD_BYTES_MAX = 64 * 1024 * 1024  # read only to find unknown ids, so read again later


NewSink = Callable[[str, int], BlockSink]
"""Creates the writer of a task's files, a `BlockSink`, from the run's staging directory and the task's number."""


def run_work_unit(unit: WorkUnit, new_sink: NewSink = LocalSink, sync: bytes = b"") -> UnitResult:
    """Reads the offset ranges of a unit and writes their files to staging. Failures of brokers, disks or data are
    returned in the result.

    Args:
        new_sink: creates the writer of the task's files.
        sync: the sync marker of the files, 16 bytes; random by default.
    """
    started, started_at_ms = time.monotonic(), time.time_ns() // 1_000_000
    build = current_build()

    def result(ranges: Sequence[RangeResult], *, error: str = "", disk_error: str = "") -> UnitResult:
        duration_ms = round((time.monotonic() - started) * 1000)
        return UnitResult(unit.task, tuple(ranges), (), build, duration_ms, error, disk_error, started_at_ms)

    def empty_results(reason: str) -> list[RangeResult]:
        return [_empty_result(offsets, reason) for offsets in unit.ranges]

    if unit.build and unit.build != build:
        reason = (
            f"task {unit.task} runs {build}, but the driver runs {unit.build}; install the same Headrace and "
            "Python for both"
        )
        return result(empty_results("not read"), error=reason)
    staging = f"{unit.settings.staging} on {socket.gethostname()}"
    try:
        task = _Task(unit, new_sink, sync or secrets.token_bytes(SYNC_BYTES))
    except ValueError as error:
        reason = f"task {unit.task} cannot start with {unit.settings.bootstrap_servers}: {error}"
        return result(empty_results(reason), error=reason)
    except OSError as error:
        reason = f"cannot write to {staging}: {error}"
        return result(empty_results(reason), disk_error=reason)
    try:
        ranges = [task.run(*pair) for pair in zip_longest(unit.ranges, unit.ranges[1:])]
        return dataclasses.replace(result(ranges), files=task.finish())
    except OSError as error:
        # A file shared by several ranges may be truncated, so none of them counts as read.
        reason = f"cannot write to {staging}: {error}"
        return result(empty_results(reason), disk_error=reason)
    finally:
        task.close()


def _empty_result(offsets: OffsetRange, error: str) -> RangeResult:
    return RangeResult(dataclasses.replace(offsets, end=offsets.start), RangeCounts(), error=error)


@dataclass(frozen=True, slots=True)
class _StopReason:
    """The reason why the read of a range stopped: an error, unknown schema ids, or a corrupt batch. All fields are
    empty if the read reached the end of the range."""

    error: str = ""
    is_broker_error: bool = False
    unknown_ids: tuple[int, ...] = ()
    corrupt: CorruptBatchStop | None = None


class _Task:
    """State shared by the ranges of one unit: broker connections, projections by topic, open files."""

    def __init__(self, unit: WorkUnit, new_sink: NewSink, sync: bytes) -> None:
        self._unit = unit
        self._settings = unit.settings
        self._core = core_library()
        self._buffers = OutputBuffers()
        self._new_sink = new_sink
        self._sync = sync
        self._formats: dict[tuple[FileKind, str], ContainerFormat] = {}
        self._projections: dict[str, TopicProjection] = {}
        self._windows: dict[str, set[int]] = {}
        self._time_partitions = {name: TimePartitions(plan.policy.partition_by) for name, plan in unit.topics.items()}
        self._cluster = KafkaCluster(
            self._settings.bootstrap_servers, self._settings.fetch_timeout_ms / 1000, security=self._settings.security
        )
        self._cluster.expect_topics(unit.topics)
        self._sink = new_sink(unit.settings.staging, unit.task)
        self._files = self._new_files(self._sink)
        self._finished: list[StagedFile] = []

    def finish(self) -> tuple[StagedFile, ...]:
        """Finishes the files of all ranges and returns them. On a local file system they are then fsynced.

        Raises:
            OSError: the files cannot be written.
        """
        return (*self._finished, *self._files.finish())

    def close(self) -> None:
        self._cluster.close()
        self._files.abandon()

    def _new_files(self, sink: BlockSink) -> TaskFiles:
        return TaskFiles(
            sink,
            self._format,
            {"headrace.run_id": self._unit.run_id, "headrace.task": str(self._unit.task)},
            block_bytes=self._settings.block_bytes,
            file_bytes_target=self._settings.file_bytes_target,
        )

    def run(self, offsets: OffsetRange, next_range: OffsetRange | None = None) -> RangeResult:
        """Reads one offset range and adds its rows to files. Returns the result of the range.

        Args:
            offsets: the range.
            next_range: the next range. Its first fetch is sent while the last messages of this range are processed;
                with many small partitions, waiting for fetches would otherwise take as long as the processing.

        Raises:
            OSError: the files cannot be written.
        """
        topic_partition = offsets.topic_partition
        partition_text = f"topic {topic_partition.topic} partition {topic_partition.partition}"
        try:
            projection = self._projection(topic_partition.topic)
            self._format(FileKind.DATA, topic_partition.topic)  # raises here if the load schema is invalid
        except (AvroSchemaError, KeyError) as error:
            reason = f"the load schema cannot be read, so nothing of this range was read: {error}"
            return _empty_result(offsets, f"{partition_text} offset {offsets.start}: {reason}")
        rows = RangeRows(
            topic_partition.topic,
            topic_partition.partition,
            self._format,
            block_bytes=self._settings.block_bytes,
            scratch=self._sink.scratch,
        )
        progress = ReadProgress(offsets.start)
        policy = self._unit.topics[topic_partition.topic].policy
        time_partitions = self._time_partitions[topic_partition.topic]
        clamp = None if policy.future_ms_max is None else Clamp(policy.future_ms_max, self._settings.now_ms)
        messages = RangeMessages(
            topic_partition,
            projection,
            rows.add,
            time_partitions,
            compile_suffix(policy.kafka_column, topic_partition.partition),
            self._windows.setdefault(topic_partition.topic, set()),
            clamp,
            self._core_conversion(policy, topic_partition.partition, time_partitions, clamp, rows),
        )

        def process(records: Sequence[Record]) -> None:
            messages.convert(records)
            rows.limit_memory()

        try:
            stop = self._read_to_stop(offsets, projection, messages, process, progress, next_range)
        except LogChanged as changed:
            rows.drop()
            return _empty_result(offsets, str(changed))
        except OSError:
            raise
        except Exception as defect:
            # A defect in Headrace must not fail further ranges. The counts so far are discarded.
            logger.exception("range failed %s offset=%d", partition_text, progress.position)
            rows.drop()
            return _empty_result(
                offsets, f"{partition_text} offset {progress.position}: {type(defect).__name__}: {defect}"
            )
        self._add_to_files(offsets, rows)
        return _range_result(offsets, progress, messages, stop)

    def _core_conversion(
        self, policy: TopicPolicy, partition: int, time_partitions: TimePartitions, clamp: Clamp | None, rows: RangeRows
    ) -> CoreConversion | None:
        """Returns the converter that uses the C core, for one range; None if the core is not built.

        Args:
            policy: the settings of the range's topic.
            partition: the range's partition.
            time_partitions: assigns rows to time partitions.
            clamp: replaces event times that are too long after the arrival of the message; None for no correction.
            rows: receives the rows.
        """
        if self._core is None:
            return None
        limits = None if clamp is None else (clamp.future_ms_max, clamp.now_ms)
        converter = RowsOfBatches(
            self._core, self._buffers, policy.kafka_column, partition, time_partitions.period_ms, limits
        )
        return CoreConversion(converter, time_partitions.period_ms, rows.add_run)

    def _add_to_files(self, offsets: OffsetRange, rows: RangeRows) -> None:
        """Adds the rows of the range `offsets` to files.

        A range can only be committed if the range before it is complete, and a file only if all its ranges are
        committed. If another piece of the same partition comes before this one (`OffsetRange.follows_another`), this
        one therefore gets separate files.
        """
        if not offsets.follows_another:
            rows.finish_into(self._files)
            return
        separate_files = self._new_files(self._new_sink(self._settings.staging, self._unit.task))
        try:
            rows.finish_into(separate_files)
            self._finished += separate_files.finish()
        finally:
            separate_files.abandon()

    def _read_to_stop(
        self,
        offsets: OffsetRange,
        projection: TopicProjection,
        messages: RangeMessages,
        process: Callable[[Sequence[Record]], None],
        progress: ReadProgress,
        next_range: OffsetRange | None,
    ) -> _StopReason:
        """Reads the range `offsets` to its end, or to a message with an unknown schema, a corrupt batch or a broker
        error. Returns the reason why it stopped.

        Args:
            projection: the conversions of the topic's messages, by schema id.
            messages: converts the messages and counts them.
            process: passes records to `messages`.
            progress: counts the offsets read; updated.
            next_range: the next range, which is fetched in advance.
        """
        corrupt_batches = self._unit.topics[offsets.topic_partition.topic].policy.corrupt_batches
        try:
            skip_corrupt = None if corrupt_batches == FAIL else partial(messages.skip_corrupt, corrupt_batches)
            self._read(offsets, process, progress, skip_corrupt, next_range)
        except StopBeforeUnknownSchema as stop:
            return _StopReason(
                unknown_ids=self._find_unknown_ids(offsets, projection, progress.position, stop.schema_id)
            )
        except LogChanged:
            raise
        except CorruptBatch as error:
            next_offset = -1 if error.next_offset is None else error.next_offset
            return _StopReason(str(error), corrupt=CorruptBatchStop(progress.position, next_offset))
        except KafkaError as error:
            topic_partition = offsets.topic_partition
            partition_text = f"topic {topic_partition.topic} partition {topic_partition.partition}"
            message = str(error)
            return _StopReason(
                message if partition_text in message else f"{partition_text} offset {progress.position}: {message}",
                is_broker_error=isinstance(error, (KafkaUnavailable, ErrorResponse)),
            )
        return _StopReason()

    def _read(
        self,
        offsets: OffsetRange,
        process: Callable[[Sequence[Record]], None],
        progress: ReadProgress,
        skip_corrupt: Callable[[CorruptSpan], SkippedOffsets] | None = None,
        next_range: OffsetRange | None = None,
    ) -> None:
        def fetch(offset: int, bytes_max: int | None = None, /) -> FetchSlice:
            return self._cluster.fetch(
                offsets.topic_partition,
                offset,
                bytes_max or self._settings.fetch_bytes,
                topic_id=offsets.topic_id,
                leader_epoch=offsets.leader_epoch,
            )

        options = ReadOptions(
            batch_bytes_max=self._unit.topics[offsets.topic_partition.topic].policy.record_bytes_max,
            timeout_s=self._settings.fetch_timeout_ms / 1000,
            skip_corrupt=skip_corrupt,
            record_parser=None if self._core is None else RecordColumns(self._core),
            prefetch=partial(self._fetch_ahead, offsets),
            fetch_following=None if next_range is None else partial(self._fetch_ahead, next_range, next_range.start),
        )
        read_range(fetch, offsets, process, progress, options)

    def _fetch_ahead(self, offsets: OffsetRange, position: int) -> None:
        self._cluster.prefetch(
            offsets.topic_partition,
            position,
            self._settings.fetch_bytes,
            topic_id=offsets.topic_id,
            leader_epoch=offsets.leader_epoch,
        )

    def _find_unknown_ids(
        self, offsets: OffsetRange, projection: TopicProjection, position: int, first: int
    ) -> tuple[int, ...]:
        """Returns the schema ids that the plan does not know, of the messages from `position` on in the range
        `offsets`. Ends at the end of the range, after `UNKNOWN_IDS_MAX` ids or `LOOK_AHEAD_BYTES_MAX` bytes, or at a
        broker error. The driver looks up all these ids together, so that the range usually stops only once.

        Args:
            projection: has the schemas that the plan knows.
            first: the unknown id at this position, which stopped the range.
        """
        progress = ReadProgress(position)
        ids = UnknownIds(first, projection, progress, ids_max=UNKNOWN_IDS_MAX, bytes_max=LOOK_AHEAD_BYTES_MAX)
        # If the Kafka error persists, the next read raises it again.
        with contextlib.suppress(LookAheadLimitReached, KafkaError):
            self._read(offsets, ids.collect, progress)
        return ids.found

    def _projection(self, topic: str) -> TopicProjection:
        projection = self._projections.get(topic)
        if projection is None:
            plan = self._unit.topics[topic]
            projection = self._projections[topic] = TopicProjection(plan, plan.policy.time_fields)
        return projection

    def _format(self, kind: FileKind, topic: str) -> ContainerFormat:
        container_format = self._formats.get((kind, topic))
        if container_format is None:
            quarantine = kind is FileKind.QUARANTINE
            plan = self._unit.topics[topic]
            text = SCHEMA if quarantine else load_schema_with_kafka(plan.load_schema, plan.policy.kafka_column)
            container_format = self._formats[kind, topic] = ContainerFormat(text, plan.policy.codec, self._sync)
        return container_format


def _range_result(
    offsets: OffsetRange, progress: ReadProgress, messages: RangeMessages, stop: _StopReason
) -> RangeResult:
    counts = RangeCounts(
        records=messages.written,
        tombstones=messages.tombstones,
        control=progress.control,
        aborted=progress.aborted,
        gaps=progress.gap_offsets,
        quarantined=messages.quarantined,
        corrupt=progress.corrupt,
    )
    done = dataclasses.replace(offsets, end=progress.position)
    assert counts.total == done.end - done.start, f"{counts} do not add up to {done}"
    return RangeResult(
        done=done,
        counts=counts,
        gaps=tuple(progress.gaps),
        audit=messages.audit(),
        time_sources=dict(messages.time_sources),
        bytes_read=progress.bytes_read,
        error=stop.error,
        is_broker_error=stop.is_broker_error,
        unknown_ids=stop.unknown_ids,
        implausible_times=messages.implausible_times(),
        epochs=progress.epochs.below(done.end),
        skipped=tuple(progress.skipped),
        corrupt_stop=stop.corrupt,
        by_reference=messages.by_reference,
        quarantine_codes=dict(messages.quarantine_codes),
    )
