"""Connections: requests one after the other, and answers in their order.

Each connection handles one request at a time. Only produce requests that wait for the disk may overtake the waiting:
up to IN_FLIGHT_MAX of them are in the log at once, so that a producer's pipelined requests share one fdatasync; their
answers still go out in order. While a connection is busy, or its client does not read, nothing more is read from it.

Bytes that make no sense close their connection, with a line in the log; nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from headrace.broker import descriptors
from headrace.broker.access.login import Login, Users
from headrace.broker.counts import RequestCounts
from headrace.broker.errors import ProtocolError, UnansweredRefusal
from headrace.broker.frame_receiver import FrameReceiver, ReceivedBytes
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.dispatch import HANDLERS, ReadInTurns, refuse_version
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.api_versions import (
    API_VERSIONS,
    BY_KEY,
    OF_MEMBERS,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.broker.protocol.framing import Pieces, RequestHeader, read_header, response_start
from headrace.broker.protocol.large_requests import AT_ONCE_BYTES
from headrace.broker.rates import Rates
from headrace.broker.response_writer import ResponseWriter
from headrace.kafka_wire.errors import MalformedMessage

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 16
"""Produce requests of one connection that wait for the disk at once; clients send at most five."""
FRAMES_AT_ONCE = 64
"""Of one connection, before the others have their turn."""
IDLE_S = 600
"""Without a request or an answer; then the connection is closed, as Kafka does (`connections.max.idle.ms`)."""
UNREAD_BYTES = 1024 * 1024
"""Of answers that a client has not read yet; beyond it no further request of that client is handled."""
UNREAD_BYTES_MAX = 1024 * 1024 * 1024
"""Of such answers, in all; beyond it the client that has not read for the longest time is closed."""
BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""What a client may ask before it has said who it is."""
LOGIN_S = 30
"""For a client to log in."""


class Connections:
    """All connections of a broker, and what they take together.

    Args:
        count_max: so many may be open at once.
        of_address_max: so many of one address; 0: any number.
        rates: what each user, or each address where there are none, may send and be sent; None: any amount.
        counts: takes note of requests and answers, where somebody asks for that.
    """

    def __init__(
        self,
        count_max: int = descriptors.CONNECTIONS_MAX,
        *,
        users: Users | None = None,
        of_address_max: int = 0,
        rates: Rates | None = None,
        counts: RequestCounts | None = None,
    ) -> None:
        self.count_max = count_max
        self.users, self.rates, self.counts = users, rates, counts
        self._of_address_max = of_address_max
        self._of_address: Counter[str] = Counter()
        self.open: set[Connection] = set()
        self.received = ReceivedBytes()
        # Who has much to read, and how much when it was noted; who has not read for the longest time is first.
        self.unread: dict[Connection, int] = {}
        self._unread_bytes = 0

    def add(self, connection: Connection, host: str) -> str:
        """Takes note of a new connection; returns why there may not be one more, "" where there may."""
        if len(self.open) >= self.count_max:
            return f"there are {self.count_max} connections"
        if self._of_address_max and self._of_address[host] >= self._of_address_max:
            return f"there are {self._of_address_max} connections of this address"
        self._of_address[host] += 1
        self.open.add(connection)
        return ""

    def remove(self, connection: Connection, host: str) -> None:
        if connection in self.open:
            self.open.discard(connection)
            self._of_address[host] -= 1
            if not self._of_address[host]:
                del self._of_address[host]
        self.forget_unread(connection)

    def close_changed(self, users: Collection[str]) -> None:
        """Closes connections of users who are gone or have another password."""
        for connection in tuple(self.open) if users else ():
            if connection.login.is_in and connection.login.user in users:
                connection.drop("its user is gone or has another password", logging.INFO)

    def close_idle(self, now_s: float) -> None:
        """Closes connections that have been silent for IDLE_S of the loop's clock and wait for nothing."""
        for connection in tuple(self.open):
            if now_s - connection.busy_at_s > IDLE_S and not connection.has_pending:
                connection.drop(f"nothing happened for {IDLE_S} s", logging.DEBUG)

    def note_unread(self, connection: Connection) -> None:
        """Takes note of a client that has much to read; too much of that in all closes the oldest."""
        self._count_unread(connection)
        if self._unread_bytes > UNREAD_BYTES_MAX:
            # The others may have read since they were noted.
            for each in tuple(self.unread):
                self._count_unread(each)
                if not self.unread[each]:
                    self.forget_unread(each)
        while (unread_bytes := self._unread_bytes) > UNREAD_BYTES_MAX:
            oldest = next(iter(self.unread))
            self.forget_unread(oldest)
            oldest.drop(f"clients have {unread_bytes} bytes of answers to read")

    def _count_unread(self, connection: Connection) -> None:
        unread_bytes = connection.unread_bytes
        self._unread_bytes += unread_bytes - self.unread.get(connection, 0)
        self.unread[connection] = unread_bytes

    def forget_unread(self, connection: Connection) -> None:
        """Takes note that a client has read what it had to, or is gone."""
        self._unread_bytes -= self.unread.pop(connection, 0)


@dataclass(slots=True)
class _Pending:
    """An answer whose turn has not come: `pieces` once it is known."""

    header: RequestHeader
    task: asyncio.Future[Any] | None
    pieces: Pieces | None = None
    asked_at_s: float = 0.0


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, node: BrokerNode, all_connections: Connections) -> None:
        self._node, self._all = node, all_connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ("", 0)
        self._receiver = FrameReceiver(all_connections.received)
        self._pending: deque[_Pending] = deque()
        self._writer: ResponseWriter
        self._reading = True
        self._is_held_back = False  # for it has sent or been sent more than its rate
        self.login = Login(all_connections.users)
        self.busy_at_s = 0.0

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        reason = self._all.add(self, self._host)
        if reason:
            logger.warning("connection refused peer=%s:%s reason=%s", *self._peer, reason)
            transport.abort()
            return
        self.busy_at_s = self._loop.time()
        self._writer = ResponseWriter(transport, self._go_on_writing)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.login.is_in:
            self._loop.call_later(LOGIN_S, self._end_without_login)

    def _end_without_login(self) -> None:
        if self._transport is not None and not self.login.is_in:
            self.drop(f"nobody logged in within {LOGIN_S} s")

    @property
    def _host(self) -> str:
        return str(self._peer[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._all.remove(self, self._host)
        self._receiver.close()
        for pending in self._pending:
            if pending.task is not None:
                pending.task.cancel()
        self._pending.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.received(nbytes)
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def resume_writing(self) -> None:
        # Not at once: a transport of asyncio that is aborted within this call ends twice, which it complains of.
        self._loop.call_soon(self._go_on_writing)

    def _go_on_writing(self) -> None:
        """The client has read what the transport had, or what it reads next has come from the disk."""
        if self._transport is None:
            return
        self.busy_at_s = self._loop.time()
        try:
            self._writer.go_on()
        except OSError as error:
            self._fail(error)
            return
        self._all.forget_unread(self)
        if self._is_read:
            self._handle_frames()
        else:
            self._all.note_unread(self)

    @property
    def _is_read(self) -> bool:
        """Does the client read what it asked for?"""
        return self._writer.unsent_bytes <= UNREAD_BYTES

    # Requests

    def _handle_frames(self) -> None:
        """Handles every whole frame whose turn it is; reads on only if there was nothing to hold it back."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            with self._writer.together():
                has_turn = self._handle_received(transport)
        except (ProtocolError, MalformedMessage) as error:
            self.drop(error)
            return
        except UnansweredRefusal as refused:
            logger.info("connection closed peer=%s:%s reason=%s", *self._peer, refused)
            self._end(transport)
            return
        except OSError as error:
            self._fail(error)
            return
        except Exception:
            logger.exception("request failed peer=%s:%s", *self._peer)
            transport.abort()
            return
        self._receiver.release()
        is_read = self._is_read
        if not is_read:
            self._all.note_unread(self)
        self._read_more(has_turn and is_read)

    def _handle_received(self, transport: asyncio.Transport) -> bool:
        """Handles whole frames; returns whether it stopped because no other had come, and not to let it wait."""
        handled = 0
        while not transport.is_closing():
            frame = self._receiver.frame(is_in=self.login.is_in)
            if frame is None:
                break
            header = read_header(frame)
            if not self._may_handle(header):
                return False
            if handled == FRAMES_AT_ONCE:
                self._loop.call_soon(self._handle_frames)
                return False
            handled += 1
            self._receiver.handled(frame)
            self.busy_at_s = self._loop.time()
            self._handle(header, frame)
        return True

    def _may_handle(self, header: RequestHeader) -> bool:
        # One that reads faster than it may waits, and stays a member of its group.
        if not self._is_read or (self._is_held_back and header.api_key not in OF_MEMBERS):
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
        if not self.login.is_in and header.api_key not in BEFORE_LOGIN:
            raise ProtocolError(f"{api.name} before a login")
        handler, asked_at_s = HANDLERS[header.api_key], self.busy_at_s
        if self._all.rates is not None:
            self._charge(len(frame))
        if len(frame) > AT_ONCE_BYTES and handler.read_in_turns is not None:
            # A copy, since others are received where the frame is.
            self._answer_later(header, self._read_and_answered(header, bytes(frame), handler.read_in_turns), asked_at_s)
            return
        request = handler.decode(frame, header.body_at, header.api_version)
        try:
            result = self._result(header, request)
        except UnansweredRefusal as refused:
            self._count(header, refused.answer, asked_at_s)
            raise
        if hasattr(result, "__await__"):
            self._answer_later(header, _awaited(result), asked_at_s)
            return
        self._count(header, result, asked_at_s)
        if result is not None:
            self._send(header, handler.encode(result, header.api_version))

    def _result(self, header: RequestHeader, request: Any) -> Any | Awaitable[Any]:
        context = RequestContext(self._node, header.api_version, header.client_id, self._host, self.login)
        if self._all.counts is not None:
            self._all.counts.asked(header.api_key, request)
        return HANDLERS[header.api_key].handle(context, request)

    async def _read_and_answered(self, header: RequestHeader, frame: bytes, read: ReadInTurns) -> Any:
        result = self._result(header, await read(frame, header.body_at, header.api_version))
        return await result if hasattr(result, "__await__") else result

    def _answer_later(self, header: RequestHeader, result: Coroutine[Any, Any, Any], asked_at_s: float) -> None:
        task = asyncio.ensure_future(result)
        self._pending.append(_Pending(header, task, asked_at_s=asked_at_s))
        task.add_done_callback(self._answered)

    def _count(self, header: RequestHeader, result: Any, asked_at_s: float) -> None:
        if self._all.counts is not None:
            self._all.counts.answered(header.api_key, result, self._loop.time() - asked_at_s)

    def _refuse_version(self, header: RequestHeader, frame: memoryview) -> None:
        pieces = refuse_version(frame, header)
        if pieces is None:
            self.drop(f"version {header.api_version} of API key {header.api_key} is not served")
        elif pieces:
            self._send(header, pieces)

    def drop(self, reason: object, level: int = logging.WARNING) -> None:
        """Closes the connection without another word to the client."""
        logger.log(level, "connection closed peer=%s:%s reason=%s", *self._peer, reason)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: OSError) -> None:
        """Closes the connection since a file cannot be read or written."""
        logger.error("request failed peer=%s:%s error=%s", *self._peer, error)
        if self._transport is not None:
            self._transport.abort()

    # Answers

    def _answered(self, task: asyncio.Future[Any]) -> None:
        """Sends what is due of the answers that had to wait, and goes on with the requests behind them."""
        if task.cancelled() or self._transport is None:
            return
        try:
            with self._writer.together():
                self._send_due()
        except OSError as error:
            self._fail(error)
            return
        except Exception:
            logger.exception("request failed peer=%s:%s", *self._peer)
            if self._transport is not None:
                self._transport.abort()
            return
        self._handle_frames()

    def _send_due(self) -> None:
        while self._pending and self._transport is not None:
            first = self._pending[0]
            if first.task is not None:
                if not first.task.done():
                    return
                error = first.task.exception()
                if isinstance(error, (ProtocolError, MalformedMessage)):
                    self.drop(error)
                    return
                if error is not None:
                    trace = None if isinstance(error, OSError) else error
                    logger.error("request failed peer=%s:%s error=%s", *self._peer, error, exc_info=trace)
                    self._transport.abort()
                    return
                result = first.task.result()
                self._count(first.header, result, first.asked_at_s)
                handler = HANDLERS[first.header.api_key]
                first.pieces = None if result is None else handler.encode(result, first.header.api_version)
            self._pending.popleft()
            if first.pieces is not None:
                self._write(first.header, first.pieces)

    def _send(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._pending:
            self._pending.append(_Pending(header, None, pieces))
        else:
            self._write(header, pieces)

    def _write(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.busy_at_s = self._loop.time()
        size = sum(map(len, pieces))
        if self._all.rates is not None:
            self._charge(size)
        self._writer.write([response_start(header, size), *pieces])
        if self.login.has_failed:
            self._end(self._transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Closes the connection behind what the client still has to read."""
        self._writer.go_on()
        transport.close()

    def _charge(self, byte_count: int) -> None:
        """Counts what the client sent or is sent; beyond its rate the next request waits."""
        assert self._all.rates is not None
        wait_s = self._all.rates.take(self.login.user or self._host, byte_count, self._loop.time())
        if wait_s > 0 and not self._is_held_back:
            self._is_held_back = True
            self._loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._is_held_back = False
        self._handle_frames()

    @property
    def unread_bytes(self) -> int:
        """What is in memory for the client to read."""
        return self._writer.memory_bytes if self._transport is not None else 0

    @property
    def has_pending(self) -> bool:
        """Does it wait for an answer of ours?"""
        return bool(self._pending)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
