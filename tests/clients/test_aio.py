"""The asynchronous producer, over one that only notes what is asked of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace.clients.aio import AsyncProducer


class Noted:
    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def __exit__(self, *_: Any) -> None:
        self.is_closed.set()

    def close(self) -> None:
        self.is_closed.set()


def test_a_producer_is_closed_also_for_somebody_who_is_cancelled_before_its_turn_comes() -> None:
    noted, may_go_on = Noted(), threading.Event()

    async def leave(producer: AsyncProducer) -> None:
        async with producer:
            producer._thread.call(may_go_on.wait)  # the thread has something else to do first

    async def main() -> None:
        producer = AsyncProducer(app="shop")
        producer._make = lambda: noted  # type: ignore[assignment, return-value]
        leaving = asyncio.ensure_future(leave(producer))
        for _ in range(20):
            await asyncio.sleep(0.005)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        may_go_on.set()
        assert await asyncio.to_thread(noted.is_closed.wait, 20)
        assert producer._producer is None

    asyncio.run(main())


def test_a_client_that_cannot_be_made_leaves_no_thread() -> None:
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
