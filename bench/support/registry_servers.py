"""Runs the registry's Flask application on other HTTP servers: `registry_servers.py NAME URL PORT`, for
`bench/registry.py`.

All of them but `front` serve the Flask application alone, which reads the database for every response.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

THREADS = 16


def _application(url: str) -> Any:
    from headrace.registry.api.app import create_app
    from headrace.registry.storage.database import Database

    return create_app(Database(url))


def front_without_cache(url: str, port: int, workers: int) -> None:
    """Runs the server of `headrace registry serve`, without caches."""
    from headrace.registry.api.asgi_front import AsgiFront
    from headrace.registry.api.listening import ReservedPort
    from headrace.registry.api.server import serve
    from headrace.registry.storage.revision_check import open_revision_reader

    def front() -> AsgiFront:
        return AsgiFront(_application(url), open_revision_reader(url), request_bytes_max=4 << 20, cache_bytes_max=0)

    serve(ReservedPort("127.0.0.1", port), front, workers=workers)


def granian_wsgi(url: str, port: int, workers: int) -> None:
    _granian("wsgi", lambda: _application(url), port, workers)


def granian_a2wsgi(url: str, port: int, workers: int) -> None:
    from a2wsgi import WSGIMiddleware

    _granian("asginl", lambda: WSGIMiddleware(_application(url), workers=THREADS), port, workers)


def _granian(interface: str, make: Callable[[], Any], port: int, workers: int) -> None:
    from granian import Granian
    from granian.constants import Interfaces

    threads: dict[str, Any] = {"blocking_threads": THREADS} if interface == "wsgi" else {}
    server = Granian("x", port=port, interface=Interfaces(interface), workers=workers, log_enabled=False, **threads)
    server.serve(target_loader=make, wrap_loader=False)


def gunicorn_gthread(url: str, port: int, workers: int) -> None:
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no annotations
        def load_config(self) -> None:
            for name, value in {
                "bind": f"127.0.0.1:{port}",
                "workers": workers,
                "threads": THREADS,
                "loglevel": "error",
                "keepalive": 60,
                "control_socket_disable": True,
            }.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return _application(url)

    Server().run()


def waitress(url: str, port: int, workers: int) -> None:
    """Serves with waitress, which has only one process."""
    import waitress as server

    server.serve(_application(url), listen=f"127.0.0.1:{port}", threads=THREADS, clear_untrusted_proxy_headers=True)


def uvicorn_a2wsgi(url: str, port: int, workers: int) -> None:
    """Serves with uvicorn and a2wsgi in one process, as an application that embeds the server would."""
    import uvicorn
    from a2wsgi import WSGIMiddleware

    uvicorn.run(WSGIMiddleware(_application(url), workers=THREADS), port=port, log_level="error")


SERVERS: dict[str, Callable[[str, int, int], None]] = {
    "front without cache": front_without_cache,
    "granian WSGI": granian_wsgi,
    "granian a2wsgi": granian_a2wsgi,
    "gunicorn gthread": gunicorn_gthread,
    "waitress": waitress,
    "uvicorn a2wsgi": uvicorn_a2wsgi,
}

if __name__ == "__main__":
    logging.basicConfig(level="ERROR")
    name, database_url, port_text, workers_text = sys.argv[1:]
    SERVERS[name](database_url, int(port_text), int(workers_text))
