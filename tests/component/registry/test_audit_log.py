"""The audit log has every effective change, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.operation.audit_log import AuditLog, read_history
from headrace.registry.storage.database import sqlite_url
from support.registry.registry_calls import STRING, Registry, registry_in_process

READONLY, READWRITE, IMPORT, NONE = ({"mode": mode} for mode in ("READONLY", "READWRITE", "IMPORT", None))
FULL = {"compatibility": "FULL"}
SUBJECT, VERSION = "/subjects/s", "/subjects/s/versions"

Step = tuple[str, str, Any, str]
"""A request, its body, and the logged action; "" if nothing is logged."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def registry(tmp_path: Path, log: Path) -> Iterator[Registry]:
    audit_log = AuditLog(str(log))
    with registry_in_process(sqlite_url(tmp_path / "registry.db"), audit_log=audit_log) as registry:
        yield registry


HISTORIES: dict[str, list[Step]] = {
    "mode of a subject": [
        ("PUT", "/mode/s", READONLY, "mode_changed"),
        ("PUT", "/mode/s", READONLY, ""),
        ("PUT", "/mode/s?force=true", READONLY, ""),
        ("PUT", "/mode/s", READWRITE, "mode_changed"),
        ("DELETE", "/mode/s", None, "mode_removed"),
        ("DELETE", "/mode/s", None, ""),
        ("PUT", "/mode/s", NONE, ""),
        ("PUT", "/mode/s", READONLY, "mode_changed"),
        ("PUT", "/mode/s", NONE, "mode_changed"),
    ],
    "global mode": [
        ("DELETE", "/mode", None, ""),
        ("DELETE", "/mode?recursive=true", None, ""),
        ("DELETE", "/mode/zz?recursive=true", None, ""),
        ("PUT", "/mode", READONLY, "mode_changed"),
        ("PUT", "/mode", READONLY, ""),
        ("DELETE", "/mode", None, "mode_removed"),
        ("PUT", "/mode/s", READONLY, "mode_changed"),
        ("DELETE", "/mode?recursive=true", None, "mode_removed"),
        ("DELETE", "/mode?recursive=true", None, ""),
    ],
    "import mode deletes soft-deleted versions": [
        ("POST", VERSION, {"schema": STRING}, "version_registered"),
        ("PUT", "/mode/s?force=true", IMPORT, "mode_changed"),
        ("PUT", "/mode/s", IMPORT, ""),
        ("DELETE", SUBJECT, None, "subject_deleted"),
        ("DELETE", SUBJECT, None, ""),
        ("PUT", "/mode/:.__GLOBAL:", {"mode": "READONLY_OVERRIDE"}, "mode_changed"),
        ("PUT", "/mode/s", IMPORT, "mode_changed"),
        ("PUT", "/mode/s", IMPORT, ""),
    ],
    "configuration": [
        ("DELETE", "/config", None, ""),
        ("DELETE", "/config/s", None, ""),
        ("PUT", "/config", {"compatibility": None}, ""),
        ("PUT", "/config/s", {"compatibility": None}, ""),
        ("PUT", "/config", FULL, "configuration_changed"),
        ("PUT", "/config", FULL, ""),
        ("DELETE", "/config", None, "configuration_removed"),
        ("DELETE", "/config", None, ""),
        ("PUT", "/config/s", FULL, "configuration_changed"),
        ("DELETE", "/config/s", None, "configuration_removed"),
    ],
    "contexts": [
        ("DELETE", "/contexts/none", None, ""),
        ("DELETE", "/contexts/.", None, ""),
        ("PUT", "/config/:.c:", FULL, "configuration_changed"),
        ("DELETE", "/contexts/c", None, "context_deleted"),
        ("DELETE", "/contexts/c", None, ""),
        ("PUT", "/mode/:.c:", READWRITE, "mode_changed"),
        ("DELETE", "/contexts/c", None, "context_deleted"),
        ("POST", "/contexts/c/subjects/s/versions", {"schema": STRING}, "version_registered"),
        ("DELETE", "/contexts/c", None, ""),
        ("DELETE", "/contexts/c/subjects/s", None, "subject_deleted"),
        ("DELETE", "/contexts/c/subjects/s?permanent=true", None, "subject_deleted"),
        ("DELETE", "/contexts/c", None, "context_deleted"),
        ("DELETE", "/contexts/c", None, ""),
    ],
    "versions": [
        ("POST", VERSION, {"schema": STRING}, "version_registered"),
        ("POST", VERSION, {"schema": STRING}, ""),
        ("DELETE", f"{VERSION}/1", None, "version_deleted"),
        ("DELETE", f"{VERSION}/1", None, ""),
        ("DELETE", f"{VERSION}/1?permanent=true", None, "version_deleted"),
        ("DELETE", f"{VERSION}/1?permanent=true", None, ""),
    ],
}


@pytest.mark.parametrize("steps", HISTORIES.values(), ids=HISTORIES)
def test_audit_log_has_effective_changes_only(registry: Registry, log: Path, steps: list[Step]) -> None:
    told: list[str] = []
    for method, path, body, action in steps:
        registry.call(method, path, body)
        told += [action] if action else []
        assert [json.loads(line)["action"] for line in log.read_text().splitlines()] == told, (method, path)


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_audit_log_names_the_subject_behind_an_alias(registry: Registry, log: Path) -> None:
    registry.registered("orders", STRING)
    assert registry.put("/config/old-orders", {"alias": "orders"}).status == 200
    assert registry.delete("/subjects/old-orders/versions/1").status == 200
    assert registry.delete("/subjects/old-orders?permanent=true").status == 200
    assert [(item["action"], item["subject"]) for item in entries(log)[-2:]] == [
        ("version_deleted", "orders"),
        ("subject_deleted", "orders"),
    ]


def test_audit_log_counts_versions_that_import_mode_removes(registry: Registry, log: Path) -> None:
    registry.registered("s", STRING)
    assert registry.delete(SUBJECT).status == 200
    assert registry.put("/mode/s", IMPORT).status == 200
    assert (entries(log)[-1]["after"], entries(log)[-1]["versions_removed"]) == ("IMPORT", 1)


def test_audit_log_has_the_addresses_that_a_proxy_adds(registry: Registry, log: Path) -> None:
    registry.call("PUT", "/config", FULL, {"X-Forwarded-For": "10.0.0.7", "X-Request-ID": "r" * 500})
    (entry,) = entries(log)
    assert (entry["forwarded_for"], entry["request_id"]) == ("10.0.0.7", "r" * 200)
    assert (entry["subject"], entry["before"], entry["after"]) == (
        ":.:",
        {"compatibility": None},
        {"compatibility": "FULL"},
    )


def test_history_has_changes_of_the_subject_and_its_enclosing_scopes(registry: Registry, log: Path) -> None:
    registry.put("/config", FULL)
    registry.put("/mode/:.__GLOBAL:", READWRITE)
    registry.put("/config/:.eu:", FULL)
    registry.registered("orders", STRING)
    registry.registered("orders-2", STRING)
    registry.registered(":.eu:orders", STRING)
    log.replace(log.with_name(f"{log.name}.1"))
    registry.put("/mode/orders", READONLY)
    with log.open("ab") as file:
        file.write(b'[]\nnot JSON\n{"time')
    registry.put("/mode/orders", READWRITE)
    found = [(item["action"], item["subject"]) for item in read_history(log, "orders")]
    assert found == [
        ("configuration_changed", ":.:"),
        ("mode_changed", ":.__GLOBAL:"),
        ("version_registered", "orders"),
        ("mode_changed", "orders"),
        ("mode_changed", "orders"),
    ]
    assert [item["subject"] for item in read_history(log, ":.eu:orders")] == [":.__GLOBAL:", ":.eu:", ":.eu:orders"]


def test_unwritable_audit_log_is_counted_and_does_not_stop_changes(
    registry: Registry, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = "headrace_registry_audit_lines_lost_total"
    assert f"{lost} 0.0" in registry.get("/metrics").text
    log.unlink()
    log.mkdir()
    assert registry.put("/config/s", FULL).status == 200
    assert registry.get("/config/s").json == {"compatibilityLevel": "FULL"}
    assert f"{lost} 1.0" in registry.get("/metrics").text
    ready = registry.get("/readyz")
    assert (ready.status, ready.json) == (200, {"status": "ready", "audit_lines_lost": 1})
    (message,) = [record.getMessage() for record in caplog.records if "audit_log_not_written" in record.getMessage()]
    assert json.loads(message.partition("line=")[2])["subject"] == "s"
    log.rmdir()
    assert registry.delete("/config/s").status == 200
    assert [item["action"] for item in entries(log)] == ["configuration_removed"]


@pytest.mark.servers
def test_changes_of_all_registries_on_one_data_dir_are_recorded_by_default(tmp_path: Path, start_service: Any) -> None:
    """Two registries with two workers each and databases of their own."""
    calls = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        database = ("--database-url", sqlite_url(tmp_path / name / "registry.db"))
        serve = ("registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0", "--workers", "2")
        calls.append(Registry(str(start_service("headrace", *serve, *database).addresses["registry"])))

    def register_all(work: tuple[int, int]) -> None:
        registry, thread = work
        for number in range(20):
            calls[registry].registered(f"s-{registry}-{thread}-{number}", STRING)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(register_all, [(registry, thread) for registry in (0, 1) for thread in range(4)]))
    log = tmp_path / "logs" / "registry-audit.jsonl"
    found = [item["subject"] for item in entries(log)]
    expected = [f"s-{a}-{b}-{c}" for a in (0, 1) for b in range(4) for c in range(20)]
    assert sorted(found) == sorted(expected)
    log.unlink()
    log.mkdir()
    calls[0].registered("lost", STRING)
    pages = [calls[0].get("/metrics").text for _ in range(4)]  # of both workers
    assert all("headrace_registry_audit_lines_lost_total 1.0" in page for page in pages)


@pytest.mark.servers
def test_audit_log_can_be_turned_off(tmp_path: Path, start_service: Any) -> None:
    serve = ("registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0")
    service = start_service("headrace", *serve, environment={"HEADRACE__REGISTRY__AUDIT_LOG": "off"})
    registry = Registry(str(service.addresses["registry"]))
    registry.registered("s", STRING)
    assert "audit_lines_lost" not in registry.get("/metrics").text
    assert sorted(path.name for path in tmp_path.iterdir() if path.name == "logs") == []
