"""The sessions of one gateway, and the topics that they write to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace.avro_codec import core_library
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.sessions.errors import LaneUnavailable
from headrace.gateway.sessions.lane import Lane
from headrace.gateway.sessions.lane_log import LaneLog
from headrace.gateway.sessions.lanes import UNKNOWN_TOPIC, Lanes, LaneTopic, url_of
from headrace.gateway.sessions.request import Request
from headrace.gateway.sessions.sources import SourceKey
from headrace.kafka_wire.admin import effective_topic_configs
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.settings import Settings
from headrace.settings.addresses import resolve_bootstrap_servers

TIMEOUT_S: Final = 10.0
TOPIC_S: Final = 5.0
"""How long the partition count and the configuration of a topic are cached."""
TOPICS_MAX: Final = 10_000
BATCH_OVERHEAD: Final = 128
MESSAGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of max.message.bytes, for a topic whose configuration cannot be read."""
CLEANUP_POLICY: Final = "cleanup.policy"
MESSAGE_BYTES: Final = "max.message.bytes"
STATE_TOPIC_CONFIG: Final = {
    CLEANUP_POLICY: "compact",
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
}
"""Small segments, because a takeover reads the whole partition, and brokers do not compact the newest segment."""
INVALID_TOPIC: Final = 17

T = TypeVar("T")


class TopicUnknown(Exception):
    """The topic does not exist."""


@dataclass(frozen=True, slots=True)
class SessionTopic:
    """A topic that exists. `record_bytes_max` is the size of the largest record it accepts."""

    partition_count: int
    record_bytes_max: int


class Sessions:
    """The sessions of one gateway, for the coroutines of one event loop.

    Args:
        cluster: creates a client of the brokers.
        lanes: the lanes of the sources.
    """

    def __init__(self, cluster: Callable[[], KafkaCluster], lanes: Lanes) -> None:
        self._cluster = cluster
        self._lanes = lanes
        self._describing = cluster()
        self._describing_lock = threading.Lock()
        self._topics: dict[str, tuple[SessionTopic, float]] = {}

    @property
    def url(self) -> str:
        return self._lanes.url

    @property
    def serving_count(self) -> int:
        """How many lanes this gateway serves."""
        return self._lanes.serving_count

    async def submit(self, key: SourceKey, request: Request, result: Future[T]) -> T:
        """Has the lane of a source process a request, and returns its result.

        Raises:
            NotOwner: another gateway owns the lane.
            LaneUnavailable: the lane is not served now.
            Exception: the errors of `lane`.
        """
        return await self._lanes.submit(key, request, result)

    async def topic(self, name: str) -> SessionTopic:
        """Returns a topic.

        Raises:
            TopicUnknown: it does not exist.
            LaneUnavailable: no broker responds.
        """
        cached = self._topics.get(name)
        if cached is not None and time.monotonic() < cached[1]:
            return cached[0]
        found = await asyncio.to_thread(self._describe, name)
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        self._topics[name] = found, time.monotonic() + TOPIC_S
        return found

    def _describe(self, name: str) -> SessionTopic:
        with self._describing_lock:
            try:
                topic = self._describing.metadata([name]).topics[name]
                if topic.error_code in (UNKNOWN_TOPIC, INVALID_TOPIC):
                    raise TopicUnknown(f"topic {name:.249} does not exist; create it, or correct the name")
                if topic.error:
                    raise LaneUnavailable(f"topic {name}: {topic.error}")
                return SessionTopic(len(topic.partitions), self._record_bytes_max(name))
            except KafkaError as error:
                self._describing.close()
                self._describing = self._cluster()  # without the circuit breaker's memory of failures
                raise LaneUnavailable(f"topic {name:.249}: {error}") from error

    def _record_bytes_max(self, topic: str) -> int:
        found = self._describing.request_any(
            lambda connection: effective_topic_configs(connection, [topic], [MESSAGE_BYTES])
        )
        configured = found.get(topic, {}).get(MESSAGE_BYTES, "")
        return (int(configured) if configured.isdecimal() else MESSAGE_BYTES_MAX) - BATCH_OVERHEAD

    def close(self) -> None:
        """Stores checkpoints, and leaves the lanes to other gateways."""
        self._lanes.close()


def sessions_of(settings: Settings, options: dict[str, Any], audit: GatewayAudit) -> Sessions:
    """Starts the sessions of a gateway.

    Args:
        options: librdkafka's options: addresses and security.
        audit: counts the records for the audit.

    Raises:
        SettingsError: the settings of the brokers contradict each other.
    """
    own, cluster = settings.gateway, cluster_of(settings)
    topic = LaneTopic(own.sessions_topic, STATE_TOPIC_CONFIG, _state_topic_problem)

    def create(number: int, sleep: Callable[[float], None]) -> Lane:
        return Lane(LaneLog(cluster(), topic.name, number, sleep=sleep), audit, core=core_library())

    return Sessions(cluster, Lanes(options, cluster, topic, own.lanes, url_of(own), create))


def cluster_of(settings: Settings) -> Callable[[], KafkaCluster]:
    """Returns the function that creates a client of the brokers.

    Raises:
        SettingsError: the settings of the brokers contradict each other.
    """
    security, servers = kafka_security(settings), resolve_bootstrap_servers(settings)
    return lambda: KafkaCluster(servers, TIMEOUT_S, security=security)


def _state_topic_problem(config: Mapping[str, str]) -> str:
    policy = config.get(CLEANUP_POLICY)
    if policy == "compact":
        return ""
    return f"has cleanup.policy {policy}, so it would lose the state of sessions; set it to compact"
