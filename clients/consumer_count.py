"""The audit's counts of a consumer: what the application was given, by partition and run of offsets."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import Any, Final

import confluent_kafka

from headrace.audit.count import WindowCounter
from headrace.audit.row import AuditRow, AuditOutcome, Tier, range_row_id
from headrace.clients.audit_publisher import AuditPublisher
from headrace.clients.decoding import Record
from headrace.clients.forked import leave_behind
from headrace.clients.kafka_client import made
from headrace.registry.client import RegistryClient
from headrace.settings import Settings

logger = logging.getLogger(__name__)

PUBLISH_EVERY_S: Final = 60.0


class ConsumerCount:
    """Counts for one consumer, under the name of its application.

    Args:
        brokers: options of librdkafka that say how they are reached.
    """

    def __init__(self, settings: Settings, brokers: dict[str, Any], registry: RegistryClient, app: str) -> None:
        self._app = app
        self._topic = settings.audit.topic
        self._instance = secrets.token_hex(8)
        self._host = socket.gethostname()
        self._counters: dict[tuple[str, int], WindowCounter] = {}
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self._published_at = time.monotonic()
        config = {**brokers, "client.id": f"headrace-{app}-audit", "acks": "all", "partitioner": "murmur2_random"}
        kafka = made(confluent_kafka.Producer, config)
        subject = settings.loader.subject_of(self._topic)
        self._kafka = kafka
        self._publisher = AuditPublisher(kafka, kafka.poll, registry, self._topic, subject)

    def add(self, record: Record, time_ms: int) -> None:
        if record.topic == self._topic or record.value is None:
            return
        place = (record.topic, record.partition)
        start, end = self._ranges.get(place, (record.offset, 0))
        # Not always onwards: a partition that comes back to this member is read again from its last commit.
        self._ranges[place] = (min(start, record.offset), max(end, record.offset + 1))
        counter = self._counters.get(place)
        if counter is None:
            counter = self._counters[place] = WindowCounter()
        counter.add(record.topic, time_ms, record.key, record.value)

    def now_and_then(self) -> None:
        """Publishes what was counted for a minute; an audit that cannot be written keeps nobody waiting."""
        self._kafka.poll(0)
        if time.monotonic() - self._published_at > PUBLISH_EVERY_S:
            self._publisher.offer(self._take())
            self._published_at = time.monotonic()

    def close(self, timeout_s: float) -> None:
        """Publishes the rest; an audit that cannot be written within `timeout_s` is logged and stops nobody."""
        deadline = time.monotonic() + timeout_s
        self._publisher.offer(self._take())
        if not self._publisher.wait(timeout_s):
            logger.warning("audit rows not published topic=%s rows=%d", self._topic, self._publisher.unpublished)
        self._publisher.end(max(0.0, deadline - time.monotonic()))

    def leave(self) -> None:
        """In a process that was forked off."""
        leave_behind(self._kafka)

    def _take(self) -> list[AuditRow]:
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for place, counter in self._counters.items():
            start, end = self._ranges[place]
            for topic, window_start_ms, tally in counter:
                rows.append(
                    AuditRow(
                        id=range_row_id(
                            Tier.CONSUMER,
                            AuditOutcome.CONSUMED,
                            topic,
                            place[1],
                            start,
                            end,
                            window_start_ms,
                            application=self._app,
                        ),
                        tier=Tier.CONSUMER,
                        outcome=AuditOutcome.CONSUMED,
                        topic=topic,
                        window_start_ms=window_start_ms,
                        count=tally.count,
                        bytes=tally.bytes,
                        fingerprint=tally.fingerprint,
                        application=self._app,
                        host=self._host,
                        instance=self._instance,
                        emitted_at_ms=now_ms,
                        partition=place[1],
                        start=start,
                        end=end,
                    )
                )
        self._counters.clear()
        self._ranges.clear()
        return rows
