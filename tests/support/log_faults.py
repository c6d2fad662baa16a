"""Push clients, gateways and a broker as real processes, which a seeded schedule kills, pauses and disconnects while
logs are written and rotated."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import fastavro
from confluent_kafka.admin import AdminClient, NewTopic

from support.checkout import ROOT
from support.faulty_link import FaultyLink
from support.free_ports import free_port
from support.log_writer import LogWriter, Rotation
from support.push_client import ClientProcess, config_table
from support.running_service import Service
from support.session_client import StoredLine, stored_lines

TOPIC: Final = "logs"
PARTITIONS: Final = 3
GATEWAYS: Final = 3
SESSION_S: Final = 10.0
"""Session time-out of the gateways' consumer group."""
STEP_S: Final = 0.06
"""Longest time between two steps of a writer."""
SILENCE_S_MAX: Final = 90.0
"""The test fails if no further line arrives for this long after the last fault."""
LOAD_TIMEOUT_S: Final = 400
PUSH: Final[dict[str, Any]] = {
    "retry": "50ms",
    "retry_max": "1s",
    "scan": "100ms",
    "poll": "20ms",
    "state": "300ms",
    "timeout": "3s",
    "chunk_bytes": 16384,
}


class Killable(Protocol):
    """A process that can be killed and started again."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


class Restarted:
    """A process of tests as `Killable`.

    Args:
        create: starts the process, and returns when it is ready.
    """

    def __init__(self, create: Callable[[], Service | ClientProcess]) -> None:
        self._create = create
        self.start()

    @property
    def pid(self) -> int:
        return self._running.process.pid

    def start(self) -> None:
        self._running = self._create()

    def kill(self) -> None:
        self._running.kill()

    def stop(self) -> int:
        return self._running.stop()


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `lasts_s` has the shortest and the longest time until it ends."""

    action: str
    part: str
    lasts_s: tuple[float, float] = (0.0, 0.0)

    def __str__(self) -> str:
        return f"{self.action} {self.part}"


ROUND: Final = (
    FaultKind("pause", "gateway", (SESSION_S + 1, SESSION_S + 3)),
    FaultKind("kill", "client", (0.0, 2.0)),
    FaultKind("kill", "gateway", (0.0, 2.0)),
    FaultKind("lose responses", "link"),
    FaultKind("kill", "broker", (0.0, 1.0)),
    FaultKind("hang", "link", (1.0, 5.0)),
    FaultKind("kill", "client", (0.0, 0.1)),
    FaultKind("kill", "gateway", (0.0, 0.1)),
    FaultKind("cut", "link"),
    FaultKind("lose responses", "broker link"),
    FaultKind("pause", "gateway", (1.0, 5.0)),
    FaultKind("cut", "broker link"),
)
"""Each kind occurs once in as many faults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a schedule.

    Attributes:
        number: chooses among the parts that are not affected by a fault at that time.
        after_s: time since the fault before.
    """

    kind: FaultKind
    number: int
    after_s: float
    lasts_s: float


def fault_schedule(choose: random.Random, count: int) -> list[Fault]:
    """Returns faults in rounds of all kinds, the longest one first, so that others happen meanwhile."""
    kinds = [ROUND[0]]
    while len(kinds) < count:
        kinds += choose.sample(ROUND, len(ROUND)) if len(kinds) > 1 else choose.sample(ROUND[1:], len(ROUND) - 1)
    return [
        Fault(kind, choose.randrange(1000), choose.uniform(0.3, 1.5), choose.uniform(*kind.lasts_s))
        for kind in kinds[:count]
    ]


class LogFaults:
    """The processes, the links between them, and the writers.

    Args:
        broker: the running broker.
        broker_link: between gateways and broker; None if they are connected directly.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        broker: Killable,
        broker_address: str,
        broker_link: FaultyLink | None,
        registry_url: str,
    ) -> None:
        self._choose = random.Random(seed)
        self._broker_address = broker_address
        admin = AdminClient({"bootstrap.servers": broker_address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        listeners = [f"127.0.0.1:{free_port()}" for _ in range(GATEWAYS)]
        balancer = FaultyLink(listeners)
        links = [FaultyLink([listener]) for listener in listeners]
        self._gateways = [
            Restarted(partial(_gateway, directory, at, link.address, broker_address, registry_url))
            for at, link in zip(listeners, links, strict=True)
        ]
        self.writers: list[LogWriter] = []
        self.client_directories: list[Path] = []
        clients = []
        for number, rotation in enumerate(Rotation):
            table = self._client_directory(directory / f"client-{number}", rotation, f"http://{balancer.address}")
            clients.append(Restarted(partial(ClientProcess, table, self.client_directories[-1])))
        self._clients = clients
        self._links = {"link": [balancer, *links], "broker link": [broker_link] if broker_link else []}
        self._processes: dict[str, Sequence[Killable]] = {
            "client": clients,
            "gateway": self._gateways,
            "broker": [broker],
        }
        self._pool = ThreadPoolExecutor(32)
        self._lasting: dict[int, Future[None]] = {}  # by the id of the affected part
        self._writing = threading.Event()
        self._failure: BaseException | None = None
        self.counts: Counter[str] = Counter()

    def _client_directory(self, directory: Path, rotation: Rotation, gateway: str) -> dict[str, Any]:
        (directory / "logs").mkdir(parents=True)
        self.client_directories.append(directory)
        for name in ("a", "b"):
            path = directory / "logs" / f"{rotation.name.lower()}-{name}.log"
            self.writers.append(
                LogWriter(path, self._choose, rotation, (1, 3, 50, 200), rotated_share=0.06, writes_while_copying=True)
            )
        # With `*.log`, no pattern matches the rotated names.
        paths = "logs/*" if rotation is Rotation.COMPRESS else "logs/*.log"
        push = {**PUSH, "host_id": directory.name, "host": directory.name}
        return config_table(gateway, directory, {"paths": paths, "topic": TOPIC}, **push)

    def run(self, faults: Sequence[Fault]) -> None:
        """Lets the faults happen while the writers write. All of them have ended when it returns."""
        for first in self.writers:
            first.write(1)
        self._wait_until_stored()
        self._writing.set()
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        started_at = time.monotonic()
        for number, fault in enumerate(faults):
            time.sleep(fault.after_s)
            if self._failure is not None:
                raise self._failure
            self._cause(fault)
            print(f"{time.monotonic() - started_at:6.1f} s {number}: {fault.kind} {fault.lasts_s:.1f} s", flush=True)
        for lasting in self._lasting.values():
            lasting.result()
        self._writing.clear()
        writer.join()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        choose = random.Random(self._choose.random())
        try:
            while self._writing.is_set():
                choose.choice(self.writers).step()
                time.sleep(choose.random() * STEP_S)
        except BaseException as error:
            self._failure = error

    def _cause(self, fault: Fault) -> None:
        parts: Sequence[Any] = self._links.get(fault.kind.part) or self._processes.get(fault.kind.part, ())
        if not parts:
            return
        first = fault.number % len(parts)
        free = [part for part in (*parts[first:], *parts[:first]) if not self._is_affected(part)]
        part = free[0] if free else parts[first]
        if not free:
            self._lasting[id(part)].result()
        self.counts[str(fault.kind)] += 1
        end = _begin(fault.kind.action, part)
        if end is not None:
            self._lasting[id(part)] = self._pool.submit(_end_later, fault.lasts_s, end)

    def _is_affected(self, part: object) -> bool:
        lasting = self._lasting.get(id(part))
        if lasting is None or not lasting.done():
            return lasting is not None
        lasting.result()
        return False

    def wait_until_stored(self) -> None:
        """Waits until all lines are in the topic, except those that copytruncate may lose. Then stops the clients and
        the gateways."""
        self._wait_until_stored()
        self.stop()

    def _wait_until_stored(self) -> None:
        found: list[StoredLine] = []
        changed_at = time.monotonic()
        while missing := self.missing(now := stored_lines(self._broker_address, TOPIC, found)):
            if len(now) > len(found):
                found, changed_at = now, time.monotonic()
            assert time.monotonic() - changed_at < SILENCE_S_MAX, f"missing: {missing}\n{self.client_logs()[-6000:]}"
            time.sleep(0.5)

    def missing(self, found: Sequence[StoredLine]) -> dict[str, list[int]]:
        """Returns the first numbers of lines that are missing, by file."""
        stored: dict[str, set[int]] = {writer.path.name: set() for writer in self.writers}
        for one in found:
            stored[one.name].add(one.number)
        missing = {
            writer.path.name: sorted(set(range(writer.written)) - writer.may_be_lost - stored[writer.path.name])[:5]
            for writer in self.writers
        }
        return {name: numbers for name, numbers in missing.items() if numbers}

    def client_logs(self) -> str:
        return "\n".join((directory / "client.log").read_text() for directory in self.client_directories)

    def stop(self) -> None:
        for client in self._clients:
            client.stop()
        for gateway in self._gateways:
            gateway.stop()

    def close(self) -> None:
        """Kills everything but the broker."""
        self._writing.clear()
        for link in (one for links in self._links.values() for one in links):
            link.close()
        self._pool.shutdown(cancel_futures=True)
        for process in (*self._clients, *self._gateways):
            process.kill()


def check_lines(faults: LogFaults, found: Sequence[StoredLine]) -> None:
    """Checks that each line is stored once, and the lines of a source in order, in one partition."""
    assert not faults.missing(found)
    twice = [line for line, count in Counter((one.name, one.number) for one in found).items() if count > 1]
    assert not twice, f"{len(twice)} lines are stored twice: {twice[:5]}"
    written = {writer.path.name: writer.written for writer in faults.writers}
    assert all(one.number < written[one.name] for one in found)
    by_source: dict[str, list[StoredLine]] = {}
    for one in found:
        by_source.setdefault(one.source, []).append(one)
    for source, lines in by_source.items():
        assert len({one.partition for one in lines}) == 1
        ordered = sorted(lines, key=lambda one: one.offset)
        for values in ([one.seqno for one in ordered], [one.number for one in ordered]):
            assert values == sorted(set(values)), f"{source} is not in order"


def bundled_broker(directory: Path, link: FaultyLink) -> Restarted:
    """Starts a bundled broker that clients reach over a link."""
    listener = f"127.0.0.1:{free_port()}"
    link.targets = (listener,)
    environment = {
        "HEADRACE__BROKER__ADVERTISED_HOST": "127.0.0.1",
        "HEADRACE__BROKER__ADVERTISED_PORT": link.address.partition(":")[2],
    }
    command = ["headrace", "broker", "serve", "--data-dir", str(directory), "--broker-listen", listener]
    return Restarted(lambda: Service(command, environment))


def _gateway(directory: Path, listener: str, url: str, broker_address: str, registry_url: str) -> Service:
    command = [
        *("headrace", "gateway", "serve", "--data-dir", str(directory / "gateways")),
        *("--gateway-listen", listener, "--registry-url", registry_url, "--bootstrap-servers", broker_address),
    ]
    return Service(command, {"HEADRACE__GATEWAY__URL": f"http://{url}"})


def _begin(action: str, part: Any) -> Callable[[], None] | None:
    """Begins a fault. Returns the function that ends it, None if it has no duration."""
    if action == "kill":
        part.kill()
        end: Callable[[], None] = part.start
    elif action == "pause":
        os.kill(part.pid, signal.SIGSTOP)
        return lambda: os.kill(part.pid, signal.SIGCONT)
    elif action == "hang":
        part.hang()
        end = part.resume
    else:
        {"cut": part.cut, "lose responses": part.lose_responses}[action]()
        return None
    return end


def _end_later(lasts_s: float, end: Callable[[], None]) -> None:
    time.sleep(lasts_s)
    end()


def report(seed: int, faults: LogFaults, lines: int, duration_s: float) -> str:
    """Returns a summary of a run: seed, faults by kind, rotations, lines and duration."""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.counts.items()))
    rotations = sum(writer.rotations for writer in faults.writers)
    lost = sum(len(writer.may_be_lost) for writer in faults.writers)
    return (
        f"seed {seed}: {faults.counts.total()} faults ({counts}), {rotations} rotations, {lines:,} lines, "
        f"{lost} between copy and truncation, {duration_s:.0f} s"
    )


def load_lines(directory: Path, broker_address: str, registry_url: str) -> list[tuple[int, int, str, int]]:
    """Loads the topic. Returns partition, offset, name and number of the lines in the table, in this order."""
    flags = ["--data-dir", str(directory), "--registry-url", registry_url, "--bootstrap-servers", broker_address]
    command = [sys.executable, "-m", "headrace", "load", *flags, "--master", "local[2]", "--format", "json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(run.stdout)
    found = []
    for path in (directory / "warehouse" / TOPIC).rglob("*.avro"):
        with path.open("rb") as file:
            for row in fastavro.reader(file):
                name, number = row["line"].split(None, 2)[:2]
                found.append((row["kafka"]["partition"], row["kafka"]["offset"], name, int(number)))
    return sorted(found)
