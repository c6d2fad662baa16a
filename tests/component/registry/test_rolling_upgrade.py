"""A release can serve tables that the next release has only added to, and does not start on others."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from headrace.registry.errors import DatabaseUnusable
from headrace.registry.storage import database as storage
from headrace.registry.storage.database import Database
from headrace.registry.storage.engines import DatabaseAddress
from support.checkout import ROOT
from support.registry.registry_calls import RestResponse
from support.registry.registry_front import RegistryBehindFront

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None

ONLY_ADDS = {only_adds}


def upgrade() -> None:
    {statements}
"""
ADDED = "\n    ".join(
    [
        'op.create_table("later", sa.Column("name", sa.Text, primary_key=True))',
        *(
            f'op.add_column("{table}", sa.Column("later", sa.Text, server_default="x"))'
            for table in ("schemas", "subjects", "versions", "configs", "modes", "contexts", "registry_state")
        ),
        'op.add_column("versions", sa.Column("nullable", sa.BigInteger))',
        'op.create_index("ix_later", "versions", ["created_ms"])',
    ]
)
CHANGED = 'op.rename_table("modes", "modes_of_scopes")'


@pytest.fixture
def next_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, bool], Callable[[], None]]]:
    """Creates a migration of a future release; returns a function that runs the upgrade."""
    directory = tmp_path / "alembic"
    shutil.copytree(ROOT / "alembic", directory, ignore=shutil.ignore_patterns("__pycache__"))
    before = ScriptDirectory(str(directory)).get_current_head()
    real_migrations = storage._migrations

    def make(statements: str, only_adds: bool) -> Callable[[str], None]:
        nonlocal before
        revision = f"{int(str(before)) + 1:04}"
        text = MIGRATION.format(revision=revision, before=before, only_adds=only_adds, statements=statements)
        (directory / "versions" / f"{revision}_later.py").write_text(text)
        before = revision

        def upgrade(url: str) -> None:
            monkeypatch.setattr(storage, "_migrations", lambda: ScriptDirectory(str(directory)))
            database = Database(url)
            try:
                database.upgrade()
                database.check()
            finally:
                database.close()
                monkeypatch.setattr(storage, "_migrations", real_migrations)

        return upgrade

    yield make  # type: ignore[misc]


def every_call(registry: RegistryBehindFront, number: int) -> list[RestResponse]:
    subject = f"s{number}"
    target = [{"name": "F", "subject": subject, "version": 1}]
    return [
        registry.register(subject, '{"type":"fixed","name":"F","size":4}'),
        registry.register(f"{subject}-user", '{"type":"array","items":"F"}', references=target),
        registry.register(f":.c{number % 3}:{subject}", '"string"'),
        registry.put(f"/config/{subject}", {"compatibility": "NONE"}),
        registry.put(f"/mode/{subject}", {"mode": "READWRITE"}),
        registry.register(subject, f'{{"type":"fixed","name":"G{number}","size":4}}'),
        registry.get(f"/subjects/{subject}/versions/latest"),
        registry.get("/subjects"),
        registry.post(f"/subjects/{subject}", {"schema": '{"type":"fixed","name":"F","size":4}'}),
        registry.delete(f"/subjects/{subject}-user"),
        registry.delete(f"/subjects/{subject}-user?permanent=true"),
        registry.delete(f"/mode/{subject}"),
        registry.delete(f"/config/{subject}"),
    ]


def test_release_serves_during_and_after_an_adding_migration(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]]
) -> None:
    upgrade = next_release(ADDED, True)
    registry = RegistryBehindFront(database_url)
    stop = threading.Event()
    rounds_done = threading.Semaphore(0)

    def work(first: int) -> list[RestResponse]:
        responses = []
        for number in range(first, first + 10_000, 2):
            responses += every_call(registry, number)
            rounds_done.release()
            if stop.is_set():
                break
        return responses

    try:
        with ThreadPoolExecutor(2) as pool:
            serving = [pool.submit(work, first) for first in (0, 1)]
            for _ in range(4):
                assert rounds_done.acquire(timeout=60)
            try:
                upgrade(database_url)
                for _ in range(4):
                    assert rounds_done.acquire(timeout=60)
            finally:
                stop.set()
            responses = [response for served in serving for response in served.result(60)]
    finally:
        registry.close()
    assert {response.text for response in responses if response.status != 200} == set()
    engine = sa.create_engine(DatabaseAddress.of(database_url).url)
    assert sa.inspect(engine).has_table("later")
    engine.dispose()
    # The release can be restarted and keeps tables and columns that it does not know.
    for start in (Database.check, Database.upgrade):
        database = Database(database_url)
        start(database)
        database.close()
    restarted = RegistryBehindFront(database_url)
    assert {response.status for response in every_call(restarted, 20_000)} == {200}
    restarted.close()


def test_release_does_not_start_on_changed_tables(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]]
) -> None:
    next_release(CHANGED, False)
    # The newest migration only adds, but the one before changed a table.
    next_release('op.create_table("later", sa.Column("name", sa.Text, primary_key=True))', True)(database_url)
    for start in (Database.check, Database.upgrade):
        database = Database(database_url)
        with pytest.raises(DatabaseUnusable, match=r"\bmigration \w+"):
            start(database)
        database.close()


def test_migration_limits_its_wait_for_a_table(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests of running registries queue behind the migration."""
    monkeypatch.setattr(storage, "TABLE_WAIT_S", 1)
    monkeypatch.setattr(storage, "UPGRADE_ATTEMPTS_MAX", 2)
    upgrade = next_release(ADDED, True)
    engine = sa.create_engine(DatabaseAddress.of(database_url).url)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(sa.text("LOCK TABLE versions IN ACCESS SHARE MODE"))
            with pytest.raises(DatabaseUnusable, match="lock timeout"):
                upgrade(database_url)
    engine.dispose()
    upgrade(database_url)


@pytest.mark.parametrize("revision", [row.revision for row in ScriptDirectory(str(ROOT / "alembic")).walk_revisions()])
def test_adding_migrations_only_add(revision: str) -> None:
    script = ScriptDirectory(str(ROOT / "alembic")).get_revision(revision)
    if not getattr(script.module, "ONLY_ADDS", False):
        assert revision == "0001"
        return
    text = Path(str(script.module.__file__)).read_text().partition("def upgrade")[2].partition("def downgrade")[0]
    calls = {part.partition("(")[0] for part in text.split("op.")[1:]}
    assert calls <= {"create_table", "create_index", "add_column", "bulk_insert"}
    assert "nullable=False" not in "".join(part for part in text.split("op.") if part.startswith("add_column"))
