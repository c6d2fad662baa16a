"""Fixtures that start the real servers as child processes, by the commands that users type."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
from postgres_server import PostgresServer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's rooms, also for `pytest` started as a program
READY_TIMEOUT_S = 120


LEFT_OUT = {
    "fault": "make test-fault",
    "java": "make test-java",
    "kafka": "make test-kafka",
    "node": "make test-node",
    "postgres": "make test-postgres",
}
"""Markers of tests that `make test` leaves out, and the command that runs them; the others: make test-full."""


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        _deselected.update(mark.name for mark in item.iter_markers() if mark.name in LEFT_OUT)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker process of pytest-xdist tells the one that prints
        session.config.workeroutput["deselected"] = dict(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker leaves out the same tests."""
    _deselected.update(Counter(getattr(node, "workeroutput", {}).get("deselected", {})) - _deselected)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what did not run and how to run it."""
    for name, count in sorted(_deselected.items()):
        terminalreporter.write_line(f"left out by -m: {count} tests marked {name}; run them with: {LEFT_OUT[name]}")


_deselected: Counter[str] = Counter()


class Service:
    """A running `headrace …` server. `addresses` are the words of its ready line, by name."""

    def __init__(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        self.arguments = arguments
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self.lines: Queue[str] = Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._drain_stdout, daemon=True).start()
        threading.Thread(target=self._drain_stderr, daemon=True).start()
        self.addresses = self._wait_until_ready()

    def _drain_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _drain_stderr(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def _wait_until_ready(self) -> dict[str, str]:
        while True:
            try:
                line = self.lines.get(timeout=READY_TIMEOUT_S)
            except Empty:
                line = ""
            if line.startswith("ready "):
                return dict(re.findall(r"(\w+)=(\S+)", line))
            if not line:
                self.kill()
                raise RuntimeError(f"{' '.join(self.arguments)} did not get ready:\n{''.join(self.errors)}")

    def stop(self, timeout_s: float = 60) -> int:
        """Ends it as an operator would, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


StartService = Callable[..., Service]


@contextmanager
def starting() -> Iterator[StartService]:
    """Starts servers by module and arguments; whatever still runs at the end is stopped."""
    started: list[Service] = []

    def start(*arguments: str, environment: dict[str, str] | None = None) -> Service:
        service = Service(list(arguments), environment)
        started.append(service)
        return service

    try:
        yield start
    finally:
        for service in reversed(started):
            service.stop()


@pytest.fixture
def start_service() -> Iterator[StartService]:
    """For servers of the test."""
    with starting() as start:
        yield start


@pytest.fixture(scope="module")
def start_module_service() -> Iterator[StartService]:
    """For servers of the module."""
    with starting() as start:
        yield start


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests; each takes a database of its own."""
    server = PostgresServer()
    yield server
    server.remove()


ON_EACH_DATABASE = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
"""Parameters of a fixture that makes a database: its tests run on each kind, on PostgreSQL in `make test-postgres`."""


NewDatabase = Callable[[], str]


def databases(request: pytest.FixtureRequest, folder: Path) -> NewDatabase:
    """Makes empty databases of the kind that is the fixture's parameter, and answers with their URLs."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.new_database
    numbers = itertools.count(1)
    return lambda: f"sqlite:///{folder / f'registry-{next(numbers)}.db'}"


@pytest.fixture(params=ON_EACH_DATABASE)
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    return databases(request, tmp_path)


@pytest.fixture
def database_url(new_database: NewDatabase) -> str:
    """An empty database for the test."""
    return new_database()


@pytest.fixture(scope="module", params=ON_EACH_DATABASE)
def registry_database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty database for the module."""
    return databases(request, tmp_path_factory.mktemp("registry"))()


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry of its own for the module."""
    data_dir = tmp_path_factory.mktemp("registry")
    service = Service(
        ["headrace", "registry", "serve", "--data-dir", str(data_dir), "--registry-listen", "127.0.0.1:0"]
    )
    yield service.addresses["registry"]
    service.stop()


@pytest.fixture(scope="module")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bundled broker of its own for the module."""
    data_dir = tmp_path_factory.mktemp("broker")
    service = Service(["headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0"])
    yield service.addresses["broker"]
    service.stop()
