"""Compatibility checks in separate processes: start, use, failure and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import pytest

from headrace.compat.resolution import PAIRS_BETWEEN_TIME_CHECKS, PAIRS_MAX, ComparisonBudget
from headrace.registry.api.app import create_app
from headrace.registry.api.asgi_front import AsgiFront
from headrace.registry.api.client_queues import ClientQueueFull
from headrace.registry.api.compute_pool import NICENESS, ComputePool
from headrace.registry.api.hooks import UNRESTRICTED
from headrace.registry.api.request_bodies import NO_BODY, SMALL_BYTES_MAX
from headrace.registry.api.services import services_of
from headrace.registry.api.wsgi_call import environ_of
from headrace.registry.storage.database import Database
from headrace.registry.storage.revision_check import Revisions
from support.logs import logged
from support.processes import is_running

NICENESS_MAX = 19  # the maximum on Linux
SCOPE = {
    "method": "GET",
    "http_version": "1.1",
    "scheme": "http",
    "path": "/process",
    "raw_path": b"/process",
    "query_string": b"",
    "headers": [],
}


def make_registry(url: str) -> Any:
    """The registry, with a route that returns its process id and niceness."""
    registry = create_app(Database(url))
    registry.add_url_rule("/process", view_func=lambda: f"{os.getpid()} {os.nice(0)}")
    return registry


def make_pool_application() -> Any:
    return application_with_body(b"make_pool_application")


def application_with_body(response: bytes) -> Any:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [response]

    return application


class UnusedRevisionReader:
    async def read(self, subject_ids: Iterable[int]) -> Revisions:
        raise AssertionError("nothing is kept here")

    async def close(self) -> None:
        pass


def run(test: Callable[[ComputePool], Coroutine[Any, Any, None]], url: str) -> None:
    async def with_compute_pool() -> None:
        compute_pool = ComputePool(partial(make_registry, url), 1)
        try:
            await test(compute_pool)
        finally:
            compute_pool.close()

    asyncio.run(asyncio.wait_for(with_compute_pool(), 120))


async def request_process(compute_pool: ComputePool) -> tuple[int, int]:
    """The id and niceness of the process that responds."""
    process, niceness = (await compute_pool.respond(environ_of(SCOPE, NO_BODY, UNRESTRICTED))).body.split()
    return int(process), int(niceness)


async def until_ready(compute_pool: ComputePool) -> None:
    while not compute_pool.is_ready():
        await asyncio.sleep(0.01)


def test_first_check_starts_the_processes_without_waiting(sqlite_database_url: str) -> None:
    async def test(compute_pool: ComputePool) -> None:
        assert not compute_pool.is_ready()
        await until_ready(compute_pool)
        process, niceness = await request_process(compute_pool)
        assert process != os.getpid()
        assert niceness == min(os.nice(0) + NICENESS, NICENESS_MAX)
        assert (await request_process(compute_pool))[0] == process

    run(test, sqlite_database_url)


@pytest.mark.servers
def test_large_check_waits_for_the_processes_and_small_one_does_not() -> None:
    async def respond(front: AsgiFront, size: int) -> bytes:
        scope = SCOPE | {"type": "http", "method": "POST", "raw_path": b"/compatibility/subjects/s/versions"}
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b" " * size, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await front(scope, receive, send)
        return bytes(sent[1]["body"])

    async def test() -> None:
        compute_pool = ComputePool(make_pool_application, 1)
        front = AsgiFront(
            application_with_body(b"in the worker"),
            UnusedRevisionReader(),
            request_bytes_max=1 << 20,
            compute_pool=compute_pool,
        )
        try:
            small = await respond(front, SMALL_BYTES_MAX)
            large = await respond(front, SMALL_BYTES_MAX + 1)
            assert (small, large) == (b"in the worker", b"make_pool_application")
        finally:
            compute_pool.close()

    asyncio.run(asyncio.wait_for(test(), 120))


UNION_A, UNION_B = (
    json.dumps([{"type": "fixed", "name": f"{name}{number}", "size": 4} for number in range(50)]) for name in "AB"
)
"""Every branch of one union has to be compared with every branch of the other."""


def test_long_comparison_of_a_registration_runs_in_the_processes(sqlite_database_url: str) -> None:
    async def respond(front: AsgiFront, schema: str) -> Any:
        path = "/subjects/s/versions"
        scope = SCOPE | {"type": "http", "method": "POST", "raw_path": path.encode(), "path": path}
        body = json.dumps({"schema": schema}).encode()
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await front(scope | {"headers": [(b"content-type", b"application/json")]}, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def test(compute_pool: ComputePool) -> None:
        database = Database(sqlite_database_url)
        application = create_app(database)
        front = AsgiFront(
            application, UnusedRevisionReader(), request_bytes_max=1 << 20, compute_pool=compute_pool, cache_bytes_max=0
        )
        assert (await respond(front, UNION_A))[0] == 200
        compatibility = services_of(application).compatibility
        compared: list[ComparisonBudget] = []
        compare = compatibility._compare

        def begin(repository: Any, settings: Any, candidate: Any, history: Any, budget: Any) -> Any:
            compared.append(budget)
            return compare(repository, settings, candidate, history, budget)

        compatibility._compare = begin  # type: ignore[method-assign]
        status, refused = await respond(front, UNION_B)
        # The worker starts the comparison and a process completes it.
        assert [PAIRS_MAX - budget.pairs_left for budget in compared] == [PAIRS_BETWEEN_TIME_CHECKS]
        expected = application.test_client().post("/subjects/s/versions", json={"schema": UNION_B})
        assert (status, refused) == (409, expected.json)
        database.close()

    run(test, sqlite_database_url)


@pytest.mark.servers
def test_dead_process_is_replaced(sqlite_database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(compute_pool: ComputePool) -> None:
        await until_ready(compute_pool)
        process, _ = await request_process(compute_pool)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            while True:
                await request_process(compute_pool)
        assert not compute_pool.is_ready()
        await until_ready(compute_pool)
        assert (await request_process(compute_pool))[0] != process

    run(test, sqlite_database_url)
    assert logged(caplog, "registry.api.compute_pool", level=logging.ERROR)


def test_close_ends_the_processes(sqlite_database_url: str) -> None:
    async def test(compute_pool: ComputePool) -> None:
        await until_ready(compute_pool)
        process, _ = await request_process(compute_pool)
        assert is_running(process)
        compute_pool.close()
        assert not is_running(process)

    run(test, sqlite_database_url)


def test_request_after_close_raises_client_queue_full(sqlite_database_url: str) -> None:
    async def test(compute_pool: ComputePool) -> None:
        compute_pool.close()
        with pytest.raises(ClientQueueFull):
            await request_process(compute_pool)

    run(test, sqlite_database_url)
