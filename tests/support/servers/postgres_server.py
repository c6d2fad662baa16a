"""Starts temporary PostgreSQL servers from the system's package on a free loopback port and a Unix socket."""

from __future__ import annotations

import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psycopg
import pytest

from support.free_ports import free_port
from support.processes import kill_with_children

READY_TIMEOUT_S = 60.0
USER = "headrace"
DEBIAN_VERSIONS = Path("/usr/lib/postgresql")
INSTALL = "install it: apt-get install postgresql (`make test-postgres` does so on Debian, as root)"


def binaries() -> Path | None:
    """Returns the directory of the newest installed server; on Debian it is not on the PATH."""
    found = [directory / "bin" for directory in DEBIAN_VERSIONS.glob("*") if (directory / "bin" / "postgres").exists()]
    if found:
        return max(found, key=lambda directory: int(directory.parent.name))
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


class PostgresServer:
    """A running server; `remove` stops it and deletes its files. Skips the test if PostgreSQL is not installed.

    PostgreSQL cannot run as root, so tests run as root start it as the package's user.

    Args:
        durable: whether the server fsyncs. Only benchmarks need that, because no test cuts the power.
        settings: further settings of the server, as `name=value`.
        base: a running server. This server is then a base backup of it, has its password, and is not started.
        parent: the directory in which its own directory is created, by default the temporary directory.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Iterable[str] = (),
        base: PostgresServer | None = None,
        parent: Path | None = None,
    ) -> None:
        found = binaries()
        if found is None:
            pytest.skip(f"PostgreSQL's server is not installed; {INSTALL}")
        self._binaries = found
        self._has_icu = found.parent.name.isdigit() and int(found.parent.name) >= 15
        self._account = _account()
        # Not in pytest's directories, which other users cannot enter; short, because the socket's path is limited.
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-pg-", dir=parent))
        self.port = free_port()
        self._password = secrets.token_hex(16) if base is None else base._password
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = [
            f"fsync={'on' if durable else 'off'}",
            # Off, because its workers would visit hundreds of short-lived databases several times a second.
            f"autovacuum={'on' if durable else 'off'}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.directory}",
            # A registry with 40 busy threads has as many connections, and several may run at the same time.
            "max_connections=300",
            "max_wal_size=256MB",
            # In its own directory: segments in /dev/shm outlive a server that is killed.
            "dynamic_shared_memory_type=mmap",
            "log_lock_waits=on",
            *settings,
        ]
        try:
            if base is not None:
                self._copy_cluster(base)
                return
            self._make_cluster()
            self._start()
        except BaseException:
            self.remove()
            raise

    def url(self, database: str = "postgres", *, password: str | None = None) -> str:
        return f"postgresql://{USER}:{password or self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    def new_database(self, template: str = "template1") -> str:
        """Creates a database, as a copy of the template or empty, and returns its URL."""
        name = f"registry_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drops a database that `new_database` created, and ends its connections."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Runs a statement outside a transaction and returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    def start(self) -> None:
        """Starts the server with its existing files."""
        self._start()

    def start_recovery(self, kind: str, *settings: str) -> None:
        """Starts a server that is a base backup.

        Args:
            kind: `standby` or `recovery`, the name of the signal file that selects the kind of recovery.
            settings: further settings of the server.
        """
        signal_file = self.directory / "data" / f"{kind}.signal"
        signal_file.touch()
        self._change_owner(signal_file)
        self._settings += settings
        self.start()

    def copy_data(self, other: PostgresServer) -> None:
        """Replaces the files of this server by a copy of another server's. Both must be stopped."""
        shutil.rmtree(self.directory / "data")
        shutil.copytree(other.directory / "data", self.directory / "data")
        for path in (self.directory / "data").rglob("*"):
            self._change_owner(path)
        self._change_owner(self.directory / "data")

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stops the server, by default with PostgreSQL's fast shutdown."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(READY_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """Kills the server and all of its processes with SIGKILL."""
        assert self._process is not None
        kill_with_children(self._process.pid)
        self._process.wait(READY_TIMEOUT_S)
        self._process = None

    def remove(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_cluster(self) -> None:
        password = self.directory / "password"
        password.write_text(self._password)
        for path in (self.directory, password):
            self._change_owner(path)
        initdb = self._run(
            "initdb",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            # Like most production databases, this one does not sort text by code points.
            *(("--locale-provider=icu", "--icu-locale=en-US") if self._has_icu else ()),
            f"--username={USER}",
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            "--pgdata",
            str(self.directory / "data"),
            output=subprocess.PIPE,
        )
        output, _ = initdb.communicate(timeout=READY_TIMEOUT_S)
        if initdb.returncode:
            raise RuntimeError(f"initdb failed: {output.decode(errors='replace')}")

    def _copy_cluster(self, base: PostgresServer) -> None:
        self._change_owner(self.directory)
        source = f"host=127.0.0.1 port={base.port} user={USER} password={base._password}"
        copied = self._run(
            "pg_basebackup",
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--pgdata",
            str(self.directory / "data"),
            "--dbname",
            source,
            output=subprocess.PIPE,
        )
        output, _ = copied.communicate(timeout=READY_TIMEOUT_S)
        if copied.returncode:
            raise RuntimeError(f"pg_basebackup failed: {output.decode(errors='replace')}")

    def _change_owner(self, path: Path) -> None:
        """Makes the account that runs the server the owner of a path."""
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = self._run(
                "postgres",
                "-D",
                str(self.directory / "data"),
                *(f"--{item}" for item in (f"port={self.port}", *self._settings)),
                output=log,
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not get ready: {error}\n{self.log}") from error
                time.sleep(0.05)

    def _run(self, program: str, *arguments: str, output: object) -> subprocess.Popen[bytes]:
        account = self._account
        return subprocess.Popen(
            [str(self._binaries / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[arg-type]
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "HOME": str(self.directory)},
            # Ctrl-C in the terminal reaches only the tests, which then stop the server.
            start_new_session=True,
            **({} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}),
        )


def _account() -> pwd.struct_passwd | None:
    """Returns the account that runs the server if the tests run as root, else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no user 'postgres' or 'nobody' for PostgreSQL to run as")
