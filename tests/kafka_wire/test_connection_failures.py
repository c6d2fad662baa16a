"""Each cause for which a broker cannot be used has its own text and its own remedy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.kafka_wire.connection import BrokerConnection, ReceiveBuffers
from headrace.kafka_wire.errors import KafkaError
from headrace.kafka_wire.security import UNSECURED, KafkaSecurity

TLS = KafkaSecurity(protocol="SSL")


@contextlib.contextmanager
def server(reply: bytes | None) -> Iterator[int]:
    """Accepts one connection and sends the reply to the first bytes; None sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                connection.recv(1024)
                if reply is None:
                    connection.recv(1024)
                else:
                    connection.sendall(reply)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def failure(port: int, security: KafkaSecurity = UNSECURED, host: str = "127.0.0.1") -> str:
    with pytest.raises(KafkaError) as failed:
        BrokerConnection(host, port, 0.5, security, ReceiveBuffers())
    problem, semicolon, remedy = str(failed.value).partition("; ")
    assert semicolon, failed.value
    assert f"{host}:{port}" in problem
    return remedy


def test_addresses_that_cannot_be_reached_name_the_setting() -> None:
    assert failure(1) == "start the broker, or correct kafka.bootstrap_servers"
    assert "correct the host name" in failure(9092, host="no-such-host.invalid")


@pytest.mark.parametrize(
    ("reply", "security", "words"),
    [
        (b"", UNSECURED, "expects TLS or a login"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", UNSECURED, "kafka.security_protocol"),
        (None, UNSECURED, "not suspended"),
        (b"\x00\x00\x00\x0a" + b"\x00" * 10, TLS, "kafka.security_protocol"),
    ],
)
def test_brokers_of_another_protocol_name_the_setting(reply: bytes | None, security: KafkaSecurity, words: str) -> None:
    with server(reply) as port:
        assert words in failure(port, security)
