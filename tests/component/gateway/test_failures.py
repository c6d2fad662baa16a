"""The gateway while brokers are away or deny topics, and with clients that misbehave."""

from __future__ import annotations

import contextlib
import gzip
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.access.scram import HASHES, SALT_BYTES, Verifier
from headrace.broker.access.users import user_line
from support.free_ports import free_port
from support.gateway import AVRO_V2, JSON_V2, GatewayClient, InstanceClient, produce, values
from support.running_service import StartService

pytestmark = pytest.mark.servers

ITERATIONS = 4096
RECORD = {"records": [{"value": 1}]}
StartGateway = Callable[..., GatewayClient]


@pytest.fixture
def start_gateway(tmp_path: Path, start_service: StartService) -> StartGateway:
    def start(broker: str, **variables: str) -> GatewayClient:
        environment = {
            "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker,
            **{f"HEADRACE__{name.upper()}": value for name, value in variables.items()},
        }
        command = ("headrace", "gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
        return GatewayClient(start_service(*command, environment=environment).addresses["gateway"])

    return start


def test_requests_fail_within_the_bound_while_the_broker_is_away_and_work_afterwards(
    tmp_path: Path, start_service: StartService, start_gateway: StartGateway
) -> None:
    address = f"127.0.0.1:{free_port()}"
    serve = ("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", address)
    without_creation = {"HEADRACE__BROKER__AUTO_CREATE_TOPICS": "false"}
    gateway = start_gateway(address, gateway__delivery_timeout="1s")
    broker = start_service(*serve)
    assert gateway.post("/topics/known", RECORD, JSON_V2).status == 200
    broker.kill()
    response = gateway.post("/topics/known", RECORD, JSON_V2)
    assert [one["error_code"] for one in response.json["offsets"]] == [50003]
    response = gateway.post("/topics/unknown", RECORD, JSON_V2)
    assert response.problem == (503, 50302)
    assert int(response.headers["retry-after"]) > 0
    assert gateway.request("GET", "/readyz").problem == (503, 50302)
    start_service(*serve, environment=without_creation)
    response = gateway.post("/topics/known", RECORD, JSON_V2)
    assert [one["error_code"] for one in response.json["offsets"]] in ([None], [50003])  # it may still reconnect
    assert gateway.request("GET", "/readyz").status == 200
    response = gateway.post("/topics/known", RECORD, JSON_V2)
    assert [one["error_code"] for one in response.json["offsets"]] == [None]
    assert gateway.post("/topics/unknown", RECORD, JSON_V2).problem == (404, 40401)
    stream = gateway.post("/v3/clusters/c/topics/unknown/records", {})
    assert stream.problem == (404, 40401)


def test_reads_tell_that_brokers_are_away(
    tmp_path: Path, start_service: StartService, start_gateway: StartGateway
) -> None:
    address = f"127.0.0.1:{free_port()}"
    serve = ("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", address)
    gateway = start_gateway(address)
    broker = start_service(*serve)
    produce(gateway, "t", 1)
    assigned = InstanceClient(gateway).assign("t")
    subscribed = InstanceClient(gateway).subscribe(topics=["t"])
    for instance in (assigned, subscribed):
        assert values(instance.read_until(1)) == [1]
        assert instance.read("timeout=500") == []
    broker.kill()
    for instance in (assigned, subscribed, InstanceClient(gateway).subscribe(topics=["t"])):
        for timeout_ms in (1000, 0):
            response = instance.get(f"records?timeout={timeout_ms}")
            assert response.problem == (503, 50302)
            assert "retry-after" in response.headers
    start_service(*serve)
    while gateway.request("GET", "/readyz").status == 503:
        pass
    produce(gateway, "t", 2)
    while (response := assigned.get("records?timeout=10000")).status == 503:
        pass
    assert values(response.json or assigned.read_until(1)) == [2]
    assert assigned.read("timeout=500") == []


def test_denied_topics_do_not_affect_others(
    tmp_path: Path, start_service: StartService, start_gateway: StartGateway
) -> None:
    verifiers = {name: Verifier.derive(name, "secret", bytes(SALT_BYTES), ITERATIONS) for name in HASHES}
    grants = "grant gateway write topic:mine\ngrant gateway read topic:readable\ngrant admin admin *\n"
    users = tmp_path / "broker-users"
    lines = [f"{user_line(name, verifiers)}\n" for name in ("gateway", "admin")]
    users.write_text("".join(lines) + grants)
    broker = start_service(
        *("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"),
        environment={"HEADRACE__BROKER__USERS": str(users)},
    ).addresses["broker"]
    login = {
        "kafka__security_protocol": "SASL_PLAINTEXT",
        "kafka__sasl_mechanism": "SCRAM-SHA-256",
        "kafka__password": "secret",
    }
    admin = start_gateway(broker, kafka__user="admin", **login)
    gateway = start_gateway(broker, kafka__user="gateway", **login)
    assert admin.post("/topics/readable", RECORD, JSON_V2).status == 200
    for _ in range(3):
        assert gateway.post("/topics/other", RECORD, JSON_V2).problem == (403, 40301)
        (item,) = gateway.post("/v3/clusters/c/topics/readable/records", {"value": {"type": "JSON", "data": 1}}).items
        assert item["error_code"] == 40301
        assert gateway.post("/topics/readable", RECORD, JSON_V2).problem == (403, 40301)
        response = gateway.post("/topics/mine", RECORD, JSON_V2)
        assert [one["error_code"] for one in response.json["offsets"]] == [None]


def test_bodies_in_memory_are_limited_by_client_and_freed_afterwards(
    broker_address: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(broker_address, gateway__client_bytes_max="100000", gateway__request_bytes_max="90000")
    large = b'{"records":[{"value":"%s"}]}' % (b"x" * 60_000)
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection((gateway.host, gateway.port)))
        head = f"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON_V2}\r\nContent-Length: {len(large)}\r\n\r\n"
        slow.sendall(head.encode() + large[:-1])
        while gateway.request("GET", "/metrics").content.find(b"headrace_gateway_body_bytes 60") < 0:
            pass
        response = gateway.post("/topics/t", large, JSON_V2)
        assert response.problem == (429, 42900)
        assert response.headers["retry-after"] == "1"
        assert gateway.post("/topics/t", RECORD, JSON_V2).status == 200
        slow.sendall(large[-1:])
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")
    assert gateway.post("/topics/t", large, JSON_V2).status == 200
    for body, coding in ((large * 2, "identity"), (gzip.compress(large * 2), "gzip")):
        assert gateway.post("/topics/t", body, JSON_V2, content_encoding=coding).problem == (413, 41301)
    value = {"value": {"type": "STRING", "data": "x" * 200_000}}
    assert [one["error_code"] for one in gateway.produce("t", value)] == [42900]
    assert b"headrace_gateway_body_bytes 0.0" in gateway.request("GET", "/metrics").content


def test_client_that_sends_too_much_per_second_waits(broker_address: str, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker_address, gateway__client_bytes_per_second_max="50000")
    large = gzip.compress(b'{"records":[{"partition":0,"value":"%s"}]}' % (b"x" * 500_000))
    assert gateway.post("/topics/rate", large, JSON_V2, content_encoding="gzip").status == 200
    for path, media_type in (
        ("/topics/rate", JSON_V2),
        ("/v3/clusters/c/topics/rate/records", "application/json"),
        ("/v3/clusters/c/topics/rate/records:batch", "application/json"),
        (f"/v1/sessions/{'0' * 32}-1/chunks?begin=0", "text/plain"),
    ):
        with socket.create_connection((gateway.host, gateway.port)) as connection:  # the body is not read
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\nContent-Length: 100\r\n\r\n"
            connection.sendall(head.encode())
            refused = connection.recv(65536)
        assert refused.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: " in refused.lower(), (path, refused)
    instance = InstanceClient(gateway).assign("rate")  # requests without records do not count
    assert len(instance.read_until(1)) == 1
    assert instance.post("offsets").status == 200


def test_stream_pauses_while_its_client_sends_too_much_per_second(
    broker_address: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(broker_address, gateway__client_bytes_per_second_max="300000")
    record = b'{"value":{"type":"STRING","data":"%s"}}' % (b"x" * 1000)
    began = time.monotonic()
    items = gateway.post("/v3/clusters/c/topics/t/records", record * 900).items
    assert [item["error_code"] for item in items] == [200] * 900
    assert time.monotonic() - began > 1  # 900 kB at 300 kB/s, after a burst of 300 kB


def test_endless_body_is_refused_when_it_exceeds_the_limit(broker_address: str, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker_address, gateway__request_bytes_max="100000")
    with socket.create_connection((gateway.host, gateway.port)) as connection:
        head = f"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON_V2}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(11):
            connection.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")  # before the end of the body


def test_bodies_of_all_clients_in_memory_are_limited(broker_address: str, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker_address, gateway__memory_bytes_max="100000")
    large = b'{"records":[{"value":"%s"}]}' % (b"x" * 60_000)
    with socket.create_connection((gateway.host, gateway.port)) as slow:
        head = f"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON_V2}\r\nContent-Length: {len(large)}\r\n\r\n"
        slow.sendall(head.encode() + large[:-1])
        while gateway.request("GET", "/metrics").content.find(b"headrace_gateway_body_bytes 60") < 0:
            pass
        response = gateway.post("/topics/t", large, JSON_V2)
        assert (response.problem, response.headers["retry-after"]) == ((429, 42900), "1")
        assert gateway.post("/topics/t", RECORD, JSON_V2).status == 200


def test_schemas_cannot_be_used_while_the_registry_does_not_respond(
    broker_address: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(broker_address, registry__url=f"http://127.0.0.1:{free_port()}")
    for schema in ({"value_schema_id": 1}, {"value_schema": '"int"'}):
        response = gateway.post("/topics/t", {**schema, **RECORD}, AVRO_V2)
        assert response.problem == (503, 50301)
        assert int(response.headers["retry-after"]) > 0
    (item,) = gateway.post("/v3/clusters/c/topics/t/records", {"value": {"schema_id": 1, "data": 1}}).items
    assert item["error_code"] == 50301
    assert gateway.post("/topics/t", RECORD, JSON_V2).status == 200


def test_hundreds_of_slow_clients_do_not_delay_others(broker_address: str, start_gateway: StartGateway) -> None:
    gateway = start_gateway(broker_address)
    with contextlib.ExitStack() as stack:
        for number in range(300):
            slow = stack.enter_context(socket.create_connection((gateway.host, gateway.port)))
            head = (
                f"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON_V2}\r\nContent-Length: 100\r\n\r\n".encode()
            )
            slow.sendall((head + b'{"records"')[: 40 + number])
        for _ in range(20):
            assert gateway.post("/topics/t", RECORD, JSON_V2).status == 200
    assert gateway.request("GET", "/healthz").json["server_errors"] == 0
