"""A running broker with a full disk, with waiting clients, and with a client that never reads its responses."""

from __future__ import annotations

import resource
import socket
import struct
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.servers

TIMEOUT_S = 60


def serve(start_service: Any, data_dir: Path) -> Any:
    return start_service("headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0")


def values_of(address: str, topic: str, count: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count}"
        values += [int(message.value()) for message in consumer.consume(1000, 0.2) if not message.error()]
    consumer.close()
    return values


def test_full_disk_refuses_writes_until_space_is_free(tmp_path: Path, start_service: Any) -> None:
    """A file size limit stands for the full disk. Acknowledged messages survive a kill, once and in order."""
    service = serve(start_service, tmp_path)
    address = service.addresses["broker"]
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
    outcomes: dict[int, int] = {}
    # The client gives up after the first error, so that errors are visible instead of being retried until there is
    # space.
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "retries": 0, "linger.ms": 0, "log_level": 0})

    def produce(number: int) -> None:
        producer.produce(
            "t",
            b"%d" % number,
            on_delivery=lambda error, _: outcomes.update({number: error.code() if error else 0}),
        )
        assert producer.flush(TIMEOUT_S) == 0

    for number in range(100):
        produce(number)
    hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (1, hard))
    for number in range(100, 110):
        produce(number)
    assert {outcomes[number] for number in range(100, 110)} == {56}
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.create_topics([NewTopic("more", 1)])["more"].result(TIMEOUT_S)
    assert refused.value.args[0].code() == 56
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(110, 200):
        produce(number)
    acknowledged = [number for number in range(200) if outcomes[number] == 0]
    assert acknowledged == [*range(100), *range(110, 200)]
    service.kill()
    assert not any("Traceback" in line for line in service.errors)
    restarted = serve(start_service, tmp_path)
    assert values_of(restarted.addresses["broker"], "t", len(acknowledged)) == acknowledged


def test_waiting_clients_do_not_delay_shutdown(tmp_path: Path, start_service: Any) -> None:
    """Long polls, half a request, and a consumer in a group, at SIGTERM."""
    service = serve(start_service, tmp_path)
    address = service.addresses["broker"]
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
    host, port = address.rsplit(":", 1)
    connections = [socket.create_connection((host, int(port)), timeout=TIMEOUT_S) for _ in range(5)]
    body = struct.pack(">iiiibih", -1, 250_000, 1, 1000, 0, 1, 1) + b"t" + struct.pack(">iiqi", 1, 0, 0, 1000)
    for connection in connections[1:]:
        connection.sendall(struct.pack(">ihhih", 10 + len(body), 1, 4, 7, -1) + body)
    connections[0].sendall(struct.pack(">ihh", 1000, 0, 9))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    consumer.subscribe(["t"])
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    assert service.stop() == 0
    assert [connection.recv(1) for connection in connections] == [b""] * 5
    consumer.close()
    assert not any("Traceback" in line for line in service.errors)
