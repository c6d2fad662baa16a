"""Inputs and results of tasks: plain values that travel between the driver and the Python workers.

Offsets are half-open, `[start, end)`. A work unit is planned and run, and its result is committed. All values can be
pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.kafka_wire.security import UNSECURED, KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.load_schema import StoredRoute
from headrace.loader.policy import TopicPolicy


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one topic partition.

    `topic_id` is the topic's id ("" if the broker reports none) and `leader_epoch` the epoch at planning (-1 if
    unknown). `bytes_estimate` is the planner's estimate of the size. `follows_another` means that the planner split a
    range, and another piece of it ends at `start`: this piece is committed only if the other piece is complete, so it
    shares no file with other ranges.
    """

    topic_partition: TopicPartition
    start: int
    end: int
    topic_id: str = ""
    leader_epoch: int = -1
    bytes_estimate: int = 0
    follows_another: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(
                f"offset range [{self.start}, {self.end}) of {self.topic_partition}: expected 0 <= start <= end"
            )


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The inputs of a task for one topic.

    `load_schema` is the text of the files' Avro schema without the `kafka` column, which the writer appends according
    to `policy`. `writer_schemas` maps schema ids to self-contained schema texts; `absent_ids` are ids that the registry
    does not have: their messages are quarantined. `time_property` is the subject's metadata property `headrace.time`,
    or "". `routes` maps the schema ids of the subject's versions to their stored routes from fields to columns.
    `newest_id` is the schema id of the newest version, None if unknown.
    """

    topic: str
    load_schema: str
    writer_schemas: Mapping[int, str]
    policy: TopicPolicy
    absent_ids: frozenset[int] = frozenset()
    time_property: str = ""
    routes: Mapping[int, StoredRoute] = field(default_factory=dict)
    newest_id: int | None = None


BLOCK_BYTES = 1024 * 1024  # size of an Avro block before compression


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of a task, except those of each topic. Sizes are in bytes."""

    bootstrap_servers: str
    staging: str  # `Staging.location` of the run; each task attempt writes to a separate directory below it
    file_bytes_target: int
    security: KafkaSecurity = UNSECURED
    block_bytes: int = BLOCK_BYTES
    fetch_bytes: int = 8 * 1024 * 1024  # per fetch and partition
    fetch_timeout_ms: int = 30_000
    now_ms: int = 0  # the driver's wall clock at the start of the run, the same for all tasks and attempts


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """The ranges of one task, with its inputs. `build` identifies the driver's installation, which the task compares
    with its own."""

    run_id: str
    task: int
    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicPlan]
    settings: TaskSettings
    build: str


class FileKind(StrEnum):
    DATA = "data"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class FileRange:
    """The messages of one topic partition in a file: the first and the last offset (both inclusive), and the number of
    messages."""

    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file in the staging directory.

    `path` is relative to `staging/<run id>/` and belongs to one attempt of one task. `time_partition` is
    `dt=2013-01-01/hr=05` or `dt=2013-01-01`. `checksum` is described in `loader.checksum`.
    """

    kind: FileKind
    topic: str
    time_partition: str
    path: str
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """The offsets of a range by kind. In a complete result the numbers add up to `end - start`."""

    records: int = 0  # written to a data file
    tombstones: int = 0  # null values
    control: int = 0  # transaction markers
    aborted: int = 0  # records of aborted transactions
    gaps: int = 0  # offsets that the log no longer holds (compaction, DeleteRecords inside the range)
    quarantined: int = 0
    corrupt: int = 0  # offsets of corrupt batches that were skipped, as the topic's policy says

    @property
    def total(self) -> int:
        known = self.records + self.tombstones + self.control + self.aborted + self.quarantined
        return known + self.gaps + self.corrupt


@dataclass(frozen=True, slots=True)
class SkippedOffsets:
    """Offsets `[start, end)` that were deliberately not read: a corrupt batch, which the topic's policy says to skip,
    or offsets that an operator skipped with `headrace offsets skip`.

    `reason` is a sentence. `is_quarantined` means that the bytes of the batch are one row of the topic's quarantine.
    """

    start: int
    end: int
    reason: str
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class CorruptBatchStop:
    """The corrupt batch at which a range stopped. `offset` is the first offset that was not read, at or before the
    batch. `next_offset` is the offset after the batch, -1 if unknown."""

    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class AuditCount:
    """Messages of one topic partition, tier, outcome and window. `fingerprint` is the sum of the message hashes modulo
    2**64.

    `outcome` of the tier `loader` is `written` or `quarantined`. It is "" for the tier `broker`, which counts the
    messages in the log. Only this tier states where in the window the message times are: the other fields are the
    arguments of `audit.latency.WindowTimes.of`.
    """

    tier: str  # broker | loader
    topic: str
    partition: int
    window_start_ms: int
    count: int
    bytes: int
    fingerprint: int
    outcome: str = ""
    no_time: int = 0
    total_ms: int = 0
    first_ms: int = 0
    slices: tuple[int, ...] = ()


class ImplausibleTimeKind(StrEnum):
    """Kinds of implausible times."""

    OUT_OF_RANGE = "out of range"  # before 1970 or after 9999
    SCATTERED = "scattered"  # in more windows than the audit counts separately
    WRONG_UNIT = "wrong unit"  # within range, but plausible only in another unit
    NO_TIME = "no time"  # a text that is not an ISO 8601 time with a zone
    OLD_DAY = "old day"  # a date or timestamp before 1582-10-15 in any column, which Spark shows as another day


@dataclass(frozen=True, slots=True)
class ImplausibleTimeCount:
    """Messages of one topic with implausible times of one kind.

    `source` is the field with the time, or `record` for the record's timestamp. `unit` is the unit in which the time
    was read, "" for the kinds `SCATTERED` and `NO_TIME`. `value` is an example in this unit, or in milliseconds if
    `unit` is "" or `text`: the time of one of the messages, or the start of its window. It is 0 for `NO_TIME`. Of
    `OLD_DAY`, only the messages are counted; the rest is empty.
    """

    kind: ImplausibleTimeKind
    source: str
    unit: str
    messages: int
    value: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of reading one offset range.

    `done` is the part that was read completely: it begins at the start of the range, and is empty (start == end) if
    nothing can be committed. `error` is the reason why the rest was not read. It is "" if all was read, or if only an
    unknown schema id stopped the range. If the range stopped before a message with a schema id that the plan does not
    know, `unknown_ids` are this id and further unknown ids at later offsets; otherwise it is empty.

    `time_sources` counts the rows by the source of their time (`header.time`, `timestamp`, `record`, …). `skipped` are
    corrupt batches that did not stop the range, `corrupt_stop` is the one that did. `bytes_read` is the size of the
    fetched record batches, without those read ahead for unknown ids. `gaps` are ranges of missing offsets, at most a
    thousand; `counts.gaps` counts all missing offsets. `epochs` are the leader epochs of the batches in `done`.
    `by_reference` counts messages that the C core left to Python, which makes the same rows. `is_broker_error` means
    that the reason in `error` is a broker or its response, not the data or a defect of the loader. `quarantine_codes`
    counts the quarantine rows by `QuarantineCode`.
    """

    done: OffsetRange
    counts: RangeCounts
    gaps: tuple[tuple[int, int], ...] = ()
    audit: tuple[AuditCount, ...] = ()
    time_sources: Mapping[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    error: str = ""
    unknown_ids: tuple[int, ...] = ()
    implausible_times: tuple[ImplausibleTimeCount, ...] = ()
    epochs: ReadEpochs = NO_EPOCHS
    skipped: tuple[SkippedOffsets, ...] = ()
    corrupt_stop: CorruptBatchStop | None = None
    by_reference: int = field(default=0, compare=False)
    is_broker_error: bool = False
    quarantine_codes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The result of a task.

    `error` is set if the task could not run for a reason that applies to the whole load, such as another build; it ends
    the load. `disk_error` is set if the task's files could not be written: none of its ranges counts as read, and the
    other tasks are committed. `started_at_ms` is the time of its start by the clock of its host, in ms since 1970.
    """

    task: int
    ranges: tuple[RangeResult, ...]
    files: tuple[StagedFile, ...]
    build: str
    duration_ms: int
    error: str = ""
    disk_error: str = ""
    started_at_ms: int = field(default=0, compare=False)
