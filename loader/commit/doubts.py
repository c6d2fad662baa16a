"""Reasons not to decide what the tasks brought back, found between reading and deciding.

`changes_of` asks what became of the topics meanwhile, before the work is settled, since a partition that changed its
leader takes only its own ranges out; `drop_doubtful` then drops whole topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.loader.commit.settle import SettledTopic
from headrace.loader.errors import StorageError
from headrace.loader.plan.discover import Cluster
from headrace.loader.plan.load_plan import LoadPlan
from headrace.loader.plan.ranges import TopicRanges
from headrace.loader.storage.protocols import Staged, Staging

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import TopicMetadata

QUARANTINED_MIN = 100  # messages; so few are no reason to hold back the others, and `findings` tells of them


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed while it was read: topics that were re-created, and, by topic, partitions with a new leader."""

    recreated: frozenset[str]
    moved: Mapping[str, frozenset[int]]


def changes_of(plan: LoadPlan, cluster: Cluster) -> Changes:
    """Asks the cluster once more what the topics are of which the plan has news.

    Raises:
        KafkaUnavailable: no broker answers.
    """
    read = [topic for topic, work in plan.works.items() if any(planned.has_news for planned in work.ranges.ranges)]
    now = cluster.metadata(read).topics if read else {}
    recreated = frozenset(
        topic for topic, found in now.items() if found.topic_id and found.topic_id != plan.works[topic].ranges.topic_id
    )
    return Changes(recreated, {topic: _moved(plan.works[topic].ranges, found) for topic, found in now.items()})


def _moved(ranges: TopicRanges, found: TopicMetadata) -> frozenset[int]:
    moved = set()
    for planned in ranges.ranges:
        partition = found.partitions.get(planned.partition)
        epoch = partition.leader_epoch if partition else planned.leader_epoch
        if planned.end > planned.start and -1 not in (epoch, planned.leader_epoch) and epoch != planned.leader_epoch:
            moved.add(planned.partition)
    return frozenset(moved)


def drop_doubtful(
    plan: LoadPlan,
    settled: Mapping[str, SettledTopic],
    changes: Changes,
    staging: Staging,
) -> dict[str, SettledTopic]:
    """Drops the topics whose work must not be decided, and says why.

    Args:
        staging: holds the files, which are checked and kept there.
    """
    checked = {}
    for topic, one in settled.items():
        reason = ""
        if topic in changes.recreated:
            reason = "the topic was re-created while it was read; the next load looks again"
        elif one.ranges or one.files:
            share_max = plan.works[topic].policy.quarantine_share_max
            reason = _over_quarantine(one, share_max) or _not_staged(staging, plan.work_id, one)
        if reason:
            one = SettledTopic(problems=(*one.problems, reason))
        checked[topic] = one
    return checked


def _over_quarantine(one: SettledTopic, share_max: float) -> str:
    counts = one.counts
    messages = counts.records + counts.quarantined
    if counts.quarantined <= max(QUARANTINED_MIN, share_max * messages):
        return ""
    return (
        f"{counts.quarantined} of {messages} messages cannot be loaded, more than loader.quarantine_share_max "
        f"({share_max:.0%}) allows; nothing of this topic was loaded: mend the cause or raise the limit"
    )


def _not_staged(staging: Staging, work_id: str, one: SettledTopic) -> str:
    try:
        staging.keep(work_id, [Staged(file.staged, file.length) for file in one.files])
    except StorageError as error:
        return f"{error}; nothing of this topic was loaded, and the next load reads it again"
    return ""
