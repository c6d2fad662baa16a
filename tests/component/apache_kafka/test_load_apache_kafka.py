"""`headrace load` from a real Apache Kafka: codecs, transactions, deleted records, and lag in Kafka's group tools."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.avro_schema import frame
from headrace.registry.client import RegistryClient
from support.broker.broker_commands import check_topics_and_groups
from support.checkout import ROOT
from support.servers.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
GROUP = "headrace-loader"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(tmp_path_factory.mktemp("kafka") / "broker")
    yield broker
    broker.stop()


class World:
    def __init__(self, kafka: ApacheKafka, registry_url: str, data_dir: Path) -> None:
        self.kafka = kafka
        self.registry_url = registry_url
        self.data_dir = data_dir
        self._schema = fastavro.parse_schema(SCHEMA)
        self.positions: dict[int, tuple[int, int]] = {}

    def send(self, producer: Producer, topic: str, ids: range, *, counted: bool = True) -> None:
        with RegistryClient(self.registry_url) as registry:
            schema_id = registry.register(f"{topic}-value", json.dumps(SCHEMA)).schema_id
        for number in ids:
            body = io.BytesIO()
            fastavro.schemaless_writer(body, self._schema, {"id": number})

            def landed(error: Any, message: Any, number: int = number) -> None:
                assert error is None
                if counted:
                    self.positions[number] = (message.partition(), message.offset())

            producer.produce(topic, frame(schema_id, body.getvalue()), key=str(number), on_delivery=landed)
        assert producer.flush(60) == 0

    def load(self) -> dict[str, Any]:
        flags = ["--data-dir", str(self.data_dir), "--registry-url", self.registry_url]
        flags += ["--bootstrap-servers", self.kafka.address, "--master", "local[2]", "--format", "json"]
        run = subprocess.run(
            [sys.executable, "-m", "headrace", "load", *flags],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        report: dict[str, Any] = json.loads(run.stdout)
        return report

    def rows(self, topic: str) -> list[tuple[int, tuple[int, int]]]:
        found = []
        for path in sorted((self.data_dir / "warehouse" / topic).rglob("*.avro")):
            with path.open("rb") as file:
                for row in fastavro.reader(file):
                    found.append((row["id"], (row["kafka"]["partition"], row["kafka"]["offset"])))
        return sorted(found)


@pytest.fixture(scope="module")
def world(kafka: ApacheKafka, registry_url: str, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(kafka, registry_url, tmp_path_factory.mktemp("load"))


def test_load_reads_every_codec_and_leaves_no_lag(world: World) -> None:
    """Half of the producers are idempotent."""
    world.positions.clear()
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer(
            {
                "bootstrap.servers": world.kafka.address,
                "compression.type": codec,
                "enable.idempotence": number % 2 == 0,
                "linger.ms": 20,
            }
        )
        world.send(producer, "clicks", range(number * 1000, number * 1000 + 1000))
    world.load()
    assert world.rows("clicks") == sorted(world.positions.items())
    consumer = Consumer({"bootstrap.servers": world.kafka.address, "group.id": GROUP})
    partitions = [TopicPartition("clicks", number) for number in range(3)]
    committed = {one.partition: one.offset for one in consumer.committed(partitions, timeout=30)}
    ends = {one.partition: consumer.get_watermark_offsets(one, timeout=30)[1] for one in partitions}
    consumer.close()
    assert committed == ends


def test_only_committed_transactions_become_rows(world: World) -> None:
    world.positions.clear()
    producer = Producer({"bootstrap.servers": world.kafka.address, "transactional.id": "orders-1"})
    producer.init_transactions(60)
    for batch, commits in enumerate((True, False, True, False)):
        producer.begin_transaction()
        world.send(producer, "orders", range(batch * 100, batch * 100 + 100), counted=commits)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    producer.begin_transaction()  # still open during the load, so above the last stable offset
    world.send(producer, "orders", range(1000, 1010), counted=False)
    world.load()
    assert world.rows("orders") == sorted(world.positions.items())
    producer.abort_transaction(60)
    world.load()
    assert world.rows("orders") == sorted(world.positions.items())


def test_records_removed_before_first_load_are_not_reported_missing(world: World) -> None:
    world.positions.clear()
    producer = Producer({"bootstrap.servers": world.kafka.address})
    world.send(producer, "trimmed", range(300))
    admin = AdminClient({"bootstrap.servers": world.kafka.address})
    first = max(offset for partition, offset in world.positions.values() if partition == 0) // 2
    for future in admin.delete_records([TopicPartition("trimmed", 0, first)]).values():
        future.result(30)
    world.load()
    remaining = {
        number: position for number, position in world.positions.items() if position[0] != 0 or position[1] >= first
    }
    assert world.rows("trimmed") == sorted(remaining.items())


def test_topic_and_group_commands_work_with_apache_kafka(
    kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    check_topics_and_groups(kafka.address, capsys)
