"""`headrace load` onto a real HDFS: Spark SQL reads the tables; processes are killed; servers are down or full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.loader.load_world import FIELDS, NOTE
from support.loader.remote_world import (
    Outage,
    RemoteWorld,
    kill_loads,
    kills_of_test,
    lose_a_worker,
    read_and_change,
    recount_without_a_file,
    two_drivers,
)
from support.servers.hdfs import DATA_NODE, NAME_NODE, Hdfs

pytestmark = [pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(1800 + 60 * kills_of_test())]

WAREHOUSE = "/warehouse"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    hdfs = Hdfs(tmp_path_factory.mktemp("hdfs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
        yield hdfs
    hdfs.stop()


@pytest.fixture(scope="module")
def world(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    with closing(open_world(hdfs, tmp_path_factory.mktemp("load"), WAREHOUSE)) as world:
        yield world


def open_world(hdfs: Hdfs, directory: Path, warehouse: str) -> RemoteWorld:
    return RemoteWorld(directory, f"{hdfs.uri}{warehouse}", lambda target: hdfs.fetch(warehouse, target))


def test_spark_sql_reads_tables_of_successive_loads(world: RemoteWorld) -> None:
    before = world.staged_at_start()
    world.produce("orders", 40)
    world.load_completely()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    world.produce("clicks", 10)
    world.load_completely()
    rows = len(world.produced["orders"].rows)
    assert world.counts("orders") == (rows, rows)
    assert set(world.staged()) <= before


def test_load_after_killed_loads_completes_their_work(world: RemoteWorld, hdfs: Hdfs, tmp_path: Path) -> None:
    kill_loads(world, tmp_path, kills_of_test(), [outage(hdfs, NAME_NODE), outage(hdfs, DATA_NODE)])


def outage(hdfs: Hdfs, main: str) -> Outage:
    def end() -> None:
        hdfs.start(main)
        hdfs.wait_until_ready()

    return Outage(main.rpartition(".")[2], lambda: hdfs.kill(main), end)


@pytest.mark.parametrize("main", [NAME_NODE, DATA_NODE])
def test_next_load_succeeds_after_a_server_died_during_a_load(
    world: RemoteWorld, hdfs: Hdfs, tmp_path: Path, main: str
) -> None:
    world.produce("orders", 40, fields=[*FIELDS, NOTE])
    load = world.start_load(tmp_path / "load.log", point="read:job:before")
    driver = load.wait_until_stopped()
    hdfs.kill(main)
    load.wake(driver)
    code = load.wait()
    hdfs.start(main)
    hdfs.wait_until_ready()
    text = load.log.read_text()
    assert "Traceback" not in text, text
    assert code in (0, 1, 2)
    world.check(whole=False)
    world.load_completely()


def test_name_node_in_safe_mode_is_one_error_line_and_exit_2(world: RemoteWorld, hdfs: Hdfs) -> None:
    world.produce("orders", 10, fields=[*FIELDS, NOTE])
    hdfs.admin("-safemode", "enter")
    try:
        run = world.load()
        assert run.returncode == 2, run.stdout + run.stderr
        (line,) = run.stderr.splitlines()
        assert "the NameNode is in safe mode" in line
        assert world.uri in line
        status = world.command("load", "status", *world.flags(), "--format", "json")
        assert status.returncode in (0, 1), "load status must not write: " + status.stderr
        assert "orders" in {one["topic"] for one in json.loads(status.stdout)["topics"]}
    finally:
        hdfs.admin("-safemode", "leave")
    world.load_completely()


def test_exceeded_quota_is_one_error_line_and_loses_no_row(world: RemoteWorld, hdfs: Hdfs) -> None:
    """A space quota fails the first block, as full disks would."""
    world.produce("orders", 10, fields=[*FIELDS, NOTE])
    hdfs.admin("-setSpaceQuota", "1m", WAREHOUSE)
    try:
        run = world.load()
        assert run.returncode == 2, run.stdout + run.stderr
        (line,) = run.stderr.splitlines()
        assert "quota" in line.lower()
        assert "free space there" in line
    finally:
        hdfs.admin("-clrSpaceQuota", WAREHOUSE)
    world.load_completely()


def test_retried_task_commits_its_files_once(world: RemoteWorld, tmp_path: Path) -> None:
    lose_a_worker(world, tmp_path)


def test_concurrent_drivers_load_each_message_once(world: RemoteWorld, tmp_path: Path) -> None:
    two_drivers(world, tmp_path)


def test_other_commands_read_and_change_the_warehouse(hdfs: Hdfs, tmp_path: Path) -> None:
    """Has a warehouse of its own, because `check` does not find the files of a compaction."""
    with closing(open_world(hdfs, tmp_path, "/compacted")) as world:
        read_and_change(world)


def test_recount_names_a_missing_file(hdfs: Hdfs, tmp_path: Path) -> None:
    with closing(open_world(hdfs, tmp_path, "/recounted")) as world:
        recount_without_a_file(world, lambda path: hdfs.call("DELETE", f"/recounted/{path}", "DELETE"))
