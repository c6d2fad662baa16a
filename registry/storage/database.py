"""The registry's database: connections, transactions and migrations.

A query is one read transaction; a change is one short write transaction. Slow work (parsing, compatibility checks)
happens before the write and is guarded by `SubjectRow.revision`, except in `write_serialized`. SQLite has one writer at
a time: writers of this process wait for a lock of the process, and only other processes have to poll SQLite's lock. On
PostgreSQL writers meet only where they change the same rows or lock a table.

When a connection breaks, its work is repeated on a new connection if it cannot have changed anything, up to
`CONNECTION_ATTEMPTS_MAX` attempts in all. A short restart of PostgreSQL therefore delays most requests without failing
them.
"""

from __future__ import annotations

import importlib.resources
import logging
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.registry.domain import StoredSchema
from headrace.registry.errors import DatabaseOutdated, DatabaseUnusable, StoreError
from headrace.registry.storage import statements
from headrace.registry.storage.cache import DatabaseCache
from headrace.registry.storage.dependencies import (
    LEASE_MARGIN,
    LEASE_S,
    DependencyRecorder,
    current_recorder,
    wait_out_leases,
    waiting_out_leases,
)
from headrace.registry.storage.engines import POSTGRES_CONNECTIONS, PURPOSE, DatabaseAddress, Purpose, open_engine
from headrace.registry.storage.models import MigrationRow
from headrace.registry.storage.repository import IdRequest, Repository, ReservedIds, WriteConflict, reserve_schema_id

logger = logging.getLogger(__name__)
D = TypeVar("D")
T = TypeVar("T")

WRITE_ATTEMPTS_MAX = 20  # attempts of one change; an attempt fails only if another change was made meanwhile
CONNECTION_ATTEMPTS_MAX = 3  # attempts of one read or write whose connection breaks
SERIALIZATION_STATES = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
TIMEOUT_STATES = frozenset({"57014", "55P03", "25P03"})  # query_canceled, lock_not_available, idle in transaction
TABLE_WAIT_S = 5  # a migration's wait for a table that is in use
TABLE_WAIT_STATES = frozenset({"40P01", "55P03"})  # deadlock_detected, lock_not_available
UPGRADE_ATTEMPTS_MAX = 10  # attempts of a migration that met other transactions
MIGRATION_LOCK = 4_842_731_925  # a PostgreSQL advisory lock; an arbitrary number


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


class ConnectionLost(StoreError):
    """The connection was lost. If `is_outcome_unknown` is True, the transaction may have been committed."""

    def __init__(self, detail: str, *, is_outcome_unknown: bool) -> None:
        super().__init__(detail)
        self.is_outcome_unknown = is_outcome_unknown


class Database:
    """The registry's database. Thread-safe; open one per process, after forking.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`.
        connections: maximum number of open connections to PostgreSQL, besides one that only reserves schema ids.
        lease_s: the longest time for which a process serves cached responses without reading the database again (see
            `dependencies`); 0 if no process caches responses.

    Raises:
        DatabaseUnusable: the URL names no database that can be opened.
    """

    def __init__(self, url: str, *, connections: int = POSTGRES_CONNECTIONS, lease_s: float = LEASE_S) -> None:
        try:
            self._address = DatabaseAddress.of(url)
            self._engine = open_engine(self._address, connections)
        except (ArgumentError, ModuleNotFoundError, ValueError) as error:
            raise DatabaseUnusable(f"registry.database_url is not a usable database URL: {error}") from error
        self._is_sqlite = self._address.is_sqlite
        self._lease_s = lease_s
        # A pool of its own: a thread that occupies a connection of `_engine` can wait for this one without a deadlock.
        self._reservation_engine = None if self._is_sqlite else open_engine(self._address, 1)
        self._write_lock = threading.Lock()
        self._cache = DatabaseCache()

    @property
    def name(self) -> str:
        """The database for display: the file, or the URL without its password."""
        return self._address.name

    @property
    def is_sqlite(self) -> bool:
        return self._is_sqlite

    def close(self) -> None:
        for engine in filter(None, (self._engine, self._reservation_engine)):
            engine.dispose()

    def read(self, work: Callable[[Repository], T], *, in_one_snapshot: bool = True) -> T:
        """Runs `work` on one consistent snapshot and returns the result. Runs it again on a new snapshot when the
        connection broke, up to `CONNECTION_ATTEMPTS_MAX` times in all.

        Args:
            work: reads from the repository.
            in_one_snapshot: if False, each statement on PostgreSQL sees the newest state, which saves the begin and
                the end of a transaction. A change may be decided this way if its write verifies the data that it was
                decided on.

        Raises:
            StoreError: the database failed.
        """
        purpose = Purpose.READ if in_one_snapshot or self._is_sqlite else Purpose.AUTOCOMMIT_READS
        return self._read(work, purpose, current_recorder())

    def _read(self, work: Callable[[Repository], T], purpose: Purpose, recorder: DependencyRecorder | None) -> T:
        for attempt in range(1, CONNECTION_ATTEMPTS_MAX + 1):
            try:
                with self._transaction(purpose) as (connection, _):
                    return work(Repository(connection, cache=self._cache, recorder=recorder))
            except ConnectionLost:
                if attempt == CONNECTION_ATTEMPTS_MAX:
                    raise
            except WriteConflict as error:
                # A deadlock with a migration, which locks a table that this read needs and needs one that this read has
                # locked.
                if attempt == CONNECTION_ATTEMPTS_MAX:
                    raise StoreError(f"Error in the registry's database: {error}") from error
        raise AssertionError("this line is never reached: the last attempt returns or raises")

    def write(
        self,
        work: Callable[[Repository], T],
        attempts: int = WRITE_ATTEMPTS_MAX,
        *,
        new_id: IdRequest | None = None,
        in_one_statement: bool = False,
    ) -> T:
        """Runs `work` in one write transaction, commits it and returns the result. Repeats it after a conflict, and
        after a broken connection if nothing was committed.

        Does not return before all processes have stopped serving cached responses from before the change.

        Args:
            work: makes the change; may run more than once.
            attempts: maximum number of runs.
            new_id: requests the id that `work` will take. On PostgreSQL all registrations of a context update the row
                with its counter. The id is therefore reserved before the transaction begins: the row is locked only for
                a moment, not until the registration is on disk. An id that is not used leaves a gap.
            in_one_statement: `work` changes the database by one statement or not at all, and reads nothing. On
                PostgreSQL this statement is then the whole transaction.

        Raises:
            ContentExists: the schema already has an id, so it needs no new one; on PostgreSQL only, and only if
                `attempts` is 1.
            WriteConflict: the only attempt met another change, or the connection broke, perhaps after the commit. With
                more attempts this becomes a `StoreError`.
            StoreError: the database failed. Nothing was changed, unless the message says that this is unknown or that
                the change is stored.
        """
        with waiting_out_leases(self._lease_s) as watch:
            return self._write(watch.observe(work), attempts, new_id, in_one_statement)

    def _write(
        self, work: Callable[[Repository], T], attempts: int, new_id: IdRequest | None, in_one_statement: bool
    ) -> T:
        purpose = Purpose.AUTOCOMMIT_WRITE if in_one_statement and not self._is_sqlite else Purpose.WRITE
        for attempt in range(1, attempts + 1):
            try:
                with self._write_slot(), self._transaction(purpose, new_id) as (connection, reserved):
                    repository = Repository(connection, reserved=reserved)
                    result = work(repository)
                break
            except WriteConflict as error:
                if attempts == 1:
                    raise
                if attempt == attempts:
                    raise StoreError(
                        f"Error in the registry's database: {attempts} attempts met concurrent changes; try again"
                    ) from error
            except ConnectionLost as error:
                if attempts == 1:
                    raise WriteConflict(str(error)) from error
                if error.is_outcome_unknown or attempt >= CONNECTION_ATTEMPTS_MAX:
                    raise
        else:
            raise AssertionError("the argument attempts must be at least 1")
        if repository.has_changed_settings:
            self.wait_for_writers()
        return result

    def wait_for_change_in_effect(self) -> None:
        """Waits until a change of configuration or modes that was already written applies in all processes:
        registrations that read the old values have been committed or rejected, and no process serves a cached response
        from before the change.

        Raises:
            StoreError: the database failed, or a registration has not ended in time.
        """
        self.wait_for_writers()
        wait_out_leases(self._lease_s)

    def wait_out_leases_of_new_revision(self) -> None:
        """Waits until no process serves a cached response from before the newest registry revision that this process
        has read with the versions of a subject.

        The request that created the revision may still be waiting for leases to expire. Once this process has known the
        revision for the duration of a lease, all leases of older revisions have expired.
        """
        if self._cache.newest.age_s() < self._lease_s * LEASE_MARGIN:
            wait_out_leases(self._lease_s)

    def wait_for_writers(self) -> None:
        """Waits for all registrations that read configuration and modes before this call, to decide whether they are
        allowed. Each has then been committed or rejected.

        Raises:
            StoreError: the database failed, or a registration has not ended in time.
        """
        self._read(lambda repository: repository.wait_for_writers(), Purpose.AUTOCOMMIT_READS, None)

    def write_serialized(
        self,
        subject: str,
        decide: Callable[[Repository], D],
        work: Callable[[Repository, D], T],
        *,
        new_id: Callable[[D], IdRequest | None],
    ) -> T:
        """Decides and writes in one transaction, serialized with all other calls for the subject. Returns the result of
        `work`.

        Writes by other methods are not blocked. On SQLite the whole database is locked.

        Args:
            subject: the subject to lock.
            decide: reads from the repository once the lock is taken, and returns the decision.
            work: writes the decision.
            new_id: requests the id that `work` will take, if the decision needs one.

        Raises:
            ContentExists: the schema already has an id, so it needs no new one; on PostgreSQL only.
            WriteConflict: the transaction met another change, or the connection broke, perhaps after the commit.
            StoreError: the database failed; nothing was changed.
        """
        with waiting_out_leases(self._lease_s) as watch:
            return self._write_serialized(subject, decide, watch.observe(work), new_id)

    def _write_serialized(
        self,
        subject: str,
        decide: Callable[[Repository], D],
        work: Callable[[Repository, D], T],
        new_id: Callable[[D], IdRequest | None],
    ) -> T:
        try:
            with self._write_slot(), self._transaction(Purpose.WRITE) as (connection, _):
                if not self._is_sqlite:
                    # The lock is held until the transaction ends. It is taken before all others, so no transaction
                    # waits here while holding one.
                    connection.execute(statements.LOCK_SUBJECT, {"key": zlib.crc32(subject.encode()) - 2**31})
                decided = decide(Repository(connection, cache=self._cache))
                reserved = self._reserve_id(new_id(decided))
                return work(Repository(connection, reserved=reserved), decided)
        except ConnectionLost as error:
            raise WriteConflict(str(error)) from error

    def _reserve_id(self, request: IdRequest | None) -> ReservedIds:
        """On PostgreSQL, reserves the next free schema id of the request's context. Returns a dictionary with this
        context and the id; it is empty on SQLite or if `request` is None. Uses a connection of its own, while this
        thread has an open transaction that has written nothing yet.

        Raises:
            ContentExists: the schema already has an id, so it needs no new one.
        """
        if request is None or self._reservation_engine is None:
            return {}
        with self._reservation_engine.connect().execution_options(**{PURPOSE: Purpose.AUTOCOMMIT_READS}) as connection:
            return reserve_schema_id(connection, request)

    def cache_schema(self, history: int, schema: StoredSchema) -> None:
        """Caches a schema that was just written, which saves its next read.

        Args:
            history: number of the database's history at the write; a restored backup begins another history.
            schema: the schema.
        """
        self._cache.put_schema(history, schema)

    def _write_slot(self) -> AbstractContextManager[Any]:
        return self._write_lock if self._is_sqlite else nullcontext()

    @contextmanager
    def _transaction(
        self, purpose: Purpose, new_id: IdRequest | None = None
    ) -> Iterator[tuple[Connection, ReservedIds]]:
        with self._translating_errors() as commit_state, self._connected(Purpose.AUTOCOMMIT_READS) as connection:
            # Reserved on the transaction's own connection: while it is open the server has not crashed,
            # and a crash could reset the counter. Once the transaction is on disk, the counter is on disk too.
            reserved = {} if new_id is None or self._is_sqlite else reserve_schema_id(connection, new_id)
            connection.commit()
            transaction = connection.execution_options(**{PURPOSE: purpose}).begin()
            commit_state.is_committing = purpose is Purpose.AUTOCOMMIT_WRITE
            try:
                yield connection, reserved
            except BaseException:
                transaction.rollback()
                raise
            commit_state.is_committing = purpose in (Purpose.WRITE, Purpose.AUTOCOMMIT_WRITE)
            transaction.commit()

    def _connected(self, purpose: Purpose) -> Connection:
        return self._engine.connect().execution_options(**{PURPOSE: purpose})

    @contextmanager
    def _translating_errors(self) -> Iterator[_CommitState]:
        """Translates errors of the database into errors of the registry."""
        commit_state = _CommitState()
        try:
            yield commit_state
        except IntegrityError as error:
            raise WriteConflict(str(error.orig)) from error
        except SQLAlchemyError as error:
            if _state(error) in SERIALIZATION_STATES:
                raise WriteConflict(_driver_message(error)) from error
            logger.error("database failed: database=%s cause=%s", self.name, _driver_message(error))
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise ConnectionLost(
                    _client_message(error, commit_state), is_outcome_unknown=commit_state.is_committing
                ) from error
            raise StoreError(_client_message(error, commit_state)) from error

    def upgrade(self) -> None:
        """Migrates the tables to the newest migration of the running release. Does nothing if they are current, or
        newer but compatible.

        Raises:
            DatabaseUnusable: the database cannot be opened or written, or was migrated by a newer release that is not
                compatible.
        """
        for attempt in range(1, UPGRADE_ATTEMPTS_MAX + 1):
            try:
                self._upgrade()
                return
            except DatabaseUnusable as error:
                cause = error.__cause__
                is_locked = isinstance(cause, SQLAlchemyError) and _state(cause) in TABLE_WAIT_STATES
                if not is_locked or attempt == UPGRADE_ATTEMPTS_MAX:
                    raise
                logger.warning("database not upgraded yet, trying again: attempt=%d cause=%s", attempt, error)

    def _upgrade(self) -> None:
        script = _migrations()
        with self._admin_connection() as connection:
            if not self._is_sqlite:
                # Migrating a large database takes long, and so may waiting for another upgrade. The wait for a table is
                # limited, because requests of running registries queue behind it.
                connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
                # The lock is held until the transaction ends, so only one of several processes started together
                # migrates.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
                connection.execute(sa.text(f"SET LOCAL lock_timeout = '{TABLE_WAIT_S}s'"))
            current = self._revision(connection, script)
            head = script.get_current_head()
            if current == head:
                return
            config = Config()
            config.set_main_option("script_location", script.dir)
            config.attributes["connection"] = connection
            with EnvironmentContext(config, script, fn=lambda rev, _: script._upgrade_revs("head", rev)):
                script.run_env()
            connection.execute(sa.delete(MigrationRow))
            connection.execute(sa.insert(MigrationRow).values(serves_from=_serves_from(script)))
        logger.info("database upgraded: database=%s from=%s to=%s", self.name, current or "empty", head)

    def check(self) -> None:
        """Checks that the tables are at the newest migration of the running release, or at a later one that is
        compatible.

        Raises:
            DatabaseOutdated: the tables are at an earlier migration, or there are none.
            DatabaseUnusable: the tables are at a later migration that is not compatible, or the database cannot be
                opened.
        """
        script = _migrations()
        with self._admin_connection() as connection:
            found = self._revision(connection, script)
        if found != script.get_current_head():
            raise DatabaseOutdated(
                f"database {self.name} is at migration {found or 'none'}, expected {script.get_current_head()}",
                remedy="run `headrace registry db upgrade`",
            )

    def _revision(self, connection: Connection, script: ScriptDirectory) -> str | None:
        """The migration that the tables are at; None if there are no tables. If the tables are newer but compatible,
        the newest migration of the running release.

        Args:
            connection: a connection to the database.
            script: the migrations of the running release.

        Raises:
            DatabaseUnusable: the tables are at an unknown migration and not compatible.
        """
        found: str | None = MigrationContext.configure(connection).get_current_revision()
        known = {row.revision for row in script.walk_revisions()}
        if found is None or found in known:
            return found
        has_release_row = sa.inspect(connection).has_table(MigrationRow.__tablename__)
        if has_release_row and connection.scalar(sa.select(MigrationRow.serves_from)) in known:
            # Migrations unknown to this version have only added to the tables.
            logger.info(
                "database was migrated by a newer headrace, and this version can use it: database=%s migration=%s",
                self.name,
                found,
            )
            head: str | None = script.get_current_head()
            return head
        raise DatabaseUnusable(
            f"database {self.name} is at migration {found}, which this version of headrace does not have "
            f"(its newest is {script.get_current_head()})",
            remedy="install the version that migrated it",
        )

    @contextmanager
    def _admin_connection(self) -> Iterator[Connection]:
        try:
            with self._connected(Purpose.WRITE) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            message = _driver_message(error)
            problem = f"database {self.name} cannot be used: {message}"
            raise DatabaseUnusable(problem, remedy=connection_remedy(message)) from error


REMEDIES: Sequence[tuple[str, str]] = (
    (r"password authentication failed|no password supplied", "correct user and password in registry.database_url"),
    (r"no pg_hba\.conf entry", "permit this host and user in the pg_hba.conf of the database server"),
    (r'role ".*" does not exist', "create this user, or correct it in registry.database_url"),
    (r'database ".*" does not exist', "create this database, or correct its name in registry.database_url"),
    (r"permission denied", "grant the user of registry.database_url this permission"),
    (r"certificate|SSL|sslmode", "correct sslmode and sslrootcert in registry.database_url"),
    (r"could not translate host name|Name or service not known", "correct the host in registry.database_url"),
    (r"Connection refused|No such file or directory", "start the database server, or correct registry.database_url"),
    (r"too many clients|connection slots", "raise max_connections of the database server"),
    (r"timeout expired|timed out", "check that the database server is not overloaded or behind a firewall"),
    (r"unable to open database file|readonly database", "make the file and its directory writable"),
    (r"disk is full|No space left", "free disk space"),
    (r"malformed|not a database", "restore the file from a backup, or correct registry.database_url"),
    (r"database is locked", "end the other process that uses the file"),
)
"""The remedy by a pattern of the driver's message: libpq gives no error codes for failed connections. The first pattern
that is found applies."""


def connection_remedy(message: str) -> str:
    """Returns the remedy for a database that cannot be opened or written, "" if none is known.

    Args:
        message: the driver's message.
    """
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, message)), "")


class _CommitState:
    """Records whether a transaction has reached its COMMIT, after which its outcome may be unknown. A write that is one
    statement has reached it when it begins."""

    def __init__(self) -> None:
        self.is_committing = False


def _state(error: SQLAlchemyError) -> str | None:
    """PostgreSQL's error code (SQLSTATE); None for other errors."""
    return getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None


def _client_message(error: SQLAlchemyError, commit_state: _CommitState) -> str:
    """The message for clients: without the database's address and the SQL, which are in the log.

    Args:
        error: the failure of a transaction.
        commit_state: whether the transaction had begun to commit; the message then warns that its outcome is unknown.
    """
    if isinstance(error, PoolTimeout):
        return "Error in the registry's database: all connections are in use; try again"
    if _state(error) in TIMEOUT_STATES:
        return "Error in the registry's database: timed out; try again"
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        outcome = "; the change may or may not have been made" if commit_state.is_committing else ""
        return f"Error in the registry's database: the connection was lost{outcome}"
    if isinstance(error, DBAPIError) and type(error.orig).__module__.startswith("psycopg") and _state(error) is None:
        return "Error in the registry's database: it cannot be reached"
    return f"Error in the registry's database: {_primary_message(error)}"


def _primary_message(error: SQLAlchemyError) -> str:
    diagnosis = getattr(error.orig, "diag", None) if isinstance(error, DBAPIError) else None
    return str(getattr(diagnosis, "message_primary", None) or _driver_message(error))


def _driver_message(error: SQLAlchemyError) -> str:
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return " ".join(text.split())


def _serves_from(script: ScriptDirectory) -> str:
    """Returns the name of the oldest migration after which every migration only adds to the tables. Releases that have
    this migration can serve a database with the newest tables.

    Args:
        script: the migrations of the running release.
    """
    head = script.get_current_head()
    assert head is not None
    found = script.get_revision(head)
    while getattr(found.module, "ONLY_ADDS", False):
        before = found.down_revision
        assert isinstance(before, str), "migrations follow one another"
        found = script.get_revision(before)
    return str(found.revision)


def _migrations() -> ScriptDirectory:
    """The directory with the migrations: in this package in an installed wheel, or the top-level directory `alembic` of
    a checkout.

    The editable install of a checkout only finds packages, and `alembic` is a plain directory.
    """
    packaged = importlib.resources.files("headrace.registry.storage") / "migrations"
    checkout = Path(__file__).resolve().parent.parent.parent / "alembic"
    return ScriptDirectory(str(packaged if packaged.is_dir() else checkout))
