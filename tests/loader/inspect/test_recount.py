"""The rows of files are compared with the commits and the audit by window, and rows that commands added or removed are
no difference."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.audit.count import message_hash
from headrace.audit.facts import Count, WindowFacts
from headrace.audit.verdict import ALL_TIME, Period
from headrace.audit.window import WINDOW_MS
from headrace.loader.commit.commit import CommitKind
from headrace.loader.inspect.findings import ConsistencyCheck
from headrace.loader.inspect.recount import RecountReport, RecountVerdict, plan_recount, report_of
from headrace.loader.inspect.recount_file import POSITION, count_file
from headrace.loader.project.topic_projection import FUTURE_TIME
from headrace.loader.rewrite.row_hours import TimeSource
from support.loader.shelf import TIME_MS, Shelf

FIRST, NEXT = "dt=2026-01-01/hr=00", "dt=2026-01-01/hr=01"
ROWS = [(0, offset) for offset in range(5)]
"""The rows of a load, all in the window TIME_MS, as its commit states."""
PERIOD = Period(TIME_MS, TIME_MS + WINDOW_MS)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.load({FIRST: ROWS}, (0, None, 0, 5))
    return shelf


def recounted(shelf: Shelf, period: Period = ALL_TIME, trail: dict[int, WindowFacts] | None = None) -> RecountReport:
    shelf.log.read_state()
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", TimeSource("", ("timestamp",)), period)
    return report_of(plan, [count_file(unit, shelf.storage.files) for unit in plan.units], trail or {})


def verdicts(report: RecountReport) -> list[tuple[int, int, RecountVerdict]]:
    return [(one.rows, one.committed, one.verdict) for one in report.windows]


def only_file(shelf: Shelf) -> Path:
    (path,) = (shelf.warehouse / "orders" / FIRST).glob("*.avro")
    return path


def test_fingerprint_is_that_of_positions_in_any_order_and_files(shelf: Shelf) -> None:
    (before,) = recounted(shelf).windows
    shelf.rewrite(FIRST, ROWS[::-1])
    assert recounted(shelf).windows == (before,)
    shelf.rewrite(FIRST, [*ROWS[1:], ROWS[1]])
    (after,) = recounted(shelf).windows
    assert (after.rows, after.verdict) == (5, RecountVerdict.EQUAL)
    assert after.fingerprint != before.fingerprint, "a lost and a doubled row do not cancel"


def test_rows_of_a_file_are_summed_up_with_the_hashes_of_their_positions(shelf: Shelf) -> None:
    shelf.log.read_state()
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", TimeSource("", ()))
    (counted,) = (count_file(unit, shelf.storage.files) for unit in plan.units)
    fingerprint = sum(message_hash(None, POSITION.pack(*position)) for position in ROWS) % 2**64
    assert counted.windows == {TIME_MS: (5, fingerprint)}


def test_replayed_rows_are_no_difference_but_further_ones_are_extra(shelf: Shelf) -> None:
    shelf.replay(FIRST, [(0, 7), (0, 8)])
    report = recounted(shelf)
    assert verdicts(report) == [(7, 5, RecountVerdict.EQUAL)]
    assert "2 rows replayed" in report.windows[0].reason
    shelf.rewrite(FIRST, [*ROWS, (0, 7), (0, 8), (0, 8)])
    assert verdicts(recounted(shelf)) == [(8, 5, RecountVerdict.EXTRA)]


def test_removed_rows_are_no_difference_but_further_ones_are_missing(shelf: Shelf) -> None:
    shelf.rewrite(FIRST, [], commit_kind=CommitKind.EXPIRE)
    report = recounted(shelf)
    assert verdicts(report) == [(0, 5, RecountVerdict.EQUAL)]
    assert "5 rows removed" in report.windows[0].reason
    shelf.load({FIRST: [(0, 5), (0, 6), (0, 7)]}, (0, 5, 5, 8))  # the commit counts five rows
    assert verdicts(recounted(shelf)) == [(3, 10, RecountVerdict.MISSING)]


def test_rows_of_several_removals_explain_what_is_missing(shelf: Shelf) -> None:
    shelf.rewrite(FIRST, [], commit_kind=CommitKind.EXPIRE)
    shelf.load({FIRST: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10))
    shelf.rewrite(FIRST, [], commit_kind=CommitKind.EXPIRE)
    shelf.replay(FIRST, [(0, 20), (0, 21), (0, 22)])
    report = recounted(shelf)
    assert verdicts(report) == [(3, 10, RecountVerdict.EQUAL)]
    assert "7 rows removed" in report.windows[0].reason


def test_rows_removed_from_another_time_partition_explain_nothing(shelf: Shelf) -> None:
    shelf.load({NEXT: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10))
    shelf.rewrite(NEXT, [], commit_kind=CommitKind.EXPIRE)
    assert verdicts(recounted(shelf)) == [(5, 10, RecountVerdict.MISSING)]


def test_period_reads_time_partitions_with_its_messages_only(shelf: Shelf) -> None:
    report = recounted(shelf, PERIOD)
    assert (report.files, verdicts(report)) == (1, [(5, 5, RecountVerdict.EQUAL)])
    assert recounted(shelf, Period(TIME_MS + WINDOW_MS, None)).windows == ()
    # Messages of the same window in a directory of another hour.
    shelf.load({NEXT: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10))
    assert verdicts(recounted(shelf, PERIOD)) == [(5, 10, RecountVerdict.MISSING)]
    assert verdicts(recounted(shelf)) == [(10, 10, RecountVerdict.EQUAL)]


def test_messages_filed_elsewhere_because_of_future_times_are_found(shelf: Shelf) -> None:
    shelf.load({NEXT: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10), time_sources={FUTURE_TIME: 5})
    report = recounted(shelf, PERIOD)
    assert (report.files, verdicts(report)) == (2, [(10, 10, RecountVerdict.EQUAL)])


@pytest.mark.parametrize(("written", "verdict"), [(5, RecountVerdict.EQUAL), (4, RecountVerdict.MISCOUNTED)])
def test_count_of_the_audit_is_compared_with_the_commits(shelf: Shelf, written: int, verdict: RecountVerdict) -> None:
    facts = WindowFacts("orders", TIME_MS, stored=Count(6, 60, 1), written=Count(written, 50, 1))
    (one,) = recounted(shelf, trail={TIME_MS: facts}).windows
    assert (one.loaded, one.stored, one.verdict) == (written, 6, verdict)


def test_missing_damaged_and_truncated_files_are_named(shelf: Shelf) -> None:
    path = only_file(shelf)
    content = path.read_bytes()
    where = str(path.relative_to(shelf.warehouse))
    for damaged, check in (
        (content[:-1], ConsistencyCheck.ROWS),
        (b"no container", ConsistencyCheck.ROWS),
        (content.replace(b"headrace.run_id\2w", b"headrace.run_id\2v"), ConsistencyCheck.CHECKSUM),
    ):
        path.write_bytes(damaged)
        (finding,) = recounted(shelf).findings
        assert (finding.check, finding.where) == (check, where)
        assert "commit 1" in finding.message
    path.unlink()
    report = recounted(shelf)
    assert [(one.check, one.where) for one in report.findings] == [(ConsistencyCheck.PLACE, where)]
    assert verdicts(report) == [(0, 5, RecountVerdict.MISSING)]


def test_file_that_vanishes_after_the_listing_is_named(shelf: Shelf) -> None:
    shelf.log.read_state()
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", TimeSource("", ()))
    only_file(shelf).unlink()
    (counted,) = (count_file(unit, shelf.storage.files) for unit in plan.units)
    assert (counted.check, counted.rows) == (ConsistencyCheck.PLACE, 0)


def test_file_of_a_later_commit_is_not_foreign(shelf: Shelf) -> None:
    shelf.log.read_state()
    other = Shelf(shelf.warehouse.parent)
    other.load({FIRST: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10))
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", TimeSource("", ()))
    assert (len(plan.units), plan.findings, plan.committed.written) == (1, (), {TIME_MS: 5})


def test_rows_without_offsets_are_counted_by_file_only(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.load({FIRST: ROWS}, (0, None, 0, 5), kafka_column="none")
    report = recounted(shelf)
    assert (report.rows, report.windows, report.findings) == (5, (), ())
    assert "kafka_column" in report.notes[0]
    path = only_file(shelf)
    path.write_bytes(path.read_bytes()[:-40])
    assert [one.check for one in recounted(shelf).findings] == [ConsistencyCheck.ROWS]


def test_rows_with_other_times_than_counted_are_explained_if_all_files_are_as_committed(shelf: Shelf) -> None:
    shelf.log.read_state()
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", TimeSource("", ()))
    (counted,) = (count_file(unit, shelf.storage.files) for unit in plan.units)
    moved = dataclasses.replace(counted, windows={TIME_MS + WINDOW_MS: counted.windows[TIME_MS]})
    report = report_of(plan, [moved], {})
    assert [one.verdict for one in report.windows] == [RecountVerdict.MISSING, RecountVerdict.EXTRA]
    assert "all files are as committed" in report.notes[0]


def test_audit_may_have_counted_later_commits_of_other_topics_only(shelf: Shelf) -> None:
    shelf.load({FIRST: ROWS}, (0, None, 0, 5), topic="clicks")
    shelf.log.read_state()
    times = TimeSource("", ("timestamp",))
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", times)
    assert plan.state_number == 2
    assert plan.committed.time_properties == {""}
    shelf.applies_commits = False
    shelf.load({FIRST: [(0, offset) for offset in range(5, 10)]}, (0, 5, 5, 10))
    shelf.log.read_state()
    plan = plan_recount(shelf.log, shelf.storage.files, "orders", times)
    assert plan.state_number == plan.commit_number < shelf.log.state.commit_number == 3
