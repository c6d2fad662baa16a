"""The migrations lead to exactly the tables that the code expects."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from headrace.registry.domain import ConfigEntry, Metadata, SchemaContent, SchemaId, SchemaReference
from headrace.registry.errors import DatabaseUnusable
from headrace.registry.rules import Rule, RuleKind, RuleMode, RuleSet
from headrace.registry.storage.database import Database
from headrace.registry.storage.engines import DatabaseAddress
from headrace.registry.storage.models import Base
from headrace.registry.storage.rows import schema_row
from support.checkout import ROOT


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


def test_migrations_reach_the_models(new_empty_database: Callable[[], str]) -> None:
    url, created_url = new_empty_database(), new_empty_database()
    Database(url).upgrade()
    migrated = engine_of(url)
    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        if migrated.dialect.name == "sqlite":
            (schemas,) = connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE name = 'schemas'")).one()
            assert "AUTOINCREMENT" in schemas  # ids are never used again
    created = engine_of(created_url)
    Base.metadata.create_all(created)
    assert _tables(migrated) == _tables(created)
    migrated.dispose()
    created.dispose()


def test_upgrading_again_changes_nothing_and_check_agrees(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(DatabaseUnusable, match=r"\b0006\b.*db upgrade"):
        database.check()
    database.upgrade()
    database.upgrade()
    database.check()
    database.close()


def test_every_database_has_an_identity_of_its_own(new_empty_database: Callable[[], str]) -> None:
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


def test_copies_of_the_template_are_migrated_and_have_identities_of_their_own(
    new_database: Callable[[], str],
) -> None:
    identities = set()
    for _ in range(2):
        database = Database(new_database())
        database.check()
        identities.add(database.read(lambda repository: repository.identity()))
        database.close()
    assert len(identities) == 2


def test_several_upgrade_at_once(empty_database_url: str) -> None:
    databases = [Database(empty_database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Database.upgrade, databases))
    for database in databases:
        database.check()
        database.close()


def test_a_new_file_that_another_writes_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself does not wait where a database becomes one with a write-ahead log."""
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


def test_a_failed_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    engine = engine_of(empty_database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE versions (x INTEGER)"))
    with pytest.raises(DatabaseUnusable, match="versions"):
        Database(empty_database_url).upgrade()
    assert sa.inspect(engine).get_table_names() == ["versions"]
    engine.dispose()


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(DatabaseAddress.of(url).url)


def upgrade_to(engine: sa.Engine, revision: str) -> None:
    """Brings a database to an older version's tables, as that version did."""
    script = ScriptDirectory(str(ROOT / "alembic"))
    config = Config()
    config.set_main_option("script_location", script.dir)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        with EnvironmentContext(config, script, fn=lambda rev, _: script._upgrade_revs(revision, rev)):
            script.run_env()


OLD_CONTENTS = (
    SchemaContent('"string"', (), Metadata.of({"owner": "x"})),
    SchemaContent('"bytes"', (SchemaReference("n.N", "a", 1), SchemaReference("n.M", "a", 2))),
)
OLD_ROWS: dict[str, list[tuple[object, ...]]] = {
    "schemas": [
        (2, OLD_CONTENTS[0].guid_bytes, b"k" * 16, '"string"', '{"properties": {"owner": "x"}}', 11),
        (5, OLD_CONTENTS[1].guid_bytes, b"l" * 16, '"bytes"', None, 12),
    ],
    "schema_references": [(5, 1, "n.M", "a", 2), (5, 0, "n.N", "a", 1)],
    "subjects": [(3, "a", 7), (4, "b/c", 1)],
    "versions": [(3, 1, 2, True, 21), (3, 2, 5, False, 22), (4, 1, 2, False, 23)],
    "configs": [("__GLOBAL", "FULL", None), ("a", None, True)],
}


NEWEST_ID_GIVEN = {
    "sqlite": "UPDATE sqlite_sequence SET seq = 9 WHERE name = 'schemas'",
    "postgresql": "SELECT setval(pg_get_serial_sequence('schemas', 'id'), 9)",
}


def test_a_database_of_the_first_tables_keeps_what_it_holds(empty_database_url: str) -> None:
    engine = engine_of(empty_database_url)
    upgrade_to(engine, "0001")
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for name, rows in OLD_ROWS.items():
            columns = tables.tables[name].columns.keys()
            connection.execute(sa.insert(tables.tables[name]), [dict(zip(columns, row, strict=True)) for row in rows])
        # The newest id was given to a schema that has gone since.
        connection.execute(sa.text(NEWEST_ID_GIVEN[engine.dialect.name]))
    engine.dispose()
    database = Database(empty_database_url)
    database.upgrade()
    database.check()

    found = database.read(lambda repository: repository.versions(deleted=True))
    assert [(item.subject, item.version, item.schema.schema_id, item.deleted, item.created_ms) for item in found] == [
        ("a", 1, 2, True, 21),
        ("a", 2, 5, False, 22),
        ("b/c", 1, 2, False, 23),
    ]
    assert [item.schema.content for item in found] == [OLD_CONTENTS[0], OLD_CONTENTS[1], OLD_CONTENTS[0]]
    assert {item.schema.context for item in found} == {"."}
    assert [item.schema_id for item in database.read(lambda r: r.referencing("a", 1, deleted=False))] == [5]
    for content in OLD_CONTENTS:
        # By content and by guid, as those that are registered from now on.
        (by_guid,) = database.read(lambda r, content=content: r.schemas_by_guid(content.guid_bytes))  # type: ignore[misc]
        assert by_guid.content == content
        assert database.read(lambda r, content=content: r.schema_of(".", content)) == by_guid  # type: ignore[misc]
    configs = database.read(lambda repository: repository.configs([None, "a", "b/c"]))
    assert configs == {None: ConfigEntry("FULL"), "a": ConfigEntry(normalize=True)}
    state = database.read(lambda repository: repository.subject_state("a"))
    assert state is not None
    assert (state.subject_id, state.revision) == (3, 7)
    assert database.read(lambda repository: (repository.contexts(), repository.revision())) == (["."], 1)
    assert database.write(lambda repository: repository.take_schema_id(".")) == 10
    # Rows that come now have keys of their own.
    assert database.write(lambda repository: repository.claim_subject("new", None)) == 5
    row_key = database.write(lambda r: r.add_schema(".", SchemaId(10), SchemaContent('"int"'), b"m" * 16, 24))
    assert row_key == 6
    database.close()


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


def test_fingerprints_of_a_database_from_before_are_those_of_its_contents(empty_database_url: str) -> None:
    """Also where there are more schemas than are looked at together, with gaps, and two ids for one content."""
    engine = engine_of(empty_database_url)
    upgrade_to(engine, "0003")
    tables = sa.MetaData()
    tables.reflect(engine)
    many = [SchemaContent(json.dumps({"type": "fixed", "name": f"F{number}", "size": 1})) for number in range(1_100)]
    rows, references = [], []
    for number, content in enumerate([*CONTENTS, *many], 1):
        row = schema_row(".", SchemaId(number), content, b"k" * 16, 5)
        rows.append({**row, "fingerprint": content.guid_bytes, "row_key": 2 * number})
        references += [
            {"schema_key": 2 * number, "position": place, "target": item.subject, **asdict(item)}
            for place, item in enumerate(content.references)
        ]
    rows.append({**rows[0], "id": 7_000, "row_key": 7_000, "copy": 7_000})
    with engine.begin() as connection:
        for row in rows:
            row.pop("guid")
        connection.execute(sa.insert(tables.tables["schemas"]), rows)
        connection.execute(sa.insert(tables.tables["schema_references"]), references)
        connection.execute(
            sa.insert(tables.tables["subjects"]), [{"id": 3, "name": "s", "context": ".", "revision": 9}]
        )
        versions = [{"subject_id": 3, "version": number, "schema_key": 2 * number} for number in (1, 2, 1_000)]
        given = [{**version, "deleted": False, "created_ms": 6} for version in versions]
        connection.execute(sa.insert(tables.tables["versions"]), given)
        if engine.dialect.name == "sqlite":
            connection.execute(sa.text("UPDATE sqlite_sequence SET seq = 9000 WHERE name = 'schemas'"))
        else:
            connection.execute(sa.text("SELECT setval(pg_get_serial_sequence('schemas', 'row_key'), 9000)"))
    engine.dispose()
    database = Database(empty_database_url)
    database.upgrade()
    database.check()
    for number, content in enumerate([*CONTENTS, *many[::100]], 1):
        found = database.read(lambda r, content=content: r.schema_of(".", content))  # type: ignore[misc]
        assert found is not None
        assert (found.content, found.content.guid) == (content, content.guid)
        if number <= len(CONTENTS):
            assert (found.schema_id, found.row_key) == (number, 2 * number)
    assert len(database.read(lambda r: r.schemas_by_guid(CONTENTS[0].guid_bytes))) == 2
    stored = database.read(lambda r: r.versions(subject="s"))
    assert [(item.version, item.schema.schema_id) for item in stored] == [(1, 1), (2, 2), (1_000, 1_000)]
    # Keys that were given once are not given again.
    assert database.write(lambda r: r.add_schema(".", SchemaId(8_000), SchemaContent('"int"'), b"m" * 16, 7)) == 9_001
    with sa.create_engine(database._engine.url).connect() as connection:
        stated = connection.execute(sa.text("SELECT fingerprint, guid FROM schemas WHERE id = 1")).one()
        assert (bytes(stated.fingerprint), bytes(stated.guid)) == (CONTENTS[0].fingerprint, CONTENTS[0].guid_bytes)
    database.close()
