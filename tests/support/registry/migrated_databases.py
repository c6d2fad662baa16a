"""Copies of a migrated registry database: the migrations run once per test process, not once per test."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from support.servers.postgres_server import PostgresServer

POSTGRES_TEMPLATE = "registry_template"


class SqliteTemplate:
    """A migrated SQLite database in a file, which tests copy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _migrate(f"sqlite:///{path}")

    def copy_to(self, path: Path) -> str:
        """Makes a separate registry database and returns its URL."""
        shutil.copyfile(self._path, path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute(_new_identity())
        return f"sqlite:///{path}"


class PostgresTemplate:
    """A migrated database of a PostgreSQL server, which tests copy."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        server.execute(f"CREATE DATABASE {POSTGRES_TEMPLATE}")
        _migrate(server.url(POSTGRES_TEMPLATE))

    def copy(self) -> str:
        """Makes a separate registry database and returns its URL."""
        url = self._server.new_database(POSTGRES_TEMPLATE)
        self._server.execute(_new_identity(), url.rpartition("/")[2])
        return url

    @contextmanager
    def copies(self) -> Iterator[Callable[[], str]]:
        """Yields a function like `copy`. Drops its databases at the end."""
        made: list[str] = []

        def copy() -> str:
            made.append(self.copy())
            return made[-1]

        yield copy
        for url in made:
            self._server.drop_database(url)


def _migrate(url: str) -> None:
    # Imported here, because SQLAlchemy and Alembic take half a second and every test run imports this module.
    from headrace.registry.storage.database import Database

    with closing(Database(url)) as database:
        database.upgrade()


def _new_identity() -> str:
    """Returns the SQL statement that gives a copied database an identity of its own. Replication, and the caches of
    clients, take databases with equal identities for the same registry."""
    return f"UPDATE registry_identity SET identity = '{secrets.token_hex(16)}'"
