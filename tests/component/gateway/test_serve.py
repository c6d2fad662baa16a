"""`headrace gateway serve` as a process."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.registry.access.passwords import Cost, PasswordHash
from support.certificates import Authority
from support.gateway import AVRO_V2, JSON_V2, GatewayClient, stored
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

CHEAP = Cost(log2_n=4, r=1, p=1)
PASSWORD = "correct horse"
RECORD = {"records": [{"value": 1}]}
GRANTS = """
grant shop write orders-*
grant reader read *
grant reader payload orders
grant anonymous read public-value
"""


def user_line(name: str) -> str:
    return f"user {name} {PasswordHash.of(PASSWORD, bytes(16), CHEAP)}\n"


@pytest.fixture
def start_gateway(tmp_path: Path, start_service: StartService, registry_url: str, broker_address: str) -> StartService:
    """Starts a gateway with additional settings, as variables of the section gateway or with a dot."""

    def start(**settings: str) -> Service:
        environment = {
            "HEADRACE__REGISTRY__URL": registry_url,
            "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address,
            **{f"HEADRACE__{name.upper()}": value for name, value in settings.items()},
        }
        command = ("headrace", "gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
        return start_service(*command, environment=environment)

    return start


def test_probes_metrics_and_access_log(tmp_path: Path, start_gateway: StartService, topic: str) -> None:
    log = tmp_path / "access.jsonl"
    service = start_gateway(gateway__access_log=str(log))
    client = GatewayClient(service.addresses["gateway"])
    body = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 999}]}
    assert client.post(f"/topics/{topic}?x=1", body, JSON_V2, user_agent="test").status == 200
    assert client.post("/none", {}).status == 404
    assert client.request("GET", "/readyz").json == {"status": "ready"}
    assert client.request("GET", "/healthz").json == {"status": "ok", "responses": 3, "server_errors": 0}
    page = client.request("GET", "/metrics").content.decode()
    assert 'headrace_gateway_records_total{result="stored"} 1.0' in page
    assert 'headrace_gateway_records_total{result="_UNKNOWN_PARTITION"} 1.0' in page
    assert 'headrace_gateway_requests_total{method="POST",route="/topics/{topic}",status="200"} 1.0' in page
    assert 'headrace_gateway_requests_total{method="POST",route="other",status="404"} 1.0' in page
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first = {name: lines[0][name] for name in ("client", "user", "method", "path", "query", "status", "agent")}
    assert first == {
        "client": "127.0.0.1",
        "user": "",
        "method": "POST",
        "path": f"/topics/{topic}",
        "query": "x=1",
        "status": 200,
        "agent": "test",
    }
    assert "cached" not in lines[0]
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("setting", "value", "stored_bytes"), [("binary", "eA==", b"x"), ("json", {"page": "/"}, b'{"page":"/"}')]
)
def test_records_of_application_json_have_the_format_of_the_setting(
    start_gateway: StartService, broker_address: str, topic: str, setting: str, value: object, stored_bytes: bytes
) -> None:
    client = GatewayClient(start_gateway(gateway__json_records=setting).addresses["gateway"])
    assert client.post(f"/topics/{topic}", {"records": [{"value": value}]}, "application/json").status == 200
    assert [message.value() for message in stored(broker_address, topic, 1)] == [stored_bytes]
    avro = {"value_schema": '"string"', "records": [{"value": "x"}]}  # the media type of the format still counts
    assert client.post(f"/topics/{topic}", avro, AVRO_V2).json["value_schema_id"] > 0


def test_users_have_the_permissions_of_the_registrys_file(
    tmp_path: Path, start_gateway: StartService, topic: str
) -> None:
    users = tmp_path / "users"
    users.write_text(user_line("shop") + user_line("reader") + GRANTS)
    url = start_gateway(registry__users=str(users)).addresses["gateway"]
    shop, reader = (GatewayClient(url, user=name, password=PASSWORD) for name in ("shop", "reader"))
    anonymous, wrong = GatewayClient(url), GatewayClient(url, user="shop", password="x")
    v3 = "/v3/clusters/c/topics/orders/records"
    assert shop.post("/topics/orders", RECORD, JSON_V2).status == 200
    assert shop.post(v3, {"value": {"type": "JSON", "data": 1}}).items[0]["error_code"] == 200
    assert shop.post("/topics/other", RECORD, JSON_V2).problem == (403, 40301)
    assert shop.post(v3.replace("orders", "other"), {}).problem == (403, 40301)
    assert shop.post(f"{v3.replace('orders', 'other')}:batch", {}).problem == (403, 40301)
    foreign = {"value": {"type": "AVRO", "subject": "other-value", "schema": '"int"', "data": 1}}
    assert shop.post(v3, foreign).items[0]["error_code"] == 40301
    latest = {"value": {"subject": "other-value", "data": 1}}
    assert shop.post(v3, latest).items[0]["error_code"] == 40301
    keyed = {"key_schema": '"int"', "value_schema": '"int"', "records": [{"key": 1, "value": 1}]}
    assert shop.post("/topics/orders", keyed, AVRO_V2).status == 200
    assert reader.post("/topics/orders", RECORD, JSON_V2).problem == (403, 40301)
    for denied in (anonymous, wrong):
        response = denied.post("/topics/orders", RECORD, JSON_V2)
        assert response.problem == (401, 40101)
        assert response.headers["www-authenticate"].startswith("Basic ")
    opening = {"topic": "orders", "source_id": "s", "format": "binary"}
    while (opened := shop.post("/v1/sessions", opening)).status == 503:
        time.sleep(0.1)
    session = f"/v1/sessions/{opened.json['session']}"
    assert shop.post("/v1/sessions", {**opening, "topic": "other"}).problem == (403, 40301)
    for client, problem in ((reader, (403, 40301)), (anonymous, (401, 40101))):
        assert client.post("/v1/sessions", opening).problem == problem
        assert client.post(f"{session}/chunks?begin=0", b"a\n", "text/plain").problem == problem
        assert client.request("DELETE", session).problem == problem
    assert shop.post(f"{session}/chunks?begin=0", b"a\n", "text/plain").json["written"] == 1
    store = "/v1/store?topic=orders&format=binary"
    while (chunk := shop.post(store, b"a\n", "text/plain")).status == 503:
        time.sleep(0.1)
    wanted = {name: chunk.json[name] for name in ("transaction_id", "length", "checksum")}
    commit = {"transaction_id": wanted["transaction_id"]}
    assert shop.post("/v1/store?topic=other", b"a\n", "text/plain").problem == (403, 40301)
    for client, problem in ((reader, (403, 40301)), (anonymous, (401, 40101))):
        assert client.post(store, b"a\n", "text/plain").problem == problem
    while shop.post("/v1/commit", commit).status == 503:  # the gateway takes over the lane
        time.sleep(0.1)
    for client in (reader, anonymous):
        assert client.post("/v1/commit_request", wanted).problem == (404, 40471), "another user's transaction"
        assert client.post("/v1/commit", commit).problem == (404, 40471)
    assert shop.post("/v1/commit_request", wanted).status == 200
    assert shop.post("/v1/commit", commit).json["records"] == 1
    assert reader.post("/v1/commit", commit).problem == (404, 40471)
    assert (shop.request("GET", "/metrics").status, anonymous.request("GET", "/healthz").status) == (200, 200)


def test_gateway_serves_https(tmp_path: Path, start_gateway: StartService, topic: str) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.certificate("gateway")
    service = start_gateway(gateway__tls_certificate=str(certificate), gateway__tls_key=str(key))
    url = service.addresses["gateway"]
    assert url.startswith("https://127.0.0.1:")
    client = GatewayClient(url, ssl.create_default_context(cafile=authority.ca_file))
    assert client.post(f"/topics/{topic}", RECORD, JSON_V2).status == 200


def test_address_in_use_and_unauthenticated_network_are_one_line_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["gateway", "serve", "--data-dir", str(tmp_path), "--gateway-listen", address]) == 2
    assert f"gateway cannot listen on {address}: " in capsys.readouterr().err
    assert main(["gateway", "serve", "--data-dir", str(tmp_path), "--gateway-listen", "0.0.0.0:0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gateway.listen is 0.0.0.0:0" in line and "registry.users" in line


def test_running_request_ends_before_the_gateway_does(start_gateway: StartService, topic: str) -> None:
    service = start_gateway()
    client = GatewayClient(service.addresses["gateway"])
    line = b'{"value":{"type":"JSON","data":1}}'
    with socket.create_connection((client.host, client.port)) as connection:
        head = f"POST /v3/clusters/c/topics/{topic}/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {2 * len(line)}\r\n\r\n".encode() + line)
        received = connection.recv(65536)
        while b"offset" not in received:
            received += connection.recv(65536)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        time.sleep(0.5)
        connection.sendall(line)
        while chunk := connection.recv(65536):
            received += chunk
    stopping.join()
    assert received.count(b'"error_code":200') == 2
    assert service.process.returncode == 0


def test_idle_connection_does_not_delay_the_stop(start_gateway: StartService) -> None:
    service = start_gateway()
    client = GatewayClient(service.addresses["gateway"])
    with socket.create_connection((client.host, client.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert service.stop() == 0
