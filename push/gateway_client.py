"""HTTP to the gateways."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

from headrace.push.config import PushConfig
from headrace.push.rules import Answer, read_answer
from headrace.push.source import safe_text

RESPONSE_BYTES_MAX = 4_194_304
FAILURES = (OSError, http.client.HTTPException, ValueError)
"""Errors of a connection, and of a response that is no HTTP, no JSON or not of a gateway."""


@dataclass(frozen=True)
class GatewayAnswer:
    """A response of a gateway: `answer` by its status, `body` as parsed JSON."""

    answer: Answer
    status: int
    body: Mapping[str, Any]
    retry_after_s: Optional[float] = None
    location: Optional[str] = None

    @property
    def problem(self) -> str:
        return f"HTTP {self.status}: {safe_text(str(self.body.get('message', ''))[:300])}"

    def number(self, name: str) -> int:
        """Returns a number of the body.

        Raises:
            ValueError: it is missing, as in the response of a proxy or of another server.
        """
        found = self.body.get(name)
        if not isinstance(found, int):
            raise ValueError(f"the response has no number {name}; is this a Headrace gateway?")
        return found


class GatewayClient:
    """HTTP to the gateways, with one connection for each base URL. Used by one thread."""

    def __init__(self, config: PushConfig) -> None:
        self._config = config
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._at = 0

    @property
    def base_url(self) -> str:
        return self._config.gateways[self._at % len(self._config.gateways)]

    def use_next_gateway(self) -> None:
        self._at += 1

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def request(self, method: str, base: str, path: str, body: bytes, headers: Mapping[str, str]) -> GatewayAnswer:
        """Sends a request and returns the response. Requests are idempotent, so one that fails on a connection of an
        earlier request, which the gateway may have closed, is repeated on a new connection.

        Raises:
            OSError, HTTPException, ValueError: see `FAILURES`; the connection is closed then.
        """
        was_open = base in self._connections
        try:
            return self._exchange(method, base, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._drop(base)
            if not was_open:
                raise
        except FAILURES:
            self._drop(base)
            raise
        try:
            return self._exchange(method, base, path, body, headers)
        except FAILURES:
            self._drop(base)
            raise

    def _exchange(self, method: str, base: str, path: str, body: bytes, headers: Mapping[str, str]) -> GatewayAnswer:
        connection = self._connection(base)
        prefix = urlsplit(base).path.rstrip("/")
        connection.request(method, prefix + path, body or None, {**headers, **self._credentials()})
        response = connection.getresponse()
        is_small = response.length is not None and response.length <= RESPONSE_BYTES_MAX
        data = response.read(None if is_small else RESPONSE_BYTES_MAX)  # Python 3.9 allocates all bytes of the limit
        if response.will_close or not response.isclosed():
            self._drop(base)
        return _answer_of(response, data)

    def _connection(self, base: str) -> http.client.HTTPConnection:
        found = self._connections.get(base)
        if found is None:
            parts = urlsplit(base)
            assert parts.hostname is not None
            if parts.scheme == "https":
                found = _TlsConnection(parts.hostname, parts.port, self._config)
            elif all(urlsplit(url).scheme == "https" for url in self._config.gateways):
                raise ValueError(
                    f"requests were redirected to {base}, without TLS; set gateway.url of that gateway to its https URL"
                )
            else:
                found = _Connection(parts.hostname, parts.port, timeout=self._config.timeout_s)
            self._connections[base] = found
        return found

    def _drop(self, base: str) -> None:
        connection = self._connections.pop(base, None)
        if connection is not None:
            connection.close()

    def _credentials(self) -> dict[str, str]:
        if self._config.token_file is not None:
            return {"Authorization": f"Bearer {_secret(self._config.token_file)}"}
        if self._config.user is not None and self._config.password_file is not None:
            pair = f"{self._config.user}:{_secret(self._config.password_file)}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}


class _Connection(http.client.HTTPConnection):
    """A connection by TCP. Sends the headers and the body of a request together: `http.client` sends two packets, and
    each one wakes the gateway. A name in ASCII goes to the resolver as bytes: for a text, Python imports the codec
    `idna`, 0.8 MB."""

    _waiting: Optional[list[Any]] = None

    def request(self, *arguments: Any, **named: Any) -> None:
        self._waiting = []
        try:
            super().request(*arguments, **named)
            data = b"".join(self._waiting)
        finally:
            self._waiting = None
        self.send(data)

    def send(self, data: Any) -> None:
        if self._waiting is None:
            super().send(data)
        else:
            self._waiting.append(data)

    def connect(self) -> None:
        host: Any = self.host.encode() if self.host.isascii() else self.host
        self.sock = socket.create_connection((host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _TlsConnection(_Connection):
    """A connection with TLS. `http.client.HTTPSConnection` is missing in the single-file program, see `make_zipapp`."""

    default_port = 443

    def __init__(self, host: str, port: Optional[int], config: PushConfig) -> None:
        super().__init__(host, port, timeout=config.timeout_s)
        self._context = _tls(config)

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)


def _secret(path: Path) -> str:
    """Returns the text of a file, read for each request, so that a new password needs no restart."""
    return path.read_text(encoding="utf-8").strip()


def _tls(config: PushConfig) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=str(config.ca) if config.ca else None)
    if config.certificate is not None:
        context.load_cert_chain(str(config.certificate), str(config.key) if config.key else None)
    return context


def _answer_of(response: http.client.HTTPResponse, data: bytes) -> GatewayAnswer:
    body: Any = {}
    if data:
        try:
            body = json.loads(data)
        except ValueError:
            if response.status == 200:
                raise
            body = {"message": data[:200].decode("utf-8", "replace")}  # of a proxy
    if not isinstance(body, dict):
        raise ValueError("the response is no JSON object")
    code = body.get("error_code")
    try:
        retry_after = float(response.getheader("Retry-After") or "")
    except ValueError:
        retry_after = None
    return GatewayAnswer(
        read_answer(response.status, code if isinstance(code, int) else 0),
        response.status,
        body,
        retry_after,
        response.getheader("Location"),
    )


def base_of(url: str) -> str:
    """Returns the base URL of a gateway that a Location names."""
    parts = urlsplit(url)
    prefix = parts.path.partition("/v1/sessions")[0]
    return f"{parts.scheme}://{parts.netloc}{prefix}"
