"""A gateway on a bundled broker and a registry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from support.gateway import GatewayClient
from support.running_service import Service

NUMBERS = itertools.count()


def gateway_environment(registry_url: str, broker_address: str) -> dict[str, str]:
    return {"HEADRACE__REGISTRY__URL": registry_url, "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address}


@pytest.fixture(scope="module")
def gateway_service(
    tmp_path_factory: pytest.TempPathFactory, registry_url: str, broker_address: str
) -> Iterator[Service]:
    command = ["headrace", "gateway", "serve", "--data-dir", str(tmp_path_factory.mktemp("gateway"))]
    environment = gateway_environment(registry_url, broker_address)
    service = Service([*command, "--gateway-listen", "127.0.0.1:0"], environment)
    yield service
    assert service.stop() == 0


@pytest.fixture(scope="module")
def gateway(gateway_service: Service) -> GatewayClient:
    return GatewayClient(gateway_service.addresses["gateway"])


@pytest.fixture
def topic() -> str:
    """The name of a new topic."""
    return f"t{next(NUMBERS)}"
