"""Requests about the cluster, its topics and its consumer groups, with the Kafka client's admin functions.

They run outside of the event loop: in librdkafka's threads, or for metadata in a thread of Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
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
from headrace.gateway.kafka_problems import admin_problem_of
from headrace.gateway.topics import TOPIC_NAME

REQUEST_S: Final = 15.0
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class ClusterAdmin:
    """Admin requests of the coroutines of one event loop.

    Args:
        options: librdkafka's options: addresses and security.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._admin = AdminClient({"client.id": "headrace-gateway-admin", **options}, logger=KAFKA_LOGGER)

    async def cluster(self) -> Any:
        """Returns the cluster id, the controller and the brokers."""
        return await _result(self._admin.describe_cluster(request_timeout=REQUEST_S))

    async def topics(self) -> Mapping[str, Any]:
        """Returns the metadata of all topics by name."""
        try:
            found = await asyncio.to_thread(self._admin.list_topics, timeout=REQUEST_S)
        except KafkaException as error:
            raise admin_problem_of(error.args[0]) from error
        return {name: topic for name, topic in found.topics.items() if topic.error is None}

    async def topic(self, name: str) -> Any:
        """Returns the description of a topic.

        Raises:
            GatewayError: the topic does not exist or is denied.
        """
        if not TOPIC_NAME.fullmatch(name):
            raise GatewayError(Kind.INSTANCE_OR_PARTITION_NOT_FOUND, f"{name!r:.80} is not the name of a topic")
        return await _result(self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_S)[name])

    async def configs(self, topic: str) -> Mapping[str, Any]:
        """Returns the configuration entries of a topic by name."""
        resource = _resource(topic)
        futures = self._admin.describe_configs([resource], request_timeout=REQUEST_S)
        found: Mapping[str, Any] = await _result(futures[resource])
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
        await _result(futures[resource])

    async def create_topic(
        self, name: str, partitions: int, replicas: int, configs: Mapping[str, str], validate_only: bool
    ) -> None:
        """Creates a topic. -1 partitions or replicas are the brokers' defaults."""
        topic = NewTopic(name, partitions, replicas, config=dict(configs))
        futures = self._admin.create_topics([topic], validate_only=validate_only, request_timeout=REQUEST_S)
        await _result(futures[name])

    async def delete_topic(self, name: str) -> None:
        await _result(self._admin.delete_topics([name], request_timeout=REQUEST_S)[name])

    async def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions to a topic, up to a total."""
        futures = self._admin.create_partitions([NewPartitions(topic, total)], request_timeout=REQUEST_S)
        await _result(futures[topic])

    async def groups(self) -> Sequence[str]:
        """Returns the ids of all consumer groups, sorted."""
        found = await _result(self._admin.list_consumer_groups(request_timeout=REQUEST_S))
        return sorted(one.group_id for one in found.valid)

    async def describe_groups(self, names: Sequence[str]) -> Sequence[Any]:
        if not names:
            return ()
        futures = self._admin.describe_consumer_groups(list(names), request_timeout=REQUEST_S)
        return [await _result(futures[name]) for name in names]

    async def lags(self, group: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Returns the committed offset and the log end offset of the partitions of which a group has committed one."""
        request = ConsumerGroupTopicPartitions(group)
        futures = self._admin.list_consumer_group_offsets([request], request_timeout=REQUEST_S)
        committed = (await _result(futures[group])).topic_partitions
        places = {(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}
        if not places:
            return {}
        specs = {TopicPartition(*place): LATEST for place in places}
        ends = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_S
        )
        found = {(one.topic, one.partition): (await _result(end)).offset for one, end in ends.items()}
        return {place: (offset, found[place]) for place, offset in sorted(places.items())}


def _resource(topic: str, entries: Sequence[ConfigEntry] = ()) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries) or None)


async def _result(future: Future[Any]) -> Any:
    try:
        return await asyncio.wrap_future(future)
    except KafkaException as error:
        raise admin_problem_of(error.args[0]) from error
