"""What a consumer makes of each answer of the Kafka client, which here gives what it was told to."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from headrace import Consumer, Settings, SourceUnavailable, UndecodableMessage
from headrace.clients import consumer as consumer_module
from headrace.clients import group_commits
from headrace.clients.partitions import Place, at_time

TOPIC = "orders"
BOTH = frozenset({(TOPIC, 0), (TOPIC, 1)})


class Given(NamedTuple):
    """A tombstone, which needs no registry, where no value is said."""

    at: int
    of: int = 0
    problem: KafkaError | None = None
    bytes: bytes | None = None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self.of

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
    """As confluent-kafka: a callback that raises takes with it what was found, and makes a start of its own where
    `assign` was not called. An hour passes when there is nothing to give."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.callbacks: dict[str, Any] = {}
        self.rounds: deque[list[Given | Callable[[], None]]] = deque()
        self.assigned: dict[Place, int] = {}
        self.is_assigned = False
        self.named: list[Place] = []
        self.committed_offsets: dict[Place, int] = {}
        self.paused: list[frozenset[Place]] = []
        self.resumed: list[frozenset[Place]] = []
        self.positions: dict[Place, int] = {}
        self.sought: dict[Place, int] = {}
        self.committed_in: list[int] = []
        self.unanswered = 0
        self.now_s = 0.0

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def get_watermark_offsets(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        return 0, 2 if partition.partition == 0 else 0

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def consume(self, count_max: int, timeout_s: float) -> list[Given]:
        found = []
        for each in self.rounds.popleft() if self.rounds else []:
            if isinstance(each, Given):
                found.append(each)
            else:
                each()
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

    def give(self, places: Iterable[Place]) -> Callable[[], None]:
        """The callback of the group that gives them, for a round."""

        def given() -> None:
            self.is_assigned = False
            partitions = [TopicPartition(*place) for place in sorted(places)]
            self.callbacks["on_assign"](self, partitions)
            if not self.is_assigned:
                self.assign(partitions)

        return given

    def take(self, places: Iterable[Place]) -> Callable[[], None]:
        return lambda: self.callbacks["on_revoke"](self, [TopicPartition(*place) for place in sorted(places)])


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()

    def made(client: object, config: dict[str, Any]) -> Kafka:
        kafka.config = config
        return kafka

    monkeypatch.setattr(consumer_module, "reach_brokers", lambda settings, timeout_s: {})
    monkeypatch.setattr(consumer_module, "made", made)
    monkeypatch.setattr(consumer_module, "time", SimpleNamespace(monotonic=lambda: kafka.now_s))
    return kafka


def consumer_of(**options: Any) -> Consumer:
    return Consumer(Settings(), **{"topics": [TOPIC], "idle_timeout_s": HOUR_S / 2, **options})


def offsets(consumer: Consumer) -> list[int]:
    return [message.offset for message in consumer]


def refused(code: int) -> Given:
    return Given(0, problem=KafkaError(code))


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTO_OFFSET_RESET, KafkaError._AUTHENTICATION]
)
def test_a_refusal_among_messages_is_raised_and_loses_none_of_them(kafka: Kafka, code: int) -> None:
    kafka.rounds.append([Given(0), refused(code), Given(1), refused(code), Given(2)])
    consumer = consumer_of()
    with pytest.raises(SourceUnavailable, match=rf"\b{KafkaError(code).name()}\b"):
        next(consumer)
    assert offsets(consumer) == [0, 1, 2]


def test_what_ends_the_kafka_client_is_raised_again_and_again(kafka: Kafka) -> None:
    """It says so once, for one in the place of a static member whose name another has taken."""
    kafka.rounds.append([kafka.give(BOTH), Given(0), refused(KafkaError._FATAL), Given(1)])
    consumer = consumer_of(group="g", member="m")
    for use in (lambda: next(consumer), lambda: next(consumer), consumer.commit):
        with pytest.raises(SourceUnavailable, match="_FATAL"):
            use()
    consumer.close()


@pytest.mark.parametrize("names", [{"group": ""}, {"group": "g", "member": ""}])
def test_an_empty_name_is_refused(kafka: Kafka, names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"group.*member"):
        consumer_of(**names)


@pytest.mark.parametrize("topics", ["t", [], [None], ["t", ""], iter(()), [b"t"]])
def test_topics_are_a_list_of_names(kafka: Kafka, topics: Any) -> None:
    with pytest.raises(ValueError, match=r"\btopics\b"):
        consumer_of(topics=topics)


def test_what_is_named_twice_is_read_once(kafka: Kafka) -> None:
    with consumer_of(topics=iter(["t", "t"]), partitions=[0, 0, 1]):
        assert kafka.named == [("t", 0), ("t", 1)]


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e9, 86_400.1])
def test_a_time_that_the_kafka_client_does_not_take_is_refused(kafka: Kafka, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"handling_timeout_s=.*\b86400 s\b"):
        consumer_of(handling_timeout_s=seconds)


def test_a_reader_schema_is_looked_at_before_brokers_are(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.consumer.made", lambda *_: pytest.fail("a client was made"))
    with pytest.raises(ValueError, match="reader_schema"):
        consumer_of(reader_schema={})


def test_a_time_before_1970_begins_at_the_beginning(kafka: Kafka) -> None:
    asked: list[int] = []

    class Asked:
        def offsets_for_times(self, places: list[TopicPartition], _: float) -> list[TopicPartition]:
            asked.extend(each.offset for each in places)
            return [TopicPartition(each.topic, each.partition, 0) for each in places]

    assert [each.offset for each in at_time(Asked(), [("t", 0)], -5)] == [0]
    assert asked == [0]


def test_what_is_tried_again_is_not_raised(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.rounds.append([Given(0), refused(KafkaError._TRANSPORT), refused(KafkaError._MAX_POLL_EXCEEDED), Given(1)])
    consumer = consumer_of(options={"max.poll.interval.ms": "60000"})
    assert offsets(consumer) == [0, 1]
    assert "topic=orders error=_TRANSPORT" in caplog.text
    assert "handling_timeout_s=60" in caplog.text


@pytest.mark.parametrize("where", ["on_assign", "on_revoke", "on_commit", "error_cb", "stats_cb", "throttle_cb"])
@pytest.mark.parametrize("error", [RuntimeError("of the application"), KeyboardInterrupt("of the application")])
def test_a_callback_that_raises_loses_no_messages(kafka: Kafka, where: str, error: BaseException) -> None:
    def fail(*args: object) -> None:
        raise error

    named: dict[str, Any] = {where: fail} if where in ("on_assign", "on_revoke") else {"options": {where: fail}}
    consumer = consumer_of(group="g", **named)
    called = {
        "on_assign": kafka.give(BOTH),
        "on_revoke": kafka.take({(TOPIC, 1)}),
        "on_commit": lambda: kafka.config["on_commit"](None, []),
    }.get(where, lambda: kafka.config[where](None))
    kafka.rounds.append([Given(0), called, Given(1)])
    with pytest.raises(type(error), match="of the application"):
        next(consumer)
    assert offsets(consumer) == [0, 1]
    assert consumer.assignment() == (BOTH if where == "on_assign" else frozenset())
    consumer.close()


def test_a_callback_that_raises_while_closing_keeps_nothing_open(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(places: frozenset[Place]) -> None:
        raise RuntimeError("of the application")

    closed = []
    monkeypatch.setattr(kafka, "close", kafka.take(BOTH))
    consumer = consumer_of(group="g", on_revoke=fail)
    monkeypatch.setattr(consumer._registry, "close", lambda: closed.append("registry"))
    with pytest.raises(RuntimeError, match="of the application"):
        consumer.close()
    assert closed == ["registry"]
    consumer.close()


def closing_with_a_count(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> tuple[Consumer, list[float]]:
    """One that has read something, and how long it lets its audit take when it is closed."""
    allowed: list[float] = []
    count = SimpleNamespace(close=allowed.append, add=lambda *args: None, now_and_then=lambda: None)
    monkeypatch.setattr(consumer_module, "ConsumerCount", lambda *args: count)
    consumer = consumer_of(group="g", auto_commit=True, app="wall")
    kafka.rounds.append([kafka.give(BOTH), Given(0)])
    assert next(consumer).offset == 0
    return consumer, allowed


def test_the_audit_may_take_what_is_left_of_the_time_to_close(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(**options: Any) -> Any:
        kafka.now_s += 4
        return options["offsets"]

    consumer, allowed = closing_with_a_count(kafka, monkeypatch)
    monkeypatch.setattr(kafka, "commit", commit)
    consumer.close()
    assert allowed == [consumer_module.CLOSE_TIMEOUT_S - 4]


def test_the_audit_is_not_waited_for_where_brokers_do_not_answer(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    consumer, allowed = closing_with_a_count(kafka, monkeypatch)
    monkeypatch.setattr(kafka, "commit", lambda **options: answered.wait(60))
    monkeypatch.setattr(consumer_module, "CLOSE_TIMEOUT_S", 0.01)
    with pytest.raises(SourceUnavailable, match=r"\bg\b.*\b0\.01 s\b"):
        consumer.close()
    assert allowed == [0.0]
    answered.set()


def test_of_two_failures_the_first_is_raised_and_the_other_logged(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(places: frozenset[Place]) -> None:
        raise RuntimeError("of the application")

    consumer = consumer_of(group="g", on_assign=fail, idle_timeout_s=None)
    kafka.rounds += [[kafka.give(BOTH), refused(KafkaError.UNKNOWN_TOPIC_OR_PART)], [Given(0)]]
    with pytest.raises(RuntimeError, match="of the application"):
        next(consumer)
    assert "error=SourceUnavailable: " in caplog.text
    assert next(consumer).offset == 0


def test_the_applications_on_commit_is_called_as_well(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []
    consumer_of(group="g", options={"on_commit": lambda error, partitions: told.append((error, partitions))})
    error = KafkaError(KafkaError._TIMED_OUT)
    kafka.config["on_commit"](error, ["a"])
    assert told == [(error, ["a"])]
    assert "group=g error=_TIMED_OUT" in caplog.text


def test_a_callback_may_be_none_as_for_the_kafka_client(kafka: Kafka) -> None:
    consumer_of(group="g", options={"error_cb": None, "on_commit": None})
    assert kafka.config["error_cb"] is None
    kafka.config["on_commit"](None, [])


STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


@STRATEGIES
def test_where_the_start_cannot_be_found_it_is_looked_for_again(kafka: Kafka, strategy: str) -> None:
    told: list[frozenset[Place]] = []
    consumer = consumer_of(
        group="g", start_at_ms=1, options={"partition.assignment.strategy": strategy}, on_assign=told.append
    )
    kafka.unanswered = 2
    kafka.committed_offsets = {(TOPIC, 1): 5}
    kafka.rounds.append([kafka.give(BOTH)])
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
            next(consumer)
        assert kafka.assigned == {} and consumer.assignment() == frozenset() and told == []
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 0): 7, (TOPIC, 1): 5}
    assert consumer.assignment() == BOTH and told == [BOTH]


@STRATEGIES
@pytest.mark.parametrize("auto_commit", [False, True])
def test_the_end_that_a_group_begins_at_is_committed(kafka: Kafka, strategy: str, auto_commit: bool) -> None:
    options = {"partition.assignment.strategy": strategy}
    consumer = consumer_of(group="g", from_end=True, auto_commit=auto_commit, options=options)
    kafka.committed_offsets = {(TOPIC, 1): 5}
    kafka.rounds.append([kafka.give(BOTH)])
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 0): 2, (TOPIC, 1): 5}
    assert kafka.committed_offsets == {(TOPIC, 1): 5} | ({(TOPIC, 0): 2} if auto_commit else {})
    # In a callback of the Kafka client a commit of another thread would wait for ever.
    assert kafka.committed_in == ([threading.get_ident()] if auto_commit else [])


def test_partitions_that_are_taken_back_before_their_start_is_found_are_not_begun(kafka: Kafka) -> None:
    told: list[frozenset[Place]] = []
    consumer = consumer_of(
        group="g",
        start_at_ms=1,
        options={"partition.assignment.strategy": "cooperative-sticky"},
        on_revoke=told.append,
    )
    kafka.rounds.append([kafka.give({(TOPIC, 0)})])
    assert offsets(consumer) == []
    kafka.unanswered = 1
    kafka.rounds.append([kafka.give({(TOPIC, 1), (TOPIC, 2)})])
    with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
        next(consumer)
    assert consumer.assignment() == {(TOPIC, 0)}
    kafka.rounds.append([kafka.take(BOTH)])
    assert offsets(consumer) == []
    assert kafka.assigned == {(TOPIC, 2): 7} and consumer.assignment() == {(TOPIC, 2)}
    assert told == [{(TOPIC, 0)}]


def test_partitions_that_are_taken_back_may_be_committed_in_their_callback_and_lost_ones_may_not(kafka: Kafka) -> None:
    """Without `auto_commit` that is where an application commits what it has finished."""
    calls: list[frozenset[Place]] = []

    def commit(places: frozenset[Place]) -> None:
        calls.append(places)
        consumer.commit_finished()

    consumer = consumer_of(group="g", on_revoke=commit)
    kafka.rounds += [[kafka.give({(TOPIC, 0)}), Given(0), Given(1)], [kafka.take({(TOPIC, 0)})]]
    assert offsets(consumer) == [0, 1]
    assert calls == [{(TOPIC, 0)}] and kafka.committed_offsets == {(TOPIC, 0): 2}
    assert consumer.assignment() == frozenset()
    kafka.committed_offsets.clear()
    lost = [TopicPartition(TOPIC, 0)]
    kafka.rounds += [[kafka.give({(TOPIC, 0)}), Given(2)], [lambda: kafka.callbacks["on_lost"](kafka, lost)]]
    assert offsets(consumer) == [2]
    assert calls == 2 * [{(TOPIC, 0)}] and kafka.committed_offsets == {}


def test_a_member_without_a_start_may_lose_all_of_it(kafka: Kafka) -> None:
    consumer = consumer_of(group="g", start_at_ms=1)
    kafka.unanswered = 1
    kafka.rounds += [[kafka.give(BOTH)], [kafka.take(BOTH)]]
    with pytest.raises(SourceUnavailable, match="_TIMED_OUT"):
        next(consumer)
    assert offsets(consumer) == []
    assert kafka.assigned == {} and consumer.assignment() == frozenset()


@pytest.mark.parametrize(("strategy", "own"), [("range", {(TOPIC, 1)}), ("cooperative-sticky", BOTH)])
def test_a_cooperative_member_keeps_what_it_has(kafka: Kafka, strategy: str, own: frozenset[Place]) -> None:
    consumer = consumer_of(group="g", options={"partition.assignment.strategy": strategy})
    kafka.rounds += [[kafka.give({(TOPIC, 0)})], [kafka.give({(TOPIC, 1)})]]
    assert offsets(consumer) == []
    assert consumer.assignment() == kafka.assigned.keys() == own


def test_the_message_at_hand_is_committed_when_the_application_says_so(kafka: Kafka) -> None:
    consumer = consumer_of(group="g")
    kafka.rounds.append([kafka.give(BOTH), Given(0), Given(1)])
    next(consumer), next(consumer)
    consumer.commit_finished()
    assert kafka.committed_offsets == {(TOPIC, 0): 1}
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): 2}


def gone(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Deletes partition 1; of a commit with it the Kafka client says that all of it failed. Returns the topics that are
    looked up from then on."""

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


def test_a_commit_names_a_partition_that_is_gone_once(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = consumer_of(group="g")
    kafka.rounds.append([kafka.give(BOTH), Given(0), Given(0, of=1)])
    assert offsets(consumer) == [0, 0]
    gone(kafka, monkeypatch)
    with pytest.raises(SourceUnavailable, match="orders partition 1") as raised:
        consumer.commit()
    assert (raised.value.topic, raised.value.partition) == (TOPIC, 1)
    assert kafka.committed_offsets == {(TOPIC, 0): 1}
    consumer.commit()


def test_a_partition_that_is_gone_is_told_once(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_commits, "COMMIT_EVERY_S", 0.0)
    consumer = consumer_of(group="g", auto_commit=True)
    kafka.rounds.append([kafka.give(BOTH), Given(0), Given(0, of=1)])
    assert offsets(consumer) == [0, 0]
    looked_up = gone(kafka, monkeypatch)
    for offset in (1, 2, 3):
        kafka.rounds.append([Given(offset), Given(offset, of=1)] if offset == 1 else [Given(offset)])
        offsets(consumer)
    assert looked_up == [TOPIC] * 2, "once for each commit that failed"
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "group=g topic=orders partition=1" in line
    consumer.close()
    assert kafka.committed_offsets == {(TOPIC, 0): 4, (TOPIC, 1): 1}


def test_without_a_group_of_the_application_no_right_to_one_is_needed(kafka: Kafka) -> None:
    kafka.rounds.append([refused(KafkaError.GROUP_AUTHORIZATION_FAILED), Given(0)])
    assert offsets(consumer_of()) == [0]
    kafka.rounds.append([refused(KafkaError.GROUP_AUTHORIZATION_FAILED)])
    with pytest.raises(SourceUnavailable, match="GROUP_AUTHORIZATION_FAILED"):
        next(consumer_of(group="g"))


def test_a_partition_that_was_with_another_member_is_not_paused(kafka: Kafka) -> None:
    consumer = consumer_of(group="g")
    kafka.rounds.append([kafka.give(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds.append([kafka.take(BOTH), kafka.give({(TOPIC, 1)})])
    assert offsets(consumer) == []
    kafka.rounds.append([kafka.take({(TOPIC, 1)}), kafka.give(BOTH), Given(0), Given(1), Given(9, of=1)])
    assert offsets(consumer) == [0, 1]
    assert kafka.resumed[-1] == {(TOPIC, 0)} and kafka.paused[-1] == {(TOPIC, 1)}


def test_a_partition_that_comes_back_at_once_stays_paused_until_it_is_resumed(kafka: Kafka) -> None:
    consumer = consumer_of(group="g")
    kafka.rounds.append([kafka.give(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds += [[kafka.take(BOTH)], [kafka.give(BOTH), Given(0)]]
    assert offsets(consumer) == []
    assert kafka.paused[-1] == BOTH
    consumer.resume()
    assert offsets(consumer) == [0]
    consumer.pause()
    kafka.rounds.append([kafka.take(BOTH)])
    assert offsets(consumer) == []
    consumer.resume()
    kafka.rounds.append([kafka.give(BOTH), Given(1)])
    assert offsets(consumer) == [1]


def test_a_pause_from_before_a_partition_came_does_not_count(kafka: Kafka) -> None:
    consumer = consumer_of(group="g")
    consumer.pause([(TOPIC, 0)])
    kafka.rounds.append([kafka.give(BOTH), Given(0)])
    assert offsets(consumer) == [0]


def test_what_a_cooperative_member_keeps_stays_paused(kafka: Kafka) -> None:
    consumer = consumer_of(group="g", options={"partition.assignment.strategy": "cooperative-sticky"})
    kafka.rounds.append([kafka.give(BOTH)])
    assert offsets(consumer) == []
    consumer.pause()
    kafka.rounds.append([kafka.take({(TOPIC, 1)}), kafka.give({(TOPIC, 1)}), Given(0, of=0), Given(9, of=1)])
    assert offsets(consumer) == [9]
    assert kafka.resumed == [BOTH, {(TOPIC, 1)}]
    consumer.resume()
    assert offsets(consumer) == [0]


def test_resume_reaches_the_kafka_client_whatever_is_known_here(kafka: Kafka) -> None:
    consumer = consumer_of(partitions=[0])
    consumer.resume([(TOPIC, 1)])
    consumer.resume()
    assert kafka.resumed == [{(TOPIC, 1)}, {(TOPIC, 0)}]


class Flaky:
    """Decodes, but for the first time."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def decode(self, record: object) -> tuple[None, None, None]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return None, None, None


@pytest.mark.parametrize("error", [SourceUnavailable("the registry is away"), KeyboardInterrupt()])
def test_until_end_gives_again_what_could_not_be_decoded_for_now(kafka: Kafka, error: BaseException) -> None:
    kafka.rounds.append([Given(0), Given(1)])
    consumer = consumer_of(until_end=True, partitions=[0])
    assert next(consumer).offset == 0
    consumer._decoder = Flaky(error)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        next(consumer)
    assert offsets(consumer) == [1]


def test_a_message_whose_handler_fails_is_not_finished(kafka: Kafka) -> None:
    fails = [True, True, False]
    told: list[int] = []

    def set_aside(error: UndecodableMessage) -> None:
        told.append(error.offset)
        if fails.pop(0):
            raise OSError("the store is away")

    consumer = consumer_of(group="g", auto_commit=True, on_undecodable=set_aside)
    kafka.rounds.append([kafka.give(BOTH), Given(0), Given(1, bytes=b"text"), Given(2)])
    assert next(consumer).offset == 0
    for _ in range(2):
        with pytest.raises(OSError, match="the store is away"):
            next(consumer)
        consumer.commit()
        assert kafka.committed_offsets == {(TOPIC, 0): 1}
    assert offsets(consumer) == [2]
    assert told == [1, 1, 1]
    consumer.close()
    assert kafka.committed_offsets == {(TOPIC, 0): 3}


@pytest.mark.parametrize("offset", [0, 8])
def test_a_seek_of_on_undecodable_is_what_is_committed(kafka: Kafka, offset: int) -> None:
    consumer = consumer_of(group="g", on_undecodable=lambda error: consumer.seek(TOPIC, 0, offset))
    kafka.rounds += [[kafka.give(BOTH), Given(4), Given(5, bytes=b"junk")], [Given(offset)]]
    assert [next(consumer).offset for _ in range(2)] == [4, offset]
    consumer.let_go()
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): offset}


@pytest.mark.parametrize("commits", [False, True])
def test_what_on_undecodable_fails_with_is_not_committed(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    def fail(error: UndecodableMessage) -> None:
        if commits:
            with monkeypatch.context() as patched:
                patched.setattr(kafka, "commit", no_answer)
                consumer.commit()
        raise SourceUnavailable("of the application")

    def no_answer(**options: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer = consumer_of(group="g", on_undecodable=fail)
    kafka.rounds.append([kafka.give(BOTH), Given(4), Given(5, bytes=b"junk")])
    assert next(consumer).offset == 4
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            next(consumer)
        consumer.commit()
        assert kafka.committed_offsets == {(TOPIC, 0): 5}


@pytest.mark.parametrize(("sign", "offset"), [(OFFSET_BEGINNING, 0), (OFFSET_END, 2)])
def test_a_seek_to_either_end_can_be_committed(kafka: Kafka, sign: int, offset: int) -> None:
    consumer = consumer_of(group="g")
    kafka.rounds.append([kafka.give(BOTH), Given(0), Given(1, of=1)])
    assert offsets(consumer) == [0, 1]
    consumer.seek(TOPIC, 0, sign)
    assert kafka.sought == {(TOPIC, 0): offset}
    consumer.commit()
    assert kafka.committed_offsets == {(TOPIC, 0): offset, (TOPIC, 1): 2}


def test_an_offset_that_there_cannot_be_is_refused(kafka: Kafka) -> None:
    consumer = consumer_of()
    with pytest.raises(ValueError, match=r"\borders\b.* 0\b.* -5\b"):
        consumer.seek(TOPIC, 0, -5)


def test_what_is_put_back_while_its_partition_is_paused_comes_first_of_it(kafka: Kafka) -> None:
    def hold(error: UndecodableMessage) -> None:
        if consumer._fetched.paused():
            return
        consumer.pause([(TOPIC, 0)])
        raise OSError("the store is away")

    kafka.rounds.append([Given(0, bytes=b"text"), Given(1), Given(5, of=1)])
    consumer = consumer_of(on_undecodable=hold)
    with pytest.raises(OSError, match="the store is away"):
        next(consumer)
    assert offsets(consumer) == [5]
    consumer._on_undecodable = None
    consumer.resume()
    with pytest.raises(UndecodableMessage):
        next(consumer)
    assert offsets(consumer) == [1]


def test_next_within_says_why_there_is_no_message(kafka: Kafka) -> None:
    consumer = consumer_of(idle_timeout_s=None, until_end=True, partitions=[0])
    yet, ever = consumer_module.Nothing.YET, consumer_module.Nothing.EVER
    assert consumer.next_within(60, 0.0) is yet
    kafka.rounds.append([Given(0), Given(1)])
    found = [consumer.next_within(60, 0.0) for _ in range(2)]
    assert [each.offset for each in found if isinstance(each, consumer_module.Message)] == [0, 1]
    assert consumer.next_within(60, 0.0) is ever


def test_idleness_is_counted_over_all_that_was_asked_for_one_message(kafka: Kafka) -> None:
    consumer = consumer_of(idle_timeout_s=2.5 * HOUR_S)
    began = kafka.now_s
    found = [consumer.next_within(60, began) for _ in range(3)]
    assert found == [consumer_module.Nothing.YET, consumer_module.Nothing.YET, consumer_module.Nothing.EVER]
    assert next(consumer, None) is None and kafka.now_s == 6 * HOUR_S  # asked anew, and counted anew


def test_next_within_waits_no_longer_than_it_was_asked_to(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def poll(timeout_s: float) -> None:
        waited.append(timeout_s)
        kafka.now_s += timeout_s

    monkeypatch.setattr(kafka, "poll", poll)
    consumer = consumer_of(idle_timeout_s=2.0)
    assert consumer.next_within(0.75, 0.0) is consumer_module.Nothing.YET
    assert waited == [0.5, 0.25]
    assert next(consumer, None) is None
    assert waited[2:] == [0.5] * 5


def test_a_slow_application_is_counted_while_messages_wait(kafka: Kafka) -> None:
    looks: list[float] = []
    consumer = consumer_of()
    consumer._count = SimpleNamespace(  # type: ignore[assignment]
        add=lambda record, time_ms: None, now_and_then=lambda: looks.append(kafka.now_s)
    )
    kafka.rounds.append([Given(n) for n in range(6)])
    for _ in range(6):
        next(consumer)
        kafka.now_s += 0.6
    assert looks == pytest.approx([0.0, 1.2, 2.4])


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kept", [0, 1])
def test_what_was_taken_when_a_signal_handler_raised_is_fetched_again(kafka: Kafka, kept: int) -> None:
    """The Kafka client has given it, and is not to be believed that it arrived."""
    consumer = consumer_of(group="g", auto_commit=True)
    kafka.committed_offsets = {(TOPIC, 0): 5 - kept}
    kafka.rounds.append([kafka.give(BOTH), *(Given(n) for n in range(5 - kept, 5))])
    assert len(offsets(consumer)) == kept
    kafka.positions = {(TOPIC, 0): 7}
    kafka.rounds.append([Given(5), Given(6), interrupt])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    kafka.rounds.append([Given(5), Given(6), Given(7)])
    assert offsets(consumer) == [5, 6, 7]
    assert kafka.sought == {(TOPIC, 0): 5}


def test_an_end_that_was_told_when_a_signal_handler_raised_is_told_again(kafka: Kafka) -> None:
    consumer = consumer_of(until_end=True, idle_timeout_s=None)
    kafka.rounds.append([Given(2, problem=KafkaError(KafkaError._PARTITION_EOF)), interrupt])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    ends = [Given(end, of=place, problem=KafkaError(KafkaError._PARTITION_EOF)) for place, end in ((0, 2), (1, 0))]
    kafka.rounds.append([*ends])
    assert offsets(consumer) == []
    assert kafka.sought == dict.fromkeys(BOTH, OFFSET_BEGINNING)


@pytest.mark.parametrize("by_handler", [True, False])
def test_close_waits_until_the_kafka_client_has_returned(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, by_handler: bool
) -> None:
    """It would not survive to be closed in the midst of a call."""
    done: list[str] = []

    def close(*args: object) -> None:
        consumer.close()
        done.append("asked")

    monkeypatch.setattr(kafka, "close", lambda: done.append("closed"))
    consumer = consumer_of(group="g", auto_commit=True, on_assign=None if by_handler else close)
    kafka.rounds += [[kafka.give(BOTH), Given(0)], [close if by_handler else kafka.give(BOTH), Given(1)], [Given(2)]]
    assert offsets(consumer) == ([0] if by_handler else [])
    assert done == ["asked", "closed"]
    assert kafka.committed_offsets == ({(TOPIC, 0): 1} if by_handler else {})
    assert offsets(consumer) == []
    consumer.close()
    assert done.count("closed") == 1


def test_a_signal_handler_that_closes_and_raises_does_both(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        consumer.close()
        raise KeyboardInterrupt

    done: list[str] = []
    monkeypatch.setattr(kafka, "close", lambda: done.append("closed"))
    consumer = consumer_of(group="g")
    kafka.rounds.append([end])
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    assert done == ["closed"]
