"""Webhooks of a gateway on a bundled broker and a registry: the receiver has every message, in order, after any
fault."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from component.gateway.conftest import gateway_environment
from headrace.avro_schema import frame
from headrace.gateway.webhooks.signature import read_secret, signed_headers
from headrace.registry.client import RegistryClient
from support.gateway import GatewayClient, stored
from support.running_service import Service

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
Status = Callable[[list[Any]], int]


class Receiver:
    """A server that accepts batches, unless `status` says otherwise."""

    def __init__(self) -> None:
        self.accepted: list[Any] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.status: Status = lambda items: 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                items = json.loads(body)
                status = receiver.status(items)
                receiver.requests.append(({name.lower(): text for name, text in self.headers.items()}, body))
                if status < 300:
                    receiver.accepted += items
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def values(self) -> list[Any]:
        return [item["value"] for item in list(self.accepted)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


StartGateway = Callable[..., Service]


@pytest.fixture
def start_gateway(tmp_path: Path, registry_url: str, broker_address: str) -> Iterator[StartGateway]:
    """Starts gateways with one webhook."""
    services: list[Service] = []

    def start(**webhook: Any) -> Service:
        config = tmp_path / f"headrace{len(services)}.toml"
        table = {"batch_wait": "100ms", "start": "earliest", **webhook}
        lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
        config.write_text(f"[[gateway.webhooks]]\n{lines}\n", encoding="utf-8")
        command = ["headrace", "gateway", "serve", "--config", str(config), "--data-dir", str(tmp_path)]
        environment = gateway_environment(registry_url, broker_address)
        services.append(Service([*command, "--gateway-listen", "127.0.0.1:0"], environment))
        return services[-1]

    yield start
    for service in services:
        service.stop()


@pytest.fixture
def produce(broker_address: str, topic: str) -> Callable[..., None]:
    def send(*values: bytes, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": broker_address, "linger.ms": 5})
        for value in values:
            producer.produce(topic, value, b"k", partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    return send


def numbers(begin: int, end: int) -> list[bytes]:
    return [json.dumps(number).encode() for number in range(begin, end)]


def test_avro_values_arrive_as_json_with_a_signature(
    receiver: Receiver,
    start_gateway: StartGateway,
    produce: Callable[..., None],
    topic: str,
    registry_url: str,
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="utf-8")
    with RegistryClient(registry_url) as registry:
        schema_id = registry.register(f"{topic}-value", SCHEMA).schema_id
    produce(frame(schema_id, b"\x04"), b"garbage")
    start_gateway(name=topic, topics=[topic], url=receiver.url, secret_file=str(secret), key_format="string")
    wait_for(lambda: len(receiver.accepted) == 2)
    first, second = receiver.accepted
    assert (first["topic"], first["partition"], first["offset"], first["key"]) == (topic, 0, 0, "k")
    assert (first["value"], "error" in first) == ({"id": 2}, False)
    assert (second["value"], second["base64"]) == (base64.b64encode(b"garbage").decode(), ["value"])
    headers, body = receiver.requests[0]
    expected = signed_headers(read_secret(secret), headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == expected["webhook-signature"]
    assert headers["content-type"] == "application/json"


def test_refused_message_becomes_a_dead_letter_and_the_others_arrive(
    receiver: Receiver,
    start_gateway: StartGateway,
    produce: Callable[..., None],
    topic: str,
    broker_address: str,
) -> None:
    receiver.status = lambda items: 422 if any(item["value"] == 13 for item in items) else 200
    produce(*numbers(0, 40))
    start_gateway(name=topic, topics=[topic], url=receiver.url, value_format="json", attempts=2)
    wait_for(lambda: len(receiver.accepted) == 39)
    assert receiver.values == [number for number in range(40) if number != 13]
    (dead,) = stored(broker_address, f"{topic}.dead-letter", 1)
    assert (dead.key(), dead.value()) == (b"k", b"13")
    assert dict(dead.headers() or []) == {
        "hr.webhook": topic.encode(),
        "hr.position": f"{topic}-0-13".encode(),
        "hr.reason": b"HTTP 422",
    }


@pytest.mark.parametrize("status", [302, 401, 503])
def test_failing_receiver_gets_every_message_later_in_order(
    status: int,
    receiver: Receiver,
    start_gateway: StartGateway,
    produce: Callable[..., None],
    topic: str,
    broker_address: str,
) -> None:
    receiver.status = lambda items: status if len(receiver.requests) < 2 else 200
    produce(*numbers(0, 10))
    start_gateway(name=topic, topics=[topic], url=receiver.url, value_format="json", attempts=1)
    wait_for(lambda: len(receiver.accepted) == 10)
    assert receiver.values == list(range(10))
    ids = {headers["webhook-id"] for headers, _ in receiver.requests[:3]}
    assert len(ids) == 1


def test_killed_gateway_leaves_nothing_out(
    receiver: Receiver, start_gateway: StartGateway, produce: Callable[..., None], topic: str
) -> None:
    """The receiver may get the last batch twice, and has no gap."""
    webhook = {"name": topic, "topics": [topic], "url": receiver.url, "value_format": "json", "batch_records": 7}
    produce(*numbers(0, 100))
    service = start_gateway(**webhook)
    wait_for(lambda: len(receiver.accepted) >= 30)
    service.process.kill()
    service.process.wait()
    start_gateway(**webhook)
    produce(*numbers(100, 150))
    wait_for(lambda: len(set(receiver.values)) == 150)
    firsts = list(dict.fromkeys(receiver.values))
    assert firsts == list(range(150))


def test_two_gateways_share_the_partitions(
    receiver: Receiver, start_gateway: StartGateway, produce: Callable[..., None], topic: str
) -> None:
    """A gateway that joins while the receiver fails takes over partitions; each is delivered in order, without gaps."""
    webhook = {"name": topic, "topics": [topic], "url": receiver.url, "value_format": "json", "batch_records": 5}
    is_down = True
    receiver.status = lambda items: 503 if is_down else 200
    for partition in range(4):
        produce(*numbers(1000 * partition, 1000 * partition + 50), partition=partition)
    first = start_gateway(**webhook)
    wait_for(lambda: len(receiver.requests) >= 2)
    second = start_gateway(**webhook)
    seen = len(receiver.requests)
    wait_for(lambda: len(receiver.requests) >= seen + 4)
    is_down = False
    wait_for(lambda: len(set(receiver.values)) == 200)
    for partition in range(4):
        of_partition = dict.fromkeys(item["value"] for item in receiver.accepted if item["partition"] == partition)
        assert list(of_partition) == list(range(1000 * partition, 1000 * partition + 50))
    counts = [metric(service, "headrace_gateway_webhook_messages_total") for service in (first, second)]
    assert min(counts) > 0
    assert sum(counts) == len(receiver.accepted)


def metric(service: Service, name: str) -> float:
    page = GatewayClient(service.addresses["gateway"]).request("GET", "/metrics").content.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{"))
