"""One blocking connection to one broker, secured as the brokers ask for it: requests out, responses in, in turn.

Messages are encoded by the classes of kafka-python's public `kafka.protocol`; the sockets are our own, because its
client keeps threads and decodes records, and a task wants the raw batches and nothing that survives a fork.
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

from headrace.kafka_wire.errors import AuthenticationRefused, KafkaUnavailable, RequestRefused
from headrace.kafka_wire.receive_room import ReceiveRoom
from headrace.kafka_wire.security import KafkaSecurity, UnusableSecurity

CLIENT_ID = "headrace-loader"
RESPONSE_BYTES_MAX = 1024 * 1024 * 1024  # a longer frame is not Kafka answering; refused before it is allocated

SASL_ROUNDS_MAX = 10  # GSSAPI takes four; a server that goes on for ever is none
SESSION_USED = 0.8  # of the time that a broker gives a session, before a new connection is made instead

NONE = 0
UNSUPPORTED_SASL_MECHANISM = 33

Message = Any
"""A message class or object of kafka-python, which carries no types we could name."""


def error_name(code: int) -> str:
    """The name that Kafka gives an error code, such as `NOT_LEADER_OR_FOLLOWER`."""
    cls = for_code(code)
    return str(getattr(cls, "message", "") or cls.__name__)


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Reads `host:port,…`; a missing port is 9092 and an IPv6 address stands in brackets.

    Raises:
        ValueError: an entry is not a host with a port.
    """
    servers = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = entry.rpartition(":")
        if not colon or entry.endswith("]"):
            host, port = entry, "9092"
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"expected host:port, found {entry!r}")
        servers.append((host.strip("[]"), int(port)))
    return tuple(servers)


class Connection:
    """A connection to a broker; every failure of the network is `KafkaUnavailable` and closes it.

    Args:
        room: what answers are received into, shared with other connections of the same thread. Whatever an answer is
            decoded to may be a view of it.

    Raises:
        KafkaUnavailable: the broker does not answer.
        AuthenticationRefused: one side does not take the other for who it should be.
    """

    def __init__(self, host: str, port: int, timeout_s: float, security: KafkaSecurity, room: ReceiveRoom) -> None:
        self._room = room
        self.name = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._session_ends = float("inf")
        self._ahead: bytes | None = None  # the request that was sent ahead
        self.is_closed = False
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise KafkaUnavailable(f"cannot connect to broker {self.name}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self._socket = self._encrypted(host, security)
            self._versions = self._ask_versions()
            if security.uses_sasl:
                self._authenticate(host, security)
        except UnusableSecurity as error:
            self.close()
            raise AuthenticationRefused(str(error)) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_over(self) -> bool:
        """Whether another connection is needed: closed, or its session ends soon (KIP-368)."""
        return self.is_closed or time.monotonic() > self._session_ends

    def close(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def version(self, request: Message, wanted: int, *, oldest: int = 0) -> int:
        """The newest version up to `wanted` that the broker knows.

        Raises:
            RequestRefused: it knows none of them, or none from `oldest` on.
        """
        low, high = self._versions.get(request.API_KEY, (0, -1))
        chosen = min(wanted, high)
        if chosen < max(low, oldest):
            known = f"{oldest} to {wanted}" if oldest else str(wanted)
            raise RequestRefused(self.name, request.name, 35, f"it serves versions {low} to {high}, we know {known}")
        return chosen

    def send_ahead(self, request: Message) -> None:
        """Sends a request whose answer is wanted later, when the same one is asked; one at a time, others are not sent.

        The broker works on it and its answer arrives while we do something else. What goes wrong shows when it is
        asked. If it never is, the answer is read and dropped before that of the next question.
        """
        if self._ahead is not None or self.is_over:
            return
        question = _question(request)
        self._correlation_id += 1
        try:
            self._send(request, self._timeout_s)
        except OSError:
            self.close()
        else:
            self._ahead = question

    def ask(
        self,
        request: Message,
        response: Message,
        version: int,
        *,
        extra_wait_s: float = 0.0,
        decode: Callable[[memoryview, int], Message] | None = None,
    ) -> Message:
        """Sends one request, unless it was sent ahead, and returns its decoded response.

        Args:
            extra_wait_s: what the broker may wait by itself before it answers, on top of the timeout.
            decode: in place of the response's own, given the bytes behind the header and the version.
        """
        try:
            frame = self._answer_sent_for(request, extra_wait_s)
            if frame is None:
                self._correlation_id += 1
                self._send(request, self._timeout_s + extra_wait_s)
                frame = self._receive()
        except (OSError, EOFError) as error:
            self.close()
            if alert := _alert(error):
                raise AuthenticationRefused(
                    f"broker {self.name} refused the TLS connection ({alert}): expected another kafka.certificate"
                ) from error
            reason = str(error) or type(error).__name__
            raise KafkaUnavailable(f"broker {self.name} broke off during {request.name}: {reason}") from error
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != self._correlation_id:
            self.close()
            raise KafkaUnavailable(f"broker {self.name} answered another request than {request.name}")
        try:
            content = frame[_header_bytes(response, version, frame) :]
            return response.decode(content, version=version) if decode is None else decode(content, version)
        except Exception as error:
            # kafka-python's decoders raise whatever their struct calls raise.
            self.close()
            raise KafkaUnavailable(f"broker {self.name} sent an unreadable {response.name}: {error!r}") from error

    def _send(self, request: Message, timeout_s: float) -> None:
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request.encode(header=True, framed=True))

    def _answer_sent_for(self, request: Message, extra_wait_s: float) -> memoryview | None:
        """The answer to a request that was sent ahead; None where none was, or another, whose answer is dropped.

        Its correlation id is the last one that was given, since nothing is sent between the two.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        self._socket.settimeout(self._timeout_s + extra_wait_s)
        frame = self._receive()
        return frame if ahead == _question(request) else None

    def _receive(self) -> memoryview:
        (length,) = struct.unpack(">i", self._filled(memoryview(bytearray(4))))
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise EOFError(f"a frame of {length} bytes is not an answer of a Kafka broker")
        return self._filled(self._room.take(length))

    def _filled(self, view: memoryview) -> memoryview:
        filled = 0
        while filled < len(view):
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise EOFError("the connection was closed")
            filled += received
        return view

    def _encrypted(self, host: str, security: KafkaSecurity) -> ssl.SSLSocket:
        context = security.context()
        try:
            return context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationRefused(
                f"broker {self.name} is not trusted ({error.verify_message}): expected a certificate for {host} of an "
                "authority in kafka.ca"
            ) from error
        except OSError as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise KafkaUnavailable(
                f"broker {self.name} does not speak TLS ({reason}); is kafka.security_protocol right?"
            ) from error

    def _authenticate(self, host: str, security: KafkaSecurity) -> None:
        mechanism = security.sasl(host)
        asked = SaslHandshakeRequest(mechanism=security.mechanism, version=1)
        answer = self.ask(asked, SaslHandshakeResponse, 1)
        if answer.error_code == UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationRefused(
                f"broker {self.name} takes {', '.join(answer.mechanisms) or 'no SASL'} here, and not "
                f"{security.mechanism}: expected another kafka.sasl_mechanism"
            )
        if answer.error_code != NONE:
            raise RequestRefused(self.name, "SaslHandshake", answer.error_code, error_name(answer.error_code))
        version = self.version(SaslAuthenticateRequest, 2)
        for _ in range(SASL_ROUNDS_MAX):
            said = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=version)
            answer = self.ask(said, SaslAuthenticateResponse, version)
            if answer.error_code != NONE:
                reason = answer.error_message or error_name(answer.error_code)
                raise AuthenticationRefused(f"broker {self.name} refused to log in {_who(security)}: {reason}")
            try:
                mechanism.receive(answer.auth_bytes)
            except ValueError as error:  # SCRAM: it proved to know the password no more than a stranger would
                raise AuthenticationRefused(f"broker {self.name} did not prove who it is: {error}") from error
            if mechanism.is_done():
                break
        if not mechanism.is_authenticated():
            raise AuthenticationRefused(f"broker {self.name} refused to log in {_who(security)}")
        if version >= 1 and answer.session_lifetime_ms > 0:
            self._session_ends = time.monotonic() + SESSION_USED * answer.session_lifetime_ms / 1000

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        # Version 0 is answered by every broker, also one that does not know the newest version we know.
        response = self.ask(ApiVersionsRequest(version=0), ApiVersionsResponse, 0)
        if response.error_code != NONE:
            raise RequestRefused(self.name, "ApiVersions", response.error_code, error_name(response.error_code))
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def _question(request: Message) -> bytes:
    """A request without its header: what it asks, whatever its number."""
    return b"%s %d " % (request.name.encode(), request.version) + bytes(request.encode())


def _alert(error: Exception) -> str:
    """Why the other side ended a TLS connection on purpose, "" where it did not."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return reason if "ALERT" in reason else ""


def _who(security: KafkaSecurity) -> str:
    return f"user {security.user}" if security.user else f"this client by {security.mechanism}"


def _header_bytes(response: Message, version: int, frame: memoryview) -> int:
    """Length of the response header: the correlation id and, from the first flexible version on, tagged fields.

    ApiVersions answers are never flexible (KIP-511), and no broker sends tagged fields in a response header.
    """
    if response.API_KEY == ApiVersionsRequest.API_KEY or not response.flexible_version_q(version):
        return 4
    if frame[4] != 0:
        raise ValueError("tagged fields in a response header")
    return 5


def close_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.close()
