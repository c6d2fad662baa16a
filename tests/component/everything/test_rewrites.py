"""Compaction, retention and backfill with a real Spark and metastore: queries return the same rows before and after,
and no removed rows."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.loader.load_world import FIELDS, NOTE, LoadWorld

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("tables")]


@pytest.fixture
def world(tables_world: LoadWorld) -> LoadWorld:
    return tables_world


def command(world: LoadWorld, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    flags = {
        "--data-dir": str(world.data_dir),
        "--bootstrap-servers": world.addresses["broker"],
        "--master": "local[2]",
        "--metastore": world.addresses["metastore"],
    }
    return world.command(verb, *words, *(word for pair in flags.items() for word in pair))


def queried(analyst: Any, topic: str) -> list[tuple[int, int]]:
    """Queries a topic's table in another process than the loads."""
    query = f"SELECT kafka.partition, kafka.offset FROM headrace.{topic} ORDER BY 1, 2"
    return [tuple(row) for row in analyst.sql(query).collect()]


def test_compaction_keeps_rows_and_retention_removes_them(world: LoadWorld, analyst: Any) -> None:
    for fields in (FIELDS, FIELDS, [*FIELDS, NOTE]):
        world.produce("bought", 30, fields=fields)
        assert world.load().returncode == 0
    expected = sorted(world.produced["bought"].rows)
    assert queried(analyst, "bought") == expected

    compacted = command(world, "compact", "bought", "--format", "json")
    assert compacted.returncode == 0, compacted.stderr
    report = json.loads(compacted.stdout)
    assert {row["time_partition"] for row in report["time_partitions"] if row["kind"] == "data"} == {
        f"dt=2026-01-01/hr=0{hour}" for hour in range(3)
    }
    assert queried(analyst, "bought") == expected
    merged = list((world.warehouse / "bought" / "_g1").rglob("*.avro"))
    assert len(merged) == 6, "one file for each of the two schemas in each of the three hours"

    world.produce("bought", 30, fields=[*FIELDS, NOTE])
    assert world.load().returncode == 0
    expected = sorted(world.produced["bought"].rows)
    assert queried(analyst, "bought") == expected, "late messages are in the partition's current location"
    verified = command_without(world, "verify", "bought", "--checksums")
    assert verified.returncode == 0, verified.stdout

    expired = command(world, "expire", "bought", "--days", "1")
    assert expired.returncode == 0, expired.stderr
    assert queried(analyst, "bought") == []
    world.produce("bought", 30, fields=[*FIELDS, NOTE])
    assert world.load().returncode == 0
    assert queried(analyst, "bought") == sorted(set(world.produced["bought"].rows) - set(expected))


def test_backfill_replaces_damaged_and_deleted_files(world: LoadWorld, analyst: Any) -> None:
    for fields in (FIELDS, [*FIELDS, NOTE]):
        world.produce("payments", 30, fields=fields)
        assert world.load().returncode == 0
    expected = sorted(world.produced["payments"].rows)
    hours = [f"dt=2026-01-01/hr=0{hour}" for hour in range(3)]
    removed, cut = (sorted((world.warehouse / "payments" / hour).glob("*.avro"))[0] for hour in hours[:2])
    removed.unlink()
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    assert command_without(world, "verify", "payments", "--checksums").returncode == 1

    flags = world.flags("--format", "json")
    period = ("--from", hours[0], "--to", hours[1])
    printed = world.command("backfill", "payments", *period, *flags)
    assert printed.returncode == 0, printed.stderr
    report = json.loads(printed.stdout)
    assert {row["time_partition"] for row in report["time_partitions"] if row["kind"] == "data"} == set(hours)
    assert report["rows"] == len(expected)
    assert queried(analyst, "payments") == expected, "every offset exists once"
    verified = command_without(world, "verify", "payments", "--checksums")
    assert verified.returncode == 0, verified.stdout


def command_without(world: LoadWorld, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a verb that needs no Spark."""
    flags = ["--data-dir", str(world.data_dir), "--bootstrap-servers", world.addresses["broker"]]
    return world.command(verb, *words, *flags)
