"""Producing by version 3 of the REST Proxy's interface, read back by a Kafka client."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from headrace.gateway.record_stream import OBJECT_BYTES_MAX
from headrace.registry.client import RegistryClient
from support.gateway import GatewayClient, stored

pytestmark = pytest.mark.servers

FIRST = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "b", "type": ["null", "string"], "default": None}]}


def text(value: str) -> dict[str, Any]:
    return {"type": "STRING", "data": value}


def test_record_has_key_headers_partition_and_timestamp(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    record = {
        "partition_id": 1,
        "headers": [{"name": "h", "value": "YQ=="}, {"name": "h"}],
        "key": {"type": "BINARY", "data": "Zm9v"},
        "value": {"type": "JSON", "data": {"a": 1}},
        "timestamp": "2026-01-31T12:00:00.123Z",
    }
    assert gateway.produce(topic, record, cluster="c1") == [
        {
            "error_code": 200,
            "cluster_id": "c1",
            "topic_name": topic,
            "partition_id": 1,
            "offset": 0,
            "timestamp": "2026-01-31T12:00:00.123Z",
            "key": {"type": "BINARY", "size": 3},
            "value": {"type": "JSON", "size": 7},
        }
    ]
    (message,) = stored(broker_address, topic, 1)
    assert (message.key(), message.value(), message.partition()) == (b"foo", b'{"a":1}', 1)
    assert message.headers() == [("h", b"a"), ("h", None)]
    assert message.timestamp()[1] == 1_769_860_800_123


def test_null_is_a_tombstone_whatever_the_format(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    key = {"type": "AVRO", "schema": '"string"', "data": "k"}
    formats: list[dict[str, Any]] = [
        {"type": "AVRO", "schema": '"string"', "data": None},
        {"type": "AVRO", "schema": '["null", "string"]', "subject": f"{topic}-other"},
        {"subject": f"{topic}-other", "data": None},
        {"type": "BINARY", "subject": None, "schema_id": None, "data": None},
        {"type": "JSON", "data": None},
        {"type": "STRING", "data": None},
    ]
    items = gateway.produce(topic, *({"partition_id": "0", "key": key, "value": value} for value in formats), {})
    assert [item["error_code"] for item in items] == [200] * 7
    assert items[0]["value"]["size"] == 0
    found = stored(broker_address, topic, 7)
    assert [message.value() for message in found] == [None] * 7
    assert [message.key() is None for message in found].count(True) == 1


def test_schemas_are_found_by_text_id_version_and_latest(
    gateway: GatewayClient, registry_url: str, broker_address: str, topic: str
) -> None:
    with RegistryClient(registry_url) as registry:
        first = registry.register(f"{topic}-value", json.dumps(FIRST))
    (by_text,) = gateway.produce(topic, {"value": {"type": "AVRO", "schema": json.dumps(SECOND), "data": {"a": 1}}})
    second = by_text["value"]["schema_id"]
    items = gateway.produce(
        topic,
        {"value": {"schema_id": first.schema_id, "data": {"a": 2}}},
        {"value": {"schema_version": 1, "data": {"a": 3}}},
        {"value": {"subject": f"{topic}-value", "schema_version": 2, "data": {"a": 4, "b": "x"}}},
        {"value": {"data": {"a": 5, "b": {"string": "y"}}}},
    )
    assert [item["value"]["schema_id"] for item in items] == [first.schema_id, first.schema_id, second, second]
    assert [item["value"]["subject"] for item in items] == [f"{topic}-value"] * 4
    ids = {int.from_bytes(message.value()[1:5], "big") for message in stored(broker_address, topic, 5)}
    assert ids == {first.schema_id, second}


def test_subjects_have_the_names_of_their_strategy(gateway: GatewayClient, registry_url: str, topic: str) -> None:
    schema = json.dumps({**FIRST, "namespace": "shop", "name": f"R{topic}"})
    written = {"type": "AVRO", "schema": schema, "data": {"a": 1}}
    names = {
        "TOPIC_NAME": f"{topic}-value",
        "RECORD_NAME": f"shop.R{topic}",
        "TOPIC_RECORD_NAME": f"{topic}-shop.R{topic}",
    }
    for strategy, subject in names.items():
        (item,) = gateway.produce(topic, {"value": {**written, "subject_name_strategy": strategy}})
        assert item["value"]["subject"] == subject
        with RegistryClient(registry_url) as registry:
            registered = registry.version(subject, "latest")
        assert registered.schema_id == item["value"]["schema_id"]
        by_id = {"subject_name_strategy": strategy, "schema_id": registered.schema_id, "data": {"a": 2}}
        (item,) = gateway.produce(topic, {"value": by_id})
        assert item["value"]["subject"] == subject
    key = {**written, "subject_name_strategy": "TOPIC_NAME"}
    (item,) = gateway.produce(topic, {"key": key, "value": {**key, "subject_name_strategy": "RECORD_NAME"}})
    assert (item["key"]["subject"], item["value"]["subject"]) == (f"{topic}-key", f"shop.R{topic}")


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"valu": 1}, 400),
    ({"value": 1}, 400),
    ({"value": {"type": "TEXT", "data": ""}}, 400),
    ({"value": {"type": [], "data": ""}}, 400),
    ({"value": {"type": "STRING", "data": "x", "schema_id": 1}}, 400),
    ({"value": {"subject": "\ud800", "data": 1}}, 400),
    ({"headers": [{"name": "\ud800"}]}, 400),
    ({"value": {"type": "AVRO", "data": 1}}, 400),
    ({"value": {"type": "AVRO", "schema": '"int"', "schema_id": 1, "data": 1}}, 400),
    ({"value": {"schema_id": 1, "schema_version": 1, "data": 1}}, 400),
    ({"value": {"schema_id": 1, "schema": '"int"', "data": 1}}, 400),
    ({"value": {"schema_version": 1, "schema": '"int"', "data": 1}}, 400),
    ({"value": {"schema_id": "x", "data": 1}}, 400),
    ({"partition_id": "first"}, 400),
    ({"partition_id": -1}, 40402),
    ({"partition_id": 999, "value": text("x")}, 40402),
    ({"headers": [{"name": "a", "value": "%"}]}, 400),
    ({"timestamp": "yesterday"}, 400),
    ({"timestamp": "2026-01-31T12:00:00"}, 400),
    ({"value": {"type": "BINARY", "data": "fooba"}}, 400),
    ({"value": {"type": "BINARY", "data": "é"}}, 400),
    ({"value": {"type": "STRING", "data": 1}}, 400),
    ({"value": {"type": "AVRO", "schema": '"int"', "data": "x"}}, 42203),
    ({"value": {"type": "AVRO", "schema": "{", "data": 1}}, 42205),
    ({"value": {"schema_id": 999_999, "data": 1}}, 42205),
    ({"value": {"subject": "none", "data": 1}}, 42205),
    ({"value": {"subject_name_strategy": "OTHER", "schema_id": 1, "data": 1}}, 400),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "subject": "x", "schema_id": 1, "data": 1}}, 400),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "data": 1}}, 400),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "schema_version": 1, "data": 1}}, 400),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "schema_id": 999_999, "data": 1}}, 42205),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "type": "AVRO", "schema": "{", "data": 1}}, 42205),
    ({"value": {"subject_name_strategy": "RECORD_NAME", "type": "AVRO", "schema": '"int"', "data": 1}}, 42205),
]


def test_refused_record_gets_its_code_and_others_are_stored(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    gateway.produce(topic, {"value": text("first")})
    for record, code in REFUSED:
        before, refused, after = gateway.produce(topic, {"value": text("a")}, record, {"value": text("b")})
        assert (before["error_code"], after["error_code"]) == (200, 200), record
        assert (record, refused["error_code"]) == (record, code)
    assert len(stored(broker_address, topic, 1 + 2 * len(REFUSED))) == 1 + 2 * len(REFUSED)


@pytest.mark.parametrize(
    "rest", [b"[1]", b"1", b'{"value":', b'{"value":NaN}', b'{"value":"\xff"}', b'"x"', b'{"value":{"type":}}']
)
def test_invalid_json_ends_the_stream_after_the_records_before_it(
    gateway: GatewayClient, broker_address: str, topic: str, rest: bytes
) -> None:
    items = gateway.produce(topic, {"value": text("a")}, rest)
    assert [item["error_code"] for item in items] == [200, 400]
    assert [message.value() for message in stored(broker_address, topic, 1)] == [b"a"]


def test_too_large_object_ends_the_stream(gateway: GatewayClient, topic: str) -> None:
    items = gateway.produce(topic, {"value": text("a")}, {"value": text("x" * OBJECT_BYTES_MAX)}, {"value": text("b")})
    assert [item["error_code"] for item in items] == [200, 400]


def test_stream_of_many_records_keeps_their_order(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    records = [{"partition_id": 0, "value": text(str(number))} for number in range(5000)]
    body = gzip.compress(b"".join(json.dumps(record).encode() for record in records))
    items = gateway.post(f"/v3/clusters/c/topics/{topic}/records", body, content_encoding="gzip").items
    assert [item["offset"] for item in items] == [*range(5000)]
    assert [message.value() for message in stored(broker_address, topic, 5000)] == [
        str(number).encode() for number in range(5000)
    ]


def test_batch_has_a_result_for_each_id(gateway: GatewayClient, broker_address: str, topic: str) -> None:
    entries = [
        {"id": "1", "value": text("a")},
        {"id": "2", "value": {"type": "BINARY", "data": "%"}},
        {"id": "x", "key": text("k")},
    ]
    response = gateway.post(f"/v3/clusters/c/topics/{topic}/records:batch", {"entries": entries})
    assert response.status == 207
    assert [one["id"] for one in response.json["successes"]] == ["1", "x"]
    assert [(one["id"], one["error_code"]) for one in response.json["failures"]] == [("2", 400)]
    assert {(m.key(), m.value()) for m in stored(broker_address, topic, 2)} == {(None, b"a"), (b"k", None)}


@pytest.mark.parametrize(
    "entries",
    [[], [{"id": "1"}, {"id": "1"}], [{"value": None}], [{"id": 1}], [{"id": str(n)} for n in range(11)], {}],
)
def test_batch_of_another_form_is_refused(gateway: GatewayClient, topic: str, entries: Any) -> None:
    response = gateway.post(f"/v3/clusters/c/topics/{topic}/records:batch", {"entries": entries})
    assert response.problem == (422, 42208)
    assert gateway.post(f"/v3/clusters/c/topics/{topic}/records:batch", b"").problem == (422, 42208)


def test_other_media_types_are_refused(gateway: GatewayClient, topic: str) -> None:
    for name in ("records", "records:batch"):
        assert gateway.post(f"/v3/clusters/c/topics/{topic}/{name}", b"{}", "text/plain").problem == (415, 415)
