"""Time limits of waits, and their interaction with other cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.registry.api.request_bodies import Deadlines


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_wait_returns_the_result_or_raises_timeout_error() -> None:
    async def test() -> None:
        deadlines = Deadlines(0.05)
        assert await deadlines.wait(asyncio.sleep(0, "result")) == "result"
        for _ in range(2):  # the task continues and waits again
            with pytest.raises(TimeoutError):
                await deadlines.wait(asyncio.Event().wait())
        assert await deadlines.wait(asyncio.sleep(0, "result")) == "result"
        current = asyncio.current_task()
        assert current is not None
        assert not current.cancelling()

    run(test())


def test_timeout_ends_only_the_late_task() -> None:
    async def test() -> None:
        deadlines = Deadlines(30)
        late, other = (asyncio.create_task(deadlines.wait(asyncio.Event().wait())) for _ in range(2))
        await asyncio.sleep(0)
        deadlines._wait_starts[late] -= 30
        deadlines._check(asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await late
        assert not other.done()
        other.cancel()

    run(test())


def test_other_cancellation_takes_precedence_over_the_timeout() -> None:
    async def test() -> None:
        deadlines = Deadlines(30)
        task = asyncio.create_task(deadlines.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Also when the timeout and the cancellation coincide.
        both = asyncio.create_task(deadlines.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        deadlines._timed_out.add(both)
        both.cancel()
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both

    run(test())


def test_wait_raises_the_error_of_the_awaitable() -> None:
    async def refused() -> None:
        raise OSError("refused")

    async def test() -> None:
        deadlines = Deadlines(30)
        with pytest.raises(OSError, match="refused"):
            await deadlines.wait(refused())

    run(test())


def test_timer_stops_when_no_task_waits() -> None:
    async def test() -> None:
        deadlines = Deadlines(0.01)
        await deadlines.wait(asyncio.sleep(0))
        await asyncio.sleep(0.05)
        assert not deadlines._is_scheduled
        assert not deadlines._wait_starts

    run(test())


def test_waits_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        set_later, timers = loop.call_later, []

        def call_later(delay: float, callback: Any, *args: Any) -> Any:
            timers.append(callback)
            return set_later(delay, callback, *args)

        monkeypatch.setattr(loop, "call_later", call_later)
        deadlines = Deadlines(30)
        waiting = [asyncio.create_task(deadlines.wait(asyncio.Event().wait())) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(timers) == 1
        for task in waiting:
            task.cancel()

    run(test())
