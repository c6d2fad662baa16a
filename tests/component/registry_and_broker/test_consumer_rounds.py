"""What a Kafka client may get wrong when a group shares out anew or a topic is not there, and ours must not."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace import Consumer, Producer, SourceUnavailable
from headrace.audit.row import Tier
from headrace.clients import assignment as assignment_module
from headrace.clients import consumer as consumer_module
from headrace.clients import consumer_count
from headrace.clients.consumer import Message
from headrace.settings import Settings
from support.broker.audit_topic import audit_rows

pytestmark = pytest.mark.servers

PATIENCE_S = 30  # below the session timeout of 45 s, after which the broker would put a silent member out
SCHEMA = json.dumps({"type": "record", "name": "Tick", "fields": [{"name": "n", "type": "int"}]})
OFTEN = {"heartbeat.interval.ms": 200}
STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


@pytest.fixture
def topic(settings: Settings) -> str:
    """One of two partitions."""
    name = f"rounds-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2)])[name].result(60)
    return name


def produce(settings: Settings, topic: str, numbers: Iterable[int]) -> None:
    """The even ones to partition 0, the odd ones to partition 1."""
    with Producer(settings, app="clock") as producer:
        for n in numbers:
            producer.send(topic, {"n": n}, partition=n % 2, timestamp_ms=1_000 + n, schema=SCHEMA)


def member(settings: Settings, topic: str, strategy: str = "range", **options: Any) -> Consumer:
    chosen = {**OFTEN, "partition.assignment.strategy": strategy}
    return Consumer(settings, topics=[topic], group=topic, idle_timeout_s=0.2, options=chosen, **options)


def read_until(condition: Callable[[list[Message]], bool], *members: Consumer) -> list[Message]:
    """What the members are given until then, each asked in its turn."""
    given: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while not condition(given):
        assert time.monotonic() < deadline, ([each.assignment() for each in members], given)
        given += [message for each in members if (message := next(each, None)) is not None]
    return given


def numbers(given: Iterable[Message]) -> list[int]:
    return sorted(message.value["n"] for message in given)


def test_a_member_takes_up_the_partitions_that_a_topic_has_got(settings: Settings) -> None:
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    often = {"topic.metadata.refresh.interval.ms": 200}
    with Consumer(settings, topics=[topic], group=topic, idle_timeout_s=0.1, options=often) as consumer:

        def read_until_assigned(count: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(consumer.assignment()) != count:
                assert time.monotonic() < deadline, f"{len(consumer.assignment())} partitions, expected {count}"
                assert next(consumer, None) is None

        read_until_assigned(2)
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(60)
        read_until_assigned(8)


def test_a_topic_is_not_made_by_asking_for_it(settings: Settings) -> None:
    for group in ("g", None):
        with pytest.raises(SourceUnavailable) as unavailable:
            Consumer(settings, topics=["nowhere"], group=group)
        assert unavailable.value.topic == "nowhere"
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    assert "nowhere" not in admin.list_topics(timeout=30).topics


@STRATEGIES
def test_a_partition_that_was_away_is_not_paused_when_it_is_back(settings: Settings, topic: str, strategy: str) -> None:
    with member(settings, topic, strategy, auto_commit=True) as first:
        read_until(lambda given: len(first.assignment()) == 2, first)
        first.pause()
        with member(settings, topic, strategy) as second:
            read_until(lambda given: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            kept = first.assignment()
        read_until(lambda given: len(first.assignment()) == 2, first)
        produce(settings, topic, range(10))
        given = read_until(lambda given: len(given) == 10 - 5 * len(kept), first)
        given += first
        assert {(topic, message.partition) for message in given} == first.assignment() - kept
        first.resume()
        given += read_until(lambda given: len(given) == 5 * len(kept), first)
        assert numbers(given) == list(range(10))


@STRATEGIES
def test_a_start_that_was_not_found_at_once_is_the_one_begun_at(
    settings: Settings, topic: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [SourceUnavailable("no answer"), SourceUnavailable("no answer")]
    found = assignment_module.at_commit_or_else

    def find(*asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return found(*asked)

    monkeypatch.setattr(assignment_module, "at_commit_or_else", find)
    produce(settings, topic, range(10))
    with member(settings, topic, strategy, auto_commit=True, start_at_ms=1_006) as consumer:
        for _ in range(2):
            with pytest.raises(SourceUnavailable, match="no answer"):
                read_until(lambda given: False, consumer)
            assert consumer.assignment() == frozenset()
        given = read_until(lambda given: len(given) == 4, consumer)
        assert numbers(given) == [6, 7, 8, 9]


def test_partitions_without_a_start_may_move_to_another_member(
    settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*asked: Any) -> Any:
        raise SourceUnavailable("no answer")

    produce(settings, topic, range(10))
    cooperative = "cooperative-sticky"
    with (
        member(settings, topic, cooperative, start_at_ms=0) as first,
        member(settings, topic, cooperative, auto_commit=True) as second,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(assignment_module, "at_commit_or_else", find)
            with pytest.raises(SourceUnavailable, match="no answer"):
                read_until(lambda given: False, first)
            given: list[Message] = []
            deadline = time.monotonic() + PATIENCE_S
            while (
                len(second.assignment()) < 1
                or not first._assignment._not_begun
                or len(first._assignment._not_begun) > 1
            ):
                assert time.monotonic() < deadline
                given.extend(second)
                try:
                    next(first, None)
                except SourceUnavailable as error:
                    assert "no answer" in str(error)
        missing = 10 - len(given)
        given += read_until(lambda given: len(given) == missing, first, second)
        assert len(first.assignment()) == len(second.assignment()) == 1
    assert numbers(given) == list(range(10))


def test_messages_of_a_member_whose_hook_fails_are_all_given(settings: Settings, topic: str) -> None:
    produce(settings, topic, range(10))

    def fail(places: frozenset[tuple[str, int]]) -> None:
        time.sleep(1)  # until messages were fetched
        raise RuntimeError("of the application")

    with member(settings, topic, on_assign=fail) as consumer:
        with pytest.raises(RuntimeError, match="of the application"):
            read_until(lambda given: False, consumer)
        given = read_until(lambda given: len(given) == 10, consumer)
    assert numbers(given) == list(range(10))


def test_a_static_member_that_restarts_finds_its_partitions_and_the_others_are_not_disturbed(
    settings: Settings, topic: str
) -> None:
    told: list[str] = []
    second = member(
        settings,
        topic,
        member="second",
        on_assign=lambda places: told.append("got"),
        on_revoke=lambda places: told.append("gave"),
    )
    with second:
        with member(settings, topic, member="first") as first:
            read_until(lambda given: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            own = first.assignment()
        told.clear()
        produce(settings, topic, range(10))
        with member(settings, topic, member="first", auto_commit=True) as again:
            given = read_until(lambda given: len(given) == 10, again, second)
            assert again.assignment() == own
        assert numbers(given) == list(range(10))
        assert told == []


def test_who_has_committed_nothing_may_want_that_to_be_an_error(settings: Settings, topic: str) -> None:
    with (
        Consumer(settings, topics=[topic], group=topic, options={"auto.offset.reset": "error"}) as consumer,
        pytest.raises(SourceUnavailable, match="_AUTO_OFFSET_RESET"),
    ):
        next(consumer)


def test_the_audit_is_told_while_messages_still_wait(
    settings: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "POLL_AGAIN_S", 0.0)
    monkeypatch.setattr(consumer_count, "PUBLISH_EVERY_S", 0.0)
    produce(settings, topic, range(0, 400, 2))
    with Consumer(settings, topics=[topic], app="wall") as consumer:
        deadline = time.monotonic() + PATIENCE_S
        for _ in range(100):
            next(consumer)
        while not any(row.tier is Tier.CONSUMER for row in audit_rows(settings, topic)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
