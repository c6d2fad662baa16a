"""`headrace hive repartition` with a real Spark and metastore."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from support.loader.load_world import FIELDS, NOTE, LoadWorld

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("tables")]


@pytest.fixture
def world(tables_world: LoadWorld) -> LoadWorld:
    return tables_world


def flags_of(world: LoadWorld) -> list[str]:
    servers = ["--data-dir", str(world.data_dir), "--bootstrap-servers", world.addresses["broker"]]
    return [*servers, "--master", "local[2]", "--metastore", world.addresses["metastore"]]


def rows(analyst: Any, columns: str) -> list[tuple[Any, ...]]:
    analyst.catalog.refreshTable("headrace.sliced")
    query = f"SELECT kafka.partition, kafka.offset, id, who, note, {columns} FROM headrace.sliced ORDER BY 1, 2"
    return [tuple(row) for row in analyst.sql(query).collect()]


def test_table_by_hour_becomes_a_table_by_day_and_back(world: LoadWorld, analyst: Any) -> None:
    for fields in (FIELDS, [*FIELDS, NOTE], [*FIELDS, NOTE]):
        world.produce("sliced", 30, fields=fields)
        assert world.load().returncode == 0
    before = rows(analyst, "dt, hr")
    assert len(before) == 90

    planned = world.command("hive", "repartition", "sliced", "--by", "day", "--dry-run", *flags_of(world))
    assert planned.returncode == 0, planned.stderr
    assert rows(analyst, "dt, hr") == before
    report = repartition(world, "day")
    assert report["before"]["rows"] == report["after"]["rows"]
    assert report["before"]["time_partitions"] > report["after"]["time_partitions"]
    assert report["before"]["files"] > report["after"]["files"]
    assert rows(analyst, "dt") == [row[:-1] for row in before]
    assert [row[0] for row in analyst.sql("SHOW PARTITIONS headrace.sliced").collect()] == ["dt=2026-01-01"]

    world.produce("sliced", 30, fields=[*FIELDS, NOTE])
    assert world.load().returncode == 0
    assert len(rows(analyst, "dt")) == 120
    compacted = world.command("compact", "sliced", *flags_of(world))
    assert compacted.returncode == 0, compacted.stderr
    after_compaction = rows(analyst, "dt")
    assert len(after_compaction) == 120
    verify(world)

    assert repartition(world, "hour")["after"]["files"] > 0
    back = rows(analyst, "dt, hr")
    assert [row[:-1] for row in back] == after_compaction
    assert Counter(row[-1] for row in back) == {f"0{hour}": 40 for hour in range(3)}
    assert [row for row in back if row[:2] in {old[:2] for old in before}] == before
    verify(world)
    assert world.load().returncode == 0
    catalog = analyst.sql("SELECT partitioned_by FROM headrace_catalog.tables WHERE topic = 'sliced'").collect()
    assert [tuple(row) for row in catalog] == [("dt,hr",)]


def repartition(world: LoadWorld, unit: str) -> dict[str, Any]:
    run = world.command("hive", "repartition", "sliced", "--by", unit, *flags_of(world), "--format", "json")
    assert run.returncode == 0, run.stdout + run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def verify(world: LoadWorld) -> None:
    verified = world.command("verify", "sliced", "--checksums", *flags_of(world)[:4])
    assert verified.returncode == 0, verified.stdout
