"""Consumer instances of several gateways behind a balancer that sends each request to the next gateway."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from component.gateway.conftest import gateway_environment
from headrace.registry.access.passwords import Cost, PasswordHash
from support.certificates import Authority
from support.free_ports import free_port
from support.gateway import JSON_V2, V2, GatewayClient, GatewayResponse, InstanceClient, produce, stored, values
from support.running_service import Service

pytestmark = pytest.mark.servers

WAIT_S = 30
PASSED_ON = "headrace-passed-on"


class Balancer(GatewayClient):
    """Sends each request to the next gateway."""

    def __init__(self, urls: list[str], context: ssl.SSLContext | None = None, **credentials: str) -> None:
        super().__init__(urls[0])
        self._next = itertools.cycle([GatewayClient(url, context, **credentials) for url in urls])

    def request(self, *arguments: Any, **headers: str) -> GatewayResponse:
        return next(self._next).request(*arguments, **headers)


class Gateways:
    """Gateways that know each other."""

    def __init__(self, directory: Path, environment: dict[str, str], scheme: str = "http") -> None:
        self.urls = [f"{scheme}://127.0.0.1:{free_port()}" for _ in range(2)]
        self._directory, self._environment = directory, environment
        self.services = {url: self.start(url) for url in self.urls}

    def start(self, url: str) -> Service:
        command = ["headrace", "gateway", "serve", "--data-dir", str(self._directory / url.rpartition(":")[2])]
        own = {"HEADRACE__GATEWAY__PEERS": ",".join(self.urls), "HEADRACE__GATEWAY__URL": f"{url}/"}
        return Service([*command, "--gateway-listen", url.partition("//")[2]], self._environment | own)

    def owner_of(self, instance: InstanceClient) -> str:
        return str(instance.base_uri.removesuffix(instance.path))

    def stop(self) -> None:
        for service in self.services.values():
            service.stop()


def wait_for_disconnections(gateway: GatewayClient, count: int, seconds: float) -> None:
    """Waits until a gateway has noticed that clients of reads have disconnected."""
    line = f'route="/consumers/{{group}}/instances/{{instance}}/records",status="499"}} {count}.0'
    deadline = time.monotonic() + seconds
    while line not in gateway.request("GET", "/metrics").content.decode() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextlib.contextmanager
def proxy_of_a_dead_gateway(url: str) -> Iterator[None]:
    """Responds at the address of a gateway like nginx in front of one that does not run."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(502)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>502 Bad Gateway</html>")

        do_POST = do_GET  # noqa: N815  (its name is given)

    client = GatewayClient(url)
    with http.server.ThreadingHTTPServer((client.host, client.port), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


Start = Callable[..., Gateways]


@pytest.fixture
def start(tmp_path: Path, registry_url: str, broker_address: str) -> Iterator[Start]:
    running = []

    def start(scheme: str = "http", **settings: str) -> Gateways:
        own = {f"HEADRACE__{name.upper()}": value for name, value in settings.items()}
        environment = gateway_environment(registry_url, broker_address) | own
        running.append(Gateways(tmp_path, environment, scheme))
        return running[-1]

    yield start
    for gateways in running:
        gateways.stop()


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory, registry_url: str, broker_address: str) -> Iterator[Gateways]:
    """Two gateways that no test stops."""
    environment = gateway_environment(registry_url, broker_address)
    shared = Gateways(tmp_path_factory.mktemp("gateways"), environment)
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def balancer(gateways: Gateways) -> Balancer:
    return Balancer(gateways.urls)


def test_instances_behind_a_balancer(gateways: Gateways, balancer: Balancer, topic: str) -> None:
    produce(balancer, topic, *range(6))
    instances = [InstanceClient(balancer) for _ in range(16)]
    assert {gateways.owner_of(one) for one in instances} == set(gateways.urls)
    for instance in instances[:2]:
        for url in gateways.urls:
            again = GatewayClient(url).post(f"/consumers/{instance.group}", {"name": instance.name}, V2)
            assert again.problem == (409, 40902)
        instance.subscribe(topics=[topic])
        assert values(instance.read_until(3)[:3]) == [0, 1, 2]
        assert instance.post("positions/beginning", {"partitions": [{"topic": topic, "partition": 0}]}).status == 204
        for number in range(6):
            assert values(instance.read("timeout=10000&max_bytes=1")) == [number]
            assert instance.post("offsets").status == 200
            assert instance.committed(topic) == {0: number + 1}
        position = {"offsets": [{"topic": topic, "partition": 0, "offset": 3, "metadata": "ö"}]}
        assert instance.post("offsets", position).json == []
        query = {"partitions": [{"topic": topic, "partition": 0}]}
        found = balancer.request("GET", f"{instance.path}/offsets", query, V2).json["offsets"]
        assert [(one["offset"], one["metadata"]) for one in found] == [(4, "ö")]
        assert instance.post("assignments", {"partitions": []}).problem == (409, 40903)
        for accept, problem in (("text/html", (406, 406)), ("application/vnd.kafka.avro.v2+json", (406, 40601))):
            for _ in gateways.urls:
                assert balancer.request("GET", f"{instance.path}/records", accept=accept).problem == problem
        assert balancer.request("DELETE", instance.path).status == 204
        for _ in gateways.urls:
            assert instance.get("records").problem == (404, 40403)


def test_generated_names_and_names_with_reserved_characters(gateways: Gateways, balancer: Balancer) -> None:
    for url in gateways.urls:
        created = GatewayClient(url).post("/consumers/g%201", {}, V2).json
        assert created["base_uri"] == f"{url}/consumers/g%201/instances/{created['instance_id']}"
        path = created["base_uri"].removeprefix(url)
        for other in gateways.urls:
            assert GatewayClient(other).request("GET", f"{path}/subscription").json == {"topics": []}
    for name in ("a b%", "?x=1#f", "@127.0.0.1", "ö", "%2e%2e"):
        created = balancer.post("/consumers/g", {"name": name}, V2).json
        path = "/consumers/" + created["base_uri"].partition("/consumers/")[2]
        assert [balancer.request("GET", f"{path}/subscription").status for _ in gateways.urls] == [200, 200]
        assert [balancer.post("/consumers/g", {"name": name}, V2).problem for _ in gateways.urls] == [(409, 40902)] * 2


def test_request_is_passed_on_to_known_gateways_only_and_once(gateways: Gateways, balancer: Balancer) -> None:
    instance = InstanceClient(balancer)
    owner = gateways.owner_of(instance)
    (other,) = set(gateways.urls) - {owner}
    path = f"{instance.path}/subscription"
    assert GatewayClient(other).request("GET", path).status == 200
    assert GatewayClient(other).request("GET", path, headrace_passed_on="1").problem == (404, 40403)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(1)
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        for target in (f"http://{address}{path}", f"//{address}{path}", f"{path}?u=http://{address}/"):
            client = GatewayClient(other)
            with socket.create_connection((client.host, client.port)) as connection:
                head = f"GET {target} HTTP/1.1\r\nHost: {address}\r\nX-Forwarded-Host: {address}\r\n"
                connection.sendall(f"{head}Forwarded: host={address}\r\nConnection: close\r\n\r\n".encode())
                assert connection.makefile("rb").read().startswith(b"HTTP/1.1 ")
        with pytest.raises(TimeoutError):
            stranger.accept()


def test_other_gateway_checks_the_credentials_of_the_client(tmp_path: Path, start: Start, topic: str) -> None:
    hashed = PasswordHash.of("secret", bytes(16), Cost(log2_n=4, r=1, p=1))
    users = tmp_path / "users"
    grants = [f"user {name} {hashed}\ngrant {name} read {topic}*\n" for name in ("alice", "bob")]
    users.write_text("".join([*grants, f"grant alice payload {topic}\n"]))
    log = tmp_path / "access.jsonl"
    gateways = start(registry__users=str(users), gateway__proxies="127.0.0.1", gateway__access_log=str(log))
    alice, bob = (Balancer(gateways.urls, user=name, password="secret") for name in ("alice", "bob"))
    instance = InstanceClient(alice)
    for _ in gateways.urls:
        assert instance.get("subscription").status == 200
        assert bob.request("GET", f"{instance.path}/subscription").problem == (404, 40403)
        refused = instance.post("subscription", {"topics": ["other"]})
        assert refused.problem == (403, 40301)
    for url in gateways.urls:
        wrong = GatewayClient(url, user="alice", password="x")
        assert wrong.request("GET", f"{instance.path}/records").problem == (401, 40101)
        assert GatewayClient(url).request("GET", f"{instance.path}/records").problem == (404, 40403)
    own = InstanceClient(bob, group=instance.group)
    for _ in gateways.urls:
        assert bob.request("GET", f"{own.path}/subscription", x_forwarded_for="203.0.113.9").status == 200
    deadline = time.monotonic() + WAIT_S
    while log.read_text().count('"client":"203.0.113.9"') < 3:  # one of them was passed on
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert bob.request("DELETE", own.path).status == 204


def test_client_that_disconnects_during_a_read_of_another_gateway_loses_nothing(start: Start, topic: str) -> None:
    gateways = start()
    balancer = Balancer(gateways.urls)
    produce(balancer, topic, "first")
    instance = InstanceClient(balancer).subscribe(topics=[topic])
    assert values(instance.read_until(1)) == ["first"]
    (other,) = set(gateways.urls) - {gateways.owner_of(instance)}
    client = GatewayClient(other)
    request = f"GET {instance.path}/records?timeout=30000 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for number in range(3):
        with socket.create_connection((client.host, client.port)) as connection:
            connection.sendall(request)
            time.sleep(0.3)  # usually the request is passed on meanwhile
        wait_for_disconnections(client, number + 1, WAIT_S)
    wait_for_disconnections(GatewayClient(gateways.owner_of(instance)), 3, 2)
    produce(balancer, topic, 0, 1, 2)
    assert values(instance.read_until(3)) == [0, 1, 2]
    with socket.create_connection((client.host, client.port)) as waiting:
        waiting.sendall(request)
        assert instance.post("offsets").status == 200
        assert gateways.services[other].stop() == 0  # at once, without the time limit of running requests
        assert waiting.recv(65536).startswith(b"HTTP/1.1 503 ")


def test_instance_of_a_dead_gateway_is_created_on_another_one(start: Start, topic: str) -> None:
    gateways = start()
    balancer = Balancer(gateways.urls)
    produce(balancer, topic, 1)
    instance = InstanceClient(balancer).assign(topic)
    owner = gateways.owner_of(instance)
    (other,) = set(gateways.urls) - {owner}
    client = GatewayClient(other)
    gateways.services[owner].kill()
    response = client.request("GET", f"{instance.path}/records")
    assert response.problem == (404, 40403)
    assert "create it again" in response.json["message"]
    body = {"name": instance.name, "format": "json", "auto.offset.reset": "earliest"}
    with proxy_of_a_dead_gateway(owner):
        assert client.request("GET", f"{instance.path}/records").problem == (404, 40403)
        created = client.post(f"/consumers/{instance.group}", body, V2)
    assert created.json["base_uri"].startswith(other)
    gateways.services[owner] = gateways.start(owner)  # it is the first in the order, and does not have the instance
    for url in gateways.urls:
        assert GatewayClient(url).post(f"/consumers/{instance.group}", body, V2).problem == (409, 40902)
    assert values(instance.assign(topic).read_until(1)) == [1]


def test_gateways_check_the_certificates_of_each_other(tmp_path: Path, start: Start) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    certificate, key = authority.certificate("gateway")
    tls = {"gateway__tls_certificate": str(certificate), "gateway__tls_key": str(key)}
    context = ssl.create_default_context(cafile=authority.ca_file)
    for ca_file, statuses in ((authority.ca_file, {200}), (other.ca_file, {200, 404})):
        gateways = start("https", registry__client_ca=str(ca_file), **tls)
        balancer = Balancer(gateways.urls, context)
        instance = InstanceClient(balancer)
        assert {instance.get("subscription").status for _ in gateways.urls} == statuses


def test_repeated_request_with_a_key_at_another_gateway_stores_its_records_once(
    balancer: Balancer, topic: str, broker_address: str
) -> None:
    for number in range(8):
        body = {"records": [{"value": number, "partition": 0}]}
        found = [balancer.post(f"/topics/{topic}", body, JSON_V2, idempotency_key=str(number)) for _ in range(3)]
        assert [one.status for one in found] == [200] * 3
        assert [one.headers.get("idempotent-replayed") for one in found] == [None, "true", "true"]
    produce(balancer, topic, "end")
    assert [message.value() for message in stored(broker_address, topic, 9)] == [
        *(b"%d" % n for n in range(8)),
        b'"end"',
    ]


def test_gateway_that_does_not_respond_delays_requests_for_its_instances_only(start: Start, topic: str) -> None:
    gateways = start()
    balancer = Balancer(gateways.urls)
    instances = [InstanceClient(balancer) for _ in range(16)]
    owner, other = gateways.urls
    client = GatewayClient(other)
    stopped = gateways.services[owner].process
    stopped.send_signal(19)
    try:
        mine = [one for one in instances if gateways.owner_of(one) == other]
        assert [client.request("GET", f"{one.path}/subscription").status for one in mine] == [200] * len(mine)
        (theirs, *_) = (one for one in instances if gateways.owner_of(one) == owner)
        with socket.create_connection((client.host, client.port)) as waiting:
            waiting.sendall(f"GET {theirs.path}/subscription HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            time.sleep(0.2)
            stopped.send_signal(18)
            waiting.settimeout(WAIT_S)
            assert waiting.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        stopped.send_signal(18)
