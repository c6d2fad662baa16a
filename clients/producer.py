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
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.audit.producer_counter import ProducerCounter, Taking, wall_clock_ms
from headrace.audit.row import AuditRow
from headrace.audit.spool import Inheritance
from headrace.avro_schema import Schema
from headrace.clients.audit_publisher import AuditPublisher, spool_directories
from headrace.clients.delivery import Delivery
from headrace.clients.errors import (
    BrokerUnavailable,
    DeliveryFailed,
    KeyRefused,
    ProducerClosed,
    ProducerError,
    ValueRefused,
)
from headrace.clients.forked import leave_behind, tell_when_forked
from headrace.clients.guarded import logged
from headrace.clients.in_flight import LARGE_BYTES, LOOK_EVERY, InFlight
from headrace.clients.kafka_client import (
    NotReached,
    Options,
    as_ms,
    error_text,
    made,
    merged,
    reach_brokers,
)
from headrace.clients.record_forms import NOW_MS, as_header_list, as_key_bytes, as_timestamp
from headrace.clients.schemas import Encodings
from headrace.clients.uninterrupted import Uninterrupted
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings, home_directory, load_settings

logger = logging.getLogger(__name__)

MESSAGE_COST_BYTES: Final = 1024
"""Memory of a message on its way besides its bytes, here and in librdkafka (measured: 0.7 KB)."""

POLL_EVERY_S: Final = 0.1
"""An application that sends little or nothing has a thread look so often at what was acknowledged."""

OPEN_WINDOWS_EVERY_S: Final = 1.0
"""The shortest time between two flushes that publish windows still open, so that an application that flushes after
every message does not send an audit row for each."""

MESSAGE_BYTES_MAX: Final = 1024 * 1024
BOOTSTRAP_TIMEOUT_S: Final = 15.0
DELIVERY_MS_MAX: Final = 2**31 - 1
"""As librdkafka has it for `delivery.timeout.ms`."""

PURGE_TIMEOUT_S: Final = 2.0
"""For the Kafka client to say of each message that it is given up, which its threads do."""

CLOSE_TIMEOUT_S: Final = 10.0
"""For the threads to end, once everything was flushed or given up."""

_NOT_TAKEN: Final = (KafkaException, ValueError, TypeError, AttributeError, OverflowError)
"""What the Kafka client raises of a message that it does not take."""

ANY_PARTITION: Final = -1
"""What librdkafka takes for any."""

_ACKS: Final = "a message counts as sent once all replicas in sync have it"
_TIMEOUT: Final = "give delivery_timeout_s to the producer"
_ON_DELIVERY: Final = "it would never be called; give on_delivery to the producer or to send"

REFUSED: Final = {
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "enable.idempotence": "without it a repeated attempt would double or reorder messages",
    "delivery.timeout.ms": _TIMEOUT,
    "message.timeout.ms": _TIMEOUT,
    "delivery.report.only.error": "flush would wait in vain, since nobody would hear of what was acknowledged",
    "transactional.id": "this producer begins no transactions, and nothing can be sent outside of one; use "
    "confluent_kafka.Producer, counted by ProducerCounter",
    "on_delivery": _ON_DELIVERY,
    "dr_cb": _ON_DELIVERY,
    "dr_msg_cb": _ON_DELIVERY,
}
"""Options that would break what is promised of messages."""


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
            "delivery.timeout.ms": as_ms("delivery_timeout_s", delivery_timeout_s, DELIVERY_MS_MAX),
            "linger.ms": linger_ms,
            "compression.type": compression or "none",
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "partitioner": "murmur2_random",  # what other clients of Kafka do with a key, Java's first of all
            "queue.buffering.max.messages": 10_000_000,  # `UNACKNOWLEDGED_BYTES_MAX` is the bound
        }
        if delivery_timeout_s * 1000 < linger_ms + 100:
            raise ValueError(f"delivery_timeout_s={delivery_timeout_s:g} is shorter than linger_ms={linger_ms} allows")
        self._options = merged(ours, options, REFUSED)
        try:
            config = reach_brokers(self._settings, BOOTSTRAP_TIMEOUT_S) | self._options | _callbacks(self._options)
        except NotReached as error:
            raise BrokerUnavailable(str(error)) from error
        self._kafka: Any = made(confluent_kafka.Producer, config)
        self._registry = registry_client(self._settings)
        self._encodings = Encodings(self._registry, self._settings.loader)
        spool_dir = spool_directories(self._settings)[0]
        self._counter = ProducerCounter(app, spool_dir=spool_dir)
        self._left = Inheritance(spool_dir)
        self._in_flight = InFlight(self._counter)
        self.decided = self._in_flight.decided.append
        self._has_polled = False
        self._whole = Uninterrupted()
        self._closing = threading.RLock()
        self._close_within_s: float | None = None
        self._open_published_at = float("-inf")
        self._closed = ""
        self._audit_topic = self._settings.audit.topic
        self._publisher = AuditPublisher(
            self._kafka,
            self._poll,
            self._registry,
            self._audit_topic,
            self._settings.loader.subject_of(self._audit_topic),
            self._row_is_safe,
            self._settled_rows,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_now_and_then, name="headrace-producer", daemon=True)
        self._thread.start()
        tell_when_forked(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _beside(error):
            self.close()

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
                the midst of another `send`; so it should be quick. Instead of the producer's own. A signal handler
                that raises while it is called cuts that call short.

        Raises:
            ProducerError: one of its subclasses; nothing was sent. `DeliveryFailed` also says that messages sent
                before have failed, once for each that nobody has been told of.
        """
        try:
            return self._send(topic, value, key, schema, headers, timestamp_ms, partition, on_delivery)
        finally:
            if self._close_within_s is not None:
                self._close_late()

    def flush(self, timeout_s: float = 150.0) -> None:
        """Waits until every message sent before is acknowledged, and publishes the counts of the audit.

        By then `on_delivery` has been called, too, unless that takes longer than `timeout_s`: no call begins later, but
        one that has begun is waited for. An `on_delivery` that flushes waits for messages alone, not for what others
        are called with.

        Raises:
            FlushFailed: messages since the last flush failed, or are not decided after `timeout_s`.
        """
        if self._closed:
            raise ProducerClosed(self._closed)
        deadline = time.monotonic() + timeout_s
        try:
            self._flush_messages(deadline)
            now = time.monotonic()
            taking = Taking.ENDED
            if now - self._open_published_at >= OPEN_WINDOWS_EVERY_S:
                self._open_published_at = now
                taking = Taking.EVERY
            self._publish(taking, deadline)
        finally:
            if self._close_within_s is not None:
                self._close_late()

    def close(self, timeout_s: float = 150.0) -> None:
        """Flushes and ends. Closing again does nothing, nor does closing in a process that was forked off.

        In a signal handler that comes upon a call of this producer, it is noted and done when that call ends.

        Raises:
            FlushFailed: see `flush`; the producer is closed all the same.
        """
        if self._is_interrupted():
            self._close_within_s = timeout_s
            return
        self._close(timeout_s)

    def _close(self, timeout_s: float) -> None:
        with self._closing:
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
        """Takes what the brokers have answered, and calls `on_delivery`. A thread does so every tenth of a second."""
        try:
            self._poll(timeout_s)
        finally:
            if self._close_within_s is not None:
                self._close_late()

    def _poll(self, timeout_s: float) -> None:
        kafka = self._kafka
        if kafka is not None:
            self._whole.call(self._take, kafka.poll, timeout_s)
        self._in_flight.call_back()

    def was_told(self, delivery: Delivery) -> None:
        """The application has seen that this one failed, by asking for its result."""
        self._whole.call(self._in_flight.was_told, delivery)

    def _is_interrupted(self) -> bool:
        """Whether this is a signal handler that came upon a call of this producer, whose locks it may hold."""
        frame = sys._getframe() if threading.current_thread() is threading.main_thread() else None
        while frame is not None:
            if frame.f_code in _CALLS and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _close_late(self) -> None:
        """Does what a signal handler asked for, at the end of the call that it came upon."""
        timeout_s, self._close_within_s = self._close_within_s, None
        if timeout_s is not None:
            with _beside(sys.exception()):
                self._close(timeout_s)

    def _send(
        self,
        topic: str,
        value: Any,
        key: str | bytes | None,
        schema: str | Schema | None,
        headers: Iterable[tuple[str, str | bytes]],
        timestamp_ms: int | None,
        partition: int | None,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> Delivery:
        if self._closed:
            raise ProducerClosed(self._closed, topic=topic)
        in_flight = self._in_flight
        if in_flight.untold:
            self._whole.call(in_flight.tell, topic)
        key_bytes = key if key is None or key.__class__ is bytes else as_key_bytes(topic, key)
        header_list = as_header_list(topic, headers) if headers else None
        record_ms = None if timestamp_ms is None else as_timestamp(topic, timestamp_ms)
        size = 0 if key_bytes is None else len(key_bytes)
        subject, encoded, ticket = "", None, None
        if value is None:
            if key_bytes is None:
                raise KeyRefused(f"topic {topic}: a tombstone needs the key of what it deletes", topic=topic)
        else:
            encoding = self._encodings.of(topic, schema)
            try:
                encoded = encoding.encode(value)
            except ValueRefused:
                newer = self._encodings.newer_than(encoding) if schema is None else None
                if newer is None:
                    raise
                encoding = newer
                encoded = encoding.encode(value)
            size += len(encoded)
            subject, read_time = encoding.subject, encoding.read_time
            if topic != self._audit_topic:
                time_ms = None if read_time is None else read_time(value, encoded)
                if time_ms is None:
                    time_ms = record_ms = wall_clock_ms() if record_ms is None else record_ms
                ticket = self._counter.sent(topic, time_ms, key_bytes, encoded)
        cost = size + MESSAGE_COST_BYTES
        if header_list is not None:
            cost += sum(len(name) + len(content) for name, content in header_list)
        delivery = Delivery(self, topic, subject, size, cost, ticket, on_delivery or self._on_delivery)
        in_flight.added.append(delivery)
        try:
            if len(in_flight.added) >= LOOK_EVERY or cost >= LARGE_BYTES:
                self._make_room(cost)
            while True:
                delivery.is_handed_over = True
                try:
                    self._kafka.produce(
                        topic,
                        encoded,
                        key_bytes,
                        ANY_PARTITION if partition is None else partition,
                        delivery.decide,
                        None,
                        NOW_MS if record_ms is None else record_ms,
                        header_list,
                    )
                    return delivery
                except BufferError:  # the application has set a bound of its own
                    delivery.is_handed_over = False
                    self._poll(POLL_EVERY_S)
        except _NOT_TAKEN as error:
            self._whole.call(in_flight.withdraw, delivery)
            raise self._not_taken(delivery, error) from error
        except BaseException:  # of a signal handler: it is run when `produce` has returned, and not within
            if not delivery.is_handed_over:
                self._whole.call(in_flight.withdraw, delivery)
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
        self._poll(0.0)
        while not self._in_flight.has_room(own_bytes) and not self._closed:
            self._poll(POLL_EVERY_S)

    def _flush_messages(self, deadline: float) -> None:
        """Waits for what is pending, and raises for what of that failed, or of others since the last time."""
        in_flight, call = self._in_flight, self._whole.call
        waiting = waited_for = call(in_flight.pending)
        left_s = 1.0
        while waiting and left_s > 0:
            left_s = deadline - time.monotonic()
            call(self._take, self._kafka.flush, max(0.0, min(left_s, POLL_EVERY_S)))
            in_flight.call_back(deadline)
            waiting = [delivery for delivery in waiting if not delivery.done()]
        call(in_flight.settle)
        if not in_flight.wait_told(deadline - time.monotonic()):
            logger.warning("on_delivery takes longer than the flush that waited for it")
        call(in_flight.raise_failed, waited_for, Counter(delivery.topic for delivery in waiting))

    def _take(self, answers: Callable[[float], object], timeout_s: float) -> None:
        """Takes answers of the brokers from the Kafka client.

        Where it cannot go on it says so once, to whoever happens to ask. Nobody else would hear of it, and the messages
        are each told by themselves.
        """
        try:
            answers(timeout_s)
        except KafkaException as error:
            logger.error("the Kafka client cannot go on error=%s", error_text(error))
        self._in_flight.settle()

    def _publish(self, taking: Taking, deadline: float) -> None:
        """Publishes rows and waits for their acknowledgement; what is not acknowledged stays in the spool."""
        self._publisher.offer([*self._left.rows(), *self._counter.take(wall_clock_ms(), taking)])
        self._publisher.wait(max(0.0, deadline - time.monotonic()))

    def _settled_rows(self) -> list[AuditRow]:
        self._in_flight.settle()
        self._in_flight.call_back()
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
            try:
                self._poll(0.0)
            except Exception:  # of a callback among the options
                logger.exception("answers not taken")
            self._in_flight.log_failures(only_when_due=True)

    def _end(self, timeout_s: float) -> None:
        patience_s = min(timeout_s, CLOSE_TIMEOUT_S)
        if threading.current_thread() is not self._thread:  # which it is where `on_delivery` closes the producer
            self._thread.join(patience_s)
        self._publisher.end(patience_s)
        # What nobody waits for any more is decided now, for those who hold a `Delivery`.
        self._kafka.purge()
        until = time.monotonic() + PURGE_TIMEOUT_S
        while self._whole.call(self._in_flight.pending) and time.monotonic() < until:
            self._poll(POLL_EVERY_S)
        self._whole.call(self._give_up)
        self._in_flight.call_back()
        self._whole.end()
        self._kafka = None
        self._left.close()
        self._counter.close()
        self._registry.close()

    def _give_up(self) -> None:
        for delivery in self._in_flight.pending():
            delivery.decide(KafkaError(KafkaError._PURGE_INFLIGHT), None)
        self._in_flight.settle()
        self._in_flight.log_failures(only_when_due=False)

    def leave(self) -> None:
        """In a process that was forked off: none of the threads is here, and nothing of this can be used or ended."""
        self._closed = "this producer is of another process; a process that forks makes its producer afterwards"
        leave_behind(self._kafka)
        self._left.leave()


def _callbacks(options: Options) -> dict[str, Any]:
    """Functions of the application are called while answers are taken, whose sender is not to suffer from them."""
    return {
        name: logged(function, name)
        for name, function in options.items()
        if name in ("error_cb", "stats_cb", "throttle_cb") and callable(function)
    }


@contextmanager
def _beside(error: BaseException | None) -> Iterator[None]:
    """What went wrong first is what the application must see, and not what goes wrong when closing."""
    try:
        yield
    except ProducerError as failure:
        if error is None:
            raise
        logger.error("messages not delivered when closing error=%s", failure)


_CALLS: Final = frozenset(each.__code__ for each in (Producer.send, Producer.flush, Producer.poll))
"""Where locks may be held in the thread that calls; elsewhere only others hold them."""


def ambient_settings() -> Settings:
    """The settings of the surroundings: `headrace.toml` and the environment, as the command reads them."""
    return load_settings(environment=os.environ, working_dir=Path.cwd(), home=home_directory())
