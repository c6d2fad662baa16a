"""Consuming by version 2 of the REST Proxy's interface."""

from __future__ import annotations

import base64
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.registry.access.passwords import Cost, PasswordHash
from support.free_ports import free_port
from support.gateway import AVRO_V2, BINARY_V2, JSON_V2, NAMES, V2, GatewayClient, InstanceClient, produce, values
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

WAIT_S = 30
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"], "default": None}],
    }
)


def position(topic: str, offset: int, **others: Any) -> dict[str, Any]:
    return {"offsets": [{"topic": topic, "partition": 0, "offset": offset, **others}]}


def test_first_read_after_a_subscription_has_the_records(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, {"foo": "bar"})
    instance = InstanceClient(gateway).subscribe(topics=[topic])
    assert instance.base_uri == f"http://{gateway.host}:{gateway.port}{instance.path}"
    (record,) = instance.read("")  # the default time-out does not include the time until the group assigns partitions
    assert record.pop("timestamp") > 0
    assert record == {"topic": topic, "key": None, "value": {"foo": "bar"}, "partition": 0, "offset": 0}
    assert instance.get("subscription").json == {"topics": [topic]}
    assert {one["topic"] for one in instance.get("assignments").json["partitions"]} == {topic}


def test_subscription_by_pattern_and_its_deletion(gateway: GatewayClient, topic: str) -> None:
    topics = [f"{topic}-p{number}" for number in range(3)]
    for one in topics:
        produce(gateway, one, 1)
    instance = InstanceClient(gateway).subscribe(topic_pattern=f"{topic}-p[0-9]")
    assert {one["topic"] for one in instance.read_until(3)} == set(topics)
    assert instance.get("subscription").json == {"topics": topics}
    assert instance.gateway.request("DELETE", f"{instance.path}/subscription").status == 204
    assert instance.get("subscription").json == {"topics": []}
    assert instance.assign(topics[0]).get("assignments").json["partitions"] == [{"topic": topics[0], "partition": 0}]


def test_commit_stores_the_offset_after_the_last_processed_record(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, 1, 2, 3)
    instance = InstanceClient(gateway).assign(topic)
    assert instance.get(f"offsets?topic={topic}&partition=0").json == {"offsets": []}
    response = instance.post("offsets", position(topic, 1, metadata="mine"))
    assert (response.status, response.json) == (200, [])
    query = {"partitions": [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]}
    found = gateway.request("GET", f"{instance.path}/offsets", query, V2).json  # with a body, as clients send it
    assert found == {"offsets": [{"topic": topic, "partition": 0, "offset": 2, "metadata": "mine"}]}


def test_commit_without_offsets_commits_delivered_records_only(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, *range(10))
    instance = InstanceClient(gateway).assign(topic)
    assert instance.post("offsets").status == 200
    assert instance.committed(topic) == {}
    assert values(instance.read("timeout=10000&max_bytes=2")) == [0, 1]
    assert instance.post("offsets").status == 200
    assert instance.committed(topic) == {0: 2}
    later = InstanceClient(gateway, group=instance.group).subscribe(topics=[topic])
    assert values(later.read_until(8)) == [*range(2, 10)]


def test_deleted_instance_with_automatic_commits_has_committed_what_it_delivered(
    gateway: GatewayClient, topic: str
) -> None:
    produce(gateway, topic, *range(10))
    first = InstanceClient(gateway, **{"auto.commit.enable": "true"}).subscribe(topics=[topic])
    assert values(first.read("timeout=10000&max_bytes=3")) == [0, 1, 2]
    assert gateway.request("DELETE", first.path).status == 204
    assert first.get("records").problem == (404, 40403)
    second = InstanceClient(gateway, group=first.group).subscribe(topics=[topic])
    assert values(second.read_until(7)) == [*range(3, 10)]


def test_read_has_one_record_at_least_and_ends_before_its_size(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, "a" * 1000, "b" * 10, "c" * 10, "d" * 1000)
    instance = InstanceClient(gateway).assign(topic)
    sizes = [[len(one["value"]) for one in instance.read("timeout=10000&max_bytes=24")] for _ in range(3)]
    assert sizes == [[1000], [10, 10], [1000]]


def test_read_with_fetch_min_bytes_waits_for_its_time_out(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, 1)
    instance = InstanceClient(gateway, **{"fetch.min.bytes": 10, "consumer.request.timeout.ms": 2000}).assign(topic)
    assert values(instance.read("")) == [1]
    produce(gateway, topic, "long enough", 2)
    assert values(instance.read()) == ["long enough", 2]


def test_read_without_a_minimum_takes_its_whole_time(gateway: GatewayClient, topic: str) -> None:
    """The REST Proxy's default."""
    produce(gateway, topic, 1)
    instance = InstanceClient(gateway, **{"fetch.min.bytes": -1}).assign(topic)
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(instance.read, "timeout=2000")
        produce(gateway, topic, 2)
        assert values(reading.result()) == [1, 2]


def test_name_may_be_sent_as_id_and_options_as_numbers_or_booleans(gateway: GatewayClient) -> None:
    body = {
        "id": f"by-id-{next(NAMES)}",
        "auto.commit.enable": False,
        "fetch.min.bytes": "1",
        "consumer.request.timeout.ms": "1000",
    }
    assert gateway.post("/consumers/g", body, V2).json["instance_id"] == body["id"]


def test_record_that_does_not_fit_its_format_is_an_item_with_an_error(gateway: GatewayClient, topic: str) -> None:
    content = base64.b64encode(b"\xff{").decode()
    records = [{"value": content, "partition": 0}, {"value": None, "partition": 0}]
    assert gateway.post(f"/topics/{topic}", {"records": records}, BINARY_V2).status == 200
    produce(gateway, topic, "good")
    for form in ("json", "avro"):
        bad, tombstone, good = InstanceClient(gateway, form).assign(topic).read_until(3)
        assert (bad["value"], bad["base64"], bad["error_code"]) == (content, ["value"], 42207)
        assert bad["error"].startswith("value: ")
        assert (tombstone["value"], "error" in tombstone) == (None, False)
        assert ("error" in good) == (form == "avro")


def test_avro_values_have_the_official_encoding_and_keys_a_format_of_their_own(
    gateway: GatewayClient, topic: str
) -> None:
    records = [{"key": "k", "value": {"name": "a", "age": age}, "partition": 0} for age in (None, 3, {"int": 4})]
    body = {"key_format": "string", "value_schema": SCHEMA, "records": records}
    assert gateway.post(f"/topics/{topic}", body, AVRO_V2).status == 200
    found = InstanceClient(gateway, "avro", key_format="string").assign(topic).read_until(3)
    assert [one["value"]["age"] for one in found] == [None, {"int": 3}, {"int": 4}]
    assert [one["key"] for one in found] == ["k"] * 3


def test_message_of_an_unknown_schema_is_an_item_with_an_error(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, b"\x00\x00\x98\x96\x80x", partition=0)
    producer.flush()
    (record,) = InstanceClient(gateway, "avro").assign(topic).read_until(1)
    assert (record["base64"], "schema id 10000000" in record["error"]) == (["value"], True)


def test_headers_and_timestamps_are_written_and_read(gateway: GatewayClient, topic: str) -> None:
    headers = [{"name": "trace", "value": "YQ=="}, {"name": "none", "value": None}]
    times = ["2026-01-01T00:00:00Z", 1767225600001]
    body = {"records": [{"value": 1, "headers": headers, "timestamp": one, "partition": 0} for one in times]}
    assert gateway.post(f"/topics/{topic}", body, JSON_V2).status == 200
    found = InstanceClient(gateway).assign(topic).read_until(2)
    assert [one["timestamp"] for one in found] == [1767225600000, 1767225600001]
    assert [one["headers"] for one in found] == [headers] * 2


def test_positions(gateway: GatewayClient, topic: str) -> None:
    body = {"records": [{"value": n, "timestamp": 1767225600000 + n, "partition": 0} for n in range(5)]}
    assert gateway.post(f"/topics/{topic}", body, JSON_V2).status == 200
    instance = InstanceClient(gateway).assign(topic)
    one = {"topic": topic, "partition": 0}
    assert instance.post("positions", position(topic, 3)).status == 204
    assert values(instance.read()) == [3, 4]
    assert instance.post("positions/beginning", {"partitions": [one]}).status == 204
    assert values(instance.read("timeout=10000&max_bytes=1")) == [0]
    times = {"timestamps": [one | {"timestamp": "2026-01-01T00:00:00.002Z"}]}
    assert instance.post("positions", times).status == 204  # discards fetched records of the earlier position
    assert values(instance.read()) == [2, 3, 4]
    assert instance.post("positions/end", {"partitions": [one]}).status == 204
    assert instance.read("timeout=0") == []
    assert instance.post("offsets").status == 200
    assert instance.committed(topic) == {0: 5}
    assert instance.post("positions", position("other", 3)).problem == (409, 40903)


def send(gateway: GatewayClient, path: str) -> socket.socket:
    """Sends a GET request, without waiting for the response."""
    connection = socket.create_connection((gateway.host, gateway.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode())
    return connection


def test_records_are_not_lost_when_clients_disconnect_during_reads(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, "first")
    instance = InstanceClient(gateway).subscribe(topics=[topic])
    assert values(instance.read()) == ["first"]
    for number in range(20):
        connection = send(gateway, f"{instance.path}/records?timeout=30000")
        connection.close()
        produce(gateway, topic, number)
    assert values(instance.read_until(20)) == [*range(20)]


def test_other_requests_are_answered_while_many_reads_wait(gateway: GatewayClient, topic: str) -> None:
    produce(gateway, topic, 0)
    instances = [InstanceClient(gateway).assign(topic) for _ in range(40)]
    assert [values(one.read()) for one in instances] == [[0]] * 40
    waiting = [send(gateway, f"{one.path}/records?timeout=60000") for one in instances]
    assert gateway.request("GET", "/brokers").status == 200
    for one in instances:  # another thread for each read would be needed, if reads blocked one
        assert one.post("offsets").status == 200
    for connection in waiting:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    produce(gateway, topic, 1)
    for connection in waiting:
        connection.settimeout(WAIT_S)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()


def test_instance_without_reads_does_not_delay_other_members_of_its_group(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    produce(gateway, topic, 0)
    instance = InstanceClient(gateway).subscribe(topics=[topic])
    assert values(instance.read()) == [0]
    member = Consumer({"bootstrap.servers": broker_address, "group.id": instance.group})
    try:
        member.subscribe([topic])
        deadline = time.monotonic() + WAIT_S
        while not member.assignment():
            assert time.monotonic() < deadline, "the instance has not left its partitions to the new member"
            member.poll(0.1)
        own = {one["partition"] for one in instance.get("assignments").json["partitions"]}
        assert own.isdisjoint(one.partition for one in member.assignment())
    finally:
        member.close()


def test_commit_of_reassigned_partitions_succeeds_and_their_records_are_delivered_again(
    gateway: GatewayClient, topic: str
) -> None:
    for partition in range(4):
        produce(gateway, topic, partition, partition=partition)
    first = InstanceClient(gateway).subscribe(topics=[topic])
    assert sorted(values(first.read_until(4))) == [*range(4)]
    second = InstanceClient(gateway, group=first.group).subscribe(topics=[topic])
    delivered: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(delivered) < 2:
        assert time.monotonic() < deadline, "the records of the second instance are not delivered to it"
        first.read("timeout=100")
        delivered += second.read("timeout=100")
    assert first.post("offsets").status == 200
    theirs = {one["partition"] for one in second.get("assignments").json["partitions"]}
    assert {one["partition"] for one in delivered} == theirs and len(theirs) == 2
    assert theirs.isdisjoint(first.committed(topic))


def test_every_way_to_get_partitions_excludes_the_others(gateway: GatewayClient, topic: str) -> None:
    instance = InstanceClient(gateway)
    assert instance.get("records").problem == (409, 40903)
    assert instance.post("subscription", {"topics": [topic], "topic_pattern": "x"}).problem == (409, 40903)
    instance.subscribe(topics=[topic])
    assert instance.post("assignments", {"partitions": []}).problem == (409, 40903)
    assert instance.post("subscription", {"topic_pattern": "x"}).problem == (409, 40903)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"format": "xml"}, (422, 42204)),
        ({"auto.offset.reset": "now"}, (422, 42204)),
        ({"auto.commit.enable": "maybe"}, (422, 42204)),
        ({"consumer.request.timeout.ms": -1}, (422, 42204)),
        ({"name": "a/b"}, (422, 42204)),
        ({"name": ".."}, (422, 42204)),
        ({"name": "x" * 256}, (422, 42204)),
        ({"id": 1}, (422, 42204)),
        ({"fetch.min.bytes": -10}, (422, 40001)),
        ({"unknown": 1}, (422, 422)),
        ([], (422, 422)),
        (b"{", (400, 400)),
    ],
)
def test_invalid_configuration_is_refused(gateway: GatewayClient, body: Any, problem: tuple[int, int]) -> None:
    assert gateway.post("/consumers/refused", body, V2).problem == problem


def test_malformed_requests_are_refused(gateway: GatewayClient, topic: str) -> None:
    instance = InstanceClient(gateway)
    for path, body in (
        ("subscription", {"topics": topic}),
        ("subscription", {"topics": ["^a"]}),
        ("subscription", {"topic_pattern": ["a"]}),
        ("subscription", {"topic_pattern": "(a"}),
        ("assignments", {}),
        ("assignments", {"partitions": [{"topic": topic, "partition": -1}]}),
        ("offsets", {"partitions": []}),
        ("positions", {"offsets": [{"topic": topic, "partition": 0, "offset": "first"}]}),
    ):
        assert instance.post(path, body).problem == (422, 422), (path, body)
    for text in ("\ud800", "a\0b", "a" * 40_000):  # the Kafka client would end the process, or truncate the text
        for path, body in (
            ("subscription", {"topic_pattern": text}),
            ("offsets", position(topic, 1, metadata=text)),
        ):
            assert instance.post(path, body).problem == (400, 400), path
        assert gateway.post("/consumers/g", {"name": text}, V2).problem == (400, 400)
    assert gateway.post("/consumers/a%00b", {}, V2).problem == (404, 404)
    for group in ("%0b", "%20", "a%20", "%20a", "a%01"):
        assert gateway.post(f"/consumers/{group}", {}, V2).problem == (422, 42204)
    assert gateway.post(f"/consumers/{instance.group}", {"name": instance.name}, V2).problem == (409, 40902)
    assert gateway.post("/consumers/g", {}, "text/plain").problem == (415, 415)
    instance.assign(topic)
    for accept, problem in ((AVRO_V2, (406, 40601)), ("text/html", (406, 406))):
        assert gateway.request("GET", f"{instance.path}/records", accept=accept).problem == problem
    assert instance.get("records?timeout=soon").problem == (400, 400)


@pytest.fixture
def start(tmp_path: Path, start_service: StartService, registry_url: str, broker_address: str) -> StartService:
    """Starts a gateway with additional settings."""

    def start(**settings: str) -> Service:
        environment = {
            "HEADRACE__REGISTRY__URL": registry_url,
            "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address,
            **{f"HEADRACE__{name.upper()}": value for name, value in settings.items()},
        }
        command = ("headrace", "gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
        return start_service(*command, environment=environment)

    return start


def test_instances_are_limited_in_number_and_deleted_when_idle(start: StartService, topic: str) -> None:
    service = start(
        gateway__consumer_instances_max="2",
        gateway__consumer_idle="2s",
        gateway__url="http://gateway1.example:8082/",
    )
    gateway = GatewayClient(service.addresses["gateway"])
    for _ in range(2):
        created = gateway.post("/consumers/g", {}, V2).json
        assert created["instance_id"].startswith("rest-consumer-gateway1.example-")
        assert created["base_uri"] == f"http://gateway1.example:8082/consumers/g/instances/{created['instance_id']}"
    refused = gateway.post("/consumers/g", {}, V2)
    assert (refused.problem, refused.headers["retry-after"]) == ((429, 42900), "5")
    deadline = time.monotonic() + WAIT_S
    while gateway.post("/consumers/g", {"name": "third"}, V2).status == 429:
        assert time.monotonic() < deadline, "idle instances are not deleted"
        time.sleep(0.2)
    read = gateway.request("GET", f"/consumers/g/instances/{created['instance_id']}/records")
    assert read.problem == (404, 40403)


def test_records_stay_unread_while_the_registry_does_not_respond(
    gateway: GatewayClient, start: StartService, topic: str, registry_url: str
) -> None:
    body = {"value_schema": '"string"', "records": [{"value": "a", "partition": 0}]}
    assert gateway.post(f"/topics/{topic}", body, AVRO_V2).status == 200
    service = start(registry__url=f"http://127.0.0.1:{free_port()}")
    instance = InstanceClient(GatewayClient(service.addresses["gateway"]), "avro").assign(topic)
    for _ in range(2):
        response = instance.get("records?timeout=10000")
        assert response.problem == (503, 50301)
        assert "retry-after" in response.headers
    assert instance.post("offsets").status == 200
    assert instance.committed(topic) == {}
    refused = instance.gateway.post(f"/topics/{topic}", body, AVRO_V2)
    assert (refused.problem, "retry-after" in refused.headers) == ((503, 50301), True)


def test_users_read_topics_with_the_permission_payload(
    tmp_path: Path, start: StartService, gateway: GatewayClient, topic: str
) -> None:
    for one in (topic, f"{topic}-secret"):
        produce(gateway, one, one)
    hashed = PasswordHash.of("secret", bytes(16), Cost(log2_n=4, r=1, p=1))
    grants = [f"grant {name} read {topic}*\ngrant {name} payload {topic}" for name in ("alice", "bob")]
    users = tmp_path / "users"
    users.write_text("\n".join([*(f"user {name} {hashed}" for name in ("alice", "bob")), *grants, ""]))
    url = start(registry__users=str(users)).addresses["gateway"]
    alice, bob = (GatewayClient(url, user=name, password="secret") for name in ("alice", "bob"))
    assert GatewayClient(url).post("/consumers/g", {}, V2).problem == (401, 40101)
    instance = InstanceClient(alice)
    assert instance.post("subscription", {"topics": [f"{topic}-secret"]}).problem == (403, 40301)
    denied = {"partitions": [{"topic": f"{topic}-secret", "partition": 0}]}
    assert instance.post("assignments", denied).problem == (403, 40301)
    assert bob.request("GET", f"{instance.path}/subscription").problem == (404, 40403)
    instance.subscribe(topic_pattern=f"{topic}.*")
    assert values(instance.read()) == [topic]
    assert instance.read("timeout=1000") == []
    for path in (f"/topics/{topic}", f"/topics/{topic}/partitions/0/records?offset=0"):
        assert alice.request("GET", path).status == 200
        assert alice.request("GET", path.replace(topic, f"{topic}-secret")).status == (
            403 if "records" in path else 200
        )
    assert set(alice.request("GET", "/topics").json) == {topic, f"{topic}-secret"}


def test_waiting_reads_end_when_the_gateway_stops(start: StartService, topic: str) -> None:
    service = start()
    gateway = GatewayClient(service.addresses["gateway"])
    produce(gateway, topic, 1)
    instance = InstanceClient(gateway).assign(topic)
    assert values(instance.read()) == [1]
    waiting = send(gateway, f"{instance.path}/records?timeout=60000")
    assert instance.post("offsets").status == 200
    assert service.stop() == 0
    waiting.settimeout(WAIT_S)
    assert waiting.makefile("rb").read().endswith(b"\r\n\r\n[]")
    waiting.close()
    assert not [line for line in service.errors if "Traceback" in line]


def test_commit_of_an_instance_that_is_no_member_of_its_active_group_is_refused(
    gateway: GatewayClient, topic: str
) -> None:
    produce(gateway, topic, 1)
    member = InstanceClient(gateway).subscribe(topics=[topic])
    assert values(member.read()) == [1]
    other = InstanceClient(gateway, group=member.group).assign(topic)
    assert other.post("offsets", position(topic, 0)).problem == (409, 40903)


def test_positions_of_a_group_are_those_of_other_consumers(
    gateway: GatewayClient, broker_address: str, topic: str
) -> None:
    produce(gateway, topic, 1, 2, 3)
    instance = InstanceClient(gateway).assign(topic)
    assert values(instance.read("timeout=10000&max_bytes=2")) == [1, 2]
    assert instance.post("offsets").status == 200
    consumer = Consumer({"bootstrap.servers": broker_address, "group.id": instance.group})
    try:
        assert consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_S)[0].offset == 2
    finally:
        consumer.close()
