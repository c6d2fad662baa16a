"""Apache Kafka with a partition restored from an older copy, for which its controller starts a new leader epoch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.loader.loads_in_process import Loads, check_resumed_at_divergence
from support.servers.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(tmp_path / "broker")
    yield broker
    broker.stop()


def test_truncated_and_regrown_partition_is_reloaded_from_divergence(tmp_path: Path, kafka: ApacheKafka) -> None:
    loads = Loads(tmp_path, "orders")
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
    loads.produce(kafka.address, range(80))
    kafka.stop()
    directory, copy = kafka.data / "orders-0", tmp_path / "copy"
    shutil.copytree(directory, copy)
    kafka.start()
    loads.produce(kafka.address, range(80, 100))
    assert not loads.load(kafka.address).has_findings
    kafka.stop()
    shutil.rmtree(directory)
    copy.rename(directory)
    kafka.start()
    loads.produce(kafka.address, range(1000, 1070))
    check_resumed_at_divergence(loads, kafka.address)
