"""What is told of topics whose work is decided all the same."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.loader.check.findings import with_findings
from headrace.loader.check.settle import SettledTopic
from headrace.loader.decide.decision import DecidedRange
from headrace.loader.project.topic_projection import FUTURE_TIME
from headrace.loader.work_unit import OddTimes, PassedOver, RangeCounts, TimeOddity
from support.loader.loader_samples import POLICY

T0 = 1_357_002_000_000  # 2013-01-01T01:00Z
LOGICAL = "in the next version of the schema, or name another field in the subject's metadata property headrace.time"
ANOTHER = "name another field in the subject's metadata property headrace.time"


def settled(records: int, quarantined: int, *odd: OddTimes) -> SettledTopic:
    counts = RangeCounts(records=records, quarantined=quarantined)
    ranges = (DecidedRange(0, 0, 0, records + quarantined, 0, counts, (), 10),)
    return SettledTopic(ranges=ranges, odd_times=odd, problems=("before",))


def told(one: SettledTopic) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = with_findings({"t": one}, {"t": POLICY})["t"]
    assert found.problems[0] == "before"
    assert (found.ranges, found.odd_times) == (one.ranges, one.odd_times)
    return found.problems[1:], found.notes


@pytest.mark.parametrize("counts", [(0, 0), (10, 0), (90, 10), (9, 1)])
def test_a_few_bad_messages_among_many_are_no_finding(counts: tuple[int, int]) -> None:
    assert told(settled(*counts)) == ((), ())


@pytest.mark.parametrize("counts", [(0, 1), (89, 10), (0, 99)])
def test_a_share_of_bad_messages_over_the_limit_is_a_problem_however_few_they_are(counts: tuple[int, int]) -> None:
    ((problem,), notes) = told(settled(*counts))
    count = sum(counts)
    assert problem == (
        f"{counts[1]} of {count} message{'s' if count > 1 else ''} cannot be loaded, more than "
        "loader.quarantine_share_max (10%) allows; the others were loaded, and these are in the quarantine: mend what "
        "`headrace quarantine list t` shows, or raise the limit"
    )
    assert notes == ()


def test_messages_of_the_future_are_a_note() -> None:
    one = dataclasses.replace(settled(10, 0), time_sources={FUTURE_TIME: 3})
    assert told(one) == (
        (),
        (
            "t: 3 of 10 messages are dated further after their arrival than loader.future_max allows, and are filed by "
            "the time of that",
        ),
    )


def test_many_messages_that_the_core_left_to_python_are_a_note() -> None:
    """What went to the quarantine is told of as that."""
    one = settled(20_000, 1_000)
    assert told(dataclasses.replace(one, by_reference=10_999)) == ((), ())
    assert told(dataclasses.replace(settled(200_000, 0), by_reference=20_000)) == ((), ())
    (note,) = told(dataclasses.replace(one, by_reference=11_000))[1]
    assert note.startswith("t: 10,000 of 21,000 messages took several times as long as the others")


def test_odd_times_of_few_are_a_note_and_of_many_a_problem() -> None:
    odd = OddTimes(TimeOddity.OUT_OF_RANGE, "header.time", "millis", 1, T0 * 1_000_000)
    sentence = (
        f"have a time before 1970 or after 9999 in the field header.time (such as {T0 * 1_000_000}, which in "
        "nanoseconds is 2013-01-01 01:00Z); they are filed by the record's timestamp and audited as 'times out of "
        f"range': give it the logical type timestamp-nanos {LOGICAL}"
    )
    assert told(settled(10, 0, odd)) == ((), (f"t: 1 of 10 messages {sentence}",))
    assert told(settled(9, 0, odd)) == ((f"1 of 9 messages {sentence}",), ())


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (
            OddTimes(TimeOddity.WRONG_UNIT, "at", "millis", 5, T0 // 1000),
            f"have a time in the field at that seems to be in another unit (such as {T0 // 1000}, which in seconds is "
            f"2013-01-01 01:00Z); there is no logical type for seconds: write milliseconds, or {ANOTHER}",
        ),
        (
            OddTimes(TimeOddity.WRONG_UNIT, "at", "micros", 5, T0),
            f"have a time in the field at that seems to be in another unit (such as {T0}, which in milliseconds is "
            f"2013-01-01 01:00Z); give it the logical type timestamp-millis {LOGICAL}",
        ),
        (
            OddTimes(TimeOddity.OUT_OF_RANGE, "at", "millis", 5, T0 * 1000),
            f"have a time before 1970 or after 9999 in the field at (such as {T0 * 1000}, which in microseconds is "
            "2013-01-01 01:00Z); they are filed by the record's timestamp and audited as 'times out of range': give it "
            f"the logical type timestamp-micros {LOGICAL}",
        ),
        (
            OddTimes(TimeOddity.OUT_OF_RANGE, "at", "millis", 5, -5),
            "have a time before 1970 or after 9999 in the field at (such as -5); they are filed by the record's "
            f"timestamp and audited as 'times out of range': mend what writes it, or {ANOTHER}",
        ),
        (
            OddTimes(TimeOddity.OUT_OF_RANGE, "record", "millis", 5, T0 * 1000),
            f"have a time before 1970 or after 9999 in the record's timestamp (such as {T0 * 1000}, which in "
            "microseconds is 2013-01-01 01:00Z); they are filed under 1970-01-01 and audited as 'times out of range': "
            "its producer must give milliseconds",
        ),
        (
            OddTimes(TimeOddity.SCATTERED, "at", "", 5, T0),
            "have times in the field at beyond the 65,536 windows of ten minutes that are counted apart (such as "
            "2013-01-01 01:00Z), and are audited as 'times too scattered'; if these are no times of events, " + ANOTHER,
        ),
        (
            OddTimes(TimeOddity.SCATTERED, "record", "", 5, T0),
            "have times in the record's timestamp beyond the 65,536 windows of ten minutes that are counted apart "
            "(such as 2013-01-01 01:00Z), and are audited as 'times too scattered'; if these are no times of events, "
            "have its producer give none",
        ),
    ],
)
def test_what_is_odd_names_the_field_an_example_and_what_to_do(odd: OddTimes, expected: str) -> None:
    assert told(settled(5, 0, odd)) == ((f"5 of 5 messages {expected}",), ())


@pytest.mark.parametrize(("is_kept", "where"), [(True, "are in the quarantine"), (False, "are kept nowhere")])
def test_batches_passed_over_are_a_problem_once(is_kept: bool, where: str) -> None:
    passed = PassedOver(40, 60, "broker b:1 said so", is_kept)
    (decided,) = settled(10, 0).ranges
    one = SettledTopic(ranges=(dataclasses.replace(decided, passed_over=(passed,)),), problems=("before",))
    assert told(one) == (
        (
            "partition 0: 20 offsets from 40 on passed over, as corrupt_batches says, "
            f"and its bytes {where}: broker b:1 said so",
        ),
        (),
    )
