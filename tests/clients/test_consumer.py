"""The consumer with a fake Kafka client that returns scripted records and events."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import logging
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from headrace import Consumer, DamagedBatch, Settings, SourceUnavailable, UndecodableMessage
from headrace.clients import consumer as consumer_module
from headrace.clients import group_commits, read_watch
from headrace.clients.kafka_errors import DAMAGE_ERRORS
from headrace.clients.log_check import UnreadPartition
from headrace.clients.partitions import TopicAndPartition

TOPIC = "orders"
BOTH = frozenset({(TOPIC, 0), (TOPIC, 1)})


class Fetched(NamedTuple):
    """A fetched record or event; without bytes a tombstone, which needs no registry."""

    at: int
    partition_number: int = 0
    problem: KafkaError | None = None
    bytes: bytes | None = None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self.partition_number

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self.bytes

    def headers(self) -> None:
        return None

    def error(self) -> KafkaError | None:
        return self.problem


HOUR_S = 3600.0


class Kafka:
    """A fake of confluent-kafka with two of its properties: a callback that raises loses the fetched records, and it
    assigns partitions itself if the callback does not. Without a record to return, an hour passes."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.callbacks: dict[str, Any] = {}
        self.rounds: deque[list[Fetched | Callable[[], None]]] = deque()
        self.assigned: dict[TopicAndPartition, int] = {}
        self.is_assigned = self.is_joined = False
        self.named: list[TopicAndPartition] = []
        self.committed_offsets: dict[TopicAndPartition, int] = {}
        self.paused: list[frozenset[TopicAndPartition]] = []
        self.resumed: list[frozenset[TopicAndPartition]] = []
        self.positions: dict[TopicAndPartition, int] = {}
        self.sought: dict[TopicAndPartition, int] = {}
        self.committed_in: list[int] = []
        self.unanswered = 0
        self.now_s = 0.0
        self.known_bounds = (0, 1_000)
        self.ends: dict[TopicAndPartition, int] = {}
        self.damages: dict[TopicAndPartition, DamagedBatch] = {}
        self.failure: SourceUnavailable | None = None

    def unread(self, topics: Iterable[str], positions: Mapping[TopicAndPartition, int]) -> tuple[UnreadPartition, ...]:
        if self.failure is not None:
            raise self.failure
        found = (UnreadPartition(each, at, self.ends.get(each, at)) for each, at in positions.items())
        return tuple(each for each in found if each.position < each.end)

    def damage(self, topic_partition: TopicAndPartition, offset: int, reported: str = "") -> DamagedBatch | None:
        return self.damages.get(topic_partition)

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout_s: float = 0, cached: bool = False
    ) -> tuple[int, int]:
        if cached:
            return self.known_bounds
        return 0, 2 if partition.partition == 0 else 0

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def consume(self, count_max: int, timeout_s: float) -> list[Fetched]:
        found = []
        for each in self.rounds.popleft() if self.rounds else []:
            if isinstance(each, Fetched):
                found.append(each)
            else:
                each()
        if self.callbacks and not self.is_joined:
            self.is_joined = True
            self.callbacks["on_assign"](self, [])
        return found

    def poll(self, timeout_s: float) -> None:
        if not self.rounds:
            self.now_s += HOUR_S

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.is_assigned = True
        self.named = [(each.topic, each.partition) for each in partitions]
        self.assigned = {(each.topic, each.partition): each.offset for each in partitions}

    def _check_cooperative(self) -> None:
        if "cooperative" not in self.config.get("partition.assignment.strategy", ""):
            raise KafkaException(KafkaError(KafkaError._STATE))

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._check_cooperative()
        self.is_assigned = True
        self.assigned |= {(each.topic, each.partition): each.offset for each in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._check_cooperative()
        for each in partitions:
            del self.assigned[each.topic, each.partition]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused.append(frozenset((each.topic, each.partition) for each in partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.resumed.append(frozenset((each.topic, each.partition) for each in partitions))

    def committed(self, partitions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        if self.unanswered:
            self.unanswered -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [
            TopicPartition(each.topic, each.partition, self.committed_offsets.get((each.topic, each.partition), -1001))
            for each in partitions
        ]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, 7) for each in partitions]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.committed_in.append(threading.get_ident())
        self.committed_offsets |= {(each.topic, each.partition): each.offset for each in offsets}
        return offsets

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return [
            TopicPartition(each.topic, each.partition, self.positions.get((each.topic, each.partition), OFFSET_INVALID))
            for each in partitions
        ]

    def seek(self, partition: TopicPartition) -> None:
        self.sought[partition.topic, partition.partition] = partition.offset

    def close(self) -> None:
        pass

    def assign_event(self, topic_partitions: Iterable[TopicAndPartition]) -> Callable[[], None]:
        """Returns an event for a round in which the group assigns the partitions."""

        def assign() -> None:
            self.is_assigned, self.is_joined = False, True
            partitions = [TopicPartition(*topic_partition) for topic_partition in sorted(topic_partitions)]
            self.callbacks["on_assign"](self, partitions)
            if not self.is_assigned:
                self.assign(partitions)

        return assign

    def revoke_event(
        self, topic_partitions: Iterable[TopicAndPartition], callback: str = "on_revoke"
    ) -> Callable[[], None]:
        """Returns an event for a round in which the group takes the partitions. An assignment follows, by default an
        empty one.

        Args:
            callback: "on_lost" if the member was removed from the group.
        """

        def revoke() -> None:
            self.is_joined = False
            partitions = [TopicPartition(*topic_partition) for topic_partition in sorted(topic_partitions)]
            self.callbacks[callback](self, partitions)

        return revoke


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()

    def create_client(client: object, config: dict[str, Any]) -> Kafka:
        kafka.config = config
        return kafka

    monkeypatch.setattr(consumer_module, "reach_brokers", lambda settings, timeout_s: {})
    monkeypatch.setattr(consumer_module, "create_client", create_client)
    monkeypatch.setattr(consumer_module, "LogCheck", lambda settings: kafka)
    for module in (consumer_module, read_watch):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: kafka.now_s))
    return kafka


def create_consumer(**options: Any) -> Consumer:
    return Consumer(Settings(), **{"topics": [TOPIC], "idle_timeout_s": HOUR_S / 2, **options})


def offsets(consumer: Consumer) -> list[int]:
    return [message.offset for message in consumer]


def error_event(code: int) -> Fetched:
    return Fetched(0, problem=KafkaError(code))


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTO_OFFSET_RESET, KafkaError._AUTHENTICATION]
)
def test_error_event_between_records_is_raised_and_loses_no_record(kafka: Kafka, code: int) -> None:
    kafka.rounds.append([Fetched(0), error_event(code), Fetched(1), error_event(code), Fetched(2)])
    consumer = create_consumer()
    with pytest.raises(SourceUnavailable, match=rf"\b{KafkaError(code).name()}\b"):
        next(consumer)
    assert offsets(consumer) == [0, 1, 2]


def damaged_batch(partition: int, offset: int, next_offset: int) -> DamagedBatch:
    return DamagedBatch("reason", topic=TOPIC, partition=partition, offset=offset, next_offset=next_offset)


@pytest.mark.parametrize("code", sorted(DAMAGE_ERRORS))
def test_damaged_batch_is_raised_after_the_messages_before_it_until_seek(kafka: Kafka, code: int) -> None:
    kafka.damages[TOPIC, 0] = damaged_batch(0, 1, 3)
    report = Fetched(1, problem=KafkaError(code))
    kafka.rounds.append([Fetched(0), Fetched(0, 1), report, Fetched(3), Fetched(1, 1), report])
    consumer = create_consumer()
    assert next(consumer).offset == 0
    for _ in range(2):
        with pytest.raises(DamagedBatch) as raised:
            next(consumer)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == (TOPIC, 0, 1)
    consumer.seek(TOPIC, 0, raised.value.next_offset)
    kafka.damages.clear()
    kafka.rounds.append([Fetched(3), Fetched(4)])
    assert [(each.partition, each.offset) for each in consumer] == [(1, 0), (1, 1), (0, 3), (0, 4)]


def test_other_partitions_are_read_while_a_damaged_one_is_paused(kafka: Kafka) -> None:
    kafka.damages[TOPIC, 0] = damaged_batch(0, 0, 3)
    kafka.rounds.append([Fetched(0, problem=KafkaError(KafkaError._BAD_MSG)), Fetched(0, 1)])
    consumer = create_consumer()
    with pytest.raises(DamagedBatch):
        next(consumer)
    consumer.pause([(TOPIC, 0)])
    assert [each.partition for each in consumer] == [1]
    consumer.resume()
    with pytest.raises(DamagedBatch):
        next(consumer)


def test_batch_that_was_damaged_in_the_transfer_is_read_again(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.rounds += [[Fetched(0), Fetched(1, problem=KafkaError(KafkaError._BAD_MSG))], [Fetched(1)]]
    assert offsets(create_consumer()) == [0, 1]
    assert "reading it again topic=orders partition=0 offset=1" in caplog.text
    kafka.rounds += 3 * [[Fetched(1, problem=KafkaError(KafkaError._BAD_MSG))]]
    with pytest.raises(DamagedBatch, match="_BAD_MSG"):
        next(create_consumer())


@pytest.mark.parametrize(("at", "bounds"), [(1_000, (0, 1_000)), (4, (0, 1_000))])
def test_message_with_an_impossible_offset_is_not_returned(kafka: Kafka, at: int, bounds: tuple[int, int]) -> None:
    kafka.known_bounds = bounds
    kafka.damages[TOPIC, 0] = damaged_batch(0, 5, 9)
    kafka.rounds.append([*map(Fetched, range(5)), Fetched(at), Fetched(9)])
    consumer = create_consumer()
    assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(DamagedBatch):
        next(consumer)


@pytest.mark.parametrize("mode", [{"group": "g"}, {}, {"until_end": True}])
def test_iteration_does_not_end_while_the_brokers_fail(kafka: Kafka, mode: dict[str, Any]) -> None:
    consumer = create_consumer(**mode)
    kafka.failure = SourceUnavailable("no leader")
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="no leader"):
            next(consumer)
    kafka.failure = None
    kafka.rounds.append([Fetched(0), Fetched(1), Fetched(0, 1, KafkaError(KafkaError._PARTITION_EOF))])
    assert offsets(consumer) == [0, 1]


@pytest.mark.parametrize("mode", [{"group": "g"}, {}, {"until_end": True}])
def test_iteration_does_not_end_before_the_end_of_a_partition(kafka: Kafka, mode: dict[str, Any]) -> None:
    consumer = create_consumer(**mode)
    kafka.ends = {(TOPIC, 0): 2}
    kafka.rounds.append(([kafka.assign_event(BOTH)] if mode == {"group": "g"} else []) + [Fetched(0)])
    assert next(consumer).offset == 0
    with pytest.raises(
        SourceUnavailable, match="no message was read in 3600 s, although it ends at offset 2"
    ) as stalled:
        next(consumer)
    assert (stalled.value.partition, stalled.value.offset) == (0, 1)
    kafka.damages[TOPIC, 0] = damaged_batch(0, 1, 2)
    with pytest.raises(DamagedBatch):
        next(consumer)


def test_member_without_assignment_is_not_idle(kafka: Kafka) -> None:
    consumer = create_consumer(group="g")
    kafka.is_joined = True  # its group never completes the rebalance
    with pytest.raises(SourceUnavailable, match="it assigned no partitions"):
        next(consumer)


def test_damaged_batch_that_the_client_does_not_report_is_found(kafka: Kafka) -> None:
    kafka.known_bounds = (0, 4)
    kafka.rounds += [[Fetched(0)]]
    consumer = create_consumer(idle_timeout_s=None)
    assert next(consumer).offset == 0
    kafka.damages[TOPIC, 0] = damaged_batch(0, 1, 4)
    with pytest.raises(DamagedBatch):
        next(consumer)


def test_fatal_error_is_raised_by_every_call(kafka: Kafka) -> None:
    """The client reports it once, for example when another static member has the same name."""
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), error_event(KafkaError._FATAL), Fetched(1)])
    consumer = create_consumer(group="g", member="m")
    for use in (lambda: next(consumer), lambda: next(consumer), consumer.commit):
        with pytest.raises(SourceUnavailable, match="_FATAL"):
            use()
    consumer.close()


@pytest.mark.parametrize("name", ["group", "member", "app"])
@pytest.mark.parametrize("given", ["", b"g", 7])
def test_names_must_be_text(kafka: Kafka, name: str, given: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        create_consumer(**{"group": "g", name: given})


@pytest.mark.parametrize(
    "topics", ["t", [], [None], ["t", ""], iter(()), [b"t"], None, 7, [["t"]], ["a\0"], {"t", 1}, itertools.count()]
)
def test_topics_must_be_a_list_of_names(kafka: Kafka, topics: Any) -> None:
    with pytest.raises(ValueError, match=r"\btopics\b"):
        create_consumer(topics=topics)


def test_topics_of_an_endless_iterator_are_an_error(kafka: Kafka) -> None:
    with pytest.raises(ValueError, match="at most 100000"):
        create_consumer(topics=(f"t{number}" for number in itertools.count()))


@pytest.mark.parametrize("partitions", [5, [], [None], ["0"], [1.0], [True], itertools.repeat("0")])
def test_partitions_must_be_a_list_of_numbers(kafka: Kafka, partitions: Any) -> None:
    with pytest.raises(ValueError, match=r"\bpartitions\b"):
        create_consumer(partitions=partitions)


@pytest.mark.parametrize("start_at_ms", [-1, -(2**63), 2**63, 1.5, "2026", True, math.inf])
def test_start_time_must_be_milliseconds_since_1970(kafka: Kafka, start_at_ms: Any) -> None:
    with pytest.raises(ValueError, match="start_at_ms to be an integer of milliseconds since 1970"):
        create_consumer(start_at_ms=start_at_ms)


def test_start_time_may_be_the_beginning_of_1970(kafka: Kafka) -> None:
    create_consumer(group="g", start_at_ms=0).close()


@pytest.mark.parametrize("seconds", [math.nan, "5", datetime.timedelta(seconds=5), True])
@pytest.mark.parametrize("name", ["idle_timeout_s", "handling_timeout_s"])
def test_time_limit_must_be_a_number(kafka: Kafka, name: str, seconds: Any) -> None:
    with pytest.raises(ValueError, match=f"expected {name} to be a number of seconds"):
        create_consumer(**{name: seconds})


@pytest.mark.parametrize("seconds", [math.inf, 10**400])
def test_idle_timeout_may_be_infinite(kafka: Kafka, seconds: float) -> None:
    create_consumer(idle_timeout_s=seconds).close()


def test_duplicate_topics_and_partitions_are_read_once(kafka: Kafka) -> None:
    with create_consumer(topics=iter(["t", "t"]), partitions=[0, 0, 1]):
        assert kafka.named == [("t", 0), ("t", 1)]


@pytest.mark.parametrize("seconds", [math.inf, 10**400, 1e9, 86_400.1])
def test_handling_timeout_beyond_librdkafkas_limit_is_an_error(kafka: Kafka, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"handling_timeout_s=.*\b86400 s\b"):
        create_consumer(handling_timeout_s=seconds)


@pytest.mark.parametrize("schema", [{}, "no JSON", '"no type"', '{"type": "record", "name": "R"}'])
def test_invalid_reader_schema_is_an_error_before_connecting(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    monkeypatch.setattr("headrace.clients.consumer.create_client", lambda *_: pytest.fail("a client was created"))
    with pytest.raises(ValueError, match="reader_schema"):
        create_consumer(reader_schema=schema)


def test_reader_schema_may_have_comments(kafka: Kafka) -> None:
    with create_consumer(reader_schema='/* licence */ "string"'):
        pass


def test_transient_error_is_logged_and_not_raised(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.rounds.append(
        [Fetched(0), error_event(KafkaError._TRANSPORT), error_event(KafkaError._MAX_POLL_EXCEEDED), Fetched(1)]
    )
    consumer = create_consumer(options={"max.poll.interval.ms": "60000"})
    assert offsets(consumer) == [0, 1]
    assert "topic=orders error=_TRANSPORT" in caplog.text
    assert "handling_timeout_s=60" in caplog.text


@pytest.mark.parametrize("callback", ["on_assign", "on_revoke", "on_commit", "error_cb", "stats_cb", "throttle_cb"])
@pytest.mark.parametrize("error", [RuntimeError("of the application"), KeyboardInterrupt("of the application")])
def test_callback_that_raises_loses_no_message(kafka: Kafka, callback: str, error: BaseException) -> None:
    def fail(*args: object) -> None:
        raise error

    named: dict[str, Any] = (
        {callback: fail} if callback in ("on_assign", "on_revoke") else {"options": {callback: fail}}
    )
    consumer = create_consumer(group="g", **named)
    called = {
        "on_assign": kafka.assign_event(BOTH),
        "on_revoke": kafka.revoke_event({(TOPIC, 1)}),
        "on_commit": lambda: kafka.config["on_commit"](None, []),
    }.get(callback, lambda: kafka.config[callback](None))
    kafka.rounds.append([Fetched(0), called, Fetched(1)])
    with pytest.raises(type(error), match="of the application"):
        next(consumer)
    assert offsets(consumer) == [0, 1]
    assert consumer.assignment() == (BOTH if callback == "on_assign" else frozenset())
    consumer.close()


def test_close_completes_when_a_callback_raises(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(topic_partitions: frozenset[TopicAndPartition]) -> None:
        raise RuntimeError("of the application")

    closed = []
    monkeypatch.setattr(kafka, "close", kafka.revoke_event(BOTH))
    consumer = create_consumer(group="g", on_revoke=fail)
    monkeypatch.setattr(consumer._registry, "close", lambda: closed.append("registry"))
    with pytest.raises(RuntimeError, match="of the application"):
        consumer.close()
    assert closed == ["registry"]
    consumer.close()


def consumer_with_audit(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> tuple[Consumer, list[float]]:
    """Returns a consumer that has read a message, and the timeouts that its counter gets when it is closed."""
    allowed: list[float] = []
    count = SimpleNamespace(close=allowed.append, add=lambda *args: None, publish_if_due=lambda: None)
    monkeypatch.setattr(consumer_module, "ConsumerCounter", lambda *args: count)
    consumer = create_consumer(group="g", auto_commit=True, app="wall")
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0)])
    assert next(consumer).offset == 0
    return consumer, allowed


def test_audit_gets_the_rest_of_the_close_timeout(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(**options: Any) -> Any:
        kafka.now_s += 4
        return options["offsets"]

    consumer, allowed = consumer_with_audit(kafka, monkeypatch)
    monkeypatch.setattr(kafka, "commit", commit)
    consumer.close()
    assert allowed == [consumer_module.CLOSE_TIMEOUT_S - 4]


def test_close_does_not_wait_for_the_audit_if_brokers_hang(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    may_respond = threading.Event()
    consumer, allowed = consumer_with_audit(kafka, monkeypatch)
    monkeypatch.setattr(kafka, "commit", lambda **options: may_respond.wait(60))
    monkeypatch.setattr(consumer_module, "CLOSE_TIMEOUT_S", 0.01)
    with pytest.raises(SourceUnavailable, match=r"\bg\b.*\b0\.01 s\b"):
        consumer.close()
    assert allowed == [0.0]
    may_respond.set()


def test_first_of_two_errors_is_raised_and_the_other_logged(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    def fail(topic_partitions: frozenset[TopicAndPartition]) -> None:
        raise RuntimeError("of the application")

    consumer = create_consumer(group="g", on_assign=fail, idle_timeout_s=None)
    kafka.rounds += [[kafka.assign_event(BOTH), error_event(KafkaError.UNKNOWN_TOPIC_OR_PART)], [Fetched(0)]]
    with pytest.raises(RuntimeError, match="of the application"):
        next(consumer)
    assert "error=SourceUnavailable: " in caplog.text
    assert next(consumer).offset == 0


def test_on_commit_of_the_options_is_called(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    called: list[object] = []
    create_consumer(group="g", options={"on_commit": lambda error, partitions: called.append((error, partitions))})
    error = KafkaError(KafkaError._TIMED_OUT)
    kafka.config["on_commit"](error, ["a"])
    assert called == [(error, ["a"])]
    assert "group=g error=_TIMED_OUT" in caplog.text


def test_callback_option_may_be_none(kafka: Kafka) -> None:
    create_consumer(group="g", options={"error_cb": None, "on_commit": None})
    assert kafka.config["error_cb"] is None
    kafka.config["on_commit"](None, [])


STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


@STRATEGIES
def test_failed_lookup_of_start_offsets_is_retried(kafka: Kafka, strategy: str) -> None:
    called: list[frozenset[TopicAndPartition]] = []
    consumer = create_consumer(
        group="g", start_at_ms=1, options={"partition.assignment.strategy": strategy}, on_assign=called.append
    )
    kafka.unanswered = 2
    kafka.committed_offsets = {(TOPIC, 1): 5}
    kafka.rounds.append([kafka.assign_event(BOTH)])
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
            next(consumer)
        assert kafka.assigned == {} and consumer.assignment() == frozenset() and called == []
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 0): 7, (TOPIC, 1): 5}
    assert consumer.assignment() == BOTH and called == [BOTH]


@STRATEGIES
@pytest.mark.parametrize("auto_commit", [False, True])
def test_end_at_which_a_group_starts_is_committed_with_auto_commit(
    kafka: Kafka, strategy: str, auto_commit: bool
) -> None:
    options = {"partition.assignment.strategy": strategy}
    consumer = create_consumer(group="g", from_end=True, auto_commit=auto_commit, options=options)
    kafka.committed_offsets = {(TOPIC, 1): 5}
    kafka.rounds.append([kafka.assign_event(BOTH)])
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 0): 2, (TOPIC, 1): 5}
    assert kafka.committed_offsets == {(TOPIC, 1): 5} | ({(TOPIC, 0): 2} if auto_commit else {})
    # In a callback of the Kafka client, a commit in another thread would block for ever.
    assert kafka.committed_in == ([threading.get_ident()] if auto_commit else [])


def test_partition_revoked_before_its_start_is_known_is_not_started(kafka: Kafka) -> None:
    called: list[frozenset[TopicAndPartition]] = []
    consumer = create_consumer(
        group="g",
        start_at_ms=1,
        options={"partition.assignment.strategy": "cooperative-sticky"},
        on_revoke=called.append,
    )
    kafka.rounds.append([kafka.assign_event({(TOPIC, 0)})])
    assert offsets(consumer) == []
    kafka.unanswered = 1
    kafka.rounds.append([kafka.assign_event({(TOPIC, 1), (TOPIC, 2)})])
    with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
        next(consumer)
    assert consumer.assignment() == {(TOPIC, 0)}
    kafka.rounds.append([kafka.revoke_event(BOTH)])
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 2): 7} and consumer.assignment() == {(TOPIC, 2)}
    assert called == [{(TOPIC, 0)}]


def test_revoked_partitions_can_be_committed_in_on_revoke_but_lost_ones_cannot(kafka: Kafka) -> None:
    """Without `auto_commit`, an application commits its finished messages in this callback."""
    calls: list[frozenset[TopicAndPartition]] = []

    def commit(topic_partitions: frozenset[TopicAndPartition]) -> None:
        calls.append(topic_partitions)
        consumer.commit_finished()

    consumer = create_consumer(group="g", on_revoke=commit)
    kafka.rounds += [[kafka.assign_event({(TOPIC, 0)}), Fetched(0), Fetched(1)], [kafka.revoke_event({(TOPIC, 0)})]]
    assert offsets(consumer) == [0, 1]
    assert calls == [{(TOPIC, 0)}] and kafka.committed_offsets == {(TOPIC, 0): 2}
    assert consumer.assignment() == frozenset()
    kafka.committed_offsets.clear()
    lost = kafka.revoke_event({(TOPIC, 0)}, "on_lost")
    kafka.rounds += [[kafka.assign_event({(TOPIC, 0)}), Fetched(2)], [lost]]
    assert offsets(consumer) == [2]
    assert calls == 2 * [{(TOPIC, 0)}] and kafka.committed_offsets == {}


def test_commit_in_a_callback_does_not_list_topics(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `list_topics` in a callback, the Kafka client ends the process when it logs a message."""
    reported: list[str] = []

    def commit(topic_partitions: frozenset[TopicAndPartition]) -> None:
        with pytest.raises(SourceUnavailable) as failed:
            consumer.commit_finished()
        reported.append(str(failed.value))

    def reject(**_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    consumer = create_consumer(group="g", on_revoke=commit)
    kafka.rounds.append([kafka.assign_event({(TOPIC, 0)}), Fetched(0)])
    assert offsets(consumer) == [0]
    monkeypatch.setattr(kafka, "commit", reject)
    monkeypatch.setattr(kafka, "list_topics", lambda *_: pytest.fail("topics were listed"))
    kafka.rounds.append([kafka.revoke_event({(TOPIC, 0)})])
    assert offsets(consumer) == []
    (text,) = reported
    assert "UNKNOWN_TOPIC_OR_PART" in text


def test_all_partitions_may_be_revoked_before_their_start_is_known(kafka: Kafka) -> None:
    consumer = create_consumer(group="g", start_at_ms=1)
    kafka.unanswered = 1
    kafka.rounds += [[kafka.assign_event(BOTH)], [kafka.revoke_event(BOTH)]]
    with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
        next(consumer)
    assert offsets(consumer) == []
    assert kafka.assigned == {} and consumer.assignment() == frozenset()


@pytest.mark.parametrize(("strategy", "owned"), [("range", {(TOPIC, 1)}), ("cooperative-sticky", BOTH)])
def test_cooperative_assignment_adds_to_the_owned_partitions(
    kafka: Kafka, strategy: str, owned: frozenset[TopicAndPartition]
) -> None:
    consumer = create_consumer(group="g", options={"partition.assignment.strategy": strategy})
    kafka.rounds += [[kafka.assign_event({(TOPIC, 0)})], [kafka.assign_event({(TOPIC, 1)})]]
    assert offsets(consumer) == []
    assert consumer.assignment() == kafka.assigned.keys() == owned


def test_commit_includes_the_current_message(kafka: Kafka) -> None:
    consumer = create_consumer(group="g")
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), Fetched(1)])
    next(consumer), next(consumer)
    consumer.commit_finished()
    assert kafka.committed_offsets == {(TOPIC, 0): 1}
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): 2}


def delete_partition(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Deletes partition 1, so that the Kafka client reports a failure for a complete commit with it.

    Returns the topics that are looked up from then on.
    """

    tried, looked_up = [], []

    def commit(offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        known = [each for each in offsets if each.partition == 0]
        kafka.committed_offsets |= {(each.topic, each.partition): each.offset for each in known}
        if len(known) == len(offsets):
            return offsets
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if not asynchronous:
            raise KafkaException(error)
        tried.append(offsets)
        assert len(tried) < 5
        kafka.rounds.append([lambda: kafka.config["on_commit"](error, offsets)])
        return offsets

    monkeypatch.setattr(kafka, "commit", commit)

    def list_topics(topic: str, timeout_s: float) -> Any:
        looked_up.append(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    monkeypatch.setattr(kafka, "list_topics", list_topics)
    return looked_up


def test_commit_reports_a_deleted_partition_once(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = create_consumer(group="g")
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), Fetched(0, partition_number=1)])
    assert offsets(consumer) == [0, 0]
    delete_partition(kafka, monkeypatch)
    with pytest.raises(SourceUnavailable, match="orders partition 1") as raised:
        consumer.commit()
    assert (raised.value.topic, raised.value.partition) == (TOPIC, 1)
    assert kafka.committed_offsets == {(TOPIC, 0): 1}
    consumer.commit()


def test_auto_commit_logs_a_deleted_partition_once(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_commits, "COMMIT_EVERY_S", 0.0)
    consumer = create_consumer(group="g", auto_commit=True)
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), Fetched(0, partition_number=1)])
    assert offsets(consumer) == [0, 0]
    looked_up = delete_partition(kafka, monkeypatch)
    for offset in (1, 2, 3):
        kafka.rounds.append(
            [Fetched(offset), Fetched(offset, partition_number=1)] if offset == 1 else [Fetched(offset)]
        )
        offsets(consumer)
    assert looked_up == [TOPIC] * 2, "once for each commit that failed"
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "group=g topic=orders partition=1" in line
    consumer.close()
    assert kafka.committed_offsets == {(TOPIC, 0): 4, (TOPIC, 1): 1}


def test_consumer_without_group_ignores_group_authorization_errors(kafka: Kafka) -> None:
    kafka.rounds.append([error_event(KafkaError.GROUP_AUTHORIZATION_FAILED), Fetched(0)])
    assert offsets(create_consumer()) == [0]
    kafka.rounds.append([error_event(KafkaError.GROUP_AUTHORIZATION_FAILED)])
    with pytest.raises(SourceUnavailable, match="GROUP_AUTHORIZATION_FAILED"):
        next(create_consumer(group="g"))


def test_partition_returning_from_another_member_is_not_paused(kafka: Kafka) -> None:
    consumer = create_consumer(group="g")
    kafka.rounds.append([kafka.assign_event(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds.append([kafka.revoke_event(BOTH), kafka.assign_event({(TOPIC, 1)})])
    assert offsets(consumer) == []
    kafka.rounds.append(
        [
            kafka.revoke_event({(TOPIC, 1)}),
            kafka.assign_event(BOTH),
            Fetched(0),
            Fetched(1),
            Fetched(9, partition_number=1),
        ]
    )
    assert offsets(consumer) == [0, 1]
    assert kafka.resumed[-1] == {(TOPIC, 0)} and kafka.paused[-1] == {(TOPIC, 1)}


def test_partition_retained_in_a_rebalance_stays_paused(kafka: Kafka) -> None:
    consumer = create_consumer(group="g")
    kafka.rounds.append([kafka.assign_event(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds += [[kafka.revoke_event(BOTH)], [kafka.assign_event(BOTH), Fetched(0)]]
    assert offsets(consumer) == []
    assert kafka.paused[-1] == BOTH
    consumer.resume()
    assert offsets(consumer) == [0]
    consumer.pause()
    kafka.rounds.append([kafka.revoke_event(BOTH)])
    assert offsets(consumer) == []
    consumer.resume()
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(1)])
    assert offsets(consumer) == [1]


def test_pause_before_assignment_has_no_effect(kafka: Kafka) -> None:
    consumer = create_consumer(group="g")
    consumer.pause([(TOPIC, 0)])
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0)])
    assert offsets(consumer) == [0]


def test_retained_partition_of_a_cooperative_member_stays_paused(kafka: Kafka) -> None:
    consumer = create_consumer(group="g", options={"partition.assignment.strategy": "cooperative-sticky"})
    kafka.rounds.append([kafka.assign_event(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds.append(
        [
            kafka.revoke_event({(TOPIC, 1)}),
            kafka.assign_event({(TOPIC, 1)}),
            Fetched(0, partition_number=0),
            Fetched(9, partition_number=1),
        ]
    )
    assert offsets(consumer) == [9]
    assert kafka.resumed == [BOTH, {(TOPIC, 1)}]
    consumer.resume()
    assert offsets(consumer) == [0]


def test_resume_is_passed_to_the_kafka_client(kafka: Kafka) -> None:
    consumer = create_consumer(partitions=[0])
    consumer.resume([(TOPIC, 1)])
    consumer.resume()
    assert kafka.resumed == [{(TOPIC, 1)}, {(TOPIC, 0)}]


class FailingOnce:
    """A decoder that fails the first time."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def decode_with_fields(self, record: object) -> tuple[None, None, None, tuple[()]]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return None, None, None, ()


@pytest.mark.parametrize("error", [SourceUnavailable("the registry is away"), KeyboardInterrupt()])
def test_until_end_delivers_a_message_after_a_failed_decode(kafka: Kafka, error: BaseException) -> None:
    kafka.rounds.append([Fetched(0), Fetched(1)])
    consumer = create_consumer(until_end=True, partitions=[0])
    assert next(consumer).offset == 0
    consumer._decoder = FailingOnce(error)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        next(consumer)
    assert offsets(consumer) == [1]


def test_message_is_not_finished_if_on_undecodable_raises(kafka: Kafka) -> None:
    fails = [True, True, False]
    called: list[int] = []

    def handle(error: UndecodableMessage) -> None:
        called.append(error.offset)
        if fails.pop(0):
            raise OSError("the store is away")

    consumer = create_consumer(group="g", auto_commit=True, on_undecodable=handle)
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), Fetched(1, bytes=b"text"), Fetched(2)])
    assert next(consumer).offset == 0
    for _ in range(2):
        with pytest.raises(OSError, match="the store is away"):
            next(consumer)
        consumer.commit()
        assert kafka.committed_offsets == {(TOPIC, 0): 1}
    assert offsets(consumer) == [2]
    assert called == [1, 1, 1]
    consumer.close()
    assert kafka.committed_offsets == {(TOPIC, 0): 3}


@pytest.mark.parametrize("offset", [0, 8])
def test_seek_in_on_undecodable_determines_the_committed_offset(kafka: Kafka, offset: int) -> None:
    consumer = create_consumer(group="g", on_undecodable=lambda error: consumer.seek(TOPIC, 0, offset))
    kafka.rounds += [[kafka.assign_event(BOTH), Fetched(4), Fetched(5, bytes=b"junk")], [Fetched(offset)]]
    assert [next(consumer).offset for _ in range(2)] == [4, offset]
    consumer.mark_unfinished()
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): offset}


@pytest.mark.parametrize("commits", [False, True])
def test_failed_on_undecodable_is_not_committed(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, commits: bool) -> None:
    def fail(error: UndecodableMessage) -> None:
        if commits:
            with monkeypatch.context() as patched:
                patched.setattr(kafka, "commit", time_out)
                consumer.commit()
        raise SourceUnavailable("of the application")

    def time_out(**options: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer = create_consumer(group="g", on_undecodable=fail)
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(4), Fetched(5, bytes=b"junk")])
    assert next(consumer).offset == 4
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            next(consumer)
        consumer.commit()
        assert kafka.committed_offsets == {(TOPIC, 0): 5}


@pytest.mark.parametrize(("sign", "offset"), [(OFFSET_BEGINNING, 0), (OFFSET_END, 2)])
def test_seek_to_beginning_or_end_can_be_committed(kafka: Kafka, sign: int, offset: int) -> None:
    consumer = create_consumer(group="g")
    kafka.rounds.append([kafka.assign_event(BOTH), Fetched(0), Fetched(1, partition_number=1)])
    assert offsets(consumer) == [0, 1]
    consumer.seek(TOPIC, 0, sign)
    assert kafka.sought == {(TOPIC, 0): offset}
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): offset, (TOPIC, 1): 2}


@pytest.mark.parametrize("offset", [-5, 1.5, "7", None, True, 2**63])
def test_seek_to_something_other_than_an_offset_is_an_error(kafka: Kafka, offset: Any) -> None:
    consumer = create_consumer()
    with pytest.raises(ValueError, match=rf"\borders\b.* 0\b.*{re.escape(repr(offset))} is no offset"):
        consumer.seek(TOPIC, 0, offset)


@pytest.mark.parametrize("given", ["orders", 7, [TOPIC], [(TOPIC, "0")], [(TOPIC, -1)], [(7, 0)], [[TOPIC, 0]], [None]])
def test_pausing_something_other_than_partitions_is_an_error(kafka: Kafka, given: Any) -> None:
    consumer = create_consumer()
    for call in (consumer.pause, consumer.resume):
        with pytest.raises(ValueError, match="expected pairs of a topic and a partition number"):
            call(given)


def test_consumer_is_closed_if_its_counter_cannot_be_created(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no producer")

    closed: list[bool] = []
    monkeypatch.setattr(consumer_module, "ConsumerCounter", fail)
    monkeypatch.setattr(kafka, "close", lambda: closed.append(True))
    with pytest.raises(ValueError, match="no producer"):
        create_consumer(app="reader")
    assert closed == [True]


def test_requeued_record_of_a_paused_partition_is_delivered_first(kafka: Kafka) -> None:
    def hold(error: UndecodableMessage) -> None:
        if consumer._buffer.paused():
            return
        consumer.pause([(TOPIC, 0)])
        raise OSError("the store is away")

    kafka.rounds.append([Fetched(0, bytes=b"text"), Fetched(1), Fetched(5, partition_number=1)])
    consumer = create_consumer(on_undecodable=hold)
    with pytest.raises(OSError, match="the store is away"):
        next(consumer)
    assert offsets(consumer) == [5]
    consumer._options = dataclasses.replace(consumer._options, on_undecodable=None)
    consumer.resume()
    with pytest.raises(UndecodableMessage):
        next(consumer)
    assert offsets(consumer) == [1]


def test_next_within_returns_the_reason_for_no_message(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_watch, "STALLED_S", 2 * HOUR_S)
    consumer = create_consumer(idle_timeout_s=None, until_end=True, partitions=[0])
    timeout, end = consumer_module.NoMessage.TIMEOUT, consumer_module.NoMessage.END
    assert consumer.next_within(60, 0.0) is timeout
    kafka.rounds.append([Fetched(0), Fetched(1)])
    found = [consumer.next_within(60, 0.0) for _ in range(2)]
    assert [each.offset for each in found if isinstance(each, consumer_module.Message)] == [0, 1]
    assert consumer.next_within(60, 0.0) is end


def test_idle_timeout_counts_over_several_calls_of_next_within(kafka: Kafka) -> None:
    consumer = create_consumer(idle_timeout_s=2.5 * HOUR_S)
    start_s = kafka.now_s
    found = [consumer.next_within(60, start_s) for _ in range(3)]
    assert found == [
        consumer_module.NoMessage.TIMEOUT,
        consumer_module.NoMessage.TIMEOUT,
        consumer_module.NoMessage.END,
    ]
    assert next(consumer, None) is None and kafka.now_s == 6 * HOUR_S  # a new call counts from the start


def test_next_within_respects_its_timeout(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def poll(timeout_s: float) -> None:
        waited.append(timeout_s)
        kafka.now_s += timeout_s

    monkeypatch.setattr(kafka, "poll", poll)
    consumer = create_consumer(idle_timeout_s=2.0)
    assert consumer.next_within(0.75, 0.0) is consumer_module.NoMessage.TIMEOUT
    assert waited == [0.5, 0.25]
    assert next(consumer, None) is None
    assert waited[2:] == [0.5] * 5


def test_counts_are_published_while_records_are_buffered(kafka: Kafka) -> None:
    published_at: list[float] = []
    consumer = create_consumer()
    consumer._count = SimpleNamespace(  # type: ignore[assignment]
        add=lambda record, time_ms: None, publish_if_due=lambda: published_at.append(kafka.now_s)
    )
    kafka.rounds.append([Fetched(n) for n in range(6)])
    for _ in range(6):
        next(consumer)
        kafka.now_s += 0.6
    assert published_at == pytest.approx([0.0, 1.2, 2.4])


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("buffered", [0, 1])
def test_records_of_an_interrupted_fetch_are_fetched_again(kafka: Kafka, buffered: int) -> None:
    """The Kafka client returned it, but it did not arrive."""
    consumer = create_consumer(group="g", auto_commit=True)
    kafka.committed_offsets = {(TOPIC, 0): 5 - buffered}
    kafka.rounds.append([kafka.assign_event(BOTH), *(Fetched(n) for n in range(5 - buffered, 5))])
    assert len(offsets(consumer)) == buffered
    kafka.positions = {(TOPIC, 0): 7}
    kafka.rounds.append([Fetched(5), Fetched(6), interrupt])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    kafka.rounds.append([Fetched(5), Fetched(6), Fetched(7)])
    assert offsets(consumer) == [5, 6, 7]
    assert kafka.sought == {(TOPIC, 0): 5}


def test_end_event_of_an_interrupted_fetch_is_requested_again(kafka: Kafka) -> None:
    consumer = create_consumer(until_end=True, idle_timeout_s=None)
    kafka.rounds.append([Fetched(2, problem=KafkaError(KafkaError._PARTITION_EOF)), interrupt])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    ends = [
        Fetched(end, partition_number=topic_partition, problem=KafkaError(KafkaError._PARTITION_EOF))
        for topic_partition, end in ((0, 2), (1, 0))
    ]
    kafka.rounds.append([*ends])
    assert offsets(consumer) == []
    assert kafka.sought == dict.fromkeys(BOTH, OFFSET_BEGINNING)


@pytest.mark.parametrize("by_handler", [True, False])
def test_close_is_deferred_until_the_kafka_client_returns(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, by_handler: bool
) -> None:
    """The Kafka client cannot be closed during a call."""
    done: list[str] = []

    def close(*args: object) -> None:
        consumer.close()
        done.append("called")

    monkeypatch.setattr(kafka, "close", lambda: done.append("closed"))
    consumer = create_consumer(group="g", auto_commit=True, on_assign=None if by_handler else close)
    kafka.rounds += [
        [kafka.assign_event(BOTH), Fetched(0)],
        [close if by_handler else kafka.assign_event(BOTH), Fetched(1)],
        [Fetched(2)],
    ]
    assert offsets(consumer) == ([0] if by_handler else [])
    assert done == ["called", "closed"]
    assert kafka.committed_offsets == ({(TOPIC, 0): 1} if by_handler else {})
    assert offsets(consumer) == []
    consumer.close()
    assert done.count("closed") == 1


def test_signal_handler_may_close_and_raise(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        consumer.close()
        raise KeyboardInterrupt

    done: list[str] = []
    monkeypatch.setattr(kafka, "close", lambda: done.append("closed"))
    consumer = create_consumer(group="g")
    kafka.rounds.append([end])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    assert done == ["closed"]


@pytest.mark.parametrize("first", [["orders"], "orders"])
def test_topics_without_a_name_are_an_error_that_shows_the_call(first: Any) -> None:
    with pytest.raises(TypeError, match=r"expected Consumer\(topics="):
        Consumer(first)
