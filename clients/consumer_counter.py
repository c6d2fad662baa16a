"""Counts the delivered messages of a consumer for the audit, by partition and offset range."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import Any, Final

import confluent_kafka

from headrace.audit.count import WindowCounter
from headrace.audit.producer_counter import wall_clock_ms
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.window import WINDOW_MS, is_time
from headrace.clients.audit_publisher import AuditPublisher
from headrace.clients.decoding import FetchedRecord
from headrace.clients.fork_safety import prevent_free
from headrace.clients.kafka_client import create_client
from headrace.registry.client import RegistryClient
from headrace.settings import Settings

logger = logging.getLogger(__name__)

PUBLISH_EVERY_S: Final = 60.0


class ConsumerCounter:
    """The audit counts of one consumer: counts its messages except tombstones and messages of the audit topic, and
    publishes the counts under the name `app` of its application.

    Args:
        settings: settings with the audit topic.
        brokers: options of librdkafka with addresses and security of the brokers.
        registry: registers the schema of the counts.
    """

    def __init__(self, settings: Settings, brokers: dict[str, Any], registry: RegistryClient, app: str) -> None:
        self._app = app
        self._topic = settings.audit.topic
        self._instance = secrets.token_hex(8)
        self._host = socket.gethostname()
        self._datacenter, self._late_after_ms = settings.audit.datacenter, settings.audit.grace.ms
        self._now_ms = wall_clock_ms()
        self._counters: dict[tuple[str, int], WindowCounter] = {}
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self._published_at = time.monotonic()
        config = {**brokers, "client.id": f"headrace-{app}-audit", "acks": "all", "partitioner": "murmur2_random"}
        kafka = create_client(confluent_kafka.Producer, config)
        subject = settings.loader.subject_of(self._topic)
        self._kafka = kafka
        self._publisher = AuditPublisher(kafka, kafka.poll, registry, self._topic, subject)

    def add(self, record: FetchedRecord, time_ms: int) -> None:
        """Counts a message when it is delivered. Its latency ends when `publish_if_due` was called last, before the
        fetch. `time_ms` is the message time."""
        if record.topic == self._topic or record.value is None:
            return
        topic_partition = (record.topic, record.partition)
        start, end = self._ranges.get(topic_partition, (record.offset, 0))
        # Offsets may go back: a partition that returns to this member is read from its last commit.
        self._ranges[topic_partition] = (min(start, record.offset), max(end, record.offset + 1))
        counter = self._counters.get(topic_partition)
        if counter is None:
            counter = self._counters[topic_partition] = WindowCounter()
        tally = counter.add(record.topic, time_ms, record.key, record.value)
        if is_time(time_ms):
            latency_ms = self._now_ms - time_ms
            tally.latencies.add(latency_ms)
            tally.late += latency_ms - WINDOW_MS + time_ms % WINDOW_MS > self._late_after_ms

    def publish_if_due(self) -> None:
        """Starts to publish the counts if `PUBLISH_EVERY_S` have passed since the last time. Does not wait for the
        brokers."""
        self._kafka.poll(0)
        self._now_ms = wall_clock_ms()
        if time.monotonic() - self._published_at > PUBLISH_EVERY_S:
            self._publisher.add_rows(self._take_rows())
            self._published_at = time.monotonic()

    def close(self, timeout_s: float) -> None:
        """Publishes the remaining counts; logs a warning if they are not acknowledged within `timeout_s` or an attempt
        fails."""
        deadline = time.monotonic() + timeout_s
        self._publisher.add_rows(self._take_rows())
        if not self._publisher.wait(timeout_s):
            logger.warning(
                "audit rows not published, the audit may lack counts topic=%s rows=%d",
                self._topic,
                self._publisher.unpublished,
            )
        self._publisher.stop(max(0.0, deadline - time.monotonic()))

    def abandon_after_fork(self) -> None:
        """Prevents a forked child process from closing the parent's Kafka client."""
        prevent_free(self._kafka)

    def _take_rows(self) -> list[AuditRow]:
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for topic_partition, counter in self._counters.items():
            start, end = self._ranges[topic_partition]
            for topic, window_start_ms, tally in counter:
                latency = tally.latencies.latency()
                rows.append(
                    AuditRow(
                        id=range_row_id(
                            Tier.CONSUMER,
                            AuditOutcome.CONSUMED,
                            topic,
                            topic_partition[1],
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
                        partition=topic_partition[1],
                        start=start,
                        end=end,
                        datacenter=self._datacenter,
                        late=tally.late,
                        latency_mean_ms=latency.mean_ms,
                        latency_p95_ms=latency.p95_ms,
                        latency_p99_ms=latency.p99_ms,
                        latency_max_ms=latency.max_ms,
                    )
                )
        self._counters.clear()
        self._ranges.clear()
        return rows
