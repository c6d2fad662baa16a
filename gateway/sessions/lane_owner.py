"""Shares the lanes among the gateways.

They form a consumer group that subscribes to the state topic, and a gateway serves the lanes whose partitions it is
assigned.

The group only decides who should serve a lane. That no two gateways write for one at a time is the work of `lane_log`.

The URL of a gateway is the client id of its member, so every gateway finds the owner of a lane by describing the group.
It is the instance id, too: a gateway that restarts within the session time-out gets its lanes back at once (KIP-345).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.clients.kafka_client import create_client, error_text
from headrace.kafka_wire.admin import groups
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaError as WireError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS: Final = 1_000
OWNERS_S: Final = 1.0
"""How long the owners of lanes are cached."""
JOIN_S: Final = 10.0


class LaneAssignment:
    """A member of the group, in a thread.

    Args:
        options: librdkafka's options: addresses and security.
        state_topic: the topic, whose name is that of the group, too.
        url: where clients reach this gateway.
        start, stop: called in the thread with the lanes to serve, and not to serve any more; None for all.
    """

    def __init__(
        self,
        options: dict[str, Any],
        state_topic: str,
        url: str,
        start: Callable[[Iterable[int]], None],
        stop: Callable[[Iterable[int] | None], None],
    ) -> None:
        self._start, self._end = start, stop
        self._stop = threading.Event()
        self.problem = ""
        """Why this gateway is no member of the group any more; "" if it is."""
        self._consumer = create_client(
            Consumer,
            {
                **options,
                "client.id": url,
                "group.id": state_topic,
                "group.instance.id": url,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            },
        )
        self._consumer.subscribe(
            [state_topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._thread = threading.Thread(target=self._run, name="headrace-gateway-lanes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)  # lanes read their state themselves
            logger.info("lanes_assigned lanes=%s", sorted(one.partition for one in partitions))
        self._start([one.partition for one in partitions])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            logger.info("lanes_revoked lanes=%s", sorted(one.partition for one in partitions))
        self._end([one.partition for one in partitions])
        consumer.incremental_unassign(partitions)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._consumer.poll(POLL_S)
            except KafkaException as exception:
                self._failed(exception.args[0])
                break
            error = None if message is None else message.error()
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                self._failed(error)
                break
            if error is not None:
                logger.warning("lane_group_failed error=%s", error_text(error))
        try:
            self._consumer.close()
        except KafkaException as exception:
            logger.warning("lane_group_failed error=%s", error_text(exception))

    def _failed(self, error: KafkaError) -> None:
        self.problem = (
            "another gateway has the same address; give each its own gateway.url"
            if error.code() == KafkaError._FATAL or error.code() == KafkaError.FENCED_INSTANCE_ID
            else error_text(error)
        )
        logger.error("lane_group_left reason=%s error=%s", self.problem, error_text(error))
        self._end(None)


class LaneOwners:
    """Finds the URL of the gateway that owns a lane. Thread-safe.

    Args:
        cluster: creates a client of the brokers.
        state_topic: the state topic.
    """

    def __init__(
        self, cluster: Callable[[], KafkaCluster], state_topic: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._state_topic = state_topic
        self._clock = clock
        self._lock = threading.Lock()
        self._urls: dict[int, str] = {}
        self._read_at = float("-inf")

    def url(self, lane: int) -> str:
        """Returns the URL of the owner, "" if none is known. Sends requests to the brokers."""
        with self._lock:
            if self._clock() - self._read_at > OWNERS_S:
                try:
                    self._urls = self._read()
                except WireError as error:
                    logger.warning("lane_owners_unknown error=%s", error)
                    self._urls = {}
                self._read_at = self._clock()
            return self._urls.get(lane, "")

    def _read(self) -> dict[int, str]:
        with self._cluster() as cluster:
            address = cluster.coordinator(self._state_topic)
            found = cluster.request(address, lambda connection: groups(connection, self._state_topic))
        return {
            assigned.partition: member.client_id
            for group in found
            for member in group.members
            for assigned in member.assigned
            if assigned.topic == self._state_topic
        }
