"""Sends requests to the registry's ASGI front without a server. The front runs in an event loop of a separate
thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote

from headrace.registry.api.app import create_app
from headrace.registry.api.asgi_front import AsgiFront
from headrace.registry.api.cross_origin import CrossOriginPolicy
from headrace.registry.api.response_cache import BYTES_MAX
from headrace.registry.storage.database import Database
from headrace.registry.storage.revision_check import open_revision_reader
from support.registry.registry_calls import CONTENT_TYPE, Registry, RestResponse

T = TypeVar("T")

LEASE_S = 0.004
"""The lease of cached responses in tests. It is shorter than the default, because a change must wait until leases have
expired."""


class RecordingObserver:
    """Records for each response whether it came from the cache, its route and its size."""

    def __init__(self) -> None:
        self.cached: list[bool] = []
        self.routes: list[str] = []
        self.sizes: list[int] = []

    def record(self, scope: Any, route: str, status: int, size: int, *_: Any, cached: bool) -> None:
        self.cached.append(cached)
        self.routes.append(route)
        self.sizes.append(size)


class RegistryBehindFront(Registry):
    """The registry's API with an ASGI front before it, as in a worker process of `headrace registry serve`."""

    def __init__(
        self,
        database_url: str,
        *,
        caches: bool = True,
        cross_origin: CrossOriginPolicy | None = None,
        **options: Any,
    ) -> None:
        super().__init__("http://localhost")
        self.observer = RecordingObserver()
        self.received_body_first = False
        """Whether the last request's body was received before the response was sent."""
        self._database = Database(database_url, lease_s=LEASE_S)
        application = create_app(self._database, **options)
        users = options.get("users")
        self._front = AsgiFront(
            application,
            open_revision_reader(database_url),
            request_bytes_max=1 << 20,
            authenticator=users,
            observer=self.observer,
            cache_bytes_max=BYTES_MAX if caches else 0,
            cross_origin=cross_origin,
            lease_s=LEASE_S,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> RestResponse:
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": CONTENT_TYPE} | {name.lower(): value for name, value in (headers or {}).items()}
        return self.call_with(method, path, list(named.items()), payload)

    def call_with(self, method: str, path: str, headers: list[tuple[str, str]], payload: bytes = b"") -> RestResponse:
        """Sends a request with these headers, which may have duplicates."""
        raw_path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        return self._run(self._call(scope, payload))

    async def _call(self, scope: Any, payload: bytes) -> RestResponse:
        sent: list[Any] = []
        self.received_body_first = False

        async def receive() -> Any:
            self.received_body_first = self.received_body_first or not sent
            return {"type": "http.request", "body": payload, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._front(scope, receive, send)
        start, body = sent
        headers = {name.decode().title(): value.decode("latin-1") for name, value in start["headers"]}
        return RestResponse(start["status"], headers, body["body"].decode())

    def end(self) -> None:
        """Sends the event that a server sends when it shuts down."""
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> Any:
            return next(messages)

        async def send(_: Any) -> None:
            pass

        self._run(self._front({"type": "lifespan"}, receive, send))

    def close(self) -> None:
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._database.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)
