"""The asynchronous producer with a fake synchronous producer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace.clients.aio import AsyncProducer


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
        with pytest.raises(ValueError, match="no broker"):
            async with producer:
                pass
        (thread,) = producer._thread._executor._threads
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()

    asyncio.run(main())
