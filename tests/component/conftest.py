"""Fixtures of component tests: a registry in the test's process, settings of running servers, and brokers of both
kinds: the bundled one and, in `make test-kafka`, Apache Kafka."""

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
from support.running_service import Service
from support.servers.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from support.hive.hive_engines import ServerEngine, SparkEngine

NUMBERS = itertools.count()
USERS_OF_SESSION = frozenset({"process_session", "engine"})
"""Fixtures that use the Spark session shared by the process."""
BUNDLED, APACHE_KAFKA = "bundled", "apache-kafka"


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


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One Apache Kafka for all tests; new topics have as many partitions by default as in the bundled broker."""
    broker = ApacheKafka(tmp_path_factory.mktemp("kafka") / "broker", partitions=4)
    yield broker
    broker.stop()


@pytest.fixture(scope="module", params=[BUNDLED, pytest.param(APACHE_KAFKA, marks=pytest.mark.kafka)])
def broker_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def each_broker(
    broker_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a broker of either kind."""
    if broker_kind == APACHE_KAFKA:
        kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
        yield kafka.address
        return
    data_dir = tmp_path_factory.mktemp("broker")
    service = Service(["headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", "127.0.0.1:0"])
    yield service.addresses["broker"]
    service.stop()
