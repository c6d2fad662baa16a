"""Cache of responses with their dependencies. `Leases` decides whether a cached response is still valid.

The key includes the principal's permissions: a response is only reused for principals with equal permissions. The cache
adds them itself, so that no caller can omit them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from headrace.registry.api.hooks import Principal
from headrace.registry.storage.dependencies import Dependencies

BYTES_MAX: Final = 128 * 1024 * 1024  # about 60,000 schemas of usual size
ENTRY_BYTES: Final = 1200  # an entry without its body: key, headers, dependencies and their objects


@dataclass(frozen=True, slots=True)
class AppResponse:
    """A response of the Flask application or of the front, with headers as pairs of bytes, as ASGI requires.

    `route` is the matched URL rule, or "". `principal` is the sender of the request; None if it is not known.
    `dependencies` is None when the response must not be cached.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    route: str = ""
    principal: Principal | None = None
    dependencies: Dependencies | None = None


class ResponseCache:
    """An LRU cache of responses, bounded by bytes, for one event loop."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._responses: OrderedDict[Hashable, AppResponse] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max

    def get(self, request_key: Hashable, principal: Principal) -> AppResponse | None:
        """Returns the cached response to an equal request of a principal with the same permissions, or None. It may be
        outdated; see `Leases`.

        Args:
            request_key: identifies equal requests by their path, query, headers and body.
            principal: the sender of the request.
        """
        key = request_key, principal.key
        found = self._responses.get(key)
        if found is not None:
            self._responses.move_to_end(key)
        return found

    def put(self, request_key: Hashable, response: AppResponse) -> None:
        """Caches a response, unless it has no principal or no dependencies.

        The key contains the principal of the response, not that of the request: the application may have authenticated
        the client only during the request, or the users file may have changed since.
        """
        if response.principal is None or response.dependencies is None:
            return
        self.drop(request_key, response.principal)
        self._responses[request_key, response.principal.key] = response
        self._bytes += _size(response)
        while self._bytes > self._bytes_max:
            self._bytes -= _size(self._responses.popitem(last=False)[1])

    def drop(self, request_key: Hashable, principal: Principal) -> None:
        dropped = self._responses.pop((request_key, principal.key), None)
        if dropped is not None:
            self._bytes -= _size(dropped)


def _size(response: AppResponse) -> int:
    return len(response.body) + ENTRY_BYTES
