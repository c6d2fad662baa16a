"""The requests of the discovery, and its results for unusual responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import pytest

from headrace.kafka_wire.cluster import (
    ClusterMetadata,
    EpochEndLookup,
    EpochQuery,
    OffsetLookup,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import EMPTY, FileTotals, TopicState
from headrace.loader.plan.discover import discover
from support.loader.loader_samples import load_schema

KNOWN = TopicState(
    "id-1", "t", "t", "hour", load_schema(), {}, frozenset(), FileTotals(), FileTotals(), commit_number=1
)


class Cluster:
    def __init__(self) -> None:
        self.requested: list[tuple[str, bool, list[int]]] = []
        self.named: list[tuple[str, ...]] = []

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        partitions = {0: PartitionMetadata(1, 4), 1: PartitionMetadata(-1, 4)}
        if topics is not None:
            self.named.append(tuple(topics))
            codes = {"forbidden": 29, "shop.sales": 29}
            named = {name: TopicMetadata("", False, {}, "refused", codes.get(name, 3)) for name in topics}
            return ClusterMetadata("c", {}, named)
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
        requested = list(topic_partitions)
        self.requested.append((position, read_committed, sorted(tp.partition for tp in requested)))
        offset = 30 if position == "earliest" else 20 if read_committed else 50
        return OffsetLookup(
            {tp: offset for tp in requested if tp.partition == 0},
            {tp: "leader not available" for tp in requested if tp.partition == 1},
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


@pytest.mark.parametrize(
    ("include", "named", "unusable"),
    [
        ([".*"], [], ["broken"]),
        (["orders", "forbidden"], [("forbidden",)], ["forbidden"]),
        (["orders", "deleted"], [("deleted",)], []),
        ([r"shop\.sales", "shop.sales", "forb.*", r"\d+"], [("shop.sales",)], ["shop.sales"]),
        (["_schemas", "__transaction_state"], [], []),
    ],
)
def test_topics_that_are_named_and_may_not_be_read_are_unusable(
    include: Sequence[str], named: Sequence[tuple[str, ...]], unusable: Sequence[str]
) -> None:
    cluster = Cluster()
    assert list(discover(cluster, include, []).unusable) == unusable
    assert cluster.named == named


def test_a_loaded_topic_that_may_not_be_read_any_more_is_unusable() -> None:
    cluster = Cluster()
    known = dataclasses.replace(EMPTY, topics=dict.fromkeys(("orders", "forbidden", "deleted"), KNOWN))
    assert list(discover(cluster, [".*"], ["orders"], known).unusable) == ["broken", "forbidden"]
    assert cluster.named == [("deleted", "forbidden")]
