"""Receives request bodies in the event loop, within limits of size and time.

The rest of a rejected body is received after the response has been sent. Closing the connection earlier would lose the
response in transit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

STALLED_S: Final = 30.0  # without any data from the client
BODY_S: Final = 60.0  # for the whole body
HELD_BYTES_MAX: Final = 256 * 1024 * 1024  # of all bodies in memory
SMALL_BYTES_MAX: Final = 16 * 1024  # one such body on each connection of a worker uses a quarter of `HELD_BYTES_MAX`
PARTS_MAX: Final = 10_000  # packets or chunks of a body; each costs the event loop 0.1 ms, however small
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024  # of a rejected body; then the connection is closed

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Body:
    """A request body. If it is too large, `content` is empty and `length` is the length or a lower bound of it.

    `has_unread` is True when the client sends more than was received.
    """

    content: bytes
    length: int
    has_unread: bool = False


NO_BODY: Final = Body(b"", 0)


@dataclass(frozen=True, slots=True)
class BodyHeaders:
    """The headers of a request about its body: the length (None if unknown), and whether the client waits for a
    response with status 100 before it sends the body."""

    length: int | None
    expects_continue: bool

    @classmethod
    def of(cls, scope: Any) -> BodyHeaders:
        length, expects_continue, is_chunked = None, False, False
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"transfer-encoding":
                is_chunked = True
            elif name == b"expect":
                expects_continue = True
        return cls(None if is_chunked else length, expects_continue)

    @property
    def is_small(self) -> bool:
        return self.length is not None and self.length <= SMALL_BYTES_MAX


class BodyRefused(Exception):
    """The body was not received; `status` is the HTTP status of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    @property
    def has_unread(self) -> bool:
        """Whether the rest of the body must be received after the response. This is so if it was refused for lack of
        memory (503). In the other cases (the body stalled, is malformed or has too many parts) the connection is
        closed."""
        return self.status == 503


class Deadlines:
    """Time limit for the waits of many asyncio tasks, checked by one timer. Belongs to one event loop.

    `asyncio.timeout` creates and cancels a timer for each wait, which costs more than receiving a body that has already
    arrived. A task may only be in one wait at a time.

    Args:
        seconds: the limit of a wait. A wait may exceed it by up to a tenth of the limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wait_starts: dict[asyncio.Task[Any], float] = {}
        self._timed_out: set[asyncio.Task[Any]] = set()
        self._is_scheduled = False

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Waits for the awaitable within the time limit.

        Raises:
            TimeoutError: the wait exceeded the limit.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "only tasks can wait"
        self._wait_starts[task] = loop.time()
        if not self._is_scheduled:
            self._schedule_check(loop)
        try:
            return await awaitable
        except asyncio.CancelledError:
            # If another cancellation is pending, it takes precedence over the timeout.
            if task in self._timed_out and not task.uncancel():
                raise TimeoutError from None
            raise
        finally:
            del self._wait_starts[task]
            self._timed_out.discard(task)

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = True
        loop.call_later(self._seconds / 10, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        start_max = loop.time() - self._seconds
        for task, started_at in self._wait_starts.items():
            if started_at <= start_max and task not in self._timed_out:
                self._timed_out.add(task)
                task.cancel()
        if self._wait_starts:
            self._schedule_check(loop)


class RequestBodies:
    """Receives the bodies of the requests to one process, and limits their total size in memory. The caller must
    `release` each body.

    Args:
        bytes_max: a larger body is discarded except for its length.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._deadlines = Deadlines(STALLED_S)

    async def receive(self, headers: BodyHeaders, receive: Receive) -> Body:
        """Receives the body of a request.

        Args:
            headers: the headers about the body.
            receive: ASGI's function that receives the next part of the body.

        Raises:
            BodyRefused: the body stalls or takes too long (408), breaks off (400) or has too many parts (413), or all
                bodies in memory together are too large (503).
        """
        if headers.length is not None and headers.length > self._bytes_max:
            return Body(b"", headers.length, has_unread=not headers.expects_continue)
        message = await self._next_part(receive)
        if not message["more_body"] or len(message["body"]) == headers.length:
            # The server marks the end by a further part. Waiting for it would double the time of a small request.
            return self._hold(message["body"])
        return await self._gather(receive, message["body"])

    def release(self, body: Body) -> None:
        self._held_bytes -= len(body.content)

    async def discard_rest(self, receive: Receive) -> None:
        """Receives and discards the rest of a rejected body, up to `DISCARDED_BYTES_MAX` and `PARTS_MAX` parts, and for
        at most `BODY_S`."""
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                for _ in range(PARTS_MAX):
                    message = await self._next_part(receive)
                    size += len(message["body"])
                    if not message["more_body"] or size > DISCARDED_BYTES_MAX:
                        return
        except (TimeoutError, BodyRefused):
            return

    def _hold(self, content: bytes) -> Body:
        if len(content) > self._bytes_max:
            return Body(b"", len(content))
        if self._held_bytes + len(content) > HELD_BYTES_MAX:
            raise BodyRefused(503)
        self._held_bytes += len(content)
        return Body(content, len(content))

    async def _gather(self, receive: Receive, first: bytes) -> Body:
        parts, size, more = [first], len(first), True
        self._held_bytes += size
        try:
            async with asyncio.timeout(BODY_S):
                while more and size <= self._bytes_max:
                    if self._held_bytes > HELD_BYTES_MAX:
                        raise BodyRefused(503)
                    if len(parts) == PARTS_MAX:
                        raise BodyRefused(413)
                    message = await self._next_part(receive)
                    more = message["more_body"]
                    parts.append(message["body"])
                    size += len(message["body"])
                    self._held_bytes += len(message["body"])
        except TimeoutError:
            raise BodyRefused(408) from None
        finally:
            self._held_bytes -= size
        if size > self._bytes_max:
            return Body(b"", size, has_unread=more)
        return self._hold(b"".join(parts))

    async def _next_part(self, receive: Receive) -> Any:
        try:
            message = await self._deadlines.wait(receive())
        except TimeoutError:
            raise BodyRefused(408) from None
        if message["type"] != "http.request":
            raise BodyRefused(400)
        return {"body": message.get("body", b""), "more_body": message.get("more_body", False)}
