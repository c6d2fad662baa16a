"""`headrace audit recount` with a real Spark: names the files that explain a difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest

from support.loader.load_world import FIELDS, FIRST_MS, HOUR_MS, NOTE, LoadWorld

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("tables")]

HOURS = [FIRST_MS + hour * HOUR_MS for hour in range(3)]


@pytest.fixture
def world(tables_world: LoadWorld) -> LoadWorld:
    return tables_world


def recount(world: LoadWorld, topic: str, *words: str, code: int = 0) -> dict[str, Any]:
    flags = ("--data-dir", str(world.data_dir), "--master", "local[2]", "--format", "json")
    run = world.command("audit", "recount", topic, *words, *flags)
    assert run.returncode == code, run.stdout + run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def counts(report: dict[str, Any]) -> list[tuple[int, int, int, int, str]]:
    return [
        (one["window_start_ms"], one["rows"], one["committed"], one["loaded"], one["verdict"])
        for one in report["windows"]
    ]


def test_recount_of_intact_files_equals_commits_and_audit_after_every_rewrite(world: LoadWorld) -> None:
    for fields in (FIELDS, [*FIELDS, NOTE]):
        world.produce("recounted", 30, fields=fields)
        assert world.load().returncode == 0
    report = recount(world, "recounted")
    assert counts(report) == [(hour, 20, 20, 20, "equal") for hour in HOURS]
    assert (report["rows"], report["findings"], report["notes"]) == (62, [], [])
    assert sum(one["stored"] for one in report["windows"]) in (60, 62), "with bad messages of the same time"
    positions = {one["fingerprint"] for one in report["windows"]}
    assert len(positions) == 3

    (one,) = recount(world, "recounted", "--from", "2026-01-01 01:00Z", "--to", "2026-01-01 02:00Z")["windows"]
    assert one == report["windows"][1]
    flags = ["--bootstrap-servers", world.addresses["broker"], "--metastore", world.addresses["metastore"]]
    flags += ["--data-dir", str(world.data_dir), "--master", "local[2]"]
    for command in (("compact", "recounted"), ("hive", "repartition", "recounted", "--by", "day")):
        assert world.command(*command, *flags).returncode == 0
        assert recount(world, "recounted")["windows"] == report["windows"], "the same messages in other files"
    expired = world.command("expire", "recounted", "--days", "1", *flags)
    assert expired.returncode == 0, expired.stderr
    after = recount(world, "recounted")
    assert counts(after) == [(hour, 0, 20, 20, "equal") for hour in HOURS]
    assert all("removed" in one["reason"] for one in after["windows"])


def test_recount_names_deleted_shortened_and_doubled_files(world: LoadWorld) -> None:
    for _ in range(2):
        world.produce("tampered", 30)
        assert world.load().returncode == 0
    deleted, shortened, doubled = (
        sorted((world.warehouse / "tampered" / f"dt=2026-01-01/hr=0{hour}").glob("*.avro"))[0] for hour in range(3)
    )
    intact = {path: path.read_bytes() for path in (deleted, shortened)}
    deleted.unlink()
    remove_rows(shortened, 4)
    copy = doubled.with_name("copy.avro")
    shutil.copy(doubled, copy)
    try:
        check_tampered(world, deleted, shortened, copy)
    finally:  # loads of other tests would report the files
        copy.unlink()
        for path, content in intact.items():
            path.write_bytes(content)
    recount(world, "tampered")


def check_tampered(world: LoadWorld, deleted: Path, shortened: Path, copy: Path) -> None:
    report = recount(world, "tampered", code=1)
    assert counts(report) == [
        (HOURS[0], 10, 20, 20, "missing"),
        (HOURS[1], 16, 20, 20, "missing"),
        (HOURS[2], 30, 20, 20, "extra"),
    ]
    assert {(one["check"], world.warehouse / one["where"]) for one in report["findings"]} == {
        ("place", deleted),
        ("rows", shortened),
        ("foreign", copy),
    }
    printed = world.command("audit", "recount", "tampered", "--data-dir", str(world.data_dir), "--master", "local[2]")
    assert printed.returncode == 1
    assert f"{deleted.relative_to(world.warehouse)}: is missing" in printed.stdout
    assert "has 6 rows instead of 10" in printed.stdout


def remove_rows(path: Path, number: int) -> None:
    """Removes the first rows of a file, which remains a valid file."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, rows = reader.writer_schema, list(reader)
    assert schema is not None
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows[number:])
