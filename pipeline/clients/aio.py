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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

from headrace.pipeline.clients.consumer import Consumer, Message
from headrace.pipeline.clients.delivery import Delivery, Landed
from headrace.pipeline.clients.producer import Producer
from headrace.settings import Settings

Result = TypeVar("Result")

POLL_S: Final = 0.05


class _Thread:
    """The one thread that a client is used in, one call after the other."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "headrace-aio")

    def call(self, function: Callable[..., Result], *args: Any, **options: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **options))

    def end(self) -> None:
        self._executor.shutdown(wait=False)


class AsyncProducer:
    """Takes what `Producer` takes; an asynchronous context manager."""

    def __init__(self, settings: Settings | None = None, *, app: str, **options: Any) -> None:
        self._make = lambda: Producer(settings, app=app, **options)
        self._thread = _Thread()
        self._producer: Producer | None = None
        self._undecided = 0
        self._is_awaited = threading.Event()

    async def __aenter__(self) -> AsyncProducer:
        self._producer = await self._thread.call(self._make)
        threading.Thread(target=self._take_answers, name="headrace-answers", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.call(self._opened().__exit__, kind, error, trace)
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
    """Takes what `Consumer` takes; an asynchronous context manager and iterator."""

    def __init__(self, settings: Settings | None = None, **options: Any) -> None:
        self._make = lambda: Consumer(settings, **options)
        self._thread = _Thread()
        self._consumer: Consumer | None = None
        self._asked: asyncio.Future[Message | None] | None = None

    async def __aenter__(self) -> AsyncConsumer:
        self._consumer = await self._thread.call(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        consumer = self._opened()
        if error is not None or self._asked is not None:
            # What could not be dealt with, or came for somebody who was cancelled, is not finished.
            await self._thread.call(consumer.let_go)
        await self._thread.call(consumer.close)
        self._consumer = None
        self._thread.end()

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        """See `Consumer.__next__`. Who is cancelled while waiting loses nothing: the message is given to the next."""
        if self._asked is None:
            self._asked = self._thread.call(next, self._opened(), None)
        asked = self._asked
        try:
            message = await asyncio.shield(asked)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._asked = None
            raise
        self._asked = None
        if message is None:
            raise StopAsyncIteration
        return message

    async def commit(self) -> None:
        """See `Consumer.commit`."""
        await self._thread.call(self._opened().commit)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("expected `async with` around the use of an AsyncConsumer")
        return self._consumer
