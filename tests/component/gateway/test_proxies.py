"""The configurations in examples/gateway: Debian's nginx and HAProxy in front of three gateways."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from component.gateway.conftest import gateway_environment
from support.certificates import Authority
from support.checkout import ROOT
from support.free_ports import free_port
from support.gateway import JSON_V2, GatewayClient, InstanceClient, produce, values
from support.running_service import Service

EXAMPLES = ROOT / "examples" / "gateway"
UNPACKED = ROOT / ".make" / "proxies" / "usr"
"""Debian's packages, as `make test-proxies` unpacks them."""
NGINX = """daemon off; user root; pid {0}/nginx.pid; error_log {0}/error.log;
events {{}}
http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxied; fastcgi_temp_path {0}/1;
uwsgi_temp_path {0}/2; scgi_temp_path {0}/3; include {0}/nginx.conf; }}
"""
NUMBERS = (1, 2, 3)
WAIT_S = 30


def program(name: str) -> str | None:
    return shutil.which(name, path=str(UNPACKED / "sbin")) or shutil.which(name, path=f"{os.defpath}:/usr/sbin")


pytestmark = [
    pytest.mark.proxies,
    pytest.mark.skipif(
        program("nginx") is None or program("haproxy") is None,
        reason="nginx or haproxy is missing; run make test-proxies, or install Debian's packages",
    ),
]


class ProxiedGateways:
    """Three gateways behind a proxy: 127.0.0.1 is the name of any gateway, 127.0.0.11 that of the first one."""

    def __init__(self, kind: str, directory: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        authority = Authority(directory / "certificates")
        hosts = ("127.0.0.1", *(f"127.0.0.1{number}" for number in NUMBERS))
        self._certificate = authority.certificate("gateway", hosts=hosts)
        self.context = ssl.create_default_context(cafile=authority.ca_file)
        self.urls = [f"https://127.0.0.1{number}:{self.port}" for number in NUMBERS]
        self.log = directory / "access.jsonl"
        settings = {
            "REGISTRY__CLIENT_CA": str(authority.ca_file),
            "GATEWAY__PEERS": ",".join(self.urls),
            "GATEWAY__PROXIES": "127.0.0.1",
            "GATEWAY__ACCESS_LOG": str(self.log),
            "GATEWAY__SESSIONS_TOPIC": f"sessions-{kind}",
            "GATEWAY__LEDGER_TOPIC": f"ledger-{kind}",
        }
        shared = environment | {f"HEADRACE__{name}": value for name, value in settings.items()}
        command = ["headrace", "gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir"]
        self.services = [
            Service([*command, str(directory / url[-9:].replace(":", "-"))], shared | {"HEADRACE__GATEWAY__URL": url})
            for url in self.urls
        ]
        self._proxy = self._start_proxy(kind, directory)
        self.client = GatewayClient(f"https://127.0.0.1:{self.port}", self.context)

    def _start_proxy(self, kind: str, directory: Path) -> subprocess.Popen[bytes]:
        certificate, key = self._certificate
        both = directory / "both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        source = EXAMPLES / ("nginx.conf" if kind == "nginx" else "haproxy.cfg")
        text = source.read_text(encoding="utf-8")
        replaced = {
            **{
                f"10.0.0.1{number}:8082": urlsplit(service.addresses["gateway"]).netloc
                for number, service in enumerate(self.services, 1)
            },
            **{f"gateway{number}.example.com": f"127.0.0.1{number}" for number in NUMBERS},
            "gateway.example.com": "127.0.0.1",
            "listen 443": f"listen {self.port}",
            "bind :443": f"bind :{self.port}",
            "/etc/nginx/gateway.crt": str(certificate),
            "/etc/nginx/gateway.key": str(key),
            "/etc/haproxy/gateway.pem": str(both),
        }
        for old, new in replaced.items():
            text = text.replace(old, new)
        own = directory / source.name
        own.write_text(text)
        (directory / "main.conf").write_text(NGINX.format(directory))
        options = ["-c", str(directory / "main.conf"), "-p", str(directory)] if kind == "nginx" else ["-f", str(own)]
        libraries = {"LD_LIBRARY_PATH": ":".join(map(str, (UNPACKED / "lib").glob("*-linux-gnu")))}
        process = subprocess.Popen(
            [program(kind) or kind, *options], env=os.environ | libraries, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WAIT_S
        while not self._is_accepting():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        return process

    def _is_accepting(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0

    def connect(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        connection = socket.create_connection(("127.0.0.1", self.port), WAIT_S, (source, 0))
        return self.context.wrap_socket(connection, server_hostname="127.0.0.1")

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> dict[str, object]:
        """Sends a request until it succeeds, also to the gateway that a response names. Returns {} if a chunk must be
        stored again: lanes move while gateways start."""
        client, deadline = self.client, time.monotonic() + WAIT_S
        while True:
            response = client.post(path, body, content_type)
            if response.status == 200:
                return dict(response.json)
            if response.problem == (404, 40471):
                return {}
            assert response.status in (307, 502, 503) and time.monotonic() < deadline, response.content
            client = self.client
            if response.status == 307:
                client = GatewayClient(response.headers["location"], self.context)
            else:
                time.sleep(0.1)

    def stop(self) -> None:
        self._proxy.terminate()
        self._proxy.wait(WAIT_S)
        for service in self.services:
            service.stop()


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def gateways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, registry_url: str, broker_address: str
) -> Iterator[ProxiedGateways]:
    directory = tmp_path_factory.mktemp(request.param)
    shared = ProxiedGateways(request.param, directory, gateway_environment(registry_url, broker_address))
    yield shared
    shared.stop()


def committed_records(gateways: ProxiedGateways, topic: str) -> object:
    """Writes two records in a transaction, and returns the number of records that the gateway reports."""
    path, committed = f"/v1/store?topic={topic}&format=binary", {}
    while not committed:
        stored = gateways.post(path, b"a\nb\n", "text/plain")
        path = f"/v1/store?topic={topic}&format=binary&transaction_id={stored['transaction_id']}"
        named = {name: stored[name] for name in ("transaction_id", "length", "checksum")}
        if gateways.post("/v1/commit_request", json.dumps(named).encode()):
            named = {"transaction_id": named["transaction_id"]}
            committed = gateways.post("/v1/commit", json.dumps(named).encode())
    return committed["records"]


def test_instances_sessions_and_transactions_need_no_affinity(gateways: ProxiedGateways, topic: str) -> None:
    for number in range(6):
        produce(gateways.client, topic, number)
    instance = InstanceClient(gateways.client).subscribe(topics=[topic])
    assert values(instance.read_until(6)) == list(range(6))
    assert instance.base_uri in [f"{url}{instance.path}" for url in gateways.urls]
    for number in range(4):
        wanted = {"topic": topic, "source_id": f"source {number}", "format": "binary"}
        assert gateways.post("/v1/sessions", json.dumps(wanted).encode())["url"] in gateways.urls
        assert committed_records(gateways, topic) == 2
    (found,) = gateways.client.request("GET", "/v3/clusters").json["data"]
    assert found["metadata"]["self"].startswith(f"https://127.0.0.1:{gateways.port}/v3/clusters/")


def test_results_of_a_stream_arrive_while_it_is_sent(gateways: ProxiedGateways, topic: str) -> None:
    head = f"POST /v3/clusters/any/topics/{topic}/records HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    record = b'{"value": {"type": "JSON", "data": 1}}'
    with gateways.connect() as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        received = b""
        for number in range(3):
            connection.sendall(b"%x\r\n%s\r\n" % (len(record), record))
            while received.count(b'"error_code":200') <= number:
                received += connection.recv(65536)
        connection.sendall(b"0\r\n\r\n")


def test_log_has_the_address_of_the_client(gateways: ProxiedGateways) -> None:
    request = (
        b"GET /v3/clusters HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
    )
    with gateways.connect("127.0.0.9") as connection:
        connection.sendall(request)
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
    deadline = time.monotonic() + WAIT_S
    while '"client":"127.0.0.9"' not in gateways.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert '"client":"203.0.113.9"' not in gateways.log.read_text()


def test_requests_after_the_death_of_a_gateway_succeed(gateways: ProxiedGateways, topic: str) -> None:
    produce(gateways.client, topic, 0)
    gateways.services[0].kill()
    for number in range(30):
        body = {"records": [{"value": number}]}
        sent = gateways.client.post(f"/topics/{topic}", body, JSON_V2, idempotency_key=str(number))
        assert sent.status == 200, sent.content
    for _ in range(4):  # also instances whose first gateway is the dead one
        instance = InstanceClient(gateways.client)
        assert gateways.client.request("DELETE", instance.path).status == 204
