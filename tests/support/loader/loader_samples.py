"""Small literal values of the decision log that several tests build on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from headrace.loader.apply.base import Step
from headrace.loader.commit.decision import (
    BucketRewrite,
    CountSeries,
    DecidedFile,
    DecidedRange,
    Decision,
    DecisionKind,
    LoadSchema,
    TopicDecision,
    WindowCount,
)
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.state import LoaderState
from headrace.loader.policy import TopicPolicy
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts

POLICY = TopicPolicy(
    partition_by="hour",
    kafka_column="position",
    codec="snappy",
    time_fields=("timestamp",),
    lost_ground="fail",
    quarantine_share_max=0.1,
    record_bytes_max=64 * 1024 * 1024,
    corrupt_batches="fail",
    future_ms_max=None,
)
BUCKET = "dt=2026-01-01/hr=05"


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


def decided_range(partition: int, previous: int | None, start: int, end: int) -> DecidedRange:
    gaps = ((previous, start),) if previous is not None and previous < start else ()
    return DecidedRange(partition, previous, start, end, 0, RangeCounts(records=end - start), gaps, 100 * (end - start))


def decided_file(name: str, partition: int, start: int, end: int, bucket: str = BUCKET) -> DecidedFile:
    ranges = (FileRange(partition, start, end - 1, end - start),)
    return DecidedFile(FileKind.DATA, bucket, name, f"task-{name}", 1000, "00" * 32, end - start, ranges)


def topic_decision(
    *ranges: DecidedRange,
    files: Iterable[DecidedFile] = (),
    new: bool = False,
    topic_id: str = "id-1",
    topic_id_before: str | None = "id-1",
    revision_before: int = 1,
    schema: LoadSchema | None = None,
    table: str = "orders",
    asked_ids: frozenset[int] = frozenset(),
    kafka_column: str = "position",
) -> TopicDecision:
    return TopicDecision(
        topic_id=topic_id,
        topic_id_before=None if new else topic_id_before,
        revision_before=0 if new else revision_before,
        table=table,
        folder=table,
        partition_by="hour",
        load_schema=load_schema() if new else schema,
        ranges=ranges,
        files=tuple(files),
        audit=(CountSeries("loader", "written", 0, (WindowCount(1_767_225_600_000, 5, 100, 2**64 - 1),)),),
        time_sources={"record": 5},
        asked_ids=asked_ids,
        kafka_column=kafka_column,
    )


def value_subject(topic: str) -> str:
    return f"{topic}-value"


def decisions_of(log: DecisionLog, topic: str, state: LoaderState, since: int = 0) -> list[Decision]:
    """Those of the slots after `since` that speak of a topic, oldest first."""
    return [found.value for found in log.back(topic, state, since)][::-1]


def step_of(
    state: LoaderState,
    topic: str,
    decisions: Sequence[Decision],
    *,
    since: int = 0,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Step:
    """What a follower would be asked to apply; nobody is rewound."""
    return Step(topic, state.topics[topic], decisions, since, state.slot, state.works, lambda name: None, warn)


def load(work_id: str, topics: dict[str, TopicDecision], slot: int = 0) -> Decision:
    offer = Decision(0, DecisionKind.LOAD, work_id, 1_767_225_600_000, "test", topics, frozenset())
    return offer.at(slot) if slot else offer


def clean(work_id: str, *voided: str, slot: int = 0) -> Decision:
    return Decision(slot, DecisionKind.CLEAN, work_id, 1_767_225_600_000, "test", {}, frozenset(voided))


def rewrite(
    *replaced: str,
    bucket: str = BUCKET,
    records: int = 0,
    bytes: int = 0,
    generation_before: int = 0,
    files: Iterable[DecidedFile] = (),
) -> TopicDecision:
    """Takes files of a bucket away, and puts others in their place."""
    return dataclasses.replace(
        topic_decision(files=files),
        audit=(),
        time_sources={},
        generation_before=generation_before,
        rewrites=(BucketRewrite(FileKind.DATA, bucket, replaced, records, bytes),),
    )


def compact(work_id: str, topics: dict[str, TopicDecision]) -> Decision:
    return dataclasses.replace(load(work_id, topics), kind=DecisionKind.COMPACT)
