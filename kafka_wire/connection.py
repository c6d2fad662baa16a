"""One blocking connection to one broker: requests out, responses in, one at a time.

Messages are encoded by the classes of kafka-python's public `kafka.protocol`; the sockets are our own, because its
client keeps threads and decodes records, and a task wants the raw batches and nothing that survives a fork.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from typing import Any

from kafka.errors import for_code
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from headrace.kafka_wire.errors import KafkaUnavailable, RequestRefused

CLIENT_ID = "headrace-loader"
RESPONSE_BYTES_MAX = 1024 * 1024 * 1024  # a longer frame is not Kafka answering; refused before it is allocated

NONE = 0

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
    """A connection to `address`; every failure of the network is `KafkaUnavailable` and closes it."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self.name = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self.is_closed = False
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise KafkaUnavailable(f"cannot connect to broker {self.name}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._versions = self._ask_versions()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def version(self, request: Message, wanted: int) -> int:
        """The newest version up to `wanted` that the broker knows.

        Raises:
            RequestRefused: it knows none of them.
        """
        low, high = self._versions.get(request.API_KEY, (0, -1))
        chosen = min(wanted, high)
        if chosen < low:
            raise RequestRefused(self.name, request.name, 35, f"it serves versions {low} to {high}, we know {wanted}")
        return chosen

    def ask(self, request: Message, response: Message, version: int, *, extra_wait_s: float = 0.0) -> Message:
        """Sends one request and returns its decoded response.

        Args:
            extra_wait_s: what the broker may wait by itself before it answers, on top of the timeout.
        """
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=CLIENT_ID)
        try:
            self._socket.settimeout(self._timeout_s + extra_wait_s)
            self._socket.sendall(request.encode(header=True, framed=True))
            frame = self._receive()
        except (OSError, EOFError) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise KafkaUnavailable(f"broker {self.name} broke off during {request.name}: {reason}") from error
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != self._correlation_id:
            self.close()
            raise KafkaUnavailable(f"broker {self.name} answered another request than {request.name}")
        try:
            return response.decode(frame[_header_bytes(response, version, frame) :], version=version)
        except Exception as error:
            # kafka-python's decoders raise whatever their struct calls raise.
            self.close()
            raise KafkaUnavailable(f"broker {self.name} sent an unreadable {response.name}: {error!r}") from error

    def _receive(self) -> memoryview:
        (length,) = struct.unpack(">i", self._receive_exactly(4))
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise EOFError(f"a frame of {length} bytes is not an answer of a Kafka broker")
        return self._receive_exactly(length)

    def _receive_exactly(self, length: int) -> memoryview:
        view = memoryview(bytearray(length))
        filled = 0
        while filled < length:
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise EOFError("the connection was closed")
            filled += received
        return view.toreadonly()

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        # Version 0 is answered by every broker, also one that does not know the newest version we know.
        response = self.ask(ApiVersionsRequest(version=0), ApiVersionsResponse, 0)
        if response.error_code != NONE:
            raise RequestRefused(self.name, "ApiVersions", response.error_code, error_name(response.error_code))
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


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
