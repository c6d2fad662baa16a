"""Consumers during rebalances and with missing topics."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace import Consumer, Producer, SourceUnavailable, UndecodableMessage
from headrace.audit.row import Tier
from headrace.avro_schema import frame
from headrace.clients import assignment as assignment_module
from headrace.clients import consumer as consumer_module
from headrace.clients import consumer_counter
from headrace.clients.consumer import Message
from headrace.kafka_wire.record_batch import batch_of_records
from headrace.settings import Settings
from support.broker.audit_topic import audit_rows
from support.broker.protocol_client import ProtocolClient

pytestmark = pytest.mark.servers

TIMEOUT_S = 30  # below the session timeout of 45 s, after which the broker would remove a silent member
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})
OFTEN = {"heartbeat.interval.ms": 200}
STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


@pytest.fixture
def topic(settings: Settings) -> str:
    """A topic with two partitions."""
    name = f"rounds-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2)])[name].result(60)
    return name


def produce(settings: Settings, topic: str, numbers: Iterable[int]) -> None:
    """Sends even numbers to partition 0 and odd numbers to partition 1."""
    with Producer(settings, app="clock") as producer:
        for n in numbers:
            producer.send(topic, {"n": n}, partition=n % 2, timestamp_ms=1_000 + n, schema=SCHEMA)


def member(settings: Settings, topic: str, strategy: str = "range", **options: Any) -> Consumer:
    chosen = {**OFTEN, "partition.assignment.strategy": strategy}
    return Consumer(settings, topics=[topic], group=topic, idle_timeout_s=0.2, options=chosen, **options)


def read_until(condition: Callable[[list[Message]], bool], *members: Consumer) -> list[Message]:
    """Polls the members in turn until the condition holds; returns their messages."""
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not condition(messages):
        assert time.monotonic() < deadline, ([each.assignment() for each in members], messages)
        found = [each.next_within(0.2, time.monotonic()) for each in members]
        messages += [each for each in found if isinstance(each, Message)]
    return messages


def numbers(messages: Iterable[Message]) -> list[int]:
    return sorted(message.value["n"] for message in messages)


def test_member_reads_added_partitions(settings: Settings) -> None:
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    often = {"topic.metadata.refresh.interval.ms": 200}
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=0.1, options=often) as consumer:

        def read_until_assigned(count: int) -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while len(consumer.assignment()) != count:
                assert time.monotonic() < deadline, f"{len(consumer.assignment())} partitions, expected {count}"
                assert next(consumer, None) is None

        read_until_assigned(2)
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(60)
        read_until_assigned(8)


def test_header_name_that_is_no_utf8_does_not_end_the_process(settings: Settings, topic: str) -> None:
    with member(settings, topic) as consumer:
        read_until(lambda messages: len(consumer.assignment()) == 2, consumer)
        produce(settings, topic, [0])
        (first,) = read_until(lambda messages: len(messages) == 1, consumer)
        with ProtocolClient(settings.kafka.bootstrap_servers) as client:
            for n in range(1, 40):  # calls that Python has specialized behave differently
                record = (None, frame(first.schema_id, bytes([2 * n])), b"\x02\x02\xff\x02v")  # one header
                client.produce(topic, batch_of_records([record], 1_000))
        messages = read_until(lambda messages: len(messages) == 39, consumer)
    assert numbers(messages) == [*range(1, 40)]
    assert {message.headers for message in messages} == {()}


def test_consumer_does_not_create_topic(settings: Settings) -> None:
    for group in ("g", None):
        with pytest.raises(SourceUnavailable) as unavailable:
            Consumer(settings, topics=["nowhere"], group=group)
        assert unavailable.value.topic == "nowhere"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    assert "nowhere" not in admin.list_topics(timeout=30).topics


@STRATEGIES
def test_returned_partition_is_not_paused(settings: Settings, topic: str, strategy: str) -> None:
    with member(settings, topic, strategy, auto_commit=True) as first:
        read_until(lambda messages: len(first.assignment()) == 2, first)
        first.pause()
        with member(settings, topic, strategy) as second:
            read_until(lambda messages: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            remaining = first.assignment()
        read_until(lambda messages: len(first.assignment()) == 2, first)
        produce(settings, topic, range(10))
        messages = read_until(lambda messages: len(messages) == 10 - 5 * len(remaining), first)
        messages += first
        assert {(topic, message.partition) for message in messages} == first.assignment() - remaining
        first.resume()
        messages += read_until(lambda messages: len(messages) == 5 * len(remaining), first)
        assert numbers(messages) == list(range(10))


@STRATEGIES
def test_start_offset_found_after_retry_is_used(
    settings: Settings, topic: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [SourceUnavailable("no answer"), SourceUnavailable("no answer")]
    found = assignment_module.at_commit_or

    def find(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return found(*arguments)

    monkeypatch.setattr(assignment_module, "at_commit_or", find)
    produce(settings, topic, range(10))
    with member(settings, topic, strategy, auto_commit=True, start_at_ms=1_006) as consumer:
        for _ in range(2):
            with pytest.raises(SourceUnavailable, match="no answer"):
                read_until(lambda messages: False, consumer)
            assert consumer.assignment() == frozenset()
        messages = read_until(lambda messages: len(messages) == 4, consumer)
        assert numbers(messages) == [6, 7, 8, 9]


def test_partitions_without_start_offset_may_move(
    settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*arguments: Any) -> Any:
        raise SourceUnavailable("no answer")

    produce(settings, topic, range(10))
    cooperative = "cooperative-sticky"
    with (
        member(settings, topic, cooperative, start_at_ms=0) as first,
        member(settings, topic, cooperative, auto_commit=True) as second,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(assignment_module, "at_commit_or", find)
            with pytest.raises(SourceUnavailable, match="no answer"):
                read_until(lambda messages: False, first)
            messages: list[Message] = []
            deadline = time.monotonic() + TIMEOUT_S
            while (
                len(second.assignment()) < 1
                or not first._assignment._unstarted
                or len(first._assignment._unstarted) > 1
            ):
                assert time.monotonic() < deadline
                messages.extend(second)
                try:
                    next(first, None)
                except SourceUnavailable as error:
                    assert "no answer" in str(error)
        missing = 10 - len(messages)
        messages += read_until(lambda messages: len(messages) == missing, first, second)
        assert len(first.assignment()) == len(second.assignment()) == 1
    assert numbers(messages) == list(range(10))


def test_failing_assignment_hook_loses_no_messages(settings: Settings, topic: str) -> None:
    produce(settings, topic, range(10))

    def fail(partitions: frozenset[tuple[str, int]]) -> None:
        time.sleep(1)  # until messages are prefetched
        raise RuntimeError("of the application")

    with member(settings, topic, on_assign=fail) as consumer:
        with pytest.raises(RuntimeError, match="of the application"):
            read_until(lambda messages: False, consumer)
        messages = read_until(lambda messages: len(messages) == 10, consumer)
    assert numbers(messages) == list(range(10))


def test_restarted_static_member_keeps_its_partitions_without_rebalance(settings: Settings, topic: str) -> None:
    calls: list[str] = []
    second = member(
        settings,
        topic,
        member="second",
        on_assign=lambda partitions: calls.append("got"),
        on_revoke=lambda partitions: calls.append("gave"),
    )
    with second:
        with member(settings, topic, member="first") as first:
            read_until(lambda messages: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            own = first.assignment()
        calls.clear()
        produce(settings, topic, range(10))
        with member(settings, topic, member="first", auto_commit=True) as restarted:
            messages = read_until(lambda messages: len(messages) == 10, restarted, second)
            assert restarted.assignment() == own
        assert numbers(messages) == list(range(10))
        assert calls == []


def test_missing_committed_offset_may_be_an_error(settings: Settings, topic: str) -> None:
    with (
        Consumer(settings, topics=[topic], group=topic, options={"auto.offset.reset": "error"}) as consumer,
        pytest.raises(SourceUnavailable, match="_AUTO_OFFSET_RESET"),
    ):
        next(consumer)


def test_audit_counts_are_sent_while_messages_wait(
    settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "POLL_AGAIN_S", 0.0)
    monkeypatch.setattr(consumer_counter, "PUBLISH_EVERY_S", 0.0)
    produce(settings, topic, range(0, 400, 2))
    with Consumer(settings, topics=[topic], app="wall") as consumer:
        deadline = time.monotonic() + TIMEOUT_S
        for _ in range(100):
            next(consumer)
        while not any(row.tier is Tier.CONSUMER for row in audit_rows(settings, topic)):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_consumer_counts_messages_that_cannot_be_decoded_and_those_without_time(settings: Settings, topic: str) -> None:
    schema = json.dumps(
        {"type": "record", "name": "Tick", "fields": [{"name": "timestamp", "type": ["null", "long"], "default": None}]}
    )
    with Producer(settings, app="clock") as producer:
        for time_ms in (600_000, None, 600_001):
            producer.send(topic, {"timestamp": time_ms}, partition=0, timestamp_ms=600_002, schema=schema)
    kafka = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for _ in range(2):
        kafka.produce(topic, b"text", partition=0, timestamp=600_003)
    kafka.flush(TIMEOUT_S)
    with Consumer(settings, topics=[topic], until_end=True, app="wall", on_undecodable=lambda _: None) as consumer:
        assert len(list(consumer)) == 3
    with Consumer(settings, topics=[topic], until_end=True, app="floor") as consumer:
        assert len([next(consumer) for _ in range(3)]) == 3
        with pytest.raises(UndecodableMessage):
            next(consumer)
    rows = {row.application: row for row in audit_rows(settings, topic) if row.tier is Tier.CONSUMER}
    assert [(row.count, row.no_time, row.errors, row.start, row.end) for row in (rows["wall"], rows["floor"])] == [
        (3, 1, 2, 0, 5),
        (3, 1, 1, 0, 4),
    ]
