"""Options of producer and consumer: partitions, start positions, callbacks, and Kafka client options."""

from __future__ import annotations

import json
import logging
import math
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.partitioner.default import murmur2

from headrace import (
    Consumer,
    DeliveryFailed,
    FlushFailed,
    Producer,
    ProducerClosed,
    Settings,
    SourceUnavailable,
    UndecodableMessage,
)
from headrace.avro_schema import frame
from headrace.clients.delivery import Delivery

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})


@pytest.fixture
def topic(settings: Settings) -> str:
    """A topic with three partitions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 3)])[name].result(60)
    return name


@pytest.fixture
def ticks(settings: Settings, topic: str) -> Iterator[str]:
    """The topic with ten messages per partition; message n has the timestamp of second n."""
    with Producer(settings, app="clock") as producer:
        for n in range(30):
            producer.send(topic, {"n": n}, partition=n % 3, timestamp_ms=T0 + n // 3 * 1000, schema=SCHEMA)
    yield topic


def values(settings: Settings, topic: str, **options: Any) -> list[int]:
    with Consumer(settings, topics=[topic], **options) as consumer:
        return [message.value["n"] for message in consumer]


def test_key_partitioning_agrees_with_other_clients(settings: Settings, topic: str) -> None:
    with Producer(settings, app="clock") as producer:
        sent = {f"key-{n}": producer.send(topic, {"n": n}, key=f"key-{n}", schema=SCHEMA) for n in range(30)}
        landed = {key: delivery.result(30).partition for key, delivery in sent.items()}
    assert landed == {key: (murmur2(key.encode()) & 0x7FFFFFFF) % 3 for key in sent}


def test_send_to_explicit_partition(settings: Settings, topic: str) -> None:
    with Producer(settings, app="clock") as producer:
        sent = [producer.send(topic, {"n": n}, key="k", partition=n % 3, schema=SCHEMA) for n in range(9)]
        assert [each.result(30).partition for each in sent] == [0, 1, 2] * 3
        with pytest.raises(DeliveryFailed, match=r"_UNKNOWN_PARTITION"):
            producer.send(topic, {"n": 9}, partition=9, schema=SCHEMA).result(30)


def test_on_delivery_receives_every_result(settings: Settings, topic: str) -> None:
    deliveries: list[Delivery] = []

    def careless(delivery: Delivery) -> None:
        deliveries.append(delivery)
        raise RuntimeError("of the application")

    with Producer(settings, app="clock", on_delivery=careless) as producer:
        sent = [producer.send(topic, {"n": n}, schema=SCHEMA) for n in range(20)]
        own: list[Delivery] = []
        last = producer.send(topic, {"n": 20}, schema=SCHEMA, on_delivery=own.append)
    assert set(deliveries) == set(sent) and own == [last]
    assert all(each.failure() is None and each.result(0).topic == topic for each in deliveries)


def test_flush_waits_for_on_delivery_in_any_thread(settings: Settings, topic: str) -> None:
    is_called, release = threading.Event(), threading.Event()
    deliveries: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        is_called.set()
        release.wait(30)
        deliveries.append(delivery)

    with Producer(settings, app="clock", on_delivery=slow) as producer:
        sent = producer.send(topic, {"n": 0}, schema=SCHEMA)
        assert is_called.wait(30)  # in the polling thread
        threading.Timer(0.3, release.set).start()
        producer.flush(30)
        assert deliveries == [sent]


def test_on_delivery_may_send_and_flush(settings: Settings, topic: str) -> None:
    deliveries: list[Delivery] = []
    with Producer(settings, app="clock") as producer:

        def send_next(delivery: Delivery) -> None:
            deliveries.append(delivery)
            if len(deliveries) < 5:
                producer.send(topic, {"n": len(deliveries)}, schema=SCHEMA, on_delivery=send_next)
                producer.flush(30)

        producer.send(topic, {"n": 0}, schema=SCHEMA, on_delivery=send_next)
        producer.flush(30)
    assert len(deliveries) == 5
    with Consumer(settings, topics=[topic], until_end=True) as consumer:
        assert sorted(message.value["n"] for message in consumer) == [0, 1, 2, 3, 4]


def test_on_delivery_may_take_lock_held_while_sending(settings: Settings, topic: str) -> None:
    """confluent-kafka calls back in the thread that sends or flushes; a lock held there must not deadlock."""
    lock = threading.RLock()
    deliveries: list[Delivery] = []

    def locked(delivery: Delivery) -> None:
        with lock:
            deliveries.append(delivery)

    with Producer(settings, app="clock", on_delivery=locked) as producer:
        for n in range(3000):
            with lock:
                producer.send(topic, {"n": n}, schema=SCHEMA)
        producer.flush()
    assert len(deliveries) == 3000


def test_on_delivery_may_close_the_producer(settings: Settings, topic: str) -> None:
    """The callback runs in the polling thread, which close() must not wait for."""
    ended, errors, threads = threading.Event(), list[Exception](), list[str]()

    def close(_: Delivery) -> None:
        threads.append(threading.current_thread().name)
        try:
            producer.close()
        except Exception as error:
            errors.append(error)
        ended.set()

    producer = Producer(settings, app="clock")
    producer.send(topic, {"n": 0}, schema=SCHEMA, on_delivery=close)
    assert ended.wait(30)
    assert errors == [] and threads[0] != threading.current_thread().name
    with pytest.raises(ProducerClosed):
        producer.send(topic, {"n": 1}, schema=SCHEMA)


def test_failing_client_callback_does_not_block_deliveries(
    settings: Settings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed, delivered = threading.Event(), threading.Event()

    def fails(_: str) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("of the application")

    options = {"stats_cb": fails, "statistics.interval.ms": 20}
    with Producer(settings, app="clock", options=options) as producer:
        assert failed.wait(30)
        producer.send(topic, {"n": 0}, schema=SCHEMA, on_delivery=lambda delivery: delivered.set())
        assert delivered.wait(30)  # by the polling thread
    assert "stats_cb" in caplog.text


def test_fatal_kafka_client_error_fails_pending_messages(
    settings: Settings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For example with a broker without idempotent producers: librdkafka reports it once, to the next call."""
    ancient = {"api.version.request": False, "broker.version.fallback": "0.8.2"}
    delivery = None
    while delivery is None:  # until the message is handed over before the client has connected and failed
        producer = Producer(settings, app="clock", options=ancient)
        try:
            delivery = producer.send(topic, {"n": 0}, schema=SCHEMA)
        except DeliveryFailed:
            producer.close(30)
    with pytest.raises(FlushFailed) as failed:
        producer.flush(60)
    assert failed.value.failed == {topic: 1}
    assert delivery.failure() is not None
    assert any(record.levelno >= logging.ERROR for record in caplog.records)
    with pytest.raises(DeliveryFailed):
        producer.send(topic, {"n": 1}, schema=SCHEMA)
    with suppress(FlushFailed):
        producer.close(30)


def test_client_options_are_passed_except_reserved_ones(settings: Settings, topic: str) -> None:
    with (
        Producer(settings, app="clock", options={"message.max.bytes": 2000}) as producer,
        pytest.raises(DeliveryFailed, match=r"message\.max\.bytes=2000"),
    ):
        producer.send(topic, "x" * 3000, schema='"string"')
    with pytest.raises(ValueError, match=r"options\['acks'\]"):
        Producer(settings, app="clock", options={"acks": 0})
    with pytest.raises(ValueError, match=r"options\['enable.auto.commit'\]"):
        Consumer(settings, topics=[topic], options={"enable.auto.commit": True})
    for make in (
        lambda: Producer(settings, app="clock", options={"no.such.option": 1}),
        lambda: Consumer(settings, topics=[topic], options={"no.such.option": 1}),
    ):
        with pytest.raises(ValueError, match=r"no\.such\.option"):
            make()


def test_seek_continues_at_other_offset(settings: Settings, ticks: str) -> None:
    with Consumer(settings, topics=[ticks], partitions=[1], until_end=True) as consumer:
        assert [message.offset for message in consumer] == list(range(10))
        consumer.seek(ticks, 1, 7)
        assert [message.offset for message in consumer] == [7, 8, 9]
        consumer.seek(ticks, 1, 0)
        assert next(consumer).offset == 0
        consumer.seek(ticks, 1, 8)
        assert [message.offset for message in consumer] == [8, 9]
        with pytest.raises(SourceUnavailable) as refused:
            consumer.seek(ticks, 2, 0)
        assert (refused.value.topic, refused.value.partition) == (ticks, 2)


def test_group_continues_at_explicitly_committed_offset(settings: Settings, ticks: str) -> None:
    with Consumer(settings, topics=[ticks], group=ticks) as consumer:
        next(consumer)
        for partition in range(3):
            consumer.seek(ticks, partition, 8)
        consumer.commit()
    with Consumer(settings, topics=[ticks], group=ticks) as consumer:
        assert sorted(next(consumer).value["n"] for _ in range(6)) == [24, 25, 26, 27, 28, 29]


def test_paused_partitions_return_nothing_until_resumed(settings: Settings, ticks: str) -> None:
    with Consumer(settings, topics=[ticks]) as consumer:
        first = next(consumer)
        paused = [(ticks, number) for number in range(3) if number != first.partition]
        consumer.pause(paused)
        seen = [first, *(next(consumer) for _ in range(9))]
        with Producer(settings, app="clock") as producer:
            producer.send(ticks, {"n": 30}, partition=first.partition, schema=SCHEMA)
        assert next(consumer).value["n"] == 30
        assert {message.partition for message in seen} == {first.partition}
        consumer.resume(paused)
        seen += (next(consumer) for _ in range(20))
        assert sorted(message.value["n"] for message in seen) == list(range(30))
        for number in range(3):
            offsets = [message.offset for message in seen if message.partition == number]
            assert offsets == list(range(10))


def test_start_at_timestamp(settings: Settings, ticks: str) -> None:
    late = [n for n in range(30) if n // 3 >= 7]
    assert sorted(values(settings, ticks, start_at_ms=T0 + 6_001, until_end=True)) == late
    assert values(settings, ticks, start_at_ms=T0 + 60_000, until_end=True) == []
    group = {"group": ticks, "start_at_ms": T0 + 6_001, "auto_commit": True}
    with Consumer(settings, topics=[ticks], **group) as consumer:
        assert sorted(next(consumer).value["n"] for _ in range(9)) == late
    with Producer(settings, app="clock") as producer:
        producer.send(ticks, {"n": 30}, timestamp_ms=T0, schema=SCHEMA)
    with Consumer(settings, topics=[ticks], **group) as consumer:
        assert next(consumer).value["n"] == 30  # the group's committed offset takes precedence


def test_from_end_returns_only_new_messages(settings: Settings, ticks: str) -> None:
    with Consumer(settings, topics=[ticks], from_end=True) as consumer:
        with Producer(settings, app="clock") as producer:
            producer.send(ticks, {"n": 30}, schema=SCHEMA)
        assert next(consumer).value["n"] == 30


def test_assignment_callbacks_receive_partitions(settings: Settings, ticks: str) -> None:
    calls: list[tuple[str, frozenset[tuple[str, int]]]] = []
    with Consumer(
        settings,
        topics=[ticks],
        group=ticks,
        on_assign=lambda partitions: calls.append(("assigned", partitions)),
        on_revoke=lambda partitions: calls.append(("revoked", partitions)),
    ) as consumer:
        next(consumer)
        own = consumer.assignment()
    assert own == {(ticks, 0), (ticks, 1), (ticks, 2)}
    assert calls == [("assigned", own), ("revoked", own)]


def test_group_instance_id_is_used(settings: Settings, ticks: str) -> None:
    with Consumer(settings, topics=[ticks], group=ticks, member="first") as consumer:
        next(consumer)
        admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
        (group,) = admin.describe_consumer_groups([ticks]).values()
        assert [each.group_instance_id for each in group.result(60).members] == ["first"]


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "roundrobin"])
def test_assignment_strategy_is_configurable(settings: Settings, ticks: str, strategy: str) -> None:
    options = {"partition.assignment.strategy": strategy}
    with Consumer(settings, topics=[ticks], group=ticks, auto_commit=True, options=options) as consumer:
        assert sorted(next(consumer).value["n"] for _ in range(30)) == list(range(30))
        assert len(consumer.assignment()) == 3


def test_reading_continues_after_undecodable_message(settings: Settings, ticks: str) -> None:
    raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    raw.produce(ticks, b"text", b"key", partition=0)
    raw.flush(30)
    with Producer(settings, app="clock") as producer:
        producer.send(ticks, {"n": 30}, partition=0, schema=SCHEMA)
    refused: list[UndecodableMessage] = []
    with Consumer(settings, topics=[ticks], group=ticks, auto_commit=True, on_undecodable=refused.append) as consumer:
        assert sorted(next(consumer).value["n"] for _ in range(31)) == list(range(31))
    (message,) = refused
    assert (message.topic, message.partition, message.offset) == (ticks, 0, 10)
    assert (message.key, message.value) == (b"key", b"text")


def test_reading_continues_after_endlessly_nested_body(settings: Settings, topic: str) -> None:
    schema = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'
    with Producer(settings, app="clock") as producer:
        producer.send(topic, {"next": None}, partition=0, schema=schema)
        producer.flush()
        with Consumer(settings, topics=[topic], until_end=True) as consumer:
            schema_id = next(consumer).schema_id
        assert schema_id is not None
        raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
        raw.produce(topic, frame(schema_id, b"\x02" * 40_000 + b"\0"), partition=0)
        raw.flush(30)
        producer.send(topic, {"next": {"next": None}}, partition=0, schema=schema)
    refused: list[UndecodableMessage] = []
    with Consumer(settings, topics=[topic], group=topic, auto_commit=True, on_undecodable=refused.append) as consumer:
        assert [next(consumer).value for _ in range(2)] == [{"next": None}, {"next": {"next": None}}]
    assert [error.offset for error in refused] == [1]


def test_contradicting_options_are_refused(settings: Settings) -> None:
    for wrong, named in (
        ({"auto_commit": True}, "auto_commit.*group"),
        ({"member": "m"}, "member.*group"),
        ({"group": "g", "until_end": True}, "until_end.*group"),
        ({"from_end": True, "start_at_ms": 0}, "from_end.*start_at_ms|start_at_ms.*from_end"),
        ({"group": "g", "handling_timeout_s": 2}, r"handling_timeout_s.*\b6 s\b"),
    ):
        with pytest.raises(ValueError, match=named):
            Consumer(settings, topics=["t"], **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"delivery_timeout_s.*linger_ms=5\b"):
        Producer(settings, app="clock", delivery_timeout_s=0.05)
    for longer in (math.inf, 2**31 / 1000):
        with pytest.raises(ValueError, match=r"delivery_timeout_s.*\b2147483 s\b"):
            Producer(settings, app="clock", delivery_timeout_s=longer)
