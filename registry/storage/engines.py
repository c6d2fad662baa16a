"""Opens connections to SQLite and PostgreSQL, with their limits and the ways in which transactions begin.

A read with `Purpose.READ` sees one snapshot of the database from its first statement to its last. A write on PostgreSQL
is READ COMMITTED: it waits for rows and keys that other transactions hold and must then see their commits. Concurrent
changes of the data that it was decided on are detected by `SubjectRow.revision`, unique keys, foreign keys and row
locks. A write on SQLite excludes all other writes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url

SQLITE_BUSY_TIMEOUT_S = 30  # longest wait of a writer for a writer in another process
SQLITE_BUSY_POLL_S = 0.02
SQLITE_CONNECTIONS = 32  # at least the server's threads, so that no request waits for a connection
POSTGRES_CONNECTIONS = 10  # default per process; a PostgreSQL server allows 100 in all
POSTGRES_CONNECTION_WAIT_S = 20  # longest wait of a request while all connections of its process are in use
POSTGRES_CONNECT_TIMEOUT_S = 5
POSTGRES_SETTINGS: Mapping[str, str] = {
    "statement_timeout": "30s",  # also limits the wait for a row lock
    # Releases the locks of a stopped process or a vanished host.
    "idle_in_transaction_session_timeout": "60s",
}
POSTGRES_LIVENESS: Mapping[str, str] = {
    # Without these settings the wait for a vanished host lasts hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
PURPOSE = "registry_purpose"  # execution option that holds a connection's `Purpose`


class Purpose(StrEnum):
    READ = "read"
    WRITE = "write"
    AUTOCOMMIT_READS = "autocommit reads"
    """Each statement is its own transaction: one round trip that sees the newest committed state."""
    AUTOCOMMIT_WRITE = "autocommit write"
    """A write that is one statement and therefore one transaction."""


_BEGIN: Mapping[tuple[str, Purpose], str] = {
    ("sqlite", Purpose.READ): "BEGIN",
    # IMMEDIATE takes the write lock at the start. A read transaction that turns into a write fails instead of waiting.
    ("sqlite", Purpose.WRITE): "BEGIN IMMEDIATE",
    ("postgresql", Purpose.READ): "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    ("postgresql", Purpose.WRITE): "BEGIN ISOLATION LEVEL READ COMMITTED",
}


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database URL with the drivers that Headrace uses."""

    url: sa.URL

    @classmethod
    def of(cls, text: str) -> DatabaseAddress:
        """Parses `sqlite:///PATH` and `postgresql://USER:PASSWORD@HOST/NAME`, also as `postgres://`.

        Raises:
            ValueError: the URL has another scheme or names an in-memory database.
            sqlalchemy.exc.ArgumentError: the text is not a URL.
        """
        url = make_url(text)
        kind, _, driver = url.drivername.partition("+")
        if kind == "sqlite" and driver in ("", "pysqlite"):
            if url.database in (None, "", ":memory:"):
                raise ValueError("the database is in memory, expected a file: sqlite:///PATH")
            return cls(url)
        if kind in ("postgresql", "postgres") and driver in ("", "psycopg"):
            return cls(url.set(drivername="postgresql+psycopg"))
        raise ValueError(f"the scheme is {url.drivername!r}, expected sqlite:///PATH or postgresql://USER@HOST/NAME")

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def name(self) -> str:
        """The database for display: the file, or the URL without its password and driver."""
        if self.is_sqlite:
            return str(self.url.database)
        secret = [name for name in self.url.query if "password" in name]  # libpq has `password` and `sslpassword`
        shown = self.url.difference_update_query(secret).set(drivername="postgresql")
        return shown.render_as_string(hide_password=True)


def open_engine(address: DatabaseAddress, connections: int) -> Engine:
    """Creates a SQLAlchemy engine for a database, which connects later. At most `connections` are open to PostgreSQL at
    once; SQLite ignores this limit."""
    # Both drivers open transactions late and with an unsuitable isolation. They are switched off (AUTOCOMMIT on
    # PostgreSQL, `isolation_level = None` on SQLite), and `_begin` opens transactions.
    if address.is_sqlite:
        engine = sa.create_engine(
            address.url,
            pool_size=SQLITE_CONNECTIONS,
            connect_args={"timeout": SQLITE_BUSY_TIMEOUT_S},
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
    else:
        engine = sa.create_engine(
            address.url,
            isolation_level="AUTOCOMMIT",
            pool_size=connections,
            max_overflow=0,
            pool_timeout=POSTGRES_CONNECTION_WAIT_S,
            # LIFO lets a proxy close idle connections, and reuses those for which the server has prepared statements.
            pool_use_lifo=True,
            connect_args=postgres_arguments(address.url.query),
        )
    sa.event.listen(engine, "begin", _begin)
    return engine


def postgres_arguments(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns libpq parameters to add to a connection URL: Headrace's defaults, except for those that the URL sets
    itself.

    Args:
        given: the parameters in the URL.
    """
    arguments = {
        "connect_timeout": str(POSTGRES_CONNECT_TIMEOUT_S),
        "application_name": "headrace-registry",
        "options": " ".join(f"-c {name}={value}" for name, value in POSTGRES_SETTINGS.items()),
        **POSTGRES_LIVENESS,
    }
    return {name: value for name, value in arguments.items() if name not in given}


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    _use_write_ahead_log(connection)
    # FULL instead of WAL's usual NORMAL: an id that a client has seen must survive a power cut. Otherwise it could be
    # assigned to another schema, and messages would be decoded wrongly.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches a SQLite database to its write-ahead log (WAL). While other processes use the database, tries again for
    up to `SQLITE_BUSY_TIMEOUT_S`. SQLite ignores its busy timeout for this statement, and several processes that start
    on a new database switch at the same time."""
    deadline = time.monotonic() + SQLITE_BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(SQLITE_BUSY_POLL_S)


def _begin(connection: Connection) -> None:
    purpose: Purpose = connection.get_execution_options().get(PURPOSE, Purpose.READ)
    statement = _BEGIN.get((connection.dialect.name, purpose))
    if statement is not None:
        connection.exec_driver_sql(statement)
