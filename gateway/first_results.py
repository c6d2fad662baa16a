"""The results of requests with `Idempotency-Key`: a repeated request gets the result of the first one.

Results are in the memory of the gateway. They are lost when it stops, so a request that is repeated afterwards is
processed again. Sessions have no such gap.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind

HEADER: Final = "idempotency-key"
KEY_LENGTH_MAX: Final = 255
KEPT_S: Final = 600.0
BYTES_MAX: Final = 64 * 2**20
"""Size of all results, above which the oldest ones are dropped before their time."""
ENTRY_BYTES: Final = 1_000
"""Estimated size of an entry besides its result."""

ResultKey = tuple[str, str, str]
"""The user, the path and the key of a request."""


@dataclass(slots=True)
class _Entry:
    digest: bytes
    expires: float
    result: asyncio.Task[bytes]
    size: int = ENTRY_BYTES


def key_of(request: Request) -> ResultKey | None:
    """Returns the key of a request; None if it has none.

    Raises:
        GatewayError: the key is empty or too long.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise GatewayError(Kind.BAD_REQUEST, f"Idempotency-Key: expected 1 to {KEY_LENGTH_MAX} characters")
    return caller_of(request).principal.name, request.url.path.rstrip("/"), key


class FirstResults:
    """Results by key, for the coroutines of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, bytes_max: int = BYTES_MAX) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        self._entries: OrderedDict[ResultKey, _Entry] = OrderedDict()
        """Oldest first."""
        self._bytes = 0

    async def first(self, key: ResultKey, body: bytes, produce: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Returns the result of the first request with a key, and whether that was an earlier one. Waits for a first
        request in progress. A first request that was refused does not count.

        Args:
            body: the body of this request.
            produce: processes this request, and returns its result.

        Raises:
            GatewayError: the request is refused, or the key was used for another body.
        """
        self._drop_expired()
        digest = hashlib.blake2b(body, digest_size=16).digest()
        entry = self._entries.get(key)
        is_repeated = entry is not None
        if entry is None:
            entry = _Entry(digest, self._clock() + KEPT_S, asyncio.ensure_future(_run(produce)))
            self._entries[key] = entry
            self._bytes += entry.size
            entry.result.add_done_callback(lambda _: self._end(key, entry))
        elif entry.digest != digest:
            raise GatewayError(
                Kind.MALFORMED, "an earlier request with another body had this Idempotency-Key; use a new key"
            )
        return await asyncio.shield(entry.result), is_repeated

    def _end(self, key: ResultKey, entry: _Entry) -> None:
        if self._entries.get(key) is not entry:
            return  # dropped
        if entry.result.cancelled() or entry.result.exception() is not None:
            self._drop(key)
            return
        size = len(entry.result.result())
        entry.size += size
        self._bytes += size

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._entries:
            key, oldest = next(iter(self._entries.items()))
            if oldest.expires > now and self._bytes <= self._bytes_max:
                break
            self._drop(key)

    def _drop(self, key: ResultKey) -> None:
        self._bytes -= self._entries.pop(key).size


async def _run(produce: Callable[[], Awaitable[bytes]]) -> bytes:
    return await produce()
