"""Counts the delivered messages of a consumer for the audit, by partition and offset range."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import Any, Final

import confluent_kafka

from headrace.audit.count import MessageTally, WindowCounter
from headrace.audit.producer_counter import wall_clock_ms
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.tally import DeliveredMessage
from headrace.avro_codec import core_library
from headrace.clients.audit_publisher import AuditPublisher
from headrace.clients.core_tallies import delivered_tallies
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

    delivered: list[DeliveredMessage]
    """Delivered messages that are not added up yet, at most those of one fetch: each message with its message time. The
    consumer appends each message except tombstones."""

    def __init__(self, settings: Settings, brokers: dict[str, Any], registry: RegistryClient, app: str) -> None:
        self._app = app
        self._topic = settings.audit.topic
        self._instance = secrets.token_hex(8)
        self._host = socket.gethostname()
        self._datacenter, self._late_after_ms = settings.audit.datacenter, settings.audit.grace.ms
        self._now_ms = wall_clock_ms()
        self.delivered = []
        self._tally_delivered = delivered_tallies(core_library())
        self._counters: dict[tuple[str, int], WindowCounter] = {}
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self._published_at = time.monotonic()
        config = {**brokers, "client.id": f"headrace-{app}-audit", "acks": "all", "partitioner": "murmur2_random"}
        kafka = create_client(confluent_kafka.Producer, config)
        subject = settings.loader.subject_of(self._topic)
        self._kafka = kafka
        self._publisher = AuditPublisher(kafka, kafka.poll, registry, self._topic, subject)

    def count_without_time(self, record: FetchedRecord) -> None:
        """Counts a delivered message, which must also be in `delivered`, as one without a time in its time fields."""
        if record.topic != self._topic:
            self._tally_of(record).no_time += 1

    def count_undecodable(self, record: FetchedRecord) -> None:
        """Counts a message that cannot be decoded as an error. It is not delivered."""
        if record.topic != self._topic:
            self._tally_of(record).errors += 1

    def _tally_of(self, record: FetchedRecord) -> MessageTally:
        """Returns the count of the record's timestamp."""
        topic_partition = (record.topic, record.partition)
        self._extend_range(topic_partition, record.offset, record.offset + 1)
        return self._counter(topic_partition).tally(record.topic, record.timestamp_ms)

    def _counter(self, topic_partition: tuple[str, int]) -> WindowCounter:
        counter = self._counters.get(topic_partition)
        if counter is None:
            counter = self._counters[topic_partition] = WindowCounter()
        return counter

    def _extend_range(self, topic_partition: tuple[str, int], start: int, end: int) -> None:
        # Offsets may go back: a partition that returns to this member is read from its last commit.
        first, last = self._ranges.get(topic_partition, (start, end))
        self._ranges[topic_partition] = (min(first, start), max(last, end))

    def _add_delivered(self) -> None:
        """Adds up the delivered messages. Their latency ends before the fetch after which they were delivered."""
        delivered, self.delivered = self.delivered, []
        for tally in self._tally_delivered(delivered, self._now_ms, self._late_after_ms):
            record = delivered[tally.first][0]
            if record.topic == self._topic:
                continue
            topic_partition = (record.topic, record.partition)
            self._extend_range(topic_partition, tally.start, tally.end)
            self._counter(topic_partition).tally(record.topic, tally.window_start_ms).merge(tally.messages)

    def publish_if_due(self) -> None:
        """Starts to publish the counts if `PUBLISH_EVERY_S` have passed since the last time. Does not wait for the
        brokers."""
        self._kafka.poll(0)
        if self.delivered:
            self._add_delivered()
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
        self._add_delivered()
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
                        no_time=tally.no_time,
                        errors=tally.errors,
                        latency_mean_ms=latency.mean_ms,
                        latency_p95_ms=latency.p95_ms,
                        latency_p99_ms=latency.p99_ms,
                        latency_max_ms=latency.max_ms,
                    )
                )
        self._counters.clear()
        self._ranges.clear()
        return rows
