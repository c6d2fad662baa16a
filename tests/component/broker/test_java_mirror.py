"""MirrorMaker 2 from one bundled broker to another: topics, their configuration and the offsets of groups."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from support.running_service import StartService
from support.servers.kafka_programs import WAIT_TIMEOUT_S, JavaProgram, program_jars, properties_file, read_messages

pytestmark = pytest.mark.java

PARTITIONS, RECORDS, MORE = 2, 300, 20
TIMESTAMP_MS = 1_700_000_000_000
Record = tuple[int, int, bytes, bytes, list[tuple[str, bytes]], int]


def send(address: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in numbers:
        value, headers = b"order %d" % number, [("number", b"%d" % number)]
        topic_partition = {"partition": number % PARTITIONS, "timestamp": TIMESTAMP_MS + number}
        producer.produce("orders", value, b"%d" % (number % 7), headers=headers, **topic_partition)
    assert producer.flush(WAIT_TIMEOUT_S) == 0


def read(address: str, topic: str) -> list[Record]:
    """Returns all records by partition and offset: location, key, value, headers and timestamp."""
    return sorted(
        (one.partition(), one.offset(), one.key(), one.value(), one.headers(), one.timestamp()[1])
        for one in read_messages(address, topic, PARTITIONS)
    )


class Cluster:
    """A broker and the requests of this test."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})

    def topics(self) -> dict[str, int]:
        """Returns the number of partitions of each topic."""
        found = self.admin.list_topics(timeout=WAIT_TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def configuration(self, topic: str) -> dict[str, str]:
        (described,) = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return {name: entry.value for name, entry in described.result(WAIT_TIMEOUT_S).items() if not entry.is_default}

    def committed(self, group: str, topic: str) -> list[int]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group})
        topic_partitions = consumer.committed(
            [TopicPartition(topic, index) for index in range(PARTITIONS)], WAIT_TIMEOUT_S
        )
        consumer.close()
        return [topic_partition.offset for topic_partition in topic_partitions]

    def commit(self, group: str, topic: str, offsets: list[int]) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group})
        topic_partitions = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        consumer.commit(offsets=topic_partitions, asynchronous=False)
        consumer.close()


def settings(source: str, target: str) -> dict[str, object]:
    internal = {
        f"{kind}.replication.factor": 1 for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
    }
    stored = {f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")}
    often = {
        f"{setting}.interval.seconds": 1
        for setting in (
            "refresh.topics",
            "refresh.groups",
            "emit.checkpoints",
            "sync.group.offsets",
            "sync.topic.configs",
        )
    }
    return {
        "clusters": "here,there",
        "here.bootstrap.servers": source,
        "there.bootstrap.servers": target,
        "here->there.enabled": "true",
        "here->there.topics": "orders",
        "there->here.enabled": "false",
        "replication.factor": 1,
        "sync.group.offsets.enabled": "true",
        "offset.lag.max": 0,
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 500,
        **internal,
        **stored,
        **often,
    }


def test_a_topic_and_the_offsets_of_its_group_are_mirrored(start_service: StartService, tmp_path: Path) -> None:
    """Includes records that arrive while the mirror runs."""
    brokers = [
        start_service(
            *("headrace", "broker", "serve", "--data-dir", str(tmp_path / name), "--broker-listen", "127.0.0.1:0")
        )
        for name in ("here", "there")
    ]
    source, target = (Cluster(broker.addresses["broker"]) for broker in brokers)
    own = {"retention.ms": "-1", "max.message.bytes": "500000", "cleanup.policy": "delete"}
    source.admin.create_topics([NewTopic("orders", PARTITIONS, config=own)])["orders"].result(WAIT_TIMEOUT_S)
    send(source.address, range(RECORDS))
    # behind records that the mirror copies: it may not translate other offsets
    at = [RECORDS // PARTITIONS] * PARTITIONS
    source.commit("shop", "orders", at)
    run = (
        "org.apache.kafka.connect.mirror.MirrorMaker",
        properties_file(tmp_path / "mm2.properties", settings(source.address, target.address)),
    )

    with JavaProgram(tmp_path / "mirror.log", program_jars(), *run) as mirror:
        mirror.wait_until(lambda: target.topics().get("here.orders") == PARTITIONS, "the topic was created")
        mirror.wait_until(lambda: len(read(target.address, "here.orders")) >= RECORDS, "the records were copied")
        assert read(target.address, "here.orders") == read(source.address, "orders")
        mirror.wait_until(lambda: target.committed("shop", "here.orders") == at, "the group's offsets were copied")
        send(source.address, range(RECORDS, RECORDS + MORE))
        mirror.wait_until(
            lambda: len(read(target.address, "here.orders")) >= RECORDS + MORE, "more records were copied"
        )
        assert read(target.address, "here.orders") == read(source.address, "orders")
        later = [(RECORDS + MORE) // PARTITIONS] * PARTITIONS
        source.commit("shop", "orders", later)
        mirror.wait_until(
            lambda: target.committed("shop", "here.orders") == later, "the group's later offsets were copied"
        )
    assert own.items() <= target.configuration("here.orders").items()
    assert target.configuration("mm2-configs.here.internal")["cleanup.policy"] == "compact"
