"""Serves the gateway with uvicorn on uvloop: one process and one event loop, so that one producer sends the records of
all requests.

`docs/decisions/0011-gateway-server.md` has the measurements of other servers.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.registry.api.listening import ServerCertificate
from headrace.settings import Address, SettingsError

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
IDLE_S: Final = 75
"""How long a connection may be idle between requests. It exceeds the 60 s after which nginx and most load balancers
close an idle connection: a proxy responds with 502 if it sends a request while the gateway closes the connection."""
HEADERS_S: Final = 30.0
"""Time limit for the headers of a request, from its first byte; for the first request from the connection's start."""
HEADERS_BYTES_MAX: Final = 64 * 1024
REST_S: Final = 30.0
"""Time limit for the rest of a body after the response, which a client may have got early."""
STALLED_S: Final = 30
"""A client that reads nothing of its response for this long is disconnected."""
GRACEFUL_STOP_S: Final = 10
"""Time limit for running requests at shutdown."""
SWITCH_INTERVAL_S: Final = 0.001
"""Longest wait of the event loop for a computing thread, such as the one that processes acknowledgements."""
GARBAGE_THRESHOLDS: Final = (20_000, 20, 20)
"""Few collections: requests leave few reference cycles."""


class ServedApplication(Protocol):
    """An ASGI application that can end waiting requests."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def end_waits(self) -> None:
        """Ends requests that wait for records, before the server stops."""


def listening_socket(address: Address) -> socket.socket:
    """Binds an address; port 0 chooses a free port.

    Raises:
        OSError: the address is in use, does not belong to this machine, cannot be resolved or is not permitted.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # Allows a port with closing connections, but not one that is listened on.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(target)
        bound.listen(BACKLOG)
        if sys.platform == "linux":  # connections inherit it
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
    except BaseException:
        bound.close()
        raise
    return bound


def proxy_networks(proxies: Sequence[str]) -> list[str]:
    """Returns the networks of `gateway.proxies`. An IPv4 network is also returned as IPv4-mapped IPv6, because a
    socket for both versions reports addresses in that form.

    Raises:
        SettingsError: an item is neither an address nor a network.
    """
    found = []
    for proxy in proxies:
        try:
            network = ipaddress.ip_network(proxy)
        except ValueError as error:
            raise SettingsError(
                f"gateway.proxies: {error}; expected an address such as 10.0.0.5, or a network such as 10.0.0.0/24"
            ) from None
        found.append(str(network))
        if network.version == 4:
            found.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return found


def serve(
    listener: socket.socket,
    application: ServedApplication,
    connections_max: int,
    tls: ServerCertificate | None,
    proxies: Sequence[str] = (),
) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code. Prints the ready line once requests are served. With
    TLS, SIGHUP reads the certificate again.

    Args:
        listener: the socket of `listening_socket`.
        application: the gateway.
        connections_max: number of concurrent connections above which requests get 503.
        tls: the certificate for HTTPS; None serves HTTP.
        proxies: networks of reverse proxies. Their X-Forwarded-For and X-Forwarded-Proto are trusted.
    """
    config = uvicorn.Config(
        application,
        http=_Protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACEFUL_STOP_S,
        limit_concurrency=connections_max,
        backlog=BACKLOG,
    )
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config.load()
    if tls is not None:
        config.ssl = _context(tls)
    server = _Server(config, Address(*listener.getsockname()[:2]), tls, lambda: application.end_waits())
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve([listener]))
    return 0 if server.started else 1


def _context(tls: ServerCertificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key, lambda: "")
    return context


class _Server(uvicorn.Server):
    """Prints the ready line, and ends with exit code 0 after a signal."""

    def __init__(
        self, config: uvicorn.Config, address: Address, tls: ServerCertificate | None, end_waits: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._end_waits = end_waits
        self._url = f"{'http' if tls is None else 'https'}://{address}"
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Imported objects live until the end. A collection that visits them takes 0.1 s.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        with suppress(BrokenPipeError):
            print(f"ready gateway={self._url}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._tls is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload, self._tls)
        yield

    def _stop(self) -> None:
        self.should_exit = True
        self._end_waits()

    def _reload(self, tls: ServerCertificate) -> None:
        assert self.config.ssl is not None
        try:
            tls.check()
            self.config.ssl.load_cert_chain(tls.certificate, tls.key, lambda: "")
            logger.info("certificate_reloaded path=%s", tls.certificate)
        except (OSError, ValueError) as error:
            logger.error(
                "certificate_not_reloaded path=%s action=keeping the previous certificate cause=%s",
                tls.certificate,
                error,
            )


class _Protocol(HttpToolsProtocol):
    """A connection with limits of time and size for the headers of requests, and of time for a body that the
    application does not read to its end. Uvicorn has none of them."""

    _headers_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    _headers_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        is_in_headers = self._headers_timer is not None
        self._headers_bytes += len(data)
        super().data_received(data)
        if is_in_headers and self._headers_timer is not None and self._headers_bytes > HEADERS_BYTES_MAX:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_headers()
        self._end_of_rest()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._await_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_of_headers()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end_of_rest()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # Closing at once would reset the connection of a client that still sends, before it reads the response.
        if self.cycle.more_body and not self.pipeline and self._rest_timer is None:
            self._rest_timer = self.loop.call_later(REST_S, self.transport.close)
        super().on_response_complete()

    def _end_of_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_bytes = 0
            self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.close)

    def _end_of_headers(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
