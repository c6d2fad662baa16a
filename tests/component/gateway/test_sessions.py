"""Sessions over HTTP: one gateway, and two that share the lanes."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.registry.client import RegistryClient
from support.free_ports import free_port
from support.gateway import GatewayClient, GatewayResponse, stored
from support.running_service import Service
from support.session_client import lines_of_values, open_session, request, send_lines, stored_values

pytestmark = pytest.mark.servers

FRAMED = "application/vnd.headrace.records"
READY_S = 60.0


@pytest.fixture
def topic(topic: str, broker_address: str) -> str:
    return create(broker_address, f"sessions-{topic}")


def create(address: str, topic: str, partitions: int = 3, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    return topic


class Source:
    """Opens sessions of one source, and sends chunks in the last one."""

    def __init__(self, gateway: GatewayClient, topic: str, source_id: str = "h:/f", **fields: Any) -> None:
        self._gateway = gateway
        self._fields = {"topic": topic, "source_id": source_id, **fields}
        self.session = self.open()["session"]

    def open(self, **fields: Any) -> Any:
        deadline = time.monotonic() + READY_S
        while True:
            found = self._gateway.post("/v1/sessions", {**self._fields, **fields})
            if found.status != 503 or time.monotonic() > deadline:
                break
            assert found.headers["retry-after"] == "1"
            time.sleep(0.1)
        assert found.status == 200, found.json
        return found.json

    def send(
        self, body: bytes, begin: int | None = 0, content_type: str = "text/plain", **headers: str
    ) -> GatewayResponse:
        query = "" if begin is None else f"?begin={begin}"
        return self._gateway.post(f"/v1/sessions/{self.session}/chunks{query}", body, content_type, **headers)


def test_lines_become_records_with_their_schema_and_headers(
    gateway: GatewayClient, topic: str, broker_address: str, registry_url: str
) -> None:
    before_ms = time.time_ns() // 1_000_000
    source = Source(gateway, topic, host="web1", file="/var/log/a", log_type="nginx")
    body = b"first\r\n\n\xffx\n"
    assert source.send(body).json == {"last_seqno": len(body), "written": 3, "skipped": 0, "rejected": []}
    messages = stored(broker_address, topic, 3)
    with RegistryClient(registry_url) as registry:
        schema = registry.version(f"{topic}-value", "latest")
    assert [json.loads(schema.text)["name"], schema.version] == ["LogLine", 1]
    assert [message.value()[1:5] for message in messages] == [schema.schema_id.to_bytes(4, "big")] * 3
    assert lines_of_values([(0, message.value()) for message in messages]) == [b"first\r", b"", "\ufffdx".encode()]
    assert messages[2].value().endswith(b"\x02\x04\xffx") and messages[0].value().endswith(b"\x00")
    for message, seqno in zip(messages, (7, 8, 11), strict=True):
        headers = {"hr.s": b"h:/f", "host": b"web1", "file": b"/var/log/a", "log_type": b"nginx"}
        assert dict(message.headers()) == headers | {"hr.q": seqno.to_bytes(8, "big")}
        assert before_ms <= message.timestamp()[1] <= time.time_ns() // 1_000_000


def test_records_that_are_stored_are_skipped_one_by_one(
    gateway: GatewayClient, topic: str, broker_address: str
) -> None:
    source = Source(gateway, topic)
    source.send(b"a\nb\n")
    assert source.send(b"a\nb\nc\n").json == {"last_seqno": 6, "written": 1, "skipped": 2, "rejected": []}
    assert source.send(b"b\n", 2).json == {"last_seqno": 6, "written": 0, "skipped": 1, "rejected": []}
    assert source.open()["last_seqno"] == 6
    assert lines_of_values(stored_values(broker_address, topic)["h:/f"]) == [b"a", b"b", b"c"]


def test_another_record_with_the_number_of_the_last_one_is_reported(gateway: GatewayClient, topic: str) -> None:
    source = Source(gateway, topic)
    source.send(b"a\nb\n")
    assert source.send(b"a\nX\n").json["conflict"] is True
    assert "conflict" not in source.send(b"a\nb\n").json


def test_later_session_ends_the_earlier_one(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    earlier = Source(gateway, topic, host="one")
    earlier.send(b"a\n")
    later = Source(gateway, topic, host="two")
    refused = earlier.send(b"b\n", 2)
    assert refused.problem == (409, 40970)
    assert refused.json["host"] == "two" and refused.json["opened_at"].endswith("Z")
    assert later.send(b"c\n", 2).status == 200
    assert gateway.request("DELETE", f"/v1/sessions/{earlier.session}").status == 204
    assert later.send(b"d\n", 4).status == 200, "closing an ended session has no effect"
    assert gateway.request("DELETE", f"/v1/sessions/{later.session}").status == 204
    assert later.send(b"e\n", 6).problem == (404, 40470)
    assert lines_of_values(stored_values(broker_address, topic)["h:/f"]) == [b"a", b"c", b"d"]


def test_delayed_opening_does_not_end_a_later_session(gateway: GatewayClient, topic: str) -> None:
    """A client repeats a request to open a session after a time-out; then the first request arrives, too."""
    opening = {"topic": topic, "source_id": "h:/f", "previous": 0}
    opened = gateway.post("/v1/sessions", opening)
    assert opened.status == 200 and opened.json["session_number"] == 1
    delayed = gateway.post("/v1/sessions", opening)
    assert delayed.problem == (412, 41270) and delayed.json["session_number"] == 1
    chunks = f"/v1/sessions/{opened.json['session']}/chunks?begin=0"
    assert gateway.post(chunks, b"a\n", "text/plain").json["written"] == 1
    following = gateway.post("/v1/sessions", {**opening, "previous": 1}).json
    assert (following["session_number"], following["last_seqno"]) == (2, 2)


def test_binary_records_keep_their_bytes_and_parts(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    source = Source(gateway, topic, format="binary")
    body = b"10 4 1/2\na\n\x00b\n11 0 2/2\n\n20 3\nxyz\n"
    assert source.send(body, None, FRAMED).json["written"] == 3
    messages = stored(broker_address, topic, 3)
    assert [message.value() for message in messages] == [b"a\n\x00b", b"", b"xyz"]
    assert [dict(message.headers()).get("hr.part") for message in messages] == [b"1/2", b"2/2", None]


def test_json_is_checked_against_the_registered_schema(
    gateway: GatewayClient, topic: str, broker_address: str, registry_url: str
) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    with RegistryClient(registry_url) as registry:
        registry.register(f"{topic}-value", json.dumps(schema))
    source = Source(gateway, topic, format="json")
    records = [{"seqno": 1, "value": {"id": 1}}, {"seqno": 2, "value": {"id": "x"}}, {"seqno": 3, "value": {"id": 3}}]
    found = source.send(json.dumps({"records": records}).encode(), None, "application/json").json
    assert (found["last_seqno"], found["written"]) == (3, 2)
    (rejected,) = found["rejected"]
    assert (rejected["seqno"], rejected["error_code"]) == (2, 42203) and "id" in rejected["message"]
    lines = b'{"id": 4}\nno json\n'
    found = source.send(lines, 100).json
    assert (found["written"], [one["seqno"] for one in found["rejected"]]) == (1, [118])
    assert [message.value()[5:] for message in stored(broker_address, topic, 3)] == [b"\x02", b"\x06", b"\x08"]


def test_body_may_be_compressed_and_have_a_checksum(gateway: GatewayClient, topic: str) -> None:
    source = Source(gateway, topic)
    body = b"line\n" * 1000
    checksum = f"crc32={zlib.crc32(body):x}"
    sent = source.send(gzip.compress(body), content_encoding="gzip", headrace_checksum=checksum)
    assert sent.json["written"] == 1000
    assert source.send(body, headrace_checksum="crc32=0").problem == (400, 400)


def test_record_that_the_topic_does_not_accept_is_rejected_and_passed(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    small = create(broker_address, f"{topic}-small", 1, **{"max.message.bytes": "10000"})
    source = Source(gateway, small, format="binary")
    lines = [b"x" * 2000, b"y" * 10_000, *[b"z" * 3000] * 10]
    found = source.send(b"".join(line + b"\n" for line in lines)).json
    assert (found["written"], [one["seqno"] for one in found["rejected"]]) == (11, [12_002])
    assert [len(value) for _, value in stored_values(broker_address, small)["h:/f"]] == [2000, *[3000] * 10]


def test_refused_batch_fails_the_chunk_and_ends_the_session(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    compacted = create(broker_address, f"{topic}-compacted", 1, **{"cleanup.policy": "compact"})
    source = Source(gateway, compacted)
    assert source.send(b"a\n").problem == (500, 50002)
    assert source.send(b"b\n", 2).problem == (404, 40470)
    assert source.open()["last_seqno"] == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"topic": "t"}', 400),
        (b'{"source_id": "s"}', 400),
        (b'{"topic": "t", "source_id": ""}', 400),
        (b'{"topic": "t", "source_id": 3}', 400),
        (b'{"topic": "t", "source_id": "a\\nb"}', 400),
        (b'{"topic": "t", "source_id": "a\\ud800"}', 400),
        (json.dumps({"topic": "t", "source_id": "x" * 257}).encode(), 400),
        (b'{"topic": "t", "source_id": "s", "format": "xml"}', 400),
        (b'{"topic": "t", "source_id": "s", "extra": 1}', 400),
        (b'{"topic": "t", "source_id": "s", "previous": -1}', 400),
        (b'{"topic": "t", "source_id": "s", "previous": "1"}', 400),
        (b'{"topic": "unknown-topic", "source_id": "s"}', 40401),
        (b'{"topic": "../x", "source_id": "s"}', 40401),
        (b'{"log_type": "unknown-topic", "source_id": "s"}', 40401),
    ],
)
def test_opening_is_refused(gateway: GatewayClient, body: bytes, code: int) -> None:
    assert gateway.post("/v1/sessions", body).json["error_code"] == code


def test_chunk_is_refused_as_a_whole(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    source = Source(gateway, topic)
    assert source.send(b"no end").problem == (400, 400)
    assert source.send(b"a\n", None).problem == (400, 400)
    assert source.send(b"5 1\na\n4 1\nb\n", None, FRAMED).problem == (400, 400)
    assert source.send(b"a\n", 0, "application/xml").problem == (415, 415)
    assert source.send(b'{"records": []}', None, "application/json").problem == (415, 415)
    assert source.send(b"x" * (4 * 2**20) + b"\n").problem == (413, 41301)
    assert source.send(gzip.compress(b"\n" * (5 * 2**20)), content_encoding="gzip").problem == (413, 41301)
    assert source.send(b"\n" * 100_001).problem == (413, 41301)
    assert source.send(gzip.compress(b"a\n")[:-4], content_encoding="gzip").problem == (400, 400)
    source.session = "0" * 32 + "-1"
    assert source.send(b"a\n").problem == (404, 40470)
    source.session = "nonsense"
    assert source.send(b"a\n").problem == (404, 40470)
    assert stored_values(broker_address, topic) == {}


def test_state_topic_that_would_lose_state_is_not_used(
    tmp_path: Path, registry_url: str, broker_address: str, topic: str
) -> None:
    name = create(broker_address, f"{topic}-state", 2)
    service = Service(
        ["headrace", "gateway", "serve", "--data-dir", str(tmp_path), "--gateway-listen", "127.0.0.1:0"],
        {**_environment(registry_url, broker_address), "HEADRACE__GATEWAY__SESSIONS_TOPIC": name},
    )
    try:
        client = GatewayClient(service.addresses["gateway"])
        found = client.post("/v1/sessions", {"topic": topic, "source_id": "s"})
        while "starting" in found.json["message"]:
            time.sleep(0.1)
            found = client.post("/v1/sessions", {"topic": topic, "source_id": "s"})
        assert found.problem == (503, 50302) and "compact" in found.json["message"]
    finally:
        service.stop()


@pytest.fixture
def two_gateways(tmp_path: Path, registry_url: str, broker_address: str, topic: str) -> Iterator[dict[str, Service]]:
    """Gateways by URL, with a state topic of their own."""
    environment = {
        **_environment(registry_url, broker_address),
        "HEADRACE__GATEWAY__SESSIONS_TOPIC": f"{topic}-state",
        "HEADRACE__GATEWAY__LANES": "8",
    }
    running = {}
    for number in range(2):
        address = f"127.0.0.1:{free_port()}"
        command = ["headrace", "gateway", "serve", "--data-dir", str(tmp_path / str(number))]
        running[f"http://{address}"] = Service([*command, "--gateway-listen", address], environment)
    yield running
    for service in running.values():
        service.stop()


def test_two_gateways_share_the_sources_and_one_takes_over_all(
    two_gateways: dict[str, Service], topic: str, broker_address: str
) -> None:
    first, second = two_gateways
    before: dict[str, str] = {}
    owners = {f"s{n}": _owner(first, topic, f"s{n}") for n in range(16)}
    deadline = time.monotonic() + READY_S
    while (set(owners.values()) != {first, second} or owners != before) and time.monotonic() < deadline:
        before, owners = owners, {name: _owner(second, topic, name) for name in owners}
    assert set(owners.values()) == {first, second}
    for name, owner in owners.items():
        other = second if owner == first else first
        status, headers, _ = request(f"{other}/v1/sessions", "POST", _opening(topic, name), "application/json")
        assert (status, headers["location"]) == (307, f"{owner}/v1/sessions")
        status, opened = open_session(other, topic=topic, source_id=name)
        assert (status, opened["url"]) == (200, owner)
        assert send_lines(owner, opened["session"], 0, [b"from the first owner"])[0] == 200
        assert send_lines(other, opened["session"], 21, [b"x"])[0] == 307
    two_gateways[second].kill()
    for name in owners:
        while _owner(first, topic, name) != first:
            time.sleep(0.2)
        _, opened = open_session(first, topic=topic, source_id=name)
        assert opened["last_seqno"] == 21
        assert send_lines(first, opened["session"], 21, [b"from the second"])[0] == 200
    found = stored_values(broker_address, topic)
    assert set(found) == set(owners)
    for values in found.values():
        assert lines_of_values(values) == [b"from the first owner", b"from the second"]


def _environment(registry_url: str, broker_address: str) -> dict[str, str]:
    return {"HEADRACE__REGISTRY__URL": registry_url, "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address}


def _opening(topic: str, source_id: str) -> bytes:
    return json.dumps({"topic": topic, "source_id": source_id}).encode()


def _owner(url: str, topic: str, source_id: str) -> str:
    """The URL of the gateway that opens a session of the source."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            status, found = open_session(url, topic=topic, source_id=source_id)
        except OSError:
            status, found = 503, None
        if status == 200:
            return str(found["url"])
        time.sleep(0.1)
    raise AssertionError(f"no gateway opens {source_id}: {found}")
