"""Each cause for which a registry cannot be used has its own text and its own remedy."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.registry.client.access import Server, Tls
from headrace.registry.client.client import RegistryClient
from headrace.registry.client.connections import HttpResponse, RegistryConnections, RequestFailed
from headrace.registry.client.responses import response_value
from headrace.registry.errors import AccessDenied, CredentialsRefused, RegistryError, ServiceError
from support.certificates import Authority
from support.registry.scripted_http import BREAK_OFF, scripted_server

CHOOSE_TLS, CHOOSE_PLAIN = "use https://", "use http://"


def failure(url: str, tls: ssl.SSLContext | None = None) -> str:
    connections = RegistryConnections(_server(url), tls, 0.5)
    with pytest.raises(RequestFailed) as failed, contextlib.closing(connections):
        connections.exchange("GET", "/subjects", {}, None, is_repeatable=True)
    problem, semicolon, remedy = str(failed.value).partition("; ")
    assert semicolon, failed.value
    return f"{problem} | {remedy}"


def _server(url: str) -> Server:
    client = RegistryClient(url)
    client.close()
    return client._transport.servers[0]


@contextlib.contextmanager
def silent_server(reply: bytes = b"") -> Iterator[int]:
    """Accepts one connection, and sends the reply or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                if reply:
                    connection.recv(1024)
                    connection.sendall(reply)
                    connection.close()
                else:
                    connection.recv(1024)
                    connection.recv(1024)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def serving(
    authority: Authority, *, hosts: tuple[str, ...] = ("127.0.0.1",), client_ca: bool = False
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certificate(hosts[0], hosts=hosts))
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca_file)
    return context


def test_refused_unknown_and_silent_addresses_differ() -> None:
    assert "Connection refused | start the registry" in failure("http://127.0.0.1:1")
    assert "correct the host name" in failure("http://no-such-host.invalid:8081")
    with silent_server() as port:
        assert "no response in time | check that the registry is not suspended" in failure(f"http://127.0.0.1:{port}")
    with silent_server(b"\x15\x03\x01\x00\x02\x02\x16") as port:
        assert "the response is not HTTP" in failure(f"http://127.0.0.1:{port}")


def test_tls_and_plain_servers_are_told_apart(authority: Authority) -> None:
    trusted = Tls(ca_file=str(authority.ca_file)).context()
    with scripted_server(lambda request: (200, [])) as plain:
        assert CHOOSE_PLAIN in failure(plain.url.replace("http://", "https://"), trusted)
    with scripted_server(lambda request: (200, []), tls=serving(authority)) as secured:
        assert CHOOSE_TLS in failure(secured.url.replace("https://", "http://"))
    with scripted_server(lambda request: BREAK_OFF) as broken:
        assert CHOOSE_TLS in failure(broken.url)


def test_untrusted_certificates_name_the_setting(authority: Authority, tmp_path: Path) -> None:
    trusted = Tls(ca_file=str(authority.ca_file)).context()
    with scripted_server(lambda request: (200, []), tls=serving(authority)) as secured:
        assert "registry.client_ca" in failure(secured.url, ssl.create_default_context())
    with scripted_server(lambda request: (200, []), tls=serving(authority, hosts=("other",))) as elsewhere:
        assert "use a host name of the certificate" in failure(elsewhere.url, trusted)
    with scripted_server(lambda request: (200, []), tls=serving(authority, client_ca=True)) as mutual:
        assert "registry.client_certificate" in failure(mutual.url, trusted)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, b'{"error_code":401,"message":"Unauthorized"}', CredentialsRefused, "registry.client_password"),
        (401, b"<html>401</html>", CredentialsRefused, "a proxy before it, requires credentials"),
        (403, b"<html>403</html>", AccessDenied, "denies access"),
        (502, b"<html>bad gateway</html>", ServiceError, "HTTP 502.*; it may be starting"),
        (404, b"<html>no</html>", ServiceError, "check the URL"),
        (200, b"<html>welcome</html>", ServiceError, "check the URL"),
    ],
)
def test_error_responses_have_a_remedy(status: int, body: bytes, kind: type[RegistryError], words: str) -> None:
    with pytest.raises(kind, match=words):
        response_value(HttpResponse(status, body), shape=list)
