"""HTTP servers with scripted responses, to test clients."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

BREAK_OFF = (0, None)
"""Result of a script that closes the connection without a response, after the request was read."""


@dataclass
class ReceivedRequest:
    """A request that the server has received. `line` has the method and the path."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    url: str
    requests: list[ReceivedRequest] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.requests]


Script = Callable[[ReceivedRequest], tuple[Any, ...]]
"""Returns the response to a request: the status, the content (a text as it is, other values as JSON), and optionally
headers."""


@contextmanager
def scripted_server(
    script: Script, *, closes: bool = False, tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Runs an HTTP server on a free port while the context is open.

    Args:
        script: returns the response to each request.
        closes: whether each connection is closed after one response, without announcing it.
        tls: the context for HTTPS; None serves HTTP.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = ReceivedRequest(
                f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}, body
            )
            serving.requests.append(request)
            status, value, *more = script(request)
            if not status:
                self.close_connection = True
                return
            content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            headers = {"Content-Length": str(len(content)), **(more[0] if more else {})}
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = closes or headers["Content-Length"] != str(len(content))

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # names in http.server

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Ignores failed handshakes of clients that do not trust this server."""

    with Server(("127.0.0.1", 0), Handler) as listening:
        scheme = "http"
        if tls is not None:
            # The handshake runs in the connection's thread, so that it does not block accept().
            listening.socket = tls.wrap_socket(listening.socket, server_side=True, do_handshake_on_connect=False)
            scheme = "https"
        serving = ScriptedServer(f"{scheme}://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield serving
        finally:
            listening.shutdown()
            thread.join()
