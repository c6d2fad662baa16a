"""A blocking connection to one broker, with TLS and SASL; one request at a time.

The classes of kafka-python's public `kafka.protocol` encode the messages. kafka-python's client is not used: it decodes
records, whereas a loader task needs raw batches, and it has threads, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

from kafka.errors import for_code
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from headrace.kafka_wire.errors import AuthenticationFailed, ErrorResponse, KafkaUnavailable
from headrace.kafka_wire.security import KafkaSecurity, SecurityConfigError

CLIENT_ID = "headrace-loader"
RESPONSE_BYTES_MAX = 1024 * 1024 * 1024  # a larger frame is not from Kafka; rejected before allocation

SASL_ROUNDS_MAX = 10  # GSSAPI takes four; limits a faulty server
SESSION_USED_RATIO = 0.8  # fraction of the session lifetime after which a new connection replaces this one

BUFFERS_MAX = 2  # a response is usually processed while the next one is received
POOLED_BYTES_MAX = 32 * 1024 * 1024  # per buffer; larger responses are not pooled

LOGIN_REMEDY = "correct kafka.user and kafka.password, or kafka.token_file"

NONE = 0
UNSUPPORTED_SASL_MECHANISM = 33

Message = Any
"""A message class or object of kafka-python, which has no type annotations."""


def error_name(code: int) -> str:
    """Returns Kafka's name of an error code, such as `NOT_LEADER_OR_FOLLOWER`."""
    cls = for_code(code)
    return str(getattr(cls, "message", "") or cls.__name__)


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parses the setting `host:port,…` to pairs of host and port. The default port is 9092; IPv6 addresses are in
    brackets.

    Raises:
        ValueError: an entry has no host or an impossible port.
    """
    servers = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = entry.rpartition(":")
        if not colon or entry.endswith("]"):
            host, port = entry, "9092"
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"broker address {entry!r}: expected host:port, such as localhost:9092")
        servers.append((host.strip("[]"), int(port)))
    return tuple(servers)


class ReceiveBuffers:
    """A pool of receive buffers. Without it, each response of megabytes needs a new zeroed buffer, and zeroing takes a
    loader task as much time as checking the checksums.

    A buffer is reused when no view of it exists any more. Not thread-safe.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Returns a view of `size` uninitialized bytes."""
        if size > POOLED_BYTES_MAX:
            return memoryview(bytearray(size))
        free = [buffer for buffer in self._buffers if _is_free(buffer)]
        chosen = next((buffer for buffer in free if len(buffer) >= size), None)
        if chosen is None:
            chosen = bytearray(size)
            in_use = [buffer for buffer in self._buffers if not any(buffer is each for each in free)]
            others = [*free, *in_use][1 - BUFFERS_MAX :]
            self._buffers = [*others, chosen]
        return memoryview(chosen)[:size]


def _is_free(buffer: bytearray) -> bool:
    """Returns whether no view of a buffer exists: a buffer with views cannot be resized."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


class BrokerConnection:
    """A connection to a broker. Every network failure closes it; `call` then raises `KafkaUnavailable`, or
    `AuthenticationFailed` if the broker sent a TLS alert.

    Args:
        timeout_s: timeout of connecting, and of each read and write of the socket.
        security: TLS and SASL settings.
        buffers: receive buffers, shared with other connections of the same thread. Decoded responses may be views of
            them.

    Raises:
        KafkaUnavailable: the broker does not respond.
        AuthenticationFailed: broker or client cannot be authenticated, or a security file is unusable.
        ErrorResponse: the broker rejected another request of the login, or does not support it.
    """

    def __init__(
        self, host: str, port: int, timeout_s: float, security: KafkaSecurity, buffers: ReceiveBuffers
    ) -> None:
        self._buffers = buffers
        self.name = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._security = security
        self._correlation_id = 0
        self._session_ends = float("inf")
        self._early_request: bytes | None = None  # the request that was sent early
        self.is_closed = False
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host name is invalid
            raise KafkaUnavailable(
                f"cannot connect to broker {self.name}: {error}; {_connect_remedy(error)}"
            ) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self._socket = self._wrap_tls(host, security)
            self._versions = self._request_versions()
            if security.uses_sasl:
                self._authenticate(host, security)
        except SecurityConfigError as error:
            self.close()
            raise AuthenticationFailed(str(error)) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_over(self) -> bool:
        """Whether the connection must be replaced: it is closed, or its session ends soon (KIP-368)."""
        return self.is_closed or time.monotonic() > self._session_ends

    def close(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def version(self, request: Message, newest: int, *, oldest: int = 0) -> int:
        """Returns the newest version of a request, up to `newest`, that the broker supports.

        Args:
            request: the request class of kafka-python.
            newest, oldest: the range of versions that the caller can use.

        Raises:
            ErrorResponse: the broker supports no version from `oldest` to `newest`.
        """
        low, high = self._versions.get(request.API_KEY, (0, -1))
        chosen = min(newest, high)
        if chosen < max(low, oldest):
            known = f"{oldest} to {newest}" if oldest else str(newest)
            served = f"versions {low} to {high} of this request" if high >= low else "no version of this request"
            raise ErrorResponse(self.name, request.name, 35, f"the broker supports {served}, this client {known}")
        return chosen

    def send_early(self, request: Message) -> None:
        """Sends a request now; a later `call` with the same request reads its response.

        The broker processes the request meanwhile. Only one request can be sent early; further ones are ignored. Errors
        are raised by `call`. A `call` with another request reads and discards the early response first.
        """
        if self._early_request is not None or self.is_over:
            return
        body = _request_body(request)
        self._correlation_id += 1
        try:
            self._send(request, self._timeout_s)
        except OSError:
            self.close()
        else:
            self._early_request = body

    def call(
        self,
        request: Message,
        response: Message,
        version: int,
        *,
        extra_wait_s: float = 0.0,
        decode: Callable[[memoryview, int], Message] | None = None,
    ) -> Message:
        """Sends one request, unless it was sent early, and returns its decoded response.

        Args:
            request: an object of a request class of kafka-python.
            response: the class of the response.
            version: the version of the request, which is also that of the response.
            extra_wait_s: time that the broker may wait for data, in addition to the timeout.
            decode: replaces the decoder of the response class; called with the bytes after the header and the version.

        Raises:
            KafkaUnavailable: the connection failed, or the response is unreadable; the connection is closed.
            AuthenticationFailed: the broker sent a TLS alert; the connection is closed.
        """
        try:
            frame = self._early_response(request, extra_wait_s)
            if frame is None:
                self._correlation_id += 1
                self._send(request, self._timeout_s + extra_wait_s)
                frame = self._receive()
        except (OSError, EOFError) as error:
            self.close()
            if alert := _alert(error):
                raise AuthenticationFailed(
                    f"broker {self.name} rejected the TLS connection ({alert}); check kafka.certificate"
                ) from error
            reason = str(error) or type(error).__name__
            raise KafkaUnavailable(
                f"connection to broker {self.name} failed during {request.name}: {reason}; "
                f"{_exchange_remedy(error, self._security)}"
            ) from error
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != self._correlation_id:
            self.close()
            raise KafkaUnavailable(
                f"broker {self.name} sent a response that does not belong to the request {request.name}; "
                "the connection was closed"
            )
        try:
            content = frame[_header_bytes(response, version, frame) :]
            return response.decode(content, version=version) if decode is None else decode(content, version)
        except Exception as error:
            # kafka-python's decoders raise errors of many types.
            self.close()
            raise KafkaUnavailable(f"broker {self.name} sent an unreadable {response.name}: {error!r}") from error

    def _send(self, request: Message, timeout_s: float) -> None:
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request.encode(header=True, framed=True))

    def _early_response(self, request: Message, extra_wait_s: float) -> memoryview | None:
        """Reads the response of the request that was sent early, if there is one. Returns the response if that request
        is equal to `request`; otherwise discards it and returns None.

        No request is sent in between, so the response has the last correlation id.

        Args:
            extra_wait_s: time that the broker may wait for data, in addition to the timeout.
        """
        early_request, self._early_request = self._early_request, None
        if early_request is None:
            return None
        self._socket.settimeout(self._timeout_s + extra_wait_s)
        frame = self._receive()
        return frame if early_request == _request_body(request) else None

    def _receive(self) -> memoryview:
        (length,) = struct.unpack(">i", self._fill(memoryview(bytearray(4))))
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise EOFError(
                f"the response would have {length} bytes, expected 4 to {RESPONSE_BYTES_MAX}, so it is not Kafka's"
            )
        return self._fill(self._buffers.take(length))

    def _fill(self, view: memoryview) -> memoryview:
        filled = 0
        while filled < len(view):
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise EOFError("the broker closed the connection")
            filled += received
        return view

    def _wrap_tls(self, host: str, security: KafkaSecurity) -> ssl.SSLSocket:
        context = security.context()
        try:
            return context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"broker {self.name} is not trusted ({error.verify_message}); its certificate must be for {host} and "
                "from an authority in kafka.ca"
            ) from error
        except OSError as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise KafkaUnavailable(
                f"TLS handshake with broker {self.name} failed ({reason}); check kafka.security_protocol"
            ) from error

    def _authenticate(self, host: str, security: KafkaSecurity) -> None:
        mechanism = security.sasl(host)
        requested = SaslHandshakeRequest(mechanism=security.mechanism, version=1)
        reply = self.call(requested, SaslHandshakeResponse, 1)
        if reply.error_code == UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationFailed(
                f"broker {self.name} supports {', '.join(reply.mechanisms) or 'no SASL'} here, not "
                f"{security.mechanism}; set kafka.sasl_mechanism"
            )
        if reply.error_code != NONE:
            raise ErrorResponse(self.name, "SaslHandshake", reply.error_code, error_name(reply.error_code))
        version = self.version(SaslAuthenticateRequest, 2)
        for _ in range(SASL_ROUNDS_MAX):
            authenticate = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=version)
            reply = self.call(authenticate, SaslAuthenticateResponse, version)
            if reply.error_code != NONE:
                reason = reply.error_message or error_name(reply.error_code)
                raise AuthenticationFailed(
                    f"broker {self.name} rejected the login of {_client_name(security)}: {reason}; {LOGIN_REMEDY}"
                )
            try:
                mechanism.receive(reply.auth_bytes)
            except ValueError as error:  # SCRAM: the broker does not know the password
                raise AuthenticationFailed(
                    f"broker {self.name} failed to authenticate itself: {error}; {LOGIN_REMEDY}"
                ) from error
            if mechanism.is_done():
                break
        if not mechanism.is_authenticated():
            raise AuthenticationFailed(
                f"broker {self.name} rejected the login of {_client_name(security)}; {LOGIN_REMEDY}"
            )
        if version >= 1 and reply.session_lifetime_ms > 0:
            self._session_ends = time.monotonic() + SESSION_USED_RATIO * reply.session_lifetime_ms / 1000

    def _request_versions(self) -> dict[int, tuple[int, int]]:
        # Every broker supports version 0.
        response = self.call(ApiVersionsRequest(version=0), ApiVersionsResponse, 0)
        if response.error_code != NONE:
            raise ErrorResponse(self.name, "ApiVersions", response.error_code, error_name(response.error_code))
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def _request_body(request: Message) -> bytes:
    """Returns name, version and body of a request as bytes, to recognise a request that was sent early."""
    return b"%s %d " % (request.name.encode(), request.version) + bytes(request.encode())


def _connect_remedy(error: Exception) -> str:
    """Returns the remedy for a broker to which no connection was possible."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "correct the host name in kafka.bootstrap_servers, or the address that the broker advertises"
    if isinstance(error, ConnectionRefusedError):
        return "start the broker, or correct kafka.bootstrap_servers"
    return "check that no firewall is in between, or correct kafka.bootstrap_servers"


def _exchange_remedy(error: Exception, security: KafkaSecurity) -> str:
    """Returns the remedy for a broker that accepted the connection and sent no valid response.

    A broker does not say that it expects TLS or a login; it closes the connection, or waits.
    """
    if isinstance(error, EOFError | ConnectionError) and not security.uses_tls and not security.uses_sasl:
        return "if the broker expects TLS or a login, set kafka.security_protocol; else see its log"
    if isinstance(error, EOFError | ConnectionError):
        return f"check that kafka.security_protocol ({security.protocol}) is the broker's; else see its log"
    if isinstance(error, TimeoutError):
        return "check that the broker is not suspended or overloaded, and that kafka.security_protocol is its own"
    return "check the network between this host and the broker"


def _alert(error: Exception) -> str:
    """Returns the text of the TLS alert that the broker sent, or "" if the error is not an alert."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return reason if "ALERT" in reason else ""


def _client_name(security: KafkaSecurity) -> str:
    return f"user {security.user}" if security.user else f"this client with {security.mechanism}"


def _header_bytes(response: Message, version: int, frame: memoryview) -> int:
    """Returns the length of the header at the start of `frame`, a response of the given class and version. The header
    has the correlation id and, in flexible versions, the number of tagged fields. The header of an ApiVersions response
    never has that number (KIP-511), even if the body is flexible.

    Raises:
        ValueError: the header has tagged fields. No known broker sends any.
    """
    if response.API_KEY == ApiVersionsRequest.API_KEY or not response.flexible_version_q(version):
        return 4
    if frame[4] != 0:
        raise ValueError("the response header has tagged fields, which this client cannot read")
    return 5


def close_all(connections: Iterable[BrokerConnection]) -> None:
    for connection in connections:
        connection.close()
