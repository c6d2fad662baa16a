"""Receiving the bodies of requests, within bounds of size and time, in the event loop.

Where a body is not wanted, what its client still sends is received once the answer has been sent: if the connection
were closed meanwhile, the answer would be lost on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.registry.api.patience import Patience

STALLED_S: Final = 30.0  # a client that sends nothing of its body for so long is given up
BODY_S: Final = 60.0  # and so is one whose body takes longer than this
HELD_BYTES_MAX: Final = 256 * 1024 * 1024  # of all bodies that are here at once
SMALL_BYTES_MAX: Final = 16 * 1024  # so much of every connection that a worker may have is a quarter of that
PARTS_MAX: Final = 10_000  # in which a body comes, packets or chunks; each takes the event loop 0.1 ms however small
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024  # of a body that is not wanted; then the connection is closed on it

Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Body:
    """A body, or nothing of one that is larger than is taken; `length` is its own in both cases, or a bound of it.

    `has_rest` says that its client sends more than was received.
    """

    content: bytes
    length: int
    has_rest: bool = False


NO_BODY: Final = Body(b"", 0)


@dataclass(frozen=True, slots=True)
class Announced:
    """What the head of a request says of the body: its length, None when it comes in chunks; whether its client waits
    to be told to send."""

    length: int | None
    waits: bool

    @classmethod
    def of(cls, scope: Any) -> Announced:
        length, waits, in_chunks = None, False, False
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"transfer-encoding":
                in_chunks = True
            elif name == b"expect":
                waits = True
        return cls(None if in_chunks else length, waits)

    @property
    def is_small(self) -> bool:
        return self.length is not None and self.length <= SMALL_BYTES_MAX


class BodyRefused(Exception):
    """The body did not come as it should; `status` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    @property
    def has_rest(self) -> bool:
        """Whether the client may yet send it as it should."""
        return self.status == 503


class RequestBodies:
    """The bodies of one process; the caller gives each back by `release`.

    Args:
        bytes_max: a larger body is not kept, but its length.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._patience = Patience(STALLED_S)

    async def receive(self, announced: Announced, receive: Receive) -> Body:
        """The whole body.

        Raises:
            BodyRefused: it stalls or takes too long (408), breaks off (400), comes in too many parts (413), or too much
                is being received (503).
        """
        if announced.length is not None and announced.length > self._bytes_max:
            return Body(b"", announced.length, has_rest=not announced.waits)
        message = await self._next_part(receive)
        if not message["more_body"] or len(message["body"]) == announced.length:
            # The server tells of the end by one more part, and to wait for that would cost as much as all the rest.
            return self._hold(message["body"])
        return await self._gather(receive, message["body"])

    def release(self, body: Body) -> None:
        self._held_bytes -= len(body.content)

    async def let_pass(self, receive: Receive) -> None:
        """Receives what a client still sends, within bounds, and forgets it."""
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
            return Body(b"", size, has_rest=more)
        return self._hold(b"".join(parts))

    async def _next_part(self, receive: Receive) -> Any:
        try:
            message = await self._patience.wait(receive())
        except TimeoutError:
            raise BodyRefused(408) from None
        if message["type"] != "http.request":
            raise BodyRefused(400)
        return {"body": message.get("body", b""), "more_body": message.get("more_body", False)}
