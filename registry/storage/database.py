"""The registry's database: connections, transactions and migrations.

A question is one read transaction, a change one short write transaction; what is slow (parsing, compatibility checks)
happens before the write and is guarded by `SubjectRow.revision`. SQLite has one writer at a time: writers of this
process queue on a lock, which is fair, and only other processes meet SQLite's own polling wait.
"""

from __future__ import annotations

import importlib.resources
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from registry.errors import DatabaseUnusable, StoreError
from registry.storage.repository import Conflict, Repository

logger = logging.getLogger(__name__)
T = TypeVar("T")

BUSY_TIMEOUT_S = 30  # how long a SQLite writer waits for another process
POOL_CONNECTIONS = 32  # at least the server's threads, so that none waits for a connection while it holds a request
WRITE_ATTEMPTS_MAX = 20  # of one self-contained change; each attempt lost means that another change was made


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


class Database:
    """One database of schemas. Thread-safe; open one per process, after forking.

    Raises:
        DatabaseUnusable: the URL names no database that can be opened.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = make_url(url)
            self._engine = _engine(self._url)
        except (ArgumentError, ModuleNotFoundError, ValueError) as error:
            raise DatabaseUnusable(f"registry.database_url is no usable database URL: {error}") from error
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        if self._is_sqlite and self._url.database in (None, "", ":memory:"):
            raise DatabaseUnusable("registry.database_url names a database in memory, expected a file: sqlite:///PATH")
        self._write_turn = threading.Lock()

    @property
    def name(self) -> str:
        """The database as a person knows it: the file, or the URL without its password."""
        return str(self._url.database) if self._is_sqlite else self._url.render_as_string(hide_password=True)

    def close(self) -> None:
        self._engine.dispose()

    def read(self, work: Callable[[Repository], T]) -> T:
        """Runs `work` on one consistent view of the database.

        Raises:
            StoreError: the database failed.
        """
        with self._transaction(writing=False) as connection:
            return work(Repository(connection))

    def write(self, work: Callable[[Repository], T], attempts: int = WRITE_ATTEMPTS_MAX) -> T:
        """Runs `work` in one write transaction and commits it; `work` is run again when another change came first.

        Raises:
            Conflict: the only attempt met another change; with more attempts that is a `StoreError`.
            StoreError: the database failed; nothing was changed.
        """
        for attempt in range(1, attempts + 1):
            try:
                with self._turn(), self._transaction(writing=True) as connection:
                    return work(Repository(connection))
            except Conflict as error:
                if attempts == 1:
                    raise
                if attempt == attempts:
                    raise StoreError(f"Error in the registry's database: {attempts} others came first") from error
        raise AssertionError("attempts is at least 1")

    def _turn(self) -> AbstractContextManager[Any]:
        return self._write_turn if self._is_sqlite else nullcontext()

    @contextmanager
    def _transaction(self, *, writing: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(registry_writing=writing) as connection, connection.begin():
                yield connection
        except IntegrityError as error:
            raise Conflict(str(error.orig)) from error
        except SQLAlchemyError as error:
            if _is_serialization_failure(error):
                raise Conflict(str(error)) from error
            logger.error("database failed: database=%s cause=%s", self.name, _cause(error))
            raise StoreError(f"Error in the registry's database: {_cause(error)}") from error

    def upgrade(self) -> None:
        """Brings the tables to this version's; does nothing when they are there.

        Raises:
            DatabaseUnusable: the database cannot be opened or written, or was made by a newer version.
        """
        script = _migrations()
        with self._administration() as connection:
            context = MigrationContext.configure(connection)
            before = self._revision(context, script)
            head = script.get_current_head()
            if before == head:
                return
            config = Config()
            config.set_main_option("script_location", script.dir)
            config.attributes["connection"] = connection
            with EnvironmentContext(config, script, fn=lambda rev, _: script._upgrade_revs("head", rev)):
                script.run_env()
        logger.info("database upgraded: database=%s from=%s to=%s", self.name, before or "empty", head)

    def check(self) -> None:
        """Makes sure that the tables are this version's.

        Raises:
            DatabaseUnusable: they are not, or the database cannot be opened.
        """
        script = _migrations()
        with self._administration() as connection:
            found = self._revision(MigrationContext.configure(connection), script)
        if found != script.get_current_head():
            raise DatabaseUnusable(
                f"database {self.name} is at migration {found or 'none'}, expected {script.get_current_head()}: "
                "run `headrace registry db upgrade`"
            )

    def _revision(self, context: MigrationContext, script: ScriptDirectory) -> str | None:
        found: str | None = context.get_current_revision()
        known = {row.revision for row in script.walk_revisions()}
        if found is not None and found not in known:
            raise DatabaseUnusable(
                f"database {self.name} is at migration {found}, which this version of headrace does not know "
                f"(its newest is {script.get_current_head()}): install the version that made it"
            )
        return found

    @contextmanager
    def _administration(self) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(registry_writing=True) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise DatabaseUnusable(f"database {self.name} cannot be used: {_cause(error)}") from error


def _engine(url: sa.URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        # Serializable, so that a check and the change that rests on it hold together; failures are tried again.
        return sa.create_engine(url, isolation_level="SERIALIZABLE", pool_size=POOL_CONNECTIONS, pool_pre_ping=True)
    engine = sa.create_engine(url, pool_size=POOL_CONNECTIONS, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver would begin transactions by itself, late and never for data definition; `_begin_sqlite` does it.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    # FULL and not WAL's usual NORMAL: an id that a client has seen must survive a power cut, or it would be given
    # to another schema and messages would be read wrongly.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    # IMMEDIATE takes the write lock at once: a read transaction that turns into a write cannot wait, it fails.
    writing = connection.get_execution_options().get("registry_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _is_serialization_failure(error: SQLAlchemyError) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


def _cause(error: SQLAlchemyError) -> str:
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return " ".join(text.split())


def _migrations() -> ScriptDirectory:
    """The migrations: inside this package in a wheel, the top-level folder `alembic` in a checkout."""
    packaged = importlib.resources.files("registry.storage") / "migrations"
    checkout = Path(__file__).resolve().parent.parent.parent / "alembic"
    return ScriptDirectory(str(packaged if packaged.is_dir() else checkout))
