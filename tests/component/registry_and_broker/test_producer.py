"""Producer and consumer against a real registry and broker."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Consumer, Producer, RegistryClient
from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.producer_counter import ProducerCounter, RowSelection
from headrace.audit.row import AuditOutcome, Tier
from headrace.audit.spool import SPOOL_DIRECTORY
from headrace.avro_schema import parse_schema
from headrace.clients import topic_check
from headrace.clients.errors import (
    BrokerUnavailable,
    DeliveryFailed,
    FlushFailed,
    KeyRefused,
    ProducerClosed,
    ProducerError,
    SchemaRefused,
    SchemaUnavailable,
    SourceUnavailable,
    TopicRefused,
    UndecodableMessage,
    ValueRefused,
)
from headrace.settings import KafkaSettings, LoaderSettings, RegistrySettings, Settings, TopicTable
from support.broker.audit_topic import audit_rows
from support.checkout import ROOT

T0 = 1_356_998_400_000


def order_schema(*more: dict[str, Any]) -> str:
    fields = [{"name": "id", "type": "int"}, {"name": "timestamp", "type": "long"}, *more]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


ORDER = order_schema()


def read(settings: Settings, topic: str, **options: Any) -> list[Any]:
    with Consumer(settings, topics=[topic], until_end=True, **options) as consumer:
        return list(consumer)


def test_send_returns_partition_and_offset(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:
        deliveries = [
            producer.send("orders", {"id": n, "timestamp": T0 + n}, key=f"k{n % 7}", schema=ORDER) for n in range(500)
        ]
        producer.flush()
        landed = [delivery.result(0) for delivery in deliveries]
    assert len({(delivered.partition, delivered.offset) for delivered in landed}) == 500
    found = {(m.partition, m.offset): m for m in read(settings, "orders")}
    for n, delivered in enumerate(landed):
        message = found[delivered.partition, delivered.offset]
        assert message.value == {"id": n, "timestamp": T0 + n}
        assert message.key == f"k{n % 7}".encode()
        assert message.timestamp_ms == delivered.timestamp_ms
        assert message.timestamp_ms > T0 * 1.1  # wall clock time, not event time


def test_key_headers_and_timestamp_round_trip(settings: Settings) -> None:
    schema = parse_schema('"string"')
    with Producer(settings, app="shop") as producer:
        producer.send("plain", "häuser", schema=schema, headers=[("a", b"1"), ("b", "ü")], timestamp_ms=T0)
        producer.send("plain", "x", key=b"\xff\0", schema=schema)
        producer.send("plain", None, key="gone")
    messages = sorted(read(settings, "plain"), key=lambda m: str(m.key))
    assert {(m.key, m.value, m.headers) for m in messages} == {
        (None, "häuser", (("a", b"1"), ("b", "ü".encode()))),
        (b"\xff\0", "x", ()),
        (b"gone", None, ()),
    }
    assert [m.timestamp_ms for m in messages if m.key is None] == [T0]


def test_producer_uses_latest_schema_version_and_updates(settings: Settings) -> None:
    registry = RegistryClient(settings.registry.url)
    with Producer(settings, app="shop") as producer:
        with pytest.raises(SchemaUnavailable) as unavailable:
            producer.send("followed", {"id": 1, "timestamp": T0})
        assert unavailable.value.subject == "followed-value"
        first = registry.register("followed-value", ORDER)
        producer.send("followed", {"id": 1, "timestamp": T0})
        second = registry.register("followed-value", order_schema({"name": "n", "type": "string", "default": "?"}))
        # A value that only fits the newer version makes the producer fetch the latest version at once.
        producer.send("followed", {"id": 2, "timestamp": T0, "n": "new"})
    assert [m.schema_id for m in sorted(read(settings, "followed"), key=lambda m: m.value["id"])] == [
        first.schema_id,
        second.schema_id,
    ]
    newest = read(settings, "followed", reader_schema=order_schema({"name": "n", "type": "string", "default": "?"}))
    assert sorted(m.value["n"] for m in newest) == ["?", "new"]


def test_refusals_name_topic_subject_and_field(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:
        producer.send("refused", {"id": 1, "timestamp": T0}, schema=ORDER).result(30)
        with pytest.raises(ValueRefused, match=r"int.*float 1\.5") as caught:
            producer.send("refused", {"id": 1.5, "timestamp": T0}, schema=ORDER)
        assert (caught.value.topic, caught.value.subject, caught.value.field) == ("refused", "refused-value", "id")
        for value, field in (({"id": 1}, "timestamp"), ({"id": 1, "timestamp": T0, "extra": 1}, "extra")):
            with pytest.raises(ValueRefused) as caught:
                producer.send("refused", value, schema=ORDER)
            assert caught.value.field == field
        with pytest.raises(SchemaRefused, match=r"schema:1:\d+"):
            producer.send("refused", {}, schema='{"type": "record"')
        with pytest.raises(SchemaRefused) as incompatible:
            producer.send("refused", {}, schema=order_schema({"name": "must", "type": "string"}))
        assert incompatible.value.subject == "refused-value"
        with pytest.raises(KeyRefused, match="dict"):
            producer.send("refused", {"id": 1, "timestamp": T0}, key={}, schema=ORDER)  # type: ignore[arg-type]
        with pytest.raises(KeyRefused) as no_key:
            producer.send("refused", None)
        assert no_key.value.topic == "refused"
        with pytest.raises(ProducerError, match="headers"):
            producer.send("refused", {"id": 1, "timestamp": T0}, headers=["x"], schema=ORDER)  # type: ignore[list-item]
        with pytest.raises(ProducerError, match="timestamp_ms=0"):
            producer.send("refused", {"id": 1, "timestamp": T0}, schema=ORDER, timestamp_ms=0)
        with pytest.raises(DeliveryFailed, match=r"message\.max\.bytes"):
            producer.send("refused", "x" * 2_000_000, schema='["string", ' + ORDER + "]")
    with pytest.raises(ProducerClosed):
        producer.send("refused", {"id": 1, "timestamp": T0}, schema=ORDER)
    rows = audit_rows(settings, "refused")
    assert (sum(row.sent for row in rows), sum(row.count for row in rows)) == (1, 1)


def test_missing_broker_and_registry_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.producer.BOOTSTRAP_TIMEOUT_S", 0.5)
    monkeypatch.setattr("headrace.clients.consumer.BOOTSTRAP_TIMEOUT_S", 0.5)
    monkeypatch.setattr("headrace.registry.client.transport.PAUSE_FIRST_S", 0.001)
    unreachable = dataclasses.replace(settings, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        Producer(unreachable, app="shop")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1"):
        Consumer(unreachable, topics=["t"])
    lost = dataclasses.replace(settings, registry=RegistrySettings(url="http://127.0.0.1:1"))
    with Producer(lost, app="shop") as producer, pytest.raises(SchemaUnavailable, match="unreachable-value"):
        producer.send("unreachable", {"id": 1, "timestamp": T0}, schema=ORDER)


def test_counts_are_published_under_the_message_time(settings: Settings) -> None:
    schema = json.dumps(
        {
            "type": "record",
            "name": "Event",
            "fields": [
                {
                    "name": "header",
                    "type": {
                        "type": "record",
                        "name": "Header",
                        "fields": [{"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
                    },
                },
            ],
        }
    )
    moment = datetime.datetime(2013, 1, 1, 0, 10, tzinfo=datetime.UTC)
    with Producer(settings, app="shop") as producer:
        for n in range(10):
            producer.send("counted", {"header": {"time": T0 + n * 60_000}}, key=str(n), schema=schema)
        producer.send("counted", {"header": {"time": moment}}, schema=schema)
    rows = audit_rows(settings, "counted")
    values = [message.value for message in read(settings, "counted")]
    assert len(values) == 11
    assert sorted((row.window_start_ms, row.sent, row.count) for row in rows) == [(T0, 10, 10), (T0 + 600_000, 1, 1)]
    assert {(row.tier, row.outcome, row.application, row.crashed) for row in rows} == {
        (Tier.PRODUCER, AuditOutcome.ACKNOWLEDGED, "shop", False)
    }
    assert len({row.instance for row in rows}) == 1
    assert list((settings.data_dir / SPOOL_DIRECTORY).iterdir()) == []


def test_counts_and_fingerprints_of_producer_and_consumer_agree(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:
        for n in range(300):
            producer.send("agreed", {"id": n, "timestamp": T0 + n * 10_000}, key=f"{n}", schema=ORDER)
            if n == 150:
                producer.flush()
    assert len(read(settings, "agreed", app="reader")) == 300
    assert len(read(settings, "agreed", app="reader")) == 300  # reading the same offsets again adds no rows
    sums: dict[Tier, dict[int, list[int]]] = {}
    for row in audit_rows(settings, "agreed"):
        total = sums.setdefault(row.tier, {}).setdefault(row.window_start_ms, [0, 0, 0])
        total[0] += row.count
        total[1] += row.bytes
        total[2] = (total[2] + row.fingerprint) & FINGERPRINT_MASK
    assert sums[Tier.PRODUCER] == sums[Tier.CONSUMER]
    assert len(sums[Tier.PRODUCER]) == 5


def test_time_field_setting_applies_to_producer_and_consumer_counts(settings: Settings) -> None:
    table = TopicTable("chos.n", {"time_fields": ("id",)})
    settings = dataclasses.replace(settings, loader=LoaderSettings(topic=(table,)))
    schema = ORDER.replace('"int"', '"long"')
    with Producer(settings, app="shop") as producer:
        producer.send("chosen", {"id": T0 + 3_600_000, "timestamp": T0}, schema=schema)
    assert len(read(settings, "chosen", app="reader")) == 1
    rows = audit_rows(settings, "chosen")
    assert {row.tier for row in rows} == {Tier.PRODUCER, Tier.CONSUMER}
    assert {row.window_start_ms for row in rows} == {T0 + 3_600_000}


def test_subject_setting_applies_to_producer_and_consumer(settings: Settings) -> None:
    tables = (TopicTable("bought|returned", {"subject": "shop.Order"}), TopicTable(".*", {"subject": "of-{topic}"}))
    settings = dataclasses.replace(settings, loader=LoaderSettings(topic=tables))
    registry = RegistryClient(settings.registry.url)
    fields = [{"name": "id", "type": "int"}, {"name": "of", "type": "long"}]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    registry.register("shop.Order", schema, metadata={"headrace.time": "of"})
    with Producer(settings, app="shop") as producer:
        for topic in ("bought", "returned"):
            producer.send(topic, {"id": 1, "of": T0})  # latest version of the subject
        producer.send("seen", {"id": 1, "timestamp": T0}, schema=ORDER)
    assert len(read(settings, "bought", app="reader")) == len(read(settings, "returned", app="reader")) == 1
    assert {row.window_start_ms for row in audit_rows(settings, "bought")} == {T0}
    subjects = set(registry.subjects())
    assert {"shop.Order", "of-seen", f"of-{settings.audit.topic}"} <= subjects
    assert not subjects & {"bought-value", "returned-value", "seen-value"}


def test_the_audit_does_not_count_itself(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:
        producer.send("watched", {"id": 1, "timestamp": T0}, schema=ORDER)
    assert read(settings, settings.audit.topic, app="auditor")
    assert audit_rows(settings, settings.audit.topic) == []


def test_counting_works_with_confluent_kafka(settings: Settings, tmp_path: Path) -> None:
    counter = ProducerCounter("confluent", spool_dir=tmp_path / "own")
    producer = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for n in range(50):
        counter.count_sent("librd", T0, b"k", b"%d" % n)
        producer.produce("librd", b"%d" % n, b"k", on_delivery=counter.on_delivery(T0))
    producer.flush(30)
    (row,) = counter.take_rows(T0, RowSelection.ALL)
    expected = sum(message_hash(b"k", b"%d" % n) for n in range(50)) & FINGERPRINT_MASK
    assert (row.sent, row.count, row.fingerprint) == (50, 50, expected)
    counter.mark_published(row.id)
    counter.close()


def test_counts_of_killed_producer_are_published_by_next(settings: Settings) -> None:
    program = """
import json, os, sys
from pathlib import Path
from headrace import Producer
from headrace.settings import KafkaSettings, RegistrySettings, Settings
data_dir, registry, broker, schema = sys.argv[1:]
settings = Settings(data_dir=Path(data_dir), registry=RegistrySettings(url=registry), kafka=KafkaSettings(broker))
producer = Producer(settings, app="victim", linger_ms=60_000)
for n in range(100):
    producer.send("killed", {"id": n, "timestamp": 1356998400000}, key="k", schema=schema)
producer._kafka.flush()
producer._in_flight.process_completed()
for n in range(30):
    producer.send("killed", {"id": n, "timestamp": 1356998400000}, key="k", schema=schema)
print("ready", flush=True)
sys.stdin.read()
"""
    arguments = [str(settings.data_dir), settings.registry.url, settings.kafka.bootstrap_servers, ORDER]
    victim = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert victim.stdin is not None and victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim.stdin.close()
    victim.stdout.close()
    Producer(settings, app="next").close()
    (row,) = audit_rows(settings, "killed")
    assert (row.application, row.crashed, row.sent, row.count) == ("victim", True, 130, 100)
    assert list((settings.data_dir / SPOOL_DIRECTORY).iterdir()) == []


def test_threads_may_share_a_producer(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:

        def work(first: int) -> None:
            for n in range(first, first + 400):
                producer.send("shared", {"id": n, "timestamp": T0}, key=str(n), schema=ORDER)

        threads = [threading.Thread(target=work, args=(n * 400,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(m.value["id"] for m in read(settings, "shared")) == list(range(1600))
    rows = audit_rows(settings, "shared")
    assert (sum(row.sent for row in rows), sum(row.count for row in rows)) == (1600, 1600)


@pytest.mark.servers
def test_flush_reports_failed_messages_by_topic(tmp_path: Path, registry_url: str, start_service: Any) -> None:
    broker = start_service("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0")
    settings = Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker.addresses["broker"]),
    )
    producer = Producer(settings, app="shop", delivery_timeout_s=4)
    producer.send("lost", {"id": 0, "timestamp": T0}, key="k", schema=ORDER)
    producer.flush()
    broker.kill()
    for n in range(3):
        producer.send("lost", {"id": n, "timestamp": T0}, key="k", schema=ORDER)
    with pytest.raises(FlushFailed) as caught:
        producer.flush(30)
    assert caught.value.failed == {"lost": 3}
    producer.close(6)  # the failures were reported; the next process publishes the counts
    assert list((tmp_path / SPOOL_DIRECTORY).iterdir()) != []


@pytest.mark.servers
def test_close_raises_for_undelivered_messages(tmp_path: Path, registry_url: str, start_service: Any) -> None:
    broker = start_service("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0")
    settings = Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker.addresses["broker"]),
    )
    producer = Producer(settings, app="shop")
    producer.send("late", {"id": 0, "timestamp": T0}, key="k", schema=ORDER)
    producer.flush()
    broker.kill()
    producer.send("late", {"id": 1, "timestamp": T0}, key="k", schema=ORDER)
    with pytest.raises(FlushFailed) as caught:
        producer.close(1)
    assert caught.value.failed == {"late": 1}
    producer.close()


def test_group_continues_at_committed_offset(settings: Settings) -> None:
    with Producer(settings, app="shop") as producer:
        for n in range(20):
            producer.send("grouped", {"id": n, "timestamp": T0}, key="k", schema=ORDER)

    def take(count: int | None, **options: Any) -> list[int]:
        with Consumer(settings, topics=["grouped"], group="g", idle_timeout_s=15, **options) as consumer:
            if count is None:
                return [message.value["id"] for message in consumer]
            return [next(consumer).value["id"] for _ in range(count)]

    assert take(5) == [0, 1, 2, 3, 4]  # nothing is committed without auto_commit
    assert take(5, auto_commit=True) == [0, 1, 2, 3, 4]
    assert take(3, auto_commit=True) == [5, 6, 7]


def test_undecodable_messages_are_reported_and_skipped(settings: Settings) -> None:
    raw = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    raw.produce("spoiled", b"text", partition=0)
    raw.produce("spoiled", b"\0\x7f\xff\xff\xffx", partition=0)
    raw.flush(30)
    with Producer(settings, app="shop") as producer:
        schema_id = read_schema_id(producer)
        raw.produce("spoiled", b"\0" + schema_id.to_bytes(4, "big") + b"\xff", partition=0)
        raw.produce("spoiled", b"\0" + schema_id.to_bytes(4, "big") + b"\x02\x04", partition=0)
        raw.flush(30)
    with Consumer(settings, topics=["spoiled"], partitions=[0], until_end=True) as consumer:
        for offset, named in enumerate(("", "2147483647", f"schema {schema_id}")):
            with pytest.raises(UndecodableMessage, match=named) as caught:
                next(consumer)
            error = caught.value
            assert (error.topic, error.partition, error.offset) == ("spoiled", 0, offset)
        assert next(consumer).value == {"id": 1, "timestamp": 2}
        with pytest.raises(StopIteration):
            next(consumer)


def read_schema_id(producer: Producer) -> int:
    return producer._encodings.get("spoiled", ORDER).schema_id


def test_missing_topic_or_partition_is_reported(settings: Settings) -> None:
    for group in (None, "g"):
        with pytest.raises(SourceUnavailable) as unavailable:
            Consumer(settings, topics=["nowhere"], group=group)
        assert unavailable.value.topic == "nowhere"
    with Producer(settings, app="shop") as producer:
        producer.send("few", {"id": 1, "timestamp": T0}, schema=ORDER)
    with pytest.raises(SourceUnavailable, match="partition 99"):
        Consumer(settings, topics=["few"], partitions=[99])


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "größe", "a/b", "a" * 250, "a\n"])
def test_no_subject_is_registered_for_a_topic_with_an_invalid_name(settings: Settings, name: str) -> None:
    with RegistryClient(settings.registry.url) as registry, Producer(settings, app="clock") as producer:
        before = registry.subjects()
        with pytest.raises(TopicRefused, match="the name is invalid"):
            producer.send(name, {"id": 1, "timestamp": T0}, schema=ORDER)
        assert registry.subjects() == before


def test_no_subject_is_registered_for_a_missing_topic_that_brokers_do_not_create(
    tmp_path: Path, registry_url: str, start_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_check, "CREATION_TIMEOUT_S", 0.3)
    monkeypatch.setenv("HEADRACE__BROKER__AUTO_CREATE_TOPICS", "false")
    broker = start_service("headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0")
    settings = Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker.addresses["broker"]),
    )
    with RegistryClient(registry_url) as registry, Producer(settings, app="clock") as producer:
        with pytest.raises(TopicRefused, match="topic absent: it does not exist") as refused:
            producer.send("absent", {"id": 1, "timestamp": T0}, schema=ORDER)
        assert refused.value.topic == "absent"
        assert "absent-value" not in registry.subjects()
        admin = AdminClient({"bootstrap.servers": broker.addresses["broker"]})
        for created in admin.create_topics([NewTopic("absent", 1), NewTopic(settings.audit.topic, 1)]).values():
            created.result(30)
        monkeypatch.setattr(topic_check, "CREATION_TIMEOUT_S", 30.0)
        producer.send("absent", {"id": 1, "timestamp": T0}, schema=ORDER).result(30)
