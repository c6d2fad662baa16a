"""Errors of partition and offset lookups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace import SourceUnavailable
from headrace.clients.partitions import at_time, known_partitions


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
