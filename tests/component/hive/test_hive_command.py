"""`headrace hive` after other tools changed tables, partitions and directories; verified by SQL on a real metastore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.hive_ddl.executors.hiveserver import NOSASL
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.metastore_names import table_names
from headrace.hive_ddl.ops import DropPartitions, DropTable
from headrace.hive_ddl.table import local_location
from support.hive.hive_engines import Engine, ServerEngine
from support.loader.load_world import FIELDS, NOTE, LoadWorld

pytestmark = pytest.mark.hive  # without HiveServer2, but too slow for `make test`

HOURS = ("00", "01", "02")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("hive"))
    world.produce("orders", 40, fields=[*FIELDS, NOTE])
    world.produce("others", 10)
    done = world.load()
    assert done.returncode == 0, done.stdout + done.stderr
    yield world
    world.close()


@pytest.fixture(scope="module")
def session(world: LoadWorld) -> Iterator[Any]:
    """Another session on the same metastore. It fails on missing directories, as Hive and Pig do."""
    session = open_session(
        app_name="analyst",
        master="local[1]",
        metastore_uri=world.addresses["metastore"],
        data_dir=world.data_dir / "analyst",
        warehouse_uri=local_location(world.warehouse),
        extra={"sql.files.ignoreMissingFiles": "false"},
    )
    yield session
    close_session(session)


def hive(world: LoadWorld, *words: str) -> Any:
    flags = world.flags()
    return world.command("hive", *words, *flags[:2], *flags[6:])


def count(session: Any, table: str = "orders") -> int:
    return int(session.sql(f"SELECT count(note) FROM headrace.{table}").collect()[0][0])


def test_repair_fixes_changes_of_other_tools(world: LoadWorld, session: Any) -> None:
    clean = hive(world, "plan")
    assert (clean.returncode, clean.stdout) == (0, ""), clean.stdout + clean.stderr
    directory = world.warehouse / "orders" / "dt=2026-01-01"
    session.sql("ALTER TABLE headrace.orders SET TBLPROPERTIES ('headrace.version' = '99', 'mine' = 'x')")
    session.sql("ALTER TABLE headrace.orders DROP PARTITION (dt = '2026-01-01', hr = '00')")
    session.sql("ALTER TABLE headrace.orders ADD PARTITION (dt = '1999-01-01', hr = '00')")
    (directory / "hr=01" / "notes.txt").write_text("no Avro")
    with pytest.raises(Exception, match=r"InvalidAvroMagic|Not an Avro|not a data file"):
        count(session)
    shown = hive(world, "repair", "--dry-run")
    assert shown.returncode == 1
    assert shown.stdout.startswith("4 would be repaired, 0 need manual action, of 1 topic\n")
    planned = hive(world, "plan", "orders")
    assert planned.returncode == 1
    assert "-- orders: headrace.orders: the table was altered: headrace.version" in planned.stdout
    assert "ADD IF NOT EXISTS\n  PARTITION (`dt` = '2026-01-01', `hr` = '00')" in planned.stdout
    assert "1999" not in planned.stdout

    done = hive(world, "repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("4 repaired, 0 need manual action, of 1 topic\n")
    assert count(session) == len(world.produced["orders"].rows)
    properties = dict(map(tuple, session.sql("SHOW TBLPROPERTIES headrace.orders").collect()))
    assert (properties["headrace.version"], properties["mine"]) == ("1", "x")
    partitions = [row[0] for row in session.sql("SHOW PARTITIONS headrace.orders").collect()]
    assert partitions == [f"dt=2026-01-01/hr={hour}" for hour in HOURS]
    foreign_file = world.warehouse / "orders" / "_foreign" / "dt=2026-01-01" / "hr=01" / "notes.txt"
    assert foreign_file.read_text() == "no Avro"


def test_load_without_messages_creates_a_dropped_table_again(world: LoadWorld, session: Any) -> None:
    metastore = world.addresses["metastore"]
    assert {"orders", "others"} <= (table_names(metastore, "headrace") or set())
    assert not table_names(metastore, "nowhere")
    session.sql("DROP TABLE headrace.others")
    assert "others" not in (table_names(metastore, "headrace") or {"others"})
    done = world.load()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "others: its table headrace.others was missing" in done.stdout
    (rows,) = session.sql("SELECT count(*) FROM headrace.others").collect()
    assert rows[0] == len(world.produced["others"].rows)


def test_loads_with_hiveserver2_create_dropped_tables_of_quiet_topics_again(
    hive_server: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(hive_server, ServerEngine)
    monkeypatch.setenv("HEADRACE__HIVE__SERVER_AUTH", NOSASL)
    monkeypatch.setenv("HEADRACE__HIVE__DATABASE", "quiet")
    world = LoadWorld(tmp_path, metastore=False)
    try:
        executor = ["--hive-executor", str(hive_server.address)]
        for topic in ("orders", "others"):
            world.produce(topic, 10)
        done = world.load(*executor)
        assert done.returncode == 0, done.stdout + done.stderr
        partitions = {
            table: hive_server.executor.partitions(*table)
            for table in (("quiet", "others"), ("quiet_quarantine", "others"))
        }
        for is_quiet in (True, False):
            for database, name in partitions:
                hive_server.executor.execute(DropTable(database, name, "others"))
            if not is_quiet:
                world.produce("orders", 20)
            done = world.load(*executor)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "others: its table quiet.others was missing" in done.stdout
            assert "others: its table quiet_quarantine.others was missing" in done.stdout
            assert {table: hive_server.executor.partitions(*table) for table in partitions} == partitions
        hive_server.executor.execute(DropPartitions("quiet", "others", ("dt", "hr"), (("2026-01-01", "00"),)))
        # Each load compares the partitions of at least one of the four tables.
        printed = "".join(world.load(*executor).stdout for _ in range(5))
        assert printed.count("others: partitions of others were missing") == 1
        assert hive_server.executor.partitions("quiet", "others") == partitions["quiet", "others"]
    finally:
        world.close()


def test_repair_reports_missing_directory_and_queries_continue(world: LoadWorld, session: Any) -> None:
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=02"
    shutil.rmtree(directory)
    session.catalog.refreshTable("headrace.orders")
    with pytest.raises(Exception, match="does not exist"):
        count(session)
    done = hive(world, "repair", "orders", "--format", "json")
    assert done.returncode == 1
    (found,) = json.loads(done.stdout)["topics"]["orders"]
    assert (found["kind"], found["repairable"]) == ("lost", False)
    assert "headrace accept-missing orders --time-partition dt=2026-01-01/hr=02" in found["message"]
    left = [row for row in world.produced["orders"].rows.values() if row["timestamp"] // 3_600_000 % 24 != 2]
    assert count(session) == len(left)


def test_apply_recreates_dropped_table_and_keeps_foreign_tables(world: LoadWorld, session: Any) -> None:
    dropped = hive(world, "drop", "others")
    assert (dropped.returncode, dropped.stdout) == (
        0,
        "dropped headrace.others; its files remain\ndropped headrace_quarantine.others; its files remain\n",
    )
    session.sql("CREATE TABLE headrace.others (x INT)")
    refused = hive(world, "apply", "others")
    assert refused.returncode == 1
    assert "NOT REPAIRED: others: headrace.others: the Hive table headrace.others does not belong to topic others" in (
        refused.stdout
    )
    assert hive(world, "drop", "others").returncode == 2
    session.sql("DROP TABLE headrace.others")
    done = hive(world, "apply", "others")
    assert done.returncode == 0, done.stdout + done.stderr
    (rows,) = session.sql("SELECT count(*) FROM headrace.others").collect()
    assert rows[0] == len(world.produced["others"].rows)


def test_plan_and_explain_need_no_metastore(world: LoadWorld) -> None:
    printed = world.command("hive", "plan", "orders", "--data-dir", str(world.data_dir), "--hive-executor", "print")
    assert printed.returncode == 1
    assert "CREATE EXTERNAL TABLE `headrace`.`orders`" in printed.stdout
    explained = world.command("hive", "explain", "orders", "--data-dir", str(world.data_dir))
    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout == "orders: subject orders-value, versions 1; 0 rules, not counting unchanged fields\n"
    unknown = world.command("hive", "explain", "nobody", "--data-dir", str(world.data_dir))
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "headrace: topic nobody has not been loaded; known topics: orders, others\n"


def test_a_server_that_is_not_there_is_one_line(world: LoadWorld) -> None:
    flags = ["--data-dir", str(world.data_dir), "--hive-executor", "hive://127.0.0.1:1"]
    done = world.command("hive", "apply", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "headrace: the Hive metastore hive://127.0.0.1:1 cannot be used: Connection refused; "
        "start the server or correct hive.executor\n"
    )
