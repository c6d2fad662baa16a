"""Tells the brokers how far the tables are, as offsets of a consumer group, so that lag tools show the loader.

Nothing reads them back: what is loaded is what is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.kafka_wire.errors import KafkaError
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.follow.base import Step

GROUP = "headrace-loader"


class OffsetCommitter(Protocol):
    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class GroupOffsetsFollower:
    """Commits the next offsets of the partitions that the decisions moved, as of the newest slot: forward only."""

    name = "group_offsets"
    is_advisory = True

    def __init__(self, cluster: OffsetCommitter) -> None:
        self._cluster = cluster
        self._failure: KafkaError | None = None

    def apply(self, step: Step) -> None:
        if self._failure is not None:
            raise self._failure  # one time-out is enough for a run
        moved = {offsets.partition for decision in step.decisions for offsets in decision.topics[step.topic].ranges}
        offsets = {
            TopicPartition(step.topic, partition): state.next_offset
            for partition, state in step.state.partitions.items()
            if partition in moved
        }
        try:
            self._cluster.commit_group_offsets(GROUP, offsets)
        except KafkaError as error:
            self._failure = error
            raise
