"""The outermost ASGI application: finds the caller of each request, and counts and logs its response."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from headrace.gateway.access import CALLER_KEY, GatewayAccess
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.responses import error_response
from headrace.registry.operation.access_log import AccessLog

logger = logging.getLogger(__name__)

PUBLIC: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Paths without authentication: probes, and the description of the interface."""
PATH_CHARS_MAX: Final = 4096
CLIENT_GONE: Final = 499
"""Status in log and metrics of a request whose client disconnected before the response began, as in nginx."""

Application = Callable[[Any, Any, Any], Awaitable[None]]


class GatewayFront:
    """Wraps the application with authentication, metrics and the access log.

    Args:
        application: the application with the routes.
        access: finds the callers.
        metrics: the counts.
        log: the access log; None for none.
    """

    def __init__(
        self, application: Application, access: GatewayAccess, metrics: GatewayMetrics, log: AccessLog | None
    ) -> None:
        self._application = application
        self._access = access
        self._metrics = metrics
        self._log = log
        self.waits: Sequence[Callable[[], None]] = ()
        """Functions that end requests which wait for records or for other gateways."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began_s = time.perf_counter()
        status, size = CLIENT_GONE, 0
        if scope["path"].endswith("/") and scope["path"] != "/":
            scope["path"] = scope["path"][:-1]  # the REST Proxy ignores a slash at the end

        async def counted(message: Any) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._respond(scope, receive, counted)
        finally:
            seconds = time.perf_counter() - began_s
            route = getattr(scope.get("route"), "path", "")
            self._metrics.count_response(scope["method"], route, status, seconds)
            if self._log is not None:
                caller = scope.get(CALLER_KEY)
                self._log.write(scope, status, size, seconds, "" if caller is None else caller.principal.name)

    def end_waits(self) -> None:
        """Ends waiting requests, before the server stops."""
        for end in self.waits:
            end()

    async def _respond(self, scope: Any, receive: Any, send: Any) -> None:
        if "\0" in scope["path"] or len(scope["path"]) > PATH_CHARS_MAX:  # the Kafka client would truncate a name
            error = GatewayError(Kind.NOT_FOUND, "the path does not exist")
            await error_response(error, scope["path"])(scope, receive, send)
            return
        if scope["path"] not in PUBLIC:
            try:
                scope[CALLER_KEY] = await self._access.caller(scope)
            except GatewayError as refused:
                await error_response(refused, scope["path"])(scope, receive, send)
                return
        await self._application(scope, receive, send)

    def close(self) -> None:
        self._access.close()
        if self._log is not None:
            self._log.close()
