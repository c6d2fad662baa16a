"""From what was settled to the decision that is offered. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.loader.commit.decision import Decision, DecisionKind, TopicDecision
from headrace.loader.commit.settle import SettledTopic
from headrace.loader.plan.load_plan import LoadPlan, TopicWork


def propose(
    plan: LoadPlan,
    settled: Mapping[str, SettledTopic],
    registered_ids: Mapping[str, frozenset[int]],
    published: frozenset[str],
    now_ms: int,
    build: str,
) -> Decision:
    """The offer: only what changed.

    Args:
        registered_ids: by topic, ids that the plan did not know and the registry has.
        published: decided work that has nothing left in staging.
    """
    topics = {}
    for topic, work in plan.works.items():
        decided = _topic_decision(
            work, settled.get(topic, SettledTopic()), registered_ids.get(topic, frozenset()) - work.known_ids
        )
        if decided is not None:
            topics[topic] = decided
    return Decision(
        0, DecisionKind.LOAD, plan.work_id, now_ms, build, topics, frozenset(), published, planned_after=plan.slot
    )


def _topic_decision(work: TopicWork, one: SettledTopic, asked_ids: frozenset[int]) -> TopicDecision | None:
    known = work.known
    changed = known is None or work.schemas.is_changed or work.ranges.starts_again or work.ranges.continues
    if not (changed or asked_ids or one.ranges):
        return None
    return TopicDecision(
        topic_id=work.ranges.topic_id,
        topic_id_before=known.topic_id if known else None,
        revision_before=known.load_schema.revision if known else 0,
        table=work.table,
        folder=work.folder,
        partition_by=work.policy.partition_by,
        kafka_column=work.policy.kafka_column,
        load_schema=work.schemas.load_schema if known is None or work.schemas.is_changed else None,
        ranges=one.ranges,
        files=one.files,
        audit=one.audit,
        time_sources=one.time_sources,
        asked_ids=asked_ids,
        continues=work.ranges.continues,
    )
