"""The readiness of registry servers, as a status reads it: Headrace's and others', and each way to fail."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from headrace.registry.client import RegistryClient
from headrace.registry.client.readiness import Readiness
from support.registry.scripted_http import BREAK_OFF, ReceivedRequest, scripted_server

TIMEOUT_S = 0.5
OK: tuple[Any, ...] = (200, {"status": "ok"})
STORE_ERROR: tuple[Any, ...] = (500, {"error_code": 50001, "message": "connection\nrefused"})
NOT_FOUND: tuple[Any, ...] = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})


def readiness(responses: dict[str, tuple[Any, ...]]) -> tuple[Readiness, bool, str, int]:
    """Returns readiness, whether it is Headrace, the reason, and the number of requests."""

    def script(request: ReceivedRequest) -> tuple[Any, ...]:
        return responses.get(request.line.split()[1].partition("?")[0], NOT_FOUND)

    with scripted_server(script) as server, RegistryClient(server.url, timeout_s=TIMEOUT_S) as client:
        (one,) = client.readiness()
        assert one.url == server.url
        return one.readiness, one.is_headrace, one.reason, len(server.requests)


@pytest.mark.parametrize(
    ("responses", "expected", "is_headrace", "reason"),
    [
        ({"/healthz": OK, "/readyz": OK}, Readiness.READY, True, ""),
        ({"/healthz": OK, "/readyz": STORE_ERROR}, Readiness.NO_DATABASE, True, "HTTP 500: connection refused"),
        ({"/healthz": OK, "/readyz": (503, "busy")}, Readiness.FAILED, True, "HTTP 503"),
        ({"/subjects": (200, ["a-value"])}, Readiness.READY, False, ""),
        ({"/subjects": (401, {"error_code": 40101, "message": "who?"})}, Readiness.REFUSED, False, "HTTP 401: who?"),
        ({"/subjects": (502, "<html>")}, Readiness.FAILED, False, "HTTP 502"),
        ({}, Readiness.FAILED, False, "another program than a schema registry"),
        ({"/healthz": BREAK_OFF}, Readiness.SILENT, False, ""),
    ],
)
def test_readiness_of_a_server(
    responses: dict[str, tuple[Any, ...]], expected: Readiness, is_headrace: bool, reason: str
) -> None:
    found = readiness(responses)
    assert found[:2] == (expected, is_headrace)
    assert reason in found[2]
    assert found[3] <= (3 if responses.get("/readyz") == OK else 2), "no request is repeated"


def test_server_with_a_frozen_database_is_told_from_a_frozen_server() -> None:
    def script(request: ReceivedRequest) -> tuple[Any, ...]:
        if "/readyz" in request.line:
            time.sleep(2 * TIMEOUT_S)
        return OK

    with scripted_server(script) as server, RegistryClient(server.url, timeout_s=TIMEOUT_S) as client:
        assert client.readiness()[0].readiness == Readiness.NO_DATABASE
    with socket.socket() as frozen:  # the kernel accepts the connection
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        with RegistryClient(f"http://127.0.0.1:{frozen.getsockname()[1]}", timeout_s=TIMEOUT_S) as client:
            assert client.readiness()[0].readiness == Readiness.SILENT


def test_each_server_is_checked_although_the_first_answers() -> None:
    with scripted_server(lambda request: OK) as server, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with RegistryClient([server.url, closed], timeout_s=TIMEOUT_S) as client:
            found = {one.url: one.readiness for one in client.readiness()}
    assert found == {server.url: Readiness.READY, closed: Readiness.UNREACHABLE}


def test_time_of_the_server_is_known() -> None:
    with scripted_server(lambda request: OK) as server, RegistryClient(server.url, timeout_s=TIMEOUT_S) as client:
        before_ms = int(time.time()) * 1000
        (one,) = client.readiness()
        assert one.date_ms is not None
        assert before_ms <= one.date_ms <= time.time() * 1000
