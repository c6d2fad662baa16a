"""Producer and consumer for asyncio: the synchronous clients, each in a thread that the event loop awaits.

async with AsyncProducer(app="shop") as producer:
    acknowledged = await producer.send("orders", {"id": 7, …}, key="7", schema=ORDER_SCHEMA)
async with AsyncConsumer(topics=["orders"], group="mail", auto_commit=True) as consumer:
    async for message in consumer:
        await mail(message)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

from headrace.clients.consumer import Consumer, Message, NoMessage
from headrace.clients.consumer_options import ConsumerArguments
from headrace.clients.delivery import Delivery, RecordMetadata
from headrace.clients.errors import ConsumerClosed, DamagedBatch, ProducerClosed, UndecodableMessage
from headrace.clients.fork_safety import register_for_fork
from headrace.clients.partitions import TopicAndPartition
from headrace.clients.producer import Producer
from headrace.settings import Settings

Result = TypeVar("Result")
Client = TypeVar("Client", Producer, Consumer)

POLL_S: Final = 0.05
WAIT_SLICE_S: Final = 0.1
"""How long the thread of an AsyncConsumer waits for a message before it runs other calls, such as `commit`, which wait
meanwhile."""


class _Thread:
    """A thread that runs the calls of one `Producer` or `Consumer`, one at a time. Another thread polls the producer
    for acknowledgements."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def call(self, function: Callable[..., Result], *args: Any, **options: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **options))

    async def open(self, make: Callable[[], Client]) -> Client:
        """Creates the client in the thread by calling `make`, and returns it. If this fails or is cancelled, closes the
        client if it was created, and ends the thread. The next call uses another thread."""
        executor = self._executor = ThreadPoolExecutor(1, "headrace-aio")
        create_client: list[Client] = []

        def run() -> Client:
            create_client.append(make())
            return create_client[0]

        def close() -> None:
            for client in create_client:
                client.close()

        try:
            return await self.call(run)
        except BaseException:
            executor.submit(close)
            self.stop()
            raise

    def stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


class AsyncProducer:
    """A `Producer` for asyncio with the same arguments; an asynchronous context manager."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        app: str,
        on_delivery: Callable[[Delivery], None] | None = None,
        **options: Any,
    ) -> None:
        self._make = lambda: Producer(settings, app=app, **options)
        self._on_delivery = on_delivery
        self._thread = _Thread()
        self._producer: Producer | None = None
        self._waiters = 0
        self._has_waiters = threading.Event()
        self._is_forked = False

    async def __aenter__(self) -> AsyncProducer:
        self._producer = await self._thread.open(self._make)
        register_for_fork(self)
        threading.Thread(target=self._poll_for_acknowledgements, name="headrace-acknowledgements", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_forked:
            return
        try:
            # `shield`: the producer closes even if the waiting task is cancelled.
            await asyncio.shield(self._thread.call(self._client().__exit__, kind, error, trace))
        finally:
            self._producer = None
            self._has_waiters.set()
            self._thread.stop()

    async def send(self, topic: str, value: Any, key: str | bytes | None = None, **options: Any) -> RecordMetadata:
        """Sends one event and waits for its acknowledgement; use `asyncio.gather` to send several concurrently.

        Args:
            topic, value, key: as in `Producer.send`.
            options: further arguments of `Producer.send`, such as `headers`, but not `on_delivery`.

        Raises:
            ProducerError: the message was not sent or not acknowledged.
        """
        producer, loop = self._client(), asyncio.get_running_loop()
        metadata: asyncio.Future[RecordMetadata] = loop.create_future()

        def completed(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(_resolve, metadata, delivery)
            if self._on_delivery is not None:
                self._on_delivery(delivery)

        self._waiters += 1
        try:
            await self._thread.call(producer.send, topic, value, key, on_delivery=completed, **options)
            self._has_waiters.set()
            return await metadata
        finally:
            self._waiters -= 1

    async def flush(self, timeout_s: float = 150.0) -> None:
        """Waits until every message sent before is acknowledged. Raises FlushFailed if messages failed since the last
        flush, or are not acknowledged after `timeout_s`; see `Producer.flush`."""
        await self._thread.call(self._client().flush, timeout_s)

    def _client(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("expected `async with` around the use of an AsyncProducer")
        if self._is_forked:
            raise ProducerClosed("this producer belongs to the parent process; create it after the fork")
        return self._producer

    def abandon_after_fork(self) -> None:
        """Makes the producer unusable in a forked child, which lacks its threads."""
        self._is_forked = True

    def _poll_for_acknowledgements(self) -> None:
        """Polls the producer in a separate thread while a task waits for an acknowledgement."""
        while self._has_waiters.wait():
            producer = self._producer
            if producer is None:
                return
            if self._waiters:
                producer.poll(POLL_S)
            else:
                self._has_waiters.clear()


def _resolve(metadata: asyncio.Future[RecordMetadata], delivery: Delivery) -> None:
    if metadata.done():  # the waiting task was cancelled
        return
    failure = delivery.failure()
    if failure is None:
        metadata.set_result(delivery.result(0))
    else:
        metadata.set_exception(failure)


class AsyncConsumer:
    """A `Consumer` for asyncio with the same arguments; an asynchronous context manager and iterator.

    Callbacks of the application run in the consumer's thread.
    """

    def __init__(self, settings: Settings | None = None, **arguments: Unpack[ConsumerArguments]) -> None:
        self._make = lambda: Consumer(settings, **arguments)
        self._thread = _Thread()
        self._consumer: Consumer | None = None
        self._lock = asyncio.Lock()
        self._request: asyncio.Future[Message | NoMessage] | None = None
        self._is_forked = False

    async def __aenter__(self) -> AsyncConsumer:
        self._consumer = await self._thread.open(self._make)
        register_for_fork(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_forked:
            return
        consumer = self._client()
        is_finished = error is None and self._request is None

        def close() -> None:
            # After an exception, or if a cancelled task did not receive it, the current message is not finished.
            if not is_finished:
                consumer.mark_unfinished()
            consumer.close()

        try:
            await asyncio.shield(self._thread.call(close))  # even if the waiting task is cancelled
        finally:
            self._consumer = None
            self._thread.stop()

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        """Returns the next message, see `Consumer.__next__`. If the task that waits for it is cancelled, the next call
        returns the message, unless `seek` has moved its partition since."""
        async with self._lock:
            waiting_since = time.monotonic()
            while True:
                message = await self._next_or_timeout(waiting_since)
                if message is NoMessage.END:
                    raise StopAsyncIteration
                if message is not NoMessage.TIMEOUT:
                    return message

    async def commit(self) -> None:
        """Commits the offsets of all messages that were returned to a task, see `Consumer.commit`. A message that was
        fetched for a cancelled task is not among them."""
        consumer = self._client()
        await self._thread.call(consumer.commit if self._request is None else consumer.commit_finished)

    def assignment(self) -> frozenset[TopicAndPartition]:
        """Returns the topics and partitions that this consumer reads, see `Consumer.assignment`."""
        return self._client().assignment()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continues reading a partition of the topic at `offset`, which may also be `OFFSET_BEGINNING` or `OFFSET_END`;
        see `Consumer.seek`."""
        await self._thread.call(self._client().seek, topic, partition, offset)
        if self._request is not None and self._request.done() and not self._lock.locked():
            # The message of a cancelled task is before the new offset.
            found = self._request.exception() or self._request.result()
            if isinstance(found, Message | DamagedBatch | UndecodableMessage) and (found.topic, found.partition) == (
                topic,
                partition,
            ):
                self._request = None

    async def pause(self, topic_partitions: Iterable[TopicAndPartition] | None = None) -> None:
        """Stops returning messages of these partitions until `resume`; None pauses all that the consumer reads now. A
        message that was fetched for a cancelled task is still returned. See `Consumer.pause`."""
        await self._thread.call(self._client().pause, topic_partitions)

    async def resume(self, topic_partitions: Iterable[TopicAndPartition] | None = None) -> None:
        """Resumes these paused partitions; None resumes all. See `Consumer.resume`."""
        await self._thread.call(self._client().resume, topic_partitions)

    async def mark_unfinished(self) -> None:
        """Excludes the last returned message from the commit by `close`; see `Consumer.mark_unfinished`."""
        await self._thread.call(self._client().mark_unfinished)

    async def _next_or_timeout(self, waiting_since: float) -> Message | NoMessage:
        """Returns the next message, or the reason why no message came within `WAIT_SLICE_S`.

        The consumer's thread runs one request at a time. If a cancelled task has left a request there, this waits for
        its result instead of sending a new one.

        Args:
            waiting_since: time on the monotonic clock at which the application began to wait for this message.
        """
        consumer = self._client()
        if self._request is None:
            self._request = self._thread.call(consumer.next_within, WAIT_SLICE_S, waiting_since)
        try:
            message = await asyncio.shield(self._request)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._request = None
            raise
        self._request = None
        return message

    def _client(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("expected `async with` around the use of an AsyncConsumer")
        if self._is_forked:
            raise ConsumerClosed("this consumer belongs to the parent process; create it after the fork")
        return self._consumer

    def abandon_after_fork(self) -> None:
        """Makes the consumer unusable in a forked child, which lacks its thread."""
        self._is_forked = True
