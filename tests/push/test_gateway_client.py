"""The HTTP client of `headrace push`."""

from __future__ import annotations

from typing import Any

from headrace.push.gateway_client import _Connection


class NotedSocket:
    """Lists what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)


def test_headers_and_body_of_a_request_are_sent_together() -> None:
    connection, noted = _Connection("gateway"), NotedSocket()
    socket: Any = noted
    connection.sock = socket
    connection.request("POST", "/v1/sessions", b"body", {"Content-Type": "text/plain"})
    (sent,) = noted.sent
    assert sent.startswith(b"POST /v1/sessions HTTP/1.1\r\n") and sent.endswith(b"\r\n\r\nbody")
