"""Client connections: each handles its requests one at a time and responds in request order.

Produce requests that wait for the disk are an exception. Up to PRODUCE_IN_FLIGHT_MAX of them are in the log at once, so
that a producer's pipelined requests share one fdatasync; their responses still go out in order. While a received
request waits for earlier ones, or a client does not read its responses, nothing more is read from the connection.

Malformed bytes close their connection with a log line; other connections are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from headrace.broker import file_descriptors
from headrace.broker.access.login import Login, Users
from headrace.broker.errors import ProtocolError, RefusalWithoutResponse
from headrace.broker.frame_receiver import FrameReceiver, ReceiveBufferPool
from headrace.broker.handlers.context import RequestContext, ResultWithFrame
from headrace.broker.handlers.dispatch import HANDLERS, YieldingDecode, unsupported_version_pieces
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.api_versions import (
    API_VERSIONS,
    BY_KEY,
    GROUP_MEMBER_APIS,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.broker.protocol.framing import Pieces, RequestHeader, read_header, response_header
from headrace.broker.protocol.large_requests import SYNC_DECODE_BYTES_MAX
from headrace.broker.rate_limiter import ByteRateLimiter
from headrace.broker.request_counts import RequestCounts
from headrace.broker.response_writer import ResponseWriter
from headrace.kafka_wire.errors import MalformedMessage

logger = logging.getLogger(__name__)

PRODUCE_IN_FLIGHT_MAX = 16
"""Maximum number of Produce requests of one connection that wait for the disk at once; idempotent producers send at
most five."""
FRAMES_BEFORE_YIELD = 64
"""Frames of one connection handled before other connections are served."""
IDLE_TIMEOUT_S = 600
"""A connection without requests or responses for this long is closed, unless a request is in progress: Kafka's
`connections.max.idle.ms`."""
UNREAD_BYTES_PER_CLIENT_MAX = 1024 * 1024
"""The next request of a client is not handled while more response bytes than this wait for the client to read them."""
UNREAD_BYTES_TOTAL_MAX = 1024 * 1024 * 1024
"""Limit of the unread response bytes in memory of all slow clients, which have more than UNREAD_BYTES_PER_CLIENT_MAX
unread. Above it, the connection that has not read for the longest time is closed."""
APIS_BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""APIs that a client may call before it has logged in; a request of any other one closes the connection."""
LOGIN_TIMEOUT_S = 30
"""A connection without a completed login is closed after this time."""


class ClientConnections:
    """All open connections of a broker, and the limits that they share.

    Args:
        count_max: maximum number of open connections.
        per_address_max: maximum number of connections of one client address; 0 means no limit.
        rates: limits the bytes per second of each user, or of each address where users do not log in; None means no
            limit.
        counts: counters for the metrics page; None without such a page.
    """

    def __init__(
        self,
        count_max: int = file_descriptors.CONNECTIONS_MAX,
        *,
        users: Users | None = None,
        per_address_max: int = 0,
        rates: ByteRateLimiter | None = None,
        counts: RequestCounts | None = None,
    ) -> None:
        self.count_max = count_max
        self.users, self.rates, self.counts = users, rates, counts
        self._per_address_max = per_address_max
        self._count_by_address: Counter[str] = Counter()
        self.open: set[ClientConnection] = set()
        self.buffer_pool = ReceiveBufferPool()
        # Unread response bytes of each slow client at its last measurement; the client that read longest ago comes
        # first.
        self.slow_readers: dict[ClientConnection, int] = {}
        self._unread_bytes = 0

    def add(self, connection: ClientConnection, host: str) -> str:
        """Registers a new connection of the client address `host`. Returns "", or the reason why a limit forbids the
        connection; it is not registered then."""
        if len(self.open) >= self.count_max:
            return f"the broker's limit of {self.count_max} connections is reached; close unused ones"
        if self._per_address_max and self._count_by_address[host] >= self._per_address_max:
            limit = self._per_address_max
            return f"{limit} connections from {host} are open; raise broker.connections_per_address_max for more"
        self._count_by_address[host] += 1
        self.open.add(connection)
        return ""

    def remove(self, connection: ClientConnection, host: str) -> None:
        if connection in self.open:
            self.open.discard(connection)
            self._count_by_address[host] -= 1
            if not self._count_by_address[host]:
                del self._count_by_address[host]
        self.untrack_unread(connection)

    def close_users(self, users: Collection[str]) -> None:
        """Closes the connections of users that were deleted or have a new password."""
        for connection in tuple(self.open) if users else ():
            if connection.login.is_authenticated and connection.login.user in users:
                connection.abort("its user was deleted or has a new password", logging.INFO)

    def close_idle(self, now_s: float) -> None:
        """Closes connections that had no request or response for IDLE_TIMEOUT_S and have no request in progress.

        Args:
            now_s: time of the event loop's clock.
        """
        for connection in tuple(self.open):
            if now_s - connection.active_at_s > IDLE_TIMEOUT_S and not connection.has_pending:
                connection.abort(f"idle for {IDLE_TIMEOUT_S} s", logging.DEBUG)

    def track_unread(self, connection: ClientConnection) -> None:
        """Registers a client that has many unread response bytes. While the registered clients together exceed
        UNREAD_BYTES_TOTAL_MAX, closes the connection of the client that has read least recently."""
        self._update_unread(connection)
        if self._unread_bytes > UNREAD_BYTES_TOTAL_MAX:
            # Clients may have read since they were last measured.
            for each in tuple(self.slow_readers):
                self._update_unread(each)
                if not self.slow_readers[each]:
                    self.untrack_unread(each)
        while (unread_bytes := self._unread_bytes) > UNREAD_BYTES_TOTAL_MAX:
            oldest = next(iter(self.slow_readers))
            self.untrack_unread(oldest)
            oldest.abort(
                f"the client has read slowly for the longest time, and all clients together have {unread_bytes} unread "
                f"bytes of responses; the limit is {UNREAD_BYTES_TOTAL_MAX}"
            )

    def _update_unread(self, connection: ClientConnection) -> None:
        unread_bytes = connection.unread_bytes
        self._unread_bytes += unread_bytes - self.slow_readers.get(connection, 0)
        self.slow_readers[connection] = unread_bytes

    def untrack_unread(self, connection: ClientConnection) -> None:
        """Unregisters a client that had many unread response bytes, because it has read some of them or its connection
        is closed."""
        self._unread_bytes -= self.slow_readers.pop(connection, 0)


@dataclass(slots=True)
class _PendingResponse:
    """A response that is not sent yet: it is being computed, or responses to earlier requests of the connection must be
    sent first. `task` computes it; None if the response was computed at once. `pieces` are its encoded bytes; None
    until the task's result is encoded, and if the client expects no response."""

    header: RequestHeader
    task: asyncio.Future[Any] | None
    pieces: Pieces | None = None
    received_at_s: float = 0.0


class ClientConnection(asyncio.BufferedProtocol):
    """The connection of one client: receives frames, calls their handlers and sends the responses."""

    def __init__(self, node: BrokerNode, connections: ClientConnections) -> None:
        self._node, self._connections = node, connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ("", 0)
        self._receiver = FrameReceiver(connections.buffer_pool)
        self._pending: deque[_PendingResponse] = deque()
        self._writer: ResponseWriter
        self._reading = True
        self._is_throttled = False  # the client has exceeded its byte rate
        self._frame_user: asyncio.Future[Any] | None = None  # a request in progress that still needs its frame
        self._closes_after_responses = False
        self.login = Login(connections.users)
        self.active_at_s = 0.0

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("", 0))[:2]
        reason = self._connections.add(self, self._host)
        if reason:
            logger.warning("connection refused peer=%s:%s reason=%s", *self._peer, reason)
            transport.abort()
            return
        self.active_at_s = self._loop.time()
        self._writer = ResponseWriter(transport, self._continue_writing)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.login.is_authenticated:
            self._loop.call_later(LOGIN_TIMEOUT_S, self._close_without_login)

    def _close_without_login(self) -> None:
        if self._transport is not None and not self.login.is_authenticated:
            self.abort(f"no login within {LOGIN_TIMEOUT_S} s; configure SASL in the client")

    @property
    def _host(self) -> str:
        return str(self._peer[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.remove(self, self._host)
        if self._frame_user is None:
            self._receiver.close()
        else:
            self._frame_user.add_done_callback(lambda _: self._receiver.close())
        for pending in self._pending:
            if pending.task is not None and pending.task is not self._frame_user:
                pending.task.cancel()
        self._pending.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.add_received(nbytes)
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def resume_writing(self) -> None:
        # Scheduled, not called: asyncio reports an error when a transport is aborted within this callback.
        self._loop.call_soon(self._continue_writing)

    def _continue_writing(self) -> None:
        """Continues to send responses after the client has read some, after data of a response has been read from disk,
        or after other connections were served."""
        if self._transport is None:
            return
        self.active_at_s = self._loop.time()
        try:
            self._writer.flush()
        except OSError as error:
            self._abort_on_io_error(error)
            return
        self._connections.untrack_unread(self)
        if self._closes_after_responses:
            self._close_when_sent(self._transport)
        elif self._is_client_reading:
            self._handle_frames()
        else:
            self._connections.track_unread(self)

    @property
    def _is_client_reading(self) -> bool:
        """True if the client reads its responses fast enough: at most UNREAD_BYTES_PER_CLIENT_MAX bytes wait for it.
        Only then is its next request handled."""
        return self._writer.unsent_bytes <= UNREAD_BYTES_PER_CLIENT_MAX

    # Requests

    def _handle_frames(self) -> None:
        """Handles the completely received requests until one must wait, then resumes or pauses reading from the socket.
        A request waits for responses to earlier requests, for a client that reads too slowly or exceeds its rate limit,
        or for other connections (FRAMES_BEFORE_YIELD)."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._closes_after_responses:
            return
        try:
            with self._writer.gathering():
                may_read_more = self._handle_complete_frames(transport)
        except (ProtocolError, MalformedMessage) as error:
            self.abort(error)
            return
        except RefusalWithoutResponse as refusal:
            self._close_after_refusal(transport, refusal)
            return
        except OSError as error:
            self._abort_on_io_error(error)
            return
        except Exception:
            logger.exception("request failed, connection closed peer=%s:%s", *self._peer)
            transport.abort()
            return
        if self._frame_user is None:
            self._receiver.shrink()
        is_client_reading = self._is_client_reading
        if not is_client_reading:
            self._connections.track_unread(self)
        self._set_reading(may_read_more and is_client_reading)

    def _handle_complete_frames(self, transport: asyncio.Transport) -> bool:
        """Handles the completely received requests one after another. Stops at a request that must wait for earlier
        responses, for a client that reads too slowly or exceeds its rate limit, or for other connections.

        Returns:
            True if all were handled and more bytes may be read from the socket; False if a received request must wait.
        """
        handled = 0
        while not transport.is_closing():
            if self._frame_user is not None or self._closes_after_responses:
                return False
            frame = self._receiver.next_frame(is_authenticated=self.login.is_authenticated)
            if frame is None:
                break
            header = read_header(frame)
            if not self._can_handle(header):
                return False
            if handled == FRAMES_BEFORE_YIELD:
                self._loop.call_soon(self._handle_frames)
                return False
            handled += 1
            self._receiver.discard(frame)
            self.active_at_s = self._loop.time()
            self._handle(header, frame)
        return True

    def _can_handle(self, header: RequestHeader) -> bool:
        # A throttled client's requests wait, except for requests of group members: it would lose its membership
        # otherwise.
        if not self._is_client_reading or (self._is_throttled and header.api_key not in GROUP_MEMBER_APIS):
            return False
        if not self._pending:
            return True
        only_produce = header.api_key == PRODUCE and all(each.header.api_key == PRODUCE for each in self._pending)
        return only_produce and len(self._pending) < PRODUCE_IN_FLIGHT_MAX

    def _set_reading(self, is_enabled: bool) -> None:
        if self._transport is not None and is_enabled != self._reading and not self._transport.is_closing():
            self._reading = is_enabled
            if is_enabled:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, header: RequestHeader, frame: memoryview) -> None:
        api = BY_KEY.get(header.api_key)
        if not self.login.is_authenticated and header.api_key not in APIS_BEFORE_LOGIN:
            name = f"request with API key {header.api_key}" if api is None else f"{api.name} request"
            raise ProtocolError(f"{name} before a login; configure SASL in the client")
        if api is None or not api.serves(header.api_version):
            self._respond_unsupported_version(header, frame)
            return
        handler, received_at_s = HANDLERS[header.api_key], self.active_at_s
        if self._connections.rates is not None:
            self._count_bytes(len(frame))
        if len(frame) > SYNC_DECODE_BYTES_MAX and handler.decode_yielding is not None:
            # Copied, because the receive buffer is reused for the next frames.
            self._respond_later(
                header, self._decode_and_handle(header, bytes(frame), handler.decode_yielding), received_at_s
            )
            return
        request = handler.decode(frame, header.body_at, header.api_version)
        try:
            result = self._call_handler(header, request)
        except RefusalWithoutResponse as refusal:
            self._count_response(header, refusal.response, received_at_s)
            raise
        if hasattr(result, "__await__"):
            task = self._respond_later(header, _as_coroutine(result), received_at_s)
            if isinstance(result, ResultWithFrame):
                self._frame_user = task
            return
        self._count_response(header, result, received_at_s)
        if result is not None:
            self._send(header, handler.encode(result, header.api_version))

    def _call_handler(self, header: RequestHeader, request: Any) -> Any | Awaitable[Any]:
        context = RequestContext(self._node, header.api_version, header.client_id, self._host, self.login)
        if self._connections.counts is not None:
            self._connections.counts.count_request(header.api_key, request)
        return HANDLERS[header.api_key].handle(context, request)

    async def _decode_and_handle(self, header: RequestHeader, frame: bytes, read: YieldingDecode) -> Any:
        result = self._call_handler(header, await read(frame, header.body_at, header.api_version))
        return await result if hasattr(result, "__await__") else result

    def _respond_later(
        self, header: RequestHeader, result: Coroutine[Any, Any, Any], received_at_s: float
    ) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(result)
        self._pending.append(_PendingResponse(header, task, received_at_s=received_at_s))
        task.add_done_callback(self._on_response_ready)
        return task

    def _count_response(self, header: RequestHeader, result: Any, received_at_s: float) -> None:
        if self._connections.counts is not None:
            self._connections.counts.count_response(header.api_key, result, self._loop.time() - received_at_s)

    def _respond_unsupported_version(self, header: RequestHeader, frame: memoryview) -> None:
        pieces = unsupported_version_pieces(frame, header)
        if pieces is None:
            self.abort(f"version {header.api_version} of API key {header.api_key} is not served")
        elif pieces:
            self._send(header, pieces)

    def abort(self, reason: object, level: int = logging.WARNING) -> None:
        """Closes the connection at once, without a response, and logs the reason at this log level."""
        logger.log(level, "connection closed peer=%s:%s reason=%s", *self._peer, reason)
        if self._transport is not None:
            self._transport.abort()

    def _abort_on_io_error(self, error: OSError) -> None:
        """Closes the connection without sending the queued responses, because a file cannot be read or written; logs
        `error`."""
        logger.error("request failed, connection closed peer=%s:%s error=%s", *self._peer, error)
        if self._transport is not None:
            self._transport.abort()

    # Responses

    def _on_response_ready(self, task: asyncio.Future[Any]) -> None:
        """Sends the responses that are ready, up to the first request that is still in progress, then handles the next
        requests.

        Args:
            task: the task that has computed a response.
        """
        if task is self._frame_user:
            self._frame_user = None
        if task.cancelled():
            return
        if self._transport is None:
            task.exception()  # asyncio would log an exception that is never retrieved
            return
        try:
            with self._writer.gathering():
                self._send_ready()
        except RefusalWithoutResponse as refusal:
            self._count_response(self._pending.popleft().header, refusal.response, self._loop.time())
            self._close_after_refusal(self._transport, refusal)
            return
        except OSError as error:
            self._abort_on_io_error(error)
            return
        except Exception:
            logger.exception("request failed, connection closed peer=%s:%s", *self._peer)
            if self._transport is not None:
                self._transport.abort()
            return
        if self._closes_after_responses and self._transport is not None:
            self._close_when_sent(self._transport)
        else:
            self._handle_frames()

    def _send_ready(self) -> None:
        while self._pending and self._transport is not None:
            first = self._pending[0]
            if first.task is not None:
                if not first.task.done():
                    return
                error = first.task.exception()
                if isinstance(error, (ProtocolError, MalformedMessage)):
                    self.abort(error)
                    return
                if isinstance(error, RefusalWithoutResponse):
                    raise error
                if error is not None:
                    trace = None if isinstance(error, OSError) else error
                    logger.error(
                        "request failed, connection closed api=%s peer=%s:%s error=%s",
                        BY_KEY[first.header.api_key].name,
                        *self._peer,
                        error,
                        exc_info=trace,
                    )
                    self._transport.abort()
                    return
                result = first.task.result()
                self._count_response(first.header, result, first.received_at_s)
                handler = HANDLERS[first.header.api_key]
                first.pieces = None if result is None else handler.encode(result, first.header.api_version)
            self._pending.popleft()
            if first.pieces is not None:
                self._write(first.header, first.pieces)

    def _send(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._pending:
            self._pending.append(_PendingResponse(header, None, pieces))
        else:
            self._write(header, pieces)

    def _write(self, header: RequestHeader, pieces: Pieces) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.active_at_s = self._loop.time()
        size = sum(map(len, pieces))
        if self._connections.rates is not None:
            self._count_bytes(size)
        self._writer.write([response_header(header, size), *pieces])
        if self.login.has_failed:
            self._close_after_responses(self._transport)

    def _close_after_refusal(self, transport: asyncio.Transport, refusal: RefusalWithoutResponse) -> None:
        logger.info("connection closed peer=%s:%s reason=%s", *self._peer, refusal)
        self._close_after_responses(transport)

    def _close_after_responses(self, transport: asyncio.Transport) -> None:
        """Closes the connection when the client has received the responses to all handled requests. Until then no
        further request is handled; a client that does not read is closed like an idle one."""
        self._closes_after_responses = True
        self._set_reading(False)
        self._writer.flush()
        self._close_when_sent(transport)

    def _close_when_sent(self, transport: asyncio.Transport) -> None:
        # The transport sends what it has accepted before it closes.
        if not self._pending and not self._writer.has_queued_pieces:
            transport.close()

    def _count_bytes(self, byte_count: int) -> None:
        """Counts received or sent bytes for the client's rate limit. Above the limit, the requests of this connection
        wait, except those of GROUP_MEMBER_APIS, which keep the client's membership in a group."""
        assert self._connections.rates is not None
        wait_s = self._connections.rates.take(self.login.user or self._host, byte_count, self._loop.time())
        if wait_s > 0 and not self._is_throttled:
            self._is_throttled = True
            self._loop.call_later(wait_s, self._end_throttling)

    def _end_throttling(self) -> None:
        self._is_throttled = False
        self._handle_frames()

    @property
    def unread_bytes(self) -> int:
        """Number of response bytes in memory that are not sent to the client yet."""
        return self._writer.memory_bytes if self._transport is not None else 0

    @property
    def has_pending(self) -> bool:
        """True if a request of the client is in progress, or its response waits for earlier ones."""
        return bool(self._pending)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _as_coroutine(result: Awaitable[Any]) -> Any:
    return await result
