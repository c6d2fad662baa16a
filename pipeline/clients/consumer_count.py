"""The audit's counts of a consumer: what the application was given, by partition and run of offsets."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import Any, Final

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from headrace.audit.count import WindowCounter
from headrace.audit.row import AuditRow, Outcome, Tier, range_row_id
from headrace.pipeline.brokers import client_options
from headrace.pipeline.clients.audit_publisher import AuditPublisher
from headrace.pipeline.clients.delivery import error_text
from headrace.registry.client import RegistryClient
from headrace.settings import Settings

logger = logging.getLogger(__name__)

PUBLISH_EVERY_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 30.0


class ConsumerCount:
    """Counts for one consumer, under the name of its application."""

    def __init__(self, settings: Settings, registry: RegistryClient, app: str) -> None:
        self._app = app
        self._topic = settings.audit.topic
        self._instance = secrets.token_hex(8)
        self._host = socket.gethostname()
        self._counters: dict[TopicPartition, WindowCounter] = {}
        self._ranges: dict[TopicPartition, tuple[int, int]] = {}
        self._published_at = time.monotonic()
        self._kafka = KafkaProducer(**client_options(settings), acks="all", linger_ms=5, metrics_enabled=False)
        subject = settings.loader.subject_of(self._topic)
        self._publisher = AuditPublisher(self._kafka, registry, self._topic, subject, lambda row_id: None)

    def add(self, record: Any, time_ms: int) -> None:
        if record.topic == self._topic or record.value is None:
            return
        partition = TopicPartition(record.topic, record.partition)
        start, end = self._ranges.get(partition, (record.offset, 0))
        # Not always onwards: a partition that comes back to this member is read again from its last commit.
        self._ranges[partition] = (min(start, record.offset), max(end, record.offset + 1))
        counter = self._counters.get(partition)
        if counter is None:
            counter = self._counters[partition] = WindowCounter()
        counter.add(record.topic, time_ms, record.key, record.value)

    def now_and_then(self) -> None:
        if time.monotonic() - self._published_at > PUBLISH_EVERY_S:
            self._publisher.settle()
            self._publisher.publish(self._take())
            self._published_at = time.monotonic()

    def close(self) -> None:
        """Publishes the rest; an audit that cannot be written is logged and stops nobody."""
        try:
            self._publisher.publish(self._take())
            self._kafka.flush(CLOSE_TIMEOUT_S)
            self._publisher.settle()
            self._kafka.close(timeout=CLOSE_TIMEOUT_S)
        except KafkaError as error:
            logger.warning("audit rows not published topic=%s error=%s", self._topic, error_text(error))

    def _take(self) -> list[AuditRow]:
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for partition, counter in self._counters.items():
            start, end = self._ranges[partition]
            for topic, window_start_ms, tally in counter:
                rows.append(
                    AuditRow(
                        id=range_row_id(
                            Tier.CONSUMER,
                            Outcome.CONSUMED,
                            topic,
                            partition.partition,
                            start,
                            end,
                            window_start_ms,
                            application=self._app,
                        ),
                        tier=Tier.CONSUMER,
                        outcome=Outcome.CONSUMED,
                        topic=topic,
                        window_start_ms=window_start_ms,
                        count=tally.count,
                        bytes=tally.bytes,
                        fingerprint=tally.fingerprint,
                        application=self._app,
                        host=self._host,
                        instance=self._instance,
                        emitted_at_ms=now_ms,
                        partition=partition.partition,
                        start=start,
                        end=end,
                    )
                )
        self._counters.clear()
        self._ranges.clear()
        return rows
