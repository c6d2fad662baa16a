"""Sample values of the commit log, such as commits and steps of appliers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from headrace.loader.apply.base import Step
from headrace.loader.commit.commit import (
    Commit,
    CommitKind,
    CommittedFile,
    CommittedRange,
    CountSeries,
    LoadSchema,
    TimePartitionRewrite,
    TopicCommit,
    WindowCount,
)
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.state import LoaderState
from headrace.loader.policy import TopicPolicy
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts

POLICY = TopicPolicy(
    partition_by="hour",
    kafka_column="position",
    codec="snappy",
    time_fields=("timestamp",),
    on_data_loss="fail",
    quarantine_ratio_max=0.1,
    record_bytes_max=64 * 1024 * 1024,
    corrupt_batches="fail",
    future_ms_max=None,
)
TIME_PARTITION = "dt=2026-01-01/hr=05"


def load_schema(revision: int = 1) -> LoadSchema:
    return LoadSchema(
        revision=revision,
        subject="orders-value",
        version=revision,
        fold="{}",
        text='{"type":"record","name":"Order","fields":[]}',
        writer_ids=frozenset({7}),
        time_property="",
    )


def committed_range(partition: int, previous: int | None, start: int, end: int) -> CommittedRange:
    gaps = ((previous, start),) if previous is not None and previous < start else ()
    return CommittedRange(
        partition, previous, start, end, 0, RangeCounts(records=end - start), gaps, 100 * (end - start)
    )


def committed_file(
    name: str, partition: int, start: int, end: int, time_partition: str = TIME_PARTITION
) -> CommittedFile:
    ranges = (FileRange(partition, start, end - 1, end - start),)
    return CommittedFile(FileKind.DATA, time_partition, name, f"task-{name}", 1000, "00" * 32, end - start, ranges)


def topic_commit(
    *ranges: CommittedRange,
    files: Iterable[CommittedFile] = (),
    new: bool = False,
    topic_id: str = "id-1",
    topic_id_before: str | None = "id-1",
    revision_before: int = 1,
    schema: LoadSchema | None = None,
    table: str = "orders",
    foreign_ids: frozenset[int] = frozenset(),
    kafka_column: str = "position",
) -> TopicCommit:
    return TopicCommit(
        topic_id=topic_id,
        topic_id_before=None if new else topic_id_before,
        revision_before=0 if new else revision_before,
        table=table,
        directory=table,
        partition_by="hour",
        load_schema=load_schema() if new else schema,
        ranges=ranges,
        files=tuple(files),
        audit=(CountSeries("loader", "written", 0, (WindowCount(1_767_225_600_000, 5, 100, 2**64 - 1),)),),
        time_sources={"record": 5},
        foreign_ids=foreign_ids,
        kafka_column=kafka_column,
    )


def value_subject(topic: str) -> str:
    return f"{topic}-value"


def commits_of(log: CommitLog, topic: str, state: LoaderState, since: int = 0) -> list[Commit]:
    """Returns the commits after commit number `since` that contain a topic, oldest first."""
    return [found.value for found in log.history(topic, state, since)][::-1]


def step_of(
    state: LoaderState,
    topic: str,
    commits: Sequence[Commit],
    *,
    since: int = 0,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Step:
    """Returns the step that the engine of the appliers would pass to an applier for these commits. Its `rewind` does
    nothing.

    Args:
        since: the applier's cursor.
        warn: receives warnings of the applier.
    """
    known, staged_runs = state.topics[topic], state.staged_runs
    return Step(topic, known, commits, since, state.commit_number, staged_runs, lambda name: None, warn)


def load(run_id: str, topics: dict[str, TopicCommit], commit_number: int = 0) -> Commit:
    proposal = Commit(0, CommitKind.LOAD, run_id, 1_767_225_600_000, "test", topics, frozenset())
    return proposal.with_number(commit_number) if commit_number else proposal


def clean(run_id: str, *voided: str, commit_number: int = 0) -> Commit:
    return Commit(commit_number, CommitKind.CLEAN, run_id, 1_767_225_600_000, "test", {}, frozenset(voided))


def rewrite(
    *replaced: str,
    time_partition: str = TIME_PARTITION,
    records: int = 0,
    bytes: int = 0,
    generation_before: int = 0,
    files: Iterable[CommittedFile] = (),
) -> TopicCommit:
    """Returns a topic's part of a rewrite commit, which removes files of a time partition and adds others.

    Args:
        replaced: names of the removed files.
        records: number of rows in them.
        bytes: their size.
        files: the added files.
    """
    return dataclasses.replace(
        topic_commit(files=files),
        audit=(),
        time_sources={},
        generation_before=generation_before,
        rewrites=(TimePartitionRewrite(FileKind.DATA, time_partition, replaced, records, bytes),),
    )


def compact(run_id: str, topics: dict[str, TopicCommit]) -> Commit:
    return dataclasses.replace(load(run_id, topics), kind=CommitKind.COMPACT)
