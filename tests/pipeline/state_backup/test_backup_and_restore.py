"""Backup and restore of a data directory without servers: refusals, and data that must stay unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sqlite3
import stat
import subprocess
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from headrace.broker.data_directory import lock as lock_of_broker
from headrace.hive_ddl.executors.derby import LOCK_FILE
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.lease import Lease
from headrace.pipeline.state_backup import restore as restore_module
from headrace.pipeline.state_backup.backup import back_up
from headrace.pipeline.state_backup.manifest import (
    MANIFEST_NAME,
    BackupError,
    Manifest,
    Store,
    copy_file,
    manifest_content,
    read_manifest,
)
from headrace.pipeline.state_backup.restore import Placement, RestoreReport, restore
from headrace.pipeline.storage import lease_path
from headrace.pipeline.up.up_file import UpFile
from headrace.settings import KafkaSettings, LoaderSettings, RegistrySettings, Settings
from support.cases import all_cases


def now() -> datetime:
    return datetime(2026, 1, 31, 7, tzinfo=UTC)


ASIDE = "before-restore-20260131T070000Z"


def write_database(path: Path, text: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS t (x)")
        database.execute("DELETE FROM t")
        database.execute("INSERT INTO t VALUES (?)", (text,))


def read_database(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return str(database.execute("SELECT x FROM t").fetchone()[0])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    data_dir = tmp_path / "data"
    (data_dir / "metastore" / "seg0").mkdir(parents=True)
    (data_dir / "metastore" / "seg0" / "c10.dat").write_bytes(b"derby")
    (data_dir / "metastore" / "db.lck").write_bytes(b"")
    write_database(data_dir / "registry.db", "before")
    return Settings(data_dir=data_dir)


def test_backup_names_the_stores_that_it_left_out(settings: Settings, tmp_path: Path) -> None:
    manifest = back_up(settings, tmp_path / "backup", without=[Store.AUDIT])
    assert dict(manifest.stores) == {"metastore": "Derby", "registry": "SQLite"}
    assert manifest.left_out["audit"] == "--without"
    assert manifest.left_out["broker"] == f"{settings.data_dir}/broker does not exist"
    assert [file.path for file in manifest.files] == ["metastore/seg0/c10.dat", "registry/registry.db"]
    assert read_manifest(tmp_path / "backup") == manifest
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700


def test_servers_elsewhere_are_left_out(settings: Settings, tmp_path: Path) -> None:
    elsewhere = Settings(
        data_dir=settings.data_dir,
        kafka=KafkaSettings(bootstrap_servers="kafka:9092"),
        registry=RegistrySettings(url="http://registry:8081"),
        loader=LoaderSettings(warehouse="hdfs://nn:8020/warehouse"),
    )
    left_out = back_up(elsewhere, tmp_path / "backup").left_out
    assert left_out["broker"].startswith("kafka.bootstrap_servers names another server")
    assert left_out["registry"].startswith("registry.url names another server")
    assert (
        left_out["tables"] == left_out["commit-log"] == "it is on hdfs://; use snapshots or copies of that file system"
    )


def test_targets_that_are_used_or_part_of_the_state_are_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with all_cases() as case:
        for target in (tmp_path / "used", tmp_path / "used" / "file", settings.data_dir / "backup"):
            with case(str(target)), pytest.raises(BackupError, match="name a"):
                back_up(settings, target)
    with pytest.raises(BackupError, match="nothing to back up"):
        back_up(Settings(data_dir=tmp_path / "none"), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_failed_backup_has_no_manifest(settings: Settings, tmp_path: Path) -> None:
    (settings.data_dir / "registry.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(BackupError, match=r"registry\.db"):
        back_up(settings, tmp_path / "backup")
    with pytest.raises(BackupError, match="not a complete backup"):
        restore(settings, tmp_path / "backup")


def test_restore_moves_the_former_stores_aside(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    data_dir = settings.data_dir
    write_database(data_dir / "registry.db", "after")
    (data_dir / "registry.db-wal").write_bytes(b"of the former database")
    with pytest.raises(BackupError, match="--replace"):
        restore(settings, tmp_path / "backup")
    dry = restore(settings, tmp_path / "backup", replaces=True, is_dry=True)
    assert dry.restored == {"metastore": f"{data_dir}/metastore", "registry": f"{data_dir}/registry.db"}
    assert not list(data_dir.glob("*.before-restore-*"))

    report = restore(settings, tmp_path / "backup", replaces=True, now=now)
    assert report.moved_aside == [f"{data_dir}/metastore.{ASIDE}", f"{data_dir}/registry.db.{ASIDE}"]
    assert not (data_dir / "registry.db-wal").exists()
    assert (data_dir / f"registry.db.{ASIDE}-wal").read_bytes() == b"of the former database"
    assert read_database(data_dir / "registry.db") == "before"
    assert (data_dir / "metastore" / "seg0" / "c10.dat").read_bytes() == b"derby"


def test_damaged_backup_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    (tmp_path / "backup" / "metastore" / "seg0" / "c10.dat").write_bytes(b"Derby")
    target = Settings(data_dir=tmp_path / "target")
    with pytest.raises(BackupError, match="damaged"):
        restore(target, tmp_path / "backup")
    assert not target.data_dir.exists()


def test_failed_copy_changes_nothing_and_frees_its_space(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(settings, tmp_path / "backup")

    def fill(source: Path, copy: Path, mode: int) -> None:
        if copy.name == "c10.dat":
            copy_file(source, copy, mode)
        else:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(restore_module, "copy_file", fill)
        restore(Settings(data_dir=settings.data_dir), tmp_path / "backup", replaces=True)
    assert not list(settings.data_dir.glob("*.restoring"))
    assert read_database(settings.data_dir / "registry.db") == "before"


def test_kill_before_the_renames_changes_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(settings, tmp_path / "backup")
    write_database(settings.data_dir / "registry.db", "after")

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(restore_module, "_swap", kill)
        restore(settings, tmp_path / "backup", replaces=True)
    assert read_database(settings.data_dir / "registry.db") == "after"
    (settings.data_dir / "metastore.restoring").mkdir(exist_ok=True)
    (settings.data_dir / "metastore.restoring" / "left by the killed command").touch()
    restore(settings, tmp_path / "backup", replaces=True)
    assert read_database(settings.data_dir / "registry.db") == "before"
    assert [path.name for path in (settings.data_dir / "metastore").iterdir()] == ["seg0"]
    assert not list(settings.data_dir.glob("*.restoring"))


def test_restore_is_refused_while_up_runs(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    with UpFile(settings.data_dir / "up.json"), pytest.raises(BackupError, match="stop it before a restore"):
        restore(settings, tmp_path / "backup", replaces=True)


def test_restore_is_refused_while_a_broker_runs(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    (settings.data_dir / "broker").mkdir()
    descriptor = lock_of_broker(settings.data_dir / "broker")
    with pytest.raises(BackupError, match=r"broker.*stop it before a restore"):
        restore(settings, tmp_path / "backup", replaces=True)
    os.close(descriptor)
    restore(settings, tmp_path / "backup", replaces=True)


def test_restore_is_refused_while_a_load_runs(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    lease = Lease(lease_path(settings))
    assert lease.acquire(0) is None
    with pytest.raises(BackupError, match="a load is running"):
        restore(settings, tmp_path / "backup", replaces=True)
    lease.release()
    restore(settings, tmp_path / "backup", replaces=True)
    assert lease.acquire(0) is None
    lease.release()


def test_restore_is_refused_while_a_process_has_the_metastore_open(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    lock = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, 2); print(flush=True); input()"
    command = [sys.executable, "-c", lock, str(settings.data_dir / "metastore" / LOCK_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BackupError, match="has the metastore open; stop it before a restore"):
            restore(settings, tmp_path / "backup", replaces=True)
        process.kill()
    restore(settings, tmp_path / "backup", replaces=True)


def test_metastore_is_not_restored_for_another_warehouse(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup")
    report = restore(Settings(data_dir=tmp_path / "target"), tmp_path / "backup")
    assert list(report.restored) == ["registry"]
    (note,) = report.notes
    assert "headrace hive apply" in note
    assert read_database(tmp_path / "target" / "registry.db") == "before"


def test_tables_are_not_restored_without_their_commit_log(settings: Settings, tmp_path: Path) -> None:
    log = LocalCommitStorage(settings.data_dir / "warehouse" / "_headrace")
    CommitLog(log).open()
    back_up(settings, tmp_path / "backup", without=[Store.METASTORE, Store.REGISTRY])
    elsewhere = LoaderSettings(state="hdfs://nn:8020/log")
    manifest = read_manifest(tmp_path / "backup")
    tables = dataclasses.replace(
        manifest.files[0], path=f"{Store.TABLES}/a.avro", bytes=0, sha256=sha256(b"").hexdigest()
    )
    (tmp_path / "backup" / "tables").mkdir()
    (tmp_path / "backup" / "tables" / "a.avro").touch()
    changed = manifest_content(dataclasses.replace(manifest, files=(*manifest.files, tables)))
    (tmp_path / "backup" / MANIFEST_NAME).write_bytes(changed)
    report = restore(Settings(data_dir=tmp_path / "target", loader=elsewhere), tmp_path / "backup", is_dry=True)
    assert report.restored == {}
    assert [note.partition(":")[0] for note in report.notes] == ["commit-log not restored", "tables not restored"]


def test_files_in_staging_stay_when_only_the_commit_log_is_restored(settings: Settings, tmp_path: Path) -> None:
    """They may be committed, and published only by the next load."""
    log = settings.data_dir / "warehouse" / "_headrace"
    CommitLog(LocalCommitStorage(log)).open()
    back_up(settings, tmp_path / "backup", without=[Store.TABLES])
    staged = log / "staging" / "run" / "0.avro"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"staged")
    report = restore(settings, tmp_path / "backup", replaces=True, now=now)
    assert f"{log}.{ASIDE}" in report.moved_aside
    assert staged.read_bytes() == b"staged"


def test_registry_of_sqlite_is_not_restored_over_postgresql(settings: Settings, tmp_path: Path) -> None:
    back_up(settings, tmp_path / "backup", without=[Store.METASTORE])
    postgresql = RegistrySettings(database_url="postgresql://nobody@127.0.0.1:1/none")
    report = restore(Settings(data_dir=tmp_path / "target", registry=postgresql), tmp_path / "backup")
    assert report.restored == {}
    assert "headrace registry import" in report.notes[0]


def test_log_within_the_warehouse_gets_its_place_with_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = tmp_path / "warehouse"
    tables, log = Placement(Store.TABLES, (), warehouse), Placement(Store.COMMIT_LOG, (), warehouse / "_headrace")
    contents = {tables.temporary / "table": "table", log.temporary / "log" / "1": "log", warehouse / "old": "former"}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    synced: list[tuple[str, list[str]]] = []

    def note(path: Path) -> None:
        synced.append((path.name, sorted(one.name for one in path.rglob("*") if one.is_file())))

    monkeypatch.setattr(restore_module, "fsync_tree", note)
    monkeypatch.setattr(restore_module, "fsync_directory", note)
    report = RestoreReport(Manifest("", "", "", "", "", "", 0, {}, {}, (), ()))
    restore_module._swap((log, tables), "aside", report)
    assert (warehouse / "_headrace" / "log" / "1").read_text(encoding="utf-8") == "log"
    assert (warehouse / "table").read_text(encoding="utf-8") == "table"
    assert report.moved_aside == [f"{warehouse}.aside"]
    assert [name for name, _ in synced] == ["warehouse.restoring", tmp_path.name]
    assert synced[0][1] == ["1", "table"], "the log is part of the copy that is synced before the rename"
