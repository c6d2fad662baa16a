"""Metastore services: Hive 2.3 on PostgreSQL, and Hive 4, which the client in Spark's JVM does not support."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hive.hive_server import METASTORE, HiveServer
from support.hive.wheel_metastore import WheelMetastore
from support.loader.load_world import FIELDS, NOTE, LoadWorld
from support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.hive

IS_HIVE_4 = "so it is Hive 4 or newer; set hive.executor to the hive://host:port of its HiveServer2"


@pytest.fixture
def hive_4_metastore(tmp_path: Path) -> Iterator[HiveServer]:
    """The metastore of Hive 4 as a service."""
    server = HiveServer(tmp_path / "metastore", main=METASTORE)
    yield server
    server.stop()


def test_hive_4_metastore_error_names_setting_and_loses_no_data(hive_4_metastore: HiveServer, tmp_path: Path) -> None:
    world = LoadWorld(tmp_path / "world", metastore=False)
    try:
        world.produce("orders", 20)
        done = world.load("--metastore", f"thrift://{hive_4_metastore.address}")
        assert done.returncode == 1, done.stdout + done.stderr
        assert IS_HIVE_4 in done.stdout
        assert "Traceback" not in done.stderr
        # No data is lost: the next load, on its own metastore, loads the rows.
        second = world.load()
        assert second.returncode == 0, second.stdout + second.stderr
        world.check(whole=True)
    finally:
        world.close()


@pytest.fixture
def postgres_metastore(tmp_path: Path) -> Iterator[WheelMetastore]:
    server = PostgresServer()
    try:
        metastore = WheelMetastore(tmp_path / "metastore", server.new_database())
        yield metastore
        metastore.stop()
    finally:
        server.remove()


def test_tables_in_postgresql_metastore_change_and_are_readable(
    postgres_metastore: WheelMetastore, tmp_path: Path
) -> None:
    world = LoadWorld(tmp_path / "world", metastore=False)
    try:
        world.addresses["metastore"] = postgres_metastore.uri
        world.produce("orders", 20)
        first = world.load()
        assert first.returncode == 0, first.stdout + first.stderr
        world.produce("orders", 20, fields=[*FIELDS, NOTE])
        second = world.load()
        assert second.returncode == 0, second.stdout + second.stderr
        assert "compare_and_set_unavailable" not in first.stderr + second.stderr
        world.check(whole=True)
        flags = ["--data-dir", str(world.data_dir), "--metastore", postgres_metastore.uri]
        query = "SELECT count(*) AS n, count(note) AS notes FROM headrace.orders"
        queried = world.command("sql", query, *flags, "--format", "json")
        assert queried.returncode == 0, queried.stderr
        assert json.loads(queried.stdout) == [{"n": 40, "notes": 40}]
    finally:
        world.close()
