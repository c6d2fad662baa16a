"""Compaction of the files that loads have added: it rewrites each byte a limited number of times and misses no file."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.rewrite import backlog as backlogs
from headrace.loader.rewrite.backlog import BACKLOG_PATH, RETRY_MS, compact_backlog, is_turn_due, read_backlog
from headrace.loader.rewrite.choose import DAY_MS, SMALL_FILE_RATIO, merge_groups
from headrace.loader.rewrite.merge import MergeResult
from headrace.loader.rewrite.run import CompactSettings, RewriteReport
from headrace.loader.run import run_load
from support.examples import examples
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World
from support.loader.task_world import TaskWorld

HOUR_MS = 3_600_000
DELAY_MS = 6 * HOUR_MS
TARGET = 1_000_000
SETTINGS = CompactSettings(lambda topic: DELAY_MS, TARGET, 1_000, lambda topic: "null")
ONE_DAY = "dt=2026-01-01"


class Partition:
    """The lengths of the files of one time partition. Merged files are not compressed better."""

    def __init__(self) -> None:
        self.files: list[IndexedFile] = []
        self.written = self.rewritten = self.count = 0

    def add(self, length: int, generation: int = 0) -> None:
        self.count += 1
        self.files.append(IndexedFile(f"{generation}-{self.count}-w-0-0.avro", self.count, 0, length, "", 1, ()))
        self.written += length if not generation else 0

    def compact(self) -> int:
        groups = merge_groups(self.files, TARGET)
        for group in groups:
            self.files = [file for file in self.files if file not in group]
            self.add(sum(file.length for file in group), generation=1)
            self.rewritten += sum(file.length for file in group)
        return len(groups)

    def check(self, length_min: int) -> None:
        doublings = math.log2(TARGET / length_min)
        assert self.rewritten <= (2 + doublings) * self.written
        small = [file for file in self.files if file.length < SMALL_FILE_RATIO * TARGET]
        assert len(small) <= 1 + doublings
        assert sum(file.length for file in self.files) == self.written


@settings(max_examples=examples(2))
@given(turns=st.lists(st.lists(st.integers(100, 600_000), max_size=6), max_size=40))
def test_rewritten_bytes_are_bounded_and_compaction_converges(turns: list[list[int]]) -> None:
    partition = Partition()
    for lengths in turns:
        for length in lengths:
            partition.add(length)
        partition.compact()
    turns_left = 0
    while partition.compact():
        turns_left += 1
    assert turns_left <= 2
    partition.check(100)


@pytest.mark.parametrize("first", [100, 400_000, 2_000_000])
def test_a_year_of_late_messages_rewrites_each_byte_a_limited_number_of_times(first: int) -> None:
    """Adds a small file every six hours."""
    partition, chance = Partition(), random.Random(first)
    partition.add(first)
    partition.add(100)
    partition.compact()
    most = 0
    for _ in range(4 * 365):
        partition.add(chance.randrange(100, 3_000))
        partition.compact()
        most = max(most, len(partition.files))
    partition.check(100)
    full = partition.written / (SMALL_FILE_RATIO * TARGET)
    assert most <= 2 + full + math.log2(TARGET / 100)
    assert partition.rewritten <= 15 * partition.written


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic with four files in one closed time partition."""
    made = World(tmp_path)
    made.registry.register("orders-value", 1, ORDER_V1)
    topic = made.topic("orders", [1, 1], [1])
    for _ in range(2):
        run_load(made.ports(), made.settings)
        topic.logs[0].append(1)
        topic.logs[1].append(1)
    run_load(made.ports(), made.settings)
    made.clock_ms += 3 * DAY_MS
    return made


def delay_ms_of(topic: str) -> int:
    return DELAY_MS


def turn(world: World, *, is_stopped: Callable[[], bool] = lambda: False) -> RewriteReport:
    return compact_backlog(world.rewrites(), SETTINGS, delay_ms_of, waits=True, is_stopped=is_stopped)


def late_message(world: World, topic: str = "orders", count: int = 1) -> None:
    world.cluster.topics[topic].logs[0].extend([1] * count)
    run_load(world.ports(), world.settings)


def rows(world: World) -> list[tuple[int, int]]:
    """The rows that a query of the table reads, as (partition, offset)."""
    locations = world.hive.parts["headrace", "orders"].values()
    paths = [path for one in locations for path in Path(one.removeprefix("file://")).iterdir()]
    return sorted(tuple(json.loads(line)) for path in paths for line in path.read_text().splitlines())


def test_a_turn_examines_only_days_that_loads_have_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert turn(world).time_partitions[0].files == 6
    examined: list[str] = []
    groups_of_day = backlogs.groups_of_day

    def recorded(ports: object, topic: str, *rest: object) -> object:
        examined.append(topic)
        return groups_of_day(ports, topic, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(backlogs, "groups_of_day", recorded)
    assert turn(world) == RewriteReport()
    assert examined == [], "the files of a compaction need no examination"
    late_message(world)
    assert turn(world) == RewriteReport()
    assert examined == [], "a turn waits after late messages"
    world.clock_ms += DELAY_MS
    assert turn(world) == RewriteReport()
    assert examined == ["orders"]
    turn(world)
    assert examined == ["orders"]


def test_late_messages_are_merged_after_the_delay_and_by_the_command_at_once(world: World) -> None:
    turn(world)
    late_message(world, count=40)
    assert turn(world).time_partitions == ()
    ports = world.rewrites()
    (planned,) = compact_backlog(ports, SETTINGS, delay_ms_of, waits=False, is_dry=True).time_partitions
    (merged,) = compact_backlog(world.rewrites(), SETTINGS, delay_ms_of, waits=False).time_partitions
    assert (planned.files, planned.rows) == (merged.files, merged.rows) == (2, len(world.produced("orders")))
    assert rows(world) == world.produced("orders")


def test_weeks_of_late_messages_leave_few_files_and_bounded_disk_use(world: World) -> None:
    directory = world.warehouse / "orders"
    read = 0
    for _ in range(60):
        late_message(world)
        world.clock_ms += DELAY_MS
        read += sum(one.bytes for one in turn(world).time_partitions)
        live = world.log().read_state().topics["orders"].data
        assert live.files <= 6
        on_disk = {path.stat().st_ino: path.stat().st_size for path in directory.rglob("*-*") if path.is_file()}
        # Replaced files stay for a day, so the files of four turns are on the disk.
        assert sum(on_disk.values()) <= 6 * live.bytes
        assert len(list(directory.glob("_g*"))) <= 6
    assert rows(world) == world.produced("orders")
    assert read <= 8 * live.bytes


def test_open_time_partitions_stay_in_the_backlog(world: World) -> None:
    world.clock_ms -= 3 * DAY_MS
    assert turn(world) == RewriteReport()
    log = world.log()
    log.read_state()
    (due_ms,) = read_backlog(log, delay_ms_of).days["orders"].values()
    assert not is_turn_due(log, delay_ms_of, due_ms - 1)
    assert is_turn_due(log, delay_ms_of, due_ms)
    world.clock_ms = due_ms
    assert turn(world).time_partitions[0].files == 6


@pytest.mark.parametrize("content", [None, b"", b'{"body": {}}'])
def test_a_lost_or_damaged_backlog_examines_every_day(world: World, content: bytes | None) -> None:
    late_message(world)
    path = world.warehouse / "_headrace" / BACKLOG_PATH
    if content is not None:
        path.write_bytes(content)
    assert is_turn_due(world.log(), delay_ms_of, world.clock_ms)
    assert turn(world).time_partitions[0].files == 7
    assert not is_turn_due(world.log(), delay_ms_of, world.clock_ms)


def test_a_backlog_of_another_log_is_ignored(world: World) -> None:
    turn(world)
    late_message(world, count=40)
    path = world.warehouse / "_headrace" / BACKLOG_PATH
    log = world.log()
    log.read_state()
    foreign = dataclasses.replace(read_backlog(log, delay_ms_of), sha256="00" * 32)
    path.write_bytes(backlogs.write_document(foreign))
    assert turn(world).time_partitions[0].files == 2, "all days are examined at once"


def test_a_topic_that_was_excluded_is_examined_once_it_is_included(world: World) -> None:
    excluded: set[str] = {"orders"}

    def delay(topic: str) -> int | None:
        return None if topic in excluded else DELAY_MS

    for _ in range(2):
        late_message(world)
        assert compact_backlog(world.rewrites(), SETTINGS, delay, waits=True) == RewriteReport()
    assert not is_turn_due(world.log(), delay, world.clock_ms)
    excluded.clear()
    assert is_turn_due(world.log(), delay, world.clock_ms)
    assert compact_backlog(world.rewrites(), SETTINGS, delay, waits=True).time_partitions[0].files == 8


def test_a_stopped_turn_continues_in_the_next_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "c"]
    for number, name in enumerate(names, 2):
        world.registry.register(f"{name}-value", number, ORDER_V1)
        world.topic(name, [number, number], [number])
    for _ in range(2):
        run_load(world.ports(), world.settings)
        for number, name in enumerate(names, 2):
            world.cluster.topics[name].logs[0].append(number)
    monkeypatch.setattr("headrace.loader.rewrite.run.PORTION_GROUPS_MAX", 1)
    commits = world.log().head()
    merged: list[str] = []
    for _ in names:
        head = world.log().head()
        report = turn(world, is_stopped=lambda head=head: world.log().head() > head)  # type: ignore[misc]
        merged += [one.topic for one in report.time_partitions]
        assert len(merged) == world.log().head() - commits
    merged += [one.topic for one in turn(world).time_partitions]
    assert merged == ["a", "b", "c", "orders"]
    assert turn(world) == RewriteReport()


def test_a_turn_stopped_at_once_examines_nothing_and_forgets_nothing(world: World) -> None:
    assert turn(world, is_stopped=lambda: True) == RewriteReport()
    assert turn(world).time_partitions[0].files == 6


def test_a_failed_merge_is_tried_again_after_a_while(world: World) -> None:
    ports = dataclasses.replace(
        world.rewrites(), run_merges=lambda units: [MergeResult(unit.task, (), error="is damaged") for unit in units]
    )
    report = compact_backlog(ports, SETTINGS, delay_ms_of, waits=True)
    assert "is damaged" in report.problems["orders"][0]
    assert not list((world.warehouse / "_headrace" / "staging").glob("*/*-merged")), "no file is left in staging"
    assert turn(world) == RewriteReport()
    world.clock_ms += RETRY_MS
    assert turn(world).time_partitions[0].files == 6


def test_files_of_two_schemas_are_merged_once(tmp_path: Path) -> None:
    """Each schema keeps a file of its own; merging these files again would change nothing."""
    world = TaskWorld(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    topic = world.topic("orders", [1] * 3)
    run_load(world.ports(), world.settings)
    topic.logs[0] += [1] * 3
    run_load(world.ports(), world.settings)
    world.registry.register("orders-value", 2, ORDER_V2)
    for _ in range(2):
        topic.logs[0] += [2] * 3
        run_load(world.ports(), world.settings)
    world.clock_ms += 3 * DAY_MS
    before = world.rows("orders")
    report = turn(world)
    assert {one.files for one in report.time_partitions} == {4}
    assert world.log().read_state().topics["orders"].data.files == 2 * len(report.time_partitions)
    head = world.log().head()
    (world.warehouse / "_headrace" / BACKLOG_PATH).unlink()
    assert turn(world) == RewriteReport()
    assert world.log().head() == head
    assert world.rows("orders") == before
