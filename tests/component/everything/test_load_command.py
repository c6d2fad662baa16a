"""`headrace load` without Spark: invalid input, outages, plan and status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.lease import Lease
from support.loader.load_world import LoadWorld
from support.loader.warm_commands import WarmCommands

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("load_command")]

Headrace = Callable[..., subprocess.CompletedProcess[str]]

NO_SERVER = "127.0.0.1:1"
"""A port that nothing listens on."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("load"), metastore=False)
    world.produce("orders", 20)
    yield world
    world.close()


@pytest.fixture(scope="module")
def headrace() -> Iterator[Headrace]:
    """Runs all commands in one process."""
    commands = WarmCommands({"HEADRACE_LOG_LEVEL": "ERROR"})
    yield partial(commands.run, timeout_s=120)
    commands.close()


def commit_nothing(warehouse: Path, commits: int) -> Path:
    """Creates a log with some commits, and returns the file of the newest."""
    log = CommitLog(LocalCommitStorage(warehouse / "_headrace"))
    log.open()
    for number in range(commits):
        log.try_commit(Commit(0, CommitKind.CLEAN, f"c{number}", 1, "test", {}, frozenset({f"w{number}"})))
    return warehouse / "_headrace" / "log" / f"{commits:09d}.json"


def test_load_without_brokers_exits_2_with_one_line(headrace: Headrace, tmp_path: Path) -> None:
    run = headrace("load", "--data-dir", str(tmp_path), "--bootstrap-servers", NO_SERVER)
    assert run.returncode == 2
    assert run.stdout == ""
    assert NO_SERVER in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_unwritable_warehouse_exits_2_with_one_line(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = headrace("load", "--data-dir", str(tmp_path), "--warehouse", str(tmp_path / "file" / "warehouse"))
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "cannot write to the warehouse" in line


def test_damaged_decision_stops_load_and_status_and_is_named(headrace: Headrace, tmp_path: Path) -> None:
    path = commit_nothing(tmp_path / "warehouse", 3)
    path.write_bytes(path.read_bytes().replace(b"c2", b"cX"))
    for verb in ([], ["status"]):
        run = headrace("load", *verb, "--data-dir", str(tmp_path), "--bootstrap-servers", NO_SERVER)
        assert run.returncode == 2
        (line,) = run.stderr.splitlines()
        assert str(path) in line
        assert "checksum" in line


def test_load_refuses_log_of_newer_release(headrace: Headrace, tmp_path: Path) -> None:
    commit_nothing(tmp_path / "warehouse", 1)
    (tmp_path / "warehouse" / "_headrace" / "format.json").write_text('{"format":9,"read_min":9,"write_min":9}')
    run = headrace("load", "--data-dir", str(tmp_path))
    assert run.returncode == 2
    assert "use a newer headrace" in run.stderr


def test_second_of_two_loads_yields(headrace: Headrace, tmp_path: Path) -> None:
    commit_nothing(tmp_path / "warehouse", 1)
    lease = Lease(tmp_path / "warehouse" / "_headrace" / "lease.json")
    assert lease.acquire(time.time_ns() // 1_000_000) is None
    try:
        run = headrace("load", "--data-dir", str(tmp_path), "--bootstrap-servers", NO_SERVER)
        assert run.returncode == 0
        assert f"another load is running (pid {os.getpid()}" in run.stdout
        assert "this load ends without loading" in run.stdout
        anyway = headrace("load", "--data-dir", str(tmp_path), "--bootstrap-servers", NO_SERVER, "--no-lease")
        assert anyway.returncode == 2
    finally:
        lease.release()


def test_new_topics_wait_while_registry_is_down(headrace: Headrace, world: LoadWorld, tmp_path: Path) -> None:
    run = headrace(
        "load",
        "--data-dir",
        str(tmp_path),
        "--bootstrap-servers",
        world.addresses["broker"],
        "--registry-url",
        f"http://{NO_SERVER}",
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.splitlines()[-1].startswith("headrace: ")
    assert NO_SERVER in run.stderr.splitlines()[-1]
    assert "waiting: orders: the registry is unavailable" in run.stdout
    assert "nothing loaded, 22 messages held back" in run.stdout


def test_plan_shows_offsets_and_tables_and_changes_nothing(headrace: Headrace, world: LoadWorld) -> None:
    run = headrace("load", "plan", *world.flags(), "--format", "json")
    assert run.returncode == 0, run.stderr
    plan = json.loads(run.stdout)
    ranges = [one for task in plan["tasks"] for one in task["ranges"]]
    assert sum(one["end"] - one["start"] for one in ranges) == 22
    assert plan["topics"]["orders"] == {"table": "orders", "new": True, "schema_changes": False, "changes": []}
    assert not world.warehouse.exists()
    text = headrace("load", "plan", *world.flags())
    assert text.stdout.startswith("after commit 0: 22 offsets")
    assert re.search(r"^orders +orders .* new$", text.stdout, re.MULTILINE)


def test_status_before_first_load_lists_topics_not_loaded(headrace: Headrace, world: LoadWorld) -> None:
    run = headrace("load", "status", *world.flags())
    assert run.returncode == 0, run.stderr
    assert "not loaded yet: orders" in run.stdout
    assert "nothing has been committed yet" in run.stdout


def test_status_without_brokers_notes_why_lag_is_missing(headrace: Headrace, tmp_path: Path) -> None:
    commit_nothing(tmp_path / "warehouse", 2)
    run = headrace("load", "status", "--data-dir", str(tmp_path), "--bootstrap-servers", NO_SERVER, "--format", "json")
    assert run.returncode == 0, run.stderr
    status = json.loads(run.stdout)
    assert status["commit_number"] == 2
    assert NO_SERVER in status["note"]
