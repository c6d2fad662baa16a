"""A restored database assigns the same ids and versions again: no process may serve what it cached before the restore.

Covers a restored backup (SQLite), failover to a lagging standby, point-in-time recovery, and a restored disk snapshot
(PostgreSQL).
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
"""In this order. None of the requests changes existing content."""


def responses(registry: Registry) -> list[tuple[int, str]]:
    found = [registry.call(method, path, body) for method, path, body in QUESTIONS]
    return [(response.status, response.text) for response in found]


def register_permanent_content(registry: Registry) -> None:
    """Content that the restore preserves."""
    registry.put("/config", {"compatibility": "NONE"})
    registry.registered("a", fixed(1))
    registry.registered("target", fixed(1))


def register_lost_content(registry: Registry, size: int) -> None:
    """Content that the restore loses, or that replaces it: the same numbers with other schemas."""
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


def require_fresh_responses(url: str, caching: tuple[RegistryBehindFront, ...]) -> None:
    """Continues on the restored database with a new process, and compares the responses of all processes."""
    with fronts(url) as (writer, reader):
        register_lost_content(writer, 3)
        # Two of the requests register content that may have been lost; afterwards all processes find it.
        writer.registered("a", fixed(2))
        expected = responses(reader)
    time.sleep(LEASE_S)
    for front in caching:
        assert responses(front) == expected
        assert responses(front) == expected


def lose_changes(url: str, take_copy: Callable[[], None], restore: Callable[[], None]) -> None:
    with fronts(url) as caching:
        register_permanent_content(caching[0])
        take_copy()
        register_lost_content(caching[0], 2)
        for front in caching:
            # Twice, to fill the caches.
            assert responses(front) == responses(front)
        restore()
        require_fresh_responses(url, caching)


def upgraded(url: str) -> str:
    database = Database(url)
    database.upgrade()
    database.close()
    return url


def restore(copy: Path, path: Path) -> None:
    """Restores the file while it is in use, like SQLite's `.restore`."""
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path, timeout=30)) as target:
        source.backup(target)


def test_restored_sqlite_backup_invalidates_caches(tmp_path: Path) -> None:
    path, copy = tmp_path / "registry.db", tmp_path / "copy.db"
    lose_changes(upgraded(sqlite_url(path)), lambda: restore(path, copy), lambda: restore(copy, path))


def test_registration_is_decided_again_after_a_restore(tmp_path: Path) -> None:
    """The subject has the same revision as at the decision, but other versions."""
    path, copy = tmp_path / "registry.db", tmp_path / "copy.db"
    url = upgraded(sqlite_url(path))
    with fronts(url) as (front, other):
        register_permanent_content(front)
        front.put("/config", {"compatibility": "BACKWARD"})
        restore(path, copy)
        front.put("/config", {"compatibility": "NONE"})
        front.registered("a", '"string"')
        front.put("/config", {"compatibility": "BACKWARD"})
        write = front._database.write
        changed = []

        def write_after_going_back(*arguments: object, **options: object) -> object:
            if not changed:
                changed.append(True)
                restore(copy, path)
                other.put("/config", {"compatibility": "NONE"})
                other.registered("a", '"long"')
                other.put("/config", {"compatibility": "BACKWARD"})
            return write(*arguments, **options)  # type: ignore[arg-type]

        front._database.write = write_after_going_back  # type: ignore[method-assign, assignment]
        # A string may become bytes, but a long may not.
        assert front.register("a", '"bytes"').error[:2] == (409, 40901)
        assert front.get("/subjects/a/versions").json == [1, 2]


@pytest.fixture
def servers() -> Iterator[Callable[..., PostgresServer]]:
    """Starts servers that stop with the test."""
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
def test_failover_to_a_lagging_standby_invalidates_caches(servers: Callable[..., PostgresServer]) -> None:
    primary = servers()
    database = upgraded(primary.new_database()).rpartition("/")[2]
    standby = servers(base=primary)
    standby.start_recovery("standby", copied_from(primary))
    url_prefix = primary.url(database).partition("@")[0]
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
    url = f"{url_prefix}@/{database}?{hosts}&target_session_attrs=read-write"

    def cut_off() -> None:
        """Stops the replication once the standby has the permanent content."""
        wal_position = primary.execute("SELECT pg_current_wal_lsn()::text")[0][0]
        while not standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{wal_position}'")[0][0]:
            time.sleep(0.02)
        assert standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [(1,)]
        # A command-line setting overrides the file.
        standby.stop()
        standby._settings.pop()
        standby.start()

    def fail_over() -> None:
        primary.kill()
        assert standby.execute("SELECT pg_promote()") == [(True,)]

    lose_changes(url, cut_off, fail_over)


@pytest.mark.postgres
def test_point_in_time_recovery_invalidates_caches(servers: Callable[..., PostgresServer], tmp_path: Path) -> None:
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
        # The server accepts connections before its promotion, but is read-only until then.
        while copy.execute("SELECT pg_is_in_recovery()")[0][0]:
            time.sleep(0.02)

    lose_changes(url, name_the_point, recover)


@pytest.mark.postgres
def test_restored_disk_snapshot_invalidates_caches(servers: Callable[..., PostgresServer]) -> None:
    """The timeline does not change in this case."""
    server = servers()
    url = upgraded(server.new_database())
    copies: list[PostgresServer] = []

    def restore_snapshot() -> None:
        server.kill()
        server.copy_data(copies[0])
        server.start()

    lose_changes(url, lambda: copies.append(servers(base=server)), restore_snapshot)


@pytest.mark.postgres
def test_dump_restored_on_a_running_server_invalidates_caches(servers: Callable[..., PostgresServer]) -> None:
    """Connections stay open: one transaction replaces the rows by those of the dump."""
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

    def restore_rows() -> None:
        inserts = "; ".join(f"INSERT INTO {name} SELECT * FROM copy.{name}" for name in parents_first(tables))
        sequences = "; ".join(
            f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
            for name, key in (("schemas", "row_key"), ("subjects", "id"))
        )
        server.execute(f"BEGIN; TRUNCATE {', '.join(tables)}; {inserts}; {sequences}; COMMIT", database)

    lose_changes(url, copy, restore_rows)


def parents_first(tables: list[str]) -> list[str]:
    return sorted(tables, key=lambda name: name in ("versions", "schema_references"))
