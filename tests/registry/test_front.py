"""The front alone: what becomes of those who wait when the server ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.registry.api.front import Front
from headrace.registry.storage.looks import Look


class NoLooks:
    async def look(self, subject_ids: Iterable[int]) -> Look:
        raise AssertionError("nothing is kept here")

    async def close(self) -> None:
        pass


def test_a_check_that_waits_for_its_turn_at_the_end_is_told_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    is_in, may_go = threading.Event(), threading.Event()

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        is_in.set()
        assert may_go.wait(30)
        start_response("200 OK", [])
        return [b"{}"]

    front = Front(application, NoLooks(), request_bytes_max=1000)
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "http_version": "1.1",
        "raw_path": b"/compatibility/subjects/s/versions/latest",
        "path": "/compatibility/subjects/s/versions/latest",
        "query_string": b"",
        "headers": [(b"host", b"registry"), (b"content-length", b"2")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def asked() -> int:
        answer: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            answer.append(message)

        await front(scope, receive, send)
        return int(answer[0]["status"])

    async def test() -> None:
        first = asyncio.create_task(asked())
        await asyncio.to_thread(is_in.wait, 30)
        second = asyncio.create_task(asked())  # of the same client, which has one place
        orders: asyncio.Queue[Any] = asyncio.Queue()

        async def nothing(_: Any) -> None:
            pass

        end = asyncio.create_task(front({"type": "lifespan"}, orders.get, nothing))
        await orders.put({"type": "lifespan.shutdown"})
        while not front._is_ending:
            await asyncio.sleep(0)
        may_go.set()
        assert await first == 200
        assert await second == 503
        await end

    asyncio.run(test())
    assert not caplog.records
