"""The response of a stream of records: reads records while it writes results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.gateway import rest_v3
from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import JsonStream, MalformedJson, ObjectTooLarge, parse_json
from headrace.gateway.request_body import body_of
from headrace.gateway.sender import SendResult

IN_FLIGHT_MAX: Final = 1_000
"""Most records of a stream that wait for their acknowledgement; then reading pauses."""
OBJECT_BYTES_MAX: Final = 2 * 2**20

STREAM_BYTES_MAX: Final = 8 * 2**20
"""Size of the records of a stream that wait for their acknowledgement; then reading pauses."""
STREAM_IDLE_S: Final = 86_400.0
"""Longest pause of a client within a stream, as in the REST Proxy."""

Pending = tuple[rest_v3.PreparedRecord, "asyncio.Future[list[SendResult]]", int] | GatewayError | None
"""A record that was sent, with its size; a record that was refused; or None for the end of the stream."""


class RecordStream(Response):
    """Sends the records of a body, and writes the result of each, in their order."""

    def __init__(self, request: Request) -> None:
        super().__init__(media_type="application/json")
        self._request = request
        self._caller = caller_of(request)
        self._cluster = request.path_params["cluster"]
        self._topic = request.path_params["topic"]
        self._bytes = 0
        self._has_room = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pending: asyncio.Queue[Pending] = asyncio.Queue(IN_FLIGHT_MAX)
        reading = asyncio.create_task(self._read(pending))
        try:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while (item := await pending.get()) is not None:
                lines = [await self._line(item)]
                while not pending.empty() and _is_done(pending._queue[0]):  # type: ignore[attr-defined]
                    lines.append(await self._line(pending.get_nowait()))
                await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            self._release(self._bytes)

    async def _line(self, item: Any) -> bytes:
        if isinstance(item, GatewayError):
            found = item.body
        else:
            prepared, future, size = item
            (result,) = await future
            self._release(size)
            found = rest_v3.result_of(self._cluster, self._topic, prepared, result)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode() + b"\r\n"

    def _release(self, size: int) -> None:
        self._request.app.state.budget.release(self._caller.key, size)
        self._bytes -= size
        self._has_room.set()

    async def _read(self, pending: asyncio.Queue[Pending]) -> None:
        """Reads records and sends them, until the body ends or has something else than records."""
        state = self._request.app.state
        stream = JsonStream(OBJECT_BYTES_MAX)
        try:
            async with body_of(self._request, state.budget, STREAM_IDLE_S) as reader:
                async for chunk in reader.chunks():
                    for text in stream.feed(chunk):
                        await self._wait_for_room(len(text))
                        await pending.put(await self._send(text))
                stream.end()
        except (MalformedJson, ObjectTooLarge) as error:
            await pending.put(GatewayError(Kind.BAD_REQUEST, str(error)))
        except GatewayError as error:
            await pending.put(error)
        except ClientDisconnect:
            pass  # the records that were read are sent
        await pending.put(None)

    async def _wait_for_room(self, size: int) -> None:
        """Waits until the records of the stream, with another one of this size, do not exceed `STREAM_BYTES_MAX`."""
        while self._bytes and self._bytes + size > STREAM_BYTES_MAX:
            self._has_room.clear()
            await self._has_room.wait()

    async def _send(self, text: bytes) -> Pending:
        state = self._request.app.state
        try:
            prepared = await rest_v3.prepare(self._topic, parse_json(text), state.schemas, self._caller)
            state.budget.take(self._caller.key, len(text))
        except GatewayError as error:
            return error
        self._bytes += len(text)
        return prepared, state.sender.send(self._topic, (prepared.record,)), len(text)


def _is_done(item: Pending) -> bool:
    return item is not None and (isinstance(item, GatewayError) or item[1].done())
