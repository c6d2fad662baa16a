"""The asynchronous producer with a fake synchronous producer."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from headrace.clients.aio import AsyncProducer
from headrace.clients.errors import ProducerClosed


class FakeProducer:
    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def __exit__(self, *_: Any) -> None:
        self.is_closed.set()

    def close(self) -> None:
        self.is_closed.set()


def test_producer_is_closed_if_the_task_is_cancelled_while_its_thread_is_busy() -> None:
    fake, proceed = FakeProducer(), threading.Event()

    async def run(producer: AsyncProducer) -> None:
        async with producer:
            producer._thread.call(proceed.wait)  # the thread is busy

    async def main() -> None:
        producer = AsyncProducer(app="shop")
        producer._make = lambda: fake  # type: ignore[assignment, return-value]
        leaving = asyncio.ensure_future(run(producer))
        for _ in range(20):
            await asyncio.sleep(0.005)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        proceed.set()
        assert await asyncio.to_thread(fake.is_closed.wait, 20)
        assert producer._producer is None

    asyncio.run(main())


def test_failed_creation_of_a_client_leaves_no_thread() -> None:
    def fail() -> None:
        raise ValueError("no broker")

    async def main() -> None:
        producer = AsyncProducer(app="shop")
        producer._make = fail  # type: ignore[assignment, return-value]
        for _ in range(2):  # another attempt uses a new thread
            with pytest.raises(ValueError, match="no broker"):
                async with producer:
                    pass
            assert producer._thread._executor is None
        for thread in threading.enumerate():
            if thread.name.startswith("headrace-aio"):
                await asyncio.to_thread(thread.join, 20)
                assert not thread.is_alive()

    asyncio.run(main())


def test_client_that_could_not_be_created_is_created_by_the_next_attempt() -> None:
    fake = FakeProducer()

    def fail() -> None:
        raise ValueError("no broker")

    async def main() -> None:
        producer = AsyncProducer(app="shop")
        producer._make = fail  # type: ignore[assignment, return-value]
        with pytest.raises(ValueError, match="no broker"):
            await producer.__aenter__()
        producer._make = lambda: fake  # type: ignore[assignment, return-value]
        async with producer:
            pass
        assert fake.is_closed.is_set()

    asyncio.run(main())


def test_client_in_a_forked_child_raises_that_it_is_closed() -> None:
    async def main() -> None:
        fake = FakeProducer()
        producer = AsyncProducer(app="shop")
        producer._make = lambda: fake  # type: ignore[assignment, return-value]
        async with producer:
            child = os.fork()
            if not child:
                is_closed = False
                try:
                    await producer.send("t", {})
                except ProducerClosed:
                    is_closed = True
                await producer.__aexit__(None, None, None)
                os._exit(7 if is_closed and not fake.is_closed.is_set() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert fake.is_closed.is_set()

    asyncio.run(main())
