"""Sends the records of all requests with one producer, and gives each request the results of its records.

One idempotent producer sends larger batches than one for each request or client, which is why single requests are fast.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.clients.kafka_client import create_client, error_text
from headrace.gateway.metrics import GatewayMetrics
from headrace.settings import GatewaySettings

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
CLOSE_S: Final = 10.0
METADATA_S: Final = 5.0
ANY_PARTITION: Final = -1
NOW_MS: Final = 0
"""librdkafka's number for the current time."""


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
    """A producer for the requests of one event loop.

    Args:
        options: librdkafka's options: addresses and security.
        settings: the settings of the gateway.
        loop: the event loop of the requests.
        metrics: counts the records.
    """

    def __init__(
        self,
        options: dict[str, Any],
        settings: GatewaySettings,
        loop: asyncio.AbstractEventLoop,
        metrics: GatewayMetrics,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._completed: deque[tuple[asyncio.Future[list[SendResult]], list[SendResult]]] = deque()
        self._is_scheduled = False
        self._stop = threading.Event()
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
        self._producer = self._create()
        self._thread = threading.Thread(target=self._poll, name="headrace-gateway-sender", daemon=True)
        self._thread.start()

    def send(self, topic: str, records: Sequence[OutgoingRecord]) -> asyncio.Future[list[SendResult]]:
        """Sends records, in their order, to a topic. The future has the result of each record, in the same order."""
        future: asyncio.Future[list[SendResult]] = self._loop.create_future()
        results = [SendResult()] * len(records)
        request = _Request(self, future, results)
        for index, record in enumerate(records):
            self._produce(topic, record, request, index)
        return future

    def _produce(self, topic: str, record: OutgoingRecord, request: _Request, index: int) -> None:
        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                request.complete(index, SendResult(error=error))
            else:
                request.complete(index, SendResult(message.partition(), message.offset(), message.timestamp()[1]))

        try:
            self._producer.produce(
                topic,
                record.value,
                record.key,
                ANY_PARTITION if record.partition is None else record.partition,
                report,
                None,
                NOW_MS if record.timestamp_ms is None else record.timestamp_ms,
                list(record.headers) or None,
            )
        except KafkaException as error:
            request.complete(index, SendResult(error=error.args[0]))
        except BufferError:
            request.complete(index, SendResult(error=KafkaError(KafkaError._QUEUE_FULL)))

    def deliver(self, future: asyncio.Future[list[SendResult]], results: list[SendResult]) -> None:
        """Resolves the future in the event loop; called by the thread that processes acknowledgements."""
        self._completed.append((future, results))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._is_scheduled = False
        while self._completed:
            future, results = self._completed.popleft()
            self._count(results)
            if not future.done():
                future.set_result(results)

    def _count(self, results: list[SendResult]) -> None:
        failures = Counter(one.error.name() for one in results if one.error is not None)
        stored = len(results) - failures.total()
        if stored:
            self._metrics.count_records(stored)
        for name, number in failures.items():
            self._metrics.count_records(number, name)

    async def broker_problem(self) -> str:
        """Returns why no broker responds; "" if one does."""
        try:
            await asyncio.to_thread(self._producer.list_topics, "", METADATA_S)
        except KafkaException as error:
            return f"no Kafka broker responds: {error_text(error)}"
        return ""

    def _create(self) -> Producer:
        return create_client(Producer, self._options)

    def _poll(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                logger.error("kafka_client_failed error=%s", error_text(error))

    def close(self) -> None:
        """Waits for the acknowledgements of sent records, at most `CLOSE_S`."""
        self._producer.flush(CLOSE_S)
        self._stop.set()
        self._thread.join(CLOSE_S)


class _Request:
    """The records of one request that are not acknowledged yet."""

    __slots__ = ("_future", "_left", "_results", "_sender")

    def __init__(
        self, sender: RecordSender, future: asyncio.Future[list[SendResult]], results: list[SendResult]
    ) -> None:
        self._sender = sender
        self._future = future
        self._results = results
        self._left = len(results)

    def complete(self, index: int, result: SendResult) -> None:
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self._sender.deliver(self._future, self._results)
