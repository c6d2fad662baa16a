"""The registry client while registries are killed: one of two on one database, or a single one that restarts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.client import RegistryClient, transport
from support.free_ports import free_port

pytestmark = pytest.mark.fault

THREADS = 8
SCHEMAS = 240
SUBJECTS = 4
KILLED_AFTER = 60  # registrations


def test_registrations_succeed_while_one_of_two_registries_is_killed(start_service: Any, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'registry.db'}"
    serve = ["registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"]
    services = [start_service("headrace", *serve, "--database-url", database) for _ in range(2)]
    urls = [service.addresses["registry"] for service in services]
    done = threading.Semaphore(0)

    with RegistryClient(urls) as client, ThreadPoolExecutor(THREADS) as pool:
        client.set_compatibility("NONE")

        def register(number: int) -> tuple[int, int]:
            text = f'{{"type":"fixed","name":"F{number}","size":1}}'
            registered = client.register(f"subject-{number % SUBJECTS}", text)
            done.release()
            return number, registered.schema_id

        registering = [pool.submit(register, number) for number in range(SCHEMAS)]
        for _ in range(KILLED_AFTER):
            done.acquire()
        services[0].kill()
        ids = dict(future.result() for future in registering)

        assert len(set(ids.values())) == SCHEMAS
        for number in range(SUBJECTS):
            versions = client.versions(f"subject-{number}")
            assert versions == list(range(1, SCHEMAS // SUBJECTS + 1))
    with RegistryClient(urls[1]) as other:
        for number, schema_id in ids.items():
            assert f'"F{number}"' in other.schema_by_id(schema_id).text


def test_client_waits_for_a_registry_that_restarts(
    start_service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allows more attempts than the default, because a busy machine may start the registry slowly."""
    monkeypatch.setattr(transport, "ATTEMPTS_MAX", 100)
    monkeypatch.setattr(transport, "TIMEOUTS_MAX", 10)
    address = f"127.0.0.1:{free_port()}"
    command = ["headrace", "registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", address]
    first = start_service(*command)
    with RegistryClient(f"http://{address}") as client, ThreadPoolExecutor(1) as pool:
        registered = client.register("before", '"string"')
        first.kill()
        waiting = pool.submit(client.register, "after", '"string"')
        start_service(*command)
        assert waiting.result().schema_id == registered.schema_id
