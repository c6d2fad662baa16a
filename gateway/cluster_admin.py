"""Requests about the cluster, its topics and its consumer groups, with the Kafka client's admin functions.

They run outside of the event loop: in librdkafka's threads, or for metadata in a thread of Python.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # a package without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.clients.kafka_client import KAFKA_LOGGER
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.topics import TOPIC_NAME

REQUEST_S: Final = 15.0
PROPAGATION_S: Final = 5.0
"""Longest wait for the description of a change of a topic."""
PROPAGATION_POLL_S: Final = 0.05
ANY_CLUSTER: Final = "any"
"""Stands for the id of the cluster in paths."""
DESCRIBED_S: Final = 10.0
"""Time for which the partitions of a topic are cached, to check that one exists."""
DESCRIBED_MAX: Final = 10_000
EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


class ClusterAdmin:
    """Admin requests of the coroutines of one event loop, with the errors of one version of the interface.

    Args:
        client: the Kafka client of `admin_client`.
        problem: returns the gateway's error for an error of the client.
    """

    def __init__(self, client: AdminClient, problem: Callable[[KafkaError], GatewayError]) -> None:
        self._admin = client
        self._problem = problem
        self._partitions: dict[str, tuple[frozenset[int], float]] = {}
        self._cluster_id: str | None = None

    async def cluster(self) -> Any:
        """Returns the cluster id, the controller and the brokers."""
        return await self._result(self._admin.describe_cluster(request_timeout=REQUEST_S))

    async def check_cluster(self, wanted: str) -> None:
        """Raises:
        GatewayError: `wanted` is neither the id of the cluster nor "any".
        """
        if wanted in (ANY_CLUSTER, self._cluster_id):
            return
        self._cluster_id = (await self.cluster()).cluster_id
        if wanted != self._cluster_id:
            raise GatewayError(Kind.NOT_FOUND, f"Cluster {wanted} cannot be found; the id is {self._cluster_id}")

    async def topics(self) -> Mapping[str, Any]:
        """Returns the metadata of all topics by name."""
        try:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=REQUEST_S)
        except KafkaException as error:
            raise self._problem(error.args[0]) from error
        return {name: topic for name, topic in found.topics.items() if topic.error is None}

    async def topic(self, name: str) -> Any:
        """Returns the description of a topic.

        Raises:
            GatewayError: the topic does not exist or is denied.
        """
        if not TOPIC_NAME.fullmatch(name):
            unknown = self._problem(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            raise GatewayError(unknown.kind, f"{name!r:.80} is not the name of a topic")
        return await self._result(self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_S)[name])

    async def changed_topic(self, name: str, partitions_min: int) -> Any:
        """Returns the description of a topic that was just created or got partitions, with at least so many of them.
        Brokers of Apache Kafka describe a change some milliseconds after the controller has made it.

        Raises:
            GatewayError: the brokers do not describe the topic in time, or it is denied.
        """
        ends_at = time.monotonic() + PROPAGATION_S
        while True:
            is_last = time.monotonic() >= ends_at
            try:
                found = await self.topic(name)
                if is_last or len(found.partitions) >= partitions_min:
                    return found
            except GatewayError as error:
                if is_last or error.status != Kind.INSTANCE_OR_PARTITION_NOT_FOUND.value.status:
                    raise
            await asyncio.sleep(PROPAGATION_POLL_S)

    async def configs(self, topic: str) -> Mapping[str, Any]:
        """Returns the configuration entries of a topic by name."""
        resource = _resource(topic)
        futures = self._admin.describe_configs([resource], request_timeout=REQUEST_S)
        found: Mapping[str, Any] = await self._result(futures[resource])
        return found

    async def alter_configs(self, topic: str, changes: Sequence[tuple[str, str | None]], validate_only: bool) -> None:
        """Sets configurations of a topic to values, or to their defaults (None)."""
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in changes
        ]
        resource = _resource(topic, entries)
        futures = self._admin.incremental_alter_configs(
            [resource], validate_only=validate_only, request_timeout=REQUEST_S
        )
        await self._result(futures[resource])

    async def create_topic(
        self, name: str, partitions: int, replicas: int, configs: Mapping[str, str], validate_only: bool
    ) -> None:
        """Creates a topic. -1 partitions or replicas are the brokers' defaults."""
        topic = NewTopic(name, partitions, replicas, config=dict(configs))
        futures = self._admin.create_topics([topic], validate_only=validate_only, request_timeout=REQUEST_S)
        await self._result(futures[name])

    async def delete_topic(self, name: str) -> None:
        await self._result(self._admin.delete_topics([name], request_timeout=REQUEST_S)[name])

    async def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions to a topic, up to a total."""
        futures = self._admin.create_partitions([NewPartitions(topic, total)], request_timeout=REQUEST_S)
        await self._result(futures[topic])

    async def groups(self) -> Sequence[str]:
        """Returns the ids of all consumer groups, sorted."""
        found = await self._result(self._admin.list_consumer_groups(request_timeout=REQUEST_S))
        return sorted(one.group_id for one in found.valid)

    async def describe_groups(self, names: Sequence[str]) -> Sequence[Any]:
        if not names:
            return ()
        futures = self._admin.describe_consumer_groups(list(names), request_timeout=REQUEST_S)
        return [await self._result(futures[name]) for name in names]

    async def lags(self, group: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Returns the committed offset and the log end offset of the partitions of which a group has committed one."""
        request = ConsumerGroupTopicPartitions(group)
        futures = self._admin.list_consumer_group_offsets([request], request_timeout=REQUEST_S)
        committed = (await self._result(futures[group])).topic_partitions
        places = {(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}
        if not places:
            return {}
        specs = {TopicPartition(*place): LATEST for place in places}
        ends = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_S
        )
        found = {(one.topic, one.partition): (await self._result(end)).offset for one, end in ends.items()}
        return {place: (offset, found[place]) for place, offset in sorted(places.items())}

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
            {keys[one]: spec for one, spec in specs.items()}, isolation_level=isolation, request_timeout=REQUEST_S
        )
        return {one: (await self._result(futures[key])).offset for one, key in keys.items()}

    async def _result(self, future: Future[Any]) -> Any:
        try:
            return await asyncio.wrap_future(future)
        except KafkaException as error:
            raise self._problem(error.args[0]) from error


def admin_client(options: Mapping[str, Any]) -> AdminClient:
    """Creates the Kafka client of admin requests.

    Args:
        options: librdkafka's options: addresses and security.
    """
    return AdminClient({"client.id": "headrace-gateway-admin", **options}, logger=KAFKA_LOGGER)


def no_partition(topic: str, partition: int) -> GatewayError:
    return GatewayError(Kind.PARTITION_NOT_FOUND, f"topic {topic} has no partition {partition}")


def _resource(topic: str, entries: Sequence[ConfigEntry] = ()) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries) or None)
