"""Passes requests for consumer instances on to the gateway that has the instance, so that a balancer may send each
request to any gateway.

All gateways have the same list, `gateway.peers`. The hash of an instance's group and name orders it: an instance is
created on the first gateway of its order that responds, and searched in this order.

Requests are passed on only to gateways of the list, with the credentials of the client, and only once: a gateway does
not pass on a request that has `PASSED_ON`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.request_body import until_disconnected
from headrace.settings import GatewaySettings, SettingsError

logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request

PASSED_ON: Final = "headrace-passed-on"
"""Header of a request from another gateway."""
CLIENT: Final = "x-forwarded-for"
"""Header with the address of the client. The other gateway trusts it if its `gateway.proxies` contains this gateway."""
SENT_HEADERS: Final = ("authorization", "accept", "content-type", "idempotency-key")
RETURNED_HEADERS: Final = ("content-type", "content-length", "retry-after", "www-authenticate", "idempotent-replayed")
PROXY_ERRORS: Final = frozenset({502, 503, 504})
"""Statuses of a proxy in front of a gateway that does not respond. Its body is not JSON, unlike that of a gateway."""
CONNECT_S: Final = 2.0
RESPONSE_S: Final = 90.0
"""Time limit of a response: the longest time-out of a read, the wait for the group's assignment, and a reserve."""
PAUSE_S: Final = 5.0
"""Time for which a gateway gets no requests after a connection attempt that timed out."""
RETRY_AFTER_S: Final = 1


class Peers:
    """The gateways of `gateway.peers`, for the coroutines of one event loop. Without the setting there are none.

    Args:
        settings: the settings of the gateway.
        ca_file: PEM file of the certificate authorities to trust; "" is the system's trust store.

    Raises:
        SettingsError: the list has something else than addresses, or not this gateway's own.
    """

    def __init__(self, settings: GatewaySettings, ca_file: str = "") -> None:
        self._own = settings.url.rstrip("/")
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in settings.peers))
        _check(self._own, self._urls)
        self._paused: dict[str, float] = {}
        """When connections to a gateway are attempted again."""
        self._end = asyncio.Event()
        trust: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca_file or None) if self._urls else False
        self._client = httpx.AsyncClient(
            verify=trust,
            trust_env=False,  # no proxy would reach the other gateways
            timeout=httpx.Timeout(RESPONSE_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )

    def may_pass_on(self, request: Request) -> bool:
        """Whether other gateways may respond to a request."""
        return bool(self._urls) and PASSED_ON not in request.headers

    def order(self, group: str, name: str) -> Sequence[str]:
        """Returns the URLs of all gateways, in the order in which they may have an instance."""
        return sorted(self._urls, key=lambda url: hashlib.sha256(f"{url} {group}/{name}".encode()).digest())

    def is_first(self, group: str, name: str) -> bool:
        """Whether this gateway is the first in the order of an instance, or the only one."""
        return not self._urls or self.order(group, name)[0] == self._own

    async def find(self, request: Request, group: str, name: str, body: bytes) -> Response | None:
        """Passes a request on to the other gateway that has an instance. Returns its response; None if no gateway that
        responds has the instance.

        Args:
            body: the body of the request, decompressed.

        Raises:
            ClientDisconnect: the client has disconnected.
            GatewayError: this gateway is stopping.
        """
        found = await self._find(request, group, name, request.method, _target(request), body)
        return None if found is None else _returned(found)

    async def create(self, request: Request, group: str, name: str, body: bytes) -> Response | None:
        """Has an instance created on the first gateway of its order that responds. Returns the response; None if that
        is this gateway.

        Raises:
            ClientDisconnect: the client has disconnected.
            GatewayError: another gateway has the instance, or this gateway is stopping.
        """
        probe = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}/subscription".encode()
        existing = await self._find(request, group, name, "GET", probe, b"")
        if existing is not None:
            await existing.aclose()
            raise GatewayError(Kind.INSTANCE_EXISTS, f"consumer instance {name} of group {group} already exists")
        return await self.first(request, group, name, body)

    async def first(self, request: Request, group: str, name: str, body: bytes) -> Response | None:
        """Passes a request on to the first gateway of an order that responds. Returns the response; None if that is
        this gateway.

        Raises:
            ClientDisconnect: the client has disconnected.
            GatewayError: this gateway is stopping.
        """
        for url in self.order(group, name):
            if url == self._own:
                return None
            received = await self._send(url, request, request.method, _target(request), body)
            if received is not None:
                return _returned(received)
        return None

    async def _find(
        self, request: Request, group: str, name: str, method: str, target: bytes, body: bytes
    ) -> httpx.Response | None:
        for url in self.order(group, name):
            received = None if url == self._own else await self._send(url, request, method, target, body)
            if received is not None and not await _is_missing(received):
                return received
        return None

    async def _send(self, url: str, request: Request, method: str, target: bytes, body: bytes) -> httpx.Response | None:
        """Sends a request with the credentials of another one. Returns None if the gateway does not respond."""
        if time.monotonic() < self._paused.get(url, 0.0):
            return None
        headers = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
        headers |= {PASSED_ON: "1", CLIENT: caller_of(request).address}
        passed = self._client.build_request(
            method, httpx.URL(url).copy_with(raw_path=target), headers=headers, content=body
        )
        try:
            received = await self._unless_gone(request, passed)
        except httpx.TransportError as error:
            if isinstance(error, httpx.ConnectTimeout):
                self._paused[url] = time.monotonic() + PAUSE_S
            logger.warning("peer_unreachable url=%s error=%s", url, type(error).__name__)
            return None
        if received.status_code in PROXY_ERRORS and "json" not in received.headers.get("content-type", ""):
            await received.aclose()
            logger.warning("peer_unreachable url=%s status=%d", url, received.status_code)
            return None
        return received

    async def _unless_gone(self, request: Request, passed: httpx.Request) -> httpx.Response:
        sending = asyncio.ensure_future(self._client.send(passed, stream=True))
        others = [asyncio.ensure_future(until_disconnected(request)), asyncio.ensure_future(self._end.wait())]
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
            if others[0].done():
                raise ClientDisconnect
            raise GatewayError(
                Kind.KAFKA_UNAVAILABLE, "the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S
            )
        finally:
            for one in (sending, *others):
                one.cancel()  # the other gateway notices the closed connection

    def end_waits(self) -> None:
        """Ends requests that wait for other gateways, before the server stops."""
        self._end.set()

    async def close(self) -> None:
        await self._client.aclose()


def _target(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    path: bytes = request.scope["raw_path"]
    return path + b"?" + query if query else path


async def _is_missing(received: httpx.Response) -> bool:
    """Whether a response says that the gateway does not have the instance."""
    missing = Kind.INSTANCE_OR_PARTITION_NOT_FOUND.value
    if received.status_code != missing.status:
        return False
    with contextlib.suppress(httpx.TransportError, ValueError, AttributeError):
        await received.aread()
        return bool(received.json().get("error_code") == missing.code)
    return True


def _returned(received: httpx.Response) -> Response:
    headers = {name: received.headers[name] for name in RETURNED_HEADERS if name in received.headers}
    if received.is_closed:  # read already
        return Response(received.content, received.status_code, headers)
    return StreamingResponse(_chunks(received), received.status_code, headers)


async def _chunks(received: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in received.aiter_raw():
            yield chunk
    finally:
        with contextlib.suppress(httpx.HTTPError):
            await received.aclose()


def _check(own: str, urls: Sequence[str]) -> None:
    for url in urls:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or "@" in url
            or url != parts._replace(path="", query="", fragment="").geturl()
        ):
            raise SettingsError(f"gateway.peers: {url!r:.80} is no URL such as http://gateway1:8082")
    if urls and own not in urls:
        raise SettingsError(
            f"gateway.peers does not have gateway.url, {own or 'which is not set'}; list the URLs of all gateways, "
            "with this one"
        )
