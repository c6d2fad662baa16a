"""Errors of partition and offset lookups."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from headrace import SourceUnavailable
from headrace.clients.delivered_offsets import DeliveredOffsets
from headrace.clients.partitions import at_commit_or, at_time, known_partitions


def test_topic_without_partitions_is_reported_as_missing() -> None:
    empty = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
    kafka = SimpleNamespace(list_topics=lambda topic, timeout_s: SimpleNamespace(topics={topic: empty}))
    with pytest.raises(SourceUnavailable, match=r"\borders\b") as raised:
        known_partitions(kafka, "orders")
    assert raised.value.topic == "orders"


def test_error_names_the_partition_of_a_failed_time_lookup() -> None:
    def offsets_for_times(requested: list[Any], timeout_s: float) -> list[Any]:
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [SimpleNamespace(topic="orders", partition=number, offset=-1, error=error) for number in (0, 1)]

    kafka = SimpleNamespace(offsets_for_times=offsets_for_times)
    with pytest.raises(SourceUnavailable, match=r"\b5 ms\b") as raised:
        at_time(kafka, [("orders", 0), ("orders", 1)], 5)
    assert (raised.value.topic, raised.value.partition) == ("orders", 0)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda kafka: at_commit_or(kafka, [TopicPartition("orders", 1)], lambda kafka, partitions: []),
        lambda kafka: DeliveredOffsets().find_lost(kafka, frozenset({("orders", 1)}), ()),
    ],
)
def test_failed_lookup_of_a_committed_offset_is_not_a_missing_commit(look_up: Callable[[Any], Any]) -> None:
    """Otherwise the consumer could start at the end, commit it and skip messages."""

    def committed(requested: list[TopicPartition], timeout_s: float) -> list[Any]:
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return [
            SimpleNamespace(topic=each.topic, partition=each.partition, offset=-1, error=error) for each in requested
        ]

    kafka = SimpleNamespace(committed=committed, position=lambda requested: [TopicPartition("orders", 1, 5)])
    with pytest.raises(SourceUnavailable, match=r"\bTOPIC_AUTHORIZATION_FAILED\b") as raised:
        look_up(kafka)
    assert (raised.value.topic, raised.value.partition) == ("orders", 1)
