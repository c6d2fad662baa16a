"""The registry's PostgreSQL database in backups of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from headrace.pipeline.state_backup.backup import back_up
from headrace.pipeline.state_backup.manifest import BackupError
from headrace.pipeline.state_backup.restore import restore
from headrace.registry.storage.engines import DatabaseAddress
from headrace.settings import RegistrySettings, Settings
from support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.new_database()
    execute(url, "CREATE TABLE schema_ids (id integer)")
    execute(url, "INSERT INTO schema_ids VALUES (1)")
    yield url


def execute(url: str, statement: str) -> list[int]:
    engine = sa.create_engine(DatabaseAddress.of(url).url)
    try:
        with engine.begin() as connection:
            found = connection.execute(sa.text(statement))
            return [row[0] for row in found] if found.returns_rows else []
    finally:
        engine.dispose()


def settings(data_dir: Path, url: str) -> Settings:
    return Settings(data_dir=data_dir, registry=RegistrySettings(database_url=url))


def test_dump_is_restored_into_empty_database_and_over_a_newer_one(
    url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    manifest = back_up(settings(tmp_path / "data", url), tmp_path / "backup")
    assert dict(manifest.stores) == {"registry": "PostgreSQL"}
    execute(url, "INSERT INTO schema_ids VALUES (2)")
    with pytest.raises(BackupError, match="--replace"):
        restore(settings(tmp_path / "target", url), tmp_path / "backup")
    assert execute(url, "SELECT id FROM schema_ids ORDER BY id") == [1, 2]

    empty = postgres_server.new_database()
    for database, replaces in ((empty, False), (url, True)):
        report = restore(settings(tmp_path / "target", database), tmp_path / "backup", replaces=replaces)
        assert report.restored == {"registry": "PostgreSQL"}
        assert execute(database, "SELECT id FROM schema_ids ORDER BY id") == [1]


def test_errors_name_no_password(url: str, tmp_path: Path) -> None:
    password = str(DatabaseAddress.of(url).url.password)
    for wrong in (url.replace(password, "wrong"), url.rsplit("/", 1)[0] + "/absent"):
        with pytest.raises(BackupError, match="pg_dump failed") as failed:
            back_up(settings(tmp_path / "data", wrong), tmp_path / f"backup-{len(wrong)}")
        assert password not in str(failed.value)


def test_dump_needs_a_postgresql_database(url: str, tmp_path: Path) -> None:
    back_up(settings(tmp_path / "data", url), tmp_path / "backup")
    with pytest.raises(BackupError, match="names no PostgreSQL"):
        restore(Settings(data_dir=tmp_path / "target"), tmp_path / "backup")
