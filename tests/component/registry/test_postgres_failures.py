"""Failures of PostgreSQL without an end of the server: broken connections, waits, rejected statements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa

from headrace.registry.domain import SchemaContent
from headrace.registry.errors import DatabaseUnusable, StoreError
from headrace.registry.storage import engines
from headrace.registry.storage.database import MIGRATION_LOCK, ConnectionLost, Database
from headrace.registry.storage.models import STATE_ID
from headrace.registry.storage.repository import IdRequest, Repository, WriteConflict
from support.registry.migrated_databases import PostgresTemplate
from support.registry.registry_calls import STRING, RegistryInProcess, registry_in_process
from support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_template: PostgresTemplate) -> str:
    return postgres_template.copy()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url, lease_s=0)
    yield database
    database.close()


@pytest.fixture
def break_connections(postgres_server: PostgresServer, url: str) -> Callable[[], None]:
    """Closes every connection to the database from the server's side."""
    name = url.rpartition("/")[2]
    query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    return lambda: postgres_server.execute(query) and None


def revision_number(repository: Repository) -> int:
    return repository.revision().number


def bump(repository: Repository) -> int:
    repository.bump_revision()
    return revision_number(repository)


def test_broken_connections_are_replaced(database: Database, break_connections: Callable[[], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: database.read(revision_number), range(40))) == {1}
        for round_number in range(3):
            break_connections()
            expected = database.read(revision_number)
            break_connections()
            assert database.write(bump) == expected + 1
            break_connections()
            assert set(pool.map(lambda _: database.read(Repository.contexts)[0], range(40))) == {"."}
            assert expected == round_number + 1


def test_write_is_repeated_after_a_broken_connection(database: Database, break_connections: Callable[[], None]) -> None:
    tried: list[int] = []

    def work(repository: Repository) -> int:
        revision = bump(repository)
        tried.append(revision)
        if len(tried) == 1:
            break_connections()
        return bump(repository)

    assert database.write(work) == 3  # the first attempt was rolled back
    assert tried == [2, 2]


def test_read_fails_after_repeatedly_broken_connections(
    database: Database, break_connections: Callable[[], None]
) -> None:
    """A read changes nothing, so its error does not say that a change may have been made."""

    def work(repository: Repository) -> int:
        break_connections()
        return repository.revision().number

    for in_one_snapshot in (True, False):
        with pytest.raises(ConnectionLost) as caught:
            database.read(work, in_one_snapshot=in_one_snapshot)
        assert not caught.value.is_outcome_unknown


def break_at_commit(database: Database, break_connections: Callable[[], None]) -> None:
    """Breaks the next connection that is about to send COMMIT."""
    broken = threading.Event()

    def on_commit(connection: sa.Connection) -> None:
        if not broken.is_set():
            broken.set()
            break_connections()

    sa.event.listen(database._engine, "commit", on_commit)


def test_write_is_not_repeated_after_a_broken_commit(database: Database, break_connections: Callable[[], None]) -> None:
    """The commit may have happened, so the write is not repeated automatically."""
    break_at_commit(database, break_connections)
    with pytest.raises(ConnectionLost) as caught:
        database.write(bump)
    assert caught.value.is_outcome_unknown
    assert database.write(bump) == 2
    break_at_commit(database, break_connections)
    with pytest.raises(WriteConflict):  # a repeated decision sees the result
        database.write(bump, attempts=1)


def test_registration_succeeds_after_a_broken_commit(
    url: str, break_connections: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Database] = []
    made = Database.__init__

    def recorded(self: Database, *args: str, **kwargs: int) -> None:
        made(self, *args, **kwargs)  # type: ignore[arg-type]
        opened.append(self)

    monkeypatch.setattr(Database, "__init__", recorded)
    target = '{"type":"fixed","name":"T","size":4}'
    user = '{"type":"array","items":"T"}'
    references = [{"name": "T", "subject": "s", "version": 1}]
    with registry_in_process(url) as registry:
        assert isinstance(registry, RegistryInProcess)
        break_at_commit(opened[0], break_connections)
        assert registry.registered("s", target) == registry.registered("s", target)
        break_at_commit(opened[0], break_connections)
        response = registry.register("u", user, references=references)
        assert (response.status, response.json["version"]) == (200, 1)
        assert registry.get("/subjects/u/versions").json == [1]
        assert registry.get("/subjects/s/versions/1/referencedby").json == [response.json["id"]]


def test_wait_for_a_row_lock_is_limited(url: str, database: Database) -> None:
    short_timeout = Database(f"{url}?options=-c%20statement_timeout%3D200")
    with psycopg.connect(url) as other:
        other.execute("SELECT revision FROM registry_state WHERE id = %s FOR UPDATE", (STATE_ID,))
        with pytest.raises(StoreError) as refused:
            short_timeout.write(bump)
        assert isinstance(refused.value.__cause__, sa.exc.DBAPIError)
        assert isinstance(refused.value.__cause__.orig, psycopg.errors.QueryCanceled)
    assert short_timeout.write(bump) == 2
    short_timeout.close()


def test_migration_ignores_statement_timeout(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    short_timeout = Database(f"{url}?options=-c%20statement_timeout%3D100")
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
        upgraded = pool.submit(short_timeout.upgrade)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND now() - query_start > '300ms'"
        )
        while other.execute(waiting).fetchone() == (0,) and not upgraded.done():
            time.sleep(0.02)
        other.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))
        upgraded.result(60)
    short_timeout.check()
    short_timeout.close()


def test_wait_for_a_connection_is_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POSTGRES_CONNECTION_WAIT_S", 0.2)
    one_connection = Database(url, connections=1)

    def both(_: Repository) -> int:
        return one_connection.read(revision_number)

    with pytest.raises(StoreError) as refused:
        one_connection.read(both)
    assert isinstance(refused.value.__cause__, sa.exc.TimeoutError)
    assert one_connection.read(revision_number) == 1
    one_connection.close()


def test_read_sees_one_snapshot(database: Database) -> None:
    def work(repository: Repository) -> tuple[list[str], list[str], int]:
        before = repository.contexts()
        database.write(lambda other: (other.list_context(".late"), other.bump_revision()))
        return before, repository.contexts(), repository.revision().number

    assert database.read(work) == (["."], ["."], 1)
    assert database.read(lambda repository: (repository.contexts(), repository.revision().number)) == (
        [".", ".late"],
        2,
    )


def test_read_only_database_rejects_writes(postgres_server: PostgresServer, database: Database, url: str) -> None:
    """As a standby does."""
    name = url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    standby = Database(url)
    assert standby.read(revision_number) == 1
    with pytest.raises(StoreError, match="read-only transaction"):
        standby.write(bump)
    with pytest.raises(StoreError, match="read-only transaction"):
        standby.write(bump, new_id=IdRequest(".", SchemaContent(STRING)))
    standby.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda server: server.url("nowhere"), 'database "nowhere" does not exist'),
        (lambda server: server.url(password="wrong-word"), "password authentication failed"),
        (lambda server: server.url().replace(f":{server.port}/", ":1/"), "Connection refused"),
    ],
)
def test_database_that_cannot_be_opened_is_reported(
    postgres_server: PostgresServer, changed: Callable[[PostgresServer], str], message: str
) -> None:
    url = changed(postgres_server)
    database = Database(url)
    for use in (database.upgrade, database.check):
        with pytest.raises(DatabaseUnusable, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert sa.make_url(url).password not in str(caught.value)  # type: ignore[operator]
    with pytest.raises(StoreError) as refused:
        database.read(revision_number)
    assert isinstance(refused.value.__cause__, sa.exc.OperationalError)
    assert sa.make_url(url).database not in str(refused.value)  # type: ignore[operator]
    assert "***@" in database.name
    assert "psycopg" not in database.name


@pytest.mark.parametrize(
    "url", ["mysql://u@h/d", "postgresql+asyncpg://u@h/d", "sqlite+aiosqlite:///f", "postgresql", "sqlite://", ""]
)
def test_unsupported_urls_are_rejected(url: str) -> None:
    with pytest.raises(DatabaseUnusable, match=r"registry\.database_url"):
        Database(url)
