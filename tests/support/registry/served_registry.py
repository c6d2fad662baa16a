"""The registry's application on a local port in this process, with counted and replaceable responses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from headrace.registry.api.app import create_app
from headrace.registry.client import RegistryClient
from headrace.registry.storage.database import Database


class ServedRegistry:
    """The registry's application on a local port.

    Attributes:
        calls: number of requests by method and path.
        respond: may return a response to a request, in place of the application's.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: Counter[str] = Counter()
        self.respond: Callable[[Request], Response | None] = lambda _: None

    @property
    def client(self) -> RegistryClient:
        return RegistryClient(self.url)


@contextmanager
def serve_registry(database_url: str, **options: Any) -> Iterator[ServedRegistry]:
    """Serves a registry with options of `create_app`."""
    database = Database(database_url, lease_s=0)
    database.upgrade()
    app = create_app(database, **options)
    registry = ServedRegistry("")

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        registry.calls[f"{request.method} {request.path}"] += 1
        scripted = registry.respond(request)
        return (scripted or app)(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        database.close()
