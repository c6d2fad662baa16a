"""Admin requests whose effect the brokers describe with a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.gateway import cluster_admin
from headrace.gateway.cluster_admin import ClusterAdmin
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.kafka_problems import admin_problem_of

UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class DescribingClient:
    """An admin client that describes a topic with these numbers of partitions, or fails with these errors (negative:
    -1 is `UNKNOWN`, -2 `DENIED`). The last one is repeated."""

    def __init__(self, results: Sequence[int]) -> None:
        self._results = list(results)

    def describe_topics(self, _: Any, request_timeout: float) -> dict[str, Future[Any]]:
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        future: Future[Any] = Future()
        if result < 0:
            future.set_exception(KafkaException(KafkaError((UNKNOWN, DENIED)[-result - 1])))
        else:
            future.set_result(SimpleNamespace(name="t", partitions=[None] * result))
        return {"t": future}


def described(*results: int, wanted: int) -> int:
    client: Any = DescribingClient(results)
    found = asyncio.run(ClusterAdmin(client, admin_problem_of).changed_topic("t", wanted))
    return len(found.partitions)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_admin, "PROPAGATION_POLL_S", 0.001)


def test_changed_topic_is_described_after_the_brokers_know_the_change() -> None:
    assert described(-1, -1, 3, wanted=1) == 3
    assert described(-1, 2, 2, 5, wanted=5) == 5


def test_wait_for_a_change_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_admin, "PROPAGATION_S", 0.01)
    assert described(2, wanted=5) == 2
    for results, kind in (((-1,), Kind.INSTANCE_OR_PARTITION_NOT_FOUND), ((-1, -2), Kind.NOT_AUTHORIZED)):
        with pytest.raises(GatewayError) as raised:
            described(*results, wanted=1)
        assert raised.value.kind is kind
