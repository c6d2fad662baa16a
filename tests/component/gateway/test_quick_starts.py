"""The requests of the quick starts of Confluent's REST Proxy, sent by curl: only the address differs."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from support.gateway import AVRO_V2, BINARY_V2, JSON_V2, V2
from support.running_service import Service

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
USER = '{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}'
JSON = "application/json"
READS_MAX = 10
"""A read waits for one second, which a busy broker may exceed."""


class Curl:
    """Sends requests to a gateway, with the options that the quick starts use."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(
        self, method: str, path: str, body: Any = None, content_type: str = "", accept: str = ""
    ) -> tuple[int, Any]:
        """Returns the status and the JSON value of the response; None for an empty one. A body that is no text is sent
        as JSON."""
        options = [] if method == "GET" else ["-X", method]
        options += ["-H", f"Content-Type: {content_type}"] if content_type else []
        options += ["-H", f"Accept: {accept}"] if accept else []
        options += [] if body is None else ["--data", body if isinstance(body, str) else json.dumps(body)]
        command = ["curl", "-s", "-w", "\n%{http_code}", *options, self._url + path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition("\n")
        values = [json.loads(line) for line in text.splitlines() if line]
        return int(status), values[0] if len(values) == 1 else values or None

    def consume(self, form: str, topic: str) -> list[Any]:
        """Creates an instance, subscribes, reads and deletes the instance. Returns the records."""
        group = f"my_{form}_consumer"
        created = {"name": "my_consumer_instance", "format": form, "auto.offset.reset": "earliest"}
        path = f"/consumers/{group}/instances/my_consumer_instance"
        assert self("POST", f"/consumers/{group}", created, V2) == (
            200,
            {"instance_id": "my_consumer_instance", "base_uri": self._url + path},
        )
        assert self("POST", f"{path}/subscription", {"topics": [topic]}, V2) == (204, None)
        records = None
        for _ in range(READS_MAX):
            status, records = self("GET", f"{path}/records", accept=f"application/vnd.kafka.{form}.v2+json")
            assert status == 200
            if records:
                break
        assert self("DELETE", path, content_type=V2) == (204, None)
        found = records if isinstance(records, list) else [records]
        return [{name: one[name] for name in ("key", "value", "offset", "topic")} for one in found]


@pytest.fixture(scope="module")
def curl(gateway_service: Service) -> Curl:
    return Curl(gateway_service.addresses["gateway"])


@pytest.mark.parametrize(
    ("form", "content_type", "schema", "value"),
    [
        ("json", JSON_V2, {}, {"foo": "bar"}),
        ("binary", BINARY_V2, {}, "S2Fma2E="),
        ("avro", AVRO_V2, {"value_schema": USER}, {"name": "testUser"}),
    ],
)
def test_version_2_produces_and_consumes(
    curl: Curl, form: str, content_type: str, schema: dict[str, str], value: Any
) -> None:
    topic = f"{form}test"
    status, produced = curl(
        "POST", f"/topics/{topic}", {**schema, "records": [{"value": value}]}, content_type, accept=V2
    )
    (stored,) = produced.pop("offsets")
    assert (status, stored["offset"], stored["error_code"], stored["error"]) == (200, 0, None, None)
    assert set(produced) == {"key_schema_id", "value_schema_id"}
    assert (produced["value_schema_id"] is None) == (form != "avro")
    assert curl.consume(form, topic) == [{"key": None, "value": value, "offset": 0, "topic": topic}]
    assert topic in curl("GET", "/topics")[1]
    described = curl("GET", f"/topics/{topic}")[1]
    assert described["name"] == topic
    assert curl("GET", f"/topics/{topic}/partitions") == (200, described["partitions"])


def test_version_2_produces_avro_with_keys(curl: Curl) -> None:
    body = {
        "key_schema": '{"name":"user_id"  ,"type": "int"   }',
        "value_schema": USER,
        "records": [{"key": 1, "value": {"name": "testUser"}}],
    }
    status, produced = curl("POST", "/topics/avrokeytest2", body, AVRO_V2, accept=V2)
    assert (status, produced["offsets"][0]["error_code"]) == (200, None)
    assert produced["key_schema_id"] != produced["value_schema_id"]


@pytest.mark.parametrize("form", ["jsonschema", "protobuf"])
def test_other_schema_types_of_the_quick_start_are_refused(curl: Curl, form: str) -> None:
    status, problem = curl(
        "POST",
        f"/topics/{form}test",
        {"value_schema": "x", "records": [{"value": 1}]},
        f"application/vnd.kafka.{form}.v2+json",
    )
    assert (status, problem["error_code"]) == (415, 415)


def test_version_3_describes_and_produces(curl: Curl) -> None:
    for path in ("/v3/clusters", "/v3/clusters/"):
        status, clusters = curl("GET", path)
        assert (status, clusters["kind"]) == (200, "KafkaClusterList")
    cluster = f"/v3/clusters/{clusters['data'][0]['cluster_id']}"
    assert curl("GET", f"{cluster}/topics")[1]["kind"] == "KafkaTopicList"
    status, topic = curl("POST", f"{cluster}/topics", {"topic_name": "v3test"}, JSON)
    assert (status, topic["topic_name"], topic["is_internal"]) == (201, "v3test", False)
    records = f"{cluster}/topics/v3test/records"
    status, stored = curl("POST", records, {"value": {"type": "JSON", "data": {"name": "testUser"}}}, JSON)
    assert (status, stored["error_code"], stored["value"]) == (200, 200, {"type": "JSON", "size": 19})
    two = '{"value":{"type":"JSON","data":"ONE"}} {"value":{"type":"JSON","data":"TWO"}}'
    status, results = curl("POST", records, two, JSON)
    assert (status, [one["error_code"] for one in results]) == (200, [200, 200])


def test_version_3_configures_and_deletes(curl: Curl) -> None:
    """The quick start of the same interface in Confluent's cloud."""
    cluster = f"/v3/clusters/{curl('GET', '/v3/clusters')[1]['data'][0]['cluster_id']}"
    body = {"topic_name": "cloudtest", "partitions_count": 6, "replication_factor": 1, "configs": []}
    assert curl("POST", f"{cluster}/topics", body, JSON)[1]["partitions_count"] == 6
    topic = f"{cluster}/topics/cloudtest"
    changes = {"data": [{"name": "cleanup.policy", "value": "compact"}, {"name": "compression.type", "value": "gzip"}]}
    assert curl("POST", f"{topic}/configs:alter", changes, JSON) == (204, None)
    found = {one["name"]: one["value"] for one in curl("GET", f"{topic}/configs")[1]["data"]}
    assert (found["cleanup.policy"], found["compression.type"]) == ("compact", "gzip")
    status, config = curl("GET", f"{topic}/configs/compression.type")
    assert (status, config["kind"], config["value"]) == (200, "KafkaTopicConfig", "gzip")
    record = {
        "partition_id": 1,
        "headers": [{"name": "Header-1", "value": "SGVhZGVyLTE="}],
        "key": {"type": "BINARY", "data": "Zm9vYmFy"},
        "value": {"type": "JSON", "data": {"foo": "bar"}},
        "timestamp": "2021-02-05T19:14:42Z",
    }
    stored = curl("POST", f"{topic}/records", record, JSON)[1]
    assert (stored["error_code"], stored["partition_id"], stored["key"]["size"]) == (200, 1, 6)
    assert curl("DELETE", topic) == (204, None)
