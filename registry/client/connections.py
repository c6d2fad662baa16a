"""Persistent connections to one server, each used by one thread at a time."""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from headrace.registry.client.access import Server
from headrace.registry.client.proxies import DEFAULT_PORTS, Proxy

IDLE_CONNECTIONS_MAX = 32  # with more threads, some open a new connection for each request
RESPONSE_BYTES_MAX = 256 * 1024 * 1024  # no list or schema is larger; a faulty server could send forever
RESPONSE_TIMEOUTS_MAX = 6  # timeouts for a whole response; a faulty server could send a byte at a time
PART_BYTES = 64 * 1024
TUNNEL_FAILED = "Tunnel connection failed: "  # begins the library's message for an error response of a proxy
PROXY_REFUSAL = f"{TUNNEL_FAILED}4"  # for a 4xx response


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response of a server. `retry_after_s` is the pause that the server requests; None if it requests none.
    `location` is the target of a redirect, otherwise "". `date` is the server's time as in the header, "" for none."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    location: str = ""
    date: str = ""


class RequestFailed(Exception):
    """The request got no complete response.

    `may_have_executed` is True if the server may have executed the request. `is_permanent` is True if a retry cannot
    succeed, because client and server do not trust each other or the proxy refuses the connection.
    """

    def __init__(self, reason: str, *, may_have_executed: bool, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.may_have_executed = may_have_executed
        self.is_permanent = is_permanent


class RegistryConnections:
    """The connections of one client to one server."""

    def __init__(
        self, server: Server, tls: ssl.SSLContext | None, timeout_s: float, proxy: Proxy | None = None
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._tls = tls
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._process_id = os.getpid()
        self._lock = threading.Lock()

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], payload: bytes | None, *, is_repeatable: bool
    ) -> HttpResponse:
        """Sends a request and returns the response with any status.

        The server may close an idle connection at the moment of its reuse. Only repeatable requests, which can be sent
        again on a new connection, therefore use idle connections.

        Args:
            method: the HTTP method.
            target: path and query, percent-encoded.
            headers: the headers of the request.
            payload: the body; None without one.
            is_repeatable: whether the server may execute the request twice.

        Raises:
            RequestFailed: the connection failed, or the response did not arrive, was incomplete or was too large.
        """
        connection = self._idle_connection() if is_repeatable else None
        if connection is not None:
            try:
                return self._exchange_on(connection, method, target, headers, payload)
            except (http.client.RemoteDisconnected, ConnectionError):
                pass
            except (OSError, http.client.HTTPException) as error:
                raise RequestFailed(_reason(error), may_have_executed=True) from error
        connection = self._open()
        try:
            return self._exchange_on(connection, method, target, headers, payload)
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(_reason(error), may_have_executed=True, is_permanent=_is_tls_distrust(error)) from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _idle_connection(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if self._process_id != os.getpid():
                    # After a fork both processes have the same sockets and would read each other's responses.
                    self._idle, self._process_id = [], os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_readable(connection):
                return connection
            connection.close()  # no request is pending on it, so readable means closed by the server

    def _open(self) -> http.client.HTTPConnection:
        connection = self._new()
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # UnicodeError: the host name is invalid
            connection.close()
            through = f" (through the proxy {self._proxy})" if self._proxy else ""
            is_permanent = _is_tls_distrust(error) or str(error).startswith(PROXY_REFUSAL)
            raise RequestFailed(
                f"{_reason(error)}{through}", may_have_executed=False, is_permanent=is_permanent
            ) from error
        return connection

    def _new(self) -> http.client.HTTPConnection:
        server, proxy = self._server, self._proxy
        host, port = (proxy.host, proxy.port) if proxy else (server.host, server.port)
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        if proxy is not None:
            connection.set_tunnel(server.host, server.port or DEFAULT_PORTS[True], dict(proxy.headers))
        return connection

    def _exchange_on(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        payload: bytes | None,
    ) -> HttpResponse:
        if self._proxy is not None and self._tls is None:
            target, headers = self._origin + target, {**headers, **self._proxy.headers}
        try:
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            body = self._body(response)
            is_reusable = not response.will_close and response.isclosed()
        except BaseException:
            connection.close()
            raise
        self._release(connection, is_reusable)
        return HttpResponse(
            response.status,
            body,
            _retry_after_s(response.getheader("Retry-After")),
            response.getheader("Location") or "" if 300 <= response.status < 400 else "",
            response.getheader("Date") or "",
        )

    @property
    def _origin(self) -> str:
        """Scheme, host and port of the server, which precede the path in a request through a proxy."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"http://{host}" + (f":{self._server.port}" if self._server.port else "")

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        deadline = time.monotonic() + RESPONSE_TIMEOUTS_MAX * self._timeout_s
        while part := response.read1(PART_BYTES):
            parts.append(part)
            size += len(part)
            if size > RESPONSE_BYTES_MAX:
                raise http.client.HTTPException(f"the response has more than {RESPONSE_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:
            raise http.client.HTTPException("the connection was closed before the whole response arrived")
        if response.length == 0:
            response.close()  # read1 does not detect the end, and the connection would reject another request
        return b"".join(parts)

    def _release(self, connection: http.client.HTTPConnection, is_reusable: bool) -> None:
        with self._lock:
            if is_reusable and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _is_tls_distrust(error: Exception) -> bool:
    """Whether an error means that client or server rejected the other's certificate, which a retry does not change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    return isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or "")


def _retry_after_s(text: str | None) -> float | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


HOST_MISMATCHES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
PLAIN_SERVER = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""Reasons of TLS errors if the server answers without TLS, by release of OpenSSL."""

REMEDIES: Sequence[tuple[type[Exception], str]] = (
    (socket.gaierror, "correct the host name in registry.url"),
    (UnicodeError, "correct the host name in registry.url"),
    (ConnectionRefusedError, "start the registry, or correct registry.url"),
    (TimeoutError, "check that the registry is not suspended or overloaded, and that no firewall is in between"),
    (http.client.BadStatusLine, "if the server uses TLS, use https:// in registry.url"),
    (ConnectionResetError, "if the server uses TLS, use https:// in registry.url; else see its log"),
    (http.client.HTTPException, "check that registry.url is that of a registry"),
    (OSError, "check the network between this host and the registry"),
)
"""The remedy by the type of the error, without TLS errors. The first type that fits applies."""


def _reason(error: Exception) -> str:
    """Returns why there is no response, and the remedy after a semicolon."""
    if isinstance(error, ssl.SSLError):
        return _tls_reason(error)
    if str(error).startswith(TUNNEL_FAILED):
        return f"{error}; correct the proxy in HTTPS_PROXY, or name the host in NO_PROXY"
    problem = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        problem = "no response in time"
    elif isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        problem = "the response is not HTTP"
    elif isinstance(error, OSError) and error.strerror:
        problem = error.strerror
    return f"{problem}; {next(remedy for kind, remedy in REMEDIES if isinstance(error, kind))}"


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "name its authority in registry.client_ca"
        if error.verify_code in HOST_MISMATCHES:
            remedy = "use a host name of the certificate in registry.url"
        return f"its certificate is not trusted: {error.verify_message}; {remedy}"
    reason = error.reason or ""
    problem = f"TLS: {(reason or str(error)).lower().replace('_', ' ')}"
    if reason in PLAIN_SERVER:
        return f"{problem}; the server does not use TLS: use http:// in registry.url"
    if "ALERT" in reason:
        return f"{problem}; it needs another client certificate: set registry.client_certificate"
    # A server that rejects the client's certificate may close the connection without an alert.
    return f"{problem}; if the server needs a client certificate, set registry.client_certificate; else see its log"
