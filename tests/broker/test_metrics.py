"""Metrics: request counters, the Prometheus page and its HTTP server."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.admin import CreateTopicsResponse
from kafka.protocol.consumer import HeartbeatResponse
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker import metrics as metrics_module
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import AddressUnusable
from headrace.broker.handlers.fetch import FetchResult
from headrace.broker.metrics import CLIENTS_MAX
from headrace.broker.protocol.api_versions import BY_KEY, CREATE_TOPICS, FETCH, HEARTBEAT, PRODUCE
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import FetchedPartition, FetchedTopic
from headrace.broker.protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from headrace.broker.request_counts import OTHER, TOPICS_MAX, RequestCounts
from headrace.broker.server import BrokerServer
from headrace.cli import main
from support.broker.broker_samples import batch

TOPIC_ID = uuid.UUID(int=5)


def counts() -> RequestCounts:
    return RequestCounts(lambda topic_id: "orders" if topic_id == TOPIC_ID else "")


def produced(topic: str, size: int) -> ProduceRequest:
    return ProduceRequest(None, 1, 1000, (ProduceTopic(topic, (ProducePartition(0, memoryview(bytes(size))),)),))


def fetched(topic: str, topic_id: uuid.UUID, size: int, error: ErrorCode = ErrorCode.NONE) -> FetchResult:
    partition = FetchedPartition(0, error, 0, 0, 0, bytes(size))
    return FetchResult(ErrorCode.NONE, (FetchedTopic(topic, topic_id, (partition,)),))


def test_bytes_are_counted_by_topic_for_names_and_ids() -> None:
    counted = counts()
    counted.count_request(PRODUCE, produced("orders", 100))
    counted.count_response(FETCH, fetched("orders", uuid.UUID(int=0), 30), 0.1)
    counted.count_response(FETCH, fetched("", TOPIC_ID, 12), 0.1)
    assert (counted.received, counted.sent) == ({"orders": 100}, {"orders": 42})
    assert counted.seconds[FETCH].counts.count(2) == 1


def test_topics_beyond_limit_and_deleted_topics_are_counted_together() -> None:
    counted = counts()
    for number in range(TOPICS_MAX + 50):
        counted.count_request(PRODUCE, produced(f"topic-{number}", 10))
    assert len(counted.received) == TOPICS_MAX + 1
    assert counted.received[OTHER] == 500
    counted.retain_topics({f"topic-{number}" for number in range(10)})
    assert counted.received.total() == 10 * (TOPICS_MAX + 50)
    assert len(counted.received) == 11
    counted.count_request(PRODUCE, produced("new", 10))
    assert counted.received["new"] == 10


def test_error_codes_are_counted_at_every_response_level() -> None:
    counted = counts()
    failed = ProducedPartition(0, ErrorCode.MESSAGE_TOO_LARGE)
    counted.count_response(PRODUCE, (ProducedTopic("orders", (failed, ProducedPartition(1))),), 0.0)
    counted.count_response(PRODUCE, None, 0.0)
    counted.count_response(FETCH, fetched("orders", TOPIC_ID, 0, ErrorCode.OFFSET_OUT_OF_RANGE), 0.0)
    counted.count_response(FETCH, FetchResult(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ()), 0.0)
    counted.count_response(HEARTBEAT, HeartbeatResponse(version=4, error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0.0)
    result = CreateTopicsResponse.CreatableTopicResult(version=5, name="a", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
    counted.count_response(CREATE_TOPICS, CreateTopicsResponse(version=5, topics=[result, result]), 0.0)
    assert counted.errors == {
        (PRODUCE, 10): 1,
        (FETCH, 1): 1,
        (FETCH, 70): 1,
        (HEARTBEAT, 27): 1,
        (CREATE_TOPICS, 36): 2,
    }
    assert sum(counted.seconds[PRODUCE].counts) == 2


def response_with_errors(fields: list[dict[str, Any]], version: int) -> tuple[SimpleNamespace, int]:
    """A response with these fields of Kafka's message definition, with one element in each list of structures and an
    error in each error code. Returns it with the number of errors."""
    made, errors = SimpleNamespace(), 0
    for field in fields:
        oldest, _, newest = field["versions"].replace("+", f"-{version}").partition("-")
        if not int(oldest) <= version <= int(newest or oldest):
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", field["name"]).lower()
        if name in ("error_code", "partition_error_code"):
            setattr(made, name, 1)
            errors += 1
        elif "fields" in field:
            part, more = response_with_errors(field["fields"], version)
            setattr(made, name, [part])
            errors += more
    return made, errors


def test_error_codes_of_every_api_are_counted() -> None:
    found = {
        response.API_KEY: response._json["fields"]
        for module in (admin, consumer, producer, sasl, metadata)
        for name, response in vars(module).items()
        if hasattr(response, "API_KEY") and name.endswith("Response")
    }
    miscounted = {}
    for api_key in set(BY_KEY) & set(found) - {PRODUCE, FETCH}:
        response, errors = response_with_errors(found[api_key], BY_KEY[api_key].highest)
        counted = counts()
        counted.count_response(api_key, response, 0.0)
        if counted.errors.total() != errors:
            miscounted[api_key] = (counted.errors.total(), errors)
    assert not miscounted


def with_server(directory: Path, work: Callable[[BrokerServer, int], Awaitable[None]]) -> None:
    async def run() -> None:
        server = BrokerServer(BrokerConfig(directory, port=0, metrics_host="127.0.0.1"))
        await server.start()
        assert server.metrics_address is not None
        try:
            await work(server, server.metrics_address[1])
        finally:
            server.stop()
            await server.wait()

    asyncio.run(run())


async def http_request(port: int, request: bytes) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = (await reader.read()).decode()
    writer.close()
    head, _, body = response.partition("\r\n\r\n")
    return head, body


def samples(page: str) -> dict[str, float]:
    """Returns the values by name and labels."""
    return dict(_samples(page))


def _samples(page: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield " ".join((sample.name, *sample.labels.values())), sample.value


def test_metrics_page_contains_broker_state(tmp_path: Path) -> None:
    async def work(server: BrokerServer, port: int) -> None:
        server.node.changes.create_topic("orders", 3, {})
        raw = batch(b"x" * 500)
        server.node.logs["orders", 1].append(raw, metrics_header(raw), 0)
        server.node.pauses.total_s = 2.5
        head, body = await http_request(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        found = samples(body)
        assert found["headrace_broker_log_bytes orders"] == len(raw)
        assert (found["headrace_broker_topics"], found["headrace_broker_partitions"]) == (2, 4)
        assert found["headrace_broker_connections"] == 0
        assert 0 < found["headrace_broker_disk_free_bytes"] <= found["headrace_broker_disk_total_bytes"]
        assert found["headrace_broker_compactions_total"] == 0
        assert found["headrace_broker_paused_seconds_total"] == 2.5
        assert found["process_resident_memory_bytes"] > 0

    with_server(tmp_path, work)


def metrics_header(raw: bytes) -> Any:
    from headrace.kafka_wire.record_batch import read_batch_header

    return read_batch_header(raw)


def test_largest_logs_are_labeled_and_others_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TOPICS_MAX", 2)

    async def work(server: BrokerServer, port: int) -> None:
        for number in range(4):
            server.node.changes.create_topic(f"t{number}", 1, {})
            raw = batch(b"x" * 100 * (number + 1))
            server.node.logs[f"t{number}", 0].append(raw, metrics_header(raw), 0)
        found = samples((await http_request(port, b"GET /metrics HTTP/1.0\r\n\r\n"))[1])
        named = {name.split(" ", 1)[1] for name in found if name.startswith("headrace_broker_log_bytes")}
        assert named == {"t2", "t3", OTHER}
        assert found[f"headrace_broker_log_bytes {OTHER}"] == sum(server.node.logs[f"t{n}", 0].size for n in (0, 1))

    with_server(tmp_path, work)


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"nonsense\r\n\r\n", "405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", "200"),
        (b"x" * 40_000, ""),
    ],
)
def test_other_http_requests_are_refused(tmp_path: Path, request_head: bytes, status: str) -> None:
    async def work(_: BrokerServer, port: int) -> None:
        try:
            head, body = await http_request(port, request_head)
        except ConnectionError:
            assert not status
            return
        assert head.split(" ")[1:2] == ([status] if status else [])
        assert not (request_head.startswith(b"HEAD") and body)

    with_server(tmp_path, work)


def test_silent_metrics_client_is_closed_after_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "REQUEST_TIMEOUT_S", 0.2)

    async def work(_: BrokerServer, port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS_MAX)]
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        assert (await http_request(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1]

    with_server(tmp_path, work)


def test_metrics_port_in_use_refuses_start_and_releases_directory(tmp_path: Path) -> None:
    async def work(server: BrokerServer, port: int) -> None:
        other = BrokerServer(BrokerConfig(tmp_path / "other", port=0, metrics_host="127.0.0.1", metrics_port=port))
        with pytest.raises(AddressUnusable, match=r"broker\.metrics_listen") as error:
            await other.start()
        assert error.value.address == f"127.0.0.1:{port}"
        other_server = BrokerServer(BrokerConfig(tmp_path / "other", port=0))
        await other_server.start()
        other_server.stop()
        await other_server.wait()

    with_server(tmp_path / "one", work)


@pytest.mark.parametrize(
    ("listen", "named"),
    [("0.0.0.0:9404", "broker.allow_unauthenticated_from"), ("nowhere", "broker.metrics_listen nowhere")],
)
def test_invalid_metrics_address_is_refused(
    tmp_path: Path, listen: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE__BROKER__METRICS_LISTEN", listen)
    assert main(["broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
