"""Problems and notes of topics whose results are committed."""

from __future__ import annotations

import dataclasses
import re

import pytest

from headrace.loader.commit.commit import CommittedRange
from headrace.loader.commit.findings import with_findings
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.project.topic_projection import FUTURE_TIME
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind, RangeCounts, SkippedOffsets
from support.golden import case_lines, golden
from support.loader.loader_samples import POLICY

T0 = 1_357_002_000_000  # 2013-01-01T01:00Z


def reconciled(records: int, quarantined: int, *times: ImplausibleTimeCount) -> ReconciledTopic:
    counts = RangeCounts(records=records, quarantined=quarantined)
    ranges = (CommittedRange(0, 0, 0, records + quarantined, 0, counts, (), 10),)
    return ReconciledTopic(ranges=ranges, implausible_times=times, problems=("before",))


def findings_of(one: ReconciledTopic) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = with_findings({"t": one}, {"t": POLICY})["t"]
    assert found.problems[0] == "before"
    assert (found.ranges, found.implausible_times) == (one.ranges, one.implausible_times)
    return found.problems[1:], found.notes


@pytest.mark.parametrize("counts", [(0, 0), (10, 0), (90, 10), (9, 1)])
def test_a_few_bad_messages_among_many_are_no_finding(counts: tuple[int, int]) -> None:
    assert findings_of(reconciled(*counts)) == ((), ())


@pytest.mark.parametrize("counts", [(0, 1), (89, 10), (0, 99)])
def test_a_quarantine_ratio_over_the_limit_is_a_problem_for_any_number_of_messages(counts: tuple[int, int]) -> None:
    ((problem,), notes) = findings_of(reconciled(*counts))
    count = sum(counts)
    assert re.match(rf"{counts[1]} of {count} .*\bloader\.quarantine_ratio_max \(10%\)", problem)
    assert "`headrace quarantine list t`" in problem
    assert notes == ()


def test_messages_of_the_future_are_a_note() -> None:
    one = dataclasses.replace(reconciled(10, 0), time_sources={FUTURE_TIME: 3})
    problems, (note,) = findings_of(one)
    assert problems == ()
    assert re.match(r"t: 3 of 10 .*\bloader\.future_max\b", note)


def test_texts_that_are_no_time_are_a_note_even_in_all_messages() -> None:
    times = ImplausibleTimeCount(ImplausibleTimeKind.NO_TIME, "at", "", 10, 0)
    problems, (note,) = findings_of(reconciled(10, 0, times))
    assert problems == ()
    assert re.match(r"t: 10 of 10 .*\bat\b.*\bISO 8601\b.*\bzone\b", note)


def test_days_that_spark_shows_wrong_are_a_note_even_in_all_messages() -> None:
    problems, (note,) = findings_of(reconciled(10, 0, ImplausibleTimeCount(ImplausibleTimeKind.OLD_DAY, "", "", 10, 0)))
    assert problems == ()
    assert re.match(r"t: 10 of 10 .*\b1582-10-15\b.*`headrace hive latest t`", note)


def test_time_out_of_range_in_a_text_is_shown_as_a_time() -> None:
    times = ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "at", "text", 1, -62_135_596_800_000)
    _, (note,) = findings_of(reconciled(10, 0, times))
    assert re.search(r"\b0*1-01-01 00:00Z\b", note)


def test_many_messages_decoded_in_python_are_a_note() -> None:
    """Quarantined messages are not counted in it; they are reported separately."""
    one = reconciled(20_000, 1_000)
    assert findings_of(dataclasses.replace(one, by_reference=10_999)) == ((), ())
    assert findings_of(dataclasses.replace(reconciled(200_000, 0), by_reference=20_000)) == ((), ())
    (note,) = findings_of(dataclasses.replace(one, by_reference=11_000))[1]
    assert note.startswith("t: 10,000 of 21,000 ")


def test_implausible_times_of_few_are_a_note_and_of_many_a_problem() -> None:
    times = ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "header.time", "millis", 1, T0 * 1_000_000)
    problems, (note,) = findings_of(reconciled(10, 0, times))
    assert problems == ()
    assert re.match(rf"t: 1 of 10 .*\bheader\.time \(.*\b{T0 * 1_000_000}\b.*\b2013-01-01 01:00Z\b", note)
    assert "timestamp-nanos" in note
    (problem,), notes = findings_of(reconciled(9, 0, times))
    assert notes == ()
    assert problem == note.replace("t: 1 of 10 ", "1 of 9 ")


IMPLAUSIBLE_TIMES = (
    ImplausibleTimeCount(ImplausibleTimeKind.WRONG_UNIT, "at", "millis", 5, T0 // 1000),
    ImplausibleTimeCount(ImplausibleTimeKind.WRONG_UNIT, "at", "micros", 5, T0),
    ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "at", "millis", 5, T0 * 1000),
    ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "at", "millis", 5, -5),
    ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "record", "millis", 5, T0 * 1000),
    ImplausibleTimeCount(ImplausibleTimeKind.SCATTERED, "at", "", 5, T0),
    ImplausibleTimeCount(ImplausibleTimeKind.SCATTERED, "record", "", 5, T0),
)


def test_problem_of_implausible_times_has_the_field_an_example_and_a_remedy() -> None:
    problems = []
    for times in IMPLAUSIBLE_TIMES:
        ((problem,), notes) = findings_of(reconciled(5, 0, times))
        assert notes == ()
        assert problem.startswith("5 of 5 messages ")
        problems.append((times, problem))
    lines = case_lines(problems)
    assert lines == golden("loader/implausible_times.txt", lines)


@pytest.mark.parametrize("is_quarantined", [True, False])
def test_skipped_batches_are_one_problem(is_quarantined: bool) -> None:
    skipped = SkippedOffsets(40, 60, "broker b:1 reports it", is_quarantined)
    (committed,) = reconciled(10, 0).ranges
    one = ReconciledTopic(ranges=(dataclasses.replace(committed, skipped=(skipped,)),), problems=("before",))
    ((problem,), notes) = findings_of(one)
    assert notes == ()
    assert re.match(r"partition 0: .*\bcorrupt_batches\b.*\b20 offsets .*\b40\b \(broker b:1 reports it\)", problem)
    assert ("quarantine" in problem) is is_quarantined
