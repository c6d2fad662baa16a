"""Reads the bodies of requests within limits: of one body, of its inflated size, and of all bodies together."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import MalformedJson, parse_json

INFLATE_BYTES: Final = 256 * 1024
"""Maximum size of the result of one step of decompression."""
RETRY_AFTER_S: Final = 1
WBITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}


@dataclass(slots=True)
class BodyBudget:
    """The limits of bodies. `in_use` are the bytes of all bodies in memory."""

    request_bytes_max: int
    total_bytes_max: int
    client_bytes_max: int
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


class BodyReader:
    """Reads the body of one request, inflated."""

    def __init__(self, request: Request, budget: BodyBudget) -> None:
        self._request = request
        self._budget = budget
        self._client = caller_of(request).key
        self._taken = 0
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in WBITS and coding != "identity":
            raise GatewayError(
                Kind.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {coding!r} is not supported; use gzip or deflate"
            )
        self._inflater = None if coding == "identity" else zlib.decompressobj(WBITS[coding])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the body in chunks.

        Raises:
            GatewayError: the body is damaged, or all bodies take too much memory.
        """
        async for chunk in self._request.stream():
            for part in self._inflated(chunk):
                if part:
                    yield part
        if self._inflater is not None and not self._inflater.eof:
            raise GatewayError(Kind.BAD_REQUEST, "the compressed body is truncated")

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
            self.take(len(chunk))
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)

    def take(self, size: int) -> None:
        self._budget.take(self._client, size)
        self._taken += size

    def release(self) -> None:
        self._budget.release(self._client, self._taken)
        self._taken = 0

    def _inflated(self, chunk: bytes) -> list[bytes] | _Parts:
        return [chunk] if self._inflater is None else _Parts(self._inflater, chunk)


class _Parts:
    """The inflated parts of a chunk, each of bounded size."""

    def __init__(self, inflater: zlib._Decompress, chunk: bytes) -> None:
        self._inflater = inflater
        self._chunk = chunk
        self._has_more = True

    def __iter__(self) -> _Parts:
        return self

    def __next__(self) -> bytes:
        if not self._has_more or self._inflater.eof:
            raise StopIteration
        try:
            part = self._inflater.decompress(self._chunk, INFLATE_BYTES)
        except zlib.error as error:
            raise GatewayError(Kind.BAD_REQUEST, f"the compressed body is damaged: {error}") from None
        self._chunk = self._inflater.unconsumed_tail
        self._has_more = len(part) == INFLATE_BYTES or bool(self._chunk)  # a full part may have left output behind
        return part


def _too_large(limit: int) -> GatewayError:
    return GatewayError(Kind.BODY_TOO_LARGE, f"the body has more than {limit:,} bytes; send it in several requests")


@asynccontextmanager
async def body_of(request: Request, budget: BodyBudget) -> AsyncIterator[BodyReader]:
    """Yields the reader of a request's body, and frees the memory of the body at the end."""
    reader = BodyReader(request, budget)
    try:
        yield reader
    finally:
        reader.release()


async def read_json(reader: BodyReader) -> Any:
    """Returns the JSON value of a whole body.

    Raises:
        GatewayError: the body is no JSON, too large or damaged, or all bodies take too much memory.
    """
    try:
        return parse_json(await reader.read())
    except MalformedJson as error:
        raise GatewayError(Kind.BAD_REQUEST, str(error)) from None
