"""A database that went back gives its numbers a second time: no process answers what was said of them before.

After a back-up was put back (SQLite), a failover to a standby that lagged, a recovery to a point in time and a snapshot
that was put in place (PostgreSQL).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from headrace.registry.storage.database import Database, sqlite_url
from support.memory_directory import memory_parent
from support.registry.registry_calls import Registry
from support.registry.registry_front import LEASE_S, RegistryBehindFront
from support.servers.postgres_server import PostgresServer

USES_F = '{"type":"array","items":"F"}'


def fixed(size: int, name: str = "F") -> str:
    return f'{{"type":"fixed","name":"{name}","size":{size}}}'


def refer(version: int) -> list[dict[str, object]]:
    return [{"name": "F", "subject": "target", "version": version}]


QUESTIONS: list[tuple[str, str, object]] = [
    *(("GET", f"/schemas/ids/{number}{suffix}", None) for number in range(1, 9) for suffix in ("", "?format=resolved")),
    *(
        ("GET", f"/subjects/{subject}/versions{suffix}", None)
        for subject in ("a", "b", "c", "target", "user")
        for suffix in ("", "/1", "/2", "/latest", "/latest?format=resolved")
    ),
    ("GET", "/subjects", None),
    *(("GET", path, None) for path in ("/config", "/config/a", "/config/b", "/mode", "/mode/a", "/mode/b")),
    *(("POST", f"/subjects/a{path}", {"schema": fixed(size)}) for path in ("", "/versions") for size in (1, 2)),
    *(("POST", "/compatibility/subjects/a/versions/latest", {"schema": fixed(size)}) for size in (1, 2, 3)),
]
"""To be asked in this order, though none of them changes anything that is there."""


def answers(registry: Registry) -> list[tuple[int, str]]:
    found = [registry.call(method, path, body) for method, path, body in QUESTIONS]
    return [(answer.status, answer.text) for answer in found]


def begin(registry: Registry) -> None:
    """What stays."""
    registry.put("/config", {"compatibility": "NONE"})
    registry.registered("a", fixed(1))
    registry.registered("target", fixed(1))


def go_on(registry: Registry, size: int) -> None:
    """What is lost, or comes in its place: the same numbers everywhere, and other things."""
    registry.registered("target", fixed(size))
    registry.registered("user", USES_F, references=refer(2))
    registry.registered("a", fixed(size))
    registry.registered("b" if size == 2 else "c", fixed(size, "G"))
    scope = "a" if size == 2 else "b"
    registry.put(f"/config/{scope}", {"compatibility": "FULL"})
    registry.put(f"/mode/{scope}", {"mode": "READONLY"})
    registry.put(f"/mode/{scope}", {"mode": "READWRITE"})
    if size == 2:
        registry.put("/config/a", {"compatibility": "NONE"})
    else:
        registry.put("/config/b", {"normalize": True})


@contextmanager
def fronts(url: str) -> Iterator[tuple[RegistryBehindFront, RegistryBehindFront]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(closing(RegistryBehindFront(url))) for _ in range(2))  # type: ignore[misc]


def require_truth(url: str, asked: tuple[RegistryBehindFront, ...]) -> None:
    """Goes on where the database is now, by somebody new, and asks everybody."""
    with fronts(url) as (writer, reader):
        go_on(writer, 3)
        # Two of the questions register what may have been lost; then all find the same.
        writer.registered("a", fixed(2))
        expected = answers(reader)
    time.sleep(LEASE_S)
    for front in asked:
        assert answers(front) == expected
        assert answers(front) == expected


def lose(url: str, take_copy: Callable[[], None], go_back: Callable[[], None]) -> None:
    with fronts(url) as asked:
        begin(asked[0])
        take_copy()
        go_on(asked[0], 2)
        for front in asked:
            # Twice, so that there is something kept.
            assert answers(front) == answers(front)
        go_back()
        require_truth(url, asked)


def upgraded(url: str) -> str:
    database = Database(url)
    database.upgrade()
    database.close()
    return url


def put_back(copy: Path, path: Path) -> None:
    """As the command `.restore` does it, while the file is in use."""
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path, timeout=30)) as target:
        source.backup(target)


def test_a_back_up_is_put_back_into_a_sqlite_file(tmp_path: Path) -> None:
    path, copy = tmp_path / "registry.db", tmp_path / "copy.db"
    lose(upgraded(sqlite_url(path)), lambda: put_back(path, copy), lambda: put_back(copy, path))


def test_a_registration_decided_before_the_database_went_back_is_decided_again(tmp_path: Path) -> None:
    """Though the subject is at the revision that it was decided on, with other versions."""
    path, copy = tmp_path / "registry.db", tmp_path / "copy.db"
    url = upgraded(sqlite_url(path))
    with fronts(url) as (front, other):
        begin(front)
        front.put("/config", {"compatibility": "BACKWARD"})
        put_back(path, copy)
        front.put("/config", {"compatibility": "NONE"})
        front.registered("a", '"string"')
        front.put("/config", {"compatibility": "BACKWARD"})
        write = front._database.write
        changed = []

        def write_after_going_back(*arguments: object, **options: object) -> object:
            if not changed:
                changed.append(True)
                put_back(copy, path)
                other.put("/config", {"compatibility": "NONE"})
                other.registered("a", '"long"')
                other.put("/config", {"compatibility": "BACKWARD"})
            return write(*arguments, **options)  # type: ignore[arg-type]

        front._database.write = write_after_going_back  # type: ignore[method-assign, assignment]
        # Of a string it may become bytes, and of a long not.
        assert front.register("a", '"bytes"').problem[:2] == (409, 40901)
        assert front.get("/subjects/a/versions").json == [1, 2]


@pytest.fixture
def servers() -> Iterator[Callable[..., PostgresServer]]:
    """Makes servers, which end with the test."""
    with ExitStack() as stack:

        def make(**options: object) -> PostgresServer:
            server = PostgresServer(parent=memory_parent(), **options)  # type: ignore[arg-type]
            stack.callback(server.remove)
            return server

        yield make


def copied_from(primary: PostgresServer) -> str:
    address = f"host=127.0.0.1 port={primary.port} user=headrace"
    password = primary.url().partition("//headrace:")[2].partition("@")[0]
    return f"primary_conninfo={address} password={password}"


@pytest.mark.postgres
def test_a_standby_that_lagged_takes_over(servers: Callable[..., PostgresServer]) -> None:
    primary = servers()
    database = upgraded(primary.new_database()).rpartition("/")[2]
    standby = servers(base=primary)
    standby.start_recovery("standby", copied_from(primary))
    begun = primary.url(database).partition("@")[0]
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
    url = f"{begun}@/{database}?{hosts}&target_session_attrs=read-write"

    def cut_off() -> None:
        """Once it has what there is, it gets no more."""
        where = primary.execute("SELECT pg_current_wal_lsn()::text")[0][0]
        while not standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{where}'")[0][0]:
            time.sleep(0.02)
        assert standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(1,)]
        # A setting of the command line is not changed by a file.
        standby.stop()
        standby._settings.pop()
        standby.start()

    def fail_over() -> None:
        primary.kill()
        assert standby.execute("SELECT pg_promote()") == [(True,)]

    lose(url, cut_off, fail_over)


@pytest.mark.postgres
def test_a_recovery_to_a_point_in_time(servers: Callable[..., PostgresServer], tmp_path: Path) -> None:
    server = servers(settings=["archive_mode=on", "archive_command=cp %p ../%f"])
    url = upgraded(server.new_database())
    copy = servers(base=server)

    def name_the_point() -> None:
        server.execute("SELECT pg_create_restore_point('good')")

    def recover() -> None:
        last = server.execute("SELECT pg_walfile_name(pg_switch_wal())")[0][0]
        while not server.execute(f"SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver")[0][0]:
            time.sleep(0.02)
        server.stop()
        copy.port = server.port
        restore = f"restore_command=cp {server.directory}/%f %p"
        copy.start_recovery("recovery", restore, "recovery_target_name=good", "recovery_target_action=promote")
        # It answers before it is promoted, and then takes nothing yet.
        while copy.execute("SELECT pg_is_in_recovery()")[0][0]:
            time.sleep(0.02)

    lose(url, name_the_point, recover)


@pytest.mark.postgres
def test_a_snapshot_of_the_disk_is_put_in_place(servers: Callable[..., PostgresServer]) -> None:
    """Then not even the timeline is another one."""
    server = servers()
    url = upgraded(server.new_database())
    copies: list[PostgresServer] = []

    def put_in_place() -> None:
        server.kill()
        server.copy_data(copies[0])
        server.start()

    lose(url, lambda: copies.append(servers(base=server)), put_in_place)


@pytest.mark.postgres
def test_a_dump_is_put_back_while_the_server_runs(servers: Callable[..., PostgresServer]) -> None:
    """Without a new connection: rows are replaced by those of a copy, in one transaction."""
    server = servers()
    url = upgraded(server.new_database())
    database = url.rpartition("/")[2]
    tables = [
        str(name)
        for (name,) in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)
        if name != "alembic_version"
    ]

    def copy() -> None:
        server.execute("CREATE SCHEMA copy", database)
        for name in tables:
            server.execute(f"CREATE TABLE copy.{name} AS SELECT * FROM {name}", database)

    def put_back_rows() -> None:
        inserts = "; ".join(f"INSERT INTO {name} SELECT * FROM copy.{name}" for name in parents_first(tables))
        sequences = "; ".join(
            f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
            for name, key in (("schemas", "row_key"), ("subjects", "id"))
        )
        server.execute(f"BEGIN; TRUNCATE {', '.join(tables)}; {inserts}; {sequences}; COMMIT", database)

    lose(url, copy, put_back_rows)


def parents_first(tables: list[str]) -> list[str]:
    return sorted(tables, key=lambda name: name in ("versions", "schema_references"))
