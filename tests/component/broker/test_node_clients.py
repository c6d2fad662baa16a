"""Unmodified Node.js clients against a running broker, including one that was killed:
`tests/support/node/*_broker.cjs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.broker.broker_restarts import serve, start_again
from support.broker.stored_batches import codecs, is_idempotent, is_transactional, stored_batches
from support.free_ports import free_port
from support.node_clients import installed_clients, run_script

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node_modules() -> Path:
    return installed_clients()


@pytest.mark.parametrize(
    ("script", "prefix", "sent_as"),
    [
        ("kafkajs_broker", "kj", ("none", "gzip", "snappy")),
        ("platformatic_broker", "pl", ("none", "gzip", "snappy", "lz4")),
    ],
)
def test_full_round_continues_after_a_kill(
    script: str, prefix: str, sent_as: tuple[str, ...], node_modules: Path, start_service: Any, tmp_path: Path
) -> None:
    port = free_port()
    environment = {"BROKER_ADDRESS": f"127.0.0.1:{port}"}
    service = serve(start_service, tmp_path, port)
    run_script(script, node_modules, environment)
    start_again(service, "kill", start_service, tmp_path, port)
    run_script(script, node_modules, {**environment, "AFTER_RESTART": "1"})
    for codec in sent_as:
        batches = stored_batches(environment["BROKER_ADDRESS"], f"{prefix}-{codec}")
        assert codecs(batches) == {codec} and is_idempotent(batches)
    assert is_transactional(stored_batches(environment["BROKER_ADDRESS"], f"{prefix}-out"))
