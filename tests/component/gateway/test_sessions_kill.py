"""Kills gateways and the broker while clients send lines: each line is stored exactly once, in order.

`HEADRACE_TEST_KILLS=n` kills n times.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.free_ports import free_port
from support.running_service import Service
from support.session_client import LineSender, lines_of_values, stored_values

pytestmark = [pytest.mark.fault, pytest.mark.timeout(7200)]

SENDERS = 6
GATEWAYS = 2
KILLS = int(os.environ.get("HEADRACE_TEST_KILLS") or 4)
LINES_BETWEEN_KILLS = 250
PROGRESS_S = 120.0
TOPIC = "lines"


@pytest.mark.servers
def test_lines_are_stored_exactly_once_and_in_order_though_gateways_and_broker_are_killed(
    tmp_path: Path, registry_url: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker_address = f"127.0.0.1:{free_port()}"
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(GATEWAYS)]
    start: dict[str, Callable[[], Service]] = {"broker": lambda: _broker(tmp_path, broker_address)}
    for url in urls:
        start[url] = lambda url=url: _gateway(tmp_path, url, broker_address, registry_url)
    running = {"broker": start["broker"]()}
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
    running |= {url: start[url]() for url in urls}

    files = {f"file-{n}": _lines(n, chance, LINES_BETWEEN_KILLS * (KILLS + 1)) for n in range(SENDERS)}
    senders = [LineSender(urls, TOPIC, name, lines, chance.random()) for name, lines in files.items()]
    for sender in senders:
        sender.limit = 0
        sender.start()
    try:
        for number in range(KILLS):
            _wait_for_progress(senders, number * LINES_BETWEEN_KILLS)
            for sender in senders:
                sender.limit = (number + 1) * LINES_BETWEEN_KILLS
            time.sleep(chance.random() * 0.4)
            killed = chance.sample([*urls, "broker"], k=1 if chance.random() < 0.7 else 2)
            print(
                f"kill {number}: {killed}, acknowledged {[sender.acknowledged for sender in senders]}",
                flush=True,
            )
            for name in killed:
                running[name].kill()
            for name in sorted(killed, key=lambda name: name != "broker"):
                running[name] = start[name]()
        for sender in senders:
            sender.limit = (KILLS + 1) * LINES_BETWEEN_KILLS
        _wait_for_progress(senders, LINES_BETWEEN_KILLS * (KILLS + 1))
        found = stored_values(broker_address, TOPIC)
    finally:
        for sender in senders:
            sender.stop.set()
        for name in reversed(list(running)):
            running[name].stop()
    assert {name: lines_of_values(values) for name, values in found.items()} == files


def _wait_for_progress(senders: list[LineSender], lines: int) -> None:
    deadline = time.monotonic() + PROGRESS_S
    while any(sender.acknowledged < lines for sender in senders):
        for sender in senders:
            if sender.failure is not None:
                raise sender.failure
        acknowledged = [sender.acknowledged for sender in senders]
        assert time.monotonic() < deadline, f"not {lines} lines of each file in {PROGRESS_S} s: {acknowledged}"
        time.sleep(0.05)


def _lines(number: int, chance: random.Random, count: int) -> list[bytes]:
    return [f"{number} {index} ".encode() + b"x" * chance.randrange(300) for index in range(count)]


def _broker(directory: Path, address: str) -> Service:
    return Service(["headrace", "broker", "serve", "--data-dir", str(directory), "--broker-listen", address])


def _gateway(directory: Path, url: str, broker_address: str, registry_url: str) -> Service:
    return Service(
        [
            *("headrace", "gateway", "serve", "--data-dir", str(directory)),
            *("--gateway-listen", url.removeprefix("http://"), "--registry-url", registry_url),
            *("--bootstrap-servers", broker_address),
        ]
    )
