"""Unmodified Node clients of the registry: `tests/support/node/*.cjs` in Node's test runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.certificates import Authority
from support.node_clients import installed_clients, run_script
from support.registry.secured_registry import PASSWORD, secured_registry

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node_modules() -> Path:
    return installed_clients()


@pytest.mark.parametrize("script", ["kafkajs_client", "confluent_client"])
def test_node_client_registers_and_reads_schemas(script: str, node_modules: Path, registry_url: str) -> None:
    run_script(script, node_modules, {"REGISTRY_URL": registry_url})


def test_node_clients_use_credentials_and_tls(node_modules: Path, start_service: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    url = secured_registry(start_service, tmp_path, authority)
    environment = {"REGISTRY_URL": url, "PASSWORD": PASSWORD, "NODE_EXTRA_CA_CERTS": str(authority.ca_file)}
    run_script("secured_clients", node_modules, environment)
