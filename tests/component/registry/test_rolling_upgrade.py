"""A release goes on, and may be started, beside the next one whose migrations only add; and not beside another."""

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
from support.registry.registry_calls import Answer
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
    """Makes a migration of a release to come, and gives what runs that release's upgrade."""
    directory = tmp_path / "alembic"
    shutil.copytree(ROOT / "alembic", directory, ignore=shutil.ignore_patterns("__pycache__"))
    before = ScriptDirectory(str(directory)).get_current_head()
    ours = storage._migrations

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
                monkeypatch.setattr(storage, "_migrations", ours)

        return upgrade

    yield make  # type: ignore[misc]


def every_call(front: RegistryBehindFront, number: int) -> list[Answer]:
    subject = f"s{number}"
    target = [{"name": "F", "subject": subject, "version": 1}]
    return [
        front.register(subject, '{"type":"fixed","name":"F","size":4}'),
        front.register(f"{subject}-user", '{"type":"array","items":"F"}', references=target),
        front.register(f":.c{number % 3}:{subject}", '"string"'),
        front.put(f"/config/{subject}", {"compatibility": "NONE"}),
        front.put(f"/mode/{subject}", {"mode": "READWRITE"}),
        front.register(subject, f'{{"type":"fixed","name":"G{number}","size":4}}'),
        front.get(f"/subjects/{subject}/versions/latest"),
        front.get("/subjects"),
        front.post(f"/subjects/{subject}", {"schema": '{"type":"fixed","name":"F","size":4}'}),
        front.delete(f"/subjects/{subject}-user"),
        front.delete(f"/subjects/{subject}-user?permanent=true"),
        front.delete(f"/mode/{subject}"),
        front.delete(f"/config/{subject}"),
    ]


def test_a_release_serves_while_the_next_one_only_adds(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]]
) -> None:
    upgrade = next_release(ADDED, True)
    front = RegistryBehindFront(database_url)
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def work(first: int) -> list[Answer]:
        answers = []
        for number in range(first, first + 10_000, 2):
            answers += every_call(front, number)
            begun.release()
            if stop.is_set():
                break
        return answers

    try:
        with ThreadPoolExecutor(2) as pool:
            serving = [pool.submit(work, first) for first in (0, 1)]
            for _ in range(4):
                assert begun.acquire(timeout=60)
            try:
                upgrade(database_url)
                for _ in range(4):
                    assert begun.acquire(timeout=60)
            finally:
                stop.set()
            answers = [answer for served in serving for answer in served.result(60)]
    finally:
        front.close()
    assert {answer.text for answer in answers if answer.status != 200} == set()
    engine = sa.create_engine(DatabaseAddress.of(database_url).url)
    assert sa.inspect(engine).has_table("later")
    engine.dispose()
    # It may be started anew, and does not take away what it does not know.
    for start in (Database.check, Database.upgrade):
        database = Database(database_url)
        start(database)
        database.close()
    again = RegistryBehindFront(database_url)
    assert {answer.status for answer in every_call(again, 20_000)} == {200}
    again.close()


def test_a_release_is_not_started_on_tables_that_were_changed(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]]
) -> None:
    next_release(CHANGED, False)
    # That the newest migration only adds does not help a release from before the one that changed.
    next_release('op.create_table("later", sa.Column("name", sa.Text, primary_key=True))', True)(database_url)
    for start in (Database.check, Database.upgrade):
        database = Database(database_url)
        with pytest.raises(DatabaseUnusable, match=r"\bmigration \w+"):
            start(database)
        database.close()


def test_a_migration_that_waits_for_a_table_gives_up(
    database_url: str, next_release: Callable[[str, bool], Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since all that is served waits behind it."""
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
def test_migrations_that_say_so_only_add(revision: str) -> None:
    script = ScriptDirectory(str(ROOT / "alembic")).get_revision(revision)
    if not getattr(script.module, "ONLY_ADDS", False):
        assert revision == "0001"
        return
    text = Path(str(script.module.__file__)).read_text().partition("def upgrade")[2].partition("def downgrade")[0]
    calls = {part.partition("(")[0] for part in text.split("op.")[1:]}
    assert calls <= {"create_table", "create_index", "add_column", "bulk_insert"}
    assert "nullable=False" not in "".join(part for part in text.split("op.") if part.startswith("add_column"))
