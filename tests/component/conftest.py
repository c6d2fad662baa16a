"""Fixtures of component tests: a registry in the test's process, and settings of running servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.hive.process_session import ProcessSession
from support.memory_directory import memory_directory
from support.registry.registry_calls import RegistryInProcess, registry_in_process

if TYPE_CHECKING:
    from support.hive.hive_engines import ServerEngine, SparkEngine

NUMBERS = itertools.count()
USERS_OF_SESSION = frozenset({"process_session", "engine"})
"""Fixtures that use the Spark session shared by the process."""


@pytest.fixture(scope="module")
def registry(registry_database_url: str) -> Iterator[RegistryInProcess]:
    with registry_in_process(registry_database_url) as registry:
        yield registry


@pytest.fixture
def subject() -> str:
    """The name of a new subject."""
    return f"s{next(NUMBERS)}"


@pytest.fixture
def settings(tmp_path: Path, registry_url: str, broker_address: str) -> Settings:
    """Settings of a producer or consumer with the servers of the module."""
    return Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker_address),
    )


@pytest.fixture(scope="session")
def session_holder() -> Iterator[ProcessSession]:
    holder = ProcessSession()
    yield holder
    holder.close()


@pytest.fixture(scope="module")
def process_session(session_holder: ProcessSession) -> ProcessSession:
    return session_holder


@pytest.fixture(scope="module", autouse=True)
def one_session_at_a_time(request: pytest.FixtureRequest, session_holder: ProcessSession) -> None:
    """Closes the session of the process before a module that may open its own."""
    items = (item for item in request.session.items if item.path == request.path)
    if not any(USERS_OF_SESSION & {*item.fixturenames} for item in items):
        session_holder.close()


@pytest.fixture(scope="module")
def shared_engines(process_session: ProcessSession) -> tuple[SparkEngine, ServerEngine]:
    """Returns a Spark session and a Spark Thrift Server on it, for all modules without their own metastore. Each module
    has its own database."""
    from support.hive.hive_engines import spark_engines  # pyspark takes a second to import

    @contextmanager
    def opening() -> Iterator[tuple[SparkEngine, ServerEngine]]:
        with memory_directory("spark") as directory, spark_engines(directory) as engines:
            yield engines

    return process_session.get("shared engines", opening)
