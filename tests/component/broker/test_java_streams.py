"""Kafka Streams with exactly-once, killed inside a transaction: `tests/support/java/WordCount.java`."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from support.java_oracle import compile_program
from support.servers.kafka_programs import WAIT_TIMEOUT_S, JavaProgram, program_jars, read_messages, wait_until

pytestmark = pytest.mark.java

PARTITIONS = 2
LINES = [f"line {'odd' if number % 2 else 'even'} of-{number % 13}" for number in range(3000)]
FIRST, SLICE = 600, 20
WORDS = Counter(itertools.chain.from_iterable(line.split() for line in LINES))
REPARTITION = "word-count-words-repartition"
OWN_CONFIGURATION = {
    REPARTITION: {"cleanup.policy": "delete", "retention.ms": "-1"},
    "word-count-counts-changelog": {"cleanup.policy": "compact"},
    "word-count-daily-changelog": {"cleanup.policy": "compact,delete"},
}
"""The configuration that Streams sets on its internal topics, without sizes and times."""


class Broker:
    """The requests of this test."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._admin = AdminClient({"bootstrap.servers": address})
        self._producer = confluent_kafka.Producer({"bootstrap.servers": address})

    def make_topics(self, *names: str) -> None:
        for future in self._admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
            future.result(WAIT_TIMEOUT_S)

    def produce(self, lines: list[str]) -> None:
        for line in lines:
            self._producer.produce("lines", line.encode())
        assert self._producer.flush(WAIT_TIMEOUT_S) == 0

    def offsets(self, topic: str, spec: OffsetSpec, isolation: IsolationLevel) -> list[int]:
        topic_partitions = {TopicPartition(topic, index): spec for index in range(PARTITIONS)}
        responses = self._admin.list_offsets(topic_partitions, isolation_level=isolation)
        return [
            responses[topic_partition].result(WAIT_TIMEOUT_S).offset
            for topic_partition in sorted(responses, key=lambda one: one.partition)
        ]

    def ends(self, isolation: IsolationLevel) -> list[int]:
        """Returns the end offsets of the counts topic."""
        return self.offsets("counts", OffsetSpec.latest(), isolation)

    def starts(self, topic: str) -> list[int]:
        return self.offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def is_in_transaction(self) -> bool:
        """Returns whether there are uncommitted counts."""
        return self.ends(IsolationLevel.READ_COMMITTED) != self.ends(IsolationLevel.READ_UNCOMMITTED)

    def counts(self, isolation: str) -> dict[str, list[int]]:
        """Returns all counts of each word at this isolation level."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for message in read_messages(self._address, "counts", PARTITIONS, isolation):
            found[message.key().decode()].append(int(message.value()))
        return dict(found)

    def configuration(self, topic: str) -> dict[str, str]:
        (described,) = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return {name: entry.value for name, entry in described.result(WAIT_TIMEOUT_S).items() if not entry.is_default}


def number_of(counts: dict[str, list[int]]) -> int:
    return sum(map(len, counts.values()))


def test_words_are_counted_exactly_once_over_a_kill(broker_address: str, tmp_path: Path) -> None:
    broker = Broker(broker_address)
    broker.make_topics("lines", "counts")
    classpath = program_jars()
    classpath = f"{compile_program('WordCount', classpath, tmp_path / 'classes')}:{classpath}"
    run = ("WordCount", broker_address, tmp_path / "state")
    broker.produce(LINES[:FIRST])
    rest = LINES[FIRST:]

    def is_killed_in_a_transaction() -> bool:
        """Determined after the transaction is over: a commit may have been on its way to the broker."""
        before = sum(broker.ends(IsolationLevel.READ_COMMITTED))
        broker.produce(rest[:SLICE])
        del rest[:SLICE]
        with JavaProgram(tmp_path / "killed.log", classpath, *run) as killed:
            killed.wait_until(
                lambda: sum(broker.ends(IsolationLevel.READ_COMMITTED)) > before, "it committed something"
            )

            def is_caught() -> bool:
                """Returns whether the program is stopped while a transaction is open; gives it more lines each time."""
                assert rest, "no transaction was open at any stop"
                broker.produce(rest[:SLICE])
                del rest[:SLICE]
                killed.pause()
                if broker.is_in_transaction():
                    return True
                killed.resume()
                return False

            killed.wait_until(is_caught, "a transaction was open")
            killed.kill()
        wait_until(lambda: not broker.is_in_transaction(), "the killed program's transaction was ended")
        return number_of(broker.counts("read_uncommitted")) > number_of(broker.counts("read_committed"))

    while not is_killed_in_a_transaction():
        pass
    assert 0 < number_of(broker.counts("read_committed")) < WORDS.total()
    broker.produce(rest)
    with JavaProgram(tmp_path / "again.log", classpath, *run) as restarted:
        restarted.wait_until(
            lambda: number_of(broker.counts("read_committed")) >= WORDS.total(), "all words were counted"
        )
        restarted.wait_until(
            lambda: min(broker.starts(REPARTITION)) > 0, "processed records of the repartition topic were deleted"
        )
        restarted.stop()
    assert broker.counts("read_committed") == {word: list(range(1, number + 1)) for word, number in WORDS.items()}
    assert number_of(broker.counts("read_uncommitted")) > WORDS.total()
    for topic, own in OWN_CONFIGURATION.items():
        assert own.items() <= broker.configuration(topic).items()
