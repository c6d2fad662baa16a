"""Producer and consumer failures: slow handlers, hanging or missing brokers and registries, full buffers, forks,
signals."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import (
    Consumer,
    ConsumerClosed,
    DeliveryFailed,
    FlushFailed,
    KafkaSettings,
    Producer,
    ProducerClosed,
    RegistrySettings,
    Settings,
    SourceUnavailable,
)
from headrace.audit.spool import SPOOL_DIRECTORY
from headrace.clients import audit_publisher
from headrace.clients import consumer as consumer_module
from headrace.clients.delivery import Delivery
from headrace.settings import Duration
from support.broker.audit_topic import audit_rows
from support.checkout import ROOT
from support.logs import logged
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "int"}, {"name": "timestamp", "type": "long"}],
    }
)


def value(number: int) -> dict[str, int]:
    return {"id": number, "timestamp": T0}


def produce(settings: Settings, topic: str, count: int) -> None:
    with Producer(settings, app="shop") as producer:
        for n in range(count):
            producer.send(topic, value(n), key="k", schema=SCHEMA)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def own_broker(tmp_path: Path, registry_url: str, start_service: StartService) -> Iterator[tuple[Settings, Service]]:
    """Settings with a private broker that the test may kill."""
    data_dir = tmp_path / "broker"
    broker = start_service("headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0")
    yield (
        Settings(
            data_dir=tmp_path,
            registry=RegistrySettings(url=registry_url),
            kafka=KafkaSettings(bootstrap_servers=broker.addresses["broker"]),
        ),
        broker,
    )


@pytest.mark.parametrize("by_with", [True, False])
def test_message_whose_handling_failed_is_not_committed(settings: Settings, topic: str, by_with: bool) -> None:
    produce(settings, topic, 5)
    handled = []

    def handle_some(consumer: Consumer) -> None:
        for message in consumer:
            if message.value["id"] == 2 and len(handled) == 2:
                raise RuntimeError("handling failed")
            handled.append(message.value["id"])

    consumer = Consumer(settings, topics=[topic], group=topic, auto_commit=True)
    with pytest.raises(RuntimeError, match="handling failed"):
        if by_with:
            with consumer:
                handle_some(consumer)
        else:
            try:
                handle_some(consumer)
            finally:
                consumer.close()
    with Consumer(settings, topics=[topic], group=topic, auto_commit=True, idle_timeout_s=20) as consumer:
        while len(handled) < 5:
            handled.append(next(consumer).value["id"])
    assert handled == [0, 1, 2, 3, 4]


def test_exception_before_consumer_does_not_prevent_commit(settings: Settings, topic: str) -> None:
    produce(settings, topic, 2)
    try:
        raise RuntimeError("earlier")
    except RuntimeError:
        with Consumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
            assert next(consumer).value["id"] == 0
    with Consumer(settings, topics=[topic], group=topic, auto_commit=True) as consumer:
        assert next(consumer).value["id"] == 1


def test_slow_message_handling_causes_no_rereads(settings: Settings, topic: str) -> None:
    produce(settings, topic, 9)
    given = []
    with Consumer(settings, topics=[topic], group=topic, auto_commit=True, handling_timeout_s=6) as consumer:
        for message in consumer:
            given.append(message.value["id"])
            if len(given) == 9:
                break
            time.sleep(0.8)  # in total longer than the session waits for one message
    assert given == list(range(9))
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=1) as consumer:
        assert [message.value["id"] for message in consumer] == []


def test_failed_messages_are_reported_before_flush(
    own_broker: tuple[Settings, Service], caplog: pytest.LogCaptureFixture
) -> None:
    settings, broker = own_broker
    with Producer(settings, app="shop") as producer:  # creates the topic, which may take longer than the timeout below
        producer.send("lost", value(0), key="k", schema=SCHEMA)
    producer = Producer(settings, app="shop", delivery_timeout_s=2)
    broker.kill()
    deliveries: list[Delivery] = []
    first = producer.send("lost", value(1), key="k", schema=SCHEMA)
    producer.send("lost", value(2), key="k", schema=SCHEMA, on_delivery=deliveries.append)
    delivery = producer.send("lost", value(3), key="k", schema=SCHEMA)
    with pytest.raises(DeliveryFailed) as failed:
        delivery.result(30)
    assert failed.value.topic == "lost"
    assert first.wait(30)
    deadline = time.monotonic() + 30
    while not deliveries and time.monotonic() < deadline:
        producer.poll(0.1)
    assert deliveries[0].failure() is not None
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(DeliveryFailed, match=r"\blost: 1\b"),
    ):
        producer.send("lost", value(4), key="k", schema=SCHEMA)
    assert logged(caplog, "clients.in_flight", "lost", level=logging.ERROR)
    with pytest.raises(FlushFailed) as caught:
        producer.flush(30)
    assert caught.value.failed == {"lost": 3}
    producer.close(5)


def test_send_blocks_at_in_flight_limit(own_broker: tuple[Settings, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, broker = own_broker
    monkeypatch.setattr("headrace.clients.in_flight.UNACKNOWLEDGED_BYTES_MAX", 20_000)
    monkeypatch.setattr("headrace.clients.producer.CHECK_EVERY_MESSAGES", 1)
    most = 0
    with Producer(settings, app="shop") as producer:  # creates the topic, which may take longer than the timeout below
        producer.send("full", value(0), key="k", schema=SCHEMA)
    producer = Producer(settings, app="shop", delivery_timeout_s=1, on_delivery=lambda delivery: None)
    broker.kill()
    for n in range(40):  # about 10 bytes each: the limit counts the overhead per message
        producer.send("full", value(n), key="k", schema=SCHEMA)
        most = max(most, len(producer._in_flight.pending()))
    assert most < 20
    with pytest.raises(FlushFailed) as caught:
        producer.flush(30)
    assert caught.value.failed == {"full": 40}
    producer.close(5)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process and its descendants."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        signal_all(int(child), number)
    os.kill(pid, number)


def test_flush_does_not_wait_for_hanging_registry(
    settings: Settings, topic: str, start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_publisher, "WAIT_S_MAX", 0.5)
    database = f"sqlite:///{tmp_path / 'own.db'}"
    registry = start_service(
        "headrace", "registry", "serve", "--database-url", database, "--registry-listen", "127.0.0.1:0"
    )
    slow = RegistrySettings(url=registry.addresses["registry"], client_timeout=Duration(3_600_000))
    settings = dataclasses.replace(settings, registry=slow)
    producer = Producer(settings, app="shop")
    producer.send(topic, value(0), key="k", schema=SCHEMA).result(30)
    signal_all(registry.process.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            producer.flush()
        producer.send(topic, value(1), key="k", schema=SCHEMA)
        producer.close()
    finally:
        signal_all(registry.process.pid, signal.SIGCONT)
    assert list((settings.data_dir / SPOOL_DIRECTORY).iterdir())  # published by the next producer
    Producer(settings, app="next").close()
    rows = audit_rows(settings, topic)
    assert (sum(row.sent for row in rows), sum(row.count for row in rows)) == (2, 2)


def test_messages_of_hanging_broker_are_resolved_on_close(own_broker: tuple[Settings, Service], topic: str) -> None:
    settings, broker = own_broker
    deliveries: list[Delivery] = []
    producer = Producer(settings, app="shop", on_delivery=deliveries.append)
    producer.send(topic, value(0), key="k", schema=SCHEMA).result(30)
    signal_all(broker.process.pid, signal.SIGSTOP)
    try:
        sent = [producer.send(topic, value(number), key="k", schema=SCHEMA) for number in range(1, 5000)]
        with pytest.raises(FlushFailed):
            producer.close(1)
    finally:
        signal_all(broker.process.pid, signal.SIGCONT)
    for delivery in sent:
        with pytest.raises(DeliveryFailed):
            delivery.result()  # without a timeout
    assert len(deliveries) == 5000


FORK = """
import os, sys
from pathlib import Path
from headrace import Producer, ProducerClosed
from headrace.settings import KafkaSettings, RegistrySettings, Settings
data_dir, registry, broker, topic, schema = sys.argv[1:]
settings = Settings(data_dir=Path(data_dir), registry=RegistrySettings(url=registry), kafka=KafkaSettings(broker))
with Producer(settings, app="shop") as producer:
    for n in range(10):
        producer.send(topic, {"id": n, "timestamp": 1356998400000}, key="k", schema=schema)
    child = os.fork()
    if not child:
        try:
            producer.send(topic, {"id": 0, "timestamp": 0}, schema=schema)
        except ProducerClosed:
            pass
        else:
            sys.exit(3)
        producer.close()
        with Producer(settings, app="shop") as own:
            for n in range(10, 15):
                own.send(topic, {"id": n, "timestamp": 1356998400000}, key="k", schema=schema)
        del producer, own
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for n in range(15, 20):
        producer.send(topic, {"id": n, "timestamp": 1356998400000}, key="k", schema=schema)
"""


def test_forked_child_needs_own_producer(settings: Settings, topic: str) -> None:
    arguments = [str(settings.data_dir), settings.registry.url, settings.kafka.bootstrap_servers, topic, SCHEMA]
    done = subprocess.run(
        [sys.executable, "-c", FORK, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with Consumer(settings, topics=[topic], until_end=True) as consumer:
        assert sorted(message.value["id"] for message in consumer) == list(range(20))
    rows = audit_rows(settings, topic)
    assert (sum(row.sent for row in rows), sum(row.count for row in rows)) == (20, 20)
    assert len({row.instance for row in rows}) == 2
    assert not any(row.crashed for row in rows)
    assert list((settings.data_dir / SPOOL_DIRECTORY).iterdir()) == []


FORK_OF_A_CONSUMER = """
import os, sys
from pathlib import Path
from headrace import Consumer, ConsumerClosed
from headrace.settings import KafkaSettings, RegistrySettings, Settings
data_dir, registry, broker, topic = sys.argv[1:]
settings = Settings(data_dir=Path(data_dir), registry=RegistrySettings(url=registry), kafka=KafkaSettings(broker))
with Consumer(settings, topics=[topic], group=topic, auto_commit=True, app="reader", idle_timeout_s=20) as consumer:
    assert next(consumer).value["id"] == 0
    child = os.fork()
    if not child:
        for use in (lambda: next(consumer), lambda: list(consumer), consumer.commit, consumer.pause):
            try:
                use()
            except ConsumerClosed:
                pass
            else:
                sys.exit(3)
        consumer.close()
        with Consumer(settings, topics=[topic], until_end=True) as own:
            assert [message.value["id"] for message in own] == [0, 1, 2]
        del consumer, own
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [next(consumer).value["id"], next(consumer).value["id"]] == [1, 2]
"""


def test_forked_child_needs_own_consumer(settings: Settings, topic: str) -> None:
    produce(settings, topic, 3)
    arguments = [str(settings.data_dir), settings.registry.url, settings.kafka.bootstrap_servers, topic]
    done = subprocess.run(
        [sys.executable, "-c", FORK_OF_A_CONSUMER, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=3) as consumer:
        assert list(consumer) == []


INTERRUPTED = """
import random, signal, sys
from pathlib import Path
from headrace import Producer, ProducerClosed, ProducerError
from headrace.settings import KafkaSettings, RegistrySettings, Settings
how, data_dir, registry, broker, topic, schema = sys.argv[1:]
settings = Settings(data_dir=Path(data_dir), registry=RegistrySettings(url=registry), kafka=KafkaSettings(broker))

class Stop(BaseException):
    pass

def handler(number, frame):
    if how == "close":
        producer.close(timeout_s=60)
    else:
        raise Stop

signal.signal(signal.SIGALRM, handler)
sent = told = 0
def count(delivery):
    global told
    told += 1

for _ in range(25):
    producer = Producer(settings, app="shop", on_delivery=count)
    # Again and again, since Python ignores what is raised where it clears up behind itself.
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.02, 0.2), 1.0)
    try:
        while True:
            producer.send(topic, {"id": sent % 1000, "timestamp": 1356998400000}, key="k", schema=schema)
            sent += 1
    except (Stop, ProducerClosed):
        signal.setitimer(signal.ITIMER_REAL, 0)
    producer.close(timeout_s=60)
print(sent, told)
"""


@pytest.mark.parametrize("action", ["raise", "close"])
def test_signal_handler_ending_producer_loses_no_message_or_count(settings: Settings, topic: str, action: str) -> None:
    arguments = [action, str(settings.data_dir), settings.registry.url, settings.kafka.bootstrap_servers, topic, SCHEMA]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent, delivered = map(int, done.stdout.split())
    with Consumer(settings, topics=[topic], until_end=True) as consumer:
        arrived = sum(1 for _ in consumer)
    rows = audit_rows(settings, topic)
    assert sent <= arrived <= sent + 25  # a handler that raises may do so before or after the last message was sent
    # the signal may interrupt a callback
    assert delivered == arrived if action == "close" else arrived - 25 <= delivered <= arrived
    assert sum(row.count for row in rows) == arrived
    assert arrived <= sum(row.sent for row in rows) <= sent + 25


def test_on_revoke_may_commit_even_on_close(settings: Settings, topic: str) -> None:
    produce(settings, topic, 3)
    revoked = []

    def on_revoke(partitions: frozenset[tuple[str, int]]) -> None:
        revoked.append(partitions)
        consumer.commit()

    consumer = Consumer(settings, topics=[topic], group=topic, on_revoke=on_revoke)
    assert [next(consumer).value["id"], next(consumer).value["id"]] == [0, 1]
    consumer.close()
    assert len(revoked) == 1
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=20) as consumer:
        assert next(consumer).value["id"] == 2


def test_hanging_broker_does_not_block_a_commit_of_on_revoke_on_close(
    own_broker: tuple[Settings, Service], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in a callback has no time limit in the Kafka client, so it is not begun."""
    monkeypatch.setattr(consumer_module, "CALLBACK_CHECK_S", 0.5)
    settings, broker = own_broker
    produce(settings, topic, 3)
    consumer = Consumer(settings, topics=[topic], group=topic, on_revoke=lambda _: consumer.commit())
    assert next(consumer).value["id"] == 0
    os.kill(broker.process.pid, signal.SIGSTOP)
    resumed = threading.Timer(60, os.kill, (broker.process.pid, signal.SIGCONT))
    resumed.start()
    try:
        with pytest.raises(SourceUnavailable, match=r"offsets not committed: no Kafka broker responds"):
            consumer.close()
        assert resumed.is_alive()
    finally:
        resumed.cancel()
        os.kill(broker.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("seconds", [math.inf, 10**400, 1e15])
def test_time_limits_may_be_infinite(settings: Settings, topic: str, seconds: float) -> None:
    is_called = threading.Event()

    def on_delivery(_: Delivery) -> None:
        is_called.set()
        time.sleep(0.3)  # another thread waits for this callback

    producer = Producer(settings, app="shop", on_delivery=on_delivery)
    delivery = producer.send(topic, value(0), key="k", schema=SCHEMA)
    assert is_called.wait(30)
    producer.flush(seconds)
    assert delivery.result(seconds).offset == 0
    for wrong in (math.nan, "5", None):
        for call in (producer.flush, producer.poll, producer.close):
            with pytest.raises(ValueError, match="expected timeout_s to be a number of seconds"):
                call(wrong)  # type: ignore[arg-type]
    producer.close(seconds)


def test_hanging_broker_does_not_block_close(
    own_broker: tuple[Settings, Service], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "CLOSE_TIMEOUT_S", 1.0)
    settings, broker = own_broker
    produce(settings, topic, 3)
    consumer = Consumer(settings, topics=[topic], group=topic, auto_commit=True, on_revoke=print)
    assert next(consumer).value["id"] == 0
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SourceUnavailable, match=r"\b1 s\b"):
            consumer.close()
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    with pytest.raises(ConsumerClosed):
        consumer.commit()
    assert list(consumer) == []


def test_clients_create_nothing_in_working_directory(
    settings: Settings, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ambient = Settings(registry=settings.registry, kafka=settings.kafka)
    with Producer(ambient, app="shop") as producer:
        producer.send(topic, value(0), schema=SCHEMA)
        assert len(list((tmp_path / "state" / "headrace" / SPOOL_DIRECTORY).iterdir())) == 1
    with Consumer(ambient, topics=[topic], until_end=True, app="reader") as consumer:
        assert len(list(consumer)) == 1
    assert list((tmp_path / "work").iterdir()) == []
    (tmp_path / "work" / "headrace-data").mkdir()  # an existing installation
    with Producer(ambient, app="shop") as producer:
        producer.send(topic, value(0), schema=SCHEMA)
        assert len(list((tmp_path / "work" / "headrace-data" / SPOOL_DIRECTORY).iterdir())) == 1


def test_closed_clients_raise(settings: Settings, topic: str) -> None:
    producer = Producer(settings, app="shop")
    producer.close()
    for use in (lambda: producer.send(topic, value(0), schema=SCHEMA), producer.flush):
        with pytest.raises(ProducerClosed):
            use()
