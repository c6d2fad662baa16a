"""Half an hour of all client operations at once: the broker's memory, descriptors, threads and files must not grow.

HEADRACE_SOAK_MINUTES sets the duration. State that the broker stores on purpose is bounded here: producers by a fixed
number of transactional ids, groups by a fixed number of names, records by `retention.bytes` and compaction.
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
SAMPLE_INTERVAL_S = 2.0
TIMEOUT_S = 60
QUIET = {"log_level": 0}
# reached within a few minutes
BOUNDED = {"retention.bytes": "2000000", "segment.bytes": "500000", "retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1000000", "min.cleanable.dirty.ratio": "0.1"}
VALUE = b"v" * 200
KEYS = 100


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The broker's resource use at one time."""

    memory_kb: int
    descriptors: int
    threads: int
    disk_kb: int
    files: int


TOLERANCE = ResourceUse(memory_kb=4_000, descriptors=8, threads=2, disk_kb=4_000, files=16)
"""How much the mean of the last third may exceed that of the third before: normal fluctuation."""


def sample_resources(pid: int, data_dir: Path) -> ResourceUse:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes = []
    for directory, _, names in os.walk(data_dir):  # ignores directories that were just deleted
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(directory, name).stat().st_blocks // 2)
    return ResourceUse(
        memory_kb=int(status["VmRSS"].split()[0]),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        disk_kb=sum(sizes),
        files=len(sizes),
    )


def median_of(samples: Sequence[ResourceUse]) -> ResourceUse:
    return ResourceUse(*(int(statistics.median(column)) for column in zip(*map(astuple, samples), strict=True)))


class ClientThreads:
    """Clients in one thread each that run until stopped, and the number of their operations."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.over = threading.Event()
        self.rounds: dict[str, int] = {}
        self.failures: list[str] = []
        self._threads: list[threading.Thread] = []

    def run_in_thread(self, name: str, rounds: Callable[[], Iterator[int]]) -> None:
        """`rounds` yields the number of new operations, and ends when the test is over."""

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

    def numbered_producer(self) -> Iterator[int]:
        """An idempotent producer of numbers, about 500 a second."""
        producer = self.producer(**{"enable.idempotence": True})
        for number in itertools.count():
            if self.over.wait(0.002):
                break
            producer.produce("steady", VALUE, key=b"%d" % number)
            producer.poll(0)
            yield 1
        assert producer.flush(TIMEOUT_S) == 0

    def checked_group(self) -> Iterator[int]:
        """A group that keeps up with the producer and checks that no partition has lost or duplicate messages."""
        consumer = self.consumer("following")
        consumer.subscribe(["steady"])
        expected: dict[int, int] = {}
        while not self.over.is_set():
            messages = consumer.consume(1000, 0.5)
            for message in messages:
                assert not message.error(), message.error()
                partition, offset = message.partition(), message.offset()
                assert expected.get(partition, offset) == offset, f"partition {partition}: gap before {offset}"
                expected[partition] = offset + 1
            yield len(messages)
        consumer.close()

    def keyed(self) -> Iterator[int]:
        """New values of a hundred keys, and occasional tombstones."""
        producer = self.producer()
        while not self.over.wait(0.002):
            deleted = random.random() < 0.05
            producer.produce("keyed", None if deleted else VALUE, key=b"%d" % random.randrange(KEYS))
            producer.poll(0)
            yield 1
        assert producer.flush(TIMEOUT_S) == 0

    def transactions(self) -> Iterator[int]:
        """Transactions of new processes with few names: a third aborted, a third left open."""
        for number in itertools.count():
            if self.over.wait(0.2):
                return
            producer = self.producer(**{"transactional.id": f"copier-{number % 8}", "linger.ms": 0})
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
            for _ in range(50):
                producer.produce("transacted", VALUE)
            assert producer.flush(TIMEOUT_S) == 0
            if number % 3 == 0:
                producer.commit_transaction(TIMEOUT_S)
            elif number % 3 == 1:
                producer.abort_transaction(TIMEOUT_S)
            yield 1

    def members(self) -> Iterator[int]:
        """Members of a few groups that join, commit and leave."""
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
        """Topics that are created, written, read by a group, and deleted."""
        admin = AdminClient({"bootstrap.servers": self.address, **QUIET})
        for number in itertools.count():
            if self.over.wait(0.5):
                return
            name = f"passing-{number}"
            admin.create_topics([NewTopic(name, 3)])[name].result(TIMEOUT_S)
            producer = self.producer()
            for _ in range(100):
                producer.produce(name, VALUE)
            assert producer.flush(TIMEOUT_S) == 0
            consumer = self.consumer(f"passing-{number % 5}", **{"enable.auto.commit": False})
            consumer.assign([confluent_kafka.TopicPartition(name, index, 0) for index in range(3)])
            seen, deadline = 0, time.monotonic() + TIMEOUT_S
            while seen < 100 and time.monotonic() < deadline:
                seen += sum(not message.error() for message in consumer.consume(100, 0.5))
            assert seen == 100
            consumer.commit(offsets=[confluent_kafka.TopicPartition(name, 0, 1)], asynchronous=False)
            consumer.close()
            admin.delete_topics([name])[name].result(TIMEOUT_S)
            yield 1

    def misbehaving_clients(self) -> Iterator[int]:
        """Connections that send garbage, partial requests or nothing, and close in different ways."""
        host, _, port = self.address.rpartition(":")
        chance = random.Random(7)
        held: list[socket.socket] = []
        while not self.over.wait(0.05):
            connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
            body = chance.randbytes(chance.randrange(200))
            frame = struct.pack(">ihhi", 8 + len(body), chance.randrange(80), chance.randrange(15), 1) + body
            with contextlib.suppress(ConnectionError):
                connection.sendall(frame[: chance.randrange(len(frame) + 1)] if chance.random() < 0.5 else frame)
            held.append(connection)
            if len(held) > 20:
                leaving = held.pop(chance.randrange(len(held)))
                if chance.random() < 0.5:  # close with a reset
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.close()
            yield 1
        for connection in held:
            connection.close()


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_resource_use_stays_flat(tmp_path: Path, start_service: Any) -> None:
    service = start_service(
        "headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"
    )
    life = ClientThreads(service.addresses["broker"])
    admin = AdminClient({"bootstrap.servers": life.address, **QUIET})
    made = [
        NewTopic("steady", 4, config=BOUNDED),
        NewTopic("transacted", 2, config=BOUNDED),
        NewTopic("keyed", 2, config=COMPACTED),
    ]
    for future in admin.create_topics(made).values():
        future.result(TIMEOUT_S)
    for rounds in (
        life.numbered_producer,
        life.checked_group,
        life.keyed,
        life.transactions,
        life.members,
        life.topics,
        life.misbehaving_clients,
    ):
        life.run_in_thread(rounds.__name__, rounds)
    samples = []
    deadline = time.monotonic() + MINUTES * 60
    while time.monotonic() < deadline and not life.over.wait(SAMPLE_INTERVAL_S):
        samples.append(sample_resources(service.process.pid, tmp_path))
    life.end()
    print(f"\n{MINUTES:g} minutes:", ", ".join(f"{name} {count:,}" for name, count in life.rounds.items()))
    sixth = len(samples) // 6
    for number in range(6):
        print(f"  {number + 1} of 6:", median_of(samples[number * sixth : (number + 1) * sixth]))
    assert life.failures == []
    before, after = median_of(samples[2 * sixth : 4 * sixth]), median_of(samples[4 * sixth :])
    grown = [
        f"{field.name} {getattr(before, field.name)} -> {getattr(after, field.name)}"
        for field in fields(ResourceUse)
        if getattr(after, field.name) > getattr(before, field.name) + getattr(TOLERANCE, field.name)
    ]
    assert grown == []
    assert not any("Traceback" in line for line in service.errors)
    assert service.stop() == 0
