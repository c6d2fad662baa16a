"""A `LoadWorld` with a remote warehouse, and checks of its loads for any file system."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.loader.load_world import FIELDS, LOAD_TIMEOUT_S, NOTE, LoadWorld, StoppingLoad

POINTS = (
    "plan:discover:after",
    "read:job:before",
    "read:range:after",
    "write:block:after",
    "write:finish:after",
    "write:written:before",
    "read:job:after",
    "write:check:after",
    "commit:link:before",
    "commit:link:after",
    "commit:hint:before",
    "apply:files:link:before",
    "apply:files:link:after",
    "apply:files:after",
    "apply:audit:after",
    "apply:cursors:before",
)
"""The stop points of `fault/load_launcher.py` that every load of this world reaches."""

FIRST_KILLS_S = 12.0  # latest moment after the start of a load; if the load has ended by then, the kill is repeated
OUTAGE_S = 20.0  # at most; Hadoop's client gives up after ten
OUTAGE_EVERY = 3  # kills


@dataclass(frozen=True)
class Outage:
    """Makes a server that loads need unavailable. `begin` stops it; `end` starts it and returns when it serves
    again."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]


class RemoteWorld(LoadWorld):
    """A `LoadWorld` whose warehouse is on a remote file system.

    Args:
        uri: location of the warehouse.
        fetch: copies the warehouse to a local directory, for the checks.
    """

    def __init__(self, root: Path, uri: str, fetch: Callable[[Path], Path]) -> None:
        super().__init__(root)
        self.uri = uri
        self._fetch = fetch

    def flags(self, *more: str) -> list[str]:
        return super().flags("--warehouse", self.uri, *more)

    def check(self, *, whole: bool) -> None:
        self.warehouse = self._fetch(self.data_dir / "copy")
        super().check(whole=whole)

    def load_completely(self) -> None:
        """Runs a load, which must have no findings. After it, no row may be missing in the tables."""
        run = self.load()
        assert run.returncode == 0, run.stdout + run.stderr
        self.check(whole=True)

    def counts(self, topic: str) -> tuple[int, int]:
        """Returns the number of rows of a table and the number of different offsets in it, both from a Spark SQL
        query."""
        query = f"SELECT count(*) AS n, count(DISTINCT kafka.partition, kafka.offset) AS places FROM headrace.{topic}"
        where = ["--data-dir", str(self.data_dir), "--metastore", self.addresses["metastore"], "--warehouse", self.uri]
        run = self.command("sql", query, *where, "--format", "json")
        assert run.returncode == 0, run.stderr
        (row,) = json.loads(run.stdout)
        return int(row["n"]), int(row["places"])

    def staged_at_start(self) -> set[Path]:
        """Returns the files that are in staging before the next load. Files of killed loads stay there until they reach
        the maximum age."""
        self.check(whole=False)
        return set(self.staged())

    def staged(self) -> list[Path]:
        """Returns the staged files in the local copy of the warehouse."""
        return [path for path in (self.warehouse / "_headrace" / "staging").rglob("*") if path.suffix == ".txt"]


def kills_of_test() -> int:
    return int(os.environ.get("HEADRACE_TEST_KILLS") or 4)


def kill_loads(world: RemoteWorld, directory: Path, kills: int, outages: Sequence[Outage] = ()) -> None:
    """Runs loads and kills the driver or a worker of each, alternately at a stop point and at a random moment. Every
    few kills, a server is stopped instead. After every second kill, a load must complete the tables.

    Args:
        directory: directory for the logs of the loads.
        kills: number of kills.
        outages: the servers that may be stopped.
    """
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or time.time_ns() % 10**6)
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    points = chance.sample(POINTS * (1 + kills // len(POINTS)), kills)
    latest_s = FIRST_KILLS_S
    number = 0
    while number < kills:
        world.produce("orders", 30, fields=[*FIELDS, NOTE])
        world.produce("clicks", 10)
        point = points[number] if number % 2 else ""
        load = world.start_load(directory / f"{number}.log", point=point)
        if point:
            victim = load.wait_until_stopped()
        else:
            time.sleep(chance.uniform(0.5, latest_s))
            workers = load.workers()
            victim = chance.choice(workers) if workers and chance.random() < 0.3 else load.process.pid
        if load.process.poll() is not None:
            latest_s = max(2.0, latest_s * 0.8)
            load.wait()
            continue
        if outages and number % OUTAGE_EVERY == OUTAGE_EVERY - 1:
            who = _stop_server(load, chance.choice(outages), chance.uniform(0.5, OUTAGE_S))
        else:
            load.kill(victim)
            who = "driver" if victim == load.process.pid else "worker"
        number += 1
        print(f"kill {number}: {who} at {point or load.last_phase()}", flush=True)
        world.check(whole=False)
        if number % 2 == 0:
            world.load_completely()
    world.load_completely()
    total = len(world.produced["orders"].rows)
    assert world.counts("orders") == (total, total)


def _stop_server(load: StoppingLoad, outage: Outage, seconds: float) -> str:
    """Stops a server for some seconds during a load. The load must either wait for it, or fail with an error message.
    Returns a text about both."""
    outage.begin()
    _resume_workers(load, seconds)
    outage.end()
    _resume_workers(load, LOAD_TIMEOUT_S)
    code = load.wait()
    text = load.log.read_text()
    assert code in (0, 1, 2), text
    assert "Traceback" not in text, text
    return f"{outage.name} for {seconds:.0f} s (exit {code})"


def _resume_workers(load: StoppingLoad, seconds: float) -> None:
    """Waits until the load has ended or the time is over. Every new worker stops itself at the stop point of the first
    one; this function resumes it."""
    deadline = time.monotonic() + seconds
    while load.process.poll() is None and time.monotonic() < deadline:
        for pid in {int(word) for word in load.announce.read_text().split()[::2]}:
            with contextlib.suppress(ProcessLookupError):
                load.wake(pid)
        time.sleep(0.2)


def read_and_change(world: RemoteWorld) -> None:
    """Loads messages, and runs the commands that read the warehouse, a compaction and a load. Each must succeed."""
    for _ in range(2):
        world.produce("orders", 40, fields=[*FIELDS, NOTE])
        world.load_completely()
    where = ["--data-dir", str(world.data_dir), "--warehouse", world.uri]
    broker = ["--bootstrap-servers", world.addresses["broker"]]
    rewriting = [*where, *broker, "--master", "local[1]", "--metastore", world.addresses["metastore"]]
    orders = world.produced["orders"]
    partition, offset = next(iter(orders.rows))
    rows = len(orders.rows)
    for words, expected in (
        (["load", "status", *world.flags()], "orders"),
        (["load", "plan", *world.flags()], "after commit"),
        (["files", "orders", *where], f"{world.uri}/orders/"),
        (["locate", "orders", str(partition), str(offset), *where], ".avro"),
        (["verify", "--checksums", *where, *broker], ""),
        (["quarantine", "list", *where], "orders"),
        (["quarantine", "show", "orders", *where], ""),
        (["compact", "orders", *rewriting], "orders"),
        (["load", *world.flags()], ""),
        (["verify", "--checksums", *where, *broker], ""),
    ):
        run = world.command(*words)
        assert run.returncode == 0, (words, run.stdout, run.stderr)
        assert expected in run.stdout, (words, run.stdout)
    assert world.counts("orders") == (rows, rows)


def recount_without_a_file(world: RemoteWorld, remove: Callable[[str], object]) -> None:
    """Loads messages, and counts the files before and after one is removed, which the recount must name.

    Args:
        remove: removes a file by its path below the warehouse.
    """
    world.produce("orders", 40, fields=[*FIELDS, NOTE])
    world.load_completely()
    recount = ["audit", "recount", "orders", "--data-dir", str(world.data_dir), "--warehouse", world.uri]
    run = world.command(*recount)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "; 0 findings about files" in run.stdout
    removed = min((world.warehouse / "orders").rglob("*.avro")).relative_to(world.warehouse)
    remove(str(removed))
    run = world.command(*recount, "--format", "json")
    assert run.returncode == 1, run.stdout + run.stderr
    report = json.loads(run.stdout)
    (finding,) = report["findings"]
    assert finding["where"] == str(removed)
    missing = [one for one in report["windows"] if one["verdict"] != "equal"]
    assert missing and all(one["verdict"] == "missing" and one["rows"] < one["committed"] for one in missing)


def two_drivers(world: RemoteWorld, directory: Path) -> None:
    """Runs two loads of the same offsets at once. Each offset must be committed once."""
    world.produce("orders", 40, fields=[*FIELDS, NOTE])
    loads = [world.start_load(directory / f"{number}.log", "--no-lease") for number in range(2)]
    codes = [load.wait() for load in loads]
    assert codes == [0, 0], [load.log.read_text() for load in loads]
    world.check(whole=True)
    world.load_completely()


def lose_a_worker(world: RemoteWorld, directory: Path) -> None:
    """Kills a worker while it writes. Spark retries its task, and the files of the first attempt must neither be
    committed nor stay in staging."""
    before = world.staged_at_start()
    world.produce("orders", 40, fields=[*FIELDS, NOTE])
    load = world.start_load(directory / "load.log", "--master", "local[2,3]", point="write:finish:after")
    os.kill(load.wait_until_stopped(), signal.SIGKILL)
    _resume_workers(load, LOAD_TIMEOUT_S)
    assert load.wait() == 0, load.log.read_text()
    world.check(whole=True)
    assert set(world.staged()) <= before
