"""Connections to the audit's database, with their limits and the ways in which transactions begin.

A read sees one snapshot of the database. A write on SQLite excludes all other writes from its first statement on. A
write on PostgreSQL is READ COMMITTED and locks the rows of `topic_state` of the topics that it changes.
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from headrace.audit.errors import StoreUnavailable

BUSY_TIMEOUT_S: Final = 60.0
"""How long a writer waits for another one. A transaction adds the rows of commits of one topic, or of one batch of the
audit topic, or the verdicts of some thousand windows, which takes seconds."""
POSTGRES_CONNECTIONS: Final = 5
POSTGRES_PARAMETERS: Final[Mapping[str, str]] = {
    "connect_timeout": "5",
    "application_name": "headrace-audit",
    # lock_timeout: as long as SQLite's busy timeout.
    "options": "-c statement_timeout=300s -c lock_timeout=60s -c idle_in_transaction_session_timeout=60s",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
ENGINES_MAX: Final = 8
"""Maximum number of databases with cached compiled statements in a process."""

CORRUPTION_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
SYNCHRONOUS = "NORMAL"
"""SQLite's pragma: a power cut may undo the last transactions; their rows are then read again."""

_WRITES: Final = "audit_writes"  # execution option of a connection whose transaction writes
_BEGIN: Final = {
    ("sqlite", False): "BEGIN",
    # IMMEDIATE takes the write lock at once. A transaction that had read first could not wait for the lock later.
    ("sqlite", True): "BEGIN IMMEDIATE",
    ("postgresql", False): "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    ("postgresql", True): "BEGIN ISOLATION LEVEL READ COMMITTED",
}


class AuditDatabase:
    """A database of audit counts: a file of SQLite, or a URL of PostgreSQL (`postgresql://USER:PASSWORD@HOST/NAME`) or
    SQLite (`sqlite:///PATH`). Connections open when they are needed. Thread-safe.

    Raises:
        StoreUnavailable: the URL is invalid, or the directory of the file cannot be created.
    """

    def __init__(self, address: Path | str) -> None:
        url = _url(address)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.path = Path(str(url.database)) if self.is_sqlite else None
        self.name = str(url.database) if self.is_sqlite else _shown(url)
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = _engine(url)
        except (OSError, ModuleNotFoundError) as error:
            raise StoreUnavailable(self.name, str(error)) from error

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yields a connection with one snapshot for all its statements.

        Raises:
            StoreUnavailable: the database cannot be read.
        """
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yields a connection with a write transaction, which is committed at the end, and rolled back on an error.

        Raises:
            StoreUnavailable: the database cannot be written. Nothing was changed.
        """
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**{_WRITES: writes}) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            is_damaged = getattr(cause, "sqlite_errorcode", None) in CORRUPTION_CODES
            remedy = "; move the file away: the next load restores its counts from the commit log" if is_damaged else ""
            raise StoreUnavailable(self.name, f"{' '.join(str(cause).split())}{remedy}") from error


def _url(address: Path | str) -> sa.URL:
    if isinstance(address, Path):
        return sa.URL.create("sqlite", database=str(address))
    expected = "expected sqlite:///PATH or postgresql://USER@HOST/NAME"
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise StoreUnavailable("of audit.database_url", f"it is not a URL; {expected}") from error
    kind, _, driver = url.drivername.partition("+")
    if kind == "sqlite" and driver in ("", "pysqlite") and url.database not in (None, "", ":memory:"):
        return url
    if kind in ("postgresql", "postgres") and driver in ("", "psycopg"):
        return url.set(drivername="postgresql+psycopg")
    raise StoreUnavailable("of audit.database_url", f"the URL has the scheme {url.drivername!r}; {expected}")


def _shown(url: sa.URL) -> str:
    secret = [name for name in url.query if "password" in name]  # libpq has `password` and `sslpassword`
    shown = url.difference_update_query(secret).set(drivername="postgresql")
    return shown.render_as_string(hide_password=True)


@functools.lru_cache(maxsize=ENGINES_MAX)
def _engine(url: sa.URL) -> Engine:
    """Returns the engine of a database, without open connections after `AuditDatabase.close`. It keeps its compiled
    statements, which take 100 ms, for the next opening: a process that serves loads opens the database for each."""
    return _sqlite_engine(url) if url.get_backend_name() == "sqlite" else _postgres_engine(url)


def _sqlite_engine(url: sa.URL) -> Engine:
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _postgres_engine(url: sa.URL) -> Engine:
    engine = sa.create_engine(
        url,
        isolation_level="AUTOCOMMIT",  # `_begin` opens transactions, and psycopg commits them
        pool_size=POSTGRES_CONNECTIONS,
        pool_pre_ping=True,
        connect_args={name: value for name, value in POSTGRES_PARAMETERS.items() if name not in url.query},
    )
    sa.event.listen(engine, "begin", _begin)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    _use_write_ahead_log(connection)
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches a database to write-ahead logging, so that readers and a writer do not wait for each other.

    Changing the mode ignores SQLite's busy timeout, so this retries while another process creates the same database.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _begin(connection: Connection) -> None:
    writes = bool(connection.get_execution_options().get(_WRITES, False))
    connection.exec_driver_sql(_BEGIN[connection.dialect.name, writes])
