"""The topics of the brokers, with the offsets and sizes of their partitions, and their configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.kafka_wire.admin import log_sizes, topic_configs
from headrace.kafka_wire.cluster import ClusterMetadata, KafkaCluster
from headrace.kafka_wire.errors import ErrorResponse
from headrace.kafka_wire.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """A partition. Its log has the offsets [start, end) in `size_bytes` bytes. These three are None if the leader did
    not report them."""

    partition: int
    leader: int
    start: int | None
    end: int | None
    size_bytes: int | None

    @property
    def records(self) -> int | None:
        """Returns the number of offsets in the log. It is an upper bound of the number of records: offsets of
        transaction markers and of records removed by compaction are included."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic. `configs` are the values that differ from the brokers' defaults; empty if they may not be read."""

    name: str
    topic_id: str
    is_internal: bool
    configs: Mapping[str, str]
    partitions: tuple[ListedPartition, ...]


@dataclass(frozen=True, slots=True)
class TopicListing:
    """The topics by name, and sentences about values that could not be read."""

    topics: tuple[ListedTopic, ...]
    notes: tuple[str, ...]


def list_topics(cluster: KafkaCluster, metadata: ClusterMetadata, *, with_internal: bool) -> TopicListing:
    """Returns the topics of `metadata` with their offsets, sizes and configuration.

    Args:
        with_internal: whether the internal topics of the brokers are included.

    Raises:
        KafkaUnavailable: no broker could be read.
    """
    topics = {name: one for name, one in sorted(metadata.topics.items()) if with_internal or not one.is_internal}
    notes = [f"topic {name}: {one.error}" for name, one in topics.items() if one.error]
    topic_partitions = [TopicPartition(name, index) for name, one in topics.items() for index in sorted(one.partitions)]
    starts, start_notes = _offsets(cluster, topic_partitions, "earliest")
    ends, _ = _offsets(cluster, topic_partitions, "latest")
    sizes, errors = cluster.request_all(log_sizes)
    notes += [*start_notes, *(f"sizes of node {node}: {error}" for node, error in errors.items())]
    try:
        configs = cluster.request_any(lambda connection: topic_configs(connection, list(topics)))
    except ErrorResponse as refused:
        configs = {}
        notes.append(f"configuration: {refused}")
    found = []
    for name, one in topics.items():
        partitions = []
        for index, known in sorted(one.partitions.items()):
            tp = TopicPartition(name, index)
            size = sizes.get(known.leader, {}).get(tp)
            partitions.append(ListedPartition(index, known.leader, starts.get(tp), ends.get(tp), size))
        found.append(ListedTopic(name, one.topic_id, one.is_internal, configs.get(name, {}), tuple(partitions)))
    return TopicListing(tuple(found), tuple(notes))


def _offsets(
    cluster: KafkaCluster, topic_partitions: Iterable[TopicPartition], position: Literal["earliest", "latest"]
) -> tuple[Mapping[TopicPartition, int], list[str]]:
    responses = cluster.lookup_offsets(topic_partitions, position, read_committed=False)
    return responses.offsets, [f"{tp.topic}-{tp.partition}: {reason}" for tp, reason in responses.errors.items()]
