"""Reads the descriptions of brokers, topics and partitions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from headrace.clients.kafka_client import KAFKA_LOGGER
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.kafka_problems import problem_of

KAFKA_S: Final = 30.0
"""Time limit of requests to Kafka."""
DESCRIBED_S: Final = 10.0
"""Time for which the partitions of a topic are cached, to check that one exists."""
DESCRIBED_MAX: Final = 10_000
EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

Result = TypeVar("Result")
Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


class ClusterReader:
    """Reads the descriptions of brokers and topics.

    Args:
        options: librdkafka's options: addresses and security.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._admin = AdminClient({"client.id": "headrace-gateway", **options}, logger=KAFKA_LOGGER)
        self._partitions: dict[str, tuple[frozenset[int], float]] = {}

    async def brokers(self) -> list[int]:
        found = await _result(self._admin.describe_cluster(request_timeout=KAFKA_S))
        return sorted(node.id for node in found.nodes)

    async def topics(self) -> list[str]:
        try:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=KAFKA_S)
        except KafkaException as error:
            raise problem_of(error.args[0]) from error
        return sorted(found.topics)

    async def topic(self, topic: str) -> TopicDescription:
        """Returns the description of a topic.

        Raises:
            GatewayError: the topic does not exist, or may not be described.
        """
        if not _TOPIC.fullmatch(topic):
            raise GatewayError(Kind.TOPIC_NOT_FOUND, f"{topic!r:.80} is not the name of a topic")
        futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=KAFKA_S)
        return await _result(futures[topic])

    async def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = await _result(self._admin.describe_configs([resource], request_timeout=KAFKA_S)[resource])
        return {name: entry.value for name, entry in found.items()}

    async def check_partition(self, topic: str, partition: int) -> None:
        """Raises:
        GatewayError: the topic or the partition does not exist. Their existence is cached.
        """
        known = self._partitions.get(topic)
        if known is None or known[1] < time.monotonic():
            described = await self.topic(topic)
            if len(self._partitions) >= DESCRIBED_MAX:
                self._partitions.clear()
            numbers = frozenset(one.id for one in described.partitions)
            known = self._partitions[topic] = numbers, time.monotonic() + DESCRIBED_S
        if partition not in known[0]:
            raise no_partition(topic, partition)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the offset of the first record of a partition, and the one after its last record."""
        one = topic, partition
        first = await self.lookup({one: EARLIEST}, IsolationLevel.READ_UNCOMMITTED)
        end = await self.lookup({one: LATEST}, IsolationLevel.READ_UNCOMMITTED)
        return first[one], end[one]

    async def lookup(
        self,
        specs: Mapping[Partition, OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[Partition, int]:
        """Returns the offset that is looked up in each partition. That of a time after the last record is -1."""
        keys = {one: TopicPartition(*one) for one in specs}
        if not keys:
            return {}
        futures = self._admin.list_offsets(
            {keys[one]: spec for one, spec in specs.items()}, isolation_level=isolation, request_timeout=KAFKA_S
        )
        return {one: (await _result(futures[key])).offset for one, key in keys.items()}


async def _result(future: Future[Result]) -> Result:
    try:
        return await asyncio.wrap_future(future)
    except KafkaException as error:
        raise problem_of(error.args[0]) from error


def no_partition(topic: str, partition: int) -> GatewayError:
    return GatewayError(Kind.PARTITION_NOT_FOUND, f"topic {topic} has no partition {partition}")
