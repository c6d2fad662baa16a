"""Who gets one of few places, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.registry.api import fair_lane
from headrace.registry.api.fair_lane import FairLane, LaneFull


class Work:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def __call__(self, name: str) -> Callable[[], Coroutine[Any, Any, str]]:
        end = self._ends.setdefault(name, asyncio.Event())

        async def work() -> str:
            self.begun.append(name)
            await end.wait()
            return name

        return work

    async def end(self, name: str, task: asyncio.Task[str]) -> None:
        self._ends[name].set()
        assert await task == name

    async def until_begun(self, count: int) -> None:
        while len(self.begun) < count:
            await asyncio.sleep(0.001)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def asked(lane: FairLane, work: Work, *names: str) -> dict[str, asyncio.Task[str]]:
    """Calls, each of the client that its name begins with, in this order."""
    tasks = {}
    for name in names:
        tasks[name] = asyncio.create_task(lane.run(name[0], work(name)))
        await asyncio.sleep(0)
    return tasks


def test_a_client_has_one_place_and_waits_for_it_alone() -> None:
    async def test() -> None:
        lane, work = FairLane(2), Work()
        tasks = await asked(lane, work, "a1", "a2", "a3", "b1")
        await work.until_begun(2)
        assert sorted(work.begun) == ["a1", "b1"]
        await work.end("b1", tasks["b1"])
        await asyncio.sleep(0)
        assert len(work.begun) == 2
        for number, name in enumerate(("a1", "a2", "a3"), 3):
            await work.end(name, tasks[name])
            await work.until_begun(min(number, 4))
        assert work.begun[2:] == ["a2", "a3"]

    run(test())


def test_clients_have_their_turns_one_after_the_other() -> None:
    async def test() -> None:
        lane, work = FairLane(1), Work()
        tasks = await asked(lane, work, "a1", "a2", "a3", "b1", "c1", "b2")
        for number, name in enumerate(("a1", "a2", "b1", "c1", "a3", "b2"), 1):
            await work.until_begun(number)
            assert work.begun[-1] == name
            await work.end(name, tasks[name])
        # Whoever comes to a lane that is empty need not wait.
        later = await asked(lane, work, "a4")
        await work.until_begun(7)
        await work.end("a4", later["a4"])

    run(test())


def test_who_waits_too_long_or_with_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_lane, "CLIENT_WAITING_MAX", 2)

    async def test() -> None:
        lane, work = FairLane(1, turn_wait_s=0), Work()
        tasks = await asked(lane, work, "a1", "b1")
        with pytest.raises(LaneFull):
            await tasks["b1"]
        patient = FairLane(1)
        waiting = await asked(patient, work, "c1", "c2", "c3", "c4")
        with pytest.raises(LaneFull):
            await waiting["c4"]
        await work.end("a1", tasks["a1"])
        for name in ("c1", "c2", "c3"):
            await work.end(name, waiting[name])
        assert "b1" not in work.begun

    run(test())


def test_who_goes_while_waiting_takes_no_turn_along() -> None:
    async def test() -> None:
        lane, work = FairLane(1), Work()
        tasks = await asked(lane, work, "a1", "b1", "c1")
        tasks["b1"].cancel()
        await asyncio.sleep(0)
        await work.end("a1", tasks["a1"])
        # This one has been given its turn, and goes before it takes it.
        tasks["c1"].cancel()
        later = await asked(lane, work, "d1")
        await work.until_begun(2)
        while "d1" not in work.begun:
            await asyncio.sleep(0.001)
        assert work.begun in (["a1", "d1"], ["a1", "c1", "d1"])
        await work.end("d1", later["d1"])

    run(test())
