"""Serving the application: gunicorn with threads, on a socket that is bound here.

Granian answers several times more requests a second, but gives a WSGI application only the decoded path, in which a
`/` of a subject cannot be told from one that separates; gunicorn passes the path as it was sent.

The socket is bound before anything is forked, so that a taken port is found at once and port 0 is known. One worker
process serves, because the answers it keeps are forgotten by the process that changes them.
"""

from __future__ import annotations

import http.client
import json
import logging
import signal
import socket
import struct
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.gthread import ThreadWorker

logger = logging.getLogger(__name__)

THREADS = 16  # requests answered at once; the database's pool has a connection for each
CONNECTIONS_MAX = 1000  # kept alive at once
KEEPALIVE_S = 60
BACKLOG = 512
STALLED_S = 30  # a client that sends or takes nothing for so long is cut off
GRACEFUL_STOP_S = 10  # requests under way at a stop get this long
REQUEST_LINE_MAX = 0  # subjects may be long; the path's own bound is that of all headers
STATUS_OF_PARSE_ERRORS: dict[type[Exception], int] = {LimitRequestLine: 414, LimitRequestHeaders: 431}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        OSError: the address is taken or is not of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A port whose last connections are still closing can be bound again; one that is listened on cannot.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these: a client that stops in the middle of a request or of its answer gives its
        # thread back. In the C layout of a timeval.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED_S, 0))
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(listener: socket.socket, make_app: Callable[[], Flask]) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code; prints the ready line when requests are answered.

    Args:
        listener: from `listen`; it belongs to the server from here on.
        make_app: called in the serving process.
    """
    try:
        _Server(listener, make_app).run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no annotations
    """Answers what gunicorn itself refuses in the API's way; its own page would be HTML."""

    def init_signals(self) -> None:
        super().init_signals()
        # Ctrl-C on a terminal reaches the worker and the process in front of it, which stops the worker anyway. A
        # worker that is told twice can get stuck in its own end until it is killed.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        # gunicorn's own shuts the thread pool down inside the signal handler. When the signal meets this thread while
        # it hands a request to the pool, it waits for a lock that it holds itself, until it is killed.
        self.handle_exit(sig, frame)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: Exception) -> None:
        if isinstance(exc, ParseException):
            status = STATUS_OF_PARSE_ERRORS.get(type(exc), 400)
            logger.debug("request refused: status=%d cause=%s", status, type(exc).__name__)
        else:
            status = 500
            logger.error("request failed", exc_info=exc)
        reason = http.client.responses[status]
        body = json.dumps({"error_code": status, "message": f"HTTP {status} {reason}"}).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\n"
            f"Content-Type: application/vnd.schemaregistry.v1+json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            client.sendall(head.encode() + body)
        except OSError:
            logger.debug("client gone: cause=%s", type(exc).__name__)


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no annotations
    def __init__(self, listener: socket.socket, make_app: Callable[[], Flask]) -> None:
        self._url = base_url(listener)
        self._descriptor = listener.detach()  # gunicorn closes it
        self._make_app = make_app
        super().__init__()

    def load_config(self) -> None:
        settings = {
            "bind": [f"fd://{self._descriptor}"],
            "workers": 1,
            "worker_class": _Worker,
            "threads": THREADS,
            "worker_connections": CONNECTIONS_MAX,
            "keepalive": KEEPALIVE_S,
            "backlog": BACKLOG,
            "graceful_timeout": GRACEFUL_STOP_S,
            # A worker that was stopped for a while (SIGSTOP, a sleeping laptop) is not a dead one.
            "timeout": 0,
            "limit_request_line": REQUEST_LINE_MAX,
            "loglevel": "warning",
            "control_socket_disable": True,
            "post_worker_init": self._announce,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._make_app()

    def _announce(self, worker: Any) -> None:
        # Only for the first worker: one that replaces it after a crash is nothing that anyone waits for.
        if worker.age == 1:
            threading.Thread(target=_print_when_ready, args=(self._url,), daemon=True).start()


def _print_when_ready(url: str) -> None:
    host, port = url.removeprefix("http://").rsplit(":", 1)
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  (compared, not bound)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
    try:
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 200:
        logger.error("registry not ready: status=%d", status)
        return
    print(f"ready registry={url}", flush=True)
