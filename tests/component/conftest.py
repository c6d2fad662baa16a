"""What the component tests start from: a registry in the test's own process, and settings of running servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.registry.registry_calls import RegistryInProcess, registry_in_process

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def registry(registry_database_url: str) -> Iterator[RegistryInProcess]:
    with registry_in_process(registry_database_url) as registry:
        yield registry


@pytest.fixture
def subject() -> str:
    """The name of a subject that is not there yet."""
    return f"s{next(NUMBERS)}"


@pytest.fixture
def settings(tmp_path: Path, registry_url: str, broker_address: str) -> Settings:
    """Of a producer or consumer with servers of the module."""
    return Settings(
        data_dir=tmp_path,
        registry=RegistrySettings(url=registry_url),
        kafka=KafkaSettings(bootstrap_servers=broker_address),
    )
