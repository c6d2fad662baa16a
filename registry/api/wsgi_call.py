"""Calling the WSGI application for a request that ASGI has received: its environ, and its whole answer.

A body is there as a whole before a thread is taken, and an answer as a whole before it is sent, so a slow client costs
a connection and never a thread. The bridges that exist stream both through the thread instead.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.registry.api.answer_cache import Answer
from headrace.registry.api.hooks import ASKS_KEY, CERTIFICATE_KEY, PRINCIPAL_KEY, Principal
from headrace.registry.api.request_bodies import Body
from headrace.registry.storage.footing import noting

ROUTE_KEY: Final = "registry.route"
"""Where in the environ the application leaves the rule that its path matched, for metrics."""

KEEP_KEY: Final = "registry.keep"
"""Where in the environ the application says that its answer may be kept while its footing holds."""

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


def environ_of(scope: Any, body: Body | None, principal: Principal | None) -> dict[str, Any]:
    """The WSGI environ of an ASGI request; of a body that is too large it has only the length.

    Without a body it asks whether to receive that.
    """
    host, port = scope.get("server") or ("localhost", 80)
    client = scope.get("client") or ("", 0)
    query = scope["query_string"].decode("latin-1")
    raw_path = scope["raw_path"].decode("latin-1")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode("utf-8", "surrogateescape").decode("latin-1"),
        "RAW_URI": f"{raw_path}?{query}" if query else raw_path,
        "QUERY_STRING": query,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(b"" if body is None else body.content),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if CERTIFICATE_KEY in scope:
        environ[CERTIFICATE_KEY] = scope[CERTIFICATE_KEY]
    if body is None:
        environ[ASKS_KEY] = True
    for name_bytes, value_bytes in scope["headers"]:
        name = name_bytes.decode("latin-1")
        # `A_B` and `A-B` would be one key; the one with the underscore is what nobody sends in good faith.
        if "_" in name or name in ("content-length", "transfer-encoding"):
            continue
        key = "CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_")
        value = value_bytes.decode("latin-1")
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if scope["method"] in ("POST", "PUT", "PATCH"):
        environ["CONTENT_LENGTH"] = str(0 if body is None else body.length)
    if principal is not None:
        environ[PRINCIPAL_KEY] = principal
    return environ


def call(application: WsgiApplication, environ: dict[str, Any]) -> Answer:
    """Runs the application in this thread."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        started[:] = [(status, headers)]
        return _no_writing

    with noting() as notes:
        parts = application(environ, start_response)
        try:
            body = b"".join(parts)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
    status, headers = started[0]
    return Answer(
        int(status[:3]),
        tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers),
        body,
        environ.get(ROUTE_KEY, ""),
        environ.get(PRINCIPAL_KEY),
        notes.footing() if environ.get(KEEP_KEY) else None,
    )


def _no_writing(_: bytes) -> None:
    raise RuntimeError("the application returns its body")
