"""`headrace offsets show`: the next offsets of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.kafka_wire.cluster import LogHeadLookup, OffsetLookup
from headrace.kafka_wire.log_heads import LogHead
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit import Commit, CommitKind, StartOffset
from headrace.loader.commit.state import EMPTY, fold
from headrace.loader.inspect.offsets import (
    BrokerOffsets,
    PartitionStatus,
    all_offsets,
    next_offsets_of,
    partition_statuses,
    topic_offsets,
)
from support.loader.loader_fakes import FakeCluster, FakeTopic
from support.loader.loader_samples import committed_range, load, topic_commit

CHOSEN = (StartOffset("orders", 1, 7), StartOffset("clicks", 0, 9))
STATE = fold(EMPTY, load("w1", {"orders": topic_commit(committed_range(0, None, 0, 40), new=True)}).with_number(1))
STATE = fold(STATE, Commit(2, CommitKind.OFFSETS, "op", 1, "b", {}, frozenset(), reason="why", starts=CHOSEN))


def test_offsets_distinguish_loaded_chosen_and_new_partitions() -> None:
    offsets = {TopicPartition("orders", number): BrokerOffsets(1, 5, 50) for number in range(3)}
    assert partition_statuses(STATE, offsets) == (
        PartitionStatus("clicks", 0, 9, False, -1, None, None, None),
        PartitionStatus("orders", 0, 40, True, 0, 5, 50, 10),
        PartitionStatus("orders", 1, 7, False, -1, 5, 50, 43),
        PartitionStatus("orders", 2, None, False, -1, 5, 50, 45),
    )
    assert [(one.topic, one.partition) for one in partition_statuses(STATE, None)] == [
        ("clicks", 0),
        ("orders", 0),
        ("orders", 1),
    ]


def test_partition_without_offsets_on_its_leader_has_no_lag() -> None:
    offsets = {TopicPartition("orders", 0): BrokerOffsets(-1, 5, problem="no leader")}
    assert partition_statuses(STATE, offsets)[1] == PartitionStatus("orders", 0, 40, True, 0, 5, None, None)


def test_next_offsets_are_those_of_loads_and_of_the_operator() -> None:
    assert next_offsets_of(STATE, "orders") == {0: 40, 1: 7}
    assert next_offsets_of(STATE, "clicks") == {0: 9}
    assert next_offsets_of(STATE, "none") == {}


class Source(FakeCluster):
    """Counts requests to a leader. The log of partition 0 is from 5 to 50, with batches of the time offset * 1000. A
    partition that ends before a position has no head."""

    def __init__(self, ends: dict[int, int]) -> None:
        super().__init__({"orders": FakeTopic("id", [[1] * (end - 5) for end in ends.values()], first=5)})
        self.requests: list[str] = []
        self.retention: dict[str, int] = {"orders": 3_600_000}

    def lookup_offsets(
        self, topic_partitions: Iterable[TopicPartition], which: str, read_committed: bool = True
    ) -> OffsetLookup:
        self.requests.append(which)
        return super().lookup_offsets(topic_partitions, which, read_committed)

    def lookup_log_heads(self, positions: Mapping[TopicPartition, int]) -> LogHeadLookup:
        self.requests.append("heads")
        heads = {}
        for tp, position in positions.items():
            end = 5 + len(self.topics["orders"].logs[tp.partition])
            head = LogHead(end, end + 2, position * 1000 if position < end else None)
            heads[tp] = head if position <= end else None
        return LogHeadLookup(heads)

    def request_any(self, call: object) -> dict[str, int]:
        return self.retention


def test_two_requests_find_the_offsets_and_times_of_a_topic() -> None:
    source = Source({0: 50, 1: 7, 2: 50})
    found = topic_offsets(source, "orders", {0: 40, 1: 7})  # type: ignore[arg-type]
    assert source.requests == ["earliest", "heads"]
    assert found.retention_ms == 3_600_000
    assert list(found.partitions.values()) == [
        BrokerOffsets(0, 5, 50, 52, 40_000),
        BrokerOffsets(0, 5, 7, 9, None),  # all messages are read
        BrokerOffsets(0, 5, 50, 52, 5_000),  # never loaded: from the log start on
    ]


def test_log_that_ends_before_the_next_offset_has_its_end() -> None:
    source = Source({0: 50, 1: 20})
    found = topic_offsets(source, "orders", {0: 3, 1: 30})  # type: ignore[arg-type]
    assert source.requests == ["earliest", "heads", "latest"]
    assert list(found.partitions.values()) == [
        BrokerOffsets(0, 5, 50, 52, 5_000),  # the messages before offset 5 were deleted
        BrokerOffsets(0, 5, 20, 20, None),
    ]


def test_missing_topic_is_a_problem() -> None:
    found = topic_offsets(Source({0: 9}), "none", {})  # type: ignore[arg-type]
    assert (found.partitions, bool(found.problem)) == ({}, True)


def test_all_offsets_need_two_requests_and_leave_out_topics() -> None:
    source = Source({0: 50})
    assert list(all_offsets(source, lambda topic: True).values()) == [BrokerOffsets(0, 5, 50)]
    assert source.requests == ["earliest", "latest"]
    assert all_offsets(source, lambda topic: False) == {}
