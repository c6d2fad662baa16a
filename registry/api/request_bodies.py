"""Receiving the bodies of requests, within bounds of size and time, in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

STALLED_S: Final = 30.0  # a client that sends nothing of its body for so long is given up
BODY_S: Final = 300.0  # and so is one whose body takes longer than this
HELD_BYTES_MAX: Final = 256 * 1024 * 1024  # of all bodies that are here at once
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024  # of a body that is too large; then the connection is closed on it

Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Body:
    """A body, or nothing of one that is larger than is taken; `length` is its own in both cases, or a bound of it."""

    content: bytes
    length: int


NO_BODY: Final = Body(b"", 0)


class BodyRefused(Exception):
    """The body did not come as it should; `status` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class RequestBodies:
    """The bodies of one process; the caller gives each back by `release`.

    Args:
        bytes_max: a larger body is not kept, but its length.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0

    async def receive(self, scope: Any, receive: Receive) -> Body:
        """The whole body.

        Raises:
            BodyRefused: it stalls (408), breaks off (400), or too much is being received already (503).
        """
        declared, expects = _announced(scope)
        if declared is not None and declared > self._bytes_max:
            # Whoever asks first learns it before sending; for others the answer would be lost on the way if the
            # connection were closed while they send.
            if not expects:
                await self._discard(receive, 0)
            return Body(b"", declared)
        message = await _next_part(receive)
        if not message["more_body"]:
            return self._hold(message["body"])
        return await self._gather(receive, message["body"])

    def release(self, body: Body) -> None:
        self._held_bytes -= len(body.content)

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
                    message = await _next_part(receive)
                    more = message["more_body"]
                    parts.append(message["body"])
                    size += len(message["body"])
                    self._held_bytes += len(message["body"])
        except TimeoutError:
            raise BodyRefused(408) from None
        finally:
            self._held_bytes -= size
        if size > self._bytes_max:
            if more:
                await self._discard(receive, size)
            return Body(b"", size)
        return self._hold(b"".join(parts))

    async def _discard(self, receive: Receive, size: int) -> None:
        """Receives what the client still sends, within bounds, and forgets it."""
        try:
            async with asyncio.timeout(BODY_S):
                while size <= DISCARDED_BYTES_MAX:
                    message = await _next_part(receive)
                    size += len(message["body"])
                    if not message["more_body"]:
                        return
        except (TimeoutError, BodyRefused):
            return


async def _next_part(receive: Receive) -> Any:
    try:
        async with asyncio.timeout(STALLED_S):
            message = await receive()
    except TimeoutError:
        raise BodyRefused(408) from None
    if message["type"] != "http.request":
        raise BodyRefused(400)
    return {"body": message.get("body", b""), "more_body": message.get("more_body", False)}


def _announced(scope: Any) -> tuple[int | None, bool]:
    """The declared length, and whether the client waits to be told to send."""
    declared, expects = None, False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"expect":
            expects = True
    return declared, expects
