"""Calls the WSGI application for a complete ASGI request and collects its complete response.

The body is received before a thread is used, and the response is sent after the thread is released. A slow client thus
occupies a connection but no thread. Existing ASGI-to-WSGI bridges stream both through the thread.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.registry.api.hooks import CERTIFICATE_KEY, PREFLIGHT_KEY, PRINCIPAL_KEY, Principal
from headrace.registry.api.request_bodies import Body
from headrace.registry.api.response_cache import AppResponse
from headrace.registry.storage.dependencies import record_dependencies

ROUTE_KEY: Final = "registry.route"
"""WSGI environ key that the application sets to the matched URL rule, for metrics."""

CACHEABLE_KEY: Final = "registry.cacheable"
"""WSGI environ key that the application sets to True if the response may be cached until one of its dependencies
changes."""

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


def environ_of(scope: Any, body: Body | None, principal: Principal | None) -> dict[str, Any]:
    """The WSGI environ of an ASGI request. A body that is too large only contributes its length.

    Args:
        scope: the ASGI scope of the request.
        body: None means that the application only finds out whether the request is authorized; see `PREFLIGHT_KEY`.
        principal: the sender of the request; None means that the application must authenticate it.
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
        environ[PREFLIGHT_KEY] = True
    for name_bytes, value_bytes in scope["headers"]:
        name = name_bytes.decode("latin-1")
        # WSGI maps `A_B` and `A-B` to the same key. Only `A-B` is legitimate.
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


def call(application: WsgiApplication, environ: dict[str, Any]) -> AppResponse:
    """Runs the application in this thread for the request with this WSGI environ, and returns its response."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        started[:] = [(status, headers)]
        return _no_writing

    with record_dependencies() as recorder:
        parts = application(environ, start_response)
        try:
            body = b"".join(parts)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
    status, headers = started[0]
    return AppResponse(
        int(status[:3]),
        tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers),
        body,
        environ.get(ROUTE_KEY, ""),
        environ.get(PRINCIPAL_KEY),
        recorder.dependencies() if environ.get(CACHEABLE_KEY) else None,
    )


def _no_writing(_: bytes) -> None:
    raise RuntimeError("the WSGI application called write(), which is not supported; return the body instead")
