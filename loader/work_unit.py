"""What a task is given and what it returns: plain values that travel between the driver and the Python workers.

Offsets are half-open, `[start, end)`. A work unit is planned, run, then committed; nothing in it is changed in
between. Everything here can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.kafka_wire.security import UNSECURED, KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.epochs import NOTHING_READ, ReadEpochs
from headrace.loader.load_schema import KeptRoute
from headrace.loader.policy import TopicPolicy


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one topic-partition; end is exclusive, like the log end offset.

    `topic_id` is the broker's id of the topic's present incarnation ("" when the broker gives none) and `leader_epoch`
    the epoch at planning (-1 when unknown). `bytes_estimate` is the planner's weight, in bytes. `follows_another` says
    that the same run reads what comes before `start` as a range of its own: this one is committed only if that one is
    whole, so it shares no file with any other.
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
            raise ValueError(f"offset range [{self.start}, {self.end}) of {self.topic_partition} is not a range")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a task must know of one topic.

    `load_schema` is the text of the Avro schema that the files are written in, without the `kafka` column, which
    the writer appends as `policy` says. `writer_schemas` maps schema id to self-contained schema text;
    `absent_ids` are ids that the registry was asked for by name and does not have: their messages are quarantined.
    `time_property` is the subject's metadata property `headrace.time`, or "". `routes` maps the ids of the subject's
    versions to the routes they were folded in by.
    """

    topic: str
    load_schema: str
    writer_schemas: Mapping[int, str]
    policy: TopicPolicy
    absent_ids: frozenset[int] = frozenset()
    time_property: str = ""
    routes: Mapping[int, KeptRoute] = field(default_factory=dict)


BLOCK_BYTES = 1024 * 1024  # of one Avro block, before compression


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The part of the settings that tasks need, but for what each topic has its own. Sizes are in bytes."""

    bootstrap_servers: str
    staging: str  # where the work's files go, as `Staging.location` says it; tasks write below it under own names
    file_bytes_target: int
    security: KafkaSecurity = UNSECURED
    block_bytes: int = BLOCK_BYTES
    fetch_bytes: int = 8 * 1024 * 1024  # of one fetch from one partition
    fetch_timeout_ms: int = 30_000
    now_ms: int = 0  # the driver's wall clock at the start of the run, the same for all tasks and attempts


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """The ranges of one task of the pool. `build` is the driver's (Python, headrace) version, compared by the task."""

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
    """Which messages of one partition a file holds: the first and last offset (both inclusive) and how many."""

    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file in the staging directory.

    `path` is relative to `staging/<run id>/` and belongs to one attempt of one task. `time_partition` is the partition
    path, `dt=2013-01-01/hr=05` or `dt=2013-01-01`. `checksum` is the SHA-256 of the bytes, in hex.
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
    """What the offsets of a range were. The sum of all is `end - start`, or the range is not whole."""

    records: int = 0  # written to a data file
    tombstones: int = 0  # null values
    control: int = 0  # transaction markers
    aborted: int = 0  # records of aborted transactions
    gaps: int = 0  # offsets that the log no longer holds (compaction, DeleteRecords inside the range)
    quarantined: int = 0
    corrupt: int = 0  # offsets of batches that cannot be read and were passed over, as the topic's policy says

    @property
    def total(self) -> int:
        known = self.records + self.tombstones + self.control + self.aborted + self.quarantined
        return known + self.gaps + self.corrupt


@dataclass(frozen=True, slots=True)
class SkippedOffsets:
    """Offsets `[start, end)` of a partition that were not read on purpose: by the topic's policy, those of a batch that
    cannot be read, or by an operator's command.

    `reason` is a sentence. `is_kept` says that the bytes of the batch are one row of the topic's quarantine.
    """

    start: int
    end: int
    reason: str
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class CorruptStop:
    """Why a range stopped at `offset`: the batch there cannot be read. `next_offset` is the offset after it, -1 where
    that cannot be told."""

    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class AuditCount:
    """Messages of one topic, tier and window. `fingerprint` is the sum modulo 2**64 of the messages' hashes.

    `outcome` says where messages of tier `loader` went: `written` to the topic's files or `quarantined`. It is ""
    for tier `broker`, which counts what the log holds.
    """

    tier: str  # broker | loader
    topic: str
    partition: int
    window_start_ms: int
    count: int
    bytes: int
    fingerprint: int
    outcome: str = ""


class TimeOddity(StrEnum):
    """What cannot be meant by the times of a field."""

    OUT_OF_RANGE = "out of range"  # before 1970 or after 9999
    SCATTERED = "scattered"  # in more windows than the audit counts apart
    WRONG_UNIT = "wrong unit"  # within range, and a time of our days only in another unit


@dataclass(frozen=True, slots=True)
class OddTimes:
    """Messages of one topic with times that cannot be meant.

    `source` is the field, or `record`, and `unit` the one it is taken for. `value` is the number in one of the
    messages; of scattered times, which have no unit, the time in milliseconds.
    """

    oddity: TimeOddity
    source: str
    unit: str
    messages: int
    value: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What became of one range.

    `done` is the contiguous prefix that was read whole; it is empty (start == end) when nothing can be committed.
    `error` says why the rest was not read, "" when all was. `unknown_ids` is not empty when the range stopped before
    a message whose writer schema the plan does not know: its id, then others like it from further on in the range.
    `time_sources` counts which source gave each message its time (`header.time`, `timestamp`, `record`, …), and
    `odd_times` how many of them cannot be meant.
    `skipped` are batches that cannot be read and did not stop the range, and `corrupt_stop` is one that did.
    `bytes_read` is what came off the wire. `gaps` says where offsets are missing, the first thousand places;
    `counts.gaps` counts all of them. `epochs` are of the batches that hold what is done. `by_reference` are messages
    that the compiled core left to the reference, which is no part of what they became.
    """

    done: OffsetRange
    counts: RangeCounts
    gaps: tuple[tuple[int, int], ...] = ()
    audit: tuple[AuditCount, ...] = ()
    time_sources: Mapping[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    error: str = ""
    unknown_ids: tuple[int, ...] = ()
    odd_times: tuple[OddTimes, ...] = ()
    epochs: ReadEpochs = NOTHING_READ
    skipped: tuple[SkippedOffsets, ...] = ()
    corrupt_stop: CorruptStop | None = None
    by_reference: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UnitResult:
    """All that a task returns.

    `error` is set when the task could not run for a reason that holds for the whole load (a foreign build); it ends the
    load. `disk_error` is set when its files could not be written: then none of its ranges counts as read, and the work
    of other tasks is committed.
    """

    task: int
    ranges: tuple[RangeResult, ...]
    files: tuple[StagedFile, ...]
    build: str
    duration_ms: int
    error: str = ""
    disk_error: str = ""
