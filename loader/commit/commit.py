"""A commit: one small, immutable file that records the result of one run.

A commit holds, for each topic partition, the offsets `[start, end)` that were read, the files with their rows, a change
of the load schema, the counts per audit window, and gaps (offsets that were skipped). It states only what changed, so
it stays small.

A run writes its commit with the number after the newest commit, by put-if-absent. If another run has taken that number,
`loader.commit.conflict` compares the two: topics with a conflict are discarded, and the run tries the next number with
the others. Nothing is reserved in advance, so a retry, a second driver and a driver that resumes late are handled
alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.audit.count import HASH
from headrace.audit.latency import WindowTimes
from headrace.loader.commit.alarms import Alarm
from headrace.loader.commit.document import CRITICAL
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts, SkippedOffsets

RUN_ID_DIGITS = 8  # last digits of the run id in file names: they distinguish two logs with the same commit number


class CommitKind(StrEnum):
    """The command that made a commit. `EXPIRE` is `headrace expire` or `headrace accept-missing`; both only remove
    files."""

    LOAD = "load"
    CLEAN = "clean"
    COMPACT = "compact"
    EXPIRE = "expire"
    REPLAY = "replay"
    OFFSETS = "offsets"
    BACKFILL = "backfill"
    DISCARD = "discard"
    REPARTITION = "repartition"


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file that a commit adds to a topic.

    `name` is the file's final name in the directory of `time_partition`. Until `Commit.with_number` assigns the commit
    number, it is only the last part of that name, which follows the commit number and the run id. `staged` is the path
    below `staging/<run id>/`. `length` is in bytes.
    """

    kind: FileKind
    time_partition: str
    name: str
    staged: str
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class TimePartitionRewrite:
    """Files of a time partition that a commit removes from the topic.

    The other live files of the time partition move to the directory of the new generation. `replaced` are final file
    names; together these files have `records` rows and `bytes` bytes. A time partition without files is removed from
    the table.
    """

    kind: FileKind
    time_partition: str
    replaced: tuple[str, ...]
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """The result of reading the offsets `[start, end)` of one topic partition.

    `previous` is the offset at which the partition was to continue when the run was planned: its next offset, or for a
    partition that was never loaded the start offset that an operator set, else None. It differs from `start` if offsets
    were deleted before they were read or were skipped (`[previous, start)` is then among `gaps`), if the log diverged,
    or if the start offset that was set is after the end of the log. `skipped` are the offsets that were deliberately
    not read, within the range or before it.

    A log diverges if it is cut back and then gets other messages at the same offsets. In that case `diverged_at` is the
    first offset that differs from the log that was read before, and `start` is the same offset, or a later one if the
    offsets `[diverged_at, start)` were deleted (they are then among `gaps`). `replaced` are the offsets that were
    committed from the former log. `incarnation` counts the divergences, including this one. Each offset of a topic id
    is committed at most once per incarnation. `epochs` are the leader epochs of the batches that were read.
    """

    partition: int
    previous: int | None
    start: int
    end: int
    leader_epoch: int
    counts: RangeCounts
    gaps: tuple[tuple[int, int], ...]
    bytes_read: int
    epochs: ReadEpochs = NO_EPOCHS
    diverged_at: int | None = None
    incarnation: int = field(default=0, metadata=CRITICAL)
    skipped: tuple[SkippedOffsets, ...] = ()

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The offsets `[from, to)` that earlier commits loaded and that have other messages now, because the log
        diverged; None if it did not diverge."""
        if self.diverged_at is None or self.previous is None:
            return None
        return self.diverged_at, self.previous


class WindowCount(NamedTuple):
    """The messages of one ten-minute window of event time, or of a special window. `fingerprint` is the sum of the
    messages' hashes modulo 2**64. Stored as a JSON list without names, to save space: a load of old messages may touch
    all windows of a year.
    """

    window_start_ms: int
    messages: int
    bytes: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class CountSeries:
    """The message counts of one topic partition with one tier and outcome of the audit, ordered by window. `times` has
    the message times in each of these windows for the tier `broker`, and is empty otherwise.

    `tier` is `broker` for messages in the log, `loader` for messages that were loaded. `outcome` is `written` or
    `quarantined` for the tier `loader`, "" for the tier `broker`. `hash` is the name of the hash function of the
    fingerprints.
    """

    tier: str
    outcome: str
    partition: int
    windows: tuple[WindowCount, ...]
    hash: str = HASH
    times: tuple[WindowTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadSchema:
    """The load schema of a topic: the schema of its files, derived from all subject versions seen so far.

    `version` is the newest of these subject versions, `writer_ids` are the schema ids of all. `text` is the load schema
    as Avro schema, and `fold` the data from which the next version continues, as canonical JSON. `revision` counts the
    changes from 1. `time_property` is the subject's metadata property `headrace.time`, or "".

    `commit_number` is the commit with this revision, and `previous_commit_number` that of the revision before, 0 for
    none: readers of the table's history follow these links. The log sets both when it numbers the commit.
    """

    revision: int
    subject: str
    version: int
    fold: str
    text: str
    writer_ids: frozenset[int]
    time_property: str
    commit_number: int = 0
    previous_commit_number: int = 0


@dataclass(frozen=True, slots=True)
class Repartition:
    """The change of a table's partitioning from `partition_by` to that of the commit. The commit replaces all files
    that the topic had after its commit `after_commit`; a later commit of the topic is a conflict, because it may have
    added files in the old partitioning."""

    partition_by: str
    after_commit: int


@dataclass(frozen=True, slots=True)
class TopicCommit:
    """The part of a commit that concerns one topic.

    `topic_id_before` and `revision_before` are the topic id and load schema revision for which the run was planned
    (None and 0 for a new topic). `load_schema` is set if it changes; a new topic always has it. `table`, `directory`
    and `partition_by` are chosen by the topic's first commit and repeated by later ones, except that a commit with
    `repartition` changes `partition_by`. `kafka_column` is the variant
    of the `kafka` column in its files. `foreign_ids` are registered schema ids that the plan did not know. `alarms` are
    results that an operator must know of, without quarantined messages, which are counted in `files`.
    `previous_commit_number` is the topic's previous commit, 0 for none: readers follow these links and read no other
    topic's commits. `quarantine_codes` counts the quarantine rows of a load by `QuarantineCode`.

    `continues` means that the next offsets remain valid although the topic id changed: it is the same topic, whose id
    the brokers did not report before or no longer report.

    Each of the `rewrites` begins the next generation of its time partition, `generation_before + 1`. From then on all
    files of the time partition are stored in the directory of that generation: the files of this commit, and of later
    ones.
    """

    topic_id: str
    topic_id_before: str | None
    revision_before: int
    table: str
    directory: str
    partition_by: str
    load_schema: LoadSchema | None
    ranges: tuple[CommittedRange, ...]
    files: tuple[CommittedFile, ...]
    audit: tuple[CountSeries, ...]
    time_sources: Mapping[str, int]
    foreign_ids: frozenset[int]
    previous_commit_number: int = 0
    kafka_column: str = ""
    generation_before: int = 0
    rewrites: tuple[TimePartitionRewrite, ...] = dataclasses.field(default=(), metadata=CRITICAL)
    continues: bool = dataclasses.field(default=False, metadata=CRITICAL)
    alarms: tuple[Alarm, ...] = ()
    repartition: Repartition | None = dataclasses.field(default=None, metadata=CRITICAL)
    quarantine_codes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def starts_again(self) -> bool:
        """Whether the topic was re-created, so that the offsets committed before do not apply to its partitions."""
        return self.topic_id_before not in (None, self.topic_id) and not self.continues

    @property
    def generation(self) -> int:
        """The generation in the names of the added files: 0 for files of loads, above 0 for files of rewrites."""
        return self.generation_before + 1 if self.rewrites else 0


@dataclass(frozen=True, slots=True)
class StartOffset:
    """The offset at which the first load of a topic partition begins, set by `headrace offsets`. The topic may have no
    table yet."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. `commit_number` is 0 until the log assigns one.

    `kind` is what made the commit, such as a load or a rewrite. `voided`, in a commit of the kind clean, are ids of
    runs that can no longer commit. `published` are ids of committed runs whose staging directory was deleted; the state
    no longer lists them. `previous` is the checksum of the preceding commit, "" for commit 1: commits form a chain,
    which reveals a commit from another log. `retired` are the numbers of earlier rewrite commits; the files that these
    replaced have been deleted. `reason` is the operator's reason (`headrace offsets`, `headrace quarantine replay` and
    `discard`), and `starts` are start offsets of partitions that were never loaded. `planned_after` is the newest
    commit when the run was planned; None for a commit without a plan.
    """

    commit_number: int
    kind: CommitKind
    run_id: str
    committed_at_ms: int
    build: str
    topics: Mapping[str, TopicCommit]
    voided: frozenset[str]
    published: frozenset[str] = frozenset()
    previous: str = ""
    retired: frozenset[int] = frozenset()
    reason: str = field(default="", metadata=CRITICAL)
    starts: tuple[StartOffset, ...] = ()
    planned_after: int | None = None

    def with_number(self, commit_number: int, previous: str = "") -> Commit:
        """Returns a copy of the commit with this commit number, with the checksum `previous` of the preceding commit,
        and with the final names of its files."""
        topics = {}
        for topic, committed in self.topics.items():
            start = f"{committed.generation}-{commit_number}-{self.run_id[-RUN_ID_DIGITS:]}"
            files = tuple(dataclasses.replace(file, name=f"{start}-{file.name}") for file in committed.files)
            topics[topic] = dataclasses.replace(committed, files=files)
        return dataclasses.replace(self, commit_number=commit_number, topics=topics, previous=previous)
