"""Fixtures that start real servers as child processes, with the commands that users type."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.checkout import ROOT
from support.memory_directory import memory_directory, memory_parent
from support.registry.migrated_databases import PostgresTemplate, SqliteTemplate
from support.running_service import Service, StartService
from support.servers.postgres_server import PostgresServer

# Tests start hundreds of Python processes. Without cached bytecode each compiles all our modules: 1.5 s per start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

EXAMPLES = {"hourly": 20, "gate": 200, "full": 2000}
"""Examples of each property test, by Hypothesis profile: for `make test`, `make ci` and `make test-full`."""

for name, examples in EXAMPLES.items():
    # Without a deadline: no test fails because the machine is busy.
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HEADRACE_TEST_PROFILE", "hourly"))

LEFT_OUT = {
    "browser": "make test-browser",
    "cluster": "make test-cluster",
    "container": "make test-container",
    "fault": "make test-fault",
    "go": "make test-go",
    "hdfs": "make test-hdfs",
    "hive": "make test-hive",
    "java": "make test-java",
    "kafka": "make test-kafka",
    "kcat": "make test-kafka",
    "node": "make test-node",
    "postgres": "make test-postgres",
    "pig": "make test-pig",
    "prometheus": "make test-prometheus",
    "proxies": "make test-proxies",
    "s3": "make test-s3",
    "servers": "make test-servers",
    "simulation": "make test-simulation",
    "soak": "make test-full",
    "spark": "make test-spark",
    "yarn": "make test-yarn",
    "zig": "make test-zig",
}
"""Every marker that a target of the Makefile deselects, and the command that runs its tests."""


TESTS = ROOT / "tests"
COMPONENT_TESTS = TESTS / "component"


@functools.cache
def possible_markers(path: Path) -> frozenset[str]:
    """Returns the markers that tests of a file can have: those mentioned in the file or in a `conftest.py` above it."""
    sources = [path, *(parent / "conftest.py" for parent in path.parents if parent.is_relative_to(TESTS))]
    texts = [source.read_text(encoding="utf-8") for source in sources if source.is_file()]
    return frozenset(name for text in texts for name in re.findall(r"\bmark\.(\w+)", text))


def required_markers(expression: str) -> frozenset[str]:
    """Returns the markers of which a test needs one to be selected by `-m`; none if tests without a marker are selected
    too, or the expression has another form than the Makefile's `a or b` and `a and not (…)`."""
    found = re.match(r"(\w+(?: or \w+)*)(?: and not \(|$)", expression)
    names = frozenset(found[1].split(" or ")) if found else frozenset()
    return names if names <= LEFT_OUT.keys() else frozenset()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without a test that `-m` selects: each pytest process would take 14 seconds to import all files."""
    required = required_markers(config.getoption("markexpr"))
    if required and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return required.isdisjoint(possible_markers(collection_path)) or None
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Runs files that start servers first: they take long, and at the end all workers of pytest-xdist but one would be
    idle.

    With `--dist loadgroup`, a file is a group unless it names one, so that its fixtures are created in one worker.
    pytest-xdist 3.8 writes the id with the group into an attribute that pytest 9.2 no longer reads.
    """
    for item in items:
        if unseen := {mark.name for mark in item.iter_markers() if mark.name in LEFT_OUT} - possible_markers(item.path):
            raise pytest.UsageError(f"{item.nodeid} has a marker that its file does not mention: {', '.join(unseen)}")
    items.sort(key=lambda item: COMPONENT_TESTS not in item.path.parents)
    if not config.getoption("loadgroup", False):
        return (yield)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
    result = yield
    for item in items:
        id_with_group = getattr(item, "_nodeid", item.nodeid)
        if id_with_group != item.nodeid:
            item._id = type(item._id).parse(id_with_group)
    return result


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        _deselected.update(mark.name for mark in item.iter_markers() if mark.name in LEFT_OUT)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the counts of a pytest-xdist worker to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = dict(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keeps the highest count of each marker: all workers deselect the same tests. A crashed worker sends no counts."""
    counts = getattr(node, "workeroutput", {}).get("deselected", {})
    _deselected.update(Counter(counts) - _deselected)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the deselected tests by marker: no test is left out silently. Only `make test`, which collects all files,
    has the full numbers."""
    for name, command in sorted(LEFT_OUT.items()):
        if count := _deselected[name]:
            terminalreporter.write_line(f"left out by -m: {count} tests marked {name}; run them with: {command}")


_deselected: Counter[str] = Counter()


@contextmanager
def starting() -> Iterator[StartService]:
    """Yields a function that starts a server by module and arguments; stops all running ones at the end."""
    started: list[Service] = []

    def start(*arguments: str, environment: dict[str, str] | None = None, directory: Path = ROOT) -> Service:
        service = Service(list(arguments), environment, directory)
        started.append(service)
        return service

    try:
        yield start
    finally:
        for service in reversed(started):
            service.stop()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory, for tests with thousands of files or fsyncs."""
    with memory_directory("test") as directory:
        yield directory


@pytest.fixture
def start_service() -> Iterator[StartService]:
    """Starts servers for the test."""
    with starting() as start:
        yield start


@pytest.fixture(scope="module")
def start_module_service() -> Iterator[StartService]:
    """Starts servers for the module."""
    with starting() as start:
        yield start


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests; each creates its own database."""
    server = PostgresServer(parent=memory_parent())
    yield server
    server.remove()


ON_EACH_DATABASE = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
"""Parameters of database fixtures: tests run with SQLite and, in `make test-postgres`, with PostgreSQL."""


NewDatabase = Callable[[], str]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> SqliteTemplate:
    return SqliteTemplate(tmp_path_factory.mktemp("template") / "registry.db")


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> PostgresTemplate:
    return PostgresTemplate(postgres_server)


@contextmanager
def migrated_databases(request: pytest.FixtureRequest) -> Iterator[NewDatabase]:
    """Yields a function that copies the migrated template of the fixture's parameter. Each copy is an independent
    registry database, deleted at the end."""
    if request.param == "postgres":
        postgres: PostgresTemplate = request.getfixturevalue("postgres_template")
        with postgres.copies() as copy:
            yield copy
        return
    sqlite: SqliteTemplate = request.getfixturevalue("sqlite_template")
    numbers = itertools.count(1)
    with memory_directory("registry") as directory:
        yield lambda: sqlite.copy_to(directory / f"registry-{next(numbers)}.db")


@pytest.fixture(params=ON_EACH_DATABASE)
def new_database(request: pytest.FixtureRequest) -> Iterator[NewDatabase]:
    """Creates migrated databases for the test and returns their URLs."""
    with migrated_databases(request) as copy:
        yield copy


@pytest.fixture
def database_url(new_database: NewDatabase) -> str:
    """A migrated database for the test."""
    return new_database()


@pytest.fixture(scope="module", params=ON_EACH_DATABASE)
def registry_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database for the module."""
    with migrated_databases(request) as copy:
        yield copy()


@pytest.fixture
def sqlite_database_url(sqlite_template: SqliteTemplate, tmp_path: Path) -> str:
    """A migrated SQLite database for the test, `registry.db` in its `tmp_path`."""
    return sqlite_template.copy_to(tmp_path / "registry.db")


@pytest.fixture(params=ON_EACH_DATABASE)
def new_empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    """Creates databases without tables for the test and returns their URLs."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.new_database
    numbers = itertools.count(1)
    return lambda: f"sqlite:///{tmp_path / f'registry-{next(numbers)}.db'}"


@pytest.fixture
def empty_database_url(new_empty_database: NewDatabase) -> str:
    """A database without tables for the test."""
    return new_empty_database()


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a registry for the module."""
    data_dir = tmp_path_factory.mktemp("registry")
    service = Service(
        ["headrace", "registry", "serve", "--data-dir", str(data_dir), "--registry-listen", "127.0.0.1:0"]
    )
    yield service.addresses["registry"]
    service.stop()


@pytest.fixture(scope="module")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a bundled broker for the module. Its retention deletes years-old messages half a minute after its
    start."""
    yield from _broker(tmp_path_factory, {})


@pytest.fixture(scope="module")
def keeping_broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of another bundled broker, without retention."""
    yield from _broker(tmp_path_factory, {"HEADRACE__BROKER__RETENTION": "36500d"})


def _broker(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("broker")
    command = ["headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0"]
    service = Service(command, environment)
    yield service.addresses["broker"]
    service.stop()
