"""A loader task against the bundled broker, with messages of independent clients: every codec, transactions, faults."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer as CProducer
from kafka import KafkaProducer

from headrace.avro_schema import frame, parse_schema
from headrace.broker.log.repair import padding_batch
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.build import current_build
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, UnitResult, WorkUnit
from support.loader.loader_samples import POLICY
from support.loader.projection_oracle import encode
from support.running_service import StartService

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "timestamp", "type": "long"},
            {"name": "n", "type": "int"},
            {"name": "s", "type": "string"},
        ],
    }
)
PARSED = parse_schema(SCHEMA)
LOAD = fold(EMPTY, 1, PARSED).text
T0 = 1_357_002_000_000


def message(n: int) -> bytes:
    return frame(1, encode(PARSED, {"timestamp": T0 + n * 60_000, "n": n, "s": "text " * 10}))


def load(address: str, staging: Path, *ranges: OffsetRange, **settings: Any) -> UnitResult:
    base = {
        "bootstrap_servers": address,
        "staging": str(staging),
        "file_bytes_target": 1 << 30,
        "fetch_timeout_ms": 5000,
    }
    topics = {r.topic_partition.topic: TopicPlan(r.topic_partition.topic, LOAD, {1: SCHEMA}, POLICY) for r in ranges}
    return run_work_unit(WorkUnit("w", 0, ranges, topics, TaskSettings(**{**base, **settings}), current_build()))


def rows(staging: Path, result: UnitResult) -> list[dict[str, Any]]:
    found = []
    for file in result.files:
        with (staging / file.path).open("rb") as handle:
            found.extend(fastavro.reader(handle))
    return sorted(found, key=lambda row: (row["kafka"]["partition"], row["kafka"]["offset"]))


def complete(cluster: KafkaCluster, topic: str) -> list[OffsetRange]:
    described = cluster.metadata([topic]).topics[topic]
    partitions = [TopicPartition(topic, partition) for partition in sorted(described.partitions)]
    starts, ends = cluster.offsets(partitions, "earliest"), cluster.offsets(partitions, "latest")
    return [
        OffsetRange(tp, starts[tp], ends[tp], described.topic_id, described.partitions[tp.partition].leader_epoch)
        for tp in partitions
    ]


@pytest.fixture
def topic() -> str:
    return f"events-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def cluster(broker_address: str) -> Iterator[KafkaCluster]:
    with KafkaCluster(broker_address, timeout_s=10) as found:
        yield found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_librdkafka_in_every_codec(
    broker_address: str, cluster: KafkaCluster, topic: str, tmp_path: Path, codec: str
) -> None:
    producer = CProducer({"bootstrap.servers": broker_address, "compression.type": codec, "linger.ms": 50})
    for n in range(500):
        producer.produce(topic, message(n), key=b"k%d" % n, headers={"h": b"v"} if n % 7 == 0 else None)
    assert producer.flush(30) == 0
    ranges = complete(cluster, topic)
    assert all(r.topic_id for r in ranges)
    result = load(broker_address, tmp_path, *ranges)
    assert [r.error for r in result.ranges] == [""] * len(ranges)
    assert sorted(row["n"] for row in rows(tmp_path, result)) == list(range(500))
    assert sum(r.counts.records for r in result.ranges) == 500


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_messages_of_kafka_python(
    broker_address: str, cluster: KafkaCluster, topic: str, tmp_path: Path, codec: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker_address, compression_type=codec)
    for n in range(100):
        producer.send(topic, message(n), partition=0)
    producer.flush(30)
    producer.close()
    result = load(broker_address, tmp_path, *complete(cluster, topic))
    assert [row["n"] for row in rows(tmp_path, result)] == list(range(100))


def test_a_range_in_the_middle_with_small_fetches(
    broker_address: str, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker_address, linger_ms=50)
    for n in range(2000):
        producer.send(topic, message(n), partition=0)
    producer.flush(30)
    producer.close()
    first = complete(cluster, topic)[0]
    middle = OffsetRange(first.topic_partition, 333, 1777, first.topic_id, first.leader_epoch)
    result = load(broker_address, tmp_path, middle, fetch_bytes=4096)
    assert [row["kafka"]["offset"] for row in rows(tmp_path, result)] == list(range(333, 1777))
    assert result.ranges[0].counts.records == 1444


def test_range_beyond_the_end_returns_available_messages(
    broker_address: str, cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker_address)
    for n in range(5):
        producer.send(topic, message(n), partition=0)
    producer.flush(30)
    producer.close()
    first = complete(cluster, topic)[0]
    requested_fields = OffsetRange(first.topic_partition, 0, 9, first.topic_id, first.leader_epoch)
    (found,) = load(broker_address, tmp_path, requested_fields, fetch_timeout_ms=600).ranges
    assert found.done.end == 5 and f"topic {topic} partition 0 offset 5" in found.error
    lost = OffsetRange(first.topic_partition, 50, 60, first.topic_id, first.leader_epoch)
    (found,) = load(broker_address, tmp_path, lost, fetch_timeout_ms=600).ranges
    assert found.done.end == 50 and "OFFSET_OUT_OF_RANGE" in found.error


@pytest.mark.servers
def test_a_tail_without_records_is_read_as_a_gap(start_service: StartService, tmp_path: Path) -> None:
    serve = ("headrace", "broker", "serve", "--data-dir", str(tmp_path / "b"), "--broker-listen", "127.0.0.1:0")
    service = start_service(*serve)
    producer = KafkaProducer(bootstrap_servers=service.addresses["broker"])
    for n in range(5):
        producer.send("orders", message(n), partition=0)
    producer.flush(30)
    producer.close()
    assert service.stop() == 0
    # Compaction leaves an empty batch in place of the last one, if none of its records is the newest of its key.
    (segment,) = (tmp_path / "b").rglob("orders-0/00000000000000000000.log")
    with segment.open("ab") as log:
        log.write(padding_batch(8, epoch=1))
    segment.with_name("00000000000000000009.log").touch()
    address = start_service(*serve).addresses["broker"]
    with KafkaCluster(address, timeout_s=10) as cluster:
        ranges = complete(cluster, "orders")
    assert (ranges[0].start, ranges[0].end) == (0, 9)
    (found, *_) = load(address, tmp_path / "s", *ranges).ranges
    assert (found.error, found.done.end, found.counts.records, found.gaps) == ("", 9, 5, ((5, 9),))


def test_recreated_topic_is_refused(broker_address: str, cluster: KafkaCluster, topic: str, tmp_path: Path) -> None:
    producer = KafkaProducer(bootstrap_servers=broker_address)
    producer.send(topic, message(0), partition=0)
    producer.flush(30)
    producer.close()
    first = complete(cluster, topic)[0]
    other = OffsetRange(first.topic_partition, 0, 1, str(uuid.UUID(int=99)), first.leader_epoch)
    (found,) = load(broker_address, tmp_path, other, fetch_timeout_ms=600).ranges
    assert found.done.end == 0 and "TOPIC_ID" in found.error


@pytest.mark.servers
def test_a_broker_that_dies_is_an_error_of_the_range(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(
        "headrace", "broker", "serve", "--data-dir", str(tmp_path / "b"), "--broker-listen", "127.0.0.1:0"
    )
    address = service.addresses["broker"]
    producer = KafkaProducer(bootstrap_servers=address)
    producer.send("orders", message(0), partition=0)
    producer.flush(30)
    producer.close()
    with KafkaCluster(address, timeout_s=2) as cluster:
        ranges = complete(cluster, "orders")
        service.kill()
        (found, *_) = load(address, tmp_path / "s", *ranges, fetch_timeout_ms=1000).ranges
        assert found.done.end == found.done.start
        assert "orders partition 0 offset 0" in found.error and address in found.error
        with pytest.raises(KafkaUnavailable, match=address):
            cluster.metadata()


def test_group_offsets_are_visible_to_lag_tools(broker_address: str, cluster: KafkaCluster, topic: str) -> None:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition as KafkaTopicPartition

    producer = KafkaProducer(bootstrap_servers=broker_address)
    for n in range(3):
        producer.send(topic, message(n), partition=1)
    producer.flush(30)
    producer.close()
    cluster.commit_group_offsets("headrace-test", {TopicPartition(topic, 1): 2})
    consumer = KafkaConsumer(bootstrap_servers=broker_address, group_id="headrace-test", enable_auto_commit=False)
    try:
        assert consumer.committed(KafkaTopicPartition(topic, 1)) == 2
    finally:
        consumer.close()
