"""The registry client with a proxy: requests over HTTP, tunnels for HTTPS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.registry.client import BasicAuth, RegistryClient, Tls
from headrace.registry.errors import RegistryUnavailable, ServiceError
from support.certificates import Authority
from support.registry.scripted_http import ScriptedServer, scripted_server

SUBJECTS = (200, ["orders-value"])


@contextmanager
def tunnel(target: int, *, refusal: str = "") -> Iterator[tuple[int, list[str]]]:
    """A proxy that connects every CONNECT to one local port. Yields the proxy's port and the request headers."""
    heads: list[str] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", target)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            heads.append(head.decode())
            client.sendall(f"HTTP/1.1 {refusal or '200 Connection established'}\r\n\r\n".encode())
            if refusal:
                return
            back = threading.Thread(target=pump, args=(server, client), daemon=True)
            back.start()
            pump(client, server)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listening.getsockname()[1], heads
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def port_of(server: ScriptedServer) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def test_http_requests_are_sent_to_the_proxy_in_absolute_form(no_proxies: pytest.MonkeyPatch) -> None:
    with scripted_server(lambda _: SUBJECTS) as proxy:
        no_proxies.setenv("HTTP_PROXY", proxy.url.replace("://", "://me:sesame@"))
        client = RegistryClient("http://registry.test:8081/base", auth=BasicAuth("shop", "own"))
        assert client.subjects() == client.subjects() == ["orders-value"]
        assert proxy.lines == ["GET http://registry.test:8081/base/subjects"] * 2
        headers = proxy.requests[0].headers
        assert headers["host"] == "registry.test:8081"
        assert headers["proxy-authorization"] == "Basic bWU6c2VzYW1l"
        assert headers["authorization"] == "Basic c2hvcDpvd24="


def test_proxy_error_407_raises_service_error(no_proxies: pytest.MonkeyPatch) -> None:
    with scripted_server(lambda _: (407, "<html>who are you?</html>")) as proxy:
        no_proxies.setenv("http_proxy", proxy.url)
        with pytest.raises(ServiceError, match="HTTP_PROXY") as refused:
            RegistryClient("http://registry.test").subjects()
        assert refused.value.status == 407


def test_https_uses_a_tunnel_through_the_proxy(no_proxies: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.certificate("server", hosts=("registry.test",)))
    with scripted_server(lambda _: SUBJECTS, tls=context) as server, tunnel(port_of(server)) as (port, heads):
        no_proxies.setenv("HTTPS_PROXY", f"http://me:sesame@127.0.0.1:{port}")
        auth = BasicAuth("shop", "own")
        with RegistryClient("https://registry.test", auth=auth, tls=Tls(str(authority.ca_file))) as client:
            assert client.subjects() == client.subjects() == ["orders-value"]
        assert len(heads) == 1, "the tunnel is kept"
        assert heads[0].startswith("CONNECT registry.test:443 HTTP/1.")
        assert "Proxy-Authorization: Basic bWU6c2VzYW1l\r\n" in heads[0]
        assert "c2hvcDpvd24" not in heads[0]
        assert server.lines == ["GET /subjects"] * 2
        assert "proxy-authorization" not in server.requests[0].headers


def test_failing_proxy_is_named_in_the_error(no_proxies: pytest.MonkeyPatch) -> None:
    with (
        scripted_server(lambda _: SUBJECTS) as server,
        tunnel(port_of(server), refusal="403 Forbidden") as (port, heads),
    ):
        no_proxies.setenv("HTTPS_PROXY", f"http://me:sesame@127.0.0.1:{port}")
        with pytest.raises(RegistryUnavailable, match=rf"403 Forbidden.*127\.0\.0\.1:{port}"):
            RegistryClient("https://registry.test").subjects()
        assert len(heads) == 1, "what a proxy forbids it forbids again"
    no_proxies.setenv("HTTP_PROXY", "127.0.0.1:1")
    no_proxies.setattr("headrace.registry.client.transport.PAUSE_FIRST_S", 0.001)
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:1\b"):
        RegistryClient("http://registry.test").subjects()


def test_loopback_and_no_proxy_bypass_the_proxy(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("HTTP_PROXY", "127.0.0.1:1")
    with scripted_server(lambda _: SUBJECTS) as server:
        assert RegistryClient(server.url).subjects() == ["orders-value"]
