"""Reads the bodies of requests within limits: of one body, of its inflated size, and of all bodies together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from headrace.gateway.access import caller_of
from headrace.gateway.decompression import DECOMPRESSORS, DamagedBody
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import (
    MalformedJson,
    TooManyItems,
    UnusableText,
    check_texts,
    parse_json,
    parse_json_in_turns,
)
from headrace.gateway.turn import Turn

RETRY_AFTER_S: Final = 1
IDLE_S: Final = 30.0
"""Longest wait for the next part of a body."""
BURST_S: Final = 1.0
SWEEP_S: Final = 60.0


class ByteRate:
    """The bytes of records that each client may send per second.

    A client has the bytes of `BURST_S` at once. The last request may exceed them; then the client waits until they have
    been made up for. So no request is too large for the rate.

    Args:
        bytes_per_second: 0 is no limit.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._paid_at: dict[str, float] = {}
        """When the bytes of a client are made up for, of clients that have sent any within `SWEEP_S`."""
        self._swept_at = clock()

    def count(self, client: str, size: int) -> None:
        """Counts bytes that a client has sent."""
        if self._bytes_per_second:
            now = self._clock()
            self._paid_at[client] = max(self._paid_at.get(client, now), now) + size / self._bytes_per_second
            if now - self._swept_at > SWEEP_S:
                self._swept_at = now
                self._paid_at = {one: paid_at for one, paid_at in self._paid_at.items() if paid_at > now}

    def wait_s(self, client: str) -> float:
        """Returns how long a client must wait before it sends more."""
        paid_at = self._paid_at.get(client)
        return 0.0 if paid_at is None else max(0.0, paid_at - self._clock() - BURST_S)

    def check(self, client: str) -> None:
        """Raises:
        GatewayError: the client must wait.
        """
        wait_s = self.wait_s(client)
        if wait_s > 0:
            raise GatewayError(
                Kind.TOO_MANY_REQUESTS,
                f"{client} has sent more than {self._bytes_per_second:,} bytes per second; wait {wait_s:.0f} s",
                retry_after_s=math.ceil(wait_s),
            )


@dataclass(slots=True)
class BodyBudget:
    """The limits of bodies. `in_use` are the bytes of all bodies in memory."""

    request_bytes_max: int
    total_bytes_max: int
    client_bytes_max: int
    rate: ByteRate
    in_use: int = 0
    of_clients: dict[str, int] = field(default_factory=dict)
    """Bytes in memory by client, of clients that have any."""

    def take(self, client: str, size: int) -> None:
        """Raises:
        GatewayError: the bodies of all requests or of this client would take too much memory.
        """
        of_client = self.of_clients.get(client, 0) + size
        if self.in_use + size > self.total_bytes_max:
            raise _busy("the requests in progress take all memory of the gateway")
        if of_client > self.client_bytes_max:
            raise _busy(f"the requests in progress of {client} take {self.client_bytes_max:,} bytes")
        self.in_use += size
        self.of_clients[client] = of_client

    def release(self, client: str, size: int) -> None:
        self.in_use -= size
        left = self.of_clients.get(client, 0) - size
        if left > 0:
            self.of_clients[client] = left
        else:
            self.of_clients.pop(client, None)


def _busy(reason: str) -> GatewayError:
    return GatewayError(
        Kind.TOO_MANY_REQUESTS, f"{reason}; try again when some have ended", retry_after_s=RETRY_AFTER_S
    )


async def until_disconnected(request: Request) -> None:
    """Waits until the client disconnects. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class BodyReader:
    """Reads the body of one request, decompressed.

    Args:
        request: the request.
        budget: the limits.
        idle_s: longest wait for the next part of the body.
        has_records: whether the body counts for the client's rate.
    """

    def __init__(self, request: Request, budget: BodyBudget, idle_s: float, has_records: bool) -> None:
        self._request = request
        self._budget = budget
        self._idle_s = idle_s
        self._has_records = has_records
        self._client = caller_of(request).key
        self._taken = 0
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in DECOMPRESSORS:
            known = ", ".join(DECOMPRESSORS)
            raise GatewayError(
                Kind.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {coding!r:.40} is not supported; use one of {known}"
            )
        self._decompressor = DECOMPRESSORS[coding]()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the body in chunks. Other requests run between two of them.

        Raises:
            GatewayError: the body is damaged, or the client has stopped sending it.
        """
        received = aiter(self._request.stream())
        try:
            while True:
                try:
                    async with asyncio.timeout(self._idle_s):
                        chunk = await anext(received)
                except StopAsyncIteration:
                    break
                is_first = True
                for part in self._decompressor.parts(chunk):
                    if not is_first:  # a small chunk may contain much
                        await asyncio.sleep(0)
                    is_first = False
                    if self._has_records:
                        self._budget.rate.count(self._client, len(part))
                    yield part
            self._decompressor.end()
        except TimeoutError:
            raise GatewayError(
                Kind.BODY_TIMEOUT, f"the client sent nothing for {self._idle_s:.0f} s before the end of the body"
            ) from None
        except DamagedBody as error:
            raise GatewayError(Kind.BAD_REQUEST, str(error)) from None

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            GatewayError: the body is damaged or too large, or all bodies take too much memory.
        """
        limit = self._budget.request_bytes_max
        announced = self._request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        body = bytearray()
        async for chunk in self.chunks():
            if len(body) + len(chunk) > limit:
                raise _too_large(limit)
            self.take(len(chunk))
            body += chunk
        return bytes(body)

    def take(self, size: int) -> None:
        """Counts bytes in memory until `release`, or until the end of the request.

        Raises:
            GatewayError: all bodies, or those of the client, would take too much memory.
        """
        self._budget.take(self._client, size)
        self._taken += size

    def release(self, size: int | None = None) -> None:
        """Frees the memory of `size` bytes; by default of all."""
        freed = self._taken if size is None else size
        self._budget.release(self._client, freed)
        self._taken -= freed


def _too_large(limit: int) -> GatewayError:
    return GatewayError(Kind.BODY_TOO_LARGE, f"the body has more than {limit:,} bytes; send it in several requests")


@asynccontextmanager
async def body_of(
    request: Request, budget: BodyBudget, idle_s: float | None = None, *, has_records: bool = False
) -> AsyncIterator[BodyReader]:
    """Yields the reader of a request's body, and frees the memory of the body at the end.

    Args:
        request: the request.
        budget: the limits.
        idle_s: longest wait for the next part of the body; by default `IDLE_S`.
        has_records: whether the body counts for the client's rate.

    Raises:
        GatewayError: the body has records, and the client has sent too many bytes of them.
    """
    if has_records:
        budget.rate.check(caller_of(request).key)
    reader = BodyReader(request, budget, IDLE_S if idle_s is None else idle_s, has_records)
    try:
        yield reader
    finally:
        reader.release()


async def read_json(reader: BodyReader) -> Any:
    """Returns the JSON value of a whole body.

    Raises:
        GatewayError: the body is no JSON, too large or damaged, or all bodies take too much memory.
    """
    return await json_of(await reader.read())


async def json_of(body: bytes) -> Any:
    """Returns the JSON value of a body.

    Raises:
        GatewayError: the body is no JSON, or has too many records.
    """
    try:
        return await parse_json_in_turns(body, Turn())
    except MalformedJson as error:
        raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
    except TooManyItems as error:
        raise GatewayError(Kind.BODY_TOO_LARGE, str(error)) from None


def parse_names(text: bytes) -> Any:
    """Returns the JSON value of a body without records, whose texts are names and configurations.

    Raises:
        GatewayError: the body is no JSON, or a text cannot be sent to the brokers.
    """
    try:
        found = parse_json(text)
        check_texts(found)
    except (MalformedJson, UnusableText) as error:
        raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
    return found
