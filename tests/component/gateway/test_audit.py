"""The counts of a gateway, compared with an independent count of the log."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from component.gateway.conftest import gateway_environment
from headrace.audit.count import MessageTally
from headrace.audit.row import AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.avro_schema import frame
from headrace.gateway.audit import APPLICATION
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.pipeline.log_counter import LogCounter
from headrace.registry.client import RegistryClient
from headrace.settings import Settings
from support.broker.audit_topic import audit_rows
from support.gateway import AVRO_V2, BINARY_V2, GatewayClient
from support.running_service import Service

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
WINDOW_MS = 600_000
TIMEOUT_S = 60
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "timestamp", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        ],
    }
)


class Gateway:
    """A gateway on the servers of the module, with a data directory of the test."""

    def __init__(self, settings: Settings) -> None:
        command = ["headrace", "gateway", "serve", "--data-dir", str(settings.data_dir), "--gateway-listen"]
        environment = gateway_environment(settings.registry.url, settings.kafka.bootstrap_servers)
        self.service = Service([*command, "127.0.0.1:0"], environment)
        self.client = GatewayClient(self.service.addresses["gateway"])

    def stop(self) -> None:
        assert self.service.stop() == 0


StartGateway = Callable[[], Gateway]


@pytest.fixture
def start_gateway(settings: Settings) -> Iterator[StartGateway]:
    started: list[Gateway] = []

    def start() -> Gateway:
        started.append(Gateway(settings))
        return started[-1]

    yield start
    for gateway in started:
        gateway.service.kill()


def order(number: int, time_ms: int | None = None) -> dict[str, Any]:
    return {"id": number, "timestamp": time_ms}


def sums(rows: Iterable[AuditRow]) -> dict[int, MessageTally]:
    found: dict[int, MessageTally] = {}
    for row in rows:
        found.setdefault(row.window_start_ms, MessageTally()).add(row.count, row.bytes, row.fingerprint)
    return {start_ms: tally for start_ms, tally in found.items() if tally.count}


def rows_of(settings: Settings, topic: str) -> tuple[list[AuditRow], list[AuditRow]]:
    """Returns the rows of producers, and those of the independent auditor."""
    rows = audit_rows(settings, topic)
    with (
        AuditStore(settings.data_dir / "audit.db") as store,
        KafkaCluster(settings.kafka.bootstrap_servers, TIMEOUT_S) as cluster,
        RegistryClient(settings.registry.url) as registry,
    ):
        counted = LogCounter(settings, store, cluster, registry, sleep=lambda seconds: None).count()
        assert (counted.problems, counted.has_more) == ({}, False)
        log = [row for row in store.rows(topic) if row.tier is Tier.BROKER]
    return [row for row in rows if row.tier is Tier.PRODUCER], log


def test_counts_of_all_interfaces_are_those_of_the_log(
    settings: Settings, topic: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway()
    client, path = gateway.client, f"/topics/{topic}"
    with RegistryClient(settings.registry.url) as registry:
        schema_id = registry.register(f"{topic}-value", SCHEMA).schema_id
    orders = [{"value": order(number, T0 + number * WINDOW_MS)} for number in range(5)]
    assert client.post(path, {"value_schema_id": schema_id, "records": orders}, AVRO_V2).status == 200
    without = [{"value": order(7)}, {"value": order(8, T0), "key": None}]
    assert client.post(path, {"value_schema_id": schema_id, "records": without}, AVRO_V2).status == 200
    framed = frame(schema_id, b"\x02\x00")
    binary = [
        {"value": base64.b64encode(one).decode(), "key": "aw=="} for one in (framed, b"no avro", frame(9999, b"x"))
    ]
    tombstone = {"key": "aw==", "value": None}
    assert client.post(path, {"records": [*binary, tombstone]}, BINARY_V2).status == 200
    items = client.produce(
        topic,
        *({"value": {"data": order(number, T0)}} for number in range(3)),
        {"value": {"data": {"id": "x"}}},
        {"value": {"data": order(9)}, "timestamp": "2013-05-01T00:00:00Z"},
    )
    assert [item["error_code"] for item in items] == [200, 200, 200, 42203, 200]
    send_session(client, topic, "json", [json.dumps(order(number, T0 - WINDOW_MS)).encode() for number in range(4)])
    send_session(client, f"{topic}-lines", "lines", [b"one", b"two", b"\xff"])
    chunk = [json.dumps(order(number, T0 + WINDOW_MS)).encode() for number in range(4)]
    commit(client, request_transaction(client, topic, "json", chunk), len(chunk))
    commit(client, request_transaction(client, f"{topic}-lines", "lines", [b"four", b"five"]), 2)
    gateway.stop()
    for name, count in ((topic, 22), (f"{topic}-lines", 5)):
        produced, log = rows_of(settings, name)
        assert sums(produced) == sums(log)
        assert sum(row.count for row in produced) == sum(row.sent for row in produced) == count
        assert {(row.application, row.crashed) for row in produced} == {(APPLICATION, False)}


def test_counts_of_a_killed_gateway_are_published_by_the_next_one(
    settings: Settings, topic: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway()
    for number in range(20):
        body = {"value_schema": SCHEMA, "records": [{"value": order(number, T0)}]}
        assert gateway.client.post(f"/topics/{topic}", body, AVRO_V2).status == 200
    gateway.service.process.kill()
    gateway.service.process.wait()
    start_gateway().stop()
    produced, log = rows_of(settings, topic)
    assert sums(produced) == sums(log)
    assert [(row.sent, row.count, row.crashed) for row in produced] == [(20, 20, True)]


def test_chunk_of_a_killed_gateway_counts_by_the_message_times_of_its_records(
    settings: Settings, topic: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway()
    body = {"value_schema": SCHEMA, "records": [{"value": order(0, T0)}]}
    assert gateway.client.post(f"/topics/{topic}", body, AVRO_V2).status == 200
    chunk = [json.dumps(order(number, T0 + WINDOW_MS)).encode() for number in range(4)]
    transaction_id = request_transaction(gateway.client, topic, "json", chunk)
    gateway.service.process.kill()
    gateway.service.process.wait()
    later = start_gateway()
    commit(later.client, transaction_id, len(chunk))
    later.stop()
    produced, log = rows_of(settings, topic)
    assert sums(produced) == sums(log)
    assert sums(log)[T0 + WINDOW_MS].count == len(chunk)


def request_transaction(client: GatewayClient, topic: str, form: str, lines: list[bytes]) -> str:
    """Stores and converts a chunk of an existing topic. Returns the id of its transaction."""
    body = b"".join(b"%s\n" % one for one in lines)
    deadline = time.monotonic() + TIMEOUT_S
    while (found := client.post(f"/v1/store?topic={topic}&format={form}", body, "text/plain")).status == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    wanted = {name: found.json[name] for name in ("transaction_id", "length", "checksum")}
    assert client.post("/v1/commit_request", wanted).json["records"] == len(lines)
    return str(wanted["transaction_id"])


def commit(client: GatewayClient, transaction_id: str, count: int) -> None:
    """Commits a transaction twice. For a while, a gateway redirects (307) to the owner that was killed."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := client.post("/v1/commit", {"transaction_id": transaction_id})).status in (307, 503):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found.json["records"] == count
    assert client.post("/v1/commit", {"transaction_id": transaction_id}).json == found.json


def send_session(client: GatewayClient, topic: str, form: str, lines: list[bytes]) -> None:
    """Creates a topic by a record, and stores lines in a session."""
    if form == "lines":
        assert client.post(f"/topics/{topic}", {"records": [{"key": "aw==", "value": None}]}, BINARY_V2).status == 200
    body = {"topic": topic, "source_id": f"{topic}:{form}", "format": form}
    deadline = time.monotonic() + TIMEOUT_S
    while (opened := client.post("/v1/sessions", body)).status == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    path = f"/v1/sessions/{opened.json['session']}/chunks?begin=0"
    content = b"".join(b"%s\n" % one for one in lines)
    assert client.post(path, content, "text/plain").json["written"] == len(lines)
    assert client.post(path, content, "text/plain").json["skipped"] == len(lines)
