"""The audit log has every effective change, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.operation.audit_log import AuditLog
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
    audit_log.close()


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
