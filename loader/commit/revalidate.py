"""Checks, between reading and committing, whether the results may still be committed.

`fetch_changes` finds topics and partitions that changed on the brokers during the read. If only the leader of a
partition changed, `reconcile` discards what was read from that partition. `revalidate` then discards all ranges and
files of rejected topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.errors import StorageError
from headrace.loader.plan.discover import Cluster
from headrace.loader.plan.load_plan import LoadPlan
from headrace.loader.plan.ranges import TopicRanges
from headrace.loader.storage.protocols import FinishedFile, Staging

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import TopicMetadata

QUARANTINED_MIN = 100  # fewer bad messages do not hold back a topic; `findings` reports them


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the topics on the brokers since the run was planned: the re-created topics, and, by topic, the
    partitions with a new leader."""

    recreated: frozenset[str]
    new_leaders: Mapping[str, frozenset[int]]


def fetch_changes(plan: LoadPlan, cluster: Cluster) -> Changes:
    """Fetches, from the brokers of `cluster`, the present metadata of the topics that the plan reads. Returns the
    differences from the plan.

    Raises:
        KafkaUnavailable: no broker answers.
    """
    read = [
        topic
        for topic, planned_topic in plan.planned_topics.items()
        if any(planned.has_changes for planned in planned_topic.ranges.ranges)
    ]
    current = cluster.metadata(read).topics if read else {}
    recreated = frozenset(
        topic
        for topic, found in current.items()
        if found.topic_id and found.topic_id != plan.planned_topics[topic].ranges.topic_id
    )
    return Changes(
        recreated,
        {
            topic: _partitions_with_new_leader(plan.planned_topics[topic].ranges, found)
            for topic, found in current.items()
        },
    )


def _partitions_with_new_leader(ranges: TopicRanges, found: TopicMetadata) -> frozenset[int]:
    moved = set()
    for planned in ranges.ranges:
        partition = found.partitions.get(planned.partition)
        epoch = partition.leader_epoch if partition else planned.leader_epoch
        if planned.end > planned.start and -1 not in (epoch, planned.leader_epoch) and epoch != planned.leader_epoch:
            moved.add(planned.partition)
    return frozenset(moved)


def revalidate(
    plan: LoadPlan,
    reconciled: Mapping[str, ReconciledTopic],
    changes: Changes,
    staging: Staging,
) -> dict[str, ReconciledTopic]:
    """Returns the reconciled topics, after checking that their messages may be committed. A rejected topic has no
    ranges and files in the result, and the reason is added to its problems.

    Args:
        plan: has the limit for bad messages of each topic.
        reconciled: by topic, the part of the tasks' results that can be committed.
        changes: the topics that were re-created during the read are not committed.
        staging: contains the tasks' files, which are checked and made durable there.
    """
    checked = {}
    for topic, reconciled_topic in reconciled.items():
        reason = ""
        if topic in changes.recreated:
            reason = "the topic was re-created during the read; the next load reads the new topic"
        elif reconciled_topic.ranges or reconciled_topic.files:
            share_max = plan.planned_topics[topic].policy.quarantine_ratio_max
            reason = _quarantine_problem(topic, reconciled_topic, share_max) or _staging_problem(
                staging, plan.run_id, reconciled_topic
            )
        if reason:
            reconciled_topic = ReconciledTopic(problems=(*reconciled_topic.problems, reason))
        checked[topic] = reconciled_topic
    return checked


def _quarantine_problem(topic: str, reconciled: ReconciledTopic, share_max: float) -> str:
    counts = reconciled.counts
    messages = counts.records + counts.quarantined
    if counts.quarantined <= max(QUARANTINED_MIN, share_max * messages):
        return ""
    return (
        f"{counts.quarantined:,} of {messages:,} messages cannot be loaded, more than loader.quarantine_ratio_max "
        f"({share_max:.0%}) allows, so nothing of this topic was loaded; remove the cause that "
        f"`headrace quarantine preview {topic}` shows, or let them into the quarantine with "
        f"`headrace load --topic {topic} --quarantine-all`"
    )


def _staging_problem(staging: Staging, run_id: str, topic: ReconciledTopic) -> str:
    try:
        staging.persist(run_id, [FinishedFile(file.staged, file.length) for file in topic.files])
    except StorageError as error:
        return f"{error}; nothing of this topic was loaded, and the next load reads it again"
    return ""
