"""kill -9 at every step of a load, and two drivers on the same ranges: each message ends in one place, once."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loader.load_world import FIELDS, NOTE, LoadWorld

pytestmark = [pytest.mark.fault, pytest.mark.spark]

# Point, passage, and whether it needs a table that has to be changed. Points of `read:range`, `write:block` and
# `write:finish` are in Python workers, all others in the driver.
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
    ("decide:link:before", 1, False),
    ("decide:link:after", 1, True),
    ("decide:hint:before", 1, False),
    ("follow:schema:table:before", 1, True),
    ("follow:schema:table:after", 1, True),
    ("follow:files:link:before", 2, False),
    ("follow:files:link:after", 3, False),
    ("follow:files:unlink:after", 2, False),
    ("follow:partitions:add:before", 1, True),
    ("follow:partitions:add:after", 1, True),
    ("follow:audit:before", 2, False),
    ("follow:audit:after", 2, False),
    ("follow:group_offsets:before", 1, False),
    ("follow:group_offsets:after", 1, False),
)
KILLS_PER_PHASE = 4  # drawn anew each time; over several runs every point has its turn
TIMED_KILLS = 4
KILLS_IN_A_ROW = 2  # what the first leaves the second one meets; then a load makes it whole
RANDOM_KILL_LATEST_S = 9.0  # after the start of a load; one that has ended by then is tried again
PHASES = ("plan", "read", "write", "decide", "schema", "files", "partitions", "audit", "group_offsets")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("fault"))
    yield world
    world.close()


def phase_of(point: str) -> str:
    words = point.split(":")
    return words[1] if words[0] == "follow" else words[0]


@pytest.mark.timeout(3600)
def test_killed_at_every_step_every_message_is_in_one_place(world: LoadWorld, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or time.time_ns() % 10**6)
    chance = random.Random(seed)
    print(f"\nseed {seed}")
    numbers = itertools.count()
    fell: Counter[str] = Counter()
    kills = [("", 0, False)] * TIMED_KILLS
    for phase in PHASES:
        points = [kill for kill in KILLS if phase_of(kill[0]) == phase]
        kills += chance.sample(points * 2, KILLS_PER_PHASE)
    chance.shuffle(kills)
    for number, (point, nth, new_table) in enumerate(kills):
        fields = FIELDS if number < len(kills) // 2 else [*FIELDS, NOTE]
        killed = False
        latest_s = RANDOM_KILL_LATEST_S
        while not killed:
            world.produce("orders", 40, fields=fields)
            world.produce("clicks", 20)
            if new_table:
                world.produce(f"late{next(numbers)}", 10)
            load = world.start_load(tmp_path / f"{number}.log", point=point, nth=nth)
            if point:
                victim = load.wait_until_stopped()
            else:
                time.sleep(chance.uniform(0.3, latest_s))
                workers = load.workers()
                victim = chance.choice(workers) if workers and chance.random() < 0.5 else load.process.pid
            killed = load.process.poll() is None
            if killed:
                load.kill(victim)
            else:  # The load was faster than the random moment: it does not count, another one is tried earlier.
                latest_s = max(1.0, latest_s * 0.7)
        who = "driver" if victim == load.process.pid else "worker"
        where = f"{point} (passage {nth})" if point else f"at a random moment, last phase {load.last_phase()}"
        print(f"kill {number + 1:2}: {who} {where}", flush=True)
        if point:
            fell[phase_of(point)] += 1
        world.check(whole=False)
        if number % KILLS_IN_A_ROW == KILLS_IN_A_ROW - 1:
            again = world.load()
            assert again.returncode == 0, f"after {where}:\n{again.stdout}{again.stderr}"
            world.check(whole=True)
    print("fell in", dict(sorted(fell.items())))
    assert len(kills) == 40
    assert all(fell[phase] >= KILLS_PER_PHASE for phase in PHASES)
    check_by_sql(world)


def check_by_sql(world: LoadWorld) -> None:
    """What analysts see: through the metastore, with the newest columns, each row once."""
    topics = sorted(world.produced)
    query = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, count(*) AS n, count(DISTINCT kafka.partition, kafka.offset) AS places, "
        f"sum(id) AS ids FROM headrace.{topic}"
        for topic in topics
    )
    where = ["--data-dir", str(world.data_dir), "--metastore", world.addresses["metastore"]]
    run = world.command("sql", query, *where, "--format", "json")
    assert run.returncode == 0, run.stderr
    found = {row["topic"]: (int(row["n"]), int(row["places"]), int(row["ids"])) for row in json.loads(run.stdout)}
    expected = {
        topic: (len(known.rows), len(known.rows), sum(row["id"] for row in known.rows.values()))
        for topic, known in world.produced.items()
    }
    assert found == expected


PAUSES = (
    "plan:schemas:after",
    "read:job:after",
    "decide:link:before",
    "follow:schema:before",
    "follow:files:link:before",
)


@pytest.mark.timeout(900)
def test_a_driver_paused_over_another_ones_whole_run_changes_nothing(world: LoadWorld, tmp_path: Path) -> None:
    for number, point in enumerate(PAUSES):
        world.produce("orders", 30, fields=[*FIELDS, NOTE])
        world.produce(f"paused{number}", 10)
        slow = world.start_load(tmp_path / f"pause{number}.log", "--no-lease", point=point)
        pid = slow.wait_until_stopped()
        world.produce("orders", 10, fields=[*FIELDS, NOTE])
        fast = world.load("--no-lease")
        assert fast.returncode == 0, fast.stdout + fast.stderr
        world.check(whole=True)
        slow.wake(pid)
        assert slow.wait() == 0, slow.log.read_text()
        print(f"\npaused at {point}: {slow.log.read_text().splitlines()[-1]}", flush=True)
        world.check(whole=True)
    again = world.load()
    assert again.returncode == 0
    world.check(whole=True)
