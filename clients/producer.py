"""The producer: sends Avro events to Kafka with registered schemas, and counts them for the audit.

    with Producer(settings, app="shop") as producer:
        producer.send("orders", {"id": 7, …}, key="7", schema=ORDER_SCHEMA)

Guarantee: after `flush` or `close` returns, every message sent since the last flush is in the log. Otherwise they raise
an error with the number of missing messages by topic. An idempotent Kafka producer with acks=all retries until
`delivery_timeout_s`, without duplicates and in order.

The record timestamp is the wall clock unless it is passed, so that retention treats an event of ten years ago like a
current one. The time of the event is a field of the value.
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

from headrace.audit.producer_counter import ProducerCounter, RowSelection, wall_clock_ms
from headrace.audit.row import AuditRow
from headrace.audit.spool import LeftoverSpools
from headrace.avro_codec import core_library
from headrace.avro_schema import Schema
from headrace.clients.audit_publisher import AuditPublisher, spool_directories
from headrace.clients.core_tallies import row_type
from headrace.clients.delivery import Delivery
from headrace.clients.errors import (
    BrokerUnavailable,
    DeliveryFailed,
    KeyRefused,
    ProducerClosed,
    ProducerError,
    ValueRefused,
)
from headrace.clients.fork_safety import prevent_free, register_for_fork
from headrace.clients.in_flight import CHECK_EVERY_MESSAGES, LARGE_BYTES, InFlight
from headrace.clients.kafka_client import (
    BrokersUnreachable,
    Options,
    as_ms,
    as_seconds,
    create_client,
    error_text,
    merge_options,
    reach_brokers,
)
from headrace.clients.kafka_errors import log_exceptions
from headrace.clients.record_fields import NOW_MS, as_header_list, as_key_bytes, as_timestamp
from headrace.clients.schemas import EncodingCache
from headrace.clients.signal_safety import SignalSafeCalls
from headrace.clients.topic_check import TopicCheck
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings, home_directory, load_settings

logger = logging.getLogger(__name__)

MESSAGE_COST_BYTES: Final = 1024
"""Estimated memory of a message in flight in addition to its own bytes, in this process and in librdkafka together
(measured: 0.7 KB)."""

POLL_EVERY_S: Final = 0.1
"""How often a background thread polls for acknowledgements, unless the application's own calls have just done so."""

OPEN_WINDOWS_EVERY_S: Final = 1.0
"""Minimum time between two flushes that publish the audit counts of windows that have not ended yet. Without it, an
application that flushes after every message would publish an audit row for each message."""

MESSAGE_BYTES_MAX: Final = 1024 * 1024
BOOTSTRAP_TIMEOUT_S: Final = 15.0
DELIVERY_MS_MAX: Final = 2**31 - 1
"""librdkafka's maximum of `delivery.timeout.ms`."""

PURGE_TIMEOUT_S: Final = 2.0
"""When the producer closes, it discards the messages that are still in flight. This is the timeout for the Kafka client
to report them as failed."""

CLOSE_TIMEOUT_S: Final = 10.0
"""When the producer closes: timeout for its threads to end after the last flush."""

_REJECTED_ERRORS: Final = (KafkaException, ValueError, TypeError, AttributeError, OverflowError)
"""Errors that the Kafka client raises for a message that it rejects."""

ANY_PARTITION: Final = -1
"""librdkafka's number for an unspecified partition."""

_ACKS: Final = "a message counts as sent when all in-sync replicas have it"
_TIMEOUT: Final = "pass delivery_timeout_s to the producer"
_ON_DELIVERY: Final = "it would never be called; pass on_delivery to the producer or to send"

REFUSED: Final = {
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "enable.idempotence": "without it a retry would duplicate or reorder messages",
    "delivery.timeout.ms": _TIMEOUT,
    "message.timeout.ms": _TIMEOUT,
    "delivery.report.only.error": "flush would wait for ever, because acknowledgements would not be reported",
    "transactional.id": "this producer does not support transactions; use confluent_kafka.Producer, counted by "
    "ProducerCounter",
    "on_delivery": _ON_DELIVERY,
    "dr_cb": _ON_DELIVERY,
    "dr_msg_cb": _ON_DELIVERY,
}
"""Options of librdkafka that would break the delivery guarantee, with the reason or the argument to use instead."""


class Producer:
    """Sends events. Thread-safe; unusable in forked child processes.

    Args:
        settings: addresses and credentials of registry and brokers; None reads `headrace.toml` and the environment, as
            the command line does.
        app: name of the application in the audit.
        delivery_timeout_s: time limit for the acknowledgement of a message.
        linger_ms: how long a batch waits for further messages before it is sent.
        compression: codec of the batches: gzip, snappy, lz4, zstd, or None for no compression.
        on_delivery: called with each message that was acknowledged or failed; see `send`.
        options: further options of librdkafka, by their names in its documentation.

    Raises:
        BrokerUnavailable: no broker responds, or the brokers reject the client.
        ValueError: an argument or option is invalid.
        SettingsError, RegistryUnavailable: the settings of the brokers or the registry cannot be used.
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
        self._settings = settings if settings is not None else default_settings()
        self._delivery_timeout_s = delivery_timeout_s
        self._on_delivery = on_delivery
        defaults = {
            "client.id": f"headrace-{app}",
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": as_ms("delivery_timeout_s", delivery_timeout_s, DELIVERY_MS_MAX),
            "linger.ms": linger_ms,
            "compression.type": compression or "none",
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "partitioner": "murmur2_random",  # the same partitions for keys as Java's clients
            "queue.buffering.max.messages": 10_000_000,  # `UNACKNOWLEDGED_BYTES_MAX` is the actual limit
        }
        if type(linger_ms) is not int or linger_ms < 0:
            raise ValueError(
                f"expected linger_ms to be a number of milliseconds, found {type(linger_ms).__name__} {linger_ms!r:.60}"
            )
        if delivery_timeout_s * 1000 < linger_ms + 100:
            raise ValueError(
                f"delivery_timeout_s={delivery_timeout_s:g} is too short for linger_ms={linger_ms}; "
                f"expected at least {(linger_ms + 100) / 1000:g} s"
            )
        self._options = merge_options(defaults, options, REFUSED)
        try:
            config = reach_brokers(self._settings, BOOTSTRAP_TIMEOUT_S) | self._options | _callbacks(self._options)
        except BrokersUnreachable as error:
            raise BrokerUnavailable(str(error)) from error
        self._kafka: Any = create_client(confluent_kafka.Producer, config)
        self._registry = registry_client(self._settings)
        self._encodings = EncodingCache(self._registry, self._settings.loader, TopicCheck(self._settings).check)
        spool_dir = spool_directories(self._settings)[0]
        self._counter = ProducerCounter(
            app,
            spool_dir=spool_dir,
            datacenter=self._settings.audit.datacenter,
            late_after_ms=self._settings.audit.grace.ms,
            row_type=row_type(core_library()),
        )
        self._leftovers = LeftoverSpools(spool_dir)
        self._in_flight = InFlight(self._counter)
        self.completed = self._in_flight.completed.append
        self._has_polled = False
        self._signal_safe = SignalSafeCalls()
        self._closing = threading.RLock()
        self._deferred_close_timeout_s: float | None = None
        self._open_published_at = float("-inf")
        self._closed = ""
        self._audit_topic = self._settings.audit.topic
        self._publisher = AuditPublisher(
            self._kafka,
            self._poll,
            self._registry,
            self._audit_topic,
            self._settings.loader.subject_of(self._audit_topic),
            self._mark_published,
            self._unchanged_rows,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_periodically, name="headrace-producer", daemon=True)
        self._thread.start()
        register_for_fork(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _log_secondary_errors(error):
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
        """Sends one event without waiting for its acknowledgement; `result()` of the returned delivery waits for it.
        Blocks while a schema that is not cached is requested from the registry, or while the messages in flight exceed
        the memory limit.

        Args:
            value: value of the schema, usually a dict; None is a tombstone and needs a key.
            key: messages with equal keys go to the same partition.
            schema: Avro schema text or value; None is the latest version of the topic's subject, by default
                `<topic>-value`.
            headers: names with text or bytes.
            timestamp_ms: record timestamp; None is now. 0 is not allowed, because librdkafka reads it as now.
            partition: partition number; takes precedence over the key.
            on_delivery: called when the message was acknowledged or failed, instead of the producer's own callback. It
                runs in a thread that processes acknowledgements, possibly inside another `send`, so it should be fast.
                A signal handler that raises interrupts it.

        Raises:
            ProducerError: nothing was sent. `DeliveryFailed` also reports earlier messages whose failure was not
                reported yet, once each.
        """
        try:
            return self._send(topic, value, key, schema, headers, timestamp_ms, partition, on_delivery)
        finally:
            if self._deferred_close_timeout_s is not None:
                self._close_deferred()

    def flush(self, timeout_s: float = 150.0) -> None:
        """Waits until every message sent before is acknowledged, and publishes the audit counts.

        It also calls `on_delivery`, and waits for such calls in other threads. After `timeout_s` it begins no further
        call and no longer waits for other threads, but a call that it has begun ends first. A flush inside
        `on_delivery` does not wait for other calls.

        Raises:
            FlushFailed: messages failed since the last flush, or are not acknowledged after `timeout_s`. The audit
                counts are then published later.
            ProducerClosed: the producer is closed, or this is a forked process.
            ValueError: `timeout_s` is not a number.
        """
        if self._closed:
            raise ProducerClosed(self._closed)
        deadline = time.monotonic() + as_seconds("timeout_s", timeout_s)
        try:
            self._flush_messages(deadline)
            now = time.monotonic()
            selection = RowSelection.ENDED
            if now - self._open_published_at >= OPEN_WINDOWS_EVERY_S:
                self._open_published_at = now
                selection = RowSelection.ALL
            self._publish(selection, deadline)
        finally:
            if self._deferred_close_timeout_s is not None:
                self._close_deferred()

    def close(self, timeout_s: float = 150.0) -> None:
        """Flushes and closes the producer. Closing again, or in a forked process, does nothing.

        In a signal handler that interrupted a call of this producer, closing is deferred until that call ends.

        Args:
            timeout_s: time limit of the flush and of the publication of audit counts.

        Raises:
            FlushFailed: messages failed since the last flush, or are not acknowledged after `timeout_s`. The producer
                is closed nevertheless.
            ValueError: `timeout_s` is not a number; the producer is not closed.
        """
        limit_s = as_seconds("timeout_s", timeout_s)
        if self._is_interrupted():
            self._deferred_close_timeout_s = limit_s
            return
        self._close(limit_s)

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
            self._publish(RowSelection.ALL, deadline)
            self._end(max(0.0, deadline - time.monotonic()))

    def poll(self, timeout_s: float = 0.0) -> None:
        """Processes responses of the brokers, and calls `on_delivery`. Waits up to `timeout_s` for the first response.
        A background thread also processes responses every 0.1 seconds."""
        limit_s = as_seconds("timeout_s", timeout_s)
        try:
            self._poll(limit_s)
        finally:
            if self._deferred_close_timeout_s is not None:
                self._close_deferred()

    def _poll(self, timeout_s: float) -> None:
        kafka = self._kafka
        if kafka is not None:
            self._signal_safe.call(self._process_responses, kafka.poll, timeout_s)
        self._in_flight.run_callbacks()

    def mark_reported(self, delivery: Delivery) -> None:
        """Records that the application has read the result of a failed delivery, so that the failure is not reported
        again."""
        self._signal_safe.call(self._in_flight.mark_reported, delivery)

    def _is_interrupted(self) -> bool:
        """Returns whether the current code runs in a signal handler that interrupted a call of this producer. That call
        may hold locks, so the handler must not wait for them."""
        frame = sys._getframe() if threading.current_thread() is threading.main_thread() else None
        while frame is not None:
            if frame.f_code in _LOCKING_CALLS and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _close_deferred(self) -> None:
        """Performs the `close` that a signal handler requested while it interrupted a call of this producer; called
        when that call ends."""
        timeout_s, self._deferred_close_timeout_s = self._deferred_close_timeout_s, None
        if timeout_s is not None:
            with _log_secondary_errors(sys.exception()):
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
        if in_flight.unreported:
            self._signal_safe.call(in_flight.raise_unreported, topic)
        key_bytes = key if key is None or key.__class__ is bytes else as_key_bytes(topic, key)
        header_list = as_header_list(topic, headers) if headers else None
        record_ms = None if timestamp_ms is None else as_timestamp(topic, timestamp_ms)
        size = 0 if key_bytes is None else len(key_bytes)
        digest: bytes | None
        subject, encoded, row, digest = "", None, None, b""
        if value is None:
            if key_bytes is None:
                raise KeyRefused(
                    f"topic {topic}: a tombstone needs a key; pass the key of the message that it deletes", topic=topic
                )
        else:
            encoding = self._encodings.get(topic, schema)
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
                has_time = time_ms is not None or read_time is None
                if time_ms is None:
                    time_ms = record_ms = wall_clock_ms() if record_ms is None else record_ms
                row = encoding.row
                count = row.count  # CPython 3.11 looks up a slot in a method call for 30 ns
                digest = count(time_ms, key_bytes, encoded) if has_time else None
                if digest is None:
                    row, digest = self._counter.count(topic, time_ms, key_bytes, encoded, has_time=has_time)
                    encoding.row = row
        cost = size + MESSAGE_COST_BYTES
        if header_list is not None:
            cost += sum(len(name) + len(content) for name, content in header_list)
        delivery = Delivery(self, topic, subject, size, cost, row, digest, on_delivery or self._on_delivery)
        in_flight.added.append(delivery)
        try:
            if len(in_flight.added) >= CHECK_EVERY_MESSAGES or cost >= LARGE_BYTES:
                self._wait_for_capacity(cost)
            while True:
                delivery.is_handed_over = True
                try:
                    self._kafka.produce(
                        topic,
                        encoded,
                        key_bytes,
                        ANY_PARTITION if partition is None else partition,
                        delivery.complete,
                        None,
                        NOW_MS if record_ms is None else record_ms,
                        header_list,
                    )
                    return delivery
                except BufferError:  # the application has set a smaller limit of librdkafka
                    delivery.is_handed_over = False
                    self._poll(POLL_EVERY_S)
        except _REJECTED_ERRORS as error:
            self._signal_safe.call(in_flight.withdraw, delivery)
            raise self._rejection(delivery, error) from error
        except BaseException:  # raised by a signal handler, which runs after `produce` has returned
            if not delivery.is_handed_over:
                self._signal_safe.call(in_flight.withdraw, delivery)
            raise

    def _rejection(self, delivery: Delivery, error: Exception) -> ProducerError:
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

    def _wait_for_capacity(self, message_bytes: int) -> None:
        """Waits while a message of `message_bytes` and the messages in flight together exceed the memory limit. The
        wait ends at the latest when the messages in flight have reached their delivery timeout, or when the producer
        closes."""
        self._has_polled = True
        self._poll(0.0)
        while not self._in_flight.has_capacity(message_bytes) and not self._closed:
            self._poll(POLL_EVERY_S)

    def _flush_messages(self, deadline: float) -> None:
        """Waits until all messages in flight are acknowledged or failed, at most until `deadline` on the monotonic
        clock. Raises FlushFailed if any message failed since the last flush or is still in flight."""
        in_flight, call = self._in_flight, self._signal_safe.call
        waiting = awaited = call(in_flight.pending)
        left_s = 1.0
        while waiting and left_s > 0:
            left_s = deadline - time.monotonic()
            call(self._process_responses, self._kafka.flush, max(0.0, min(left_s, POLL_EVERY_S)))
            in_flight.run_callbacks(deadline)
            waiting = [delivery for delivery in waiting if not delivery.done()]
        call(in_flight.process_completed)
        if not in_flight.wait_for_callbacks(deadline - time.monotonic()):
            logger.warning("flush timed out while on_delivery was running")
        call(in_flight.raise_failed, awaited, Counter(delivery.topic for delivery in waiting))

    def _process_responses(self, poll: Callable[[float], object], timeout_s: float) -> None:
        """Processes responses of the brokers. A fatal error of the Kafka client is logged and not raised: the client
        raises it in only one call, but every message then fails with a separate error.

        Args:
            poll: the function of the Kafka client that processes responses: `poll` or `flush`.
            timeout_s: the argument of `poll`: how long to wait for responses.
        """
        try:
            poll(timeout_s)
        except KafkaException as error:
            logger.error("Kafka client failed, further messages fail too error=%s", error_text(error))
        self._in_flight.process_completed()

    def _publish(self, selection: RowSelection, deadline: float) -> None:
        """Publishes audit rows, and waits for their acknowledgement until `deadline` on the monotonic clock. Rows that
        are not acknowledged stay in the spool, the file in which each process stores its unpublished counts. They are
        published later, if necessary by another process.

        Args:
            selection: selects the rows of this producer: all, or those of ended windows. The first publication of a
                producer, however it selects, includes the rows that ended processes left in their spools.
        """
        self._publisher.add_rows([*self._leftovers.rows(), *self._counter.take_rows(wall_clock_ms(), selection)])
        self._publisher.wait(max(0.0, deadline - time.monotonic()))

    def _unchanged_rows(self) -> list[AuditRow]:
        self._in_flight.process_completed()
        self._in_flight.run_callbacks()
        return [*self._leftovers.rows(), *self._counter.take_rows(wall_clock_ms(), RowSelection.UNCHANGED)]

    def _mark_published(self, row_id: str) -> None:
        self._counter.mark_published(row_id)
        self._leftovers.mark_published(row_id)

    def _poll_periodically(self) -> None:
        while not self._stop.wait(POLL_EVERY_S):
            # A sending thread processes responses itself; here each would wait for the interpreter lock.
            if self._has_polled:
                self._has_polled = False
                continue
            try:
                self._poll(0.0)
            except Exception:  # raised by a callback of the options
                logger.exception("a callback of options failed while responses were processed")
            self._in_flight.log_failures(only_when_due=True)

    def _end(self, timeout_s: float) -> None:
        join_timeout_s = min(timeout_s, CLOSE_TIMEOUT_S)
        if threading.current_thread() is not self._thread:  # `on_delivery` may close the producer
            self._thread.join(join_timeout_s)
        self._publisher.stop(join_timeout_s)
        # Pending messages fail now, so that waiting on a `Delivery` ends.
        self._kafka.purge()
        deadline = time.monotonic() + PURGE_TIMEOUT_S
        while self._signal_safe.call(self._in_flight.pending) and time.monotonic() < deadline:
            self._poll(POLL_EVERY_S)
        self._signal_safe.call(self._fail_pending)
        self._in_flight.run_callbacks()
        self._signal_safe.stop()
        self._kafka = None
        self._leftovers.close()
        self._counter.close()
        self._registry.close()

    def _fail_pending(self) -> None:
        for delivery in self._in_flight.pending():
            delivery.complete(KafkaError(KafkaError._PURGE_INFLIGHT), None)
        self._in_flight.process_completed()
        self._in_flight.log_failures(only_when_due=False)

    def abandon_after_fork(self) -> None:
        """Makes the producer unusable in a forked child, which lacks its threads, without closing it."""
        self._closed = "this producer belongs to the parent process; create it after the fork"
        prevent_free(self._kafka)
        self._leftovers.abandon_after_fork()


def _callbacks(options: Options) -> dict[str, Any]:
    """Returns the callback functions among the options of librdkafka, wrapped so that their exceptions are logged. The
    callbacks may run inside a `send`, which must not raise their exceptions."""
    return {
        name: log_exceptions(function, name)
        for name, function in options.items()
        if name in ("error_cb", "stats_cb", "throttle_cb") and callable(function)
    }


@contextmanager
def _log_secondary_errors(error: BaseException | None) -> Iterator[None]:
    """Context manager around closing the producer. If another exception, `error`, is already being raised, delivery
    errors of the block are logged, so that they do not replace it."""
    try:
        yield
    except ProducerError as failure:
        if error is None:
            raise
        logger.error("messages not delivered when closing error=%s", failure)


_LOCKING_CALLS: Final = frozenset(each.__code__ for each in (Producer.send, Producer.flush, Producer.poll))
"""Code of the methods in which the calling thread may hold a lock; see `Producer._is_interrupted`."""


def default_settings() -> Settings:
    """Loads settings from `headrace.toml` and the environment, as the command line does."""
    return load_settings(environment=os.environ, working_dir=Path.cwd(), home=home_directory())
