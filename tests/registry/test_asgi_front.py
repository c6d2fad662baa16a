"""Requests that wait in the ASGI front when the server shuts down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.registry.api.asgi_front import AsgiFront
from headrace.registry.storage.revision_check import Revisions


class UnusedRevisionReader:
    async def read(self, subject_ids: Iterable[int]) -> Revisions:
        raise AssertionError("no response is cached in this test")

    async def close(self) -> None:
        pass


def test_queued_check_gets_503_at_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    is_running, may_finish = threading.Event(), threading.Event()

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        is_running.set()
        assert may_finish.wait(30)
        start_response("200 OK", [])
        return [b"{}"]

    front = AsgiFront(application, UnusedRevisionReader(), request_bytes_max=1000)
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

    async def send_request() -> int:
        messages: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await front(scope, receive, send)
        return int(messages[0]["status"])

    async def test() -> None:
        first = asyncio.create_task(send_request())
        await asyncio.to_thread(is_running.wait, 30)
        second = asyncio.create_task(send_request())  # of the same client, which may run one check at a time
        lifespan: asyncio.Queue[Any] = asyncio.Queue()

        async def discard(_: Any) -> None:
            pass

        end = asyncio.create_task(front({"type": "lifespan"}, lifespan.get, discard))
        await lifespan.put({"type": "lifespan.shutdown"})
        while not front._is_ending:
            await asyncio.sleep(0)
        may_finish.set()
        assert await first == 200
        assert await second == 503
        await end

    asyncio.run(test())
    assert not caplog.records
