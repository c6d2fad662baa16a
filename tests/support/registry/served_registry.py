"""A registry's application on a port of its own, in this process: calls are counted, and answers may be replaced."""

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


class Served:
    """A registry's application on a port of its own. `calls` counts requests by method and path; what `answer` returns
    is answered instead."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: Counter[str] = Counter()
        self.answer: Callable[[Request], Response | None] = lambda _: None

    @property
    def client(self) -> RegistryClient:
        return RegistryClient(self.url)


@contextmanager
def served(database_url: str) -> Iterator[Served]:
    database = Database(database_url, lease_s=0)
    database.upgrade()
    app = create_app(database)
    registry = Served("")

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        registry.calls[f"{request.method} {request.path}"] += 1
        scripted = registry.answer(request)
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
