"""Producer and consumer for asyncio: the same clients, each in a thread of its own that the event loop waits for.

async with AsyncProducer(app="shop") as producer:
    landed = await producer.send("orders", {"id": 7, …}, key="7", schema=ORDER_SCHEMA)
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
from typing import Any, Final, TypeVar

from headrace.clients.consumer import Consumer, Message, Nothing
from headrace.clients.delivery import Delivery, Landed
from headrace.clients.errors import UndecodableMessage
from headrace.clients.partitions import Place
from headrace.clients.producer import Producer
from headrace.settings import Settings

Result = TypeVar("Result")
Client = TypeVar("Client", Producer, Consumer)

POLL_S: Final = 0.05
SLICE_S: Final = 0.1
"""How long a consumer's thread waits for a message at a time; what else is asked of it waits no longer than that."""


class _Thread:
    """The one thread that a client is used in, one call after the other."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "headrace-aio")

    def call(self, function: Callable[..., Result], *args: Any, **options: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **options))

    async def open(self, make: Callable[[], Client]) -> Client:
        """Makes the client. Whoever is cancelled meanwhile leaves none behind, and who fails no thread."""
        made: list[Client] = []

        def run() -> Client:
            made.append(make())
            return made[0]

        def close() -> None:
            for client in made:
                client.close()

        try:
            return await self.call(run)
        except BaseException:
            self._executor.submit(close)
            self.end()
            raise

    def end(self) -> None:
        self._executor.shutdown(wait=False)


class AsyncProducer:
    """Takes what `Producer` takes; an asynchronous context manager."""

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
        self._undecided = 0
        self._is_awaited = threading.Event()

    async def __aenter__(self) -> AsyncProducer:
        self._producer = await self._thread.open(self._make)
        threading.Thread(target=self._take_answers, name="headrace-answers", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Also where whoever waits for it is cancelled.
            await asyncio.shield(self._thread.call(self._opened().__exit__, kind, error, trace))
        finally:
            self._producer = None
            self._is_awaited.set()
            self._thread.end()

    async def send(self, topic: str, value: Any, key: str | bytes | None = None, **options: Any) -> Landed:
        """Sends one event and waits until it was acknowledged; several are sent side by side with `asyncio.gather`.
        Takes what `Producer.send` takes, but for `on_delivery`.

        Raises:
            ProducerError: one of its subclasses.
        """
        producer, loop = self._opened(), asyncio.get_running_loop()
        landed: asyncio.Future[Landed] = loop.create_future()

        def decided(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(_settle, landed, delivery)
            if self._on_delivery is not None:
                self._on_delivery(delivery)

        self._undecided += 1
        try:
            await self._thread.call(producer.send, topic, value, key, on_delivery=decided, **options)
            self._is_awaited.set()
            return await landed
        finally:
            self._undecided -= 1

    async def flush(self, timeout_s: float = 150.0) -> None:
        """See `Producer.flush`."""
        await self._thread.call(self._opened().flush, timeout_s)

    def _opened(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("expected `async with` around the use of an AsyncProducer")
        return self._producer

    def _take_answers(self) -> None:
        """In a thread of its own, while somebody waits for one."""
        while self._is_awaited.wait():
            producer = self._producer
            if producer is None:
                return
            if self._undecided:
                producer.poll(POLL_S)
            else:
                self._is_awaited.clear()


def _settle(landed: asyncio.Future[Landed], delivery: Delivery) -> None:
    if landed.done():  # whoever waited for it was cancelled
        return
    failure = delivery.failure()
    if failure is None:
        landed.set_result(delivery.result(0))
    else:
        landed.set_exception(failure)


class AsyncConsumer:
    """Takes what `Consumer` takes; an asynchronous context manager and iterator. Callbacks are called in its thread."""

    def __init__(self, settings: Settings | None = None, **options: Any) -> None:
        self._make = lambda: Consumer(settings, **options)
        self._thread = _Thread()
        self._consumer: Consumer | None = None
        self._turn = asyncio.Lock()
        self._asked: asyncio.Future[Message | Nothing] | None = None

    async def __aenter__(self) -> AsyncConsumer:
        self._consumer = await self._thread.open(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        consumer = self._opened()
        is_finished = error is None and self._asked is None

        def close() -> None:
            # What could not be dealt with, or came for somebody who was cancelled, is not finished.
            if not is_finished:
                consumer.let_go()
            consumer.close()

        try:
            await asyncio.shield(self._thread.call(close))  # also where whoever waits for it is cancelled
        finally:
            self._consumer = None
            self._thread.end()

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        """See `Consumer.__next__`. Who is cancelled while waiting loses nothing: the message is given to the next."""
        async with self._turn:
            quiet_since = time.monotonic()
            while True:
                message = await self._ask(quiet_since)
                if message is Nothing.EVER:
                    raise StopAsyncIteration
                if message is not Nothing.YET:
                    return message

    async def commit(self) -> None:
        """See `Consumer.commit`. A message that somebody still waits for is not committed."""
        consumer = self._opened()
        await self._thread.call(consumer.commit if self._asked is None else consumer.commit_finished)

    def assignment(self) -> frozenset[Place]:
        """See `Consumer.assignment`."""
        return self._opened().assignment()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """See `Consumer.seek`."""
        await self._thread.call(self._opened().seek, topic, partition, offset)
        if self._asked is not None and self._asked.done() and not self._turn.locked():
            # It came for somebody who was cancelled, from where this partition is not read any more.
            found = self._asked.exception() or self._asked.result()
            if isinstance(found, Message | UndecodableMessage) and (found.topic, found.partition) == (topic, partition):
                self._asked = None

    async def pause(self, places: Iterable[Place] | None = None) -> None:
        """See `Consumer.pause`."""
        await self._thread.call(self._opened().pause, places)

    async def resume(self, places: Iterable[Place] | None = None) -> None:
        """See `Consumer.resume`."""
        await self._thread.call(self._opened().resume, places)

    async def let_go(self) -> None:
        """See `Consumer.let_go`."""
        await self._thread.call(self._opened().let_go)

    async def _ask(self, quiet_since: float) -> Message | Nothing:
        """What was asked for somebody who was cancelled, or asks anew."""
        if self._asked is None:
            self._asked = self._thread.call(self._opened().next_within, SLICE_S, quiet_since)
        try:
            message = await asyncio.shield(self._asked)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._asked = None
            raise
        self._asked = None
        return message

    def _opened(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("expected `async with` around the use of an AsyncConsumer")
        return self._consumer
