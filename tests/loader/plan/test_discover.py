"""The requests of the discovery, and its results for unusual responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.kafka_wire.cluster import (
    ClusterMetadata,
    EpochEndLookup,
    EpochQuery,
    OffsetLookup,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.plan.discover import discover


class Cluster:
    def __init__(self) -> None:
        self.requested: list[tuple[str, bool, list[int]]] = []

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        partitions = {0: PartitionMetadata(1, 4), 1: PartitionMetadata(-1, 4)}
        return ClusterMetadata(
            "c",
            {},
            {
                "orders": TopicMetadata("id-1", False, partitions),
                "internal": TopicMetadata("id-2", True, partitions),
                "broken": TopicMetadata("id-3", False, {}, "topic authorization failed"),
                "__consumer_offsets": TopicMetadata("id-4", False, partitions),
            },
        )

    def lookup_offsets(
        self, topic_partitions: Iterable[TopicPartition], position: str, read_committed: bool = True
    ) -> OffsetLookup:
        self.requested.append((position, read_committed, sorted(tp.partition for tp in topic_partitions)))
        offset = 30 if position == "earliest" else 20 if read_committed else 50
        return OffsetLookup(
            {TopicPartition("orders", 0): offset}, {TopicPartition("orders", 1): "leader not available"}
        )

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        assert not queries, "no offsets were read before"
        return EpochEndLookup({})

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        raise AssertionError("discovery changes nothing")


def test_discovery_separates_unusable_topics_and_partitions() -> None:
    cluster = Cluster()
    found = discover(cluster, [".*"], [])
    assert list(found.topics) == ["orders"]
    assert found.unusable == {"broken": "topic authorization failed"}
    orders = found.topics["orders"]
    assert orders.errors == {1: "leader not available"}
    (partition,) = orders.partitions
    assert (partition.start, partition.end, partition.leader_epoch) == (30, 30, 4)  # retention passed the end
    assert partition.high_watermark == 50
    assert cluster.requested == [("latest", False, [0, 1]), ("latest", True, [0]), ("earliest", True, [0])]
