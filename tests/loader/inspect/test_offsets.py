"""`headrace offsets show`: the next offsets of partitions."""

from __future__ import annotations

from headrace.loader.commit.commit import Commit, CommitKind, StartOffset
from headrace.loader.commit.state import EMPTY, fold
from headrace.loader.inspect.offsets import PartitionStatus, partition_statuses
from headrace.loader.plan.discover import DiscoveredTopic, Discovery, PartitionOffsets
from support.loader.loader_samples import committed_range, load, topic_commit

CHOSEN = (StartOffset("orders", 1, 7), StartOffset("clicks", 0, 9))
STATE = fold(EMPTY, load("w1", {"orders": topic_commit(committed_range(0, None, 0, 40), new=True)}).with_number(1))
STATE = fold(STATE, Commit(2, CommitKind.OFFSETS, "op", 1, "b", {}, frozenset(), reason="why", starts=CHOSEN))


def test_offsets_distinguish_loaded_chosen_and_new_partitions() -> None:
    partitions = tuple(PartitionOffsets(number, 4, 5, 50, 50) for number in range(3))
    discovery = Discovery("c", {"orders": DiscoveredTopic("orders", "id", partitions, {})}, {})
    assert partition_statuses(STATE, discovery) == (
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
