"""Unmodified franz-go against a running broker, including one that is killed: `tests/support/go/main.go`."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.kafka_wire.cluster import KafkaCluster
from support.broker.broker_restarts import serve, shutdowns, start_again
from support.broker.protocol_client import ProtocolClient
from support.broker.stored_batches import (
    CODECS,
    check_written_once,
    codecs,
    is_idempotent,
    is_transactional,
    stored_batches,
)
from support.free_ports import free_port
from support.go_clients import GoProgram, compile_clients

pytestmark = pytest.mark.go

TIMEOUT_S = 60
RUN_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def program() -> str:
    return str(compile_clients())


def test_full_round(keeping_broker_address: str, program: str) -> None:
    done = subprocess.run(
        [program, "round", keeping_broker_address],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = {name: json.loads(text) for name, text in (line.split("\t") for line in done.stdout.splitlines())}
    copied = [str(number) for number in range(30)]
    assert result == {
        "created again": True,
        "created wrong": True,
        "metadata": [1, 1, [0, 1], False],
        "partitions": [0, 1, 2, 3, 4],
        "configured": {"segment.ms": "3600000"},
        "deleted": True,
        **dict.fromkeys(CODECS, 1000),
        "starts at": [0, -1],
        "ends at": [1000, -1],
        "committed to": [1000, -1],
        "latest time": [999, 1_700_000_000_999],
        "after": [420, 1_700_000_000_420],
        "starts then at": [300, -1],
        "group committed": {"0": 75, "1": 75, "2": 75, "3": 75},
        "group lag": ["Empty", 0],
        "group listed": "Empty",
        "group seen": [304, 0],
        "group deleted": True,
        "open": ["Ongoing", "Ongoing"],
        "copied committed": copied,
        "copied all": [*copied[:20], *copied[10:]],
        "copier committed": 30,
        "fenced": True,
    }
    for codec in CODECS:
        # Records below offset 300 of one partition were deleted.
        batches = stored_batches(keeping_broker_address, f"go-{codec}") if codec != "lz4" else []
        assert codecs(batches) == ({codec} if batches else set())
        assert not batches or is_idempotent(batches)


def test_idempotent_producer_survives_kills_and_stops(tmp_path: Path, start_service: Any, program: str) -> None:
    port, settings = free_port(), {"segment_bytes_max": "1100000"}
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port, **settings)
    create(address, "t", 4)
    with GoProgram(program, "write", address, "t") as writer:
        for round_number, end in enumerate(shutdowns(2)):
            count_min = len(writer.lines) + 500 + round_number % 17
            writer.wait_until(lambda: len(writer.lines) >= count_min)  # noqa: B023
            service = start_again(service, end, start_service, tmp_path, port, **settings)
        count_min = len(writer.lines) + 500
        writer.wait_until(lambda: len(writer.lines) >= count_min)
        writer.stop()
    acknowledged = {int(number): (int(partition), int(offset)) for number, partition, offset in writer.lines}
    assert sorted(acknowledged) == list(range(len(writer.lines)))
    check_written_once(address, "t", acknowledged)


def create(address: str, topic: str, partitions: int) -> None:
    with ProtocolClient(address) as talk:
        assert talk.create(topic, partitions) == 0


class Source:
    """Writes 0, 1 … to the topic with another client."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self.sent = 0
        self._topic, self._partitions = topic, partitions
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, b"%d" % self.sent, partition=self.sent % self._partitions)
            self.sent += 1
        assert self._producer.flush(TIMEOUT_S) == 0


def committed(address: str, group: str) -> dict[int, int]:
    with KafkaCluster(address) as cluster:
        return {topic_partition.partition: offset for topic_partition, offset in cluster.group_offsets(group).items()}


def seen_once(members: list[list[list[str]]], partitions: int) -> list[list[int]]:
    """Returns the values of each partition that the members read. Each member read them in order, and did not read a
    value again after its commit."""
    found: list[dict[int, int]] = [{} for _ in range(partitions)]
    for lines in members:
        behind = [0] * partitions
        for event, partition, offset, *value in lines:
            if event == "committed":
                behind[int(partition)] = max(behind[int(partition)], int(offset))
            else:
                assert int(offset) >= behind[int(partition)]
                found[int(partition)][int(offset)] = int(value[0])
    assert all(sorted(each) == list(range(len(each))) for each in found)
    return [[each[offset] for offset in range(len(each))] for each in found]


def test_group_survives_kills_and_stops(tmp_path: Path, start_service: Any, program: str) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port)
    create(address, "t", 4)
    source = Source(address, "t", 4)
    with ExitStack() as stack:
        members = [stack.enter_context(GoProgram(program, "read", address, "t", "g")) for _ in range(2)]

        def result() -> int:
            """Returns the number of acknowledged commits."""
            ends = [0] * 4
            for member in members:
                for event, partition, offset, *_ in list(member.lines):
                    if event == "committed":
                        ends[int(partition)] = max(ends[int(partition)], int(offset))
            return sum(ends)

        for end in shutdowns(2):
            source.send(2000)
            # Part of the messages has been read and committed.
            members[0].wait_until(lambda: result() > source.sent - 1500)
            before = result()
            service = start_again(service, end, start_service, tmp_path, port)
            assert sum(committed(address, "g").values()) >= before, "offsets went back"
        members[0].wait_until(lambda: result() == source.sent)
        for member in members:
            member.stop()
    assert seen_once([member.lines for member in members], 4) == [
        list(range(partition, source.sent, 4)) for partition in range(4)
    ]
    assert committed(address, "g") == dict.fromkeys(range(4), source.sent // 4)


def test_transactions_copy_exactly_once_across_kills_and_stops(
    tmp_path: Path, start_service: Any, program: str
) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    service = serve(start_service, tmp_path, port)
    create(address, "from", 1)
    create(address, "to", 1)
    source = Source(address, "from", 1)
    with GoProgram(program, "copy", address, "from", "to", "copier") as copier:

        def copied() -> int:
            """Returns the acknowledged number; a response lost with the broker may have confirmed more."""
            return sum(int(count) for event, count, *_ in list(copier.lines) if event == "committed")

        def topic_partition() -> int:
            return committed(address, "copier").get(0, 0)

        for end in shutdowns(2):
            source.send(1000)
            copier.wait_until(lambda: topic_partition() > source.sent - 700)
            before = max(copied(), topic_partition())
            service = start_again(service, end, start_service, tmp_path, port)
            assert topic_partition() >= before, "offsets went back"
        copier.wait_until(lambda: topic_partition() == source.sent)
        copier.stop()
    assert is_transactional(stored_batches(address, "to"))
    assert committed(address, "copier") == {0: source.sent}
    assert read_committed(address, "to") == list(range(source.sent))


def read_committed(address: str, topic: str) -> list[int]:
    """Returns all committed values of partition 0."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while (message := reader.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(int(message.value()))
    reader.close()
    assert message is not None and message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    return found
