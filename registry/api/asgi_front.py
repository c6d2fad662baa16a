"""The ASGI application of a worker: serves valid cached responses, and otherwise runs the Flask application.

The application runs in threads, or for some compatibility checks in processes of the compute pool.

A cached response is reused for a request with the same method, target, `KEY_HEADERS`, body and permissions, as long as
`Leases` finds its dependencies unchanged. The application has thus already done content negotiation and authorization
for an equal request. HEAD requests use the responses to GET. A deletion, a new version or a change of configuration
invalidates the response in all processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import http
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import Any, Final

from headrace.registry.api.client_queues import ClientQueueFull, ClientQueues
from headrace.registry.api.compute_pool import ComputePool
from headrace.registry.api.cross_origin import CrossOriginPolicy
from headrace.registry.api.hooks import (
    CERTIFICATE_KEY,
    DEFERRED_KEY,
    OFFLOAD_KEY,
    PREFLIGHT_OK,
    UNRESTRICTED,
    Authenticator,
    NoAuthentication,
    NoObserver,
    Principal,
    RequestObserver,
)
from headrace.registry.api.leases import Leases
from headrace.registry.api.request_bodies import (
    NO_BODY,
    SMALL_BYTES_MAX,
    Body,
    BodyHeaders,
    BodyRefused,
    Receive,
    RequestBodies,
)
from headrace.registry.api.request_rates import RequestRates
from headrace.registry.api.response_cache import BYTES_MAX, AppResponse, ResponseCache
from headrace.registry.api.responses import PRODUCED, negotiate_content_type, to_json
from headrace.registry.api.wsgi_call import WsgiApplication, call, environ_of
from headrace.registry.service.compatibility import Comparison, ComparisonOffload
from headrace.registry.storage.dependencies import LEASE_S
from headrace.registry.storage.revision_check import RevisionReader

logger = logging.getLogger(__name__)

THREADS: Final = 16  # requests that the application processes at once; the database pool has as many connections
UNAUTHENTICATED_THREADS: Final = 8  # separate, because requests of unknown principals wait for a slow password hash
WAITING_MAX: Final = 2000  # requests per thread pool, running or queued; more are rejected with 503
OFFLOADED_COMPARISONS_MAX: Final = 3  # per request; a concurrent new version makes another one necessary
BODYLESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
CACHEABLE_METHODS: Final = frozenset({"GET", "HEAD", "POST"})
KEY_BYTES_MAX: Final = 512  # longer cache keys are hashed; a request may be a hundred times as long
KEY_HEADERS: Final = frozenset(
    {b"accept", b"content-type", b"content-encoding", b"confluent-accept-unknown-properties"}
)
"""Headers that responses depend on, besides the credentials."""

KEY_HEADERS_BYTES_MAX: Final = 4096  # in total; parsing 60 KB of `Accept` takes 0.2 s
LIVENESS: Final = b"/healthz"
"""Path of the liveness probe. A GET request for it without an `Authorization` header bypasses all queues and limits."""

TOO_MANY: Final = "Too many requests of this client; try again later"
REQUEST_ID: Final = b"x-request-id"
"""Header that the response repeats, unless it is too long, so that the logs of client and server can be correlated."""

REQUEST_ID_BYTES_MAX: Final = 200  # longer values are ignored

Send = Callable[[Any], Awaitable[None]]


class _ThreadQueue:
    """A thread pool, and the number of requests that run in it or wait for it. Requests that run in the compute pool or
    wait in a client queue count too."""

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="registry")
        self.waiting = 0


class AsgiFront:
    """The ASGI application of one process and one event loop: serves valid cached responses, and runs the WSGI
    application for other requests.

    Args:
        application: the WSGI application, which marks cacheable responses by `CACHEABLE_KEY`.
        revision_reader: reads revisions from the database, to validate cached responses.
        request_bytes_max: of larger bodies the application receives only the length.
        authenticator: identifies principals; None gives every client all permissions.
        observer: is called with every response, for metrics and the access log.
        cache_bytes_max: the size of the response cache.
        rates: the rate limit per client; None for no limit.
        compute_pool: processes that compare schemas, in compatibility checks and when a comparison during a
            registration takes long; None compares them in threads.
        cross_origin: the web pages that may call the registry from a browser; None for no page.
        on_end: closes the application's resources after the last request.
        lease_s: how long a cached response that depends on no subject's revision is served after a check of the
            registry's revision.
    """

    def __init__(
        self,
        application: WsgiApplication,
        revision_reader: RevisionReader,
        *,
        request_bytes_max: int,
        authenticator: Authenticator | None = None,
        observer: RequestObserver | None = None,
        cache_bytes_max: int = BYTES_MAX,
        rates: RequestRates | None = None,
        compute_pool: ComputePool | None = None,
        cross_origin: CrossOriginPolicy | None = None,
        on_end: Callable[[], None] = lambda: None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._application = application
        self._bodies = RequestBodies(request_bytes_max)
        self._cached_principal = (NoAuthentication() if authenticator is None else authenticator).cached_principal
        self._observe = (NoObserver() if observer is None else observer).record
        self._cache = ResponseCache(cache_bytes_max)
        self._leases = Leases(revision_reader, lease_s=lease_s)
        self._rates = rates
        self._authenticated = _ThreadQueue(THREADS)
        self._unauthenticated = _ThreadQueue(UNAUTHENTICATED_THREADS)
        self._checks = ClientQueues()
        self._compute_pool = compute_pool
        self._cross_origin = cross_origin
        self._on_end = on_end
        self._is_ending = False
        self.on_start: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Coroutine function that runs concurrently with the requests until the shutdown."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._respond(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        background: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                background = None if self.on_start is None else asyncio.create_task(self.on_start())
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self._is_ending = True  # open connections may still send requests
                if background is not None:
                    background.cancel()
                for queue in (self._authenticated, self._unauthenticated):
                    await asyncio.get_running_loop().run_in_executor(None, queue.threads.shutdown)
                if self._compute_pool is not None:
                    await asyncio.get_running_loop().run_in_executor(None, self._compute_pool.close)
                await self._leases.close()
                self._on_end()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _respond(self, scope: Any, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        method = scope["method"]
        authorization: str | None = None
        origin: bytes | None = None
        key_headers: list[bytes] = []
        echoed: tuple[tuple[bytes, bytes], ...] = ()
        for header in scope["headers"]:
            if header[0] in KEY_HEADERS:
                key_headers += header
            elif header[0] == b"authorization":
                value = header[1].decode("latin-1")
                # Two headers are joined as in the WSGI environ, which makes them invalid credentials.
                authorization = value if authorization is None else f"{authorization},{value}"
            elif header[0] == REQUEST_ID and len(header[1]) <= REQUEST_ID_BYTES_MAX:
                echoed = ((REQUEST_ID, header[1]),)
            elif header[0] == b"origin":
                origin = header[1]
        principal = self._cached_principal(authorization, scope.get(CERTIFICATE_KEY, ""))
        has_unread = False
        if scope["raw_path"] == LIVENESS and method == "GET" and authorization is None:
            # Before all queues: a failed probe restarts the process, which would only delay the queued requests.
            response, is_cached = _liveness_response(scope), False
        elif self._rates is not None and (wait_s := self._rates.wait_s(_rate_limit_key(scope, principal))):
            response, is_cached, has_unread = error_response(429, TOO_MANY, wait_s), False, method not in BODYLESS
        elif sum(map(len, key_headers)) > KEY_HEADERS_BYTES_MAX:
            response, is_cached, has_unread = error_response(431), False, method not in BODYLESS
        elif self._cross_origin is not None and (preflight := self._cross_origin.preflight(scope, origin)) is not None:
            response, is_cached = preflight, False
        elif method in BODYLESS:
            response, is_cached = await self._cached_or_run(scope, key_headers, NO_BODY, principal)
        elif origin is not None and b"content-type" not in key_headers and not self._allows(origin):
            # Other types of content need a preflight, or are no types of the API.
            response, is_cached, has_unread = error_response(415), False, True
        else:
            response, is_cached, has_unread = await self._receive_and_run(scope, receive, key_headers, principal)
        if self._cross_origin is not None:
            echoed += self._cross_origin.headers(origin)
        body = b"" if method == "HEAD" else response.body
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers + echoed})
        await send({"type": "http.response.body", "body": body})
        seconds = time.perf_counter() - started_at
        self._observe(
            scope,
            response.route,
            response.status,
            len(body),
            seconds,
            principal if is_cached else response.principal,
            cached=is_cached,
        )
        if has_unread:
            await self._bodies.discard_rest(receive)

    def _allows(self, origin: bytes) -> bool:
        """Whether pages of this origin may call the registry."""
        return self._cross_origin is not None and self._cross_origin.allows(origin)

    async def _receive_and_run(
        self, scope: Any, receive: Receive, key_headers: list[bytes], principal: Principal | None
    ) -> tuple[AppResponse, bool, bool]:
        """Receives the body of a request and responds from the cache or by running the application.

        Args:
            scope: the ASGI scope of the request.
            receive: receives the next part of the body.
            key_headers: names and values of the request's `KEY_HEADERS`, on which the response depends.
            principal: the sender of the request; None if the application must authenticate it.

        Returns:
            The response, whether it is from the cache, and whether the client may still be sending its body.
        """
        headers = BodyHeaders.of(scope)
        if not headers.is_small and _is_anonymous(principal):
            # A large body is only buffered once the request is authorized.
            preflight = await self._run(scope, None, principal)
            if preflight.status != PREFLIGHT_OK:
                return preflight, False, not headers.expects_continue
            principal = preflight.principal
        try:
            body = await self._bodies.receive(headers, receive)
        except BodyRefused as refusal:
            return error_response(refusal.status), False, refusal.has_unread
        try:
            response, is_cached = await self._cached_or_run(scope, key_headers, body, principal)
        finally:
            self._bodies.release(body)
        return response, is_cached, body.has_unread

    async def _cached_or_run(
        self, scope: Any, key_headers: list[bytes], body: Body, principal: Principal | None
    ) -> tuple[AppResponse, bool]:
        """Responds from the cache if possible, otherwise by running the application.

        Args:
            scope: the ASGI scope of the request.
            key_headers: names and values of the request's `KEY_HEADERS`, on which the response depends.
            body: the body of the request.
            principal: the sender of the request; None if the application must authenticate it.

        Returns:
            The response, and whether it is from the cache.
        """
        if self._is_ending:
            return error_response(503), False
        is_complete = body.length == len(body.content)
        is_cacheable = is_complete and scope["method"] in CACHEABLE_METHODS
        key = _cache_key(scope, key_headers, body.content) if is_cacheable else None
        if is_cacheable and principal is not None:
            cached = self._cache.get(key, principal)
            if cached is not None:
                assert cached.dependencies is not None
                if self._leases.is_valid(cached.dependencies):
                    return cached, True
                is_valid = await self._leases.check(cached.dependencies)
                if is_valid:
                    return cached, True
                if is_valid is False:
                    # Revisions only grow, so an invalid response never becomes valid again.
                    self._cache.drop(key, principal)
        response = await self._run(scope, body, principal)
        if is_cacheable and response.status == 200 and scope["method"] != "HEAD":
            self._cache.put(key, response)
        return response, False

    async def _run(self, scope: Any, body: Body | None, principal: Principal | None) -> AppResponse:
        """Runs the application for a request and returns its response.

        Args:
            scope: the ASGI scope of the request.
            body: the body of the request; None only finds out whether the request is authorized, see
                `hooks.PREFLIGHT_KEY`.
            principal: the sender of the request; None if the application must authenticate it.
        """
        queue = self._unauthenticated if principal is None else self._authenticated
        if self._is_ending or queue.waiting >= WAITING_MAX:
            return error_response(503)
        is_check = body is not None and _is_check(scope)
        if is_check and principal is None:
            # The queue of checks is per client, so the principal must be known first.
            preflight = await self._run(scope, None, None)
            return preflight if preflight.status != PREFLIGHT_OK else await self._run(scope, body, preflight.principal)
        queue.waiting += 1
        try:
            compute_pool = self._compute_pool
            is_large = body is not None and body.length > SMALL_BYTES_MAX
            run_in_thread = partial(self._run_in_thread, queue, scope, body)
            work: Callable[[], Awaitable[AppResponse]]
            if not is_check:
                response, comparison = await run_in_thread(principal, ComparisonOffload())
                if comparison is None:
                    return response
                principal = response.principal
                work = partial(self._run_comparisons, partial(run_in_thread, principal), comparison)
            elif compute_pool is not None and (compute_pool.is_ready() or is_large):
                work = partial(compute_pool.respond, environ_of(scope, body, principal))
            else:
                work = partial(self._run_comparisons, partial(run_in_thread, principal))
            return await self._checks.run(_rate_limit_key(scope, principal), partial(self._run_unless_stopping, work))
        except ClientQueueFull:
            return error_response(503, "Too many compatibility checks at once; try again")
        except Exception:
            logger.exception("request_failed method=%s", scope["method"])
            return error_response(500)
        finally:
            queue.waiting -= 1

    async def _run_in_thread(
        self,
        queue: _ThreadQueue,
        scope: Any,
        body: Body | None,
        principal: Principal | None,
        offload: ComparisonOffload | None,
    ) -> tuple[AppResponse, Comparison | None]:
        """Runs the application in a thread. The application may defer a long comparison of schemas, which the caller
        then runs in another process.

        Args:
            queue: the thread pool.
            scope: the ASGI scope of the request.
            body: the body of the request; None only finds out whether the request is authorized.
            principal: the sender of the request; None if the application must authenticate it.
            offload: allows the application to defer a comparison, and has the result of the previous one; None makes it
                compare in the thread.

        Returns:
            The response and the deferred comparison. If the comparison is None, the response is final; otherwise it is
            a placeholder.
        """
        if self._is_ending:
            return error_response(503), None
        environ = environ_of(scope, body, principal)
        if offload is not None:
            environ[OFFLOAD_KEY] = offload
        response = await asyncio.get_running_loop().run_in_executor(queue.threads, call, self._application, environ)
        return response, environ.get(DEFERRED_KEY)

    async def _run_comparisons(
        self,
        run_in_thread: Callable[[ComparisonOffload | None], Awaitable[tuple[AppResponse, Comparison | None]]],
        deferred: Comparison | None = None,
    ) -> AppResponse:
        """Runs the comparisons of schemas that the application defers in the compute pool, and returns the
        application's final response.

        After each comparison the application runs again with the result. Without a pool, or after
        `OFFLOADED_COMPARISONS_MAX` comparisons, it compares the schemas itself.

        Args:
            run_in_thread: runs the application for the request, like `_run_in_thread`.
            deferred: the comparison that the application has deferred; None if it has not run yet.
        """
        compute_pool = self._compute_pool
        for _ in range(OFFLOADED_COMPARISONS_MAX):
            if deferred is None or compute_pool is None:
                break
            result = None
            with suppress(BrokenProcessPool):  # the pool replaces its processes
                result = await compute_pool.run_comparison(deferred)
            response, deferred = await run_in_thread(ComparisonOffload(result))
            if deferred is None:
                return response
        response, _ = await run_in_thread(None)
        return response

    async def _run_unless_stopping(self, work: Callable[[], Awaitable[AppResponse]]) -> AppResponse:
        """Awaits `work` and returns its response, or a response with status 503 once the shutdown has begun.

        The shutdown may begin while a request waits in a client queue.
        """
        return error_response(503) if self._is_ending else await work()


def _is_anonymous(principal: Principal | None) -> bool:
    """Whether a client has not authenticated, in a registry with a users file. A client whose principal is not known
    yet (None) counts as anonymous."""
    return principal is None or (principal is not UNRESTRICTED and not principal.name)


def _is_check(scope: Any) -> bool:
    """Whether a request is a compatibility check, which may compute for seconds; `scope` is the ASGI scope of the
    request."""
    parts = scope["raw_path"].split(b"/", 4)
    return b"compatibility" in (parts[1:2] if parts[1:2] != [b"contexts"] else parts[3:4])


def _rate_limit_key(scope: Any, principal: Principal | None) -> Hashable:
    """The key of a client for rate limits and queues: the username, or the IP address of anonymous clients.

    Args:
        scope: the ASGI scope of the request, which has the address.
        principal: the principal of the client; None if it is not known yet, which counts as anonymous.
    """
    if principal is not None and principal.name:
        return principal.name
    return (scope.get("client") or ("",))[0], "address"


def _liveness_response(scope: Any) -> AppResponse:
    """The response to the liveness probe, equal to the application's response, except that it has status 200 also if
    the client accepts no content type of the API; `scope` is the ASGI scope of the request."""
    accept = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
    content_type = negotiate_content_type(accept[:KEY_HEADERS_BYTES_MAX]) or PRODUCED[0][0]
    body = to_json({"status": "ok"})
    headers = ((b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body)))
    return AppResponse(200, headers, body, LIVENESS.decode(), UNRESTRICTED)


def error_response(status: int, message: str = "", retry_after_s: float = 1) -> AppResponse:
    """An error response in the API's format, made without the application.

    Args:
        status: the HTTP status, which is also the `error_code` of the body.
        message: the `message` of the body; "" means the standard phrase of the status.
        retry_after_s: the value of the `Retry-After` header, which only responses with status 429 or 503 have.
    """
    message = message or f"HTTP {status} {http.HTTPStatus(status).phrase}"
    headers = [(b"content-type", PRODUCED[0][0].encode())]
    if status in (400, 408, 413):
        # The rest of the body may follow on this connection, so it cannot take another request.
        headers.append((b"connection", b"close"))
    elif status in (429, 503):
        headers.append((b"retry-after", b"%d" % math.ceil(retry_after_s)))
    return AppResponse(status, tuple(headers), json.dumps({"error_code": status, "message": message}).encode())


def _cache_key(scope: Any, key_headers: list[bytes], content: bytes) -> Hashable:
    """The key of a request in the response cache. Requests with equal keys have the same response for equal
    permissions.

    Args:
        scope: the ASGI scope of the request.
        key_headers: names and values of the request's `KEY_HEADERS`.
        content: the body.
    """
    # NUL separates the parts unambiguously: only the digest can contain it, and only POST has one. HEAD uses GET's key.
    is_post = scope["method"] == "POST"
    digest = hashlib.blake2b(content, digest_size=16).digest() if is_post else b""
    text = b"\0".join((scope["raw_path"], scope["query_string"], *key_headers, digest))
    if len(text) > KEY_BYTES_MAX:
        return hashlib.blake2b(text).digest(), "digest"
    return text
