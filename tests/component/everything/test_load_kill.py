"""Each message is loaded once when loads are killed at every step, and when two drivers load the same ranges."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loader.load_forks import LoadForks
from support.loader.load_world import FIELDS, NOTE, LoadWorld, StoppingLoad
from support.simulation.extent import IS_FULL

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.xdist_group("load_kill")]

# Points of a load: name, number of the passage, and whether the table must need a change. `read:range`, `write:block`
# and `write:finish` are in Python workers, all others in the driver.
KILLS: tuple[tuple[str, int, bool], ...] = (
    ("plan:discover:after", 1, False),
    ("plan:schemas:after", 1, True),
    ("read:job:before", 1, False),
    ("read:range:before", 2, False),
    ("read:range:after", 1, False),
    ("read:job:after", 1, False),
    ("write:block:after", 1, False),
    ("write:finish:after", 1, False),
    ("write:check:after", 2, False),
    ("commit:link:before", 1, False),
    ("commit:link:after", 1, True),
    ("commit:hint:before", 1, False),
    ("apply:schema:table:before", 1, True),
    ("apply:schema:table:after", 1, True),
    ("apply:files:link:before", 2, False),
    ("apply:files:link:after", 3, False),
    ("apply:files:unlink:after", 2, False),
    ("apply:partitions:add:before", 1, True),
    ("apply:partitions:add:after", 1, True),
    ("apply:audit:before", 2, False),
    ("apply:audit:after", 2, False),
    ("apply:group_offsets:before", 1, False),
    ("apply:group_offsets:after", 1, False),
)
KILLS_OF_EACH = int(os.environ.get("HEADRACE_TEST_ROUNDS") or (10 if IS_FULL else 2))
"""How often a load is killed at each point: twice, in `make test-full` ten times, or HEADRACE_TEST_ROUNDS times."""

COLD_KILLS, FORKED_KILLS = KILLS_OF_EACH, 5 * KILLS_OF_EACH  # at random moments
COLD_LATEST_S, FORKED_LATEST_S = 8.0, 1.5  # after the first phase of a load; a load that has ended before is repeated
MISSES_MAX = 20  # consecutive loads that ended before the random moment
KILLS_IN_A_ROW = 2  # then a load completes the tables


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("fault"), keeps_spark=True)
    yield world
    world.close()


@pytest.fixture(scope="module")
def forks(world: LoadWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadForks]:
    forks = LoadForks(world, tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or time.time_ns() % 10**6)
    print(f"\nseed {seed}")
    return random.Random(seed)


def load_completely(world: LoadWorld, forks: LoadForks, log: Path, after: str) -> None:
    load = forks.start_load(log)
    assert load.wait() == 0, f"after {after}:\n{log.read_text()}"
    world.check(whole=True)


@pytest.mark.timeout(900)
def test_every_message_is_loaded_once_when_loads_are_killed_at_every_point(
    world: LoadWorld, forks: LoadForks, chance: random.Random, tmp_path: Path
) -> None:
    """The JVM survives: at a point of the driver it is idle, and killing it would have no other effect. The test of
    random moments kills JVMs too."""
    kills = list(KILLS) * KILLS_OF_EACH
    chance.shuffle(kills)
    for number, (point, nth, new_table) in enumerate(kills):
        fields = FIELDS if number < len(kills) // 2 else [*FIELDS, NOTE]
        world.produce("orders", 40, fields=fields)
        world.produce("clicks", 20)
        if new_table:
            world.produce(f"late{number}", 10)
        load = forks.start_load(tmp_path / f"{number}.log", point=point, nth=nth)
        victim = load.wait_until_stopped()
        load.kill(victim)
        stop_point = f"{point} (passage {nth})"
        print(f"kill {number + 1:2}: {'driver' if victim == load.process.pid else 'worker'} {stop_point}", flush=True)
        world.check(whole=False)
        if number % KILLS_IN_A_ROW == KILLS_IN_A_ROW - 1:
            load_completely(world, forks, tmp_path / f"{number}.after.log", stop_point)
    last_load = world.cold_load()
    assert last_load.returncode == 0, f"{last_load.stdout}{last_load.stderr}"
    world.check(whole=True)
    check_by_sql(world)


@pytest.mark.timeout(900)
def test_every_message_is_loaded_once_when_loads_are_killed_at_random_moments(
    world: LoadWorld, forks: LoadForks, chance: random.Random, tmp_path: Path
) -> None:
    """Some loads are separate processes: they lose a worker, or their JVM dies with them. The others are forked: their
    driver dies and its tasks continue. Their workers are not killed, since a JVM without its worker daemon fails the
    next load too, and `headrace load serve` replaces it."""
    starts = [*[(world.start_load, COLD_LATEST_S)] * COLD_KILLS, *[(forks.start_load, FORKED_LATEST_S)] * FORKED_KILLS]
    chance.shuffle(starts)
    for number, (start_load, latest_s) in enumerate(starts):
        for _ in range(MISSES_MAX):
            world.produce("orders", 40, fields=[*FIELDS, NOTE])
            world.produce("clicks", 20)
            load = start_load(tmp_path / f"{number}.log")
            wait_until_running(load)
            time.sleep(chance.uniform(0, latest_s))
            workers = load.workers() if start_load == world.start_load else []
            victim = chance.choice(workers) if workers and chance.random() < 0.5 else load.process.pid
            if load.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # it has just exited
                    load.kill(victim)
                    break
            # The load ended before the random moment: it does not count, and the next kill comes earlier.
            assert load.wait() == 0, load.log.read_text()
            latest_s = max(0.5, latest_s * 0.7)
        else:
            pytest.fail(f"{MISSES_MAX} loads ended before they could be killed; the last one:\n{load.log.read_text()}")
        stop_point = f"at a random moment, last phase {load.last_phase()}"
        print(f"kill {number + 1}: {'driver' if victim == load.process.pid else 'worker'} {stop_point}", flush=True)
        world.check(whole=False)
        if number % KILLS_IN_A_ROW == KILLS_IN_A_ROW - 1:
            load_completely(world, forks, tmp_path / f"{number}.after.log", stop_point)
    check_by_sql(world)


def wait_until_running(load: StoppingLoad) -> None:
    while load.last_phase() == "start" and load.process.poll() is None:
        time.sleep(0.01)


def check_by_sql(world: LoadWorld) -> None:
    """Queries through the metastore, with the newest columns: each row exists once."""
    topics = sorted(world.produced)
    query = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, count(*) AS n, count(DISTINCT kafka.partition, kafka.offset) AS places, "
        f"sum(id) AS ids FROM headrace.{topic}"
        for topic in topics
    )
    flags = ["--data-dir", str(world.data_dir), "--metastore", world.addresses["metastore"]]
    run = world.command("sql", query, *flags, "--format", "json")
    assert run.returncode == 0, run.stderr
    found = {row["topic"]: (int(row["n"]), int(row["places"]), int(row["ids"])) for row in json.loads(run.stdout)}
    expected = {
        topic: (len(known.rows), len(known.rows), sum(row["id"] for row in known.rows.values()))
        for topic, known in world.produced.items()
    }
    assert found == expected


REPARTITION_KILLS: tuple[tuple[str, bool], ...] = (
    ("rewrite:job:after", False),
    ("commit:link:before", False),
    ("commit:link:after", True),
    ("apply:files:link:after", True),
    ("apply:partitions:add:before", True),
    ("apply:table:drop:before", True),
    ("apply:table:drop:after", True),
    ("apply:table:rename:after", True),
)
"""Points of `headrace hive repartition`, each with whether its commit is written by then."""
REPARTITION_KILLS_IN_GATE = ("apply:table:drop:after",)
"""Between drop and rename there is no table. Unit tests kill a repartitioning at each operation of the metastore."""
PARTITION_COLUMNS_BY = {"day": ["dt"], "hour": ["dt", "hr"]}


@pytest.mark.timeout(900)
def test_every_row_is_queried_once_when_a_repartitioning_is_killed_at_every_point(
    world: LoadWorld, forks: LoadForks, tmp_path: Path
) -> None:
    flags = ["--data-dir", str(world.data_dir), "--bootstrap-servers", world.addresses["broker"]]
    flags += ["--master", "local[2]", "--metastore", world.addresses["metastore"]]
    current, other = "hour", "day"
    for number, (point, is_committed) in enumerate(REPARTITION_KILLS):
        if not IS_FULL and point not in REPARTITION_KILLS_IN_GATE:
            continue
        world.produce("sliced", 30)
        assert world.load().returncode == 0
        count = len(world.produced["sliced"].rows)
        words = ["hive", "repartition", "sliced", "--by", other, *flags]
        command = forks.start(words, tmp_path / f"{number}.log", point=point)
        command.kill(command.wait_until_stopped())
        rows = rows_of(world, "sliced")
        assert rows in ([], [count, count]), f"{point}: {rows}"
        world.produce("sliced", 30)
        assert world.load().returncode == 0, point
        assert rows_of(world, "sliced") == [count + 30, count + 30], point
        if is_committed:
            current, other = other, current
        assert partition_columns_of(world, "sliced") == PARTITION_COLUMNS_BY[current], point
    verified = world.command("verify", "sliced", "--checksums", *flags[:4])
    assert verified.returncode == 0, verified.stdout
    names = world.cold_command("sql", "SHOW TABLES IN headrace LIKE 'headrace_new*'", *flags[:2], *flags[-2:])
    assert "sliced" not in names.stdout
    del world.produced["sliced"]  # the other tests read the files of tables by hour


def rows_of(world: LoadWorld, table: str) -> list[int]:
    """Returns the number of rows and of distinct messages; nothing if the table does not exist."""
    query = f"SELECT count(*) AS n, count(DISTINCT kafka.partition, kafka.offset) AS places FROM headrace.{table}"
    flags = ["--data-dir", str(world.data_dir), "--metastore", world.addresses["metastore"]]
    run = world.cold_command("sql", query, *flags, "--format", "json")
    if run.returncode != 0:
        assert "TABLE_OR_VIEW_NOT_FOUND" in run.stderr or "not found" in run.stderr, run.stderr
        return []
    ((row),) = json.loads(run.stdout)
    return [int(row["n"]), int(row["places"])]


def partition_columns_of(world: LoadWorld, table: str) -> list[str]:
    flags = ["--data-dir", str(world.data_dir), "--metastore", world.addresses["metastore"]]
    run = world.cold_command("sql", f"SHOW COLUMNS IN headrace.{table}", *flags, "--format", "json")
    found = {row["col_name"] for row in json.loads(run.stdout)}
    return [name for name in ("dt", "hr") if name in found]


PAUSES = (
    "plan:schemas:after",
    "read:job:after",
    "commit:link:before",
    "apply:schema:before",
    "apply:files:link:before",
)


@pytest.mark.timeout(900)
def test_driver_paused_during_another_load_changes_nothing(world: LoadWorld, forks: LoadForks, tmp_path: Path) -> None:
    for number, point in enumerate(PAUSES):
        world.produce("orders", 30, fields=[*FIELDS, NOTE])
        world.produce(f"paused{number}", 10)
        slow = forks.start_load(tmp_path / f"pause{number}.log", "--no-lease", point=point)
        pid = slow.wait_until_stopped()
        world.produce("orders", 10, fields=[*FIELDS, NOTE])
        fast = world.load("--no-lease")
        assert fast.returncode == 0, fast.stdout + fast.stderr
        world.check(whole=True)
        slow.wake(pid)
        assert slow.wait() == 0, slow.log.read_text()
        print(f"\npaused at {point}: {slow.log.read_text().splitlines()[-1]}", flush=True)
        world.check(whole=True)
    load_completely(world, forks, tmp_path / "after.log", "the pauses")
