"""A registry in the test's own process, for the tests of its behaviour."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registry_calls import RegistryInProcess, registry_in_process


@pytest.fixture(scope="module")
def app_registry(registry_database_url: str) -> Iterator[RegistryInProcess]:
    with registry_in_process(registry_database_url) as registry:
        yield registry
