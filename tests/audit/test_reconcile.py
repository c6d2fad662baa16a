"""What the counts prove."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.audit.compare import reconcile_window
from headrace.audit.facts import Count, CountedRow, WindowFacts, gather, merge
from headrace.audit.offsets import OffsetCheck, check_offsets
from headrace.audit.reconcile import reconcile_topic, reconcile_topics
from headrace.audit.report import has_findings
from headrace.audit.verdict import Acceptance, Period, Ruling, State, TopicContext, TopicVerdict
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOW_MS
from support.golden import case_lines, golden

GRACE_MS = 1_800_000
LATE_MS = WINDOW_MS + GRACE_MS
A, B = 11, 22  # fingerprints


def counted(count: int, fingerprint: int = A, last_ms: int = 0) -> Count:
    return Count(count, count * 10, fingerprint, last_ms)


def facts(
    acknowledged: Count | None = None, stored: Count | None = None, written: Count | None = None, **more: object
) -> WindowFacts:
    sent = more.pop("sent", acknowledged.count if acknowledged else 0)
    return WindowFacts("t", 0, acknowledged, sent, stored=stored, written=written, **more)


ALL = counted(5)
ANY_TOPIC = TopicContext()


def state(window: WindowFacts, now_ms: int = LATE_MS, context: TopicContext = ANY_TOPIC) -> State:
    return reconcile_window(window, context, now_ms=now_ms, grace_ms=GRACE_MS).state


STATES = (
    (facts(ALL, ALL, ALL), State.COMPLETE),
    (facts(ALL, ALL, counted(3, 7), quarantined=counted(2, 4)), State.COMPLETE),
    (facts(None, ALL, ALL), State.COMPLETE),
    (facts(ALL, counted(4), counted(4)), State.SHORT),
    (facts(ALL, None, None), State.SHORT),
    (facts(ALL, counted(6), counted(6)), State.UNCOUNTED),
    (facts(ALL, counted(5, B), counted(5, B)), State.MIXED),
    (facts(ALL, ALL, counted(4)), State.SHORT),
    (facts(ALL, ALL, counted(6)), State.SURPLUS),
    (facts(ALL, ALL, counted(5, B)), State.MIXED),
    (facts(ALL, counted(4), counted(6)), State.MIXED),
    (facts(None, ALL, None), State.SHORT),
    (facts(None, None, ALL), State.SURPLUS),
    (facts(ALL, counted(7, B), counted(7, B), sent=8), State.COMPLETE),
    (facts(ALL, counted(9, B), counted(9, B), sent=8), State.UNCOUNTED),
    (facts(ALL, counted(4), counted(4), sent=8), State.SHORT),
    (facts(counted(0), None, None, sent=3), State.COMPLETE),
    (facts(consumed=(("a", ALL),)), State.UNKNOWN),
)


def test_states_of_windows() -> None:
    found = [(window, state(window)) for window, _ in STATES]
    assert found == list(STATES)


def test_sentences() -> None:
    crashed = facts(ALL, counted(7, B), counted(7, B), sent=8, crashed=True)
    windows = [*(window for window, _ in STATES), crashed]
    verdicts = [reconcile_window(window, now_ms=LATE_MS, grace_ms=GRACE_MS) for window in windows]
    topics = [
        verdict_of(facts(ALL, ALL, ALL), at(WINDOW_MS, ALL, counted(4)), at(2 * WINDOW_MS, None, ALL)),
        verdict_of(at(0, None, ALL)),
        verdict_of(at(0, ALL, counted(8, B)), at(WINDOW_MS, None, counted(2)), at(2 * WINDOW_MS, ALL, ALL)),
        verdict_of(at(0, ALL, counted(4)), at(WINDOW_MS, ALL, counted(4))),
    ]
    lines = case_lines(
        (f"{verdict.state} {verdict.difference:+}", verdict.sentence) for verdict in verdicts
    ) + case_lines((topic.state, topic.sentence) for topic in topics)
    assert lines == golden("audit/sentences.txt", lines)


def test_silent_tiers_are_unknown_and_not_loss() -> None:
    assert state(facts(ALL), context=TopicContext(is_read=False, is_loaded=False)) is State.UNKNOWN
    assert state(facts(ALL, ALL), context=TopicContext(is_loaded=False)) is State.UNKNOWN


def test_differences_with_the_log_wait_for_the_grace() -> None:
    short = facts(ALL, counted(4), counted(4))
    assert state(short, LATE_MS - 1) is State.PENDING
    assert state(short, LATE_MS) is State.SHORT


def test_the_grace_begins_at_the_last_count_of_an_old_window() -> None:
    replayed = facts(counted(5, last_ms=10 * LATE_MS), counted(4), counted(4))
    assert state(replayed, 10 * LATE_MS + GRACE_MS - 1) is State.PENDING
    assert state(replayed, 10 * LATE_MS + GRACE_MS) is State.SHORT


def test_of_more_in_the_log_than_was_sent_the_log_s_last_count_begins_the_grace_and_of_less_it_does_not() -> None:
    """Its producer's own count is on the way as long; of a loss, what the log goes on to hold says nothing."""
    more, less = (facts(ALL, *2 * [counted(count, last_ms=10 * LATE_MS)]) for count in (6, 4))
    assert state(more, 10 * LATE_MS + GRACE_MS - 1) is State.PENDING
    assert state(more, 10 * LATE_MS + GRACE_MS) is State.UNCOUNTED
    assert state(less, LATE_MS) is State.SHORT


@pytest.mark.parametrize(("now_ms", "until"), [(2 * WINDOW_MS - 1, WINDOW_MS), (2 * WINDOW_MS, 2 * WINDOW_MS)])
def test_a_window_is_complete_once_it_has_ended(now_ms: int, until: int) -> None:
    windows = [WindowFacts("t", start, ALL, 5, stored=ALL, written=ALL) for start in (0, WINDOW_MS)]
    assert reconcile_topic("t", windows, OffsetCheck(), now_ms=now_ms, grace_ms=0).complete_until_ms == until


def test_a_loss_inside_the_loader_waits_for_nothing() -> None:
    assert state(facts(ALL, ALL, counted(4)), 0) is State.SHORT


def test_sentence_names_holes_and_overlaps_of_offsets() -> None:
    def sentence(window: WindowFacts, offsets: OffsetCheck) -> str:
        verdict = reconcile_window(window, TopicContext(offsets=offsets), now_ms=LATE_MS, grace_ms=GRACE_MS)
        return verdict.sentence

    short, surplus = facts(ALL, counted(4), counted(4)), facts(ALL, counted(6), counted(6))
    assert "partition 0 [5, 6)" in sentence(short, OffsetCheck(holes=((0, 5, 6),)))
    assert "partition" not in sentence(short, OffsetCheck())
    assert "partition 1 [3, 4)" in sentence(surplus, OffsetCheck(overlaps=((1, 3, 4),)))
    assert "partition" not in sentence(surplus, OffsetCheck())


def test_latency_runs_from_the_end_of_the_window_to_the_load_that_filled_it() -> None:
    window = facts(counted(1000), counted(1000), counted(1000), loads=((WINDOW_MS + 1, 998), (WINDOW_MS + 7, 1)))
    assert reconcile_window(window, now_ms=0, grace_ms=0).latency_ms == 7
    early = facts(ALL, ALL, ALL, loads=((5, 5),))
    assert reconcile_window(early, now_ms=0, grace_ms=0).latency_ms == 0
    assert reconcile_window(facts(ALL, loads=((5, 4),)), now_ms=0, grace_ms=0).latency_ms is None


def test_a_topic_is_as_bad_as_its_worst_window() -> None:
    good = facts(ALL, ALL, ALL, loads=((WINDOW_MS + 3, 5),))
    windows = [
        good,
        WindowFacts("t", WINDOW_MS, ALL, 5, stored=counted(4), written=counted(4)),
        WindowFacts("t", 2 * WINDOW_MS, None, 0, stored=ALL, written=ALL),
    ]
    verdict = reconcile_topic("t", windows, OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS)
    assert verdict.state is State.SHORT
    assert verdict.complete_until_ms == WINDOW_MS
    assert verdict.totals == {"sent": 10, "acknowledged": 10, "stored": 14, "written": 14}
    assert verdict.states == {State.COMPLETE: 2, State.SHORT: 1}
    assert not verdict.producer_is_silent
    assert (verdict.latency_p50_ms, verdict.latency_p95_ms) == (3, 3)


def test_topics_come_worst_first() -> None:
    windows = [
        WindowFacts("a", 0, ALL, 5, stored=ALL, written=ALL),
        WindowFacts("b", 0, ALL, 5, stored=counted(3), written=counted(3)),
        WindowFacts("c", 0, None, 0, stored=ALL, written=ALL),
    ]
    verdicts = reconcile_topics(windows, {}, now_ms=LATE_MS, grace_ms=GRACE_MS)
    assert [(v.topic, v.state, v.producer_is_silent) for v in verdicts] == [
        ("b", State.SHORT, False),
        ("a", State.COMPLETE, False),
        ("c", State.COMPLETE, True),
    ]


def at(window_start_ms: int, acknowledged: Count | None, stored: Count | None, **more: object) -> WindowFacts:
    found = facts(acknowledged, stored, stored, **more)
    return dataclasses.replace(found, window_start_ms=window_start_ms)


def verdict_of(*windows: WindowFacts, now_ms: int = 10 * LATE_MS) -> TopicVerdict:
    return reconcile_topic("t", windows, OffsetCheck(), now_ms=now_ms, grace_ms=GRACE_MS)


def test_times_out_of_range_are_compared_like_any_window() -> None:
    good = at(0, ALL, ALL)
    fine = verdict_of(at(OUT_OF_RANGE_MS, ALL, ALL, loads=((10**9, 5),)), good)
    assert (fine.state, fine.complete_until_ms, fine.latency_p95_ms) == (State.COMPLETE, WINDOW_MS, None)
    lost = verdict_of(at(OUT_OF_RANGE_MS, ALL, counted(4)), good)
    assert [window.state for window in lost.windows] == [State.SHORT, State.COMPLETE]
    assert lost.complete_until_ms == WINDOW_MS


def test_what_was_lost_of_a_stream_without_an_end_is_seen_while_it_goes_on() -> None:
    now_ms = 10 * LATE_MS
    sends = ((now_ms - GRACE_MS, 7), (now_ms - GRACE_MS + 1, 2), (now_ms, 1))

    def state_of(stored: int) -> State:
        counts = counted(10, last_ms=now_ms), counted(stored)
        return verdict_of(at(OUT_OF_RANGE_MS, *counts, sends=sends), now_ms=now_ms).state

    assert [state_of(stored) for stored in (6, 7, 9)] == [State.SHORT, State.PENDING, State.PENDING]


def test_times_too_scattered_are_compared_in_total() -> None:
    """The producer counted 2 messages apart that the loader did not, and the loader 3 that the producer did not."""
    same = at(9 * WINDOW_MS, ALL, ALL)
    moved = [at(0, counted(5, 50), counted(3, 30)), at(WINDOW_MS, counted(1, 1), counted(4, 4))]
    fine = verdict_of(at(SCATTERED_MS, counted(4, 4), counted(3, 21)), *moved, same)
    assert (fine.state, len(fine.windows), fine.complete_until_ms) == (State.COMPLETE, 2, 10 * WINDOW_MS)
    assert fine.windows[0].facts.window_start_ms == SCATTERED_MS
    assert "3 windows" in fine.windows[0].sentence
    assert fine.totals["acknowledged"] == fine.totals["stored"] == 15
    for stored, expected, difference in ((counted(2, 21), State.SHORT, -1), (counted(4, 21), State.UNCOUNTED, 1)):
        found = verdict_of(at(SCATTERED_MS, counted(4, 4), stored), *moved, same)
        assert (found.state, found.windows[0].difference) == (expected, difference)
        assert found.complete_until_ms is None
    assert verdict_of(at(SCATTERED_MS, counted(4, 4), counted(3, 22)), *moved).state is State.MIXED


def test_windows_that_no_producer_counted_take_part_in_the_total_and_leave_doubt() -> None:
    uncounted = at(0, None, counted(4, 30))
    assert verdict_of(at(SCATTERED_MS, counted(4, 30), None), uncounted).state is State.COMPLETE
    more = verdict_of(at(SCATTERED_MS, counted(3, 30), None), uncounted)
    assert (more.state, more.windows[0].difference) == (State.UNKNOWN, 0)
    assert "1 window" in more.windows[0].sentence
    assert verdict_of(at(SCATTERED_MS, counted(5, 30), None), uncounted).state is State.SHORT
    silent = verdict_of(at(SCATTERED_MS, None, counted(4, 30)), uncounted)
    assert (silent.state, len(silent.windows)) == (State.COMPLETE, 2)


def test_a_loss_inside_the_loader_is_no_doubt() -> None:
    lost = dataclasses.replace(at(SCATTERED_MS, counted(3, 30), counted(4, 40)), written=counted(3, 30))
    assert verdict_of(lost, at(0, None, counted(4, 30))).state is State.MIXED


def test_unanswered_messages_may_be_in_any_of_the_scattered_windows() -> None:
    answered = at(0, counted(4), counted(6), sent=9)
    assert verdict_of(at(SCATTERED_MS, counted(2), None), answered).state is State.COMPLETE


def test_windows_still_under_way_do_not_keep_the_total_pending_but_may_explain_it() -> None:
    now_ms = 10 * LATE_MS

    def states(missing: int, live: tuple[Count | None, Count | None]) -> list[State]:
        scattered = at(SCATTERED_MS, counted(10), counted(10 - missing))
        return [window.state for window in verdict_of(scattered, at(now_ms, *live), now_ms=now_ms).windows]

    live = counted(9, last_ms=now_ms)
    assert states(0, (live, counted(4))) == [State.COMPLETE, State.PENDING]
    assert states(3, (live, None)) == [State.SHORT, State.PENDING]
    assert states(3, (None, live)) == [State.PENDING, State.COMPLETE]
    assert states(10, (None, live)) == [State.SHORT, State.COMPLETE]
    assert states(-9, (live, None)) == [State.PENDING, State.PENDING]
    assert states(-10, (live, None)) == [State.UNCOUNTED, State.PENDING]
    exchanged = at(SCATTERED_MS, counted(10), counted(10, B)), at(now_ms, live, counted(4))
    assert verdict_of(*exchanged, now_ms=now_ms).windows[0].state is State.PENDING
    assert verdict_of(exchanged[0], at(now_ms, live, live), now_ms=now_ms).windows[0].state is State.MIXED


def test_what_was_counted_lately_explains_a_total_together_with_other_windows() -> None:
    now_ms = 10 * LATE_MS

    def state_of(missing: int) -> State:
        sends = ((now_ms - GRACE_MS, 10), (now_ms, 2))
        scattered = at(SCATTERED_MS, counted(12, last_ms=now_ms), counted(12 - missing), sends=sends)
        live = at(now_ms, None, counted(3, last_ms=now_ms))
        return verdict_of(scattered, live, now_ms=now_ms).windows[0].state

    assert [state_of(missing) for missing in (2, 5, 6)] == [State.PENDING, State.PENDING, State.SHORT]


def test_a_window_takes_part_in_the_total_once_its_counts_are_as_old_as_the_grace() -> None:
    def windows(last_ms: int) -> int:
        moved = at(0, counted(3, last_ms=last_ms), counted(2))
        return len(verdict_of(at(SCATTERED_MS, ALL, ALL), moved, now_ms=10 * LATE_MS).windows)

    assert [windows(10 * LATE_MS - GRACE_MS + more) for more in (0, 1)] == [1, 2]


def test_gathering_keeps_when_messages_of_no_time_were_counted() -> None:
    def row(start_ms: int, outcome: str, at_ms: int) -> CountedRow:
        return CountedRow("t", start_ms, outcome, "app", 2, 1, 0, 2, 0, at_ms)

    rows = [row(start_ms, "acknowledged", at_ms) for start_ms in (SCATTERED_MS, OUT_OF_RANGE_MS, 0) for at_ms in (9, 4)]
    scattered, absurd, real = gather([*rows, row(0, "stored", 1)])
    assert scattered.sends == absurd.sends == ((4, 2), (9, 2))
    assert real.sends == ()


def test_merged_windows_are_one() -> None:
    first = at(
        0, counted(1, 2**63, 5), None, sent=2, consumed=(("a", ALL), ("b", ALL)), loads=((9, 1),), sends=((4, 1),)
    )
    second = at(
        WINDOW_MS, counted(2, 2**63 + 3, 3), counted(4, 4), consumed=(("a", ALL),), loads=((8, 2),), crashed=True
    )
    found = merge([first, dataclasses.replace(second, quarantined=counted(1, 7))], SCATTERED_MS)
    assert found == WindowFacts(
        "t",
        SCATTERED_MS,
        Count(3, 30, 3, 5),
        4,
        True,
        counted(4, 4),
        counted(4, 4),
        counted(1, 7),
        (("a", counted(10, 2 * A)), ("b", ALL)),
    )
    assert (found.loads, found.sends) == (((8, 2), (9, 1)), ((4, 1),))


def test_gathering_adds_up_by_window_and_outcome() -> None:
    def row(window: int, outcome: str, count: int, **more: object) -> CountedRow:
        values = {"application": "app", "size_bytes": 1, "fingerprint": -1, "sent": 0, "crashed": 0, "emitted_at_ms": 4}
        return CountedRow(topic="t", window_start_ms=window, outcome=outcome, messages=count, **{**values, **more})

    first, second = gather(
        [
            row(0, "acknowledged", 2, sent=5, crashed=1),
            row(0, "acknowledged", 3, emitted_at_ms=9),
            row(0, "stored", 5),
            row(0, "consumed", 1),
            row(0, "consumed", 1, application="other"),
            row(0, "written", 4, emitted_at_ms=8),
            row(0, "quarantined", 1, emitted_at_ms=7),
            row(WINDOW_MS, "stored", 1),
        ]
    )
    assert first.acknowledged == Count(5, 2, 2**64 - 2, 9)
    assert (first.sent, first.crashed, first.loads) == (5, True, ((7, 1), (8, 4)))
    assert first.loaded == Count(5, 2, 2**64 - 2, 8)
    assert [name for name, _ in first.consumed] == ["app", "other"]
    assert second == WindowFacts("t", WINDOW_MS, stored=Count(1, 1, 2**64 - 1, 4))


def test_fingerprints_by_different_hashes_show_nothing() -> None:
    ours, same, other = Count(5, 2, 1), Count(5, 2, 2), Count(5, 2, 2, hash="blake2b-64")
    assert ours.has_others_than(same)
    assert not ours.has_others_than(other)
    mixed = ours.plus(other)
    assert mixed.hash == ""
    assert not mixed.has_others_than(ours)
    assert not mixed.has_others_than(other.plus(ours).plus(ours))
    assert verdict_of(at(0, ours, other)).state is State.COMPLETE


def test_offsets_show_holes_and_overlaps() -> None:
    check = check_offsets([(0, 0, 5), (0, 5, 9), (0, 5, 9), (0, 12, 20), (0, 15, 17), (1, 4, 6), (1, 5, 8)])
    assert check.holes == ((0, 9, 12),)
    assert check.overlaps == ((0, 15, 17), (1, 5, 6))


def with_passed_over(*windows: WindowFacts, passed_over: tuple[tuple[int, int, int], ...]) -> TopicVerdict:
    offsets = OffsetCheck(passed_over=passed_over)
    return reconcile_topic("t", windows, offsets, now_ms=10 * LATE_MS, grace_ms=GRACE_MS)


def test_messages_missing_are_no_finding_when_a_decision_passed_over_as_many_offsets() -> None:
    windows = at(0, counted(5), counted(3, B)), at(WINDOW_MS, counted(5), counted(4, B)), at(2 * WINDOW_MS, ALL, ALL)
    found = with_passed_over(*windows, passed_over=((0, 10, 12), (1, 5, 6)))
    assert [window.state for window in found.windows] == [State.PASSED_OVER, State.PASSED_OVER, State.COMPLETE]
    assert (found.state, found.complete_until_ms) == (State.PASSED_OVER, 3 * WINDOW_MS)
    assert "partition 0 [10, 12), partition 1 [5, 6)" in found.windows[0].sentence
    assert not has_findings([found])
    one_more = with_passed_over(*windows, passed_over=((0, 10, 12),))
    assert one_more.state is State.SHORT and one_more.windows[0].difference == -2


def test_what_was_read_and_is_in_no_row_was_not_passed_over() -> None:
    lost = dataclasses.replace(facts(ALL, ALL, counted(3)), window_start_ms=0)
    assert with_passed_over(lost, passed_over=((0, 0, 99),)).state is State.SHORT


def test_other_messages_are_mixed_whatever_was_passed_over() -> None:
    assert with_passed_over(at(0, ALL, counted(5, B)), passed_over=((0, 0, 99),)).state is State.MIXED


def test_a_producer_that_does_not_count_is_no_finding_and_says_how_many() -> None:
    beside = verdict_of(at(0, ALL, counted(8, B)), at(WINDOW_MS, None, counted(2)), at(2 * WINDOW_MS, ALL, ALL))
    assert (beside.state, beside.uncounted) == (State.UNCOUNTED, 5)
    assert not has_findings([beside])
    assert beside.complete_until_ms == 3 * WINDOW_MS
    assert (beside.states[State.UNCOUNTED], beside.states[State.COMPLETE]) == (1, 2)
    assert "3 messages" in beside.sentence
    silent = verdict_of(at(0, None, counted(2)))
    assert (silent.state, silent.uncounted) == (State.COMPLETE, 0)


def test_where_all_producers_count_or_offsets_were_counted_twice_more_than_sent_is_surplus() -> None:
    window = at(0, ALL, counted(8, B))
    ruling = Ruling(all_count=lambda topic: topic == "t")
    strict = reconcile_topic("t", [window], OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS, ruling=ruling)
    twice = reconcile_topic("t", [window], OffsetCheck(overlaps=((0, 0, 3),)), now_ms=10 * LATE_MS, grace_ms=GRACE_MS)
    for verdict in (strict, twice):
        assert (verdict.state, verdict.uncounted, has_findings([verdict])) == (State.SURPLUS, 0, True)
        assert verdict.complete_until_ms is None


def test_rows_too_many_are_surplus_whoever_counts() -> None:
    doubled = verdict_of(dataclasses.replace(at(0, ALL, counted(8, B)), written=counted(9)))
    assert doubled.state is State.SURPLUS
    lost = verdict_of(dataclasses.replace(at(0, ALL, counted(8, B)), written=counted(7)))
    assert lost.state is State.MIXED


def test_an_accepted_finding_is_none_until_it_is_another() -> None:
    def judged(stored: int, difference: int = -1, window_start_ms: int = 0, topic: str = "t") -> TopicVerdict:
        accepted = Acceptance(topic, window_start_ms, State.SHORT, difference, "disk lost", "ann", 10 * LATE_MS)
        return reconcile_topic(
            "t",
            [at(0, ALL, counted(stored)), at(WINDOW_MS, ALL, ALL)],
            OffsetCheck(),
            now_ms=10 * LATE_MS,
            grace_ms=GRACE_MS,
            ruling=Ruling(accepted=(accepted,)),
        )

    fine = judged(4)
    assert (fine.state, has_findings([fine]), fine.complete_until_ms) == (State.ACCEPTED, False, 2 * WINDOW_MS)
    assert all(part in fine.windows[0].sentence for part in ("1970-01-01 06:40Z", "ann", "disk lost"))
    assert fine.windows[0].difference == -1
    assert "1 message " in fine.sentence
    for other in (judged(3), judged(4, window_start_ms=WINDOW_MS), judged(4, topic="u"), judged(4, difference=1)):
        assert (other.state, has_findings([other])) == (State.SHORT, True)


def test_what_is_pending_cannot_be_accepted() -> None:
    accepted = Acceptance("t", 0, State.PENDING, -1, "why", "ann", 0)
    verdict = reconcile_topic(
        "t",
        [at(0, ALL, counted(4))],
        OffsetCheck(),
        now_ms=0,
        grace_ms=GRACE_MS,
        ruling=Ruling(accepted=(accepted,)),
    )
    assert verdict.state is State.PENDING


def test_a_finding_ends_when_nothing_was_counted_for_it_for_long() -> None:
    def state_of(age_ms: int, end_ms: int | None = 100 * LATE_MS) -> State:
        window = at(0, counted(5, last_ms=10), counted(4, last_ms=7))
        ruling = Ruling(findings_ttl_ms=end_ms)
        verdict = reconcile_topic("t", [window], OffsetCheck(), now_ms=10 + age_ms, grace_ms=0, ruling=ruling)
        assert has_findings([verdict]) == (verdict.state is State.SHORT)
        assert verdict.complete_until_ms is None
        return verdict.state

    ends = [state_of(100 * LATE_MS - 1), state_of(100 * LATE_MS), state_of(200 * LATE_MS, None)]
    assert ends == [State.SHORT, State.PAST, State.SHORT]


def test_a_silent_tier_ends_as_findings_do() -> None:
    window = WindowFacts("t", 0, ALL, 5)
    ruling = Ruling(findings_ttl_ms=LATE_MS)
    verdict = reconcile_topic("t", [window], OffsetCheck(), now_ms=LATE_MS, grace_ms=GRACE_MS, ruling=ruling)
    assert verdict.state is State.PAST
    assert all(part in verdict.windows[0].sentence for part in (State.UNKNOWN, "1970-01-01 00:00Z"))


def test_a_period_leaves_out_windows_before_and_after() -> None:
    short = [at(number * WINDOW_MS, ALL, counted(4)) for number in range(3)]
    stray = at(OUT_OF_RANGE_MS, counted(5, last_ms=50), counted(5, last_ms=50))

    def starts(period: Period) -> list[int]:
        verdicts = reconcile_topics([stray, *short], {}, now_ms=10 * LATE_MS, grace_ms=GRACE_MS, period=period)
        return [window.facts.window_start_ms // WINDOW_MS for verdict in verdicts for window in verdict.windows]

    assert starts(Period()) == [-1, 0, 1, 2]
    assert starts(Period(since_ms=WINDOW_MS)) == [1, 2]
    assert starts(Period(since_ms=WINDOW_MS - 1)) == [0, 1, 2]
    assert starts(Period(until_ms=WINDOW_MS)) == [-1, 0]
    assert starts(Period(50, WINDOW_MS + 1)) == [-1, 0, 1]
    assert starts(Period(9 * LATE_MS)) == []
    verdict = reconcile_topic(
        "t", short, OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS, period=Period(since_ms=WINDOW_MS)
    )
    assert (verdict.totals["sent"], verdict.states) == (10, {State.SHORT: 2})
