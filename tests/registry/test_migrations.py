"""Migrations create exactly the tables of the models."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from headrace.registry.domain import Metadata, SchemaContent, SchemaReference
from headrace.registry.errors import DatabaseUnusable
from headrace.registry.rules import Rule, RuleKind, RuleMode, RuleSet
from headrace.registry.storage.database import Database
from headrace.registry.storage.engines import DatabaseAddress
from headrace.registry.storage.models import Base


def _tables(engine: sa.Engine) -> dict[str, object]:
    inspector = sa.inspect(engine)
    return {
        table: (
            [(c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in inspector.get_columns(table)],
            sorted(str(u["column_names"]) + str(u["name"]) for u in inspector.get_unique_constraints(table)),
            sorted(str(i["column_names"]) + str(i["name"]) for i in inspector.get_indexes(table)),
            sorted(f"{f['name']} {f['constrained_columns']} {f['options']}" for f in inspector.get_foreign_keys(table)),
            sorted(str(item) for item in inspector.get_pk_constraint(table).items()),
        )
        for table in inspector.get_table_names()
        if table not in ("alembic_version", "sqlite_sequence")
    }


def test_migrated_tables_equal_the_models(new_empty_database: Callable[[], str]) -> None:
    url, created_url = new_empty_database(), new_empty_database()
    Database(url).upgrade()
    migrated = engine_of(url)
    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        if migrated.dialect.name == "sqlite":
            (schemas,) = connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE name = 'schemas'")).one()
            assert "AUTOINCREMENT" in schemas  # ids are not reused
    created = engine_of(created_url)
    Base.metadata.create_all(created)
    assert _tables(migrated) == _tables(created)
    migrated.dispose()
    created.dispose()


def test_upgrade_is_idempotent_and_passes_check(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(DatabaseUnusable, match=r"\b0001\b.*db upgrade"):
        database.check()
    database.upgrade()
    database.upgrade()
    database.check()
    database.close()


def test_each_database_has_its_own_identity(new_empty_database: Callable[[], str]) -> None:
    identities = []
    for _ in range(2):
        database = Database(new_empty_database())
        database.upgrade()
        found = database.read(lambda repository: repository.identity())
        database.upgrade()
        assert database.read(lambda repository: repository.identity()) == found
        identities.append(found)
        database.close()
    assert len(set(identities)) == 2
    assert all(identities)


def test_copies_of_the_template_are_migrated_and_have_their_own_identity(
    new_database: Callable[[], str],
) -> None:
    identities = set()
    for _ in range(2):
        database = Database(new_database())
        database.check()
        identities.add(database.read(lambda repository: repository.identity()))
        database.close()
    assert len(identities) == 2


def test_concurrent_upgrades_succeed(empty_database_url: str) -> None:
    databases = [Database(empty_database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Database.upgrade, databases))
    for database in databases:
        database.check()
        database.close()


def test_upgrade_waits_for_a_writer_of_a_new_sqlite_file(tmp_path: Path) -> None:
    """SQLite itself does not wait for the change to a write-ahead log."""
    path = tmp_path / "registry.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE other (x INTEGER)")
    ends = threading.Timer(0.3, other.execute, ["ROLLBACK"])
    ends.start()
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    database.check()
    database.close()
    ends.join()
    other.close()


def test_failed_migration_leaves_no_tables(empty_database_url: str) -> None:
    engine = engine_of(empty_database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE versions (x INTEGER)"))
    with pytest.raises(DatabaseUnusable, match="versions"):
        Database(empty_database_url).upgrade()
    assert sa.inspect(engine).get_table_names() == ["versions"]
    engine.dispose()


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(DatabaseAddress.of(url).url)


RULES = RuleSet(
    (Rule("up", None, RuleKind.TRANSFORM, RuleMode.UPGRADE, "JSONATA", expr="é"),),
    (Rule("a", "doc", RuleKind.CONDITION, RuleMode.WRITE, "CEL", ("PII", "X"), (("k", "v"),), disabled=True),),
    enable_at="now",
)
CONTENTS = (
    SchemaContent('"string"'),
    SchemaContent('"string"', metadata=Metadata()),
    SchemaContent('"string"', metadata=Metadata.of({"b": "1", "a": "é"}, {"**.x": ["PII", "A"]}, ["b", "a"])),
    SchemaContent('"bytes"', rule_set=RuleSet()),
    SchemaContent('"string"', metadata=Metadata.of({"a": "1"}), rule_set=RULES),
    SchemaContent(
        '{"type":"array","items":"n.N"}',
        (SchemaReference("n.N", "target", 1), SchemaReference("n.N", "target", 2)),
        Metadata.of({"a": "1"}),
        RULES,
    ),
)


FINGERPRINTS = [
    "d486bf4e085ed2f856452cad524576d81b04ae7e07e4f032e8ad4828dd287b6e",
    "a7226ecb9e124fc7df40612980a533bfb12c447f4f2434e8aeab38d3d815cd6f",
    "ee3d467c0afeb0cfc71c2dcf58e4d31c8f4c3e559eac69b3c3fd3b1898b12e93",
    "9536de9e1a0eaa110fb6276cfcced6fc51b67726b2377e148249f70a5aab3d4d",
    "08f2ac7dea66263ba208869a0c47c74b007d4176f4601fc2ebd4eeec89ba7226",
    "5e55ce7cf25020d0188e429b801dd0acf291eaf7082b4a992fcc420c34c90c01",
]


def test_fingerprints_equal_those_in_databases() -> None:
    """A change of the algorithm needs a migration that rewrites `schemas.fingerprint`."""
    assert [content.fingerprint.hex() for content in CONTENTS] == FINGERPRINTS
