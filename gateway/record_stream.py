"""The response of a stream of records: reads records while it writes results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.gateway import rest_v3
from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import JsonStream, MalformedJson, ObjectTooLarge
from headrace.gateway.request_body import body_of
from headrace.gateway.responses import defect, json_bytes
from headrace.gateway.sender import SendResult

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 100
"""Maximum number of records that are sent at once."""
BATCHES_MAX: Final = 10
"""Maximum number of batches of a stream that wait for their acknowledgement; then reading pauses."""
OBJECT_BYTES_MAX: Final = 2 * 2**20

STREAM_BYTES_MAX: Final = 8 * 2**20
"""Size of the records of a stream that wait for their acknowledgement, above which reading pauses."""
STREAM_IDLE_S: Final = 86_400.0
"""Longest pause of a client within a stream, as in the REST Proxy."""


@dataclass(slots=True)
class _Batch:
    """Consecutive records of a stream: prepared ones, and the errors of refused ones."""

    items: list[rest_v3.PreparedRecord | GatewayError] = field(default_factory=list)
    size: int = 0
    results: asyncio.Future[list[SendResult]] | None = None
    """The results of the prepared records, in their order."""


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
        sent: asyncio.Queue[_Batch | None] = asyncio.Queue(BATCHES_MAX)
        reading = asyncio.create_task(self._read(sent))
        try:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while (batch := await sent.get()) is not None:
                await send({"type": "http.response.body", "body": await self._lines(batch), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            self._release(self._bytes)

    async def _lines(self, batch: _Batch) -> bytes:
        """Waits for the results of a batch, and returns the lines of the response."""
        results = iter(() if batch.results is None else await batch.results)
        self._release(batch.size)
        lines = []
        for item in batch.items:
            if isinstance(item, GatewayError):
                lines.append(json_bytes(item.body))
            else:
                lines.append(json_bytes(rest_v3.result_of(self._cluster, self._topic, item, next(results))))
        return b"\r\n".join(lines) + b"\r\n"

    def _release(self, size: int) -> None:
        self._request.app.state.budget.release(self._caller.key, size)
        self._bytes -= size
        self._has_room.set()

    async def _read(self, sent: asyncio.Queue[_Batch | None]) -> None:
        """Reads records and sends them, until the body ends or has something else than records. Pauses while the client
        has sent too many bytes."""
        stream, batch, budget = JsonStream(OBJECT_BYTES_MAX), _Batch(), self._request.app.state.budget
        try:
            async with body_of(self._request, budget, STREAM_IDLE_S, has_records=True) as reader:
                async for chunk in reader.chunks():
                    for record, size in stream.feed(chunk):
                        await self._add(batch, record, size)
                        if len(batch.items) >= BATCH_MAX:
                            batch = await self._send(batch, sent)
                    batch = await self._send(batch, sent)
                    if pause_s := budget.rate.wait_s(self._caller.key):
                        await asyncio.sleep(pause_s)
                stream.end()
        except (MalformedJson, ObjectTooLarge) as error:
            batch.items.append(GatewayError(Kind.BAD_REQUEST, str(error)))
        except GatewayError as error:
            batch.items.append(error)
        except ClientDisconnect:
            pass  # the records that were read are sent
        except Exception:
            logger.exception("request_failed path=%s", self._request.url.path)
            batch.items.append(defect())
        await self._send(batch, sent)
        await sent.put(None)

    async def _add(self, batch: _Batch, record: Any, size: int) -> None:
        """Adds a record to a batch, encoded, or the error of a record that is refused."""
        state = self._request.app.state
        try:
            prepared = await rest_v3.prepare(self._topic, record, state.schemas, self._caller)
            state.budget.take(self._caller.key, size)
        except GatewayError as error:
            batch.items.append(error)
            return
        batch.items.append(prepared)
        batch.size += size
        self._bytes += size

    async def _send(self, batch: _Batch, sent: asyncio.Queue[_Batch | None]) -> _Batch:
        """Sends the records of a batch, and returns the next batch. Waits while too many are not acknowledged."""
        if not batch.items:
            return batch
        records = [item.record for item in batch.items if not isinstance(item, GatewayError)]
        if records:
            batch.results = await self._request.app.state.sender.start(self._topic, records)
        await sent.put(batch)
        while self._bytes > STREAM_BYTES_MAX:
            self._has_room.clear()
            await self._has_room.wait()
        return _Batch()
