"""Reasons not to decide what a topic's tasks brought back, found between reading and deciding."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.loader.check.settle import SettledTopic
from headrace.loader.decide.decision_log import staging_path
from headrace.loader.decide.storage import LocalStorage, force_to_disk
from headrace.loader.errors import StorageError
from headrace.loader.plan.discover import Cluster
from headrace.loader.plan.load_plan import LoadPlan, TopicWork

QUARANTINED_MIN = 100  # messages; below it a share says nothing about a topic


def drop_doubtful(
    plan: LoadPlan,
    settled: Mapping[str, SettledTopic],
    cluster: Cluster,
    storage: LocalStorage,
    quarantine_share_max: float,
) -> dict[str, SettledTopic]:
    """Drops the topics whose work must not be decided, and says why.

    Args:
        cluster: is asked once more what the topics are now.
        storage: holds the staged files, which are forced to disk.
        quarantine_share_max: of a topic's messages, the most that may be quarantined.
    """
    touched = [topic for topic, one in settled.items() if one.ranges or one.files]
    now = cluster.metadata(touched).topics if touched else {}
    checked = {}
    for topic, one in settled.items():
        reason = ""
        if topic in touched:
            found = now.get(topic)
            epochs = {number: part.leader_epoch for number, part in found.partitions.items()} if found else {}
            reason = (
                _changed(plan.works[topic], found.topic_id if found else "", epochs)
                or _over_quarantine(one, quarantine_share_max)
                or _not_staged(storage, plan.work_id, one)
            )
        if reason:
            one = SettledTopic(problems=(*one.problems, reason))
        checked[topic] = one
    return checked


def _changed(work: TopicWork, topic_id: str, epochs: Mapping[int, int]) -> str:
    if topic_id and topic_id != work.ranges.topic_id:
        return "the topic was re-created while it was read; the next load looks again"
    for planned in work.ranges.ranges:
        epoch = epochs.get(planned.partition, planned.leader_epoch)
        if planned.end > planned.start and -1 not in (epoch, planned.leader_epoch) and epoch != planned.leader_epoch:
            return f"partition {planned.partition} changed its leader while it was read; the next load reads again"
    return ""


def _over_quarantine(one: SettledTopic, share_max: float) -> str:
    counts = one.counts
    messages = counts.records + counts.quarantined
    if counts.quarantined <= max(QUARANTINED_MIN, share_max * messages):
        return ""
    return (
        f"{counts.quarantined} of {messages} messages cannot be loaded, more than loader.quarantine_share_max "
        f"({share_max:.0%}) allows; nothing of this topic was loaded: mend the cause or raise the limit"
    )


def _not_staged(storage: LocalStorage, work_id: str, one: SettledTopic) -> str:
    try:
        for file in one.files:
            force_to_disk(storage.path(staging_path(work_id)) / file.staged, file.length)
    except StorageError as error:
        return f"{error}; nothing of this topic was loaded, and the next load reads it again"
    return ""
