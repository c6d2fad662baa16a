"""Compaction, retention and backfill under a real Spark and metastore: queries see the same rows before and after, at
every moment, and nothing of what was removed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from support.loader.load_world import FIELDS, NOTE, LoadWorld

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("rewrites"))
    yield world
    world.close()


def command(world: LoadWorld, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    flags = {
        "--data-dir": str(world.data_dir),
        "--bootstrap-servers": world.addresses["broker"],
        "--master": "local[2]",
        "--metastore": world.addresses["metastore"],
    }
    return world.command(verb, *words, *(word for pair in flags.items() for word in pair))


def queried(world: LoadWorld, topic: str = "orders") -> list[tuple[int, int]]:
    """By SQL, in another process than any load's."""
    flags = ["--data-dir", str(world.data_dir), "--metastore", world.addresses["metastore"], "--format", "json"]
    statement = f"SELECT kafka.partition AS p, kafka.offset AS o FROM headrace.{topic} ORDER BY p, o"
    answer = world.command("sql", statement, *flags)
    assert answer.returncode == 0, answer.stderr
    return [(row["p"], row["o"]) for row in json.loads(answer.stdout)]


def test_the_same_rows_before_and_after_and_none_of_what_was_removed(world: LoadWorld) -> None:
    for fields in (FIELDS, FIELDS, [*FIELDS, NOTE]):
        world.produce("orders", 30, fields=fields)
        assert world.load().returncode == 0
    wanted = sorted(world.produced["orders"].rows)
    assert queried(world) == wanted

    compacted = command(world, "compact", "orders", "--format", "json")
    assert compacted.returncode == 0, compacted.stderr
    report = json.loads(compacted.stdout)
    assert {row["bucket"] for row in report["buckets"] if row["kind"] == "data"} == {
        f"dt=2026-01-01/hr=0{hour}" for hour in range(3)
    }
    assert queried(world) == wanted
    merged = list((world.warehouse / "orders" / "_g1").rglob("*.avro"))
    assert len(merged) == 6, "one file for each of the two schemas in each of the three hours"

    world.produce("orders", 30, fields=[*FIELDS, NOTE])
    assert world.load().returncode == 0
    wanted = sorted(world.produced["orders"].rows)
    assert queried(world) == wanted, "late messages are where the partition is now"
    verified = command_without(world, "verify", "orders", "--checksums")
    assert verified.returncode == 0, verified.stdout

    retained = command(world, "retain", "orders", "--days", "1")
    assert retained.returncode == 0, retained.stderr
    assert queried(world) == []
    world.produce("orders", 30, fields=[*FIELDS, NOTE])
    assert world.load().returncode == 0
    assert queried(world) == sorted(set(world.produced["orders"].rows) - set(wanted))


def test_files_that_were_damaged_or_deleted_are_made_again_from_the_broker(world: LoadWorld) -> None:
    for fields in (FIELDS, [*FIELDS, NOTE]):
        world.produce("payments", 30, fields=fields)
        assert world.load().returncode == 0
    wanted = sorted(world.produced["payments"].rows)
    hours = [f"dt=2026-01-01/hr=0{hour}" for hour in range(3)]
    gone, cut = (sorted((world.warehouse / "payments" / hour).glob("*.avro"))[0] for hour in hours[:2])
    gone.unlink()
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    assert command_without(world, "verify", "payments", "--checksums").returncode == 1

    flags = world.flags("--format", "json")
    period = ("--from", hours[0], "--to", hours[1])
    told = world.command("backfill", "payments", *period, *flags)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert {row["bucket"] for row in report["buckets"] if row["kind"] == "data"} == set(hours)
    assert report["rows"] == len(wanted)
    assert queried(world, "payments") == wanted, "every offset is there once"
    verified = command_without(world, "verify", "payments", "--checksums")
    assert verified.returncode == 0, verified.stdout


def command_without(world: LoadWorld, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Of a verb that needs no Spark."""
    flags = ["--data-dir", str(world.data_dir), "--bootstrap-servers", world.addresses["broker"]]
    return world.command(verb, *words, *flags)
