"""The partitioning of a topic's tables changes while loads run: readers of the tables see every message once, before,
during and after it, also after a kill."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.ops import AddPartitions, CreateTable, DropTable, RenameTable
from headrace.hive_ddl.table import COMPLETE_UNTIL
from headrace.loader.apply.repair import DifferenceKind, Repair
from headrace.loader.commit import prepare
from headrace.loader.commit.conflict import ConflictRule
from headrace.loader.rewrite import repartition as module
from headrace.loader.rewrite.merge import MergeResult, MergeUnit
from headrace.loader.rewrite.repartition import RepartitionReport, RepartitionSettings, repartition
from headrace.loader.rewrite.retire import READERS_MS
from headrace.loader.rewrite.run import CompactSettings, RewritePorts, compact
from headrace.loader.work_unit import FileKind
from support.loader.backfill_world import BAD, HOURS, WITH_NOTE, BackfillWorld

TABLE, QUARANTINE = ("headrace", "orders"), ("headrace_quarantine", "orders")


@pytest.fixture
def world(tmp_path: Path) -> BackfillWorld:
    """Three loads of a topic with three hours, two partitions, two schemas and an unreadable message."""
    made = BackfillWorld(tmp_path)
    topic = made.topic("orders", [1] * 6, [1, BAD, 1])
    made.load()
    made.registry.register("orders-value", 2, WITH_NOTE)
    for _ in range(2):
        topic.logs[0].extend([1, 2, 2])
        topic.logs[1].append(2)
        made.load()
    assert made.is_complete()
    return made


def run(
    world: BackfillWorld, partition_by: str, ports: RewritePorts | None = None, **changes: object
) -> RepartitionReport:
    settings = RepartitionSettings(partition_by, 2**20, 1_000, lambda topic: "null", lambda topic: ("timestamp",))
    ports = ports or world.rewrites()
    return repartition(ports, "orders", settings, is_dry=bool(changes.get("is_dry", False)))


def partitions(world: BackfillWorld, table: tuple[str, str] = TABLE) -> Counter[tuple[str, ...]]:
    return Counter(world.hive.parts[table].keys())


def hours_of_rows(world: BackfillWorld) -> dict[str, list[tuple[int, int]]]:
    return {hour: sorted(_positions(world.files(time_partition=hour))) for hour in HOURS}


def _positions(paths: Sequence[Path]) -> list[tuple[int, int]]:
    found = []
    for path in paths:
        with path.open("rb") as file:
            found += [(row["kafka"]["partition"], row["kafka"]["offset"]) for row in fastavro.reader(file)]
    return found


def test_files_and_tables_by_hour_become_files_and_tables_by_day_and_back(world: BackfillWorld) -> None:
    before = hours_of_rows(world)
    complete_until = world.hive.tables[TABLE].properties.get(COMPLETE_UNTIL)
    report = run(world, "day")
    assert world.hive.tables[TABLE].properties.get(COMPLETE_UNTIL) == complete_until is not None
    assert report.problems == () and report.after is not None
    assert (report.before.partition_by, report.after.partition_by) == ("hour", "day")
    assert (report.before.rows, report.before.files > report.after.files) == (report.after.rows, True)
    assert world.hive.tables[TABLE].partition_columns == world.hive.tables[QUARANTINE].partition_columns == ("dt",)
    assert partitions(world) == {("2026-01-01",): 1}
    assert world.is_complete()
    back = run(world, "hour")
    assert back.problems == ()
    assert world.hive.tables[TABLE].partition_columns == ("dt", "hr")
    assert partitions(world) == {("2026-01-01", f"0{hour}"): 1 for hour in range(3)}
    assert world.is_complete()
    assert hours_of_rows(world) == before


@pytest.mark.parametrize("partition_by", ["day", "hour"])
def test_loads_compaction_and_retirement_continue_in_the_new_partitioning(
    world: BackfillWorld, partition_by: str
) -> None:
    run(world, "day")
    if partition_by == "hour":
        run(world, "hour")
    world.cluster.topics["orders"].logs[0].extend([2, 2, 2, BAD])
    report = world.load()
    names = {one.time_partition for one in world.log().commit(report.commit_number).topics["orders"].files}
    assert {"/" in name for name in names} == {partition_by == "hour"}
    settings = CompactSettings(lambda topic: 0, 2**20, 1_000, lambda topic: "null")
    world.clock_ms += 3 * READERS_MS
    assert compact(world.rewrites(), ["orders"], settings, is_dry=False).problems == {}
    world.clock_ms += READERS_MS
    for _ in range(2):
        world.cluster.topics["orders"].logs[0].append(2)
        world.load()
    assert world.is_complete()
    live = {*world.files(), *world.files(FileKind.QUARANTINE)}
    assert live == {path for path in world.warehouse.rglob("*.avro") if not {"_headrace", "_catalog"} & {*path.parts}}


def test_a_dry_run_changes_nothing_and_states_the_layout_by_day(world: BackfillWorld) -> None:
    before = world.log().head()
    planned = run(world, "day", is_dry=True)
    assert world.log().head() == before
    assert planned.after is not None and not planned.is_estimate
    assert planned.after.time_partitions == 2  # of the table and of the quarantine
    again = run(world, "hour", is_dry=True)
    assert again.after is None, "the table is partitioned by hour already"
    assert run(world, "hour").commit_number == 0


def test_files_of_a_load_during_the_copy_are_copied_too(world: BackfillWorld) -> None:
    ports = world.rewrites()
    merged: list[int] = []

    def during_load(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        results = ports.run_merges(units)
        if not merged:
            world.cluster.topics["orders"].logs[0].extend([2, 2, BAD])
            world.load()
        merged.append(sum(len(unit.sources) for unit in units))
        return results

    report = run(world, "day", dataclasses.replace(ports, run_merges=during_load))
    assert report.problems == () and report.commit_number
    assert len(merged) == 2 and merged[1] < merged[0], "only the new files are copied in the second attempt"
    assert world.is_complete()


def test_topic_that_changes_during_every_copy_stays_as_it_is(
    world: BackfillWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 1)
    ports = world.rewrites()

    def during_load(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        world.cluster.topics["orders"].logs[0].extend([2, 2])
        world.load()
        return ports.run_merges(units)

    report = run(world, "day", dataclasses.replace(ports, run_merges=during_load))
    assert report.commit_number == 0 and "changed the topic 1 times" in report.problems[0]
    assert world.run_ids() == frozenset() and world.is_complete()


def test_files_that_a_compaction_replaces_during_the_copy_are_copied_from_the_merged_file(world: BackfillWorld) -> None:
    ports = world.rewrites()
    settings = CompactSettings(lambda topic: 0, 2**20, 1_000, lambda topic: "null")
    runs: list[int] = []

    def during_compaction(units: Sequence[MergeUnit]) -> Sequence[MergeResult]:
        results = ports.run_merges(units)
        if not runs:
            world.clock_ms += 3 * READERS_MS
            assert compact(world.rewrites(), ["orders"], settings, is_dry=False).commit_number
        runs.append(1)
        return results

    assert run(world, "day", dataclasses.replace(ports, run_merges=during_compaction)).problems == ()
    assert len(runs) == 2
    assert world.is_complete()


def test_a_load_that_was_planned_before_loads_its_messages_again_into_the_new_partitioning(
    world: BackfillWorld,
) -> None:
    world.cluster.topics["orders"].logs[0].extend([2, 2])
    pool = world.pool

    def during_repartition(units: Sequence[object]) -> object:
        world.pool = pool
        results = pool(units)  # type: ignore[arg-type]
        assert run(world, "day").commit_number
        return results

    world.pool = during_repartition  # type: ignore[assignment]
    overtaken = world.load()
    assert ConflictRule.PARTITIONING_CHANGED.value in f"{overtaken.conflict} {overtaken.notes}"
    assert world.load().loaded[0].rows == 2
    assert world.is_complete()


def test_rows_without_offsets_are_not_divided_by_hour(tmp_path: Path) -> None:
    world = BackfillWorld(tmp_path)
    world.policy = dataclasses.replace(world.policy, partition_by="day", kafka_column="none")
    world.topic("orders", [1, 1, 1])
    world.load()
    report = run(world, "hour")
    assert report.commit_number == 0 and "kafka_column" in report.problems[0]
    assert world.run_ids() == frozenset()


def test_damaged_file_stops_the_command_before_its_commit(world: BackfillWorld) -> None:
    (damaged, *_) = world.files()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    head = world.log().head()
    report = run(world, "day")
    assert report.commit_number == 0 and damaged.name in report.problems[0]
    assert world.log().head() == head and world.run_ids() == frozenset()


def test_commit_beyond_its_limit_is_refused_with_advice(world: BackfillWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_BYTES_MAX", 1_000)
    assert prepare.COMMIT_BYTES_MAX > 1_000
    report = run(world, "day")
    assert report.commit_number == 0 and "headrace compact orders" in report.problems[0]
    assert world.is_complete()


def test_table_keeps_its_rows_until_the_new_one_is_complete(world: BackfillWorld) -> None:
    """Each state of the metastore between two operations shows all rows of the old table, all rows, or no table."""
    expected = world.produced("orders")
    execute, states = world.hive.execute, []

    def observed(op: object) -> None:
        execute(op)  # type: ignore[arg-type]
        if isinstance(op, CreateTable | AddPartitions | DropTable | RenameTable):
            rows = sorted([*world.rows("orders"), *world.quarantined("orders")])
            is_missing = not {TABLE, QUARANTINE} <= world.hive.tables.keys()
            states.append("missing" if is_missing else "whole" if rows == expected else "part")

    world.hive.execute = observed  # type: ignore[method-assign]
    run(world, "day")
    assert [one for one in states if one != "whole"] == ["missing", "missing"]


@pytest.mark.parametrize("operation", [CreateTable, AddPartitions, DropTable, RenameTable])
@pytest.mark.parametrize("is_after", [False, True])
def test_killed_replacement_of_a_table_is_finished_by_the_next_load(
    world: BackfillWorld, operation: type, is_after: bool
) -> None:
    execute, seen = world.hive.execute, []

    def killed(op: object) -> None:
        if isinstance(op, operation):
            seen.append(op)
            if len(seen) == 1 and not is_after:
                raise MetastoreUnavailable("thrift://hive:9083", "killed")
        execute(op)  # type: ignore[arg-type]
        if isinstance(op, operation) and len(seen) == 1 and is_after:
            raise MetastoreUnavailable("thrift://hive:9083", "killed")

    world.hive.execute = killed  # type: ignore[method-assign]
    report = run(world, "day")
    assert report.commit_number
    world.hive.execute = execute  # type: ignore[method-assign]
    if TABLE in world.hive.tables and world.hive.tables[TABLE].partition_columns != ("dt",):
        check_old_table_is_pending(world)
    world.cluster.topics["orders"].logs[0].append(2)
    assert world.load().problems == {}
    assert world.hive.tables[TABLE].partition_columns == ("dt",)
    assert world.is_complete()


def check_old_table_is_pending(world: BackfillWorld) -> None:
    """Checks the old partitioning is no difference that an operator must repair, unlike the table of another topic."""
    repair = Repair(world.log(), lambda: world.hive, world.tables(), world._new_run_id, deep=True)
    (found, *_) = repair.compare("orders")
    assert (found.kind, found.is_repairable) == (DifferenceKind.PENDING, False)
    assert "partitioned by dt, hr" in found.message
    ours = world.hive.tables[TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(ours, location="file:/elsewhere")
    (found, *_) = repair.compare("orders")
    assert found.kind is DifferenceKind.TABLE
    world.hive.tables[TABLE] = ours


def test_old_table_of_a_restored_metastore_is_replaced_again(world: BackfillWorld) -> None:
    tables, parts = dict(world.hive.tables), {key: dict(value) for key, value in world.hive.parts.items()}
    run(world, "day")
    world.hive.tables, world.hive.parts = tables, parts
    check_old_table_is_pending(world)
    world.is_session_open = True
    world.load()
    assert world.hive.tables[TABLE].partition_columns == ("dt",)
    assert world.rows("orders") + world.quarantined("orders") and world.is_complete()
