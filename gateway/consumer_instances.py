"""The consumer instances of REST Proxy v2: each is a Kafka consumer that requests name by group and instance."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from confluent_kafka import TopicPartition

from headrace.gateway.consumer_polling import ConsumerPoller, PolledConsumer
from headrace.gateway.decoding import Formats
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.peers import Peers
from headrace.settings import GatewaySettings

logger = logging.getLogger(__name__)

CHECK_IDLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """The configuration of an instance. With a `fetch_min_bytes` of -1 each read takes its whole time-out."""

    formats: Formats
    auto_offset_reset: str = "latest"
    is_auto_commit: bool = True
    fetch_min_bytes: int = 1
    timeout_ms: int | None = None

    def options(self, group: str) -> dict[str, object]:
        """Returns librdkafka's options."""
        return {
            "group.id": group,
            "auto.offset.reset": "error" if self.auto_offset_reset == "none" else self.auto_offset_reset,
            "enable.auto.commit": self.is_auto_commit,
        }


class Source(Enum):
    """How an instance gets its partitions."""

    NONE = "nothing"
    TOPICS = "specific topics by name"
    PATTERN = "topics by pattern"
    PARTITIONS = "specific partitions"


class Instance:
    """A consumer instance."""

    def __init__(self, group: str, name: str, config: InstanceConfig, polled: PolledConsumer, owner: str) -> None:
        self.group = group
        self.name = name
        self.config = config
        self.polled = polled
        self.owner = owner
        self.source = Source.NONE
        self.topics: list[str] = []
        self.used_at = 0.0

    def check_source(self, wanted: Source) -> None:
        """Raises:
        GatewayError: the instance gets its partitions in another way.
        """
        if self.source not in (Source.NONE, wanted):
            raise GatewayError(
                Kind.ILLEGAL_STATE,
                f"the instance consumes {self.source.value}; delete its subscription before it consumes {wanted.value}",
            )

    async def subscribe(self, topics: list[str], source: Source, is_allowed: Callable[[str], bool]) -> None:
        """Subscribes to topics, or to one pattern of librdkafka, which begins with `^`.

        Args:
            is_allowed: whether the client may consume a topic; others that match the pattern are not consumed.
        """
        self.check_source(source)
        await self.polled.subscribe(topics, is_allowed)
        self.source, self.topics = source, topics

    async def unsubscribe(self) -> None:
        await self.polled.unsubscribe()
        self.source, self.topics = Source.NONE, []

    async def assign(self, partitions: list[TopicPartition]) -> None:
        self.check_source(Source.PARTITIONS)
        await self.polled.assign(partitions)
        self.source = Source.PARTITIONS if partitions else Source.NONE
        self.topics = sorted({one.topic for one in partitions})

    async def assigned(self) -> list[tuple[str, int]]:
        """Returns the topic partitions that the instance consumes now."""
        found = await self.polled.run(lambda consumer: consumer.assignment())
        return sorted((one.topic, one.partition) for one in found)


class Instances:
    """All consumer instances of the gateway. Deletes instances without requests after a time."""

    def __init__(self, poller: ConsumerPoller, settings: GatewaySettings, peers: Peers) -> None:
        self._poller = poller
        self._peers = peers
        self._settings = settings
        self._idle_s = settings.consumer_idle.seconds
        self._gateway = urlsplit(settings.url).hostname or socket.gethostname()
        """The name of the gateway, a part of the names that it gives to instances."""
        self._instances: dict[tuple[str, str], Instance | None] = {}
        """None while the consumer is created."""
        self._task = asyncio.get_running_loop().create_task(self._delete_idle())

    def __len__(self) -> int:
        return len(self._instances)

    async def create(self, group: str, name: str | None, config: InstanceConfig, owner: str) -> Instance:
        """Creates an instance.

        Args:
            name: its name; None for a generated one.
            owner: name of the user that may use it; "" without users.

        Raises:
            GatewayError: an instance with this name exists, or the gateway has too many.
        """
        if len(self._instances) >= self._settings.consumer_instances_max:
            raise GatewayError(
                Kind.TOO_MANY_REQUESTS,
                f"the gateway has {len(self._instances)} consumer instances; delete instances that are not in use",
                retry_after_s=round(CHECK_IDLE_S),
            )
        name = name or self._new_name(group)
        self.require_new(group, name)
        key = group, name
        self._instances[key] = None
        try:
            polled = await self._poller.create(config.options(group))
        except BaseException as error:
            del self._instances[key]
            if isinstance(error, ValueError):
                raise GatewayError(Kind.CONSUMER_CONFIG, str(error)) from error
            raise
        instance = Instance(group, name, config, polled, owner)
        instance.used_at = time.monotonic()
        self._instances[key] = instance
        return instance

    def require_new(self, group: str, name: str) -> None:
        """Raises:
        GatewayError: this gateway has the instance.
        """
        if (group, name) in self._instances:
            raise GatewayError(Kind.INSTANCE_EXISTS, f"consumer instance {name} of group {group} already exists")

    def _new_name(self, group: str) -> str:
        """Returns a name with which this gateway is the first in the order of the instance."""
        while True:
            name = f"rest-consumer-{self._gateway}-{uuid.uuid4()}"
            if self._peers.is_first(group, name):
                return name

    def has(self, group: str, name: str, user: str) -> bool:
        """Whether this gateway has an instance of a user."""
        instance = self._instances.get((group, name))
        return instance is not None and instance.owner == user

    def find(self, group: str, name: str, user: str) -> Instance:
        """Returns an instance of a user, which counts as used.

        Raises:
            GatewayError: there is no such instance, or it belongs to another user.
        """
        instance = self._instances.get((group, name))
        if instance is None or instance.owner != user:
            raise GatewayError(
                Kind.INSTANCE_OR_PARTITION_NOT_FOUND,
                f"consumer instance {name} of group {group} does not exist: its gateway has stopped, or deleted it "
                f"after {self._idle_s:.0f} s without a request; create it again. Several gateways need gateway.peers",
            )
        instance.used_at = time.monotonic()
        return instance

    async def delete(self, instance: Instance) -> None:
        """Deletes an instance; its consumer leaves the group. Another one may have the name from now on."""
        if self._instances.get((instance.group, instance.name)) is instance:
            del self._instances[instance.group, instance.name]
        await self._poller.close(instance.polled)

    async def _delete_idle(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_IDLE_S, self._idle_s))
            expired = [one for one in self._instances.values() if one is not None and self._is_expired(one)]
            for instance in expired:
                logger.info("consumer_instance_expired group=%r instance=%r", instance.group, instance.name)
            await asyncio.gather(*map(self.delete, expired), return_exceptions=True)

    def _is_expired(self, instance: Instance) -> bool:
        idle_s = time.monotonic() - max(instance.used_at, instance.polled.last_read)
        return idle_s > self._idle_s and not instance.polled.reading.locked()

    def stop(self) -> None:
        """Stops the deletion of idle instances. `ConsumerPoller.stop` closes the consumers."""
        self._task.cancel()
