"""Fair queues per client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.registry.api import client_queues
from headrace.registry.api.client_queues import ClientQueueFull, ClientQueues


class Work:
    """Makes coroutine functions that run until `end` is called."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def __call__(self, name: str) -> Callable[[], Coroutine[Any, Any, str]]:
        end = self._ends.setdefault(name, asyncio.Event())

        async def work() -> str:
            self.started.append(name)
            await end.wait()
            return name

        return work

    async def end(self, name: str, task: asyncio.Task[str]) -> None:
        self._ends[name].set()
        assert await task == name

    async def until_started(self, count: int) -> None:
        while len(self.started) < count:
            await asyncio.sleep(0.001)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def enqueue(queues: ClientQueues, work: Work, *names: str) -> dict[str, asyncio.Task[str]]:
    """Enqueues work in this order. The first letter of a name is its client."""
    tasks = {}
    for name in names:
        tasks[name] = asyncio.create_task(queues.run(name[0], work(name)))
        await asyncio.sleep(0)
    return tasks


def test_client_runs_one_computation_at_a_time() -> None:
    async def test() -> None:
        queues, work = ClientQueues(2), Work()
        tasks = await enqueue(queues, work, "a1", "a2", "a3", "b1")
        await work.until_started(2)
        assert sorted(work.started) == ["a1", "b1"]
        await work.end("b1", tasks["b1"])
        await asyncio.sleep(0)
        assert len(work.started) == 2
        for number, name in enumerate(("a1", "a2", "a3"), 3):
            await work.end(name, tasks[name])
            await work.until_started(min(number, 4))
        assert work.started[2:] == ["a2", "a3"]

    run(test())


def test_clients_run_round_robin() -> None:
    async def test() -> None:
        queues, work = ClientQueues(1), Work()
        tasks = await enqueue(queues, work, "a1", "a2", "a3", "b1", "c1", "b2")
        for number, name in enumerate(("a1", "a2", "b1", "c1", "a3", "b2"), 1):
            await work.until_started(number)
            assert work.started[-1] == name
            await work.end(name, tasks[name])
        # Empty queues cause no wait.
        later = await enqueue(queues, work, "a4")
        await work.until_started(7)
        await work.end("a4", later["a4"])

    run(test())


def test_full_queue_and_timeout_raise_client_queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_queues, "CLIENT_WAITING_MAX", 2)

    async def test() -> None:
        impatient, work = ClientQueues(1, queue_timeout_s=0), Work()
        tasks = await enqueue(impatient, work, "a1", "b1")
        with pytest.raises(ClientQueueFull):
            await tasks["b1"]
        patient = ClientQueues(1)
        waiting = await enqueue(patient, work, "c1", "c2", "c3", "c4")
        with pytest.raises(ClientQueueFull):
            await waiting["c4"]
        await work.end("a1", tasks["a1"])
        for name in ("c1", "c2", "c3"):
            await work.end(name, waiting[name])
        assert "b1" not in work.started

    run(test())


def test_cancelled_waiter_does_not_block_the_queue() -> None:
    async def test() -> None:
        queues, work = ClientQueues(1), Work()
        tasks = await enqueue(queues, work, "a1", "b1", "c1")
        tasks["b1"].cancel()
        await asyncio.sleep(0)
        await work.end("a1", tasks["a1"])
        # c1 was started already, and is cancelled before it runs.
        tasks["c1"].cancel()
        later = await enqueue(queues, work, "d1")
        await work.until_started(2)
        while "d1" not in work.started:
            await asyncio.sleep(0.001)
        assert work.started in (["a1", "d1"], ["a1", "c1", "d1"])
        await work.end("d1", later["d1"])

    run(test())
