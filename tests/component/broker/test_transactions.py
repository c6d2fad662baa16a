"""Transactions of unmodified kafka-python and confluent-kafka against a running and a killed broker."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.record_batch import read_batch, split_batches
from headrace.kafka_wire.topic_partition import TopicPartition as Place
from headrace.loader.read.range_reader import BatchKind, TransactionFilter
from support.broker.broker_restarts import serve, shutdowns, start_again
from support.free_ports import free_port

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
BATCH = 20
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}
WITHOUT_RECOVERY = {**QUIET, "metadata.recovery.strategy": "none"}
"""From version 2.10 on, librdkafka can wait forever in send_offsets_to_transaction after its only broker was down, with
Apache Kafka too: it requests the group's coordinator from before it bootstrapped again (its issue 5511)."""


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def create(address: str, **topics: int) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    for future in admin.create_topics([NewTopic(name, count) for name, count in topics.items()]).values():
        future.result(TIMEOUT_S)


def read_with_confluent(address: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """Returns all values of partition 0 up to the end of this isolation level."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": unique("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is not None and message.error():
            consumer.close()
            return values
        if message is not None:
            values.append(message.value())


def read_with_kafka_python(address: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, isolation_level=isolation)
    topic_partition = TopicPartition(topic, 0)
    consumer.assign([topic_partition])
    consumer.seek_to_beginning()
    end = consumer.end_offsets([topic_partition])[topic_partition]
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position(topic_partition) < end:
        assert time.monotonic() < deadline
        values += [record.value for records in consumer.poll(timeout_ms=200).values() for record in records]
    consumer.close()
    return values


def read_as_the_loader(address: str, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    with KafkaCluster(address) as cluster:
        end = cluster.offsets([Place(topic, 0)], "latest")[Place(topic, 0)]
        while offset < end:
            fetched = cluster.fetch(Place(topic, 0), offset, 1 << 20)
            reader = TransactionFilter(fetched.aborted)
            for frame in split_batches(fetched.records, topic):
                read = read_batch(frame, topic, 1 << 24)
                if reader.kind(read) is BatchKind.DATA:
                    values += [value for at, _, _, value, _ in read.records if at >= offset]
                offset = read.next_offset
    return values


READERS = [read_with_confluent, read_with_kafka_python, read_as_the_loader]


def producer_of(kind: str, address: str, transactional_id: str) -> Any:
    if kind == "kafka-python":
        producer: Any = KafkaProducer(bootstrap_servers=address, transactional_id=transactional_id)
        producer.init_transactions()
        return producer
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": transactional_id, **QUIET})
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: Any, topic: str, value: bytes) -> None:
    if isinstance(producer, KafkaProducer):
        producer.send(topic, value, partition=0)
    else:
        producer.produce(topic, value, partition=0)


@pytest.mark.parametrize("kind", ["kafka-python", "confluent"])
def test_only_committed_records_are_read(broker_address: str, kind: str) -> None:
    topic = unique(f"txn-{kind}")
    create(broker_address, **{topic: 2})
    producer = producer_of(kind, broker_address, unique("id"))
    for number in range(12):
        producer.begin_transaction()
        for part in range(50):
            send(producer, topic, b"%d-%d" % (number, part))
        producer.flush(TIMEOUT_S)
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = [b"%d-%d" % (number, part) for number in range(12) if number % 3 != 1 for part in range(50)]
    for read in READERS:
        assert read(broker_address, topic) == expected, read.__name__
    producer.begin_transaction()
    send(producer, topic, b"open")
    producer.flush(TIMEOUT_S)
    for read in READERS:
        assert read(broker_address, topic) == expected, read.__name__
    for read in (read_with_confluent, read_with_kafka_python):
        uncommitted = read(broker_address, topic, "read_uncommitted")
        assert len(uncommitted) == 601 and uncommitted[-1] == b"open"
    producer.commit_transaction()
    for read in READERS:
        assert read(broker_address, topic) == [*expected, b"open"], read.__name__


@pytest.mark.parametrize("kind", ["kafka-python", "confluent"])
def test_the_second_producer_of_an_id_fences_the_first(broker_address: str, kind: str) -> None:
    topic, name = unique("fenced"), unique("id")
    create(broker_address, **{topic: 1})
    first = producer_of(kind, broker_address, name)
    first.begin_transaction()
    send(first, topic, b"of the first")
    first.flush(TIMEOUT_S)
    second = producer_of(kind, broker_address, name)
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        first.commit_transaction()
    second.begin_transaction()
    send(second, topic, b"of the second")
    second.commit_transaction()
    assert read_with_confluent(broker_address, topic) == [b"of the second"]


def test_read_committed_long_poll_returns_at_the_commit(broker_address: str) -> None:
    topic = unique("waiting")
    create(broker_address, **{topic: 1})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker_address,
            "group.id": unique("g"),
            "fetch.wait.max.ms": 20_000,
            "fetch.min.bytes": 1000,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    producer = producer_of("confluent", broker_address, unique("id"))
    producer.begin_transaction()
    send(producer, topic, b"x" * 5000)
    assert producer.flush(TIMEOUT_S) == 0
    assert consumer.poll(1) is None
    began = time.monotonic()
    producer.commit_transaction(TIMEOUT_S)
    message = consumer.poll(TIMEOUT_S)
    assert message is not None and message.error() is None
    assert time.monotonic() - began < 15, "the wait of 20 s was ended"
    consumer.close()


def test_offsets_of_a_transaction_are_committed_with_it(broker_address: str) -> None:
    topic, group = unique("offsets"), unique("g")
    create(broker_address, **{topic: 1})
    topic_partition = TopicPartition(topic, 0)
    for kind, offset in (("kafka-python", 5), ("confluent", 7)):
        for is_commit in (False, True):
            producer = producer_of(kind, broker_address, unique("id"))
            producer.begin_transaction()
            send(producer, topic, b"x")
            if kind == "kafka-python":
                producer.send_offsets_to_transaction({topic_partition: OffsetAndMetadata(offset, "", -1)}, group)
            else:
                reader = confluent_kafka.Consumer({"bootstrap.servers": broker_address, "group.id": group, **QUIET})
                offsets = [confluent_kafka.TopicPartition(topic, 0, offset)]
                producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT_S)
                reader.close()
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            consumer = KafkaConsumer(bootstrap_servers=broker_address, group_id=group, enable_auto_commit=False)
            before = None if kind == "kafka-python" else 5
            assert consumer.committed(topic_partition) == (offset if is_commit else before)
            consumer.close()


def test_admin_client_sees_open_transactions(broker_address: str) -> None:
    topic, name = unique("described"), unique("id")
    create(broker_address, **{topic: 1})
    producer = producer_of("kafka-python", broker_address, name)
    producer.begin_transaction()
    send(producer, topic, b"x")
    producer.flush(TIMEOUT_S)
    admin = KafkaAdminClient(bootstrap_servers=broker_address)
    assert name in str(admin.list_transactions())
    assert "Ongoing" in str(admin.describe_transactions([name]))
    assert admin.describe_producers([TopicPartition(topic, 0)])
    producer.commit_transaction()
    assert "CompleteCommit" in str(admin.describe_transactions([name]))
    admin.close()


class Copier:
    """Copies partition 0 of `in` to `out` in transactions that also commit the offsets, across restarts of the broker.

    Every seventh transaction is aborted on purpose, failed ones are aborted too, and each is repeated. A producer with
    a fatal error fails the test.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.copied = 0
        self.failures: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Copier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._copy()
        except Exception as error:
            self.failures.append(error)

    def _copy(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._address, "transactional.id": "copier", "linger.ms": 0, **WITHOUT_RECOVERY}
        )
        producer.init_transactions(TIMEOUT_S)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._address, "group.id": "copier", "enable.auto.commit": False, **WITHOUT_RECOVERY}
        )
        consumer.assign([confluent_kafka.TopicPartition("in", 0, 0)])
        number = 0
        while not self._stop.is_set():
            messages = [each for each in consumer.consume(BATCH, 0.1) if not each.error()]
            if not messages:
                continue
            number += 1
            values = [each.value() for each in messages]
            assert messages[0].offset() == self.copied
            if number % 7 == 0:
                self._copied(producer, consumer, values, is_commit=False)
            while not self._copied(producer, consumer, values, is_commit=True):
                pass
            self.copied += len(messages)
        consumer.close()

    def _copied(self, producer: Any, consumer: Any, values: list[bytes], *, is_commit: bool) -> bool:
        """Runs one transaction; returns whether it was committed."""
        producer.begin_transaction()
        try:
            for value in values:
                producer.produce("out", value if is_commit else b"-1", partition=0)
            offsets = [confluent_kafka.TopicPartition("in", 0, self.copied + len(values))]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
            if is_commit:
                self._end(producer.commit_transaction)
                return True
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._end(producer.abort_transaction)
        return False

    def _end(self, end: Any) -> None:
        while True:
            try:
                end(TIMEOUT_S)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def wait_for(self, copied: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.copied < copied:
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, f"{self.copied} of {copied}"
            time.sleep(0.002)


def committed_by_copier(address: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="copier", enable_auto_commit=False)
    found = consumer.committed(TopicPartition("in", 0))
    consumer.close()
    return found or 0


def copy_across_restarts(
    tmp_path: Path, start_service: Any, rounds: list[str], fsync: str, value_bytes: int, batches: int
) -> None:
    """Restarts the broker often during a copy; no record is lost, duplicated, reordered, or visible though aborted."""
    port, settings = free_port(), {"fsync": fsync, "segment_bytes_max": "3000000"}
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port, **settings)
    create(address, **{"in": 1, "out": 1})
    source = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUIET})
    sent = 0
    with Copier(address) as copier:
        for number, end in enumerate(rounds):
            for _ in range(batches * BATCH):
                source.produce("in", (b"%d" % sent).ljust(value_bytes), partition=0)
                sent += 1
            assert source.flush(TIMEOUT_S) == 0
            # Each time at another point, with more records to copy.
            copier.wait_for(sent - batches * BATCH // 2 - number % 7)
            copied = copier.copied
            service = start_again(service, end, start_service, tmp_path, port, **settings)
            assert committed_by_copier(address) >= copied, "offsets went back"
        copier.wait_for(sent)
    assert copier.failures == []
    for read in (read_with_confluent, read_as_the_loader):
        assert [int(value or b"") for value in read(address, "out")] == list(range(sent)), read.__name__
    assert committed_by_copier(address) == sent


@pytest.mark.fault
def test_transactions_copy_exactly_once_across_kills_and_stops(tmp_path: Path, start_service: Any) -> None:
    copy_across_restarts(tmp_path, start_service, shutdowns(3), "interval", 0, 10)


@pytest.mark.soak
@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
@pytest.mark.parametrize(("value_bytes", "batches"), [(0, 10), (150_000, 2)], ids=["small", "large"])
def test_transactions_copy_exactly_once_across_a_hundred_kills_and_stops(
    tmp_path: Path, start_service: Any, fsync: str, value_bytes: int, batches: int
) -> None:
    """Across all parameters: a sixth of the restarts for each fsync mode and size."""
    copy_across_restarts(tmp_path, start_service, shutdowns(17), fsync, value_bytes, batches)
