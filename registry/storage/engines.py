"""Connections to SQLite and to PostgreSQL: how they are opened, bounded, and how their transactions begin.

A read sees one state of the database from its first statement to its last. A write on PostgreSQL sees what others have
committed meanwhile (READ COMMITTED), because it waits for them on rows and keys and has to see what they left; what it
decided on is held by `SubjectRow.revision`, unique keys, foreign keys and row locks. A write on SQLite is alone.
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

SQLITE_BUSY_TIMEOUT_S = 30  # how long a writer waits for another process
SQLITE_BUSY_POLL_S = 0.02
SQLITE_CONNECTIONS = 32  # at least the server's threads, so that none waits for a connection while it holds a request
POSTGRES_CONNECTIONS = 10  # of one process unless told otherwise, as a server allows 100 in all
POSTGRES_CONNECTION_WAIT_S = 20  # of a request, when all connections of its process are in use
POSTGRES_CONNECT_TIMEOUT_S = 5
POSTGRES_SETTINGS: Mapping[str, str] = {
    "statement_timeout": "30s",  # also bounds the wait for a row that another transaction holds
    # A process that was stopped, or whose host has gone, must not hold rows for ever.
    "idle_in_transaction_session_timeout": "60s",
}
POSTGRES_LIVENESS: Mapping[str, str] = {
    # Without these a connection to a host that has vanished is waited on for hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
PURPOSE = "registry_purpose"  # the execution option that says what a connection is taken for


class Purpose(StrEnum):
    READ = "read"
    WRITE = "write"
    AUTOCOMMIT_READS = "questions"
    """Of which each is a transaction by itself, goes to the database and back once and sees its newest state."""
    AUTOCOMMIT_WRITE = "one statement"
    """A write, likewise."""


_BEGIN: Mapping[tuple[str, Purpose], str] = {
    ("sqlite", Purpose.READ): "BEGIN",
    # IMMEDIATE takes the write lock at once: a read transaction that turns into a write cannot wait, it fails.
    ("sqlite", Purpose.WRITE): "BEGIN IMMEDIATE",
    ("postgresql", Purpose.READ): "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    ("postgresql", Purpose.WRITE): "BEGIN ISOLATION LEVEL READ COMMITTED",
}


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database URL with the driver that this program brings."""

    url: sa.URL

    @classmethod
    def of(cls, text: str) -> DatabaseAddress:
        """Takes `sqlite:///PATH` and `postgresql://USER:PASSWORD@HOST/NAME`, also as `postgres://`.

        Raises:
            ValueError: it is neither, or names a database in memory.
            sqlalchemy.exc.ArgumentError: it is no URL.
        """
        url = make_url(text)
        kind, _, driver = url.drivername.partition("+")
        if kind == "sqlite" and driver in ("", "pysqlite"):
            if url.database in (None, "", ":memory:"):
                raise ValueError("names a database in memory, expected a file: sqlite:///PATH")
            return cls(url)
        if kind in ("postgresql", "postgres") and driver in ("", "psycopg"):
            return cls(url.set(drivername="postgresql+psycopg"))
        raise ValueError(f"is of kind {url.drivername!r}, expected sqlite:///PATH or postgresql://USER@HOST/NAME")

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def name(self) -> str:
        """The database as a person knows it: the file, or the URL without its password and driver."""
        if self.is_sqlite:
            return str(self.url.database)
        secret = [name for name in self.url.query if "password" in name]  # `password`, `sslpassword` of libpq
        shown = self.url.difference_update_query(secret).set(drivername="postgresql")
        return shown.render_as_string(hide_password=True)


def open_engine(address: DatabaseAddress, connections: int) -> Engine:
    """An engine that has not connected yet; at most `connections` to PostgreSQL are open at once."""
    # The driver's own transactions are off on both, late and without a word about isolation as they are;
    # `_begin` makes them. It is AUTOCOMMIT on PostgreSQL, and `isolation_level = None` of the driver on SQLite.
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
            # The most recently used first, so that the others can be given up by what stands between, and so that
            # statements that the server has prepared for a connection are used again.
            pool_use_lifo=True,
            connect_args=postgres_arguments(address.url.query),
        )
    sa.event.listen(engine, "begin", _begin)
    return engine


def postgres_arguments(given: Mapping[str, Any]) -> dict[str, str]:
    """libpq's parameters, except those that the URL sets itself."""
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
    # FULL and not WAL's usual NORMAL: an id that a client has seen must survive a power cut, or it would be given
    # to another schema and messages would be read wrongly.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Waits for others, as each statement does: this one keeps to no timeout where somebody writes, and several
    processes that are started on a new database change its mode at once."""
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
