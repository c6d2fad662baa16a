"""Divides work among gateways by lanes: a lane is a partition of a topic with the state of its work.

Each lane is served by one gateway at a time (`lane_owner`), in a thread of its own (`lane_thread`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.clients.kafka_client import error_text
from headrace.gateway.sessions.errors import LaneUnavailable
from headrace.gateway.sessions.lane_owner import LaneAssignment, LaneOwners
from headrace.gateway.sessions.lane_thread import LaneRequest, LaneThread, ServedLane
from headrace.kafka_wire.admin import effective_topic_configs
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaError
from headrace.settings import Address
from headrace.settings.sections import GatewaySettings

logger = logging.getLogger(__name__)

CREATE_S: Final = 15.0
START_RETRY_S: Final = 2.0
FIRST_S: Final = 10.0
"""How long requests wait for the topic and its lanes after the request that creates the topic."""
FIRST_POLL_S: Final = 0.05
STARTING: Final = "the gateway is starting"
JOIN_S: Final = 5.0
WILDCARDS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
UNKNOWN_TOPIC: Final = 3

T = TypeVar("T")


class NotOwner(Exception):
    """Another gateway owns the lane; `url` is where clients reach it."""

    def __init__(self, url: str) -> None:
        super().__init__(f"the gateway at {url} owns the lane of the request")
        self.url = url


@dataclass(frozen=True, slots=True)
class LaneTopic:
    """The topic whose partitions are the lanes.

    Attributes:
        config: the configuration of a topic that is created.
        problem: returns why a topic with the configurations named in `config` would lose state; "" if it would not.
    """

    name: str
    config: Mapping[str, str]
    problem: Callable[[Mapping[str, str]], str]


class Lanes:
    """The lanes of one kind in one gateway. They are served once the brokers respond, and the topic exists; the first
    request creates it. So a gateway whose clients send no such requests leaves no trace in the brokers.

    Args:
        options: librdkafka's options: addresses and security.
        cluster: creates a client of the brokers.
        lane_count: partitions of a topic that is created; an existing one decides itself.
        url: where clients reach this gateway.
        create: creates the lane with a number, in its thread; the function sleeps, and raises when the lane stops.
    """

    def __init__(
        self,
        options: dict[str, Any],
        cluster: Callable[[], KafkaCluster],
        topic: LaneTopic,
        lane_count: int,
        url: str,
        create: Callable[[int, Callable[[float], None]], ServedLane],
    ) -> None:
        self.url = url
        self._options = options
        self._cluster = cluster
        self._topic = topic
        self._lane_count_if_new = lane_count
        self._lane_count = 0
        self._create = create
        self._threads: dict[int, LaneThread] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_wanted = threading.Event()
        self._wait_until = 0.0
        self._problem = STARTING
        self._assignment: LaneAssignment | None = None
        self._owners = LaneOwners(cluster, topic.name)
        self._thread = threading.Thread(target=self._begin, name=f"lanes-{topic.name}", daemon=True)
        self._thread.start()

    @property
    def serving_count(self) -> int:
        """How many lanes this gateway serves."""
        return sum(lane.is_serving for lane in list(self._threads.values()))

    def serves(self, key: bytes) -> bool:
        """Whether this gateway serves the lane of a key now."""
        lane = self._threads.get(lane_of(key, self._lane_count)) if self._lane_count else None
        return lane is not None and lane.is_serving

    async def require(self, key: bytes) -> LaneThread:
        """Returns the lane of a key. The first requests wait until it is served.

        Raises:
            NotOwner: another gateway owns the lane.
            LaneUnavailable: the lane is not served now.
        """
        if not self._lane_count and not self._is_wanted.is_set():
            if self._problem == STARTING:
                self._wait_until = time.monotonic() + FIRST_S
            self._is_wanted.set()
        while True:
            must_wait = time.monotonic() < self._wait_until
            try:
                lane = await self._lane(key)
                if lane.is_serving or not must_wait:
                    return lane
            except LaneUnavailable:
                if not must_wait:
                    raise
            await asyncio.sleep(FIRST_POLL_S)

    async def _lane(self, key: bytes) -> LaneThread:
        if not self._lane_count:
            raise LaneUnavailable(self._problem)
        number = lane_of(key, self._lane_count)
        lane = self._threads.get(number)
        if lane is None:
            url = await asyncio.to_thread(self._owners.url, number)
            if url and url != self.url:
                raise NotOwner(url)
            problem = self._assignment.problem if self._assignment is not None else ""
            raise LaneUnavailable(problem or f"lane {number} has no owner at present")
        return lane

    async def submit(self, key: bytes, request: LaneRequest, result: Future[T]) -> T:
        """Has the lane of a key process a request, and returns its result.

        Raises:
            NotOwner, LaneUnavailable: see `require`.
            Exception: the errors of the lane.
        """
        (await self.require(key)).submit(request)
        return await asyncio.wrap_future(result)

    def close(self) -> None:
        """Stops the lanes, and leaves them to other gateways."""
        self._stop.set()
        self._is_wanted.set()
        self._thread.join(JOIN_S)
        if self._assignment is not None:
            self._assignment.close()
        lanes = list(self._threads.values())
        self._stop_lanes(None)
        deadline = time.monotonic() + JOIN_S
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _begin(self) -> None:
        while not self._stop.is_set():
            try:
                lane_count = self._prepare_topic()
            except (KafkaError, KafkaException, _Unusable) as error:
                problem = error_text(error) if isinstance(error, KafkaException) else str(error)
                if problem != self._problem and self._is_wanted.is_set():
                    logger.warning("lanes_not_ready topic=%s reason=%s", self._topic.name, problem)
                self._problem = problem
                self._stop.wait(START_RETRY_S)
                continue
            if not lane_count:
                self._is_wanted.wait()
                continue
            self._assignment = LaneAssignment(
                self._options, self._topic.name, self.url, self._start_lanes, self._stop_lanes
            )
            self._lane_count = lane_count
            return

    def _prepare_topic(self) -> int:
        """Creates the topic, if it is wanted and does not exist. Returns its partition count, 0 if it does not exist.

        Raises:
            _Unusable: the topic would lose state.
            KafkaError, KafkaException: the brokers do not respond, or refuse.
        """
        name, names = self._topic.name, list(self._topic.config)
        with self._cluster() as cluster:
            topic = cluster.metadata([name]).topics[name]
            if topic.error_code == UNKNOWN_TOPIC and not self._is_wanted.is_set():
                return 0
            if topic.error_code == UNKNOWN_TOPIC:
                self._create_topic()
                topic = cluster.metadata([name]).topics[name]
            if topic.error:
                raise _Unusable(f"topic {name}: {topic.error}")
            found = cluster.request_any(lambda connection: effective_topic_configs(connection, [name], names))
        problem = self._topic.problem(found.get(name, {}))
        if problem:
            raise _Unusable(f"topic {name} {problem}")
        return len(topic.partitions)

    def _create_topic(self) -> None:
        admin = AdminClient(self._options, logger=logger)
        topic = NewTopic(self._topic.name, self._lane_count_if_new, config=dict(self._topic.config))
        try:
            admin.create_topics([topic])[self._topic.name].result(CREATE_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise

    def _start_lanes(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self._threads[number] = LaneThread(number, partial(self._create, number))

    def _stop_lanes(self, numbers: Iterable[int] | None) -> None:
        with self._lock:
            for number in list(self._threads) if numbers is None else numbers:
                lane = self._threads.pop(number, None)
                if lane is not None:
                    lane.stop()


def lane_of(key: bytes, lane_count: int) -> int:
    return int.from_bytes(key[:8], "big") % lane_count


def url_of(own: GatewaySettings) -> str:
    """Returns the URL at which clients reach this gateway."""
    scheme = "https" if own.tls_certificate else "http"
    host = socket.gethostname() if own.listen.host in WILDCARDS else own.listen.host
    return own.url or f"{scheme}://{Address(host, own.listen.port)}"


class _Unusable(Exception):
    """The topic cannot be used."""
