"""From what was settled to the commit that is offered. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.loader.commit.commit import Commit, CommitKind, TopicCommit
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.plan.load_plan import LoadPlan, TopicWork


def new_load_commit(
    plan: LoadPlan,
    reconciled: Mapping[str, ReconciledTopic],
    registered_ids: Mapping[str, frozenset[int]],
    published: frozenset[str],
    now_ms: int,
    build: str,
) -> Commit:
    """The offer: only what changed.

    Args:
        registered_ids: by topic, ids that the plan did not know and the registry has.
        published: committed work that has nothing left in staging.
    """
    topics = {}
    for topic, work in plan.works.items():
        committed = _topic_commit(
            work, reconciled.get(topic, ReconciledTopic()), registered_ids.get(topic, frozenset()) - work.known_ids
        )
        if committed is not None:
            topics[topic] = committed
    return Commit(
        0, CommitKind.LOAD, plan.run_id, now_ms, build, topics, frozenset(), published, planned_after=plan.commit_number
    )


def _topic_commit(work: TopicWork, one: ReconciledTopic, asked_ids: frozenset[int]) -> TopicCommit | None:
    known = work.known
    changed = known is None or work.schemas.is_changed or work.ranges.starts_again or work.ranges.continues
    if not (changed or asked_ids or one.ranges):
        return None
    return TopicCommit(
        topic_id=work.ranges.topic_id,
        topic_id_before=known.topic_id if known else None,
        revision_before=known.load_schema.revision if known else 0,
        table=work.table,
        directory=work.directory,
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
