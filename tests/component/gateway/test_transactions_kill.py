"""Kills gateways and the broker at commits: each chunk is in the topic exactly once for `read_committed`.

`HEADRACE_TEST_KILLS=n` kills n times.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from support.free_ports import free_port
from support.running_service import Service
from support.session_client import lines_of_values, read_to_end
from support.transaction_client import TransactionClient

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HEADRACE_TEST_KILLS") or 6)
CHUNKS_BETWEEN_KILLS = 3
LINES = 40
DELAY_S_MAX = 0.03
READ_S = 60.0


class Gateways:
    """Two gateways; kills the one that commits, and starts it again, with or without the chunks on its disk.

    Args:
        start_broker: starts the broker, which is killed, too, or instead of the gateway; None for one that is not.
    """

    def __init__(
        self,
        directory: Path,
        registry_url: str,
        broker_address: str,
        chance: random.Random,
        start_broker: Callable[[], Service] | None = None,
    ) -> None:
        self._start_broker = start_broker
        self._broker = None if start_broker is None else start_broker()
        self._common = ["--registry-url", registry_url, "--bootstrap-servers", broker_address]
        self._directory = directory
        self._chance = chance
        self._ledger = f"ledger-{uuid.uuid4().hex[:8]}"
        self._restarting: threading.Timer | None = None
        self.must_kill = False
        self.running = {url: self._start(url) for url in (f"http://127.0.0.1:{free_port()}" for _ in range(2))}

    def _start(self, url: str) -> Service:
        address = url.removeprefix("http://")
        command = ["headrace", "gateway", "serve", "--data-dir", str(self._directory / address[-5:])]
        environment = {"HEADRACE__GATEWAY__LEDGER_TOPIC": self._ledger, "HEADRACE__GATEWAY__LANES": "4"}
        return Service([*command, "--gateway-listen", address, *self._common], environment)

    def before_commit(self, url: str) -> None:
        if self.must_kill:
            self.must_kill = False
            self._restarting = threading.Timer(self._chance.random() * DELAY_S_MAX, self._restart, [url])
            self._restarting.start()

    def _restart(self, url: str) -> None:
        if self._broker is not None and self._start_broker is not None:
            self._broker.kill()
            self._broker = self._start_broker()
            if self._chance.random() < 0.7:
                return
        self.running[url].kill()
        if self._chance.random() < 0.5:
            shutil.rmtree(self._directory / url[-5:] / "gateway-spool")
        self.running[url] = self._start(url)

    def stop(self) -> None:
        if self._restarting is not None:
            self._restarting.join()
        for service in (*self.running.values(), self._broker):
            if service is not None:
                service.stop()


@pytest.mark.servers
def test_each_chunk_is_stored_exactly_once_though_gateways_are_killed_at_commit(
    tmp_path: Path, registry_url: str, each_broker: str
) -> None:
    chance = _chance()
    _check(each_broker, Gateways(tmp_path, registry_url, each_broker, chance), KILLS)


@pytest.mark.servers
def test_each_chunk_is_stored_exactly_once_though_the_broker_is_killed_at_commit(
    tmp_path: Path, registry_url: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = ["headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", address]
    chance = _chance()
    _check(address, Gateways(tmp_path, registry_url, address, chance, lambda: Service(command)), KILLS // 2)


def _chance() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def _check(address: str, gateways: Gateways, kills: int) -> None:
    """Writes chunks while `gateways` are killed, and compares them with the topic."""
    topic = f"chunks-{uuid.uuid4().hex[:8]}"
    client = TransactionClient(list(gateways.running), topic, gateways.before_commit)
    sent: list[bytes] = []
    offsets: set[tuple[int, int]] = set()
    try:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
        for number in range(kills * CHUNKS_BETWEEN_KILLS):
            lines = [b"%d %d" % (number, index) for index in range(LINES)]
            gateways.must_kill = number % CHUNKS_BETWEEN_KILLS == 0
            committed = client.write(b"".join(line + b"\n" for line in lines))
            found = {
                (one["partition"], offset) for one in committed["offsets"] for offset in range(one["start"], one["end"])
            }
            assert len(found) == LINES and not found & offsets
            offsets |= found
            sent += lines
        print(Counter(client.sent), "repeated commits", client.repeated)
        messages = _read(address, topic, len(sent))
    finally:
        gateways.stop()
    assert {(message.partition(), message.offset()) for message in messages} == offsets
    found_lines = lines_of_values([(0, message.value()) for message in messages])
    assert sorted(found_lines) == sorted(sent)
    for number in range(kills * CHUNKS_BETWEEN_KILLS):
        own = [line for line in found_lines if line.startswith(b"%d " % number)]
        assert own == [b"%d %d" % (number, index) for index in range(LINES)], "a chunk is in order"


def _read(address: str, topic: str, count: int) -> list[Message]:
    """Reads all messages. Apache Kafka writes the last markers after its response."""
    deadline = time.monotonic() + READ_S
    while len(found := read_to_end(address, topic)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
    return found
