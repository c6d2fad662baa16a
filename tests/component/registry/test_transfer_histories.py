"""Copies of registries with random histories export the same file."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.registry.client.connections import HttpResponse
from headrace.registry.client.responses import response_value
from headrace.registry.storage.database import Database, sqlite_url
from headrace.registry.transfer.execution import execute_actions, find_missing_versions, read_target
from headrace.registry.transfer.export import read_registry
from headrace.registry.transfer.export_file import read_snapshot, write_snapshot
from headrace.registry.transfer.plan import plan_import
from headrace.registry.transfer.remote import RemoteRegistry
from headrace.registry.transfer.snapshot import Selection
from support.examples import examples
from support.registry.registry_calls import RegistryInProcess, registry_in_process

SUBJECTS = ("a", "b/c", ":.x:a", ":.x:d")
SCHEMAS = tuple(f'{{"type":"fixed","name":"F{number}","size":{number}}}' for number in range(1, 4))


class InProcessClient:
    """A client for export and import that calls a registry in this process."""

    def __init__(self, registry: RegistryInProcess) -> None:
        self.url = registry.url
        self._registry = registry

    def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        response = self._registry.call(method, path + (f"?{urlencode(query)}" if query else ""), body)
        return response_value(HttpResponse(response.status, response.text.encode(), None))


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("empty") / "registry.db"
    database = Database(sqlite_url(path))
    database.upgrade()
    database.close()
    yield path


@settings(max_examples=examples(0.06), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_copy_of_a_random_history_exports_the_same(data: st.DataObject, empty_database: Path) -> None:
    with ExitStack() as stack:
        source, target = (open_registry(stack, empty_database, name) for name in ("source", "target"))
        source.put("/config", {"compatibility": "NONE"})
        for _ in range(data.draw(st.integers(1, 12), label="steps")):
            take_step(data, source)
        content = exported(source)
        imported(content, target, data.draw(st.integers(0, 30), label="actions before the kill"))
        imported(content, target, None)
        assert exported(target) == content
        for resource in ("config", "mode"):
            for scope in (*SUBJECTS, ":.x:"):
                path = f"/{resource}/{quote(scope, safe='')}"
                assert target.get(path).json == source.get(path).json, path
        snapshot = read_snapshot(io.BytesIO(content), "e")
        assert find_missing_versions(RemoteRegistry(InProcessClient(target)), snapshot, ignore_progress, ()) == []


def open_registry(stack: ExitStack, empty_database: Path, name: str) -> RegistryInProcess:
    path = empty_database.with_name(f"{name}.db")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(empty_database, path)
    return stack.enter_context(registry_in_process(sqlite_url(path)))


def take_step(data: st.DataObject, registry: RegistryInProcess) -> None:
    """Performs a random operation of a client, which may be rejected."""
    subject = data.draw(st.sampled_from(SUBJECTS))
    path = quote(subject, safe="")
    match data.draw(
        st.sampled_from(("register", "register", "refer", "import", "delete", "delete all", "purge", "set"))
    ):
        case "register":
            metadata = data.draw(st.sampled_from(({}, {"metadata": {"properties": {"owner": "me"}}})))
            registry.register(path, data.draw(st.sampled_from(SCHEMAS)), **metadata)
        case "refer":
            other = data.draw(st.sampled_from(SUBJECTS))
            found = registry.get(f"/subjects/{quote(other, safe='')}/versions?deleted=true")
            if found.status == 200:
                reference = {"name": "F1", "subject": other, "version": data.draw(st.sampled_from(found.json))}
                registry.register(path, '{"type":"array","items":"F1"}', references=[reference])
        case "import":
            registry.put(f"/mode/{path}?force=true", {"mode": "IMPORT"})
            numbers = {"id": data.draw(st.integers(1, 6)), "version": data.draw(st.integers(1, 5))}
            registry.register(path, data.draw(st.sampled_from(SCHEMAS)), **numbers)
            registry.delete(f"/mode/{path}")
        case "delete":
            registry.delete(f"/subjects/{path}/versions/{data.draw(st.integers(1, 4))}")
        case "delete all":
            registry.delete(f"/subjects/{path}")
        case "purge":
            version = data.draw(st.integers(1, 4))
            registry.delete(f"/subjects/{path}/versions/{version}")
            registry.delete(f"/subjects/{path}/versions/{version}?permanent=true")
        case "set":
            scope = data.draw(st.sampled_from((path, quote(":.x:", safe=""))))
            registry.put(f"/config/{scope}", {"compatibility": "NONE", "compatibilityGroup": "owner"})
            registry.put(f"/mode/{scope}", {"mode": data.draw(st.sampled_from(("READONLY", "READWRITE")))})


def exported(registry: RegistryInProcess) -> bytes:
    out = io.BytesIO()
    write_snapshot(read_registry(RemoteRegistry(InProcessClient(registry)), Selection(), ignore_progress), out)
    return out.getvalue()


def imported(content: bytes, registry: RegistryInProcess, actions_max: int | None) -> None:
    remote = RemoteRegistry(InProcessClient(registry))
    snapshot = read_snapshot(io.BytesIO(content), "e")
    plan = plan_import(snapshot, read_target(remote, snapshot, ignore_progress))
    assert not plan.problems
    result = execute_actions(remote, plan.actions[:actions_max], ignore_progress, skip_rejected=False)
    assert not result.rejected


def ignore_progress(step: str, done: int, total: int) -> None:
    pass
