"""What the server calls: answers from the cache where one holds, and the application in threads for everything else.

A kept answer is given again for a request with the same method, target, `KEY_HEADERS`, body and principal, when
`Leases` says that what it rests on has not changed. So content negotiation and access control have been decided by the
application for just such a request, and a deletion, a new version or a change of configuration ends it everywhere.
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

from headrace.registry.api.answer_cache import BYTES_MAX, Answer, AnswerCache
from headrace.registry.api.answers import PRODUCED, acceptable, to_json
from headrace.registry.api.checkers import Checkers
from headrace.registry.api.fair_lane import FairLane, LaneFull
from headrace.registry.api.hooks import (
    ANYBODY,
    CERTIFICATE_KEY,
    ELSEWHERE_KEY,
    LEFT_KEY,
    WORTH_RECEIVING,
    Authenticator,
    Everybody,
    Nobody,
    Observer,
    Principal,
)
from headrace.registry.api.leases import Leases
from headrace.registry.api.request_bodies import (
    NO_BODY,
    SMALL_BYTES_MAX,
    Announced,
    Body,
    BodyRefused,
    Receive,
    RequestBodies,
)
from headrace.registry.api.request_rates import RequestRates
from headrace.registry.api.wsgi_call import WsgiApplication, call, environ_of
from headrace.registry.service.compatibility import Comparison, Elsewhere
from headrace.registry.storage.footing import LEASE_S
from headrace.registry.storage.looks import Looks

logger = logging.getLogger(__name__)

THREADS: Final = 16  # requests that the application answers at once; the database's pool has a connection for each
STRANGERS_THREADS: Final = 8  # of their own for those whose sender is not known at once: they wait for a slow hash
WAITING_MAX: Final = 2000  # requests that are in a thread or wait for one; more are told to come back
LEFT_MAX: Final = 3  # comparisons of one request made by processes; each one more found a newer version to compare with
BODYLESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
KEPT_METHODS: Final = frozenset({"GET", "HEAD", "POST"})
KEY_BYTES_MAX: Final = 512  # of a key of what is kept as it is; a request may be a hundred times as long
KEY_HEADERS: Final = frozenset({b"accept", b"content-type", b"confluent-accept-unknown-properties"})
"""Headers that answers depend on, apart from who asks."""

KEY_HEADERS_BYTES_MAX: Final = 4096  # of those together; 60 KB of `Accept` took 0.2 s to understand
LIVENESS: Final = b"/healthz"
"""What is answered whatever else is under way."""

TOO_MANY: Final = "Too many requests of one client; come back later"
REQUEST_ID: Final = b"x-request-id"
"""Goes back with the answer as it came, so that a client's log and ours can be laid side by side."""

REQUEST_ID_BYTES_MAX: Final = 200  # a longer one is no id

Send = Callable[[Any], Awaitable[None]]


class _Lane:
    """Threads, and how many requests are in one of them or wait for one."""

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="registry")
        self.waiting = 0


class Front:
    """The ASGI application of one process and one event loop.

    Args:
        application: the WSGI application; it says by `KEEP_KEY` what may be kept.
        looks: where revisions are looked at.
        request_bytes_max: the application is told of larger bodies, but not given them.
        authenticator: tells principals apart.
        observer: is told of every answer.
        cache_bytes_max: of kept answers.
        rates: how many requests a client may send; None lets all through.
        checkers: has checks of compatibility made elsewhere, and what registrations compare for long; None makes both
            in threads.
        on_end: closes what the application holds, once no request is under way.
        lease_s: how long a cached answer may be given after a look at the registry's revision.
    """

    def __init__(
        self,
        application: WsgiApplication,
        looks: Looks,
        *,
        request_bytes_max: int,
        authenticator: Authenticator | None = None,
        observer: Observer | None = None,
        cache_bytes_max: int = BYTES_MAX,
        rates: RequestRates | None = None,
        checkers: Checkers | None = None,
        on_end: Callable[[], None] = lambda: None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._application = application
        self._bodies = RequestBodies(request_bytes_max)
        self._recall = (Everybody() if authenticator is None else authenticator).recall
        self._observe = (Nobody() if observer is None else observer).answered
        self._cache = AnswerCache(cache_bytes_max)
        self._leases = Leases(looks, lease_s=lease_s)
        self._rates = rates
        self._known = _Lane(THREADS)
        self._strangers = _Lane(STRANGERS_THREADS)
        self._checks = FairLane()
        self._checkers = checkers
        self._on_end = on_end
        self._is_ending = False
        self.on_start: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Runs beside the requests for as long as they are answered."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._respond(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        beside: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                beside = None if self.on_start is None else asyncio.create_task(self.on_start())
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self._is_ending = True  # connections that are still open may bring requests
                if beside is not None:
                    beside.cancel()
                for lane in (self._known, self._strangers):
                    await asyncio.get_running_loop().run_in_executor(None, lane.threads.shutdown)
                if self._checkers is not None:
                    await asyncio.get_running_loop().run_in_executor(None, self._checkers.close)
                await self._leases.close()
                self._on_end()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _respond(self, scope: Any, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        method = scope["method"]
        authorization: str | None = None
        said: list[bytes] = []
        echoed: tuple[tuple[bytes, bytes], ...] = ()
        for header in scope["headers"]:
            if header[0] in KEY_HEADERS:
                said += header
            elif header[0] == b"authorization":
                value = header[1].decode("latin-1")
                # As the application sees two of them, which are nobody's.
                authorization = value if authorization is None else f"{authorization},{value}"
            elif header[0] == REQUEST_ID and len(header[1]) <= REQUEST_ID_BYTES_MAX:
                echoed = ((REQUEST_ID, header[1]),)
        principal = self._recall(authorization, scope.get(CERTIFICATE_KEY, ""))
        has_rest = False
        if scope["raw_path"] == LIVENESS and method == "GET" and authorization is None:
            # Before all queues: who does not answer is restarted, and that helps nobody who waits in one.
            answer, is_kept = _alive(scope), False
        elif self._rates is not None and (wait_s := self._rates.wait_s(_client_of(scope, principal))):
            answer, is_kept, has_rest = problem(429, TOO_MANY, wait_s), False, method not in BODYLESS
        elif sum(map(len, said)) > KEY_HEADERS_BYTES_MAX:
            answer, is_kept, has_rest = problem(431), False, method not in BODYLESS
        elif method in BODYLESS:
            answer, is_kept = await self._answered(scope, said, NO_BODY, principal)
        else:
            answer, is_kept, has_rest = await self._answered_with_body(scope, receive, said, principal)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers + echoed})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})
        seconds = time.perf_counter() - began
        self._observe(
            scope,
            answer.route,
            answer.status,
            len(answer.body),
            seconds,
            principal if is_kept else answer.principal,
            cached=is_kept,
        )
        if has_rest:
            await self._bodies.let_pass(receive)

    async def _answered_with_body(
        self, scope: Any, receive: Receive, said: list[bytes], principal: Principal | None
    ) -> tuple[Answer, bool, bool]:
        """The answer, whether it was kept, and whether the client may still be sending its body."""
        announced = Announced.of(scope)
        if not announced.is_small and _is_stranger(principal):
            # Who may not make the call at all is told so without a place for the body.
            first = await self._applied(scope, None, principal)
            if first.status != WORTH_RECEIVING:
                return first, False, not announced.waits
            principal = first.principal
        try:
            body = await self._bodies.receive(announced, receive)
        except BodyRefused as refusal:
            return problem(refusal.status), False, refusal.has_rest
        try:
            answer, is_kept = await self._answered(scope, said, body, principal)
        finally:
            self._bodies.release(body)
        return answer, is_kept, body.has_rest

    async def _answered(
        self, scope: Any, said: list[bytes], body: Body, principal: Principal | None
    ) -> tuple[Answer, bool]:
        """The answer, and whether it was kept."""
        if self._is_ending:
            return problem(503), False
        is_whole = body.length == len(body.content)
        can_be_kept = is_whole and scope["method"] in KEPT_METHODS
        question = _question(scope, said, body.content) if can_be_kept else None
        if can_be_kept and principal is not None:
            kept = self._cache.get(question, principal)
            if kept is not None:
                assert kept.footing is not None
                if self._leases.holds(kept.footing):
                    return kept, True
                holds = await self._leases.look(kept.footing)
                if holds:
                    return kept, True
                if holds is False:
                    # Revisions only grow: what does not hold now never will again.
                    self._cache.drop(question, principal)
        answer = await self._applied(scope, body, principal)
        if can_be_kept and answer.status == 200 and scope["method"] != "HEAD":
            self._cache.put(question, answer)
        return answer, False

    async def _applied(self, scope: Any, body: Body | None, principal: Principal | None) -> Answer:
        """What the application answers, which is called in a thread; without a body, whether to receive that."""
        lane = self._strangers if principal is None else self._known
        if self._is_ending or lane.waiting >= WAITING_MAX:
            return problem(503)
        is_check = body is not None and _is_check(scope)
        if is_check and principal is None:
            # Whose turn it is can be said when it is known who asks.
            first = await self._applied(scope, None, None)
            return first if first.status != WORTH_RECEIVING else await self._applied(scope, body, first.principal)
        lane.waiting += 1
        try:
            checkers = self._checkers
            is_large = body is not None and body.length > SMALL_BYTES_MAX
            ask = partial(self._asked, lane, scope, body)
            work: Callable[[], Awaitable[Answer]]
            if not is_check:
                answer, comparison = await ask(principal, Elsewhere())
                if comparison is None:
                    return answer
                principal = answer.principal
                work = partial(self._compared, partial(ask, principal), comparison)
            elif checkers is not None and (checkers.are_ready() or is_large):
                work = partial(checkers.answer, environ_of(scope, body, principal))
            else:
                work = partial(self._compared, partial(ask, principal))
            return await self._checks.run(_client_of(scope, principal), partial(self._unless_ending, work))
        except LaneFull:
            return problem(503, "Too many checks of compatibility at once; try again")
        except Exception:
            logger.exception("request failed: method=%s", scope["method"])
            return problem(500)
        finally:
            lane.waiting -= 1

    async def _asked(
        self, lane: _Lane, scope: Any, body: Body | None, principal: Principal | None, elsewhere: Elsewhere | None
    ) -> tuple[Answer, Comparison | None]:
        """What the application answers in a thread; the answer says nothing if it leaves a comparison."""
        if self._is_ending:
            return problem(503), None
        environ = environ_of(scope, body, principal)
        if elsewhere is not None:
            environ[ELSEWHERE_KEY] = elsewhere
        answer = await asyncio.get_running_loop().run_in_executor(lane.threads, call, self._application, environ)
        return answer, environ.get(LEFT_KEY)

    async def _compared(
        self,
        ask: Callable[[Elsewhere | None], Awaitable[tuple[Answer, Comparison | None]]],
        left: Comparison | None = None,
    ) -> Answer:
        """The answer to a request whose turn it is to have something compared for long."""
        checkers = self._checkers
        for _ in range(LEFT_MAX):
            if left is None or checkers is None:
                break
            worked_out = None
            with suppress(BrokenProcessPool):  # others take their place
                worked_out = await checkers.work_out(left)
            answer, left = await ask(Elsewhere(worked_out))
            if left is None:
                return answer
        answer, _ = await ask(None)
        return answer

    async def _unless_ending(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """For who has waited for a turn, while which the threads may have ended."""
        return problem(503) if self._is_ending else await work()


def _is_stranger(principal: Principal | None) -> bool:
    """Whether somebody has shown no password yet where there are some."""
    return principal is None or (principal is not ANYBODY and not principal.name)


def _is_check(scope: Any) -> bool:
    """Whether a request asks to compare schemas, which can take seconds of computing."""
    parts = scope["raw_path"].split(b"/", 4)
    return b"compatibility" in (parts[1:2] if parts[1:2] != [b"contexts"] else parts[3:4])


def _client_of(scope: Any, principal: Principal | None) -> Hashable:
    """By which those who ask are told apart: the user, or the address of who needs to be none."""
    if principal is not None and principal.name:
        return principal.name
    return (scope.get("client") or ("",))[0], "address"


def _alive(scope: Any) -> Answer:
    """What the application answers at `LIVENESS`."""
    accept = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
    content_type = acceptable(accept[:KEY_HEADERS_BYTES_MAX]) or PRODUCED[0][0]
    body = to_json({"status": "ok"})
    headers = ((b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body)))
    return Answer(200, headers, body, LIVENESS.decode(), ANYBODY)


def problem(status: int, message: str = "", retry_after_s: float = 1) -> Answer:
    """An error that the application does not know of, in the API's form."""
    message = message or f"HTTP {status} {http.HTTPStatus(status).phrase}"
    headers = [(b"content-type", PRODUCED[0][0].encode())]
    if status in (400, 408, 413):
        # What else comes on this connection is not a request.
        headers.append((b"connection", b"close"))
    elif status in (429, 503):
        headers.append((b"retry-after", b"%d" % math.ceil(retry_after_s)))
    return Answer(status, tuple(headers), json.dumps({"error_code": status, "message": message}).encode())


def _question(scope: Any, said: list[bytes], content: bytes) -> Hashable:
    """Equal for requests that anybody with the same rights is answered alike."""
    # No part can hold a NUL byte but the digest, which is there for POST alone. HEAD is answered with what GET was.
    is_post = scope["method"] == "POST"
    digest = hashlib.blake2b(content, digest_size=16).digest() if is_post else b""
    text = b"\0".join((scope["raw_path"], scope["query_string"], *said, digest))
    if len(text) > KEY_BYTES_MAX:
        return hashlib.blake2b(text).digest(), "digest"
    return text
