"""A backfill replaces files from the brokers: every message stays a row or quarantined, once, despite concurrent
changes, and no file is replaced whose messages the brokers lack."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.audit.row import AuditOutcome
from headrace.cli import main
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.alarms import accept, open_alarms
from headrace.loader.inspect.locate import OffsetStatus, locate
from headrace.loader.rewrite.backfill_report import BackfillPeriod
from headrace.loader.rewrite.choose import DAY_MS
from headrace.loader.rewrite.retire import READERS_MS
from headrace.loader.rewrite.run import CompactSettings, accept_missing, compact, expire
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import FileKind, UnitResult, WorkUnit
from support.loader import task_world
from support.loader.backfill_world import ALL, BAD, DAY, HOURS, TIMED, WITH_NOTE, BackfillWorld
from support.loader.task_world import HOLE

MERGED = CompactSettings(lambda topic: 0, 2**20, 2**20, lambda topic: "snappy")
ONE_HOUR = BackfillPeriod(HOURS[0], HOURS[0])


@pytest.fixture
def world(tmp_path: Path) -> BackfillWorld:
    """Offsets 0 to 8 of partition 0 and 0 to 3 of partition 1, in two loads; offset 4 of the first is in quarantine."""
    world = BackfillWorld(tmp_path)
    topic = world.topic("orders", [1, 1, 1, 1, BAD], [1, 1])
    world.load()
    topic.logs[0] += [1] * 4
    topic.logs[1] += [1] * 2
    assert world.load().problems == {}
    assert world.is_complete()
    world.clock_ms += DAY_MS
    return world


def damage(world: BackfillWorld) -> None:
    """Deletes one file of the first hour and truncates another."""
    missing, truncated = world.files(time_partition=HOURS[0])[:2]
    missing.unlink()
    truncated.write_bytes(truncated.read_bytes()[:-3])
    assert len(world.findings()) == 2


def test_backfill_replaces_damaged_and_missing_files(world: BackfillWorld) -> None:
    damage(world)
    audited = world.audit("orders")
    report = world.backfill(ONE_HOUR)
    assert report.problems == ()
    assert world.is_complete()
    assert world.quarantined("orders") == [(0, 4)]
    assert (report.rows, report.quarantined, report.quarantined_before) == (12, 0, 0)
    assert sum(one.rows for one in report.time_partitions) == 12
    assert world.audit("orders") == audited, "the audit does not change"
    known = world.log().read_state().topics["orders"]
    assert (known.data.records, known.quarantine.records, known.generation) == (12, 1, 1)
    assert world.run_ids() == frozenset()
    assert world.load().problems == {}
    assert world.is_complete()


def test_backfill_replaces_all_files_that_share_offsets_and_no_others(world: BackfillWorld) -> None:
    """The requested hour has two files. The ranges of these files also have messages in two other hours."""
    before = world.files()
    report = world.backfill(ONE_HOUR)
    assert report.files_requested == 2
    assert [(one.time_partition, one.files) for one in report.time_partitions] == [(hour, 2) for hour in HOURS]
    assert [(one.partition, one.first, one.last, one.offsets) for one in report.offsets] == [(0, 0, 8, 8), (1, 0, 3, 4)]
    assert not set(before) & set(world.files())
    rewrites = world.log().commit(world.log().head()).topics["orders"].rewrites
    assert {one.kind for one in rewrites} == {FileKind.DATA}, "the quarantine file shares no offset"


def test_backfill_does_not_change_files_of_other_loads(tmp_path: Path) -> None:
    world = BackfillWorld(tmp_path)
    topic = world.topic("orders", [1])  # offset 0, in the first hour
    world.load()
    topic.logs[0] += [1, 1]  # in the second and third
    world.load()
    before = {path.name for path in world.files()}
    report = world.backfill(BackfillPeriod(HOURS[1], HOURS[1]))
    assert [(one.first, one.last, one.offsets) for one in report.offsets] == [(1, 1, 1)]
    after = {path.name for path in world.files()}
    assert len(before & after) == 2
    assert world.is_complete()


def test_a_dry_run_commits_nothing_and_has_the_same_report(world: BackfillWorld) -> None:
    damage(world)
    head = world.log().head()
    dry = world.backfill(is_dry=True)
    assert (world.log().head(), world.run_ids(), world.lines) == (head, frozenset(), [])
    done = world.backfill()
    assert (dry.time_partitions, dry.offsets) == (done.time_partitions, done.offsets)
    assert dry.files_requested == done.files_requested
    assert (dry.commits, done.commits) == ((), (3,))
    commit = world.log().commit(3)
    assert (commit.kind, commit.topics["orders"].ranges) == (CommitKind.BACKFILL, ())


def test_a_second_backfill_gives_the_same_rows(world: BackfillWorld) -> None:
    world.backfill()
    rows = world.rows("orders")
    assert world.backfill().commits == (4,)
    assert world.rows("orders") == rows
    assert world.is_complete()


def test_backfill_of_a_period_without_files_does_nothing(world: BackfillWorld) -> None:
    report = world.backfill(BackfillPeriod("dt=2026-01-02", "dt=2026-01-03"))
    assert (report.files_requested, report.commits, report.problems) == (0, (), ())
    assert world.backfill(BackfillPeriod(f"{DAY}/hr=03", f"{DAY}/hr=23")).files_requested == 0


@pytest.mark.parametrize(
    ("first", "last", "held"),
    [
        (HOURS[0], HOURS[0], HOURS[:1]),
        (HOURS[1], HOURS[2], HOURS[1:]),
        (DAY, DAY, [DAY, *HOURS]),
        (DAY, HOURS[0], [DAY, HOURS[0]]),
        (HOURS[2], DAY, HOURS[2:]),
        ("dt=2025-12-31", "dt=2026-01-01", [DAY, *HOURS]),
        ("dt=2026-01-02", "dt=2026-01-03", []),
    ],
)
def test_a_period_includes_both_ends(first: str, last: str, held: list[str]) -> None:
    period = BackfillPeriod(first, last)
    assert [time_partition for time_partition in (DAY, *HOURS) if period.contains(time_partition)] == held
    assert period.overlaps_day(DAY) == (first[:13] <= DAY <= last[:13])


def test_backfill_uses_the_current_policy(world: BackfillWorld) -> None:
    """Without the time field in the settings, all rows are in the hour of their arrival."""
    assert {path.parent.name for path in world.files()} == {"hr=00", "hr=01", "hr=02"}
    world.policy = dataclasses.replace(world.policy, time_fields=(), kafka_column="full", codec="deflate")
    report = world.backfill()
    assert report.problems == ()
    assert {path.parent.parent.name for path in world.files()} == {"dt=1970-01-01"}
    assert world.is_complete()
    assert [values[0] for values in world.hive.parts["headrace", "orders"]] == ["1970-01-01"]
    assert world.log().read_state().topics["orders"].kafka_column == "full"


def test_backfill_ignores_quarantine_ratio_max(world: BackfillWorld) -> None:
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=0.0)
    assert world.backfill().problems == ()
    assert world.is_complete()


def test_acceptance_does_not_cover_messages_that_a_backfill_quarantines(world: BackfillWorld) -> None:
    def open_counts() -> list[int]:
        log = world.log()
        log.read_state()
        return [one.count for one in open_alarms(log, FileIndex(log), world.clock_ms)]

    log = world.log()
    log.read_state()
    assert len(accept(log, FileIndex(log), ["orders"], [], "a reason", "me", world.clock_ms)) == 1
    assert world.backfill().notes == ()
    assert open_counts() == []
    world.cluster.topics["orders"].logs[0][1] = BAD  # like a message whose schema was deleted
    assert "withdrawn" in "".join(world.backfill().notes)
    assert open_counts() == [2]


def test_quarantined_messages_become_rows_after_their_schema_was_registered(world: BackfillWorld) -> None:
    world.registry.register("", BAD, TIMED)
    report = world.backfill()
    assert (report.problems, report.quarantined_before, report.quarantined) == ((), 1, 0)
    assert world.rows("orders") == world.produced("orders")
    assert world.log().read_state().topics["orders"].foreign_ids == {BAD}
    assert world.run_ids() == frozenset()
    assert world.is_complete()


def test_messages_that_can_no_longer_be_loaded_are_quarantined_and_reported(
    world: BackfillWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.loader.task_world._body", lambda text, offset: b"" if offset == 7 else b"\x02\x02")
    monkeypatch.setattr("support.loader.task_world._batch", task_world._batch.__wrapped__)
    report = world.backfill()
    (problem,) = report.problems
    assert " 1 message " in problem
    assert "headrace quarantine list orders" in problem
    assert world.quarantined("orders") == [(0, 4), (0, 7)]
    assert world.is_complete()


def test_offsets_missing_from_the_log_are_reported_and_the_rest_is_replaced(world: BackfillWorld) -> None:
    topic = world.cluster.topics["orders"]
    topic.logs[0] += [1, 1]
    world.load()
    rows = world.rows("orders")
    topic.logs, topic.first = [log[3:] for log in topic.logs], 3
    report = world.backfill()
    assert len(report.problems) == 2
    for partition, problem in enumerate(report.problems):
        assert re.match(rf"partition {partition}: .*\b0\b.*\b2\b.*\b3\b", problem)
    assert report.commits == (4,)
    assert [(one.partition, one.first, one.last, one.offsets) for one in report.offsets] == [(0, 4, 10, 3)]
    assert (world.rows("orders"), world.findings()) == (rows, ())


def test_files_with_a_compacted_message_are_not_replaced(world: BackfillWorld) -> None:
    rows = world.rows("orders")
    world.cluster.topics["orders"].logs[0][6] = HOLE
    report = world.backfill(piece_bytes_max=1)
    (problem,) = report.problems
    assert re.match(r"partition 0: .*\b5\b.*\b8\b.*\b1 message\b", problem)
    assert len(report.commits) == 2, "the rows of the first load, and the quarantine"
    assert (world.rows("orders"), world.findings(), world.run_ids()) == (rows, (), frozenset())


def test_only_spans_with_other_counts_are_not_replaced(world: BackfillWorld) -> None:
    """Surplus messages of one span do not make up for missing messages of another."""
    world.files(time_partition=HOURS[2])[0].unlink()
    accept_missing(world.rewrites(), "orders", [FileKind.DATA], HOURS[2], is_dry=False)
    world.cluster.topics["orders"].logs[0][6] = HOLE
    rows = world.rows("orders")
    report = world.backfill()
    more, fewer = sorted(report.problems)
    assert re.match(r"partition 0: .*\b0\b.*\b3\b.*\b1 message\b", more)
    assert re.match(r"partition 0: .*\b5\b.*\b8\b.*\b1 message\b", fewer)
    assert len(report.commits) == 1, "the quarantine"
    assert (world.rows("orders"), world.findings(), world.run_ids()) == (rows, (), frozenset())


def test_backfill_does_not_restore_expired_files(world: BackfillWorld) -> None:
    """Files have the first and the last offset of a span; offsets between them may have been removed."""
    world.files(time_partition=HOURS[0])[0].unlink()
    accept_missing(world.rewrites(), "orders", [FileKind.DATA], "", is_dry=False)
    rows = world.rows("orders")
    assert world.backfill().problems == ()
    assert (world.rows("orders"), world.findings()) == (rows, ())
    world.clock_ms += 10 * DAY_MS
    expire(world.rewrites(), {"orders": 1}, is_dry=False)
    assert world.backfill().files_requested == 0


def test_files_of_a_deleted_topic_are_not_replaced_from_its_successor(world: BackfillWorld) -> None:
    topic = world.topic("orders", [1] * 4, [1], topic_id="id-2")
    held = world.backfill()
    assert held.commits == ()
    assert re.search(r"\bid-2\b.*\bid-1\b", held.problems[0])
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    world.load()
    all_files = [*world.files(), *world.files(FileKind.QUARANTINE)]
    affected = [path for path in all_files if not path.name.startswith("0-3-")]
    rows = world.rows("orders")
    report = world.backfill()
    (problem,) = report.problems
    assert re.match(rf"{len(affected)} files .*\b3\b", problem)
    assert report.commits == (4,)
    assert sum(one.files for one in report.time_partitions) == len(all_files) - len(affected)
    assert (world.rows("orders"), world.findings()) == (rows, ())
    topic.logs[0] += [1]
    world.load()
    assert world.backfill().commits == (6,)


def test_backfill_of_a_topic_whose_id_is_first_reported(tmp_path: Path) -> None:
    """Older brokers report no topic id. The leader epochs then identify the log."""
    world = BackfillWorld(tmp_path)
    topic = world.topic("orders", [1, 1, 1], [1, 1], topic_id="")
    world.load()
    topic.topic_id = "id-7"
    assert (world.backfill().commits, world.is_complete()) == ((2,), True)
    topic.logs[0].append(1)
    world.load()
    assert world.log().read_state().topics["orders"].topic_id == "id-7"
    report = world.backfill()
    assert (report.commits, report.problems, world.is_complete()) == ((4,), (), True)


def test_a_file_merged_from_two_incarnations_is_not_replaced(world: BackfillWorld) -> None:
    world.topic("orders", [1] * 4, [1], topic_id="id-2")
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    world.load()
    world.cluster.topics["orders"].logs[1] += [1] * 8  # longer than the log of the deleted topic
    world.load()
    compact(world.rewrites(), ["orders"], MERGED, is_dry=False)
    rows = world.rows("orders")
    report = world.backfill()
    assert report.commits == ()
    assert [one.partition(": ")[2].partition(",")[0] for one in report.problems] == [
        "commit 3 found the topic re-created after they were loaded"
    ]
    assert (world.rows("orders"), world.findings()) == (rows, ())


def test_rows_of_a_truncated_log_are_not_replaced(world: BackfillWorld) -> None:
    topic = world.cluster.topics["orders"]
    topic.cut_back(0, 6, *[1] * 6)
    uncommitted = world.backfill()
    assert any("the log diverged at 6" in one for one in uncommitted.problems)
    assert uncommitted.commits == (3,), "only partition 1 and the files of the first load"
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    world.load()
    rows = world.rows("orders")
    report = world.backfill()
    assert any("commit 4 found that offsets 6 to 8 of partition 0 changed" in one for one in report.problems)
    assert world.rows("orders") == rows
    assert world.findings() == ()


def test_backfill_replaces_merged_and_replayed_files(world: BackfillWorld) -> None:
    compact(world.rewrites(), ["orders"], MERGED, is_dry=False)
    world.cluster.topics["orders"].logs[0] += [1, 1]
    world.load()
    world.files(time_partition=HOURS[1])[0].unlink()
    assert world.backfill(BackfillPeriod(HOURS[1], HOURS[1])).problems == ()
    assert world.is_complete()


def test_a_large_period_is_replaced_in_pieces_with_a_commit_each(world: BackfillWorld) -> None:
    damage(world)
    report = world.backfill(piece_bytes_max=1)
    assert report.commits == (3, 4, 5)
    assert [line.partition(": ")[0] for line in world.lines] == [f"piece {number} of 3" for number in (1, 2, 3)]
    assert world.is_complete()


def test_a_missing_file_replaced_by_a_later_piece_is_not_reported(world: BackfillWorld) -> None:
    world.files(time_partition=HOURS[0])[1].unlink()
    report = world.backfill(piece_bytes_max=1)
    assert len(report.commits) == 3
    assert (report.notes, report.problems) == ((), ()), (
        "the second piece replaced the file that the first one found missing"
    )


def test_a_missing_file_that_cannot_be_replaced_is_reported(world: BackfillWorld) -> None:
    world.files(time_partition=HOURS[0])[0].unlink()
    topic = world.cluster.topics["orders"]
    topic.logs[0] += [1, 1]
    world.load()
    topic.logs, topic.first = [log[3:] for log in topic.logs], 3
    (note,) = world.backfill(piece_bytes_max=1).notes
    assert re.search(rf"\b1 .*\b{HOURS[0]}\b.*\bheadrace accept-missing orders\b", note)


def test_a_second_backfill_completes_one_killed_between_pieces(world: BackfillWorld) -> None:
    damage(world)

    class Killed(BaseException):
        pass

    def die(line: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        world.backfill(piece_bytes_max=1, report_progress=die)
    assert world.log().commit(world.log().head()).kind is CommitKind.BACKFILL
    world.backfill(piece_bytes_max=1)
    assert world.is_complete()


def during_read(
    world: BackfillWorld, action: Callable[[], object]
) -> Callable[[Sequence[WorkUnit]], Sequence[UnitResult]]:
    """Runs the tasks, and another process once after they have read."""
    pending = [action]
    run_units: Any = world.pool

    def run(units: Sequence[WorkUnit]) -> Sequence[UnitResult]:
        results: Sequence[UnitResult] = run_units(units)
        while pending:
            pending.pop()()
        return results

    return run


def test_a_concurrent_load_does_not_change_the_result(world: BackfillWorld) -> None:
    damage(world)

    def load() -> None:
        world.cluster.topics["orders"].logs[0] += [1, BAD, 1]
        world.load()

    assert world.backfill(run_units=during_read(world, load)).problems == ()
    assert world.is_complete()


@pytest.mark.parametrize("piece_bytes_max", [1, 2**30])
def test_the_faster_of_two_rewrites_is_committed(world: BackfillWorld, piece_bytes_max: int) -> None:
    def merge() -> None:
        assert compact(world.rewrites(), ["orders"], MERGED, is_dry=False).problems == {}

    report = world.backfill(piece_bytes_max=piece_bytes_max, run_units=during_read(world, merge))
    assert report.commits == ()
    assert len(report.problems) == 1
    assert world.is_complete()
    assert world.backfill(piece_bytes_max=piece_bytes_max).problems == ()
    assert world.is_complete()


@pytest.mark.parametrize("change", ["merged", "schema", "log"])
def test_a_concurrent_change_between_pieces_ends_the_backfill(world: BackfillWorld, change: str) -> None:
    topic = world.cluster.topics["orders"]

    def change_it(line: str) -> None:
        if change == "merged":
            compact(world.rewrites(), ["orders"], MERGED, is_dry=False)
        elif change == "schema":
            world.registry.register("orders-value", 2, WITH_NOTE)
            topic.logs[0].append(2)
            world.load()
        else:
            world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
            topic.cut_back(0, 9, 1)
            topic.logs[0].append(1)
            world.load()
            topic.cut_back(0, 10, 1, 1)
            world.load()

    report = world.backfill(piece_bytes_max=1, report_progress=change_it)
    assert len(report.commits) == 1
    assert len(report.problems) == 1
    if change != "log":
        assert world.is_complete()


@pytest.mark.parametrize(
    ("change", "partitions"),
    [
        (lambda topic: setattr(topic, "topic_id", "id-2"), ""),
        (lambda topic: topic.epochs.update({0: 1}), "partition 0 "),
        (lambda topic: topic.epochs.update({0: 1, 1: 1}), "partitions 0, 1 "),
    ],
)
def test_backfill_of_a_log_that_changes_while_it_is_read_replaces_nothing(
    world: BackfillWorld, change: Callable[[Any], None], partitions: str
) -> None:
    run_units = during_read(world, lambda: change(world.cluster.topics["orders"]))
    report = world.backfill(run_units=run_units)
    assert report.commits == ()
    (problem,) = report.problems
    assert partitions in problem
    assert world.run_ids() == frozenset()


def test_a_broker_failure_changes_nothing(world: BackfillWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = world.cluster.fetch
    before = world.files()

    def fails(topic_partition: Any, offset: int, *arguments: Any, **keywords: Any) -> Any:
        if topic_partition.partition == 1:
            raise KafkaUnavailable("broker:1 refused")
        return fetch(topic_partition, offset, *arguments, **keywords)

    monkeypatch.setattr(world.cluster, "fetch", fails)
    report = world.backfill()
    assert report.commits == ()
    assert "broker:1 refused; the remaining files are unchanged; run the command again" in report.problems[0]
    assert (world.files(), world.run_ids()) == (before, frozenset())


@pytest.mark.parametrize("fails_at", ["broker", "disk"])
def test_a_failure_after_the_first_piece_is_reported_and_the_first_piece_stays(
    world: BackfillWorld, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Any:
        if fails_at == "broker":
            raise KafkaUnavailable("broker:1 refused")
        raise OSError(28, "No space left on device")

    def break_it(line: str) -> None:
        monkeypatch.setattr(world.cluster, "metadata", fails)

    report = world.backfill(piece_bytes_max=1, report_progress=break_it)
    assert report.commits == (3,)
    (problem,) = report.problems
    assert problem.endswith("; run this command again for the rest")
    assert world.is_complete()
    with pytest.raises((KafkaUnavailable, OSError)):
        world.backfill()


def test_a_result_that_does_not_account_for_every_offset_changes_nothing(world: BackfillWorld) -> None:
    before = world.files()

    def run(units: Sequence[WorkUnit]) -> Sequence[UnitResult]:
        first, *others = world.pool(units)
        one, *rest = first.ranges
        more = dataclasses.replace(one.counts, records=one.counts.records + 1)
        return [dataclasses.replace(first, ranges=(dataclasses.replace(one, counts=more), *rest)), *others]

    report = world.backfill(run_units=run)
    assert report.commits == ()
    assert "offsets accounted for" in report.problems[0]
    assert (world.files(), world.run_ids()) == (before, frozenset())


def test_a_full_disk_changes_nothing(world: BackfillWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.files()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.loader.storage.local.sink.LocalSink.append", full)
    report = world.backfill()
    assert report.commits == ()
    assert "No space left" in report.problems[0]
    assert (world.files(), world.run_ids()) == (before, frozenset())


def test_a_version_that_no_load_has_folded_must_be_loaded_first(world: BackfillWorld) -> None:
    world.registry.register("orders-value", 2, WITH_NOTE)
    (problem,) = world.backfill().problems
    assert "`headrace load`" in problem


def test_a_registry_outage_is_a_problem_without_a_commit(world: BackfillWorld) -> None:
    world.registry.is_down = True
    report = world.backfill()
    assert (report.commits, len(report.problems)) == ((), 1)


def test_a_registry_outage_during_the_read_commits_nothing(world: BackfillWorld) -> None:
    def go_down() -> None:
        world.registry.is_down = True

    report = world.backfill(run_units=during_read(world, go_down))
    assert report.commits == ()
    assert len(report.problems) == 1
    assert world.run_ids() == frozenset()


def test_a_topic_missing_on_the_brokers_is_reported(world: BackfillWorld) -> None:
    del world.cluster.topics["orders"]
    report = world.backfill()
    assert (report.commits, len(report.problems)) == ((), 1)


def test_a_partition_missing_on_the_brokers_is_reported(world: BackfillWorld) -> None:
    world.cluster.topics["orders"].logs.pop()
    (problem,) = world.backfill().problems
    assert re.match(r"partition 1: .*\b0\b.*\b3\b", problem)


def test_messages_are_located_in_their_new_files(world: BackfillWorld) -> None:
    world.backfill()
    log = world.log()
    log.read_state()
    found = locate(log, FileIndex(log), local_storage(world.warehouse).files, "orders", 0, 7)
    assert found.status is OffsetStatus.ROW
    assert "_g1/" in found.files[0]


def test_replaced_files_are_deleted_after_a_day(world: BackfillWorld) -> None:
    damage(world)
    world.backfill()
    world.clock_ms += READERS_MS
    world.load()
    assert not (world.warehouse / "orders" / HOURS[0]).exists()
    assert world.is_complete()


def test_the_audit_still_counts_every_message_once(world: BackfillWorld) -> None:
    world.backfill()
    world.audit_path.unlink()
    world.load()
    written = sum(row.count for row in world.audit("orders") if row.outcome is AuditOutcome.WRITTEN)
    assert written == len(world.rows("orders"))


def test_a_lost_reply_of_try_commit_is_resolved_by_the_next_load(
    world: BackfillWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is written and the reply is lost. The next load must publish the committed files."""
    try_commit = CommitLog.try_commit

    def lost(log: CommitLog, commit: Commit) -> object:
        try_commit(log, commit)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CommitLog, "try_commit", lost)
    with pytest.raises(OSError, match="Input/output"):
        world.backfill()
    monkeypatch.undo()
    world.load()
    assert world.is_complete()


@pytest.fixture
def opened_load(world: BackfillWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with this world instead of brokers, registry and metastore."""

    @contextmanager
    def open_load(settings: object, log: object, output: object, *, is_dry: bool = False) -> Iterator[object]:
        made = world.backfill_ports()
        ports = SimpleNamespace(cluster=made.cluster, schemas=made.schemas, run_units=made.run_units)
        made.rewrites.log.read_state()
        yield SimpleNamespace(rewrites=made.rewrites, ports=ports, settings=world.settings)

    monkeypatch.setattr("headrace.pipeline.load.open_load", open_load)


def run(world: BackfillWorld, *arguments: str) -> int:
    return main(["backfill", *arguments, "--data-dir", str(world.warehouse.parent)])


@pytest.mark.usefixtures("opened_load")
def test_backfill_command_prints_plan_and_result(world: BackfillWorld, capsys: pytest.CaptureFixture[str]) -> None:
    period = ("orders", "--from", HOURS[0], "--to", HOURS[0])
    assert run(world, *period, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split("  ", 1)[0] == "kind" and "time partition" in lines[1]
    assert any(re.match(r"partition 1: 4 .*\b0\b.*\b3$", line) for line in lines)
    requested, files = len(world.files(time_partition=HOURS[0])), len(world.files())
    assert lines[0].startswith(f"{requested} files ")
    assert files == len(world.files())
    assert run(world, *period, "--format", "json") == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert (printed["topic"], printed["dry_run"], printed["commits"], printed["rows"]) == ("orders", False, [3], 12)
    assert re.match(r"\w+ 1 \w+ 1: ", captured.err.splitlines()[-1])
    assert run(world, "orders", "--from", DAY, "--to", DAY) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.search(r"\b12 rows .*\b1 .*\b4\)$", line) for line in lines)
    world.registry.is_down = True
    assert run(world, *period) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("PROBLEM: orders: ")
    assert run(world, "orders", "--from", "dt=2026-02-01", "--to", "dt=2026-02-02") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.usefixtures("opened_load")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("orders", "--from", "2026-01-01", "--to", DAY), r"--from: .*dt=2026-01-31/hr=07"),
        (("orders", "--from", DAY, "--to", "dt=2026-01-01/hr=7"), r"--to: .*dt=2026-01-31/hr=07"),
        (("orders", "--from", HOURS[1], "--to", HOURS[0]), f"--to: {HOURS[0]} .*--from {HOURS[1]}"),
        (("clicks", "--from", DAY, "--to", DAY), r".*\bclicks\b.*\borders$"),
    ],
)
def test_error_of_the_backfill_command_is_one_line_with_flag_or_topic(
    world: BackfillWorld, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(world, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"headrace: {message}", line)


def test_hours_of_a_table_of_days_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    world = BackfillWorld(tmp_path)
    world.policy = dataclasses.replace(world.policy, partition_by="day")
    world.topic("orders", [1] * 4)
    world.load()
    opened_load.__wrapped__(world, monkeypatch)  # type: ignore[attr-defined]
    assert run(world, "orders", "--from", HOURS[0], "--to", HOURS[0]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"headrace: .*\borders\b", line)
    assert run(world, "orders", "--from", DAY, "--to", DAY) == 0
    assert world.is_complete()


def test_all_selects_every_period(world: BackfillWorld) -> None:
    files = len(world.files()) + len(world.files(FileKind.QUARANTINE))
    assert world.backfill(ALL, is_dry=True).files_requested == files
