"""The loader's state after all commits up to a commit number. Pure; a checkpoint is this value in a file.

The state can always be computed from the commits again, so any checkpoint may be deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.alarms import Alarm, AlarmKind, AlarmTotal, with_alarm
from headrace.loader.commit.commit import Commit, CommitKind, CommittedRange, LoadSchema, TopicCommit
from headrace.loader.commit.document import CRITICAL
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.load_schema import wider_column
from headrace.loader.work_unit import FileKind

BYTES_PER_KILO_OFFSET_DEFAULT = 1024 * 1024  # assumes 1 KiB per message in a partition that was never read
KINDS_WITHOUT_STAGING = frozenset({CommitKind.CLEAN, CommitKind.OFFSETS, CommitKind.EXPIRE})
PLAN_COMMITS_MAX = 10_000  # two months of a commit every ten minutes
"""A plan that is older than this number of commits can no longer be committed, so the ids of voided runs need not be
stored for longer."""
SMOOTHING = 4  # the newest run has the weight 1/4: follows changes, and one odd run has little effect


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of a topic partition. `next_offset` is the next offset to load.

    `bytes_per_kilo_offset` is the size of 1,000 offsets in bytes, a moving average over the runs. `leader_epoch` is
    that of the leader at the last commit; `epochs` are the leader epochs of the batches read, limited to the newest
    ones. `incarnation` counts the divergences of the log.
    """

    next_offset: int
    leader_epoch: int
    bytes_per_kilo_offset: int
    epochs: ReadEpochs = NO_EPOCHS
    incarnation: int = field(default=0, metadata=CRITICAL)

    def has_rows_from(self, offset: int) -> bool:
        """Whether messages at `offset` or later may have been loaded. False if `offset` is at or after the end of the
        last batch read, because loaded offsets after it have no messages."""
        return offset < (self.epochs.end if self.epochs.starts else self.next_offset)


@dataclass(frozen=True, slots=True)
class FileTotals:
    """The number of a topic's live files of one kind (data or quarantine), and the sums of their rows and bytes."""

    files: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadTotals:
    """Sums over all loads of a topic, for counters of monitoring. They never decrease, unlike the numbers of live rows.

    `quarantined` counts the quarantine rows by `QuarantineCode`, and `quarantined_since` is the commit with the first
    one, 0 for none.
    """

    rows: int = 0
    bytes_read: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    quarantined_since: int = 0

    def plus(self, committed: TopicCommit, commit_number: int) -> LoadTotals:
        """Returns the sums after one more commit of the topic."""
        codes = committed.quarantine_codes
        quarantined = {code: self.quarantined.get(code, 0) + codes.get(code, 0) for code in {*self.quarantined, *codes}}
        return LoadTotals(
            self.rows + sum(one.counts.records for one in committed.ranges),
            self.bytes_read + sum(one.bytes_read for one in committed.ranges),
            quarantined,
            self.quarantined_since or (commit_number if codes else 0),
        )


@dataclass(frozen=True, slots=True)
class TopicState:
    """State of a topic. `commit_number` is the newest commit of this topic.

    `foreign_ids` are registered schema ids in the topic's messages that need not be versions of its subject; every plan
    reads these schemas by id. `kafka_column` is the widest variant of the `kafka` column in any of the topic's files,
    and the variant in its table. `generation` counts the commits that rewrote its time partitions. `alarms` are the
    sums of all alarms, by kind. `is_repartitioned` means that a commit changed `partition_by`, so that the metastore
    may have a table with other partition columns.
    """

    topic_id: str
    table: str
    directory: str
    partition_by: str
    load_schema: LoadSchema
    partitions: Mapping[int, PartitionState]
    foreign_ids: frozenset[int]
    data: FileTotals
    quarantine: FileTotals
    commit_number: int
    generation: int = 0
    kafka_column: str = ""
    alarms: Mapping[str, AlarmTotal] = field(default_factory=dict)
    is_repartitioned: bool = field(default=False, metadata=CRITICAL)
    loads: LoadTotals = LoadTotals()


@dataclass(frozen=True, slots=True)
class LoaderState:
    """State of the loader after commit `commit_number`. The commit's checksum `sha256` identifies the log. The size of
    the state depends on the number of topics and partitions, not on history.

    `staged_runs` are ids of committed runs that may still have files in staging. `rewrites` are commits that replaced
    files which may still exist, with the time of each in ms. `starts` are the start offsets of partitions that were
    never loaded, by topic and partition.

    `voided` and `voided_before` are ids of runs that can no longer commit. At each commit number that is a multiple of
    `PLAN_COMMITS_MAX`, the ids in `voided` replace those in `voided_before`, and `voided` starts again.
    """

    commit_number: int = 0
    committed_at_ms: int = 0
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    staged_runs: frozenset[str] = frozenset()
    voided: frozenset[str] = frozenset()
    sha256: str = ""
    rewrites: Mapping[int, int] = field(default_factory=dict)
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict, metadata=CRITICAL)
    voided_before: frozenset[str] = frozenset()

    def is_voided(self, run_id: str) -> bool:
        """Whether a run that cleans the staging has voided this run, so that it can no longer commit. The id is
        forgotten when the run's plan is too old to be committed anyway."""
        return run_id in self.voided or run_id in self.voided_before

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Returns the offset at which the next load of a partition begins. None means that it begins at the partition's
        log start offset."""
        known = self.topics.get(topic)
        found = known.partitions.get(partition) if known else None
        return found.next_offset if found else self.starts.get(topic, {}).get(partition)


EMPTY = LoaderState()


def fold(state: LoaderState, commit: Commit, sha256: str = "") -> LoaderState:
    """Returns the state after one more commit. The commit must have the next number and no conflict with the state.

    Args:
        sha256: checksum of the commit.
    """
    assert commit.commit_number == state.commit_number + 1, (commit.commit_number, state.commit_number)
    topics = dict(state.topics)
    window_begins = commit.commit_number % PLAN_COMMITS_MAX == 0
    for topic, committed in commit.topics.items():
        topics[topic] = _fold_topic(state.topics.get(topic), committed, commit.commit_number, commit.committed_at_ms)
    return LoaderState(
        commit_number=commit.commit_number,
        committed_at_ms=commit.committed_at_ms,
        topics=topics,
        staged_runs=(state.staged_runs | _staged_run(commit)) - commit.published,
        # A run is voided after it was planned, so ids dropped here were planned at least `PLAN_COMMITS_MAX` commits
        # ago.
        voided=commit.voided if window_begins else state.voided | commit.voided,
        voided_before=state.voided if window_begins else state.voided_before,
        sha256=sha256,
        rewrites=_rewrites(state, commit),
        starts=_fold_starts(state.starts, commit, topics),
    )


def _rewrites(state: LoaderState, commit: Commit) -> dict[int, int]:
    left = {
        commit_number: at_ms for commit_number, at_ms in state.rewrites.items() if commit_number not in commit.retired
    }
    if any(committed.rewrites for committed in commit.topics.values()):
        left[commit.commit_number] = commit.committed_at_ms
    return left


def _fold_starts(
    starts: Mapping[str, Mapping[int, int]], commit: Commit, topics: Mapping[str, TopicState]
) -> Mapping[str, Mapping[int, int]]:
    """Returns the start offsets of partitions that were never loaded, after a commit: the earlier ones and the ones
    that the commit sets, without the partitions that it loads.

    Args:
        starts: the start offsets before the commit.
        topics: the state of all topics after the commit.
    """
    if not (starts or commit.starts):
        return starts
    merged = {topic: dict(offsets) for topic, offsets in starts.items()}
    for start in commit.starts:
        merged.setdefault(start.topic, {})[start.partition] = start.offset
    left = {
        topic: {
            number: offset
            for number, offset in offsets.items()
            if topic not in topics or number not in topics[topic].partitions
        }
        for topic, offsets in merged.items()
    }
    return {topic: offsets for topic, offsets in left.items() if offsets}


def as_next_commit(proposal: Commit, state: LoaderState) -> Commit:
    """Returns a copy of the commit `proposal` that continues the log after `state`: with the next number, the
    predecessor's checksum and, for each topic, the numbers of the topic's previous commit and of its previous change of
    the load schema."""
    numbered = proposal.with_number(state.commit_number + 1, state.sha256)
    topics = {}
    for topic, committed in numbered.topics.items():
        known = state.topics.get(topic)
        topics[topic] = dataclasses.replace(
            committed,
            previous_commit_number=known.commit_number if known else 0,
            load_schema=_linked(committed.load_schema, known, numbered.commit_number),
        )
    return dataclasses.replace(numbered, topics=topics)


def _linked(load_schema: LoadSchema | None, known: TopicState | None, commit_number: int) -> LoadSchema | None:
    """Returns the changed load schema of a commit with its links to this commit and to the previous change; None if the
    commit does not change it."""
    if load_schema is None:
        return None
    before = known.load_schema.commit_number if known else 0
    return dataclasses.replace(load_schema, commit_number=commit_number, previous_commit_number=before)


def _staged_run(commit: Commit) -> frozenset[str]:
    """Returns the commit's run id as a set of one. The set is empty for cleaning, `headrace offsets`, `headrace expire`
    and `headrace accept-missing`, which have no files in staging."""
    return frozenset() if commit.kind in KINDS_WITHOUT_STAGING else frozenset({commit.run_id})


def _fold_topic(
    known: TopicState | None, committed: TopicCommit, commit_number: int, committed_at_ms: int
) -> TopicState:
    load_schema = committed.load_schema or (known.load_schema if known else None)
    assert load_schema is not None, "a new topic has a load schema"
    if known is None:
        known = TopicState(
            topic_id=committed.topic_id,
            table=committed.table,
            directory=committed.directory,
            partition_by=committed.partition_by,
            load_schema=load_schema,
            partitions={},
            foreign_ids=frozenset(),
            data=FileTotals(),
            quarantine=FileTotals(),
            commit_number=commit_number,
        )
    starts_again = known.topic_id != committed.topic_id and not committed.continues
    partitions = {} if starts_again else dict(known.partitions)
    for offsets in committed.ranges:
        partitions[offsets.partition] = _fold_partition(partitions.get(offsets.partition), offsets)
    quarantine = _totals(known.quarantine, FileKind.QUARANTINE, committed)
    return dataclasses.replace(
        known,
        topic_id=committed.topic_id,
        partition_by=committed.partition_by if committed.repartition else known.partition_by,
        is_repartitioned=known.is_repartitioned or committed.repartition is not None,
        loads=known.loads.plus(committed, commit_number),
        load_schema=load_schema,
        partitions=partitions,
        foreign_ids=known.foreign_ids | committed.foreign_ids,
        data=_totals(known.data, FileKind.DATA, committed),
        quarantine=quarantine,
        commit_number=commit_number,
        generation=known.generation + (1 if committed.rewrites else 0),
        kafka_column=wider_column(known.kafka_column, committed.kafka_column),
        alarms=_fold_alarms(
            known.alarms, committed.alarms, quarantine.records - known.quarantine.records, committed_at_ms
        ),
    )


def _fold_alarms(
    known: Mapping[str, AlarmTotal], alarms: Iterable[Alarm], quarantined: int, committed_at_ms: int
) -> Mapping[str, AlarmTotal]:
    """Returns a topic's sums of alarms after a commit.

    Args:
        known: the sums before the commit.
        alarms: the alarms of the commit.
        quarantined: the number of messages that the commit added to the quarantine; negative if it removed some.
        committed_at_ms: the time of the commit.
    """
    totals = dict(known)
    added = [Alarm(AlarmKind.QUARANTINED, quarantined, "")] if quarantined > 0 else []
    for alarm in (*added, *alarms):
        totals[str(alarm.kind)] = with_alarm(totals.get(alarm.kind), alarm, committed_at_ms)
    return totals


def _fold_partition(known: PartitionState | None, offsets: CommittedRange) -> PartitionState:
    bytes_per_kilo_offset = known.bytes_per_kilo_offset if known else None
    length = offsets.end - offsets.start
    if length:
        measured = max(1, offsets.bytes_read * 1000 // length)
        bytes_per_kilo_offset = (
            measured
            if bytes_per_kilo_offset is None
            else (bytes_per_kilo_offset * (SMOOTHING - 1) + measured) // SMOOTHING
        )
    epochs = known.epochs if known else NO_EPOCHS
    if offsets.diverged_at is not None:
        epochs = epochs.below(offsets.diverged_at)
    return PartitionState(
        next_offset=offsets.end,
        leader_epoch=offsets.leader_epoch,
        bytes_per_kilo_offset=BYTES_PER_KILO_OFFSET_DEFAULT if bytes_per_kilo_offset is None else bytes_per_kilo_offset,
        epochs=epochs.followed_by(offsets.epochs),
        incarnation=offsets.incarnation,
    )


def _totals(known: FileTotals, kind: FileKind, committed: TopicCommit) -> FileTotals:
    added = [file for file in committed.files if file.kind is kind]
    rewrites = [rewrite for rewrite in committed.rewrites if rewrite.kind is kind]
    replaced = sum(len(rewrite.replaced) for rewrite in rewrites)
    return FileTotals(
        files=known.files + len(added) - replaced,
        records=known.records + sum(file.records for file in added) - sum(rewrite.records for rewrite in rewrites),
        bytes=max(0, known.bytes + sum(file.length for file in added) - sum(rewrite.bytes for rewrite in rewrites)),
    )
