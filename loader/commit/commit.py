"""A commit is the loader's commit: one small file in one commit number of the log, put if absent and never changed.

It says what one piece of work adds: per partition the offsets `[start, end)`, the files they went to, a change of
the load schema, the counts per audit window, declared gaps. Only what changed is in it, so that it stays small.

A commit is offered for the commit number after the newest one. When that commit number is taken,
`loader.commit.conflict` judges it against what came between: without a conflict the next commit number is tried, with
one the work is thrown away. Nothing is reserved beforehand, so a zombie, a second driver and a retry are all the same
case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.audit.count import HASH
from headrace.loader.commit.document import MATTERS
from headrace.loader.epochs import NOTHING_READ, ReadEpochs
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts, SkippedOffsets

RUN_ID_DIGITS = 8  # the last of the run id, in the names of files: they tell apart what two logs put in one commit


class CommitKind(StrEnum):
    LOAD = "load"
    CLEAN = "clean"
    COMPACT = "compact"
    EXPIRE = "expire"
    REPLAY = "replay"
    OFFSETS = "offsets"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file that belongs to the topic from this commit number on.

    `name` is the final one, in the directory of `time_partition`; in an offer that has no commit number yet it is the
    part after the commit number. `staged` is its path below `staging/<run id>/`.
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
    """Files of a time partition that belong to the topic no more from this commit number on.

    Whatever else is live in the time partition goes on with it, in the directory of the new generation. `replaced` are
    final names, with `records` rows and `bytes` in all of them. A time partition that has no file left is no partition
    any more.
    """

    kind: FileKind
    time_partition: str
    replaced: tuple[str, ...]
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """What became of the offsets `[start, end)` of one partition.

    `previous` is the next offset that the plan found in the log, None for a partition that was not there. It
    differs from `start` only where ground was lost or passed over: `[previous, start)` is then among `gaps`; or where
    the log of a partition never read ends before the start that was chosen for it.
    `skipped` are the offsets that were not read on purpose, within the range or before it.

    But where the broker's log no longer held what was read of it from `diverged_at` on, it was taken up there: `start`
    is below `previous` then (or `[diverged_at, start)` is among `gaps`), and `replaced` says which rows of earlier
    commits were read from a log that is no more. `incarnation` counts these divergences, this one included: offsets
    are committed once in each. `epochs` are of the batches that were read.
    """

    partition: int
    previous: int | None
    start: int
    end: int
    leader_epoch: int
    counts: RangeCounts
    gaps: tuple[tuple[int, int], ...]
    bytes_read: int
    epochs: ReadEpochs = NOTHING_READ
    diverged_at: int | None = None
    incarnation: int = field(default=0, metadata=MATTERS)
    skipped: tuple[SkippedOffsets, ...] = ()

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The offsets `[from, to)` of the log that is no more, None where it is the same log."""
        if self.diverged_at is None or self.previous is None:
            return None
        return self.diverged_at, self.previous


class WindowCount(NamedTuple):
    """Messages of one ten-minute window; `fingerprint` is a sum modulo 2**64. A list in JSON, since a load of old
    events may touch the windows of a whole year."""

    window_start_ms: int
    messages: int
    bytes: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class CountSeries:
    """The counts of one tier and partition, by window in the order of time.

    `outcome` is `written` or `quarantined` for tier `loader` and "" for tier `broker`. `hash` is of the fingerprints.
    """

    tier: str
    outcome: str
    partition: int
    windows: tuple[WindowCount, ...]
    hash: str = HASH


@dataclass(frozen=True, slots=True)
class LoadSchema:
    """The schema that a topic's files are written in, as far as folded.

    `fold` is the fold's own state as canonical JSON text, `text` the Avro schema of the files. `revision` counts
    the changes from 1. `version` is the newest subject version folded in, `writer_ids` are the schema ids of the
    versions, `time_property` is the subject's metadata property `headrace.time` or "".
    """

    revision: int
    subject: str
    version: int
    fold: str
    text: str
    writer_ids: frozenset[int]
    time_property: str


@dataclass(frozen=True, slots=True)
class TopicCommit:
    """What a commit says of one topic.

    `topic_id_before` and `revision_before` are what the plan found in the log (None and 0 for a topic that was not
    there); the files were written under them. `load_schema` is set when it changes; a new topic always has it.
    `table`, `directory` and `partition_by` repeat what was chosen when the topic was first committed. `kafka_column` is
    what its files have of the column `kafka`, "" where an earlier release does not tell. `asked_ids` are
    registered schema ids met for the first time that the plan did not know. `previous_commit_number` is the newest
    earlier commit
    that speaks of the topic and `previous_quarantine_commit_number` the newest that has quarantine files of it, 0 for
    none, so that a topic's commits are found without reading the others'; None where format 1 does not tell.

    `continues` says that the topic's partitions go on although its id is another: it is the same topic, whose id was
    not told before, or cannot be told any more, since brokers that tell no ids have another log of it.

    `rewrites` begin a new generation of their time partitions, which is the topic's next: `generation_before + 1`.
    Files of these time partitions, of this commit and later ones, belong into the directories of that generation.
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
    asked_ids: frozenset[int]
    previous_commit_number: int = 0
    previous_quarantine_commit_number: int = 0
    kafka_column: str = ""
    generation_before: int = 0
    rewrites: tuple[TimePartitionRewrite, ...] = dataclasses.field(default=(), metadata=MATTERS)
    continues: bool = dataclasses.field(default=False, metadata=MATTERS)

    @property
    def starts_again(self) -> bool:
        """Whether the topic was found re-created, so that nothing of its partitions has been committed yet."""
        return self.topic_id_before not in (None, self.topic_id) and not self.continues

    @property
    def generation(self) -> int:
        """Of the files that this commit adds: a part of their names; 0 for all that loads add."""
        return self.generation_before + 1 if self.rewrites else 0


@dataclass(frozen=True, slots=True)
class StartOffset:
    """Where the first load of a partition begins. Its topic may have no table yet."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`commit_number` is 0 while it is only an offer. `voided` names work that may never be committed (kind clean).

    `published` names committed work that has nothing left in staging, so that nobody needs to remember it. `previous`
    is the checksum of the commit in the commit number before, "" in commit number 1 and in format 1: commits are a
    chain, and one that stands after another than it was made for is noticed. `retired` names commit numbers of rewrites
    whose replaced files are gone from the disk. `reason` is why an operator made it (kind offsets), and `starts` say
    where the first load of partitions begins of which nothing was loaded. `planned_after` is the newest commit number
    that had been read when the work was begun; None where an earlier release does not tell.
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
    reason: str = field(default="", metadata=MATTERS)
    starts: tuple[StartOffset, ...] = ()
    planned_after: int | None = None

    def at(self, commit_number: int, previous: str = "") -> Commit:
        """This offer as the commit of a commit number, with the final names of its files."""
        topics = {}
        for topic, committed in self.topics.items():
            start = f"{committed.generation}-{commit_number}-{self.run_id[-RUN_ID_DIGITS:]}"
            files = tuple(dataclasses.replace(file, name=f"{start}-{file.name}") for file in committed.files)
            topics[topic] = dataclasses.replace(committed, files=files)
        return dataclasses.replace(self, commit_number=commit_number, topics=topics, previous=previous)
