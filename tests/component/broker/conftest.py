"""The brokers of the protocol test suite: the bundled one and, in `make test-kafka`, Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.running_service import Service
from support.servers.apache_kafka import ApacheKafka

BUNDLED, APACHE_KAFKA = "bundled", "apache-kafka"


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
