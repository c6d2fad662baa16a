"""Builds the commit of a load from its reconciled topics, and splits a large one. Pure.

A week's backlog of ten thousand partitions would otherwise be one commit of a gigabyte, and each process that reads a
commit holds it in memory. A commit is split between topics, because a file contains several partitions but only one
topic. Each part becomes an ordinary commit with its own run id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from headrace.audit.window import SCATTERED_MS
from headrace.loader.commit.commit import Commit, CommitKind, TopicCommit
from headrace.loader.commit.findings import alarms_of
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.plan.load_plan import LoadPlan, PlannedTopic
from headrace.loader.storage.protocols import FinishedFile
from headrace.loader.work_unit import FileKind

COMMIT_BYTES_MAX = 16 * 1024 * 1024  # read and folded in about half a second; an ordinary run takes a tenth of it

HOURLY_BYTES_MIN = 64 * 1024 * 1024
"""Bytes of files per hour from which a partition by hour is worth its cost: 1.5 GB a day. With less, queries spend more
time on the number of partitions than they save by reading fewer bytes."""
WINDOWS_PER_HOUR = 6
LOADER = "loader"  # the tier of the audit that counts rows

# Bytes that each element takes in a commit, measured on real commits and rounded up.
TOPIC_BYTES, RANGE_BYTES, FILE_BYTES, FILE_RANGE_BYTES, WINDOW_BYTES, TIMES_BYTES = 800, 350, 350, 70, 60, 40


def new_load_commit(
    plan: LoadPlan,
    reconciled: Mapping[str, ReconciledTopic],
    registered_ids: Mapping[str, frozenset[int]],
    published: frozenset[str],
    now_ms: int,
    build: str,
) -> Commit:
    """Builds the commit of a load. It has no commit number yet.

    Args:
        reconciled: by topic, the part of the tasks' results that can be committed.
        registered_ids: by topic, schema ids that the plan did not know and the registry has.
        published: ids of committed runs without staging directory.
        now_ms: the time stated in the commit.
        build: the loader's installation, stored in the commit.
    """
    topics = {}
    for topic, planned_topic in plan.planned_topics.items():
        committed = _topic_commit(
            planned_topic,
            reconciled.get(topic, ReconciledTopic()),
            registered_ids.get(topic, frozenset()) - planned_topic.known_ids,
        )
        if committed is not None:
            topics[topic] = committed
    return Commit(
        0, CommitKind.LOAD, plan.run_id, now_ms, build, topics, frozenset(), published, planned_after=plan.commit_number
    )


def _topic_commit(
    planned_topic: PlannedTopic, reconciled: ReconciledTopic, foreign_ids: frozenset[int]
) -> TopicCommit | None:
    known = planned_topic.known
    changed = (
        known is None
        or planned_topic.schemas.is_changed
        or planned_topic.ranges.starts_again
        or planned_topic.ranges.continues
    )
    if not (changed or foreign_ids or reconciled.ranges):
        return None
    return TopicCommit(
        topic_id=planned_topic.ranges.topic_id,
        topic_id_before=known.topic_id if known else None,
        revision_before=known.load_schema.revision if known else 0,
        table=planned_topic.table,
        directory=planned_topic.directory,
        partition_by=planned_topic.policy.partition_by,
        kafka_column=planned_topic.policy.kafka_column,
        load_schema=planned_topic.schemas.load_schema if known is None or planned_topic.schemas.is_changed else None,
        ranges=reconciled.ranges,
        files=reconciled.files,
        audit=reconciled.audit,
        time_sources=reconciled.time_sources,
        foreign_ids=foreign_ids,
        continues=planned_topic.ranges.continues,
        alarms=alarms_of(planned_topic, reconciled),
        quarantine_codes=reconciled.quarantine_codes,
    )


def busy_new_topics(plan: LoadPlan, reconciled: Mapping[str, ReconciledTopic]) -> frozenset[str]:
    """Returns the new topics with `loader.partition_by = auto` whose tables are to be partitioned by hour. The tasks
    have written their files by day, so their messages must be read again."""
    return frozenset(
        topic
        for topic, planned_topic in plan.planned_topics.items()
        if planned_topic.chooses_partitioning and is_busy(reconciled.get(topic, ReconciledTopic()))
    )


def is_busy(reconciled: ReconciledTopic) -> bool:
    """Whether the messages of a topic fill at least `HOURLY_BYTES_MIN` of files per hour of message time. Only the
    ten-minute windows with messages count, so that gaps and single messages of other times have little effect; but they
    count as an hour at least, so that a burst of some minutes is not taken for a rate."""
    windows = {
        window.window_start_ms for series in reconciled.audit if series.tier == LOADER for window in series.windows
    }
    if not windows or SCATTERED_MS in windows:
        return False
    length = sum(file.length for file in reconciled.files if file.kind is FileKind.DATA)
    return length * WINDOWS_PER_HOUR >= HOURLY_BYTES_MIN * max(WINDOWS_PER_HOUR, len(windows))


def split_commit(proposal: Commit, new_run_id: Callable[[], str]) -> list[Commit]:
    """Splits the commit `proposal`, which is not written yet, into as few commits as `COMMIT_BYTES_MAX` allows, and
    returns them. Topics stay in order. The first commit keeps the run id, the others get ids from `new_run_id`."""
    chunks: list[dict[str, TopicCommit]] = [{}]
    size = 0
    for topic, committed in proposal.topics.items():
        bytes_of_topic = estimated_bytes(committed)
        if chunks[-1] and size + bytes_of_topic > COMMIT_BYTES_MAX:
            chunks.append({})
            size = 0
        chunks[-1][topic] = committed
        size += bytes_of_topic
    first = dataclasses.replace(proposal, topics=chunks[0])
    rest = dataclasses.replace(proposal, published=frozenset(), retired=frozenset())
    return [first, *(dataclasses.replace(rest, run_id=new_run_id(), topics=topics) for topics in chunks[1:])]


def staged_files(chunk: Commit) -> list[FinishedFile]:
    """Returns the paths and lengths of the staged files of `chunk`, one part of a split commit. The caller moves them
    to the staging directory of the part's run."""
    return [FinishedFile(file.staged, file.length) for committed in chunk.topics.values() for file in committed.files]


def estimated_bytes(committed: TopicCommit) -> int:
    """Estimates how many bytes `committed`, the part of a commit for one topic, takes in the commit's file."""
    schema = committed.load_schema
    return (
        TOPIC_BYTES
        + (len(schema.text) + len(schema.fold) if schema else 0)
        + RANGE_BYTES * len(committed.ranges)
        + FILE_BYTES * len(committed.files)
        + FILE_RANGE_BYTES * sum(len(file.ranges) for file in committed.files)
        + WINDOW_BYTES * sum(len(series.windows) for series in committed.audit)
        + TIMES_BYTES * sum(len(series.times) for series in committed.audit)
        + sum(len(alarm.text) for alarm in committed.alarms)
    )
