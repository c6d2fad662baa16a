"""Decides whether a commit may follow the commits before it. Pure; exactly-once depends on these rules.

Exactly-once needs nothing else than these rules and put-if-absent: no lease, no clock, no cleaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.loader.commit.commit import Commit, TopicCommit
from headrace.loader.commit.state import PLAN_COMMITS_MAX, LoaderState, TopicState


class ConflictRule(StrEnum):
    """Reasons why a commit, or one topic of it, is rejected."""

    RUN_VOIDED = "the run was voided"
    PLAN_TOO_OLD = "the plan is too old"
    RUN_COMMITTED = "a run that the cleaning would void has committed"
    TOPIC_COMMITTED = "another run committed the new topic first"
    TOPIC_RECREATED = "the topic was re-created"
    LOAD_SCHEMA_CHANGED = "another run changed the load schema"
    TABLE_NAME_IN_USE = "the table name belongs to another topic"
    START_LOADED = "a partition was loaded before its start offset was set"
    OFFSETS_COMMITTED = "another run changed the next offset of a partition"
    FILES_REPLACED = "another command rewrote the files of the topic"
    LOG_DIVERGED = "the log of a partition diverged"
    PARTITIONING_CHANGED = "another command changed the partitioning of the table"
    TOPIC_CHANGED = "the topic got other commits while its files were repartitioned"


@dataclass(frozen=True, slots=True)
class Conflict:
    rule: ConflictRule
    detail: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.detail}"


def find_conflict(state: LoaderState, commit: Commit) -> Conflict | None:
    """Returns the first reason why this commit must not be the next one after `state`, None if it may be."""
    return run_conflict(state, commit) or next(iter(topic_conflicts(state, commit).values()), None)


def run_conflict(state: LoaderState, commit: Commit) -> Conflict | None:
    """Returns the reason why `commit` as a whole must not be the next commit after `state`, None if there is no such
    reason. Does not check its topics; `topic_conflicts` does."""
    if state.is_voided(commit.run_id):
        return Conflict(ConflictRule.RUN_VOIDED, commit.run_id)
    planned_after = commit.planned_after
    if planned_after is not None and planned_after < state.commit_number - PLAN_COMMITS_MAX:
        detail = f"{commit.run_id} was planned after commit {planned_after}, and the newest is {state.commit_number}"
        return Conflict(ConflictRule.PLAN_TOO_OLD, detail)
    committed = sorted(commit.voided & state.staged_runs)
    if committed:
        return Conflict(ConflictRule.RUN_COMMITTED, ", ".join(committed))
    return None


def topic_conflicts(state: LoaderState, commit: Commit) -> dict[str, Conflict]:
    """Returns the topics of `commit` that must not be in the next commit after `state`, each with one reason. All other
    topics can be committed."""
    found = {}
    owner_of_table = {known.table: topic for topic, known in state.topics.items()}
    for topic, proposed in commit.topics.items():
        owner = owner_of_table.setdefault(proposed.table, topic)
        conflict = next(_topic_conflicts(topic, state, proposed), None)
        if owner != topic:
            conflict = Conflict(ConflictRule.TABLE_NAME_IN_USE, f"{proposed.table} of {topic} belongs to {owner}")
        if conflict is not None:
            found[topic] = conflict
    for start in commit.starts:
        known = state.topics.get(start.topic)
        if known is not None and start.partition in known.partitions:
            detail = f"{start.topic}-{start.partition} was loaded up to {known.partitions[start.partition].next_offset}"
            found.setdefault(start.topic, Conflict(ConflictRule.START_LOADED, detail))
    return found


def _topic_conflicts(topic: str, state: LoaderState, proposed: TopicCommit) -> Iterator[Conflict]:
    known = state.topics.get(topic)
    topic_id = known.topic_id if known else None
    if known is not None and proposed.topic_id_before is None:
        yield Conflict(ConflictRule.TOPIC_COMMITTED, topic)
    elif topic_id != proposed.topic_id_before:
        yield Conflict(
            ConflictRule.TOPIC_RECREATED, f"the topic id of {topic} was {proposed.topic_id_before} and is {topic_id}"
        )
    revision = known.load_schema.revision if known else 0
    if revision != proposed.revision_before:
        yield Conflict(
            ConflictRule.LOAD_SCHEMA_CHANGED, f"{topic} from revision {proposed.revision_before} to {revision}"
        )
    generation = known.generation if known else 0
    if proposed.rewrites and generation != proposed.generation_before:
        # The generation identifies the set of live files. The set itself would make the state grow with history.
        yield Conflict(
            ConflictRule.FILES_REPLACED, f"{topic} from generation {proposed.generation_before} to {generation}"
        )
    yield from _partitioning_conflicts(topic, known, proposed)
    # The partitions of a re-created topic are new: none of their offsets is committed.
    starts_again = topic_id != proposed.topic_id and not proposed.continues
    for offsets in proposed.ranges:
        next_offset = None if known is not None and starts_again else state.next_offset(topic, offsets.partition)
        if next_offset != offsets.previous:
            yield Conflict(
                ConflictRule.OFFSETS_COMMITTED,
                f"{topic}-{offsets.partition} from {offsets.previous} to {next_offset}",
            )
        # A log that was truncated and grew again has other messages at the same offsets. A partition without committed
        # offsets cannot be affected.
        partition = None if known is None or starts_again else known.partitions.get(offsets.partition)
        incarnation = partition.incarnation if partition else 0
        is_diverged = offsets.replaced is not None
        is_before_next_offset = partition is not None and offsets.start < partition.next_offset
        if offsets.incarnation != incarnation + is_diverged or (is_before_next_offset and not is_diverged):
            yield Conflict(
                ConflictRule.LOG_DIVERGED,
                f"{topic}-{offsets.partition}: planned from offset {offsets.start} with incarnation "
                f"{offsets.incarnation - is_diverged}, but the commit log has next offset {next_offset} with "
                f"incarnation {incarnation}",
            )


def _partitioning_conflicts(topic: str, known: TopicState | None, proposed: TopicCommit) -> Iterator[Conflict]:
    if known is None:
        return
    repartition = proposed.repartition
    expected = proposed.partition_by if repartition is None else repartition.partition_by
    if known.partition_by != expected:
        yield Conflict(ConflictRule.PARTITIONING_CHANGED, f"{topic} from {expected} to {known.partition_by}")
    if repartition is not None and known.commit_number != repartition.after_commit:
        detail = f"{topic} from commit {repartition.after_commit} to {known.commit_number}"
        yield Conflict(ConflictRule.TOPIC_CHANGED, detail)
