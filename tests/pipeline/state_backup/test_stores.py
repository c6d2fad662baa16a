"""Which stores a backup contains, by the settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.pipeline.state_backup.manifest import BackupError, Store
from headrace.pipeline.state_backup.stores import store_places
from headrace.settings import Settings


def with_audit_database(tmp_path: Path, url: str) -> Settings:
    base = Settings(data_dir=tmp_path)
    return dataclasses.replace(base, audit=dataclasses.replace(base.audit, database_url=url))


def test_audit_on_a_server_is_left_out_and_a_file_elsewhere_is_not(tmp_path: Path) -> None:
    assert store_places(with_audit_database(tmp_path, "")).paths[Store.AUDIT] == tmp_path.resolve() / "audit.db"
    file = store_places(with_audit_database(tmp_path, f"sqlite:///{tmp_path}/counts.db"))
    assert file.paths[Store.AUDIT] == tmp_path.resolve() / "counts.db"
    server = store_places(with_audit_database(tmp_path, "postgresql://user:secret@host/audit"))
    assert Store.AUDIT not in server.paths
    assert "audit.database_url" in server.left_out[Store.AUDIT]
    with pytest.raises(BackupError, match=r"audit\.database_url is invalid"):
        store_places(with_audit_database(tmp_path, "no url"))
