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
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.audit.producer_counter import ProducerCounter, Taking, Ticket, wall_clock_ms
from headrace.audit.row import AuditRow
from headrace.audit.spool import Inheritance
from headrace.avro_schema import Schema
from headrace.pipeline.clients.audit_publisher import AuditPublisher, spool_folders
from headrace.pipeline.clients.delivery import Delivery
from headrace.pipeline.clients.errors import (
    BrokerUnavailable,
    DeliveryFailed,
    FlushFailed,
    KeyRefused,
    ProducerClosed,
    ProducerError,
    ValueRefused,
)
from headrace.pipeline.clients.kafka_client import (
    NotReached,
    Options,
    error_text,
    made,
    merged,
    reach_brokers,
)
from headrace.pipeline.clients.schemas import Encodings
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings, load_settings

logger = logging.getLogger(__name__)

UNACKNOWLEDGED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of the messages on their way at once; `send` waits beyond it."""

MESSAGE_COST_BYTES: Final = 1024
"""Memory of a message on its way besides its bytes, here and in librdkafka (measured: 0.7 KB)."""

POLL_EVERY: Final = 256
"""Messages between two looks at which of them were acknowledged."""

POLL_EVERY_S: Final = 0.1
"""The same for an application that sends little or nothing: a thread looks for it."""

LOG_FAILURES_EVERY_S: Final = 5.0
OPEN_WINDOWS_EVERY_S: Final = 1.0
"""The shortest time between two flushes that publish windows still open, so that an application that flushes after
every message does not send an audit row for each."""

MESSAGE_BYTES_MAX: Final = 1024 * 1024
BOOTSTRAP_TIMEOUT_S: Final = 15.0
CLOSE_TIMEOUT_S: Final = 10.0
"""For the threads to end, once everything was flushed or given up."""

ANY_PARTITION: Final = -1
PROMISED: Final = frozenset({"acks", "request.required.acks", "enable.idempotence", "bootstrap.servers"})
"""Options that the promises rest on; `bootstrap.servers` is a setting."""


class Producer:
    """Sends events; may be shared by threads, and not by a process that was forked off.

    Args:
        settings: where registry and brokers are; None reads `headrace.toml` and the environment as the command does.
        app: the name of the application in the audit.
        delivery_timeout_s: how long a message may wait for its acknowledgement before it counts as failed.
        linger_ms: how long a batch waits to be filled.
        compression: of batches: gzip, snappy, lz4, zstd or None.
        on_delivery: is called with each message that was acknowledged or failed; see `send`.
        options: further options of librdkafka, by its names for them.

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
        on_delivery: Callable[[Delivery], None] | None = None,
        options: Options | None = None,
    ) -> None:
        self._settings = settings if settings is not None else ambient_settings()
        self._delivery_timeout_s = delivery_timeout_s
        self._on_delivery = on_delivery
        ours = {
            "client.id": f"headrace-{app}",
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": int(delivery_timeout_s * 1000),
            "linger.ms": linger_ms,
            "compression.type": compression or "none",
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "partitioner": "murmur2_random",  # what other clients of Kafka do with a key, Java's first of all
            "queue.buffering.max.messages": 10_000_000,  # `UNACKNOWLEDGED_BYTES_MAX` is the bound
        }
        if delivery_timeout_s * 1000 < linger_ms + 100:
            raise ValueError(f"delivery_timeout_s={delivery_timeout_s:g} is shorter than linger_ms={linger_ms} allows")
        self._options = merged(ours, options, PROMISED)
        try:
            config = reach_brokers(self._settings, BOOTSTRAP_TIMEOUT_S) | self._options
        except NotReached as error:
            raise BrokerUnavailable(str(error)) from error
        self._kafka: Any = made(confluent_kafka.Producer, config)
        self._registry = registry_client(self._settings)
        self._encodings = Encodings(self._registry, self._settings.loader)
        spool_dir = spool_folders(self._settings)[0]
        self._counter = ProducerCounter(app, spool_dir=spool_dir)
        self._left = Inheritance(spool_dir)
        self._pending: set[Delivery] = set()
        self._pending_bytes = 0
        self._decided: deque[Delivery] = deque()
        self._failed: Counter[str] = Counter()
        self._failure = ""
        self._untold: Counter[str] = Counter()
        self._unlogged: Counter[str] = Counter()
        self._logged_at = float("-inf")
        self._until_poll = POLL_EVERY
        self._has_polled = False
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._open_published_at = float("-inf")
        self._closed = ""
        self._audit_topic = self._settings.audit.topic
        self._publisher = AuditPublisher(
            self._kafka,
            self.poll,
            self._registry,
            self._audit_topic,
            self._settings.loader.subject_of(self._audit_topic),
            self._row_is_safe,
            self._settled_rows,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_now_and_then, name="headrace-producer", daemon=True)
        self._thread.start()
        _PRODUCERS.add(self)

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
        partition: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Sends one event and returns at once; the result of what is returned says where it landed.

        Args:
            value: what the schema describes, usually a dict; None is a tombstone and needs a key.
            key: decides the partition: equal keys go to the same one.
            schema: Avro schema text or value; None is the latest version of the subject `<topic>-value`.
            headers: names with text or bytes.
            timestamp_ms: the record's timestamp; None is now. Any but 0, which librdkafka takes for now.
            partition: where it goes, whatever its key says.
            on_delivery: is called once it was acknowledged or failed, in whatever thread finds out, which may be in
                the midst of another `send`; so it should be quick. Instead of the producer's own.

        Raises:
            ProducerError: one of its subclasses; nothing was sent. `DeliveryFailed` also says that messages sent
                before have failed, once for each that nobody has been told of.
        """
        if self._closed:
            raise ProducerClosed(self._closed, topic=topic)
        if self._untold:
            self._tell(topic)
        key_bytes = key if key is None or key.__class__ is bytes else _key_bytes(topic, key)
        header_list = _header_list(topic, headers) if headers else None
        record_ms = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        if record_ms == 0:
            raise ProducerError(
                f"topic {topic}: timestamp_ms=0 would be sent as now; expected another number", topic=topic
            )
        subject, encoded, ticket = "", None, None
        if value is not None:
            encoding = self._encodings.of(topic, schema)
            try:
                encoded = encoding.encode(value)
            except ValueRefused:
                newer = self._encodings.newer_than(encoding) if schema is None else None
                if newer is None:
                    raise
                encoding = newer
                encoded = encoding.encode(value)
            subject = encoding.subject
            if topic != self._audit_topic:
                time_ms = encoding.time_ms(value, encoded)
                ticket = self._counter.sent(topic, record_ms if time_ms is None else time_ms, key_bytes, encoded)
        size = len(encoded or b"") + len(key_bytes or b"")
        cost = size + MESSAGE_COST_BYTES
        if header_list is not None:
            cost += sum(len(name) + len(content) for name, content in header_list)
        delivery = Delivery(
            self, self._decided.append, topic, subject, size, cost, ticket, on_delivery or self._on_delivery
        )
        self._hand_over(
            delivery, encoded, key_bytes, header_list, record_ms, ANY_PARTITION if partition is None else partition
        )
        return delivery

    def flush(self, timeout_s: float = 150.0) -> None:
        """Waits until every message sent before is acknowledged, and publishes the counts of the audit.

        Raises:
            FlushFailed: messages since the last flush failed, or are not decided after `timeout_s`.
        """
        if self._closed:
            raise ProducerClosed(self._closed)
        deadline = time.monotonic() + timeout_s
        self._flush_messages(deadline)
        now = time.monotonic()
        taking = Taking.ENDED
        if now - self._open_published_at >= OPEN_WINDOWS_EVERY_S:
            self._open_published_at = now
            taking = Taking.EVERY
        self._publish(taking, deadline)

    def close(self, timeout_s: float = 150.0) -> None:
        """Flushes and ends. Closing again does nothing, nor does closing in a process that was forked off.

        Raises:
            FlushFailed: see `flush`; the producer is closed all the same.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = "the producer is closed"
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        try:
            self._flush_messages(deadline)
        finally:
            self._publish(Taking.EVERY, deadline)
            self._end(max(0.0, deadline - time.monotonic()))

    def poll(self, timeout_s: float = 0.0) -> None:
        """Takes what the brokers have answered, which calls `on_delivery`. A thread does so every tenth of a second."""
        kafka = self._kafka
        if kafka is not None:
            kafka.poll(timeout_s)
            self._settle()

    def was_told(self, delivery: Delivery) -> None:
        """The application has seen that this one failed, by asking for its result."""
        with self._settling:
            if not delivery.is_told:
                delivery.is_told = True
                self._untold -= Counter({delivery.topic: 1})

    def _hand_over(
        self,
        delivery: Delivery,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None,
        record_ms: int,
        partition: int,
    ) -> None:
        with self._lock:
            self._pending_bytes += delivery.cost_bytes
            self._until_poll -= 1
            look = self._until_poll <= 0 or self._pending_bytes > UNACKNOWLEDGED_BYTES_MAX
            if look:
                self._until_poll = POLL_EVERY
        self._pending.add(delivery)
        topic, kafka = delivery.topic, self._kafka
        try:
            if look:
                self._make_room(delivery.cost_bytes)
            while True:
                try:
                    if headers is None:
                        kafka.produce(topic, value, key, partition, delivery.decide, None, record_ms)
                    else:
                        kafka.produce(topic, value, key, partition, delivery.decide, None, record_ms, headers)
                    return
                except BufferError:  # the application has set a bound of its own
                    self.poll(POLL_EVERY_S)
        except BaseException as error:
            self._pending.discard(delivery)
            with self._lock:
                self._pending_bytes -= delivery.cost_bytes
            if delivery.ticket is not None:
                self._counter.withdraw(delivery.ticket)
            if isinstance(error, (KafkaException, ValueError, TypeError, AttributeError)):
                raise self._not_taken(delivery, error) from error
            raise

    def _not_taken(self, delivery: Delivery, error: Exception) -> ProducerError:
        topic = delivery.topic
        if self._closed:
            return ProducerClosed(self._closed, topic=topic)
        text = error_text(error)
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            bound = self._options["message.max.bytes"]
            text = f"its {delivery.size_bytes} bytes and headers are larger than message.max.bytes={bound}"
        return DeliveryFailed(
            f"topic {topic}: the message cannot be sent: {text}", topic=topic, subject=delivery.subject
        )

    def _make_room(self, own_bytes: int) -> None:
        """Takes what is decided, and waits while too much is on its way: every message is decided some day."""
        self._has_polled = True
        self.poll()
        while self._pending_bytes > max(UNACKNOWLEDGED_BYTES_MAX, own_bytes) and not self._closed:
            self.poll(POLL_EVERY_S)

    def _settle(self) -> None:
        """Counts the messages that were decided, and calls back."""
        if not self._decided:
            return
        acknowledged: list[Ticket] = []
        told: list[Delivery] = []
        settled_bytes = 0
        with self._settling:
            while self._decided:
                delivery = self._decided.popleft()
                settled_bytes += delivery.cost_bytes
                self._pending.discard(delivery)
                if delivery.on_delivery is not None:
                    told.append(delivery)
                if delivery.error is not None:
                    self._note_failure(delivery)
                elif delivery.ticket is not None:
                    acknowledged.append(delivery.ticket)
            if acknowledged:
                self._counter.acknowledge(acknowledged)
        with self._lock:
            self._pending_bytes -= settled_bytes
        for delivery in told:
            assert delivery.on_delivery is not None
            try:
                delivery.on_delivery(delivery)
            except Exception:
                logger.exception("on_delivery failed topic=%s", delivery.topic)

    def _note_failure(self, delivery: Delivery) -> None:
        self._failed[delivery.topic] += 1
        self._failure = error_text(delivery.error)
        self._unlogged[delivery.topic] += 1
        if delivery.on_delivery is None:
            self._untold[delivery.topic] += 1
        else:
            delivery.is_told = True
        if time.monotonic() - self._logged_at >= LOG_FAILURES_EVERY_S:
            self._log_failures()

    def _log_failures(self) -> None:
        self._logged_at = time.monotonic()
        for topic, count in self._unlogged.items():
            logger.error("messages not acknowledged topic=%s messages=%d error=%s", topic, count, self._failure)
        self._unlogged.clear()

    def _tell(self, topic: str) -> None:
        """Raises for what failed and nobody was told of."""
        with self._settling:
            untold, self._untold = +self._untold, Counter()
        if untold:
            raise DeliveryFailed(f"not sent, since of those before {FlushFailed(untold, self._failure)}", topic=topic)

    def _flush_messages(self, deadline: float) -> None:
        """Waits for what is pending, and raises for what failed since the last time."""
        waiting = list(self._pending)
        left_s = 1.0
        while waiting and left_s > 0:
            left_s = deadline - time.monotonic()
            self._kafka.flush(max(0.0, min(left_s, POLL_EVERY_S)))
            self._settle()
            waiting = [delivery for delivery in waiting if not delivery.done()]
        undecided = Counter(delivery.topic for delivery in waiting)
        self._settle()
        with self._settling:
            failed, self._failed = self._failed, Counter()
            self._untold.clear()
            self._log_failures()
        if failed or undecided:
            late = "no acknowledgement in time; they may still arrive"
            raise FlushFailed(failed + undecided, self._failure if failed else late)

    def _publish(self, taking: Taking, deadline: float) -> None:
        """Publishes rows and waits for their acknowledgement; what is not acknowledged stays in the spool."""
        self._publisher.offer([*self._left.rows(), *self._counter.take(wall_clock_ms(), taking)])
        self._publisher.wait(max(0.0, deadline - time.monotonic()))

    def _settled_rows(self) -> list[AuditRow]:
        self._settle()
        return [*self._left.rows(), *self._counter.take(wall_clock_ms(), Taking.SETTLED)]

    def _row_is_safe(self, row_id: str) -> None:
        self._counter.published(row_id)
        self._left.published(row_id)

    def _poll_now_and_then(self) -> None:
        while not self._stop.wait(POLL_EVERY_S):
            # A thread that sends takes the answers itself: here each would have to wait for the interpreter lock.
            if self._has_polled:
                self._has_polled = False
                continue
            self.poll()
            if self._unlogged and time.monotonic() - self._logged_at >= LOG_FAILURES_EVERY_S:
                with self._settling:
                    self._log_failures()

    def _end(self, timeout_s: float) -> None:
        patience_s = min(timeout_s, CLOSE_TIMEOUT_S)
        self._thread.join(patience_s)
        self._publisher.end(patience_s)
        # What nobody waits for any more is decided now, for those who hold a `Delivery`.
        self._kafka.purge()
        self._kafka.poll(0)
        self._settle()
        with self._settling:
            self._log_failures()
        self._kafka = None
        self._left.close()
        self._counter.close()
        self._registry.close()

    def _leave(self) -> None:
        """In a process that was forked off: none of the threads is here, and nothing of this can be used or ended."""
        self._closed = "this producer is of another process; a process that forks makes its producer afterwards"
        _LEFT_BEHIND.append(self._kafka)
        self._left.leave()


_PRODUCERS: Final[weakref.WeakSet[Producer]] = weakref.WeakSet()
_LEFT_BEHIND: Final[list[Any]] = []
"""Kafka clients of the process that this one was forked off: to end one would wait for its threads, for ever."""


def _leave_after_fork() -> None:
    for producer in list(_PRODUCERS):
        producer._leave()


os.register_at_fork(after_in_child=_leave_after_fork)


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
