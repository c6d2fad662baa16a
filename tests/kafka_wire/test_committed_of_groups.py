"""Committed offsets of several groups, from brokers with and without one request for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import OffsetFetchResponse

from headrace.kafka_wire.admin import committed_of_groups
from headrace.kafka_wire.topic_partition import TopicPartition

ORDERS = TopicPartition("orders", 0)
REFUSED = 30


class Connection:
    """A broker that supports OffsetFetch up to a version, where each group has offsets of two topics and the group
    `forbidden` is refused."""

    name = "b:9092"

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self.requests: list[Any] = []

    def version(self, request: Any, newest: int, *, oldest: int = 0) -> int:
        return min(newest, self._newest)

    def call(self, request: Any, response: Any, version: int) -> Any:
        self.requests.append(request)
        if version < 8:
            topic = OffsetFetchResponse.OffsetFetchResponseTopic
            topics = self._topics(topic, topic.OffsetFetchResponsePartition, version, None)
            code = REFUSED if request.group_id == "forbidden" else 0
            return OffsetFetchResponse(version=version, topics=[] if code else topics, error_code=code)
        of_group = OffsetFetchResponse.OffsetFetchResponseGroup
        topic = of_group.OffsetFetchResponseTopics
        groups = []
        for one in request.groups:
            code = REFUSED if one.group_id == "forbidden" else 0
            topics = self._topics(topic, topic.OffsetFetchResponsePartitions, version, one.topics)
            groups.append(
                of_group(version=version, group_id=one.group_id, topics=[] if code else topics, error_code=code)
            )
        return OffsetFetchResponse(version=version, groups=groups)

    def _topics(self, topic: Any, partition: Any, version: int, wanted: Any) -> list[Any]:
        names = {"orders": (7, -1), "clicks": (9,)}
        return [
            topic(
                version=version,
                name=name,
                partitions=[
                    partition(version=version, partition_index=index, committed_offset=offset, error_code=0)
                    for index, offset in enumerate(offsets)
                ],
            )
            for name, offsets in names.items()
            if wanted is None or name in {one.name for one in wanted}
        ]


@pytest.mark.parametrize(("newest", "requests"), [(10, 1), (8, 1), (7, 2), (2, 2)])
def test_offsets_of_groups_are_those_of_the_wanted_partitions(newest: int, requests: int) -> None:
    connection = Connection(newest)
    found = committed_of_groups(connection, ["shop", "forbidden"], [ORDERS])  # type: ignore[arg-type]
    assert found["shop"] == {ORDERS: 7}
    assert isinstance(found["forbidden"], str)
    assert "GROUP_AUTHORIZATION_FAILED" in found["forbidden"]
    assert len(connection.requests) == requests


@pytest.mark.parametrize("newest", [8, 7])
def test_all_committed_partitions_are_returned_without_a_selection(newest: int) -> None:
    found = committed_of_groups(Connection(newest), ["shop"])  # type: ignore[arg-type]
    assert found == {"shop": {ORDERS: 7, TopicPartition("clicks", 0): 9}}
