"""Sends the records of all requests with one producer, and gives each request the results of its records.

One idempotent producer sends larger batches than one for each request or client, which is why single requests are fast.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.audit.open_row import Ticket
from headrace.audit.producer_counter import wall_clock_ms
from headrace.clients.kafka_client import create_client, error_text
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.topics import ExistingTopics
from headrace.settings import GatewaySettings

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
CLOSE_S: Final = 10.0
REPLACE_S: Final = 1.0
RETIRE_POLL_S: Final = 0.05
LOG_EVERY_S: Final = 30.0
ANY_PARTITION: Final = -1


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to send. `timestamp_ms` defaults to the current time, `partition` to the partition of the key."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class SendResult(NamedTuple):
    """The position of a stored record, or the error."""

    partition: int = -1
    offset: int = -1
    timestamp_ms: int = -1
    error: KafkaError | None = None


class RecordSender:
    """Sends the records of the requests of one event loop.

    A producer that fails for good is replaced. Its unacknowledged records get errors that clients may retry.

    Args:
        options: librdkafka's options: addresses and security.
        settings: the settings of the gateway.
        loop: the event loop of the requests.
        metrics: counts the records.
        audit: counts them for the audit.
        create: creates a producer.
    """

    def __init__(
        self,
        options: dict[str, Any],
        settings: GatewaySettings,
        loop: asyncio.AbstractEventLoop,
        metrics: GatewayMetrics,
        audit: GatewayAudit,
        create: Callable[[dict[str, Any]], Producer] = lambda options: create_client(Producer, options),
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._audit = audit
        self._create = create
        self._topics = ExistingTopics()
        self._completed: deque[_Request] = deque()
        self._is_scheduled = False
        self._not_logged: Counter[str] = Counter()
        """Failed records that no line of the log has, by error."""
        self._logged_at: dict[str, float] = {}
        self._replacing = threading.Lock()
        self._options = {
            "client.id": "headrace-gateway",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            "partitioner": "murmur2_random",
            "message.timeout.ms": settings.delivery_timeout.ms,
            "message.max.bytes": settings.message_bytes_max,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_097_151,
            **options,
        }
        self._current = _RunningProducer(create, self._options, self._replace)

    async def require_topic(self, topic: str) -> None:
        """Checks that a topic exists, or can be created by a record.

        Raises:
            GatewayError: it does not exist, or no broker responds.
        """
        if not self._topics.is_known(topic):
            await self._topics.require(topic, self._current.producer.list_topics)

    def forget_topic(self, topic: str) -> None:
        """Looks a topic up again for its next record, because it was created or deleted."""
        self._topics.forget(topic)

    async def broker_problem(self) -> str:
        """Returns why no broker responds; "" if one does."""
        return await self._topics.broker_problem(self._current.producer.list_topics)

    async def send(self, topic: str, records: Sequence[OutgoingRecord]) -> list[SendResult]:
        """Sends records, in their order, to a topic. Returns the result of each record, in the same order."""
        return await (await self.start(topic, records))

    async def start(self, topic: str, records: Sequence[OutgoingRecord]) -> asyncio.Future[list[SendResult]]:
        """Sends records like `send`, without waiting for the results, which the future will have."""
        await self._audit.times.prepare(topic, (record.value for record in records))
        now_ms = wall_clock_ms()
        request = _Request(self, self._loop.create_future(), len(records))
        for index, record in enumerate(records):
            record_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            request.tickets[index] = self._audit.count_sent(topic, record.key, record.value, record_ms)
            self._send_one(topic, record, record_ms, request, index)
        return request.future

    def _send_one(self, topic: str, record: OutgoingRecord, record_ms: int, request: _Request, index: int) -> None:
        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                request.complete(index, SendResult(error=error))
            else:
                request.complete(index, SendResult(message.partition(), message.offset(), message.timestamp()[1]))

        running = self._current
        try:
            running.producer.produce(
                topic,
                record.value,
                record.key,
                ANY_PARTITION if record.partition is None else record.partition,
                report,
                None,
                record_ms,
                list(record.headers) or None,
            )
        except BufferError:
            request.complete(index, SendResult(error=KafkaError(KafkaError._QUEUE_FULL)))
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if _is_fatal(cause):
                self._replace(running, cause)
                if self._current is not running:
                    self._send_one(topic, record, record_ms, request, index)
                    return
            request.complete(index, SendResult(error=cause))

    def _replace(self, failed: _RunningProducer, cause: KafkaError) -> None:
        """Replaces a producer that can send nothing more, at most once in `REPLACE_S`."""
        with self._replacing:
            if self._current is not failed or failed.age_s < REPLACE_S:
                return
            logger.error("kafka_producer_replaced cause=%s", error_text(cause))
            self._current = _RunningProducer(self._create, self._options, self._replace)
        failed.retire()

    def deliver(self, request: _Request) -> None:
        """Resolves the future in the event loop; called by the thread that processes acknowledgements."""
        self._completed.append(request)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._is_scheduled = False
        stored = 0
        failures: Counter[str] = Counter()
        while self._completed:
            request = self._completed.popleft()
            failed = [index for index, one in enumerate(request.results) if one.error is not None]
            for index in failed:
                error = request.results[index].error
                assert error is not None
                failures[error.name()] += 1
            self._audit.count_failed(request.tickets[index] for index in failed)
            for index in failed:
                request.tickets[index] = None
            self._audit.acknowledge(request.tickets, time.monotonic() - request.started_at)
            stored += len(request.results) - len(failed)
            if not request.future.done():
                request.future.set_result(request.results)
        self._metrics.count_records(stored, failures)
        self._log_failures(failures)

    def _log_failures(self, failures: Counter[str]) -> None:
        """Logs failed records: at most one line for each error in `LOG_EVERY_S`."""
        self._not_logged.update(failures)
        now = time.monotonic()
        for name in failures:
            if now - self._logged_at.get(name, float("-inf")) >= LOG_EVERY_S:
                self._logged_at[name] = now
                logger.warning("records_failed error=%s records=%d", name, self._not_logged.pop(name))

    def close(self) -> None:
        """Waits for the acknowledgements of sent records, at most `CLOSE_S`."""
        self._current.close()
        self._topics.close()


class _RunningProducer:
    """A producer, and the thread that processes its acknowledgements."""

    def __init__(
        self,
        create: Callable[[dict[str, Any]], Producer],
        options: dict[str, Any],
        on_fatal: Callable[[_RunningProducer, KafkaError], None],
    ) -> None:
        self._on_fatal = on_fatal
        self._stop = threading.Event()
        self._created_at = time.monotonic()
        self.producer = create({**options, "error_cb": self._on_error})
        self._thread = threading.Thread(target=self._poll, name="headrace-gateway-sender", daemon=True)
        self._thread.start()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._created_at

    def _on_error(self, error: KafkaError) -> None:
        if _is_fatal(error):
            self._on_fatal(self, error)

    def _poll(self) -> None:
        while not self._stop.is_set():
            try:
                self.producer.poll(POLL_S)
            except KafkaException as error:
                logger.error("kafka_client_failed error=%s", error_text(error))

    def retire(self) -> None:
        """Fails the records that are not acknowledged, and ends the thread when it has reported them."""
        threading.Thread(target=self._retire, name="headrace-gateway-retired", daemon=True).start()

    def _retire(self) -> None:
        deadline = time.monotonic() + CLOSE_S
        while len(self.producer) and time.monotonic() < deadline:
            self.producer.purge()
            time.sleep(RETIRE_POLL_S)
        self._stop.set()

    def close(self) -> None:
        self.producer.flush(CLOSE_S)
        self._stop.set()
        self._thread.join(CLOSE_S)


def _is_fatal(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


class _Request:
    """The records of one request that are not acknowledged yet.

    The event loop reports records that librdkafka refuses, the producer's thread all others. Python does not switch
    threads between the steps of `-=` on an int.
    """

    __slots__ = ("_left", "_sender", "future", "results", "started_at", "tickets")

    def __init__(self, sender: RecordSender, future: asyncio.Future[list[SendResult]], count: int) -> None:
        self._sender = sender
        self._left = count
        self.future = future
        self.results = [SendResult()] * count
        self.tickets: list[Ticket | None] = [None] * count
        self.started_at = time.monotonic()

    def complete(self, index: int, result: SendResult) -> None:
        self.results[index] = result
        self._left -= 1
        if not self._left:
            self._sender.deliver(self)
