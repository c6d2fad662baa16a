"""Acknowledged data survives a stop, a kill and a truncated file."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from support.broker.broker_restarts import serve, shutdowns, start_again
from support.free_ports import free_port

pytestmark = pytest.mark.servers

TIMEOUT_S = 60


def produce(address: str, topic: str, values: range, **settings: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, **settings})
    for number in values:
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def values_of(address: str, topic: str, partitions: int = 1) -> list[list[int]]:
    """Returns all values of each partition, in order."""
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    topic_partitions = [TopicPartition(topic, index) for index in range(partitions)]
    consumer.assign(topic_partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(topic_partitions)
    found: dict[int, list[int]] = {index: [] for index in range(partitions)}
    deadline = time.monotonic() + TIMEOUT_S
    while any(consumer.position(topic_partition) < ends[topic_partition] for topic_partition in topic_partitions):
        assert time.monotonic() < deadline
        for topic_partition, records in consumer.poll(timeout_ms=200, max_records=5000).items():
            found[topic_partition.partition] += [int(record.value) for record in records]
            deadline = time.monotonic() + TIMEOUT_S  # per partition: there may be millions
    consumer.close()
    return [found[index] for index in range(partitions)]


def commit(address: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    consumer.assign(list(offsets))
    consumer.commit(
        {topic_partition: OffsetAndMetadata(offset, "note", 0) for topic_partition, offset in offsets.items()}
    )
    consumer.close()


def committed(address: str, group: str, topic_partitions: list[TopicPartition]) -> list[int | None]:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    found = [consumer.committed(topic_partition) for topic_partition in topic_partitions]
    consumer.close()
    return found


def topic_id(address: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(TIMEOUT_S)
    return str(found.topic_id)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_restart_preserves_everything(tmp_path: Path, start_service: Any, end: str, fsync: str) -> None:
    first = serve(start_service, tmp_path, fsync=fsync)
    address = first.addresses["broker"]
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 2, config={"segment.bytes": "20000"})])["t"].result(TIMEOUT_S)
    produce(address, "t", range(5000), **{"enable.idempotence": True, "batch.num.messages": 100})
    topic_partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    commit(address, "g", {topic_partitions[0]: 4321, topic_partitions[1]: 0})
    before = topic_id(address, "t")
    if end == "stop":
        assert first.stop() == 0
    else:
        first.kill()
    assert len(list((tmp_path / "broker" / "t-0").glob("*.log"))) > 3
    second = serve(start_service, tmp_path, fsync=fsync)
    address = second.addresses["broker"]
    assert values_of(address, "t") == [list(range(5000))]
    assert committed(address, "g", topic_partitions) == [4321, 0]
    assert topic_id(address, "t") == before
    produce(address, "t", range(5000, 5010), **{"enable.idempotence": True})
    assert values_of(address, "t", 2) == [list(range(5010)), []]


class Writer:
    """An idempotent producer that continues across restarts of the broker: 0, 1 …, padded to `value_bytes`."""

    def __init__(self, address: str, value_bytes: int) -> None:
        self.address, self.value_bytes, self.sent = address, value_bytes, 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "queue.buffering.max.kbytes": 20_000,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _failed(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.failures.append(error)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[int(message.value())] = (message.partition(), message.offset())
        else:
            self.failures.append(error)

    def _write(self) -> None:
        while not self._stop.is_set() and not self.failures:
            try:
                value = (b"%d" % self.sent).ljust(self.value_bytes)
                self.producer.produce("t", value, on_delivery=self._delivered)
                self.sent += 1
            except BufferError:
                self.producer.poll(0.01)
            self.producer.poll(0)
            if self.sent % 200 == 0:
                time.sleep(0.01)

    def wait_for(self, more: int) -> None:
        """Returns when `more` further messages are acknowledged."""
        at_least, deadline = len(self.acknowledged) + more, time.monotonic() + TIMEOUT_S
        while len(self.acknowledged) < at_least:
            assert not self.failures
            assert time.monotonic() < deadline, self._state()
            time.sleep(0.01)

    def _state(self) -> str:
        """Returns hints why nothing is acknowledged."""
        now, queued = len(self.acknowledged), len(self.producer)
        seen = [len(values) for values in values_of(self.address, "t", 4)]
        return f"{now} of {self.sent} acknowledged, {queued} in the client's queue; the broker has {seen}"

    def check(self, address: str) -> None:
        """Checks that every acknowledged message is stored once, in order and at its offset."""
        assert self.producer.flush(TIMEOUT_S) == 0
        assert self.failures == []
        assert len(self.acknowledged) == self.sent
        found = values_of(address, "t", 4)
        assert sorted(value for values in found for value in values) == list(range(self.sent))
        # If an acknowledgement was lost with the broker, the retry may be acknowledged without an offset, as -1.
        topic_partitions = self.acknowledged.items()
        assert all(found[partition][offset] == value for value, (partition, offset) in topic_partitions if offset >= 0)
        assert all(values == sorted(values) for values in found)


def write_across_restarts(
    tmp_path: Path, start_service: Any, rounds: list[str], fsync: str, value_bytes: int, more: int
) -> None:
    port, settings = free_port(), {"fsync": fsync, "segment_bytes_max": "3000000"}
    service = serve(start_service, tmp_path, port, **settings)
    with Writer(f"127.0.0.1:{port}", value_bytes) as writer:
        for number, end in enumerate(rounds):
            # Each time at another point of a batch, a roll or a flush.
            writer.wait_for(more + number % 17)
            service = start_again(service, end, start_service, tmp_path, port, **settings)
    writer.check(f"127.0.0.1:{port}")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("fsync", "value_bytes", "more"), [("always", 0, 800), ("interval", 150_000, 20)], ids=["small", "large"]
)
def test_idempotent_producer_writes_across_kills_and_stops(
    tmp_path: Path, start_service: Any, fsync: str, value_bytes: int, more: int
) -> None:
    write_across_restarts(tmp_path, start_service, shutdowns(3), fsync, value_bytes, more)


@pytest.mark.soak
@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
@pytest.mark.parametrize(("value_bytes", "more"), [(0, 800), (150_000, 20)], ids=["small", "large"])
def test_idempotent_producer_writes_across_a_hundred_kills_and_stops(
    tmp_path: Path, start_service: Any, fsync: str, value_bytes: int, more: int
) -> None:
    """Across all parameters: a sixth of the restarts for each fsync mode and size."""
    write_across_restarts(tmp_path, start_service, shutdowns(17), fsync, value_bytes, more)


@pytest.mark.fault
def test_commits_survive_a_kill_right_after_they_were_acknowledged(tmp_path: Path, start_service: Any) -> None:
    service = serve(start_service, tmp_path)
    for round_number in range(1, 4):
        address = service.addresses["broker"]
        produce(address, "t", range(100))
        topic_partitions = [TopicPartition("t", index) for index in range(4)]
        commit(address, "g", dict.fromkeys(topic_partitions, round_number * 10))
        service.kill()
        service = serve(start_service, tmp_path)
        assert committed(service.addresses["broker"], "g", topic_partitions) == [round_number * 10] * 4


def test_a_group_member_survives_a_restart_of_the_broker(tmp_path: Path, start_service: Any) -> None:
    port = free_port()
    service = serve(start_service, tmp_path, port)
    produce(f"127.0.0.1:{port}", "t", range(10))
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    seen: list[int] = []

    def read_until(count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < count:
            assert time.monotonic() < deadline, f"{len(seen)} of {count}"
            seen.extend(int(each.value()) for each in consumer.consume(100, 0.2) if not each.error())

    read_until(10)
    consumer.commit(asynchronous=False)
    service.kill()
    serve(start_service, tmp_path, port)
    produce(f"127.0.0.1:{port}", "t", range(10, 20))
    read_until(20)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert seen == list(range(20))


def test_torn_tail_is_truncated(tmp_path: Path, start_service: Any) -> None:
    service = serve(start_service, tmp_path)
    produce(service.addresses["broker"], "t", range(100))
    service.kill()
    with (tmp_path / "broker" / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(b"\0" * 8 + b"\0\0\1\0torn")
    restarted = serve(start_service, tmp_path)
    assert values_of(restarted.addresses["broker"], "t") == [list(range(100))]
    assert any("headrace.broker.log.repair: " in line and "t-0" in line for line in restarted.errors)


def test_deleted_records_stay_deleted_after_a_kill(tmp_path: Path, start_service: Any) -> None:
    service = serve(start_service, tmp_path)
    address = service.addresses["broker"]
    produce(address, "t", range(1000))
    admin = AdminClient({"bootstrap.servers": address})
    future = next(iter(admin.delete_records([confluent_kafka.TopicPartition("t", 0, 400)]).values()))
    assert future.result(TIMEOUT_S).low_watermark == 400
    service.kill()
    restarted = serve(start_service, tmp_path)
    assert values_of(restarted.addresses["broker"], "t") == [list(range(400, 1000))]


def run_broker(data_dir: Path, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace",
            "broker",
            "serve",
            "--data-dir",
            str(data_dir),
            "--broker-listen",
            f"127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def complaints(finished: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in finished.stderr.splitlines() if line.startswith("headrace: ")]


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path, start_service: Any) -> None:
    serve(start_service, tmp_path)
    finished = run_broker(tmp_path, 0)
    assert finished.returncode == 2
    [line] = complaints(finished)
    assert str(tmp_path) in line and "--data-dir" in line


def test_port_in_use_fails_before_files_are_opened(tmp_path: Path, start_service: Any) -> None:
    service = serve(start_service, tmp_path / "one")
    port = int(service.addresses["broker"].rsplit(":", 1)[1])
    finished = run_broker(tmp_path / "two", port)
    assert finished.returncode == 2
    [line] = complaints(finished)
    assert f"127.0.0.1:{port}" in line
    assert not (tmp_path / "two" / "broker").exists()
