"""Commits the loaded offsets for a consumer group, so that lag tools show the loader's progress.

The commit log decides where a load continues. A load reads these offsets only while its warehouse has no commit, to
detect that another warehouse was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from headrace.kafka_wire.errors import KafkaError
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.apply.base import Step

GROUP: Final = "headrace-loader"

OFFSETS_PER_REQUEST_MAX: Final = 1_000
"""Partitions per commit request. A request becomes one batch in the brokers' log; with the longest names it has 400 KB.
"""


class OffsetCommitter(Protocol):
    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        """Commits the offsets for the consumer group. Returns the brokers' reasons for the partitions that they
        refused."""
        ...


class GroupOffsetsApplier:
    """Commits the loaded offsets for the loader's consumer group: for each partition that the commits loaded, the next
    offset as of the newest commit. Applying older commits again therefore does not lower an offset. An offset is
    lowered if the partition's log was truncated or the topic re-created."""

    name = "group_offsets"
    is_advisory = True

    def __init__(self, cluster: OffsetCommitter) -> None:
        self._cluster = cluster
        self._failure: KafkaError | None = None

    def apply_topics(self, steps: Sequence[Step]) -> Mapping[str, str]:
        if self._failure is not None:
            raise self._failure  # an earlier request of this run timed out; do not wait again
        offsets = [offset for step in steps for offset in _next_offsets(step)]
        refused: dict[TopicPartition, str] = {}
        try:
            for first in range(0, len(offsets), OFFSETS_PER_REQUEST_MAX):
                batch = dict(offsets[first : first + OFFSETS_PER_REQUEST_MAX])
                refused |= self._cluster.commit_group_offsets(GROUP, batch)
        except KafkaError as error:
            self._failure = error
            raise
        return {
            topic_partition.topic: (
                f"the brokers refused the group offset of partition {topic_partition.partition}: {reason}"
            )
            for topic_partition, reason in refused.items()
        }


def _next_offsets(step: Step) -> list[tuple[TopicPartition, int]]:
    """Returns the next offset to load of each partition that the commits in `step`, all of one topic, loaded."""
    loaded = {offsets.partition for commit in step.commits for offsets in commit.topics[step.topic].ranges}
    return [
        (TopicPartition(step.topic, partition), state.next_offset)
        for partition, state in step.state.partitions.items()
        if partition in loaded
    ]
