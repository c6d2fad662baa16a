"""What PostgreSQL may do to a registry short of ending: broken connections, waits, refusals."""

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
from headrace.registry.storage.repository import WriteConflict, IdRequest, Repository
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
    """Ends every connection to the database from the server's side."""
    name = url.rpartition("/")[2]
    query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    return lambda: postgres_server.execute(query) and None


def bump(repository: Repository) -> int:
    repository.bump_revision()
    return repository.revision().number


def test_broken_connections_are_made_again(database: Database, break_connections: Callable[[], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: database.read(Repository.revision), range(40))) == {1}
        for round_number in range(3):
            break_connections()
            expected = database.read(Repository.revision)
            break_connections()
            assert database.write(bump) == expected + 1
            break_connections()
            assert set(pool.map(lambda _: database.read(Repository.contexts)[0], range(40))) == {"."}
            assert expected == round_number + 1


def test_a_connection_that_breaks_in_the_middle_of_a_write(
    database: Database, break_connections: Callable[[], None]
) -> None:
    tried: list[int] = []

    def work(repository: Repository) -> int:
        revision = bump(repository)
        tried.append(revision)
        if len(tried) == 1:
            break_connections()
        return bump(repository)

    assert database.write(work) == 3  # the first attempt's changes are gone
    assert tried == [2, 2]


def test_questions_whose_connection_breaks_every_time(
    database: Database, break_connections: Callable[[], None]
) -> None:
    """They changed nothing, and the answer does not say that they might have."""

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


def test_a_connection_that_breaks_at_the_commit(database: Database, break_connections: Callable[[], None]) -> None:
    """Whether it was committed cannot be known, so it is not done again behind the caller's back."""
    break_at_commit(database, break_connections)
    with pytest.raises(ConnectionLost) as caught:
        database.write(bump)
    assert caught.value.is_outcome_unknown
    assert database.write(bump) == 2
    break_at_commit(database, break_connections)
    with pytest.raises(WriteConflict):  # whoever decides again sees what came of it
        database.write(bump, attempts=1)


def test_a_registration_outlives_the_loss_of_its_connection(
    url: str, break_connections: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Database] = []
    made = Database.__init__

    def noted(self: Database, *args: str, **kwargs: int) -> None:
        made(self, *args, **kwargs)  # type: ignore[arg-type]
        opened.append(self)

    monkeypatch.setattr(Database, "__init__", noted)
    target = '{"type":"fixed","name":"T","size":4}'
    user = '{"type":"array","items":"T"}'
    references = [{"name": "T", "subject": "s", "version": 1}]
    with registry_in_process(url) as registry:
        assert isinstance(registry, RegistryInProcess)
        break_at_commit(opened[0], break_connections)
        assert registry.registered("s", target) == registry.registered("s", target)
        break_at_commit(opened[0], break_connections)
        answer = registry.register("u", user, references=references)
        assert (answer.status, answer.json["version"]) == (200, 1)
        assert registry.get("/subjects/u/versions").json == [1]
        assert registry.get("/subjects/s/versions/1/referencedby").json == [answer.json["id"]]


def test_waits_are_bounded(url: str, database: Database) -> None:
    impatient = Database(f"{url}?options=-c%20statement_timeout%3D200")
    with psycopg.connect(url) as other:
        other.execute("SELECT revision FROM registry_state WHERE id = %s FOR UPDATE", (STATE_ID,))
        with pytest.raises(StoreError) as refused:
            impatient.write(bump)
        assert isinstance(refused.value.__cause__, sa.exc.DBAPIError)
        assert isinstance(refused.value.__cause__.orig, psycopg.errors.QueryCanceled)
    assert impatient.write(bump) == 2
    impatient.close()


def test_migrations_take_the_time_they_need(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    impatient = Database(f"{url}?options=-c%20statement_timeout%3D100")
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
        upgraded = pool.submit(impatient.upgrade)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND now() - query_start > '300ms'"
        )
        while other.execute(waiting).fetchone() == (0,) and not upgraded.done():
            time.sleep(0.02)
        other.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_LOCK,))
        upgraded.result(60)
    impatient.check()
    impatient.close()


def test_waits_for_a_connection_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POSTGRES_CONNECTION_WAIT_S", 0.2)
    narrow = Database(url, connections=1)

    def both(_: Repository) -> int:
        return narrow.read(Repository.revision)

    with pytest.raises(StoreError) as refused:
        narrow.read(both)
    assert isinstance(refused.value.__cause__, sa.exc.TimeoutError)
    assert narrow.read(Repository.revision) == 1
    narrow.close()


def test_a_read_sees_one_state_from_beginning_to_end(database: Database) -> None:
    def work(repository: Repository) -> tuple[list[str], list[str], int]:
        before = repository.contexts()
        database.write(lambda other: (other.list_context(".late"), other.bump_revision()))
        return before, repository.contexts(), repository.revision().number

    assert database.read(work) == (["."], ["."], 1)
    assert database.read(lambda repository: (repository.contexts(), repository.revision().number)) == ([".", ".late"], 2)


def test_a_database_that_only_reads(postgres_server: PostgresServer, database: Database, url: str) -> None:
    """As a standby does."""
    name = url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    standby = Database(url)
    assert standby.read(Repository.revision) == 1
    with pytest.raises(StoreError, match="read-only transaction"):
        standby.write(bump)
    with pytest.raises(StoreError, match="read-only transaction"):
        standby.write(bump, new_id=IdRequest(".", SchemaContent(STRING)))
    standby.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda server: server.url("nowhere"), 'database "nowhere" does not exist'),
        (lambda server: server.url(password="wrong-word"), "password authentication failed"),
        (lambda server: server.url().replace(f":{server.port}/", ":1/"), "Connection refused"),
    ],
)
def test_what_cannot_be_opened(
    postgres_server: PostgresServer, changed: Callable[[PostgresServer], str], said: str
) -> None:
    url = changed(postgres_server)
    database = Database(url)
    for use in (database.upgrade, database.check):
        with pytest.raises(DatabaseUnusable, match=said) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert sa.make_url(url).password not in str(caught.value)  # type: ignore[operator]
    with pytest.raises(StoreError) as refused:
        database.read(Repository.revision)
    assert isinstance(refused.value.__cause__, sa.exc.OperationalError)
    assert sa.make_url(url).database not in str(refused.value)  # type: ignore[operator]
    assert "***@" in database.name
    assert "psycopg" not in database.name


@pytest.mark.parametrize(
    "url", ["mysql://u@h/d", "postgresql+asyncpg://u@h/d", "sqlite+aiosqlite:///f", "postgresql", "sqlite://", ""]
)
def test_urls_of_no_use(url: str) -> None:
    with pytest.raises(DatabaseUnusable, match=r"registry\.database_url"):
        Database(url)
