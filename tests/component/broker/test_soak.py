"""Half an hour of everything that clients do, at once: the broker's memory, descriptors, threads and files stay flat.

HEADRACE_SOAK_MINUTES is how long it takes. What a broker keeps on purpose is bounded here: producers by a fixed number
of transactional ids, groups by a fixed number of names, records by `retention.bytes` and compaction.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES") or 30)
LOOK_S = 2.0
PATIENCE_S = 60
QUIET = {"log_level": 0}
BOUNDED = {"retention.bytes": "2000000", "segment.bytes": "500000", "retention.ms": "-1"}  # full in a few minutes
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1000000", "min.cleanable.dirty.ratio": "0.1"}
VALUE = b"v" * 200
KEYS = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """What the broker holds at a moment."""

    memory_kb: int
    descriptors: int
    threads: int
    disk_kb: int
    files: int


SLACK = Sample(memory_kb=4_000, descriptors=8, threads=2, disk_kb=4_000, files=16)
"""What the last third may have more of, in the middle, than the third before it: noise of what comes and goes."""


def look(pid: int, data_dir: Path) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes = []
    for directory, _, names in os.walk(data_dir):  # which goes on where a directory has just gone
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(directory, name).stat().st_blocks // 2)
    return Sample(
        memory_kb=int(status["VmRSS"].split()[0]),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        disk_kb=sum(sizes),
        files=len(sizes),
    )


def middle(samples: Sequence[Sample]) -> Sample:
    return Sample(*(int(statistics.median(column)) for column in zip(*map(astuple, samples), strict=True)))


class Life:
    """Clients that go on until told otherwise, each in a thread of its own, and how often each did what it does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.over = threading.Event()
        self.rounds: dict[str, int] = {}
        self.failures: list[str] = []
        self._threads: list[threading.Thread] = []

    def live(self, name: str, rounds: Callable[[], Iterator[int]]) -> None:
        """`rounds` yields how much it has done since the last time, and ends by itself when this is over."""

        def run() -> None:
            self.rounds[name] = 0
            try:
                for done in rounds():
                    self.rounds[name] += done
            except Exception as error:
                self.failures.append(f"{name}: {error!r}")
                self.over.set()

        thread = threading.Thread(target=run, name=name)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def producer(self, **settings: Any) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({"bootstrap.servers": self.address, **QUIET, **settings})

    def consumer(self, group: str, **settings: Any) -> confluent_kafka.Consumer:
        given = {"bootstrap.servers": self.address, "group.id": group, "auto.offset.reset": "earliest", **QUIET}
        return confluent_kafka.Consumer({**given, **settings})

    def steady(self) -> Iterator[int]:
        """An idempotent producer of numbers, some 500 a second."""
        producer = self.producer(**{"enable.idempotence": True})
        for number in itertools.count():
            if self.over.wait(0.002):
                break
            producer.produce("steady", VALUE, key=b"%d" % number)
            producer.poll(0)
            yield 1
        assert producer.flush(PATIENCE_S) == 0

    def following(self) -> Iterator[int]:
        """A group that keeps up with it, and misses and doubles nothing in any partition."""
        consumer = self.consumer("following")
        consumer.subscribe(["steady"])
        expected: dict[int, int] = {}
        while not self.over.is_set():
            messages = consumer.consume(1000, 0.5)
            for message in messages:
                assert not message.error(), message.error()
                partition, offset = message.partition(), message.offset()
                assert expected.get(partition, offset) == offset, f"partition {partition}: a hole before {offset}"
                expected[partition] = offset + 1
            yield len(messages)
        consumer.close()

    def keyed(self) -> Iterator[int]:
        """New values of a hundred keys, and now and then the end of one."""
        producer = self.producer()
        while not self.over.wait(0.002):
            gone = random.random() < 0.05
            producer.produce("keyed", None if gone else VALUE, key=b"%d" % random.randrange(KEYS))
            producer.poll(0)
            yield 1
        assert producer.flush(PATIENCE_S) == 0

    def transactions(self) -> Iterator[int]:
        """Transactions of new processes with few names, a third of them aborted, a third left open."""
        for number in itertools.count():
            if self.over.wait(0.2):
                return
            producer = self.producer(**{"transactional.id": f"copier-{number % 8}", "linger.ms": 0})
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            for _ in range(50):
                producer.produce("transacted", VALUE)
            assert producer.flush(PATIENCE_S) == 0
            if number % 3 == 0:
                producer.commit_transaction(PATIENCE_S)
            elif number % 3 == 1:
                producer.abort_transaction(PATIENCE_S)
            yield 1

    def members(self) -> Iterator[int]:
        """Members of a few groups that come, commit and go."""
        for number in itertools.count():
            if self.over.is_set():
                return
            consumer = KafkaConsumer(
                "steady",
                bootstrap_servers=self.address,
                group_id=f"visitors-{number % 5}",
                auto_offset_reset="latest",
                isolation_level="read_committed",
            )
            consumer.poll(timeout_ms=1000)
            consumer.commit()
            consumer.close()
            yield 1

    def topics(self) -> Iterator[int]:
        """Topics that come, are written, read by a group, and go."""
        admin = AdminClient({"bootstrap.servers": self.address, **QUIET})
        for number in itertools.count():
            if self.over.wait(0.5):
                return
            name = f"passing-{number}"
            admin.create_topics([NewTopic(name, 3)])[name].result(PATIENCE_S)
            producer = self.producer()
            for _ in range(100):
                producer.produce(name, VALUE)
            assert producer.flush(PATIENCE_S) == 0
            consumer = self.consumer(f"passing-{number % 5}", **{"enable.auto.commit": False})
            consumer.assign([confluent_kafka.TopicPartition(name, index, 0) for index in range(3)])
            seen, deadline = 0, time.monotonic() + PATIENCE_S
            while seen < 100 and time.monotonic() < deadline:
                seen += sum(not message.error() for message in consumer.consume(100, 0.5))
            assert seen == 100
            consumer.commit(offsets=[confluent_kafka.TopicPartition(name, 0, 1)], asynchronous=False)
            consumer.close()
            admin.delete_topics([name])[name].result(PATIENCE_S)
            yield 1

    def strangers(self) -> Iterator[int]:
        """Connections that say nonsense, half of something, or nothing, and hang up in all ways."""
        host, _, port = self.address.rpartition(":")
        chance = random.Random(7)
        held: list[socket.socket] = []
        while not self.over.wait(0.05):
            connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            body = chance.randbytes(chance.randrange(200))
            frame = struct.pack(">ihhi", 8 + len(body), chance.randrange(80), chance.randrange(15), 1) + body
            with contextlib.suppress(ConnectionError):
                connection.sendall(frame[: chance.randrange(len(frame) + 1)] if chance.random() < 0.5 else frame)
            held.append(connection)
            if len(held) > 20:
                leaving = held.pop(chance.randrange(len(held)))
                if chance.random() < 0.5:  # a reset
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.close()
            yield 1
        for connection in held:
            connection.close()


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_half_an_hour_of_everything_leaves_nothing_behind(tmp_path: Path, start_service: Any) -> None:
    service = start_service(
        "headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"
    )
    life = Life(service.addresses["broker"])
    admin = AdminClient({"bootstrap.servers": life.address, **QUIET})
    made = [
        NewTopic("steady", 4, config=BOUNDED),
        NewTopic("transacted", 2, config=BOUNDED),
        NewTopic("keyed", 2, config=COMPACTED),
    ]
    for future in admin.create_topics(made).values():
        future.result(PATIENCE_S)
    for rounds in (
        life.steady,
        life.following,
        life.keyed,
        life.transactions,
        life.members,
        life.topics,
        life.strangers,
    ):
        life.live(rounds.__name__, rounds)
    samples = []
    deadline = time.monotonic() + MINUTES * 60
    while time.monotonic() < deadline and not life.over.wait(LOOK_S):
        samples.append(look(service.process.pid, tmp_path))
    life.end()
    print(f"\n{MINUTES:g} minutes:", ", ".join(f"{name} {count:,}" for name, count in life.rounds.items()))
    sixth = len(samples) // 6
    for number in range(6):
        print(f"  {number + 1} of 6:", middle(samples[number * sixth : (number + 1) * sixth]))
    assert life.failures == []
    before, after = middle(samples[2 * sixth : 4 * sixth]), middle(samples[4 * sixth :])
    grown = [
        f"{field.name} {getattr(before, field.name)} -> {getattr(after, field.name)}"
        for field in fields(Sample)
        if getattr(after, field.name) > getattr(before, field.name) + getattr(SLACK, field.name)
    ]
    assert grown == []
    assert not any("Traceback" in line for line in service.errors)
    assert service.stop() == 0
