"""Version 2 of the REST Proxy's interface: brokers, topics, partitions, and reads of a partition by offset."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.kafka_wire.record_batch import batch_of_records
from support.broker.protocol_client import ProtocolClient
from support.gateway import AVRO_V2, BINARY_V2, JSON_V2, V2, GatewayClient

pytestmark = pytest.mark.servers


def produce(gateway: GatewayClient, topic: str, *values: object) -> None:
    body = {"records": [{"value": value, "partition": 0} for value in values]}
    assert gateway.post(f"/topics/{topic}", body, JSON_V2).status == 200


def test_brokers_topics_and_partitions(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, 1, 2)
    first = {"partition": 0, "leader": 1, "replicas": [{"broker": 1, "leader": True, "in_sync": True}]}
    found = gateway.request("GET", "/", accept=V2)
    assert (found.json, found.headers["content-type"]) == ({}, V2)
    assert gateway.request("GET", "/brokers").json == {"brokers": [1]}
    assert topic in gateway.request("GET", "/topics/").json
    described = gateway.request("GET", f"/topics/{topic}").json
    assert (described["name"], described["partitions"][0]) == (topic, first)
    assert described["configs"]["cleanup.policy"] == "delete"
    assert gateway.request("GET", f"/topics/{topic}/partitions").json == described["partitions"]
    assert gateway.request("GET", f"/topics/{topic}/partitions/0").json == first
    offsets = gateway.request("GET", f"/topics/{topic}/partitions/0/offsets").json
    assert offsets == {"beginning_offset": 0, "end_offset": 2}


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/topics/none", (404, 40403)),
        ("/topics/%2e%2e%2fx", (404, 404)),
        ("/topics/a%20b", (404, 40403)),
        ("/topics/none/partitions", (404, 40401)),
        ("/topics/none/partitions/0/offsets", (404, 40401)),
        ("/topics/none/partitions/0/records?offset=0", (404, 40401)),
        ("/topics/{topic}/partitions/99", (404, 40402)),
        ("/topics/{topic}/partitions/99999999999/offsets", (404, 40402)),
        ("/topics/{topic}/partitions/99/records?offset=0", (404, 40402)),
        ("/topics/{topic}/partitions/0/records", (400, 400)),
        ("/topics/{topic}/partitions/0/records?offset=x", (400, 400)),
        ("/topics/{topic}/partitions/0/records?offset=3", (400, 40002)),
    ],
)
def test_errors_of_reads(gateway: GatewayClient, topic: str, path: str, problem: tuple[int, int]) -> None:
    produce(gateway, topic, 1, 2)
    response = gateway.request("GET", path.replace("{topic}", topic))
    assert (response.problem, response.headers["content-type"]) == (problem, V2)


def test_unacceptable_media_type_is_refused(gateway: GatewayClient) -> None:
    for accept in ("text/html", "application/octet-stream", "*/baz", "*/*;q=0", "text/html, application/json; q=0.0"):
        assert (accept, gateway.request("GET", "/brokers", accept=accept).problem) == (accept, (406, 406))
    for accept in ("text/html, */*;q=0.1", "*/json", "application/*", "", "application/json;charset=utf-8"):
        assert (accept, gateway.request("GET", "/topics", accept=accept).status) == (accept, 200)


def test_records_are_read_from_an_offset_on(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, *range(5))
    path = f"/topics/{topic}/partitions/0/records?timeout=10000&offset="
    response = gateway.request("GET", f"{path}2", accept=JSON_V2)
    assert [(one["offset"], one["value"]) for one in response.json] == [(2, 2), (3, 3), (4, 4)]
    assert response.headers["content-type"] == JSON_V2
    binary = gateway.request("GET", f"{path}4")
    assert (binary.headers["content-type"], binary.json[0]["value"]) == (BINARY_V2, base64.b64encode(b"4").decode())
    assert "error" in gateway.request("GET", f"{path}4", accept=AVRO_V2).json[0]
    for accept in (f"*/*, {JSON_V2}", f"{BINARY_V2};q=0.5, {JSON_V2};q=0.8", f"{JSON_V2}, {BINARY_V2}"):
        assert gateway.request("GET", f"{path}4", accept=accept).headers["content-type"] == JSON_V2
    assert len(gateway.request("GET", f"{path}0&max_bytes=2").json) == 2
    assert gateway.request("GET", f"{path}5&timeout=0".replace("timeout=10000&", "")).json == []


def test_record_with_a_header_name_that_is_no_utf8_does_not_block_others(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    produce(gateway, topic, 0)
    one_header = b"\x02\x02\xff\x02v"  # one header, whose name and value have one byte
    with ProtocolClient(broker_address) as client:
        for number in range(1, 40):  # calls that Python has specialized behave differently
            headers = one_header if number % 2 else b"\0"
            client.produce(topic, batch_of_records([(None, b"%d" % number, headers)], 1_767_225_600_000))
    path = f"/topics/{topic}/partitions/0/records?timeout=10000&max_bytes=1000000&offset="
    found: list[Any] = []
    while len(found) < 40:
        found += gateway.request("GET", f"{path}{len(found)}", accept=JSON_V2).json
    assert [one["value"] for one in found] == [*range(40)]
    assert [one.get("error_code") for one in found] == [42207 if number % 2 else None for number in range(40)]
    assert (found[1]["base64"], "headers" in found[1]) == ([], False)


def test_read_at_the_end_waits_for_a_record(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, 0)
    path = f"/topics/{topic}/partitions/0/records?timeout=30000&offset=1"
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(gateway.request, "GET", path, accept=JSON_V2) for _ in range(3)]
        produce(gateway, topic, 1)
        assert [one.result().json[0]["value"] for one in waiting] == [1, 1, 1]
