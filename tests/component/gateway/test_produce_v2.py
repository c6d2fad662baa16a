"""Producing by version 2 of the REST Proxy's interface, read back by a Kafka client."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import zstandard

from headrace.avro_codec.from_json import compile_from_json
from headrace.avro_schema import frame
from headrace.registry.client import RegistryClient
from support.gateway import AVRO_V2, BINARY_V2, JSON_V2, V2, GatewayClient, GatewayResponse, stored

pytestmark = pytest.mark.servers

USER = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"], "default": None},
    ],
}


def avro(registry_url: str, subject: str, value: Any) -> bytes:
    """Returns the message with a value of the latest schema of a subject."""
    with RegistryClient(registry_url) as registry:
        found = registry.version(subject, "latest")
        return frame(found.schema_id, compile_from_json(registry.parsed(found))(value))


def test_records_of_each_format_are_stored_as_the_client_sent_them(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    bodies = [
        (JSON_V2, [{"key": "a", "value": {"b": [1, None]}, "partition": 0}, {"value": "ö", "partition": 0}]),
        (BINARY_V2, [{"key": base64.b64encode(b"k").decode(), "value": "AP8=", "partition": 0}]),
        (V2, [{"key": None, "value": None, "partition": 0}]),
    ]
    for content_type, records in bodies:
        response = gateway.post(f"/topics/{topic}", {"records": records}, content_type)
        assert response.status == 200
        assert response.headers["content-type"] == V2
        assert {one["error_code"] for one in response.json["offsets"]} == {None}
    found = [(message.key(), message.value()) for message in stored(broker_address, topic, 4)]
    assert found == [(b'"a"', b'{"b":[1,null]}'), (None, '"ö"'.encode()), (b"k", b"\x00\xff"), (None, None)]


def test_offsets_are_in_the_order_of_the_records(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    records = [{"value": number, "partition": number % 3} for number in range(2500)]
    offsets = gateway.post(f"/topics/{topic}", {"records": records}, JSON_V2).json["offsets"]
    assert [one["partition"] for one in offsets] == [number % 3 for number in range(2500)]
    by_place = {(m.partition(), m.offset()): json.loads(m.value()) for m in stored(broker_address, topic, 2500)}
    assert [by_place[one["partition"], one["offset"]] for one in offsets] == [*range(2500)]


def test_partition_of_the_path_has_all_records(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    body = {"records": [{"key": number, "value": number} for number in range(5)]}
    assert gateway.post(f"/topics/{topic}/partitions/2", body, JSON_V2).status == 200
    assert [message.partition() for message in stored(broker_address, topic, 5)] == [2] * 5
    body = {"records": [{"value": 1, "partition": 2}]}
    assert gateway.post(f"/topics/{topic}/partitions/2", body, JSON_V2).problem == (422, 422)


def test_avro_values_get_the_wire_format_with_both_encodings_of_unions(
    gateway: GatewayClient, broker_address: str, registry_url: str, topic: str
) -> None:
    values = [{"name": "a"}, {"name": "b", "age": {"int": 3}}, {"name": "c", "age": 4}, {"name": "d", "age": None}]
    body = {"value_schema": json.dumps(USER), "records": [{"value": value, "partition": 1} for value in values]}
    first = gateway.post(f"/topics/{topic}", body, AVRO_V2).json
    again = {"value_schema_id": str(first["value_schema_id"]), "records": [{"value": values[0], "partition": "1"}]}
    assert gateway.post(f"/topics/{topic}", again, AVRO_V2).json["value_schema_id"] == first["value_schema_id"]
    expected = [avro(registry_url, f"{topic}-value", value) for value in [*values, values[0]]]
    assert [message.value() for message in stored(broker_address, topic, 5)] == expected


def test_avro_keys_have_their_own_schema(
    gateway: GatewayClient, broker_address: str, registry_url: str, topic: str
) -> None:
    body = {
        "key_schema": '"long"',
        "value_schema": '"string"',
        "records": [{"key": 7, "value": "x"}, {"key": 8, "value": "y"}],
    }
    response = gateway.post(f"/topics/{topic}", body, AVRO_V2).json
    assert response["key_schema_id"] != response["value_schema_id"]
    found = {(message.key(), message.value()) for message in stored(broker_address, topic, 2)}
    assert found == {
        (avro(registry_url, f"{topic}-key", key), avro(registry_url, f"{topic}-value", value))
        for key, value in ((7, "x"), (8, "y"))
    }


def test_keys_have_a_format_of_their_own(
    gateway: GatewayClient, broker_address: str, registry_url: str, topic: str
) -> None:
    avro_value = {"value_schema": '"string"', "records": [{"key": "k", "value": "x", "partition": 0}]}
    sent: list[tuple[str, dict[str, Any]]] = [
        (AVRO_V2, {**avro_value, "key_format": "string"}),
        (AVRO_V2, {**avro_value, "key_format": "json"}),
        (AVRO_V2, {**avro_value, "key_format": "binary", "records": [{"key": "Zm9v", "value": "x", "partition": 0}]}),
        (
            JSON_V2,
            {"key_format": "avro", "key_schema": '"string"', "records": [{"key": "k", "value": 1, "partition": 0}]},
        ),
        (BINARY_V2, {"key_format": "string", "records": [{"key": "k", "value": "eA==", "partition": 0}]}),
    ]
    for content_type, body in sent:
        response = gateway.post(f"/topics/{topic}", body, content_type)
        assert (response.status, response.json["offsets"][0]["error_code"]) == (200, None), response.content
    avro_bytes = avro(registry_url, f"{topic}-value", "x")
    assert [(message.key(), message.value()) for message in stored(broker_address, topic, len(sent))] == [
        (b"k", avro_bytes),
        (b'"k"', avro_bytes),
        (b"foo", avro_bytes),
        (avro(registry_url, f"{topic}-key", "k"), b"1"),
        (b"k", b"x"),
    ]


def test_avro_tombstone_needs_no_value_schema(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    body = {"key_schema": '"string"', "records": [{"key": "k", "value": None}]}
    assert gateway.post(f"/topics/{topic}", body, AVRO_V2).status == 200
    (message,) = stored(broker_address, topic, 1)
    assert message.value() is None


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress), ("identity", bytes)],
)
def test_compressed_bodies_are_accepted(
    gateway: GatewayClient, broker_address: str, topic: str, coding: str, compress: Any
) -> None:
    body = compress(json.dumps({"records": [{"value": "x" * 500_000}]}).encode())
    assert gateway.post(f"/topics/{topic}", body, JSON_V2, content_encoding=coding).status == 200
    assert len(stored(broker_address, topic, 1)[0].value()) == 500_002


VALUE = '"string"'
REFUSED: list[tuple[str, bytes | dict[str, Any], tuple[int, int]]] = [
    (JSON_V2, b"", (422, 422)),
    (JSON_V2, b"null", (422, 422)),
    (JSON_V2, b"[1]", (400, 400)),
    (JSON_V2, b'{"records":[{"value":1}', (400, 400)),
    (JSON_V2, b'{"records":[{"value":NaN}]}', (400, 400)),
    (JSON_V2, b'{"records":[{"value":"\xff"}]}', (400, 400)),
    (JSON_V2, b"[" * 100_000, (400, 400)),
    (JSON_V2, {}, (422, 422)),
    (JSON_V2, {"records": []}, (422, 422)),
    (JSON_V2, {"records": None}, (422, 422)),
    (JSON_V2, {"records": "x"}, (400, 400)),
    (JSON_V2, {"records": [1]}, (400, 400)),
    (JSON_V2, {"records": [{"value": 1}], "value_schemaid": 1}, (422, 422)),
    (JSON_V2, {"records": [{"value": 1, "valu": 2}]}, (422, 422)),
    (JSON_V2, {"records": [{"value": 1, "partition": -1}]}, (422, 422)),
    (JSON_V2, {"records": [{"value": 1, "partition": True}]}, (400, 400)),
    (JSON_V2, {"records": [{"value": 1, "partition": "first"}]}, (400, 400)),
    (JSON_V2, {"records": [{"value": 1, "partition": 2**31}]}, (400, 400)),
    (BINARY_V2, {"records": [{"value": "%"}]}, (422, 422)),
    (BINARY_V2, {"records": [{"value": "aGVsbG8=="}]}, (422, 422)),
    (BINARY_V2, {"records": [{"value": 1}]}, (422, 422)),
    (BINARY_V2, {"records": [{"key": "é"}]}, (422, 422)),
    (JSON_V2, {"records": [{"value": "\ud800"}]}, (422, 42203)),
    (JSON_V2, {"records": [{"value": 1, "headers": [{"name": "\ud800"}]}]}, (400, 400)),
    (JSON_V2, {"records": [{"value": 1, "headers": [{"name": "a\0b"}]}]}, (400, 400)),
    (JSON_V2, {"records": [{"value": 1, "headers": [{"name": "a", "value": "é"}]}]}, (400, 400)),
    (AVRO_V2, {"records": [{"value": "x"}]}, (422, 42202)),
    (AVRO_V2, {"value_schema": VALUE, "records": [{"key": 1, "value": "x"}]}, (422, 42201)),
    (AVRO_V2, {"value_schema": VALUE, "records": [{"value": None}]}, (422, 42203)),
    (AVRO_V2, {"value_schema": VALUE, "records": [{"value": 1}]}, (422, 42203)),
    (AVRO_V2, {"value_schema": "{", "records": [{"value": 1}]}, (422, 42205)),
    (AVRO_V2, {"value_schema_id": 999_999, "records": [{"value": 1}]}, (422, 42205)),
    (AVRO_V2, {"value_schema_id": -1, "records": [{"value": 1}]}, (422, 422)),
    (AVRO_V2, {"value_schema_id": 2**31, "records": [{"value": 1}]}, (422, 422)),
    (AVRO_V2, {"value_schema_id": "x", "records": [{"value": 1}]}, (400, 400)),
    (AVRO_V2, {"value_schema": {"type": "string"}, "records": [{"value": "x"}]}, (400, 400)),
    (JSON_V2, {"key_format": "xml", "records": [{"value": 1}]}, (422, 422)),
    (JSON_V2, {"key_format": "string", "records": [{"key": 1, "value": 1}]}, (422, 42203)),
    (JSON_V2, {"key_format": "avro", "records": [{"key": 1, "value": 1}]}, (422, 42201)),
    ("application/vnd.kafka.protobuf.v2+json", {"records": [{"value": 1}]}, (415, 415)),
    ("text/plain", {"records": [{"value": 1}]}, (415, 415)),
]


def test_invalid_requests_are_refused_with_the_codes_of_the_rest_proxy(gateway: GatewayClient, topic: str) -> None:
    responses = [gateway.post(f"/topics/{topic}", body, content_type) for content_type, body, _ in REFUSED]
    assert [(*row[:2], one.problem) for row, one in zip(REFUSED, responses, strict=True)] == REFUSED
    assert {one.headers["content-type"] for one in responses} == {V2}


def test_schema_that_is_registered_is_found_by_its_text(gateway: GatewayClient, topic: str) -> None:
    texts = [json.dumps(USER), json.dumps(USER, indent=1)]
    ids = {
        gateway.post(f"/topics/{topic}", {"value_schema": one, "records": [{"value": {"name": "a"}}]}, AVRO_V2).json[
            "value_schema_id"
        ]
        for one in texts
    }
    assert len(ids) == 1


MEDIA_TYPES = {
    "application/json": b"a",
    "application/octet-stream": b"a",
    "application/vnd.kafka+json": b"a",
    "application/vnd.kafka.v1+json; charset=utf-8": b"a",
    "Application/vnd.Kafka.v2+JSON": b"a",
    "application/vnd.kafka.binary.v1+json": b"a",
    "application/vnd.kafka.json+json": b'"YQ=="',
    "application/vnd.kafka.json.v2+json;charset=UTF-8": b'"YQ=="',
}
NO_MEDIA_TYPES = (
    *("", "bar/baz", "application/vnd.kafka", "application/vnd.kafka+binary", "application/x-www-form-urlencoded"),
    *("application/vnd.kafka.v3+json", "application/vnd.kafka.binary.v1+foo", "application/vnd.kafka.avro.v0+json"),
)


def test_media_type_names_the_format_which_is_binary_by_default(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    body = {"records": [{"value": "YQ==", "partition": 0}]}
    for content_type in MEDIA_TYPES:
        assert (content_type, gateway.post(f"/topics/{topic}", body, content_type).status) == (content_type, 200)
    for content_type in NO_MEDIA_TYPES:
        response = gateway.post(f"/topics/{topic}", body, content_type)
        assert (content_type, response.problem) == (content_type, (415, 415))
    assert [message.value() for message in stored(broker_address, topic, len(MEDIA_TYPES))] == [*MEDIA_TYPES.values()]


def test_too_large_record_is_an_error_of_the_record(gateway: GatewayClient, topic: str) -> None:
    sizes = (1, 1_048_000, 1_100_000)  # the second one fits the producer's limit, but not the batch of the topic
    body = {"records": [{"value": "x" * size, "partition": index} for index, size in enumerate(sizes)]}
    topics = "/v3/clusters/any/topics"
    config = {"name": "max.message.bytes", "value": "500000"}
    assert gateway.post(topics, {"topic_name": topic, "partitions_count": 3, "configs": [config]}).status == 201
    response = gateway.post(f"/topics/{topic}", body, JSON_V2)
    assert [one["error_code"] for one in response.json["offsets"]] == [None, 50002, 50002]


def test_partition_of_the_path_that_no_topic_can_have_is_refused(gateway: GatewayClient, topic: str) -> None:
    body = {"records": [{"value": 1}]}
    assert gateway.post(f"/topics/{topic}/partitions/99999999999", body, JSON_V2).problem == (404, 40402)


def test_repeated_request_with_a_key_stores_its_records_once(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    def post(path: str, body: Any, key: str, content_type: str = JSON_V2) -> GatewayResponse:
        return gateway.post(path, body, content_type, idempotency_key=key)

    body = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 999}]}
    first = post(f"/topics/{topic}", body, "a")
    assert (first.status, "idempotent-replayed" in first.headers) == (200, False)
    for _ in range(3):
        again = post(f"/topics/{topic}", body, "a")
        assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
        assert again.headers["content-type"] == V2
    assert post(f"/topics/{topic}", {"records": [{"value": 3, "partition": 0}]}, "a").problem == (422, 422)
    for key in ("", "x" * 256):
        assert post(f"/topics/{topic}", body, key).problem == (400, 400)
    assert post(f"/topics/{topic}", {"records": []}, "b").problem == (422, 422)
    assert post(f"/topics/{topic}", {"records": [{"value": 4, "partition": 0}]}, "b").status == 200
    v3 = f"/v3/clusters/c/topics/{topic}/records"
    batch = {"entries": [{"id": "1", "partition_id": 0, "value": {"type": "JSON", "data": 5}}]}
    responses = [post(f"{v3}:batch", batch, "a", "application/json") for _ in range(2)]
    assert [(one.status, one.content) for one in responses] == [(207, responses[0].content)] * 2
    assert post(v3, batch["entries"][0], "a", "application/json").problem == (400, 400)
    assert gateway.post(f"/topics/{topic}", {"records": [{"value": 6, "partition": 0}]}, JSON_V2).status == 200
    assert [message.value() for message in stored(broker_address, topic, 4)] == [b"1", b"4", b"5", b"6"]


def test_request_that_is_repeated_while_the_first_one_runs_stores_its_records_once(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    content = json.dumps({"records": [{"value": number, "partition": 0} for number in range(1000)]}).encode()
    head = f"POST /topics/{topic} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: {JSON_V2}\r\n"
    request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    for _ in range(5):
        with socket.create_connection((gateway.host, gateway.port)) as lost:
            lost.sendall(request)  # and disconnects without reading the response
    with ThreadPoolExecutor(8) as threads:
        send = partial(gateway.post, f"/topics/{topic}", content, JSON_V2, idempotency_key="k")
        results = [future.result() for future in [threads.submit(send) for _ in range(8)]]
    assert {one.content for one in results} == {results[0].content} and results[0].status == 200
    assert gateway.post(f"/topics/{topic}", {"records": [{"value": "end", "partition": 0}]}, JSON_V2).status == 200
    found = [json.loads(message.value()) for message in stored(broker_address, topic, 1001)]
    assert found == [*range(1000), "end"]


def test_missing_partition_is_an_error_of_the_record(gateway: GatewayClient, topic: str) -> None:
    body = {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 999}]}
    response = gateway.post(f"/topics/{topic}", body, JSON_V2)
    assert [one["error_code"] for one in response.json["offsets"]] == [None, 40402]


def test_unknown_paths_and_methods_have_json_bodies(gateway: GatewayClient) -> None:
    assert gateway.post("/nothing", {}).problem == (404, 404)
    assert gateway.request("PUT", "/topics/t").problem == (405, 405)
