"""Sockets: connections, frames, and answers in the order of their requests.

Each connection handles one request at a time. Only produce requests that wait for the disk may overtake the waiting:
up to IN_FLIGHT_MAX of them are in the log at once, so that a producer's pipelined requests share one fdatasync; their
answers still go out in order. While a connection is busy, or its client does not read, nothing more is read from it.

Bytes that make no sense close their connection, with a line in the log; nobody else notices.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from broker.config import BrokerConfig
from broker.errors import AddressUnusable, DiskFailed, ProtocolError
from broker.handlers.context import RequestContext
from broker.handlers.dispatch import HANDLERS, Pieces, refuse_version
from broker.node import BrokerNode
from broker.protocol.api_versions import BY_KEY, PRODUCE
from broker.protocol.framing import RequestHeader, frame_length, read_header, response_start

logger = logging.getLogger(__name__)

BUFFER_BYTES = 256 * 1024
"""Of a connection to begin with; it grows to the largest frame and shrinks again once that is handled."""
IN_FLIGHT_MAX = 16
"""Produce requests of one connection that wait for the disk at once; clients send at most five."""
CONNECTIONS_MAX = 4096
"""More are closed at once: each costs a descriptor and a buffer."""
WRITE_BUFFER_BYTES = 8 * 1024 * 1024
"""Of answers that a client has not read yet; beyond it no further request of that client is handled."""


@dataclass(slots=True)
class _Pending:
    """An answer whose turn has not come: `pieces` once it is known."""

    header: RequestHeader
    task: asyncio.Future[Any] | None
    pieces: Pieces | None = None


class Connection(asyncio.BufferedProtocol):
    """One client. The bytes in `_buffer[_start:_end]` have been received and not handled."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._peer = ("", 0)
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0
        self._pending: deque[_Pending] = deque()
        self._writable = True
        self._reading = True

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        if len(self._server.connections) >= CONNECTIONS_MAX:
            logger.warning("connection refused peer=%s:%s connections=%d", *self._peer, CONNECTIONS_MAX)
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        for pending in self._pending:
            if pending.task is not None:
                pending.task.cancel()
        self._pending.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._buffer = bytearray(BUFFER_BYTES)
        elif self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def _make_room(self) -> None:
        """Moves what is unhandled to the front, into a larger buffer if the front was full already.

        The buffer grows with the bytes that came, not with the length a client claims.
        """
        unhandled = self._buffer[self._start : self._end]
        size = len(self._buffer) * 2 if len(unhandled) > len(self._buffer) // 2 else len(self._buffer)
        self._buffer = bytearray(size)
        self._buffer[: len(unhandled)] = unhandled
        self._start, self._end = 0, len(unhandled)

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._handle_frames()

    # Requests

    def _handle_frames(self) -> None:
        """Handles every whole frame whose turn it is; reads on only if there was nothing to hold it back."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            while not transport.is_closing() and self._end - self._start >= 4:
                view = memoryview(self._buffer)
                end = self._start + 4 + frame_length(view[self._start : self._start + 4])
                if end > self._end:
                    break
                frame = view[self._start + 4 : end]
                header = read_header(frame)
                if not self._may_handle(header):
                    self._read_more(False)
                    return
                self._start = end
                self._handle(header, frame)
        except ProtocolError as error:
            self._fail("connection closed peer=%s:%s reason=%s", error)
            return
        except Exception:
            logger.exception("request failed peer=%s:%s", *self._peer)
            transport.abort()
            return
        self._read_more(self._writable)

    def _may_handle(self, header: RequestHeader) -> bool:
        if not self._writable:
            return False
        if not self._pending:
            return True
        only_produce = header.api_key == PRODUCE and all(each.header.api_key == PRODUCE for each in self._pending)
        return only_produce and len(self._pending) < IN_FLIGHT_MAX

    def _read_more(self, wanted: bool) -> None:
        if self._transport is not None and wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, header: RequestHeader, frame: memoryview) -> None:
        api = BY_KEY.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            self._refuse_version(header, frame)
            return
        handler = HANDLERS[header.api_key]
        request = handler.decode(frame, header.body_at, header.api_version)
        context = RequestContext(self._server.node, header.api_version, header.client_id, str(self._peer[0]))
        result = handler.handle(context, request)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(_awaited(result))
            self._pending.append(_Pending(header, task))
            task.add_done_callback(self._answered)
        elif result is not None:
            self._send(header, handler.encode(result, header.api_version))

    def _refuse_version(self, header: RequestHeader, frame: memoryview) -> None:
        pieces = refuse_version(frame, header)
        if pieces is None:
            self._fail(
                "connection closed peer=%s:%s reason=%s",
                f"version {header.api_version} of API key {header.api_key} is not served",
            )
        elif pieces:
            self._send(header, pieces)

    def _fail(self, message: str, reason: object) -> None:
        logger.warning(message, *self._peer, reason)
        if self._transport is not None:
            self._transport.abort()

    # Answers

    def _answered(self, task: asyncio.Future[Any]) -> None:
        """Sends what is due of the answers that had to wait, and goes on with the requests behind them."""
        if task.cancelled() or self._transport is None:
            return
        while self._pending:
            first = self._pending[0]
            if first.task is not None:
                if not first.task.done():
                    return
                error = first.task.exception()
                if error is not None:
                    logger.error("request failed peer=%s:%s", *self._peer, exc_info=error)
                    self._transport.abort()
                    return
                result = first.task.result()
                handler = HANDLERS[first.header.api_key]
                first.pieces = None if result is None else handler.encode(result, first.header.api_version)
            self._pending.popleft()
            if first.pieces is not None:
                self._write(first.header, first.pieces)
        self._handle_frames()

    def _send(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._pending:
            self._pending.append(_Pending(header, None, pieces))
        else:
            self._write(header, pieces)

    def _write(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        start = response_start(header, sum(len(piece) for piece in pieces))
        if len(pieces) == 1:
            self._transport.write(start + pieces[0])
            return
        self._transport.write(start)
        for piece in pieces:
            self._transport.write(piece)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


class BrokerServer:
    """A broker that listens. `run` serves until `stop` is called."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.connections: set[Connection] = set()
        self._stopped = asyncio.Event()
        self._disk_failure: OSError | None = None
        self.node = BrokerNode(config, on_disk_failure=self._on_disk_failure)
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listens, and returns the address that clients are told.

        Raises:
            AddressUnusable: the address is taken, or not this machine's.
        """
        loop = asyncio.get_running_loop()
        try:
            # The socket is listening before its port is known to anybody, and the logs are open before that.
            self._server = await loop.create_server(
                lambda: Connection(self), self.config.host, self.config.port, backlog=1024
            )
        except (OSError, OverflowError) as error:
            await self.node.close()
            # asyncio wraps the system's words in its own; a number below 1 is not the system's but a resolver's.
            number = getattr(error, "errno", None) or 0
            reason = os.strerror(number) if number > 0 else str(error)
            raise AddressUnusable(f"{self.config.host}:{self.config.port}", reason) from error
        port = self._server.sockets[0].getsockname()[1]
        self.node.address = (self.config.host, port)
        self.node.start()
        return self.node.address

    async def wait(self) -> None:
        """Serves until `stop`, then closes everything.

        Raises:
            DiskFailed: the disk failed while the broker ran or when it closed.
        """
        await self._stopped.wait()
        assert self._server is not None
        self._server.close()
        for connection in tuple(self.connections):
            connection.close()
        # Connections notice that they are closed in the loop's next rounds; none may append after the logs are closed.
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        try:
            await self.node.close()
        except OSError as error:
            self._disk_failure = self._disk_failure or error
        if self._disk_failure is not None:
            raise DiskFailed(self._disk_failure)

    def stop(self) -> None:
        self._stopped.set()

    def _on_disk_failure(self, error: OSError) -> None:
        self._disk_failure = error
        self.stop()
