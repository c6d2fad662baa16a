"""Time partitions are rewritten during loads: readers of the tables see no loss or duplicate after a kill, pause or
conflict, and replaced files stay as long as a query may read them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.loader.errors import StorageError
from headrace.loader.rewrite.choose import DAY_MS
from headrace.loader.rewrite.merge import MergeResult, MergeUnit
from headrace.loader.rewrite.retire import READERS_MS
from headrace.loader.rewrite.run import CompactSettings, RewritePorts, RewriteReport, accept_missing, compact, expire
from headrace.loader.run import run_load
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.work_unit import FileKind
from support.loader.loader_fakes import ORDER_V1, World
from support.loader.loader_samples import clean

TIME_PARTITION = "dt=2026-01-01/hr=00"
SETTINGS = CompactSettings(
    closed_ms_of=lambda topic: 0, bytes_target=1_000_000, block_bytes=1_000, codec_of=lambda topic: "null"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three loads of a topic, each with one file per topic partition."""
    made = World(tmp_path)
    made.registry.register("orders-value", 1, ORDER_V1)
    topic = made.topic("orders", [1, 1], [1])
    for _ in range(3):
        run_load(made.ports(), made.settings)
        topic.logs[0].append(1)
        topic.logs[1].append(1)
    run_load(made.ports(), made.settings)
    made.clock_ms += 3 * DAY_MS
    return made


def partition(world: World, time_partition: str = TIME_PARTITION, database: str = "headrace") -> Path | None:
    """The location of a time partition in the metastore."""
    values = tuple(part.partition("=")[2] for part in time_partition.split("/"))
    location = world.hive.parts.get((database, "orders"), {}).get(values)
    return Path(location.removeprefix("file://")) if location else None


def queried(world: World) -> list[tuple[int, int]]:
    """The rows that a query of the table reads, as (partition, offset)."""
    directory = partition(world)
    names = sorted(directory.iterdir()) if directory and directory.exists() else []
    return sorted(tuple(json.loads(line)) for path in names for line in path.read_text().splitlines())


def compacted(world: World) -> RewriteReport:
    return compact(world.rewrites(), ["orders"], SETTINGS, is_dry=False)


def test_compaction_makes_few_files_of_many_and_readers_see_the_same_rows(world: World) -> None:
    before = queried(world)
    assert before == world.produced("orders")
    report = compacted(world)
    (row,) = report.time_partitions
    assert (row.topic, row.time_partition, row.files, row.rows, row.made) == (
        "orders",
        TIME_PARTITION,
        8,
        len(before),
        1,
    )
    assert report.problems == {}
    assert queried(world) == before
    directory = partition(world)
    assert directory == world.warehouse / "orders" / "_g1" / TIME_PARTITION
    assert [path.name[:4] for path in directory.iterdir()] == ["1-5-"]
    known = world.log().read_state().topics["orders"]
    assert (known.data.files, known.data.records, known.generation) == (1, len(before), 1)
    assert compacted(world).time_partitions == (), "a single file is not merged"


def test_a_dry_run_commits_nothing(world: World) -> None:
    before = world.log().head()
    ports = world.rewrites()
    assert compact(ports, ["orders"], SETTINGS, is_dry=True).time_partitions == compacted(world).time_partitions
    assert world.log().head() == before + 1
    assert [row.time_partition for row in expire(world.rewrites(), {"orders": 1}, is_dry=True).time_partitions] == [
        TIME_PARTITION
    ]
    assert world.log().head() == before + 1


def test_time_partitions_that_may_get_messages_are_not_compacted(world: World) -> None:
    end = world.clock_ms - 3 * DAY_MS + 3_600_000
    late = dataclasses.replace(SETTINGS, closed_ms_of=lambda topic: world.clock_ms - end + 1)
    assert compact(world.rewrites(), ["orders"], late, is_dry=True).time_partitions == ()
    just = dataclasses.replace(SETTINGS, closed_ms_of=lambda topic: world.clock_ms - end)
    assert len(compact(world.rewrites(), ["orders"], just, is_dry=True).time_partitions) == 1


def test_a_late_message_is_added_to_the_current_generation(world: World) -> None:
    compacted(world)
    world.cluster.topics["orders"].logs[0].append(1)
    run_load(world.ports(), world.settings)
    assert queried(world) == world.produced("orders")
    assert compacted(world).time_partitions == (), "a late message does not rewrite a larger file"
    world.cluster.topics["orders"].logs[0].extend([1] * 8)
    run_load(world.ports(), world.settings)
    (row,) = compacted(world).time_partitions
    assert (row.files, row.rows) == (3, len(world.produced("orders")))
    assert queried(world) == world.produced("orders")
    assert partition(world) == world.warehouse / "orders" / "_g2" / TIME_PARTITION


def test_replaced_files_stay_for_a_day(world: World) -> None:
    old = world.warehouse / "orders" / TIME_PARTITION
    names = sorted(path.name for path in old.iterdir())
    compacted(world)
    world.clock_ms += READERS_MS - 1
    run_load(world.ports(), world.settings)
    assert sorted(path.name for path in old.iterdir()) == names, "a query may still read them"
    assert world.log().read_state().rewrites
    world.clock_ms += 1
    run_load(world.ports(), world.settings)
    assert not old.exists()
    assert queried(world) == world.produced("orders")
    state = world.log().read_state()
    assert state.rewrites == {}, "later loads do not examine them"
    run_load(world.ports(), world.settings)
    assert world.log().read_state() == state


def test_a_load_with_messages_states_the_deletion_in_its_commit(world: World) -> None:
    compacted(world)
    world.clock_ms += READERS_MS
    world.cluster.topics["orders"].logs[0].append(1)
    before = world.log().read_state().commit_number
    run_load(world.ports(), world.settings)
    state = world.log().read_state()
    assert (state.commit_number, state.rewrites) == (before + 1, {})


def test_replaced_files_are_found_by_one_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On S3 a request for each file would take minutes."""
    old = world.warehouse / "orders" / TIME_PARTITION
    listed: list[str] = []
    lengths = LocalFiles.lengths

    def counted(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        listed.append(directory)
        return lengths(files, directory)

    monkeypatch.setattr(LocalFiles, "lengths", counted)
    monkeypatch.setattr(LocalFiles, "length", None)
    compacted(world)
    ports = world.ports()
    listed.clear()
    assert len(tuple(old.iterdir())) > 1
    assert ports.retirement.retire(world.clock_ms + READERS_MS) == world.log().read_state().rewrites.keys()
    assert listed == [f"orders/{TIME_PARTITION}"]
    assert not old.exists()


def test_replaced_files_stay_while_the_metastore_is_unavailable(world: World) -> None:
    old = world.warehouse / "orders" / TIME_PARTITION
    compacted(world)
    world.clock_ms += READERS_MS
    world.hive.failure = MetastoreUnavailable("thrift://hive:9083", "refused")
    run_load(world.ports(), world.settings)
    assert old.exists()
    world.hive.failure = None
    run_load(world.ports(), world.settings)
    assert not old.exists()
    requests = world.hive.requests
    run_load(world.ports(), world.settings)
    assert world.hive.requests == requests, "a load without news sends no metastore request"


def test_a_partition_switched_back_by_a_resumed_driver_is_repaired_before_files_are_deleted(world: World) -> None:
    old = world.warehouse / "orders" / TIME_PARTITION
    compacted(world)
    world.clock_ms += READERS_MS
    old_location = f"file://{old}"
    world.hive.parts["headrace", "orders"]["2026-01-01", "00"] = old_location  # a resumed driver switched it back
    run_load(world.ports(), world.settings)
    assert partition(world) == world.warehouse / "orders" / "_g1" / TIME_PARTITION
    assert queried(world) == world.produced("orders")


def test_a_load_committed_during_a_compaction_stays_visible(world: World) -> None:
    ports = world.rewrites()
    merge = ports.run_merges

    def overtaken(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        world.cluster.topics["orders"].logs[1].append(1)
        run_load(world.ports(), world.settings)
        return merge(units)

    report = compact(dataclasses.replace(ports, run_merges=overtaken), ["orders"], SETTINGS, is_dry=False)
    assert report.commit_number == 6
    assert world.log().commit(6).planned_after == 4
    assert queried(world) == world.produced("orders")
    directory = partition(world)
    assert directory is not None and len(list(directory.iterdir())) == 2


def test_the_slower_of_two_compactions_is_refused(world: World) -> None:
    ports = world.rewrites()
    merge = ports.run_merges

    def overtaken(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        results = merge(units)
        compacted(world)
        return results

    report = compact(dataclasses.replace(ports, run_merges=overtaken), ["orders"], SETTINGS, is_dry=False)
    assert (report.commit_number, report.time_partitions) == (0, ())
    assert "another command was faster" in report.problems["orders"][0]
    assert queried(world) == world.produced("orders")


def overtaken(world: World, other: Callable[[], RewriteReport]) -> RewritePorts:
    """Returns a new driver. Another process runs `other` after the driver has chosen the files to rewrite."""

    def new_run_id() -> str:
        assert other().commit_number
        return "overtaken"

    return dataclasses.replace(world.rewrites(), new_run_id=new_run_id)


def test_expire_reports_only_removals_that_were_committed(world: World) -> None:
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2])
    run_load(world.ports(), world.settings)
    report = expire(overtaken(world, lambda: compacted(world)), {"clicks": 1, "orders": 1}, is_dry=False)
    assert report.commit_number == world.log().head()
    assert [(row.topic, row.files) for row in report.time_partitions] == [("clicks", 1)]
    assert list(report.problems) == ["orders"]


def test_accept_missing_reports_only_removals_that_were_committed(world: World) -> None:
    min((world.warehouse / "orders" / TIME_PARTITION).iterdir()).unlink()
    ports = overtaken(world, lambda: expire(world.rewrites(), {"orders": 1}, is_dry=False))
    report = accept_missing(ports, "orders", [FileKind.DATA], "", is_dry=False)
    assert (report.time_partitions, list(report.problems)) == ((), ["orders"])


def test_a_compaction_voided_during_the_merge_is_refused_and_reported(world: World) -> None:
    ports = world.rewrites()
    merge = ports.run_merges

    def voiding_merges(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        results = merge(units)
        world.log().try_commit(clean("c", units[0].run_id))
        return results

    report = compact(dataclasses.replace(ports, run_merges=voiding_merges), ["orders"], SETTINGS, is_dry=False)
    assert report.commit_number == 0
    assert "the run was voided" in report.problems["orders"][0]
    assert queried(world) == world.produced("orders")


def test_a_time_partition_with_a_damaged_source_is_not_compacted(world: World) -> None:
    def damaged(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        return [MergeResult(unit.task, (), error="f.avro is damaged") for unit in units]

    ports = dataclasses.replace(world.rewrites(), run_merges=damaged)
    report = compact(ports, ["orders"], SETTINGS, is_dry=False)
    assert report.time_partitions == ()
    ((problem,),) = report.problems.values()
    assert re.match(rf"{TIME_PARTITION} .*: f\.avro is damaged$", problem)
    assert list(report.problems) == ["orders"]
    assert queried(world) == world.produced("orders")


def test_compact_reports_only_merged_files_of_a_time_partition(world: World) -> None:
    settings = dataclasses.replace(SETTINGS, bytes_target=32)  # too small for all files of the time partition
    ports = world.rewrites()

    def damaged(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        first, second = units
        assert (len(first.sources), len(second.sources)) == (3, 4)
        return [MergeResult(first.task, (), error="f.avro is damaged"), *ports.run_merges([second])]

    dry = compact(ports, ["orders"], settings, is_dry=True)
    assert sum(row.files for row in dry.time_partitions) == 7
    report = compact(dataclasses.replace(ports, run_merges=damaged), ["orders"], settings, is_dry=False)
    assert [(row.files, row.rows, row.made) for row in report.time_partitions] == [(4, 4, 1)]
    assert list(report.problems) == ["orders"]
    assert queried(world) == world.produced("orders")


def test_expire_removes_the_partition_and_later_the_files(world: World) -> None:
    assert expire(world.rewrites(), {"orders": 3}, is_dry=False).time_partitions == (), (
        "not old enough by a millisecond"
    )
    world.clock_ms += DAY_MS
    report = expire(world.rewrites(), {"orders": 3}, is_dry=False)
    assert [(row.time_partition, row.files, row.made) for row in report.time_partitions] == [(TIME_PARTITION, 8, 0)]
    assert partition(world) is None
    assert (world.warehouse / "orders" / TIME_PARTITION).exists()
    world.clock_ms += READERS_MS
    run_load(world.ports(), world.settings)
    assert not (world.warehouse / "orders" / TIME_PARTITION).exists()
    known = world.log().read_state().topics["orders"]
    assert (known.data.files, known.data.records) == (0, 0)


def test_a_message_for_an_expired_day_restores_it_without_the_old_rows(world: World) -> None:
    world.clock_ms += DAY_MS
    expire(world.rewrites(), {"orders": 3}, is_dry=False)
    world.cluster.topics["orders"].logs[0].append(1)
    run_load(world.ports(), world.settings)
    assert queried(world) == [world.produced("orders")[len(world.cluster.topics["orders"].logs[0]) - 1]]


def test_accept_missing_commits_the_removal_of_missing_files(world: World) -> None:
    directory = world.warehouse / "orders" / TIME_PARTITION
    lost = sorted(directory.iterdir())[0]
    rows = len(lost.read_text().splitlines())
    lost.unlink()
    report = accept_missing(world.rewrites(), "orders", [FileKind.DATA], "", is_dry=False)
    assert [(row.time_partition, row.files, row.rows) for row in report.time_partitions] == [(TIME_PARTITION, 1, rows)]
    assert len(queried(world)) == len(world.produced("orders")) - rows
    assert accept_missing(world.rewrites(), "orders", [FileKind.DATA], "", is_dry=False).time_partitions == ()
    for path in (world.warehouse / "_headrace" / "cursor").iterdir():
        path.unlink()
    report_of_load = run_load(world.ports(), world.settings)
    assert not report_of_load.has_findings
    assert not [note for note in report_of_load.notes if "headrace accept-missing" in note], "the loss was accepted"


def test_a_directory_deleted_by_users_stops_nothing_even_without_cursors(world: World) -> None:
    world.cluster.topics["orders"].logs[0].append(1)
    run_load(world.ports(), world.settings)
    for path in (world.warehouse / "orders" / TIME_PARTITION).glob("0-1-*"):
        path.unlink()
    for path in (world.warehouse / "_headrace" / "cursor").iterdir():
        path.unlink()
    world.cluster.topics["orders"].logs[0].append(1)
    report = run_load(world.ports(), world.settings)
    assert [note for note in report.notes if "headrace accept-missing orders --time-partition" in note]
    after = run_load(world.ports(), world.settings)
    assert not [note for note in after.notes if "headrace accept-missing" in note], "the appliers report it once"
    (problem,) = after.problems["orders"]
    assert problem.startswith("2 files are missing: ")


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda world: compact(world.rewrites(), [], SETTINGS, is_dry=False),
        lambda world: expire(world.rewrites(), {}, is_dry=False),
    ],
)
def test_a_rewrite_reports_missing_files(world: World, rewrite: Callable[[World], RewriteReport]) -> None:
    for path in (world.warehouse / "orders" / TIME_PARTITION).glob("0-1-*"):
        path.unlink()
    for path in (world.warehouse / "_headrace" / "cursor").iterdir():
        path.unlink()
    assert [note for note in rewrite(world).notes if "headrace accept-missing orders --time-partition" in note]
    assert not [note for note in run_load(world.ports(), world.settings).notes if "headrace accept-missing" in note]


@pytest.mark.parametrize("lost", ["cursor", "index", "checkpoint"])
def test_hints_lost_after_rewrites_change_nothing(world: World, lost: str) -> None:
    compacted(world)
    world.cluster.topics["orders"].logs[0].append(1)
    run_load(world.ports(), world.settings)
    world.clock_ms += READERS_MS
    run_load(world.ports(), world.settings)
    for path in (world.warehouse / "_headrace" / lost).rglob("*.json"):
        path.unlink()
    world.cluster.topics["orders"].logs[1].append(1)
    report = run_load(world.ports(), world.settings)
    assert report.problems == {}
    assert not [note for note in report.notes if "headrace accept-missing" in note]
    assert queried(world) == world.produced("orders")


@pytest.mark.parametrize("step", ["link_or_copy", "publish", "persist"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compaction_killed_at_any_call_is_finished_or_repeated(
    world: World, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.topics["orders"].logs[0].append(1)
    ports = world.rewrites()
    port = ports.staging if step == "persist" else ports.files
    original_step: Callable[..., object] = getattr(type(port), step)

    def killed(*arguments: object) -> object:
        if when == "after":
            original_step(*arguments)
        raise KeyboardInterrupt

    merge = ports.run_merges

    def run_merges_during_load(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        run_load(world.ports(), world.settings)
        monkeypatch.setattr(type(port), step, killed)
        return merge(units)

    with pytest.raises(KeyboardInterrupt):
        compact(dataclasses.replace(ports, run_merges=run_merges_during_load), ["orders"], SETTINGS, is_dry=False)
    monkeypatch.undo()
    run_load(world.ports(), world.settings)
    assert queried(world) == world.produced("orders")
    compacted(world)
    assert queried(world) == world.produced("orders")


def test_a_disk_error_during_the_fsync_of_merged_files_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = world.rewrites()

    def refuse(*_: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(type(ports.staging), "persist", refuse)
    with pytest.raises(StorageError):
        compact(ports, ["orders"], SETTINGS, is_dry=False)
    assert world.log().head() == 4


def test_a_dropped_table_comes_back_with_its_rewritten_partitions(world: World) -> None:
    compacted(world)
    world.hive.tables.clear()
    world.hive.parts.clear()
    world.cluster.topics["orders"].logs[0].append(1)
    run_load(world.ports(), world.settings)
    assert queried(world) == world.produced("orders")
