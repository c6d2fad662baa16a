"""Limits of connections, and renewed certificates: the gateway's process without brokers, with short time limits."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.gateway.server import HEADERS_BYTES_MAX, proxy_networks
from headrace.settings import SettingsError
from support.certificates import Authority
from support.gateway import GatewayClient
from support.running_service import Service

pytestmark = pytest.mark.servers

WAIT_S = 20
LIMIT_S = 0.3
PROGRAM = f"""
import sys
from headrace.cli import main
from headrace.gateway import record_stream, request_body, server
server.HEADERS_S = server.REST_S = request_body.IDLE_S = record_stream.STREAM_IDLE_S = {LIMIT_S}
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def gateway_process(directory: Path, **environment: str) -> Iterator[Service]:
    arguments = ["gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir", str(directory)]
    service = Service(arguments, environment, program=(sys.executable, "-P", "-c", PROGRAM))
    try:
        yield service
    finally:
        assert service.stop() == 0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with gateway_process(tmp_path_factory.mktemp("gateway")) as service:
        yield GatewayClient(service.addresses["gateway"])


def received(gateway: GatewayClient, *parts: bytes) -> bytes:
    """Sends bytes, and returns all that the gateway sends until it closes the connection."""
    found = b""
    with (
        socket.create_connection((gateway.host, gateway.port), WAIT_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        for part in parts:
            connection.sendall(part)
        while chunk := connection.recv(65536):
            found += chunk
    return found


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"GET /healthz HTT"],
        [b"GET /healthz HTTP/1.1\r\nHost: x\r\n"],
        [b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: ", b"a" * HEADERS_BYTES_MAX],
    ],
)
def test_connection_without_complete_headers_is_closed(gateway: GatewayClient, parts: list[bytes]) -> None:
    assert received(gateway, *parts) == b""
    assert gateway.request("GET", "/healthz").status == 200


def test_second_request_of_a_connection_has_the_same_time_for_its_headers(gateway: GatewayClient) -> None:
    response = received(gateway, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\n")
    assert response.count(b"HTTP/1.1 200") == 1


def test_headers_below_the_limit_are_accepted(gateway: GatewayClient) -> None:
    assert gateway.request("GET", "/healthz", large="a" * (HEADERS_BYTES_MAX - 1000)).status == 200


def test_client_that_pauses_within_a_body_gets_408(gateway: GatewayClient) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    response = received(gateway, head + b'{"topic":')
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b'{"error_code":408,' in response


def test_stream_of_a_client_that_pauses_ends_with_an_item_408(tmp_path: Path, broker_address: str) -> None:
    record = b'{"value": {"type": "STRING", "data": "a"}}'
    head = b"POST /v3/clusters/c/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with gateway_process(tmp_path, HEADRACE__KAFKA__BOOTSTRAP_SERVERS=broker_address) as service:
        response = received(GatewayClient(service.addresses["gateway"]), head + b"Content-Length: 999\r\n\r\n", record)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert re.findall(rb'"error_code":(\d+)', response) == [b"200", b"408"]


def test_connection_is_closed_if_a_refused_body_does_not_end(gateway: GatewayClient) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Encoding: x\r\nContent-Length: 999999999999\r\n\r\n"
    with socket.create_connection((gateway.host, gateway.port), WAIT_S) as connection:
        connection.sendall(head)
        response = connection.recv(65536)
        assert response.startswith(b"HTTP/1.1 415 ")
        with contextlib.suppress(ConnectionError):
            for _ in range(10 * WAIT_S):  # each byte of the body ends the wait for the next request
                connection.sendall(b" ")
                time.sleep(0.1)
            pytest.fail("the connection is still open")


def test_connection_serves_further_requests_after_pauses_and_refused_bodies(gateway: GatewayClient) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    refused = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Encoding: x\r\nContent-Length: 3\r\n\r\n"
    json = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_connection((gateway.host, gateway.port), WAIT_S) as connection:
        for parts, status in (([request], b"200"), ([refused, b"abc"], b"415"), ([json], b"400"), ([request], b"200")):
            for part in parts:
                connection.sendall(part)
            response = b""
            while not response.endswith(b"}"):
                response += connection.recv(65536)
            assert response.startswith(b"HTTP/1.1 " + status)
            time.sleep(2 * LIMIT_S)  # no limit of time applies between requests


def test_requests_that_are_sent_at_once_are_all_served(gateway: GatewayClient) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n%s\r\n"
    assert received(gateway, request % b"" * 3 + request % b"Connection: close\r\n").count(b"HTTP/1.1 200") == 4


def test_address_of_a_client_is_believed_of_listed_proxies_only(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    settings = {"HEADRACE__GATEWAY__PROXIES": "127.0.0.2,10.0.0.0/8", "HEADRACE__GATEWAY__ACCESS_LOG": str(log)}
    with gateway_process(tmp_path, **settings) as service:
        gateway, expected = GatewayClient(service.addresses["gateway"]), []
        for source, header, client in (
            ("127.0.0.2", b"X-Forwarded-For: 203.0.113.9", "203.0.113.9"),
            ("127.0.0.2", b"X-Forwarded-For: 192.0.2.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),  # a client, a proxy
            ("127.0.0.2", b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 203.0.113.9", "203.0.113.9"),
            ("127.0.0.2", b"X-Forwarded-For: 2001:db8::1", "2001:db8::1"),
            ("127.0.0.2", b"X: y", "127.0.0.2"),
            ("127.0.0.1", b"X-Forwarded-For: 203.0.113.9", "127.0.0.1"),
        ):
            request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n\r\n" % header
            with socket.create_connection((gateway.host, gateway.port), WAIT_S, (source, 0)) as connection:
                connection.sendall(request)
                assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200")
            expected.append(client)
    # The log of a stopped gateway is complete.
    assert [json.loads(line)["client"] for line in log.read_text().splitlines()] == expected


def test_proxies_are_networks() -> None:
    assert proxy_networks(["10.0.0.5", "10.1.0.0/16"]) == [
        "10.0.0.5/32",
        "::ffff:10.0.0.5/128",  # a socket for IPv6 shows the address so
        "10.1.0.0/16",
        "::ffff:10.1.0.0/112",
    ]
    for item in ("*", "proxy.example.com", "10.0.0.5/24", "", "10.0.0.5:8080"):
        with pytest.raises(SettingsError, match=r"^gateway\.proxies: "):
            proxy_networks([item])


def served_serial(url: str, authority: Authority) -> int:
    """Returns the serial number of the certificate that a new connection gets."""
    client = GatewayClient(url)
    context = ssl.create_default_context(cafile=authority.ca_file)
    with (
        socket.create_connection((client.host, client.port), WAIT_S) as connection,
        context.wrap_socket(connection, server_hostname=client.host) as secured,
    ):
        certificate = secured.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def test_renewed_certificate_is_served_after_sighup_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.certificate("gateway")
    files = {"HEADRACE__GATEWAY__TLS_CERTIFICATE": str(certificate), "HEADRACE__GATEWAY__TLS_KEY": str(key)}
    with gateway_process(tmp_path, **files) as service:
        url = service.addresses["gateway"]
        first = served_serial(url, authority)
        authority.certificate("gateway")  # the same files
        reload(service, "certificate_reloaded")
        second = served_serial(url, authority)
        assert second != first
        certificate.write_bytes(b"damaged")
        reload(service, "certificate_not_reloaded")
        assert served_serial(url, authority) == second


def reload(service: Service, event: str) -> None:
    """Sends SIGHUP, and waits for an event in the log."""
    service.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + WAIT_S
    while not any(event in line for line in service.errors):
        assert time.monotonic() < deadline, service.errors
        time.sleep(0.05)
