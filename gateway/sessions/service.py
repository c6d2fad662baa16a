"""The sessions of one gateway: routes requests to its lanes, or to the gateway that owns the lane."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.clients.kafka_client import error_text
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.sessions.lane import Lane, LaneUnavailable, Request
from headrace.gateway.sessions.lane_log import LaneLog
from headrace.gateway.sessions.lane_owner import LaneAssignment, LaneOwners
from headrace.gateway.sessions.lane_thread import LaneThread
from headrace.gateway.sessions.sources import SourceKey, lane_of
from headrace.kafka_wire.admin import effective_topic_configs
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.settings import Address, Settings
from headrace.settings.addresses import resolve_bootstrap_servers

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
TOPIC_S: Final = 5.0
"""How long the partition count and the configuration of a topic are cached."""
TOPICS_MAX: Final = 10_000
CREATE_S: Final = 15.0
START_RETRY_S: Final = 2.0
JOIN_S: Final = 5.0
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
WILDCARDS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
UNKNOWN_TOPIC: Final = 3
INVALID_TOPIC: Final = 17

T = TypeVar("T")


class NotOwner(Exception):
    """Another gateway owns the lane; `url` is where clients reach it."""

    def __init__(self, url: str) -> None:
        super().__init__(f"the gateway at {url} owns the source")
        self.url = url


class TopicUnknown(Exception):
    """The topic does not exist."""


@dataclass(frozen=True, slots=True)
class SessionTopic:
    """A topic that exists. `record_bytes_max` is the size of the largest record it accepts."""

    partition_count: int
    record_bytes_max: int


class Sessions:
    """The sessions of one gateway, for the coroutines of one event loop. It serves once the brokers respond, and the
    state topic exists; the first request creates it. So a gateway without sessions leaves no trace in the brokers.

    Args:
        options: librdkafka's options: addresses and security.
        cluster: creates a client of the brokers.
        state_topic: name of the state topic; created if it does not exist.
        lane_count: partitions of a state topic that is created; an existing one decides itself.
        url: where clients reach this gateway.
        audit: counts the records for the audit.
    """

    def __init__(
        self,
        options: dict[str, Any],
        cluster: Callable[[], KafkaCluster],
        state_topic: str,
        lane_count: int,
        url: str,
        audit: GatewayAudit,
    ) -> None:
        self.url = url
        self._audit = audit
        self._options = options
        self._cluster = cluster
        self._state_topic = state_topic
        self._lane_count_if_new = lane_count
        self._lane_count = 0
        self._lanes: dict[int, LaneThread] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_wanted = threading.Event()
        self._problem = "the gateway is starting"
        self._assignment: LaneAssignment | None = None
        self._owners = LaneOwners(cluster, state_topic)
        self._describing = cluster()
        self._describing_lock = threading.Lock()
        self._topics: dict[str, tuple[SessionTopic, float]] = {}
        self._thread = threading.Thread(target=self._begin, name="headrace-gateway-sessions", daemon=True)
        self._thread.start()

    @property
    def serving_count(self) -> int:
        """How many lanes this gateway serves."""
        return sum(lane.is_serving for lane in list(self._lanes.values()))

    async def submit(self, key: SourceKey, request: Request, result: Future[T]) -> T:
        """Has the lane of a source process a request, and returns its result.

        Raises:
            NotOwner: another gateway owns the lane.
            LaneUnavailable: the lane is not served now.
            Exception: the errors of `lane`.
        """
        if not self._lane_count:
            self._is_wanted.set()
            raise LaneUnavailable(self._problem)
        number = lane_of(key, self._lane_count)
        lane = self._lanes.get(number)
        if lane is None:
            url = await asyncio.to_thread(self._owners.url, number)
            if url and url != self.url:
                raise NotOwner(url)
            problem = self._assignment.problem if self._assignment is not None else ""
            raise LaneUnavailable(problem or f"lane {number} has no owner at present")
        lane.submit(request)
        return await asyncio.wrap_future(result)

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
        self._stop.set()
        self._is_wanted.set()
        self._thread.join(JOIN_S)
        if self._assignment is not None:
            self._assignment.close()
        lanes = list(self._lanes.values())
        self._stop_lanes(None)
        deadline = time.monotonic() + JOIN_S
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _begin(self) -> None:
        while not self._stop.is_set():
            try:
                lane_count = self._prepare_state_topic()
            except (KafkaError, KafkaException, _Unusable) as error:
                problem = error_text(error) if isinstance(error, KafkaException) else str(error)
                if problem != self._problem and self._is_wanted.is_set():
                    logger.warning("sessions_not_ready reason=%s", problem)
                self._problem = problem
                self._stop.wait(START_RETRY_S)
                continue
            if not lane_count:
                self._is_wanted.wait()
                continue
            self._assignment = LaneAssignment(
                self._options, self._state_topic, self.url, self._start_lanes, self._stop_lanes
            )
            self._lane_count = lane_count
            return

    def _prepare_state_topic(self) -> int:
        """Creates the state topic, if sessions are wanted and it does not exist. Returns its partition count, 0 if it
        does not exist.

        Raises:
            _Unusable: the topic is not compacted, so it would lose state.
            KafkaError, KafkaException: the brokers do not respond, or refuse.
        """
        name = self._state_topic
        with self._cluster() as cluster:
            topic = cluster.metadata([name]).topics[name]
            if topic.error_code == UNKNOWN_TOPIC and not self._is_wanted.is_set():
                return 0
            if topic.error_code == UNKNOWN_TOPIC:
                self._create_state_topic()
                topic = cluster.metadata([name]).topics[name]
            if topic.error:
                raise _Unusable(f"topic {name}: {topic.error}")
            found = cluster.request_any(
                lambda connection: effective_topic_configs(connection, [name], [CLEANUP_POLICY])
            )
        policy = found.get(name, {}).get(CLEANUP_POLICY)
        if policy != "compact":
            raise _Unusable(
                f"topic {name} has cleanup.policy {policy}, so it would lose the state of sessions; set it to compact"
            )
        return len(topic.partitions)

    def _create_state_topic(self) -> None:
        admin = AdminClient(self._options, logger=logger)
        topic = NewTopic(self._state_topic, self._lane_count_if_new, config=STATE_TOPIC_CONFIG)
        try:
            admin.create_topics([topic])[self._state_topic].result(CREATE_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise

    def _start_lanes(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self._lanes[number] = LaneThread(number, partial(self._lane, number))

    def _stop_lanes(self, numbers: Iterable[int] | None) -> None:
        with self._lock:
            for number in list(self._lanes) if numbers is None else numbers:
                lane = self._lanes.pop(number, None)
                if lane is not None:
                    lane.stop()

    def _lane(self, number: int, sleep: Callable[[float], None]) -> Lane:
        return Lane(LaneLog(self._cluster(), self._state_topic, number, sleep=sleep), self._audit)


def sessions_of(settings: Settings, options: dict[str, Any], audit: GatewayAudit) -> Sessions:
    """Starts the sessions of a gateway.

    Args:
        options: librdkafka's options: addresses and security.
        audit: counts the records for the audit.

    Raises:
        SettingsError: the settings of the brokers contradict each other.
    """
    own = settings.gateway
    security, servers = kafka_security(settings), resolve_bootstrap_servers(settings)
    scheme = "https" if own.tls_certificate else "http"
    host = socket.gethostname() if own.listen.host in WILDCARDS else own.listen.host
    return Sessions(
        options,
        lambda: KafkaCluster(servers, TIMEOUT_S, security=security),
        own.sessions_topic,
        own.lanes,
        own.url or f"{scheme}://{Address(host, own.listen.port)}",
        audit,
    )


class _Unusable(Exception):
    """The state topic cannot be used."""
