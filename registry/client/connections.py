"""Sockets to one server, kept alive and handed to one thread at a time."""

from __future__ import annotations

import http.client
import os
import select
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from headrace.registry.client.access import Server
from headrace.registry.client.proxies import DEFAULT_PORTS, Proxy

IDLE_CONNECTIONS_MAX = 32  # of more threads than that some open a connection for each call
ANSWER_BYTES_MAX = 256 * 1024 * 1024  # no list or schema is larger; a stray server could send without end
ANSWER_TIMEOUTS_MAX = 6  # timeouts that a whole answer may take; a server could send a byte now and then without end
PART_BYTES = 64 * 1024
PROXY_REFUSAL = "Tunnel connection failed: 4"  # how the library begins when a proxy answers 4xx, which stays so


@dataclass(frozen=True, slots=True)
class Answer:
    """`location` is where a redirect points to, "" otherwise."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    location: str = ""


class NoAnswer(Exception):
    """A request without an answer.

    `may_be_done` tells whether the server may have carried it out all the same; `is_lasting` whether trying again is of
    no use, since the two do not trust each other.
    """

    def __init__(self, reason: str, *, may_be_done: bool, is_lasting: bool = False) -> None:
        super().__init__(reason)
        self.may_be_done = may_be_done
        self.is_lasting = is_lasting


class Connections:
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
    ) -> Answer:
        """One request and its answer.

        A kept connection may be closed by the server at the moment it is used; a request that may be repeated is then
        sent again on a new one, and others do not use kept connections at all.

        Raises:
            NoAnswer: no connection, or no answer on it.
        """
        connection = self._kept() if is_repeatable else None
        if connection is not None:
            try:
                return self._exchanged(connection, method, target, headers, payload)
            except (http.client.RemoteDisconnected, ConnectionError):
                pass
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(_reason(error), may_be_done=True) from error
        connection = self._opened()
        try:
            return self._exchanged(connection, method, target, headers, payload)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(_reason(error), may_be_done=True, is_lasting=_is_distrust(error)) from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _kept(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if self._process_id != os.getpid():
                    # After a fork both processes hold the same sockets, and would take each other's answers.
                    self._idle, self._process_id = [], os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_readable(connection):
                return connection
            connection.close()  # nothing was asked on it, so what can be read is its end

    def _opened(self) -> http.client.HTTPConnection:
        connection = self._new()
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # UnicodeError: the host name is none
            connection.close()
            through = f" (through the proxy {self._proxy})" if self._proxy else ""
            is_lasting = _is_distrust(error) or str(error).startswith(PROXY_REFUSAL)
            raise NoAnswer(f"{_reason(error)}{through}", may_be_done=False, is_lasting=is_lasting) from error
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

    def _exchanged(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        payload: bytes | None,
    ) -> Answer:
        if self._proxy is not None and self._tls is None:
            target, headers = self._origin + target, {**headers, **self._proxy.headers}
        try:
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            body = self._body(response)
            keeps = not response.will_close and response.isclosed()
        except BaseException:
            connection.close()
            raise
        self._put_back(connection, keeps)
        return Answer(
            response.status,
            body,
            _retry_after_s(response.getheader("Retry-After")),
            response.getheader("Location") or "" if 300 <= response.status < 400 else "",
        )

    @property
    def _origin(self) -> str:
        """The server, as a request to a proxy names it."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"http://{host}" + (f":{self._server.port}" if self._server.port else "")

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        deadline = time.monotonic() + ANSWER_TIMEOUTS_MAX * self._timeout_s
        while part := response.read1(PART_BYTES):
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:
            raise http.client.HTTPException("the answer ends before its length")
        if response.length == 0:
            response.close()  # read1 does not note the end, and the connection would not take another request
        return b"".join(parts)

    def _put_back(self, connection: http.client.HTTPConnection, keeps: bool) -> None:
        with self._lock:
            if keeps and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _is_distrust(error: Exception) -> bool:
    """Whether one side refused the other's certificate, which asking again does not mend."""
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


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS: {error.reason.lower().replace('_', ' ')}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
