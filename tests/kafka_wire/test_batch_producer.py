"""Requests of `BatchProducer` whose responses are lost."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.kafka_wire.batch_producer import BatchProducer
from headrace.kafka_wire.errors import KafkaUnavailable


class LosingCluster:
    """Loses the response of every request."""

    def __init__(self) -> None:
        self.requests = 0

    def coordinator(self, key: str, *, is_transaction: bool) -> tuple[str, int]:
        return "broker", 9092

    def request(self, address: Any, call: Any) -> Any:
        self.requests += 1
        raise KafkaUnavailable("no response")


@pytest.mark.parametrize("is_commit", [True, False])
def test_end_of_a_transaction_without_a_response_is_not_sent_again(is_commit: bool) -> None:
    """A late first request could end the next transaction of the epoch."""
    cluster = LosingCluster()
    producer = BatchProducer(cluster, "id", sleep=lambda seconds: None)
    with pytest.raises(KafkaUnavailable):
        producer.end(is_commit=is_commit)
    assert cluster.requests == 1
