"""Copies databases while they are in use, each by its own method: SQLite's online backup, `pg_dump`, and Derby's online
backup in the process that has the database open."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from headrace.hive_ddl.executors.derby import find_derby_owner
from headrace.hive_ddl.executors.session import METASTORE_DIRECTORY
from headrace.pipeline.metastore_server import BACKUP_SOCKET_NAME
from headrace.pipeline.sql_protocol import read_to_end, short_name
from headrace.pipeline.state_backup.manifest import BackupError, BackupWriter, Store
from headrace.registry.storage.engines import DatabaseAddress

DERBY_TIMEOUT_S = 600.0
LOCK_SUFFIX = ".lck"
SQLITE_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10


def copy_sqlite(writer: BackupWriter, source: Path, name: str) -> None:
    """Copies an SQLite database as of one instant, while other processes write to it.

    Raises:
        BackupError: the database is damaged or cannot be read.
    """
    writer.progress(f"copying {name}")
    target = writer.path(name)
    target.unlink(missing_ok=True)
    target.touch(mode=0o600)
    try:
        with (
            contextlib.closing(
                sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=SQLITE_TIMEOUT_S)
            ) as database,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)  # all pages in one step, so in one read transaction
            problem = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied: {error}; check its disk and its owner") from error
    if problem != "ok":
        raise BackupError(f"{source} is damaged: {problem}; restore it from an earlier backup")
    writer.adopt(name)


def dump_postgresql(writer: BackupWriter, url: str, name: str) -> None:
    """Copies a PostgreSQL database by `pg_dump`.

    Raises:
        BackupError: it failed, or `pg_dump` is not installed.
    """
    writer.progress("running pg_dump")
    target = writer.path(name)
    target.touch(mode=0o600)
    _run_postgresql("pg_dump", ["--format=custom", f"--file={target}"], url)
    writer.adopt(name)


def restore_postgresql(dump: Path, url: str) -> None:
    """Replaces the contents of a PostgreSQL database by those of a dump, in one transaction.

    Raises:
        BackupError: it failed, or `pg_restore` is not installed.
    """
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction"]
    _run_postgresql("pg_restore", options, url, str(dump))


def has_tables(url: str) -> bool:
    """Whether a PostgreSQL database has tables.

    Raises:
        BackupError: it cannot be reached.
    """
    engine = sa.create_engine(DatabaseAddress.of(url).url, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        return bool(sa.inspect(engine).get_table_names())
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise BackupError(f"registry.database_url cannot be reached: {reason}") from error
    finally:
        engine.dispose()


def _run_postgresql(program: str, options: list[str], url: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise BackupError(f"{program} is not installed; install PostgreSQL's client programs")
    address = DatabaseAddress.of(url).url
    # In the environment, because other users see the arguments of a process.
    password: Mapping[str, str] = {"PGPASSWORD": address.password} if isinstance(address.password, str) else {}
    # SQLAlchemy renders the password as *** unless the URL has none.
    shown = address.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [program, *options, "--no-password", f"--dbname={shown}", *arguments],
        env={**os.environ, **password},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BackupError(f"{program} failed: {lines[0]}; correct the cause, then run the command again")


def copy_derby(writer: BackupWriter, data_dir: Path) -> None:
    """Copies the metastore's Derby database: by its metastore server if one runs, else the files.

    Raises:
        BackupError: another process has the database open, or the copy failed.
    """
    name, database = str(Store.METASTORE), data_dir / METASTORE_DIRECTORY
    writer.progress("copying the metastore")
    if not _request_backup(data_dir / BACKUP_SOCKET_NAME, writer.root):
        _copy_closed(writer, database, name)
        return
    for path in sorted((writer.root / name).rglob("*")):
        if path.is_file():
            writer.adopt(str(path.relative_to(writer.root)))


def _request_backup(path: Path, target: Path) -> bool:
    """Lets the metastore server of `headrace up` write a copy of its database below the directory `target`. Returns
    whether a server runs."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DERBY_TIMEOUT_S)
        try:
            with short_name(path) as name:
                connection.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise BackupError(
                f"the metastore cannot be reached at {path}: {error.strerror}; run as its user"
            ) from error
        try:
            connection.sendall(os.fsencode(target))
            connection.shutdown(socket.SHUT_WR)
            response = read_to_end(connection).decode()
        except OSError as error:
            raise BackupError(f"the metastore did not finish its backup: {error}; run the command again") from error
    if response != "ok":
        reason = response or "it ended; run the command again"
        raise BackupError(f"the metastore could not write its backup: {reason}")
    return True


def _copy_closed(writer: BackupWriter, database: Path, name: str) -> None:
    """Copies the files of a database that no process has open."""
    for is_done in (False, True):
        owner = find_derby_owner(database)
        if owner is not None:
            raise BackupError(
                f"{owner} has the metastore {database} open; repeat the command when it has ended, or add "
                "--without metastore"
            )
        if is_done:
            return
        for path in sorted(database.rglob("*")):
            if path.is_file() and path.suffix != LOCK_SUFFIX:
                writer.copy(path, f"{name}/{path.relative_to(database)}")
