"""The producer: Avro events to Kafka, under registered schemas, counted for the audit.

    with Producer(settings, app="shop") as producer:
        producer.send("orders", {"id": 7, …}, key="7", schema=ORDER_SCHEMA)

What it promises: after `flush` or `close` returned, every message sent before is in the log; if not, they raise and
say how many messages of which topics are not. Messages are sent with acks=all by an idempotent Kafka producer, which
tries again until `delivery_timeout_s` without doubling or reordering.

Record timestamps are the wall clock unless given, so that retention treats an event of ten years ago like one of
today; the time of the event is a field of the value.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from kafka import KafkaProducer
from kafka.errors import KafkaError

from headrace.audit.producer_counter import ProducerCounter, Taking, Ticket, wall_clock_ms
from headrace.audit.spool import SPOOL_FOLDER, Inheritance
from headrace.avro_schema import Schema
from headrace.pipeline.brokers import NotLetIn, client_options
from headrace.pipeline.clients.audit_publisher import AuditPublisher
from headrace.pipeline.clients.delivery import Delivery, error_text
from headrace.pipeline.clients.errors import (
    BrokerUnavailable,
    DeliveryFailed,
    FlushFailed,
    KeyRefused,
    ProducerClosed,
    ProducerError,
    ValueRefused,
)
from headrace.pipeline.clients.schemas import Encodings
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings, load_settings
from headrace.settings.addresses import resolve_bootstrap_servers

logger = logging.getLogger(__name__)

UNACKNOWLEDGED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes on their way at once; `send` waits beyond it. The Kafka client itself would buffer until memory is gone."""

SETTLE_EVERY: Final = 512
"""Messages between two looks at which of them were acknowledged: one look costs as much as sending one."""

PUBLISH_EVERY_S: Final = 5.0
OPEN_WINDOWS_EVERY_S: Final = 1.0
"""The shortest time between two flushes that publish windows still open, so that an application that flushes after
every message does not send an audit row for each."""

BATCH_BYTES: Final = 128 * 1024
BOOTSTRAP_TIMEOUT_S: Final = 15.0
CLOSE_TIMEOUT_S: Final = 10.0
"""For the Kafka client to end its thread, once everything was flushed or given up."""


class Producer:
    """Sends events; may be shared by threads.

    Args:
        settings: where registry and brokers are; None reads `headrace.toml` and the environment as the command does.
        app: the name of the application in the audit.
        delivery_timeout_s: how long a message may wait for its acknowledgement before it counts as failed.
        linger_ms: how long a batch waits to be filled.
        compression: of batches: gzip, snappy, lz4, zstd or None.

    Raises:
        BrokerUnavailable: no broker answers.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        app: str,
        delivery_timeout_s: float = 120.0,
        linger_ms: int = 5,
        compression: str | None = None,
    ) -> None:
        self._settings = settings if settings is not None else ambient_settings()
        self._bootstrap_servers = resolve_bootstrap_servers(self._settings)
        self._kafka = self._connect(app, delivery_timeout_s, linger_ms, compression)
        self._registry = registry_client(self._settings)
        self._encodings = Encodings(self._registry, self._settings.loader)
        self._delivery_timeout_s = delivery_timeout_s
        spool_dir = self._settings.data_dir / SPOOL_FOLDER
        self._counter = ProducerCounter(app, spool_dir=spool_dir)
        self._audit_topic = self._settings.audit.topic
        self._publisher = AuditPublisher(
            self._kafka,
            self._registry,
            self._audit_topic,
            self._settings.loader.subject_of(self._audit_topic),
            self._row_is_safe,
        )
        self._left = Inheritance(spool_dir)
        self._pending: deque[Delivery] = deque()
        self._pending_bytes = 0
        self._failed: Counter[str] = Counter()
        self._failure = ""
        self._until_settle = SETTLE_EVERY
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._open_published_at = float("-inf")
        self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish_now_and_then, name="headrace-audit", daemon=True)
        self._thread.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ProducerError as failure:
            if error is None:
                raise
            # What went wrong first is what the application must see.
            logger.error("messages not delivered when closing error=%s", failure)

    def send(
        self,
        topic: str,
        value: Any,
        key: str | bytes | None = None,
        schema: str | Schema | None = None,
        headers: Iterable[tuple[str, str | bytes]] = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Sends one event and returns at once; the result of what is returned says where it landed.

        Args:
            value: what the schema describes, usually a dict; None is a tombstone and needs a key.
            key: decides the partition: equal keys go to the same one.
            schema: Avro schema text or value; None is the latest version of the subject `<topic>-value`.
            headers: names with text or bytes.
            timestamp_ms: the record's timestamp; None is now.

        Raises:
            ProducerError: one of its subclasses; nothing was sent.
        """
        if self._closed:
            raise ProducerClosed("the producer is closed", topic=topic)
        key_bytes = key if key is None or key.__class__ is bytes else _key_bytes(topic, key)
        header_list = _header_list(topic, headers) if headers else None
        record_ms = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        if value is None:
            return self._hand_over(topic, "", key_bytes, None, header_list, record_ms, None)
        encoding = self._encodings.of(topic, schema)
        try:
            encoded = encoding.encode(value)
        except ValueRefused:
            newer = self._encodings.newer_than(encoding) if schema is None else None
            if newer is None:
                raise
            encoding = newer
            encoded = encoding.encode(value)
        ticket = None
        if topic != self._audit_topic:
            time_ms = encoding.time_ms(value, encoded)
            ticket = self._counter.sent(topic, record_ms if time_ms is None else time_ms, key_bytes, encoded)
        return self._hand_over(topic, encoding.subject, key_bytes, encoded, header_list, record_ms, ticket)

    def flush(self, timeout_s: float = 150.0) -> None:
        """Waits until every message sent before is acknowledged, and publishes the counts of the audit.

        Raises:
            FlushFailed: messages since the last flush failed, or are not decided after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        self._flush_messages(deadline)
        now = time.monotonic()
        taking = Taking.ENDED
        if now - self._open_published_at >= OPEN_WINDOWS_EVERY_S:
            self._open_published_at = now
            taking = Taking.EVERY
        self._publish(taking, deadline)

    def close(self, timeout_s: float = 150.0) -> None:
        """Flushes and ends. Closing again does nothing.

        Raises:
            FlushFailed: see `flush`; the producer is closed all the same.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        try:
            self._flush_messages(deadline)
        finally:
            self._publish(Taking.EVERY, deadline)
            self._end(max(0.0, deadline - time.monotonic()))

    def _hand_over(
        self,
        topic: str,
        subject: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None,
        record_ms: int,
        ticket: Ticket | None,
    ) -> Delivery:
        size = len(value or b"") + len(key or b"")
        try:
            future = self._kafka.send(topic, value, key, headers, None, record_ms)
        except (KafkaError, ValueError, TypeError, AssertionError) as error:
            if ticket is not None:
                self._counter.withdraw(ticket)
            raise DeliveryFailed(
                f"topic {topic}: the message cannot be sent: {error_text(error)}", topic=topic, subject=subject
            ) from error
        delivery = Delivery(future, topic, subject, size, ticket)
        with self._lock:
            self._pending.append(delivery)
            self._pending_bytes += size
            self._until_settle -= 1
            look = self._until_settle <= 0 or self._pending_bytes > UNACKNOWLEDGED_BYTES_MAX
            if look:
                self._until_settle = SETTLE_EVERY
        if look:
            self._make_room()
        return delivery

    def _make_room(self) -> None:
        """Settles what is decided, and waits while too much is on its way."""
        self._settle()
        while self._pending_bytes > UNACKNOWLEDGED_BYTES_MAX:
            try:
                oldest = self._pending[0]
            except IndexError:
                return
            oldest.wait(self._delivery_timeout_s)
            self._settle()

    def _settle(self) -> None:
        """Takes the decided messages off the pending ones, oldest first, and counts them."""
        with self._settling:
            acknowledged: list[Ticket] = []
            settled_bytes = 0
            pending = self._pending
            while pending and pending[0].done():
                delivery = pending.popleft()
                settled_bytes += delivery.size_bytes
                failure = delivery.failure()
                if failure is not None:
                    self._failed[delivery.topic] += 1
                    self._failure = error_text(failure)
                elif delivery.ticket is not None:
                    acknowledged.append(delivery.ticket)
            if settled_bytes:
                with self._lock:
                    self._pending_bytes -= settled_bytes
            if acknowledged:
                self._counter.acknowledge(acknowledged)

    def _flush_messages(self, deadline: float) -> None:
        """Waits for what is pending, and raises for what failed since the last time."""
        undecided: Counter[str] = Counter()
        try:
            self._kafka.flush(max(0.0, deadline - time.monotonic()))
        except KafkaError:
            undecided.update(delivery.topic for delivery in list(self._pending) if not delivery.done())
        self._settle()
        with self._settling:
            failed, self._failed = self._failed, Counter()
        if failed or undecided:
            late = "no acknowledgement in time; they may still arrive"
            raise FlushFailed(failed + undecided, self._failure if failed else late)

    def _publish(self, taking: Taking, deadline: float) -> None:
        """Publishes rows and waits for their acknowledgement; what is not acknowledged stays in the spool."""
        self._publisher.publish([*self._left.rows(), *self._counter.take(wall_clock_ms(), taking)])
        if not self._publisher.unpublished:
            return
        try:
            self._kafka.flush(max(0.0, deadline - time.monotonic()))
        except KafkaError as error:
            logger.warning("audit rows not flushed topic=%s error=%s", self._audit_topic, error)
        self._publisher.settle()

    def _publish_now_and_then(self) -> None:
        while not self._stop.wait(PUBLISH_EVERY_S):
            try:
                self._settle()
                self._publisher.settle()
                self._publisher.publish([*self._left.rows(), *self._counter.take(wall_clock_ms(), Taking.SETTLED)])
            except Exception:
                logger.exception("audit rows not published topic=%s", self._audit_topic)

    def _row_is_safe(self, row_id: str) -> None:
        self._counter.published(row_id)
        self._left.published(row_id)

    def _end(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        try:
            self._kafka.close(timeout=min(timeout_s, CLOSE_TIMEOUT_S))
        except KafkaError as error:
            # Its close gives up before it has stopped its thread when a flush takes too long, and offers no other way.
            self._kafka._sender.force_close()
            logger.warning("Kafka producer not closed in time error=%s", error_text(error))
        self._left.close()
        self._counter.close()
        self._registry.close()

    def _connect(self, app: str, delivery_timeout_s: float, linger_ms: int, compression: str | None) -> Any:
        delivery_ms = int(delivery_timeout_s * 1000)
        if delivery_ms < linger_ms + 100:
            raise ValueError(f"delivery_timeout_s={delivery_timeout_s:g} is shorter than linger_ms={linger_ms} allows")
        try:
            return KafkaProducer(
                **client_options(self._settings),
                client_id=f"headrace-{app}",
                acks="all",
                enable_idempotence=True,
                delivery_timeout_ms=delivery_ms,
                request_timeout_ms=min(30_000, delivery_ms - linger_ms),
                max_block_ms=min(60_000, delivery_ms),
                linger_ms=linger_ms,
                batch_size=BATCH_BYTES,
                compression_type=compression,
                bootstrap_timeout_ms=int(BOOTSTRAP_TIMEOUT_S * 1000),
                reconnect_backoff_max_ms=1000,
                metrics_enabled=False,
            )
        except NotLetIn as error:
            raise BrokerUnavailable(str(error)) from error
        except KafkaError as error:
            raise BrokerUnavailable(
                f"no Kafka broker answers at {self._bootstrap_servers} ({error_text(error)}); "
                "start one, or set kafka.bootstrap_servers"
            ) from error


def ambient_settings() -> Settings:
    """The settings of the surroundings: `headrace.toml` and the environment, as the command reads them."""
    return load_settings(environment=os.environ, working_dir=Path.cwd(), home=Path.home())


def _key_bytes(topic: str, key: Any) -> bytes:
    """The bytes of a key that is neither None nor bytes.

    Raises:
        KeyRefused: it is no text either.
    """
    if isinstance(key, str):
        try:
            return key.encode("utf-8")
        except UnicodeEncodeError as error:
            raise KeyRefused(f"topic {topic}: the key has no UTF-8 form: {error}", topic=topic) from error
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise KeyRefused(
        f"topic {topic}: expected the key to be text, bytes or None, found {type(key).__name__} {key!r:.60}",
        topic=topic,
    )


def _header_list(topic: str, headers: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, bytes]]:
    """Headers as the Kafka client wants them.

    Raises:
        ProducerError: a header is no pair of a name and text or bytes.
    """
    found = []
    for header in headers:
        name, value = header if isinstance(header, tuple) and len(header) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(value, (str, bytes)):
            raise ProducerError(
                f"topic {topic}: expected headers as pairs of a name and text or bytes, found {header!r:.60}",
                topic=topic,
            )
        found.append((name, value.encode("utf-8") if isinstance(value, str) else value))
    return found
