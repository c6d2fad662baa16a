"""Unmodified kafka-python and confluent-kafka against a running broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from headrace.broker.config import BrokerConfig
from headrace.broker.log import compaction
from headrace.broker.node import BrokerNode
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.record_batch import HEADER_BYTES
from support.broker.broker_restarts import serve
from support.broker.broker_samples import append, keyed_batch
from support.broker.protocol_client import now_ms
from support.certificates import Authority

pytestmark = pytest.mark.servers

MESSAGES = 10_000
TIMEOUT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def wait_until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, description
        time.sleep(0.02)


def read_with_kafka_python(address: str, topic: str, partitions: int, count: int) -> dict[int, list[bytes | None]]:
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
    consumer.seek_to_beginning()
    values: dict[int, list[bytes | None]] = {index: [] for index in range(partitions)}
    offsets: dict[int, list[int]] = {index: [] for index in range(partitions)}

    def poll() -> bool:
        for records in consumer.poll(timeout_ms=200, max_records=5000).values():
            for record in records:
                values[record.partition].append(record.value)
                offsets[record.partition].append(record.offset)
        return sum(map(len, values.values())) >= count

    wait_until(poll, f"{topic}: fewer than {count} messages came")
    consumer.close()
    assert all(each == list(range(len(each))) for each in offsets.values())
    return values


def read_with_confluent(address: str, topic: str, partitions: int, count: int) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": unique("reader"), "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[bytes | None] = []

    def poll() -> bool:
        values.extend(message.value() for message in consumer.consume(2000, 0.5) if not message.error())
        return len(values) >= count

    wait_until(poll, f"{topic}: fewer than {count} messages came")
    consumer.close()
    return values


@pytest.mark.parametrize("codec", CODECS)
def test_both_clients_read_what_kafka_python_wrote(broker_address: str, codec: str) -> None:
    topic = unique(f"python-{codec}")
    producer = KafkaProducer(
        bootstrap_servers=broker_address, compression_type=None if codec == "none" else codec, linger_ms=10
    )
    sent = [b"value %d" % number for number in range(MESSAGES)]
    futures = [
        producer.send(topic, value=value, partition=number % 4, headers=[("n", b"%d" % number)])
        for number, value in enumerate(sent)
    ]
    producer.flush(TIMEOUT_S)
    assert sorted((future.get(1).partition, future.get(1).offset) for future in futures) == [
        (partition, offset) for partition in range(4) for offset in range(MESSAGES // 4)
    ]
    producer.close()
    by_partition = read_with_kafka_python(broker_address, topic, 4, MESSAGES)
    assert by_partition == {index: sent[index::4] for index in range(4)}
    assert sorted(read_with_confluent(broker_address, topic, 4, MESSAGES)) == sorted(sent)  # type: ignore[type-var]


@pytest.mark.parametrize("is_idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_both_clients_read_what_confluent_wrote(broker_address: str, codec: str, is_idempotent: bool) -> None:
    topic = unique(f"confluent-{codec}")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker_address, "compression.type": codec, "enable.idempotence": is_idempotent}
    )
    failures: list[object] = []
    sent = [b"value %d" % number for number in range(MESSAGES)]
    for number, value in enumerate(sent):
        producer.produce(
            topic,
            value,
            key=b"%d" % number,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []
    assert sorted(read_with_confluent(broker_address, topic, 4, MESSAGES)) == sorted(sent)  # type: ignore[type-var]
    by_partition = read_with_kafka_python(broker_address, topic, 4, MESSAGES)
    assert sorted(value for values in by_partition.values() for value in values) == sorted(sent)  # type: ignore[type-var]


def fill(address: str, topic: str, partitions: int, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0


class GroupMember(threading.Thread):
    """A consumer in a group; records what it reads until it is stopped."""

    def __init__(self, client: str, address: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[int, int]] = []
        self.assigned: set[int] = set()
        self._client, self._address, self._group, self._topic = client, address, group, topic
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        (self._run_kafka_python if self._client == "kafka-python" else self._run_confluent)()

    def _run_kafka_python(self) -> None:
        consumer = KafkaConsumer(
            self._topic, bootstrap_servers=self._address, group_id=self._group, auto_offset_reset="earliest"
        )
        # If kafka-python 3.0.12 learns of the partitions after it joined, it can miss its assignment: it ignores a
        # second rejoin that takes longer than a poll.
        consumer.partitions_for_topic(self._topic)
        while not self._stopping.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                self.seen += [(record.partition, record.offset) for record in records]
            self.assigned = {each.partition for each in consumer.assignment()}
        consumer.commit()
        consumer.close()

    def _run_confluent(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._address, "group.id": self._group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([self._topic])
        while not self._stopping.is_set():
            batch = consumer.consume(500, 0.1)
            self.seen += [(message.partition(), message.offset()) for message in batch if not message.error()]
            self.assigned = {each.partition for each in consumer.assignment()}
        consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_a_group_shares_partitions_rebalances_and_goes_on_from_its_commits(broker_address: str, client: str) -> None:
    topic, group = unique("shared"), unique("group")
    fill(broker_address, topic, 6, MESSAGES)
    members = [GroupMember(client, broker_address, group, topic)]
    wait_until(lambda: members[0].assigned == set(range(6)), "one member reads all partitions")
    members += [GroupMember(client, broker_address, group, topic) for _ in range(2)]
    wait_until(lambda: [len(member.assigned) for member in members] == [2, 2, 2], "three members share the partitions")
    wait_until(
        lambda: len({topic_partition for member in members for topic_partition in member.seen}) == MESSAGES,
        "all messages are read",
    )
    members.pop().stop()
    wait_until(lambda: sum(len(member.assigned) for member in members) == 6, "the remaining two take over")
    for member in members:
        member.stop()
    admin = KafkaAdminClient(bootstrap_servers=broker_address)
    committed = admin.list_group_offsets([group])[group]
    assert sum(each.offset for each in committed.values()) == MESSAGES
    producer = KafkaProducer(bootstrap_servers=broker_address)
    topic_partitions = [producer.send(topic, b"later", partition=index).get(TIMEOUT_S) for index in range(6)]
    producer.close()
    rejoined = GroupMember(client, broker_address, group, topic)
    wait_until(lambda: len(rejoined.seen) >= 6, "the messages after the commit arrive")
    rejoined.stop()
    assert sorted(rejoined.seen) == sorted(
        (topic_partition.partition, topic_partition.offset) for topic_partition in topic_partitions
    )
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    admin.close()


def test_offsets_by_time(keeping_broker_address: str) -> None:
    topic = unique("timed")
    producer = KafkaProducer(bootstrap_servers=keeping_broker_address, linger_ms=50)
    for number in range(100):
        producer.send(topic, b"v", partition=0, timestamp_ms=1_700_000_000_000 + number * 1000)
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=keeping_broker_address)
    topic_partition = TopicPartition(topic, 0)
    found = consumer.offsets_for_times({topic_partition: 1_700_000_041_500})[topic_partition]
    with KafkaCluster(keeping_broker_address) as cluster:
        leader_epoch = cluster.metadata([topic]).topics[topic].partitions[0].leader_epoch
    assert (found.offset, found.timestamp, found.leader_epoch) == (42, 1_700_000_042_000, leader_epoch)
    assert consumer.offsets_for_times({topic_partition: 1_700_000_100_000})[topic_partition] is None
    assert (
        consumer.beginning_offsets([topic_partition])[topic_partition],
        consumer.end_offsets([topic_partition])[topic_partition],
    ) == (0, 100)
    consumer.close()


def test_long_poll_returns_new_messages(broker_address: str) -> None:
    topic = unique("waiting")
    fill(broker_address, topic, 1, 0)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker_address, "group.id": unique("g")})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, b"now")
    producer.flush(TIMEOUT_S)
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and message.value() == b"now"
    consumer.close()


def test_topics_are_administered(broker_address: str) -> None:
    topic = unique("administered")
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, 2, config={"retention.ms": "60000"})])[topic].result(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.create_topics([NewTopic(topic, 2)])[topic].result(TIMEOUT_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    for bad in ("a b", "x" * 250, ".."):
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            admin.create_topics([NewTopic(bad, 1)])[bad].result(TIMEOUT_S)
        assert refused.value.args[0].code() == 17
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.create_topics([NewTopic("odd", 1, config={"cleanup.policy": "forget"})])["odd"].result(TIMEOUT_S)
    assert refused.value.args[0].code() == 40
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert configs["retention.ms"].value == "60000"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    assert len(admin.list_topics(topic).topics[topic].partitions) == 5
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker_address]
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics().topics


def test_recreated_topic_is_empty_and_has_a_new_id(broker_address: str) -> None:
    topic = unique("reborn")
    admin = AdminClient({"bootstrap.servers": broker_address})
    ids = []
    for _ in range(2):
        fill(broker_address, topic, 1, 10)
        described = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(TIMEOUT_S)
        ids.append(str(described.topic_id))
        assert len(read_with_confluent(broker_address, topic, 1, 10)) == 10
        commit(broker_address, "reborn-group", topic, 7)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    fill(broker_address, topic, 1, 0)
    assert ids[0] != ids[1]
    assert committed_offset(broker_address, "reborn-group", topic) is None


def commit(address: str, group: str, topic: str, offset: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    topic_partition = TopicPartition(topic, 0)
    consumer.assign([topic_partition])
    consumer.commit({topic_partition: OffsetAndMetadata(offset, "why", 0)})
    consumer.close()


def committed_offset(address: str, group: str, topic: str) -> int | None:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    found = consumer.committed(TopicPartition(topic, 0))
    consumer.close()
    return int(found) if found is not None else None


def test_groups_are_deleted_when_empty(broker_address: str) -> None:
    topic, group = unique("t"), unique("group")
    fill(broker_address, topic, 1, 10)
    commit(broker_address, group, topic, 5)
    assert committed_offset(broker_address, group, topic) == 5
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert committed_offset(broker_address, group, topic) is None
    with pytest.raises(confluent_kafka.KafkaException):
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


def test_too_large_message_is_refused_and_the_next_one_stored(broker_address: str) -> None:
    topic = unique("large")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "message.max.bytes": 10_000_000})
    codes: list[int] = []
    for size in (2_000_000, 10):
        producer.produce(topic, b"x" * size, partition=0, on_delivery=lambda e, _: codes.append(e.code() if e else 0))
        producer.flush(TIMEOUT_S)
    assert codes == [10, 0]


def test_deleted_records_are_not_readable(broker_address: str) -> None:
    topic = unique("trimmed")
    fill(broker_address, topic, 1, 100)
    admin = AdminClient({"bootstrap.servers": broker_address})
    topic_partition = confluent_kafka.TopicPartition(topic, 0, 40)
    deleted = admin.delete_records([topic_partition])
    assert next(iter(deleted.values())).result(TIMEOUT_S).low_watermark == 40
    consumer = KafkaConsumer(bootstrap_servers=broker_address)
    assert consumer.beginning_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 40}
    consumer.close()


@pytest.fixture
def raw(broker_address: str) -> Iterator[socket.socket]:
    host, port = broker_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        yield connection


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 0, 9, 1, -1),
        struct.pack(">ihhihi", 14, 3, 0, 1, -1, 2_000_000_000),
    ],
    ids=["http", "negative", "huge", "unknown-api", "no-body", "endless-array"],
)
def test_garbage_closes_only_its_own_connection(broker_address: str, raw: socket.socket, garbage: bytes) -> None:
    topic = unique("calm")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, b"before")
    assert producer.flush(TIMEOUT_S) == 0
    raw.sendall(garbage)
    assert raw.recv(100) == b""
    producer.produce(topic, b"after")
    assert producer.flush(TIMEOUT_S) == 0


def test_unsupported_apiversions_gets_version_0_response(raw: socket.socket) -> None:
    raw.sendall(struct.pack(">ihhih", 10, 18, 99, 5, -1))
    response = raw.recv(1000)
    assert struct.unpack(">iihihhh", response) == (len(response) - 4, 5, 35, 1, 18, 0, 4)


def test_messages_of_old_formats_are_refused(raw: socket.socket) -> None:
    name = b"old"
    message_set = struct.pack(">qi", 0, 14) + bytes(14)
    body = (
        struct.pack(">hii", 1, 1000, 1)
        + struct.pack(">h", len(name))
        + name
        + struct.pack(">iii", 1, 0, len(message_set))
        + message_set
    )
    raw.sendall(struct.pack(">ihhih", 10 + len(body), 0, 2, 6, -1) + body)
    response = raw.recv(1000)
    topics, length = struct.unpack_from(">ih", response, 8)
    assert (topics, response[14 : 14 + length]) == (1, name)
    assert struct.unpack_from(">iih", response, 14 + length) == (1, 0, 35)


def test_confluent_kafka_over_tls_at_the_advertised_address(tmp_path: Path, start_service: Any) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.certificate("broker")
    shown, shown_key = authority.certificate("client")
    settings = {
        "TLS_CERTIFICATE": str(certificate),
        "TLS_KEY": str(key),
        "TLS_CLIENT_CA": str(authority.ca_file),
        "ADVERTISED_HOST": "localhost",
    }
    service = start_service(
        *("headrace", "broker", "serve", "--data-dir", str(tmp_path / "data"), "--broker-listen", "127.0.0.1:0"),
        environment={f"HEADRACE__BROKER__{name}": value for name, value in settings.items()},
    )
    client = {
        "bootstrap.servers": service.addresses["broker"],
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.ca_file),
        "ssl.certificate.location": str(shown),
        "ssl.key.location": str(shown_key),
        "broker.address.family": "v4",
    }
    producer = confluent_kafka.Producer({**client, "enable.idempotence": True})
    for number in range(20_000):
        producer.produce("t", b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(seen) < 20_000:
        assert time.monotonic() < deadline
        seen += [int(message.value()) for message in consumer.consume(5000, 0.5) if not message.error()]
    consumer.close()
    assert seen == list(range(20_000))
    assert producer.list_topics(timeout=60).brokers[1].host == "localhost"


def test_clients_see_log_append_time(broker_address: str) -> None:
    topic = unique("append-time")
    admin = AdminClient({"bootstrap.servers": broker_address})
    requested = NewTopic(topic, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([requested])[topic].result(TIMEOUT_S)
    timestamps: list[tuple[int, int]] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "compression.type": "lz4"})
    before_ms = int(time.time() * 1000)
    producer.produce(
        topic, b"x", timestamp=1000, on_delivery=lambda error, message: timestamps.append(message.timestamp())
    )
    assert producer.flush(TIMEOUT_S) == 0
    ((kind, appended_ms),) = timestamps
    assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= appended_ms <= int(time.time() * 1000)
    consumer = KafkaConsumer(bootstrap_servers=broker_address, enable_auto_commit=False)
    topic_partition = TopicPartition(topic, 0)
    consumer.assign([topic_partition])
    consumer.seek_to_beginning()
    (record,) = consumer.poll(timeout_ms=TIMEOUT_S * 1000)[topic_partition]
    assert (record.timestamp, record.timestamp_type) == (appended_ms, 1)
    assert consumer.offsets_for_times({topic_partition: appended_ms})[topic_partition].offset == 0
    assert consumer.offsets_for_times({topic_partition: appended_ms + 1})[topic_partition] is None
    consumer.close()


def test_clients_read_past_segments_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_service: Any
) -> None:
    """The compacted log has 18 such segments, each with one batch, between the first record and the last ones."""
    # Otherwise compaction merges them.
    monkeypatch.setattr(compaction, "with_empty_segment", lambda empty, group: group)
    newest = asyncio.run(write_compacted_log(tmp_path / "broker"))
    address = serve(start_service, tmp_path).addresses["broker"]
    events: list[object] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": unique("reader"),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "error_cb": events.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    read: dict[bytes | None, bytes | None] = {}
    for message in iter(partial(consumer.poll, TIMEOUT_S), None):
        if message.error() is not None:
            events.append(message.error().name())
            break
        read[message.key()] = message.value()
    consumer.close()
    assert (read, events) == (newest, ["_PARTITION_EOF"])
    python_consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    python_consumer.assign([TopicPartition("t", 0)])
    python_consumer.seek_to_beginning()
    found = {record.key: record.value for record in itertools.islice(python_consumer, len(newest))}
    python_consumer.close()
    assert found == newest


def test_producer_reports_only_invalid_records_of_a_batch(broker_address: str) -> None:
    """A compacted topic requires keys: 10 of 100 records have none. librdkafka reports the others as
    _INVALID_DIFFERENT_RECORD, so that the application can send them again."""
    topic = unique("keys")
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(TIMEOUT_S)
    reported: dict[int, str] = {}
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "linger.ms": 1000})
    for number in range(100):
        producer.produce(
            topic,
            b"%d" % number,
            key=b"key" if number % 10 else None,
            on_delivery=lambda error, message: reported.update({int(message.value()): error.name()}),
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert reported == {
        number: "_INVALID_DIFFERENT_RECORD" if number % 10 else "INVALID_RECORD" for number in range(100)
    }


async def write_compacted_log(data_dir: Path) -> dict[bytes, bytes]:
    """Writes 20 MB of updates to three keys after one record of another key, and compacts the topic `t`. Returns the
    newest value of each key."""
    node = BrokerNode(BrokerConfig(data_dir))
    try:
        node.changes.create_topic("t", 1, {"cleanup.policy": "compact", "segment.bytes": "1100000"})
        log, newest = node.log("t", 0), {}
        for number in range(20):
            keys = [b"first"] if number == 0 else [b"k%d" % (at % 3) for at in range(10)]
            records = [(key, os.urandom(100_000)) for key in keys]
            newest.update(records)
            append(log, keyed_batch(*records, timestamp_ms=now_ms()))
        log.roll(now_ms())
        node.flusher.mark_dirty(log)
        await node.flusher.flush_dirty()
        await node.maintenance.clean()
        assert sum(segment.size == HEADER_BYTES for segment in log.closed) == 18
        return newest
    finally:
        await node.close()


def test_consumer_of_many_partitions_continues_its_fetch_session(broker_address: str) -> None:
    topic, partitions = unique("many"), 200
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)
    consumer = KafkaConsumer(bootstrap_servers=broker_address, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
    consumer.seek_to_beginning()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker_address})
    seen: list[tuple[int, bytes | None]] = []
    sent = []
    for number in range(60):
        partition = number * 37 % 50
        producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        sent.append((partition, b"%d" % number))
        wait_until(
            lambda: bool(poll_into(consumer, seen)) and len(seen) == len(sent), f"{topic}: {sent[-1]} did not come"
        )
        assert seen[-1] == sent[-1]
    consumer.close()


def poll_into(consumer: KafkaConsumer, seen: list[tuple[int, bytes | None]]) -> int:
    for records in consumer.poll(timeout_ms=1000).values():
        seen += [(record.partition, record.value) for record in records]
    return len(seen)
