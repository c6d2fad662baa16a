"""The committable part of the results of the tasks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOW_MS
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit import reconcile as reconcile_module
from headrace.loader.commit.reconcile import DISK_REMEDY, REREAD_RANGE_REMEDY, REREAD_REMEDY, ReconciledTopic
from headrace.loader.epochs import ReadEpochs
from headrace.loader.plan.ranges import BROKER_REMEDY, PERMISSION_REMEDY, PlannedRange, TopicRanges
from headrace.loader.work_unit import (
    AuditCount,
    CorruptBatchStop,
    FileKind,
    FileRange,
    ImplausibleTimeCount,
    ImplausibleTimeKind,
    OffsetRange,
    RangeCounts,
    RangeResult,
    SkippedOffsets,
    StagedFile,
    TaskSettings,
    UnitResult,
    WorkUnit,
)

SETTINGS = TaskSettings("b:1", "/s", 1024)


def offsets(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)


def unit(task: int, *ranges: OffsetRange) -> WorkUnit:
    return WorkUnit("w", task, ranges, {}, SETTINGS, "b")


def done(partition: int, start: int, end: int, error: str = "", unknown: tuple[int, ...] = ()) -> RangeResult:
    count = AuditCount("loader", "t", partition, 0, end - start, 10 * (end - start), 2**63)
    counts = RangeCounts(records=end - start)
    return RangeResult(
        offsets(partition, start, end), counts, (), (count,), {"record": end - start}, 100, error, unknown
    )


def staged(path: str, *parts: tuple[int, int, int], kind: FileKind = FileKind.DATA) -> StagedFile:
    ranges = tuple(FileRange(partition, start, end - 1, end - start) for partition, start, end in parts)
    return StagedFile(kind, "t", "dt=2026-01-01", path, 10, "00", sum(part.records for part in ranges), ranges)


def result(task: int, ranges: Iterable[RangeResult], files: Iterable[StagedFile]) -> UnitResult:
    return UnitResult(task, tuple(ranges), tuple(files), "b", 5)


def planned(ends: Mapping[int, int]) -> dict[str, TopicRanges]:
    ranges = tuple(PlannedRange(partition, 0, 0, end, 4, 100) for partition, end in ends.items())
    return {"t": TopicRanges("id", False, ranges, ())}


def reconcile(
    ranges: Mapping[str, TopicRanges],
    units: Sequence[WorkUnit],
    results: Sequence[UnitResult],
    new_leaders: Collection[int] = (),
) -> dict[str, ReconciledTopic]:
    return reconcile_module.reconcile(ranges, units, results, {"t": new_leaders, "another": {0, 1, 2}})


def ends(reconciled: ReconciledTopic) -> dict[int, int]:
    return {one.partition: one.end for one in reconciled.ranges}


def test_complete_results_are_committed_completely() -> None:
    units = [unit(0, offsets(0, 0, 10), offsets(1, 0, 5)), unit(1, offsets(0, 10, 20))]
    results = [
        result(
            0,
            [done(0, 0, 10), dataclasses.replace(done(1, 0, 5), by_reference=2, quarantine_codes={"framing": 2})],
            [staged("a", (0, 0, 10), (1, 0, 5))],
        ),
        result(
            1,
            [dataclasses.replace(done(0, 10, 20), by_reference=1, quarantine_codes={"framing": 1, "malformed": 4})],
            [staged("b", (0, 10, 20))],
        ),
    ]
    reconciled = reconcile(planned({0: 20, 1: 5, 2: 0}), units, results)["t"]
    assert reconciled.quarantine_codes == {"framing": 3, "malformed": 4}
    assert ends(reconciled) == {0: 20, 1: 5}
    assert reconciled.by_reference == 3
    assert reconciled.problems == ()
    assert [(file.name, file.staged) for file in reconciled.files] == [("0-0.avro", "a"), ("1-0.avro", "b")]
    assert reconciled.counts == RangeCounts(records=25)
    assert [
        (series.partition, window.messages, window.fingerprint)
        for series in reconciled.audit
        for window in series.windows
    ] == [(0, 20, 0), (1, 5, 2**63)]
    assert reconciled.time_sources == {"record": 25}
    assert reconciled.ranges[0].leader_epoch == 4


def counted_in(partition: int, end: int, starts: Mapping[int, int], *times: ImplausibleTimeCount) -> RangeResult:
    rows = tuple(
        AuditCount(tier, "t", partition, start_ms, count, count, count, outcome)
        for tier, outcome in (("broker", ""), ("loader", "written"))
        for start_ms, count in starts.items()
    )
    return dataclasses.replace(
        done(partition, 0, end), audit=rows, implausible_times=times, time_sources={"at": end, "record": 99}
    )


def test_the_fullest_windows_remain_when_all_ranges_have_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile_module, "WINDOWS_MAX", 2)
    units = [unit(0, offsets(0, 0, 10), offsets(1, 0, 5))]
    first = counted_in(0, 10, {OUT_OF_RANGE_MS: 1, 0: 2, WINDOW_MS: 1, 2 * WINDOW_MS: 6})
    second = counted_in(1, 5, {SCATTERED_MS: 1, WINDOW_MS: 3, 3 * WINDOW_MS: 1})
    files = [staged("a", (0, 0, 10), (1, 0, 5))]
    reconciled = reconcile(planned({0: 10, 1: 5}), units, [result(0, [first, second], files)])["t"]
    found = {
        (series.tier, series.partition): [(one.window_start_ms, one.messages) for one in series.windows]
        for series in reconciled.audit
    }
    expected = {
        0: [(SCATTERED_MS, 2), (OUT_OF_RANGE_MS, 1), (WINDOW_MS, 1), (2 * WINDOW_MS, 6)],
        1: [(SCATTERED_MS, 2), (WINDOW_MS, 3)],
    }
    assert found == {(tier, n): windows for tier in ("broker", "loader") for n, windows in expected.items()}
    assert reconciled.implausible_times == (ImplausibleTimeCount(ImplausibleTimeKind.SCATTERED, "at", "", 3, 0),)


@given(
    st.lists(st.dictionaries(st.integers(-2, 9).map(lambda n: n * WINDOW_MS), st.integers(1, 9)), max_size=4),
    st.integers(0, 5),
)
def test_a_commit_has_a_limited_number_of_windows_and_all_messages(
    ranges: list[dict[int, int]], windows_max: int
) -> None:
    ends = {n: sum(starts.values()) for n, starts in enumerate(ranges)}
    results = [counted_in(n, ends[n], starts) for n, starts in enumerate(ranges)]
    units = [unit(0, *(offsets(n, 0, end) for n, end in ends.items()))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile_module, "WINDOWS_MAX", windows_max)
        files = [staged("a", *((n, 0, end) for n, end in ends.items() if end))]
        reconciled = reconcile(planned(ends), units, [result(0, results, files)])["t"]
    for tier in ("broker", "loader"):
        windows = [one for series in reconciled.audit if series.tier == tier for one in series.windows]
        assert sum(one.messages for one in windows) == sum(one.fingerprint for one in windows) == sum(ends.values())
        assert len({one.window_start_ms for one in windows if one.window_start_ms >= 0}) <= windows_max


def test_implausible_times_of_ranges_are_added() -> None:
    far = ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "at", "millis", 2, 2**60)
    late = dataclasses.replace(far, messages=3, value=2**61)
    early = ImplausibleTimeCount(ImplausibleTimeKind.WRONG_UNIT, "at", "millis", 1, 10**9)
    units = [unit(0, offsets(0, 0, 10), offsets(1, 0, 5))]
    results = [result(0, [counted_in(0, 10, {0: 10}, far), counted_in(1, 5, {0: 5}, early, late)], [])]
    results = [dataclasses.replace(results[0], files=(staged("a", (0, 0, 10), (1, 0, 5)),))]
    assert reconcile(planned({0: 10, 1: 5}), units, results)["t"].implausible_times == (
        dataclasses.replace(far, messages=5),
        early,
    )


def test_the_prefix_of_a_failed_range_is_committed() -> None:
    units = [unit(0, offsets(0, 0, 10))]
    results = [result(0, [done(0, 0, 4, "the leader has changed")], [staged("a", (0, 0, 4))])]
    reconciled = reconcile(planned({0: 10}), units, results)["t"]
    assert ends(reconciled) == {0: 4}
    assert reconciled.problems == (f"partition 0 [0, 10): the leader has changed; {REREAD_RANGE_REMEDY}",)


def test_ranges_after_a_hole_are_left_out_with_their_files_and_ranges_of_these_files() -> None:
    units = [
        unit(0, offsets(0, 0, 10)),
        unit(1, offsets(0, 10, 20), offsets(1, 0, 5)),
        unit(2, offsets(1, 5, 9), offsets(2, 0, 3)),
    ]
    results = [
        result(0, [done(0, 0, 6, "cut")], [staged("a", (0, 0, 6))]),
        result(1, [done(0, 10, 20), done(1, 0, 5)], [staged("b", (0, 10, 20), (1, 0, 5))]),
        result(2, [done(1, 5, 9), done(2, 0, 3)], [staged("c", (1, 5, 9)), staged("d", (2, 0, 3))]),
    ]
    reconciled = reconcile(planned({0: 20, 1: 9, 2: 3}), units, results)["t"]
    assert ends(reconciled) == {0: 6, 2: 3}
    assert [file.staged for file in reconciled.files] == ["a", "d"]


def test_a_task_without_a_result_is_reported() -> None:
    reconciled = reconcile(planned({0: 10}), [unit(3, offsets(0, 0, 10))], [])["t"]
    assert reconciled.ranges == ()
    (problem,) = reconciled.problems
    assert re.match(r"task 3 .*\b0 \[0, 10\)", problem)
    assert problem.endswith(REREAD_REMEDY)


def test_a_disk_error_of_a_task_drops_its_ranges_and_is_one_problem() -> None:
    units = [unit(0, offsets(0, 0, 10)), unit(1, offsets(0, 10, 20), offsets(1, 0, 5)), unit(2, offsets(2, 0, 3))]
    failed = result(1, [done(0, 10, 10, "disk full"), done(1, 0, 5, "disk full")], [])
    results = [
        result(0, [done(0, 0, 10)], [staged("a", (0, 0, 10))]),
        dataclasses.replace(failed, disk_error="cannot write to /s on node-7: disk full"),
        result(2, [done(2, 0, 3)], [staged("c", (2, 0, 3))]),
    ]
    reconciled = reconcile(planned({0: 20, 1: 5, 2: 3}), units, results)["t"]
    assert ends(reconciled) == {0: 10, 2: 3}
    assert reconciled.problems == (f"task 1 cannot write to /s on node-7: disk full; {DISK_REMEDY}",)


def test_a_partition_with_a_new_leader_is_left_out_with_ranges_of_the_same_files() -> None:
    units = [
        unit(0, offsets(0, 0, 10), offsets(1, 0, 5)),
        unit(1, offsets(1, 5, 9), offsets(2, 0, 3)),
        unit(2, offsets(3, 0, 4)),
    ]
    results = [
        result(0, [done(0, 0, 10), done(1, 0, 5)], [staged("a", (0, 0, 10)), staged("b", (1, 0, 5))]),
        result(1, [done(1, 5, 9), done(2, 0, 3)], [staged("c", (1, 5, 9), (2, 0, 3))]),
        result(2, [done(3, 0, 4)], [staged("d", (3, 0, 4))]),
    ]
    reconciled = reconcile(planned({0: 10, 1: 9, 2: 3, 3: 4}), units, results, new_leaders={1})["t"]
    assert ends(reconciled) == {0: 10, 3: 4}
    assert [file.staged for file in reconciled.files] == ["a", "d"]
    (problem,) = reconciled.problems
    assert problem.startswith("partition 1 ")


def test_data_loss_of_a_partition_with_a_new_leader_is_not_declared() -> None:
    ranges = (PlannedRange(0, 5, 20, 30, 0, 0), PlannedRange(1, 5, 20, 20, 0, 0))
    task = [unit(0, offsets(0, 20, 30))]
    read = [result(0, [done(0, 20, 30)], [staged("a", (0, 20, 30))])]
    reconciled = reconcile({"t": TopicRanges("id", False, ranges, ())}, task, read, new_leaders={0})["t"]
    assert [(one.partition, one.gaps) for one in reconciled.ranges] == [(1, ((5, 20),))]


def test_unaccounted_offsets_are_not_committed() -> None:
    short = dataclasses.replace(done(0, 0, 10), counts=RangeCounts(records=9))
    reconciled = reconcile(
        planned({0: 10}), [unit(0, offsets(0, 0, 10))], [result(0, [short], [staged("a", (0, 0, 9))])]
    )["t"]
    assert reconciled.ranges == ()
    assert reconciled.files == ()
    assert "9 of 10 offsets" in reconciled.problems[0]


def test_a_mismatch_of_file_and_range_counts_holds_back_the_topic() -> None:
    units = [unit(0, offsets(0, 0, 10))]
    reconciled = reconcile(planned({0: 10}), units, [result(0, [done(0, 0, 10)], [staged("a", (0, 0, 9))])])["t"]
    assert reconciled.ranges == ()
    (problem,) = reconciled.problems
    assert re.match(rf"partition 0: task 0 .*\b9 data .*\b10; {re.escape(REREAD_REMEDY)}$", problem)
    quarantine = staged("q", (0, 0, 1), kind=FileKind.QUARANTINE)
    reconciled = reconcile(
        planned({0: 10}), units, [result(0, [done(0, 0, 10)], [staged("a", (0, 0, 10)), quarantine])]
    )["t"]
    (problem,) = reconciled.problems
    assert re.match(rf"partition 0: task 0 .*\b1 quarantine .*\b0; {re.escape(REREAD_REMEDY)}$", problem)


def test_a_range_that_stopped_before_an_unknown_id_is_no_problem() -> None:
    reconciled = reconcile(
        planned({0: 10}),
        [unit(0, offsets(0, 0, 10))],
        [result(0, [done(0, 0, 4, unknown=(99,))], [staged("a", (0, 0, 4))])],
    )["t"]
    assert [(one.start, one.end) for one in reconciled.ranges] == [(0, 4)]
    assert reconciled.problems == ()


def test_data_loss_is_declared_even_without_offsets_to_read() -> None:
    ranges = (PlannedRange(0, 5, 20, 20, 0, 0),)
    reconciled = reconcile({"t": TopicRanges("id", False, ranges, ())}, [], [])["t"]
    assert [(one.previous, one.start, one.end, one.gaps) for one in reconciled.ranges] == [(5, 20, 20, ((5, 20),))]


def test_epochs_of_all_pieces_of_a_diverged_log_are_committed_in_order() -> None:
    ranges = (PlannedRange(0, 50, 20, 40, 7, 0, 20, 3),)
    range_results = [
        dataclasses.replace(done(0, 30, 40), epochs=ReadEpochs(((6, 31), (7, 35)), 40)),
        dataclasses.replace(done(0, 20, 30), epochs=ReadEpochs(((5, 20),), 30)),
    ]
    units = [unit(0, offsets(0, 30, 40)), unit(1, offsets(0, 20, 30))]
    results = [
        result(0, range_results[:1], [staged("a", (0, 30, 40))]),
        result(1, range_results[1:], [staged("b", (0, 20, 30))]),
    ]
    (committed,) = reconcile({"t": TopicRanges("id", False, ranges, ())}, units, results)["t"].ranges
    assert committed.epochs == ReadEpochs(((5, 20), (6, 30), (7, 35)), 40)
    assert (committed.diverged_at, committed.replaced, committed.incarnation, committed.gaps) == (20, (20, 50), 3, ())


def test_a_divergence_is_committed_even_without_offsets_to_read() -> None:
    ranges = (PlannedRange(0, 50, 50, 50, 7, 0, 20, 3), PlannedRange(1, 50, 20, 20, 7, 0, 20, 3))
    reconciled = reconcile({"t": TopicRanges("id", False, ranges, ())}, [], [])["t"]
    assert [(one.partition, one.end, one.replaced, one.gaps) for one in reconciled.ranges] == [
        (0, 50, (20, 50), ((20, 50),)),
        (1, 20, (20, 50), ()),
    ]


def corrupt(start: int, end: int, *, is_quarantined: bool) -> RangeResult:
    one = SkippedOffsets(start, end, "the checksum is wrong", is_quarantined)
    counts = RangeCounts(records=10 - (end - start), corrupt=end - start)
    return RangeResult(offsets(0, 0, 10), counts, skipped=(one,))


def test_a_quarantined_corrupt_batch_is_one_row_for_all_its_offsets() -> None:
    units = [unit(0, offsets(0, 0, 10))]
    data = StagedFile(FileKind.DATA, "t", "b", "d", 10, "00", 6, (FileRange(0, 0, 9, 6),))
    row = StagedFile(FileKind.QUARANTINE, "t", "b", "q", 10, "00", 1, (FileRange(0, 4, 4, 1),))
    skipped_batch = reconcile(planned({0: 10}), units, [result(0, [corrupt(4, 8, is_quarantined=True)], [data, row])])[
        "t"
    ]
    assert (ends(skipped_batch), skipped_batch.problems) == ({0: 10}, ())
    assert skipped_batch.ranges[0].skipped == (SkippedOffsets(4, 8, "the checksum is wrong", True),)
    for is_quarantined, files in ((True, [data]), (False, [data, row])):
        mismatched = reconcile(
            planned({0: 10}), units, [result(0, [corrupt(4, 8, is_quarantined=is_quarantined)], files)]
        )["t"]
        assert mismatched.ranges == () and " quarantine " in mismatched.problems[0]
    skipped = reconcile(planned({0: 10}), units, [result(0, [corrupt(4, 8, is_quarantined=False)], [data])])["t"]
    assert skipped.counts == RangeCounts(records=6, corrupt=4)


def test_remedy_of_a_problem_fits_its_cause() -> None:
    def problem(stop: CorruptBatchStop | None, error: str = "it is broken", *, is_broker_error: bool = False) -> str:
        one = dataclasses.replace(done(0, 0, 4, error), corrupt_stop=stop, is_broker_error=is_broker_error)
        return reconcile(planned({0: 10}), [unit(0, offsets(0, 0, 10))], [result(0, [one], [])])["t"].problems[0]

    assert problem(None) == f"partition 0 [0, 10): it is broken; {REREAD_RANGE_REMEDY}"
    assert problem(None, is_broker_error=True) == f"partition 0 [0, 10): it is broken; {BROKER_REMEDY}"
    denied = "broker b:1 rejected Fetch: TOPIC_AUTHORIZATION_FAILED (error 29)"
    assert problem(None, denied, is_broker_error=True) == f"partition 0 [0, 10): {denied}; {PERMISSION_REMEDY}"
    assert problem(CorruptBatchStop(4, 7)).endswith(": headrace offsets skip t 0 4 --to 7 --reason TEXT")
    assert problem(CorruptBatchStop(4, -1)).endswith(": headrace offsets skip t 0 4 --to OFFSET --reason TEXT")
    assert "brokers" not in problem(CorruptBatchStop(4, 7))
