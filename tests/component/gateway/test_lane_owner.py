"""The consumer group that shares the lanes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.gateway.sessions.lane_owner import LaneAssignment, LaneOwners
from headrace.kafka_wire.cluster import KafkaCluster

pytestmark = pytest.mark.servers

LANES = 4
URL = "http://gateway-1.example:8082"
WAIT_S = 60.0


class Gateway:
    """A member of the group, and the lanes it serves."""

    def __init__(self, address: str, state_topic: str, url: str) -> None:
        self.lanes: set[int] = set()
        self.assignment = LaneAssignment({"bootstrap.servers": address}, state_topic, url, self._start, self._stop)

    def _start(self, lanes: Iterable[int]) -> None:
        self.lanes.update(lanes)

    def _stop(self, lanes: Iterable[int] | None) -> None:
        self.lanes.difference_update(list(self.lanes) if lanes is None else lanes)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lanes_are_shared_and_a_second_gateway_with_the_same_url_ends_the_first(broker_address: str) -> None:
    topic = f"lanes-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, LANES, 1)])[topic].result(30)
    first = Gateway(broker_address, topic, URL)
    wait_until(lambda: first.lanes == set(range(LANES)))
    owners = LaneOwners(lambda: KafkaCluster(broker_address), topic)
    assert [owners.url(lane) for lane in range(LANES)] == [URL] * LANES
    other = Gateway(broker_address, topic, "http://gateway-2.example:8082")
    wait_until(lambda: len(first.lanes) == len(other.lanes) == LANES // 2)
    assert first.lanes.isdisjoint(other.lanes)
    successor = Gateway(broker_address, topic, URL)
    wait_until(lambda: first.assignment.problem != "")
    assert "gateway.url" in first.assignment.problem and not first.lanes
    wait_until(lambda: len(successor.lanes) == LANES // 2)
    for gateway in (first, other, successor):
        gateway.assignment.close()
