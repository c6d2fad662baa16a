"""Waits that take too long, and who else may cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.registry.api.patience import Patience


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_what_comes_in_time_is_given_and_what_does_not_is_given_up() -> None:
    async def test() -> None:
        patience = Patience(0.05)
        assert await patience.wait(asyncio.sleep(0, "came")) == "came"
        for _ in range(2):  # the task goes on, and waits again
            with pytest.raises(TimeoutError):
                await patience.wait(asyncio.Event().wait())
        assert await patience.wait(asyncio.sleep(0, "came")) == "came"
        current = asyncio.current_task()
        assert current is not None
        assert not current.cancelling()

    run(test())


def test_each_waits_for_itself() -> None:
    async def test() -> None:
        patience = Patience(30)
        late, other = (asyncio.create_task(patience.wait(asyncio.Event().wait())) for _ in range(2))
        await asyncio.sleep(0)
        patience._since[late] -= 30
        patience._look(asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await late
        assert not other.done()
        other.cancel()

    run(test())


def test_whoever_cancels_a_wait_has_cancelled_it() -> None:
    async def test() -> None:
        patience = Patience(30)
        task = asyncio.create_task(patience.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # At the very moment at which it is given up, too.
        both = asyncio.create_task(patience.wait(asyncio.Event().wait()))
        await asyncio.sleep(0)
        patience._given_up.add(both)
        both.cancel()
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both

    run(test())


def test_errors_are_those_of_what_was_waited_for() -> None:
    async def refused() -> None:
        raise OSError("refused")

    async def test() -> None:
        patience = Patience(30)
        with pytest.raises(OSError, match="refused"):
            await patience.wait(refused())

    run(test())


def test_nothing_is_looked_at_where_nobody_waits() -> None:
    async def test() -> None:
        patience = Patience(0.01)
        await patience.wait(asyncio.sleep(0))
        await asyncio.sleep(0.05)
        assert not patience._is_looking
        assert not patience._since

    run(test())


def test_one_timer_is_set_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        set_later, timers = loop.call_later, []

        def call_later(delay: float, callback: Any, *args: Any) -> Any:
            timers.append(callback)
            return set_later(delay, callback, *args)

        monkeypatch.setattr(loop, "call_later", call_later)
        patience = Patience(30)
        waiting = [asyncio.create_task(patience.wait(asyncio.Event().wait())) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(timers) == 1
        for task in waiting:
            task.cancel()

    run(test())
