"""`BatchProducer` against the bundled broker and Apache Kafka: epochs, fences, transactions and refusals."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka_wire.batch_producer import BatchProducer, ProducerFenced, SequenceLost, produce_as
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import ErrorResponse
from headrace.kafka_wire.record_batch import (
    CONTROL,
    NO_HEADERS,
    TRANSACTIONAL,
    batch_of_records,
    encode_headers,
    read_batch,
    split_batches,
)
from headrace.kafka_wire.topic_partition import TopicPartition

pytestmark = pytest.mark.servers

LZ4, ZSTD = 3, 4
MESSAGE_TOO_LARGE, INVALID_RECORD = 10, 87


@pytest.fixture
def clusters(each_broker: str) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with KafkaCluster(each_broker) as one, KafkaCluster(each_broker) as other:
        yield one, other


def partitions_of(address: str, count: int = 2, **config: str) -> list[TopicPartition]:
    name = f"batches-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, count, 1, config=config)])[name].result(30)
    return [TopicPartition(name, number) for number in range(count)]


def batch(*values: bytes, codec: int = 0) -> bytes:
    return batch_of_records([(None, value, NO_HEADERS) for value in values], now_ms(), codec)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def values_in(cluster: KafkaCluster, partition: TopicPartition) -> list[bytes | None]:
    """The values of a partition outside of transactions."""
    end = cluster.lookup_offsets([partition], "latest", read_committed=False).offsets[partition]
    found, position = [], 0
    while position < end:
        for frame in split_batches(cluster.fetch(partition, position, 1 << 20, read_committed=False).records, "test"):
            decoded = read_batch(frame, "test", 1 << 20)
            position = decoded.next_offset
            if not decoded.attributes & (TRANSACTIONAL | CONTROL):
                found += [record[3] for record in decoded.records]
    return found


def test_fence_rejects_batches_of_the_earlier_owner_in_its_partitions_only(
    each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    fenced, other = partitions_of(each_broker)
    owner, successor = (BatchProducer(cluster, f"lane-{fenced.topic}") for cluster in clusters)
    first = owner.start()
    assert owner.produce({fenced: batch(b"1"), other: batch(b"1", b"2")}) == {fenced: 0, other: 0}
    second = successor.start()
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    assert owner.produce({fenced: batch(b"2")}) == {fenced: 1}, "a new epoch alone fences nothing"
    assert successor.fence([fenced], now_ms()) == {fenced: 2}
    with pytest.raises(ProducerFenced):
        owner.produce({fenced: batch(b"late")})
    assert owner.produce({other: batch(b"3")}) == {other: 2}
    with pytest.raises(ProducerFenced):
        owner.begin([other])
    found = successor.produce({fenced: batch(b"3", codec=LZ4), other: batch(b"4", codec=ZSTD)})
    assert all(isinstance(offset, int) for offset in found.values())
    assert values_in(clusters[1], fenced) == [b"1", b"2", b"3"]
    assert values_in(clusters[1], other) == [b"1", b"2", b"3", b"4"]


def test_fences_follow_each_other(each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    (partition,) = partitions_of(each_broker, 1)
    producer = BatchProducer(clusters[0], f"lane-{partition.topic}")
    for number in range(3):
        producer.start()
        producer.fence([partition], now_ms())
        assert isinstance(producer.produce({partition: batch(b"%d" % number)})[partition], int)
    assert values_in(clusters[0], partition) == [b"0", b"1", b"2"]


def test_transactions_commit_and_abort(each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    partitions = partitions_of(each_broker)
    producer = BatchProducer(clusters[0], f"mirror-{partitions[0].topic}")
    producer.start()
    for is_commit in (True, False, True):
        producer.begin(partitions)
        producer.produce(dict.fromkeys(partitions, batch(b"in a transaction")))
        producer.end(is_commit=is_commit)
    deadline = time.monotonic() + 30
    while (found := clusters[0].fetch(partitions[0], 0, 1 << 20)).last_stable_offset < 6:
        assert time.monotonic() < deadline, "Apache Kafka writes the last marker after its response"
        time.sleep(0.05)
    decoded = [read_batch(frame, "test", 1 << 20) for frame in split_batches(found.records, "test")]
    assert [one.base_offset for one in decoded if not one.attributes & CONTROL] == [0, 2, 4]
    assert [one.first_offset for one in found.aborted] == [2]


def test_refused_batch_is_not_stored_and_leaves_the_sequence(
    each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    (small,) = partitions_of(each_broker, 1, **{"max.message.bytes": "2000"})
    (compacted,) = partitions_of(each_broker, 1, **{"cleanup.policy": "compact"})
    producer = BatchProducer(clusters[0], f"lane-{small.topic}")
    producer.start()
    found = producer.produce({small: batch(b"x" * 3000), compacted: batch(b"without a key")})
    codes = {one.topic: error.code for one, error in found.items() if isinstance(error, ErrorResponse)}
    assert codes == {small.topic: MESSAGE_TOO_LARGE, compacted.topic: INVALID_RECORD}
    assert producer.produce({small: batch(b"1")}) == {small: 0}
    assert producer.produce({small: batch(b"2")}) == {small: 1}


def test_repeated_sequence_is_no_second_record_and_a_gap_is_an_error(
    each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    (partition,) = partitions_of(each_broker, 1)
    producer = BatchProducer(clusters[0], f"lane-{partition.topic}")
    identity = producer.start()
    producer.produce({partition: batch(b"1")})
    produce_as(clusters[0], identity, {partition: (batch(b"1"), 0)}, None, 10_000)
    assert values_in(clusters[0], partition) == [b"1"]
    with pytest.raises(SequenceLost):
        produce_as(clusters[0], identity, {partition: (batch(b"3"), 7)}, None, 10_000)


def test_records_have_their_keys_values_headers_and_time(
    each_broker: str, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    (partition,) = partitions_of(each_broker, 1)
    headers = encode_headers([("name", b"value"), ("long", b"x" * 300)])
    records = [(b"key", b"value", headers), (None, None, NO_HEADERS), (b"", b"y" * 100_000, NO_HEADERS)]
    time_ms = now_ms()
    producer = BatchProducer(clusters[0], f"lane-{partition.topic}")
    producer.start()
    producer.produce({partition: batch_of_records(records, time_ms, ZSTD)})
    (frame,) = split_batches(clusters[0].fetch(partition, 0, 1 << 20).records, "test")
    decoded = read_batch(frame, "test", 1 << 20)
    assert [(key, value, raw) for _, _, key, value, raw in decoded.records] == records
    assert {record[1] for record in decoded.records} == {time_ms}
