"""The migrations lead to exactly the tables that the code expects."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from registry.errors import DatabaseUnusable
from registry.storage.database import Database, sqlite_url
from registry.storage.models import Base


def _tables(engine: sa.Engine) -> dict[str, object]:
    inspector = sa.inspect(engine)
    return {
        table: (
            [(c["name"], str(c["type"]), c["nullable"], c["primary_key"]) for c in inspector.get_columns(table)],
            sorted(str(u["column_names"]) + str(u["name"]) for u in inspector.get_unique_constraints(table)),
            sorted(str(i["column_names"]) + str(i["name"]) for i in inspector.get_indexes(table)),
            sorted(f"{f['name']} {f['constrained_columns']} {f['options']}" for f in inspector.get_foreign_keys(table)),
            inspector.get_pk_constraint(table)["name"],
        )
        for table in inspector.get_table_names()
        if table not in ("alembic_version", "sqlite_sequence")
    }


def test_migrations_reach_the_models(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "migrated.db")
    Database(url).upgrade()
    migrated = sa.create_engine(url)
    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        (schemas,) = connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE name = 'schemas'")).one()
        assert "AUTOINCREMENT" in schemas  # ids are never used again
    created = sa.create_engine(sqlite_url(tmp_path / "created.db"))
    Base.metadata.create_all(created)
    assert _tables(migrated) == _tables(created)
    migrated.dispose()
    created.dispose()


def test_upgrading_again_changes_nothing_and_check_agrees(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "registry.db"))
    with pytest.raises(DatabaseUnusable, match=r"is at migration none, expected 0001: run .*db upgrade"):
        database.check()
    database.upgrade()
    database.upgrade()
    database.check()
    database.close()


def test_a_failed_migration_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    engine = sa.create_engine(sqlite_url(path))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE versions (x INTEGER)"))
    with pytest.raises(DatabaseUnusable, match="table versions already exists"):
        Database(sqlite_url(path)).upgrade()
    assert sa.inspect(engine).get_table_names() == ["versions"]
    engine.dispose()
