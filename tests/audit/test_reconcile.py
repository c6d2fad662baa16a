"""What the counts prove."""

from __future__ import annotations

import pytest

from headrace.audit.facts import Count, CountedRow, WindowFacts, gather
from headrace.audit.offsets import OffsetCheck, check_offsets
from headrace.audit.reconcile import State, TopicContext, reconcile_topic, reconcile_topics, reconcile_window
from headrace.audit.window import WINDOW_MS

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


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (facts(ALL, ALL, ALL), State.COMPLETE),
        (facts(ALL, ALL, counted(3, 7), quarantined=counted(2, 4)), State.COMPLETE),
        (facts(None, ALL, ALL), State.COMPLETE),
        (facts(ALL, counted(4), counted(4)), State.SHORT),
        (facts(ALL, None, None), State.SHORT),
        (facts(ALL, counted(6), counted(6)), State.SURPLUS),
        (facts(ALL, counted(5, B), counted(5, B)), State.MIXED),
        (facts(ALL, ALL, counted(4)), State.SHORT),
        (facts(ALL, ALL, counted(6)), State.SURPLUS),
        (facts(ALL, ALL, counted(5, B)), State.MIXED),
        (facts(ALL, counted(4), counted(6)), State.MIXED),
        (facts(None, ALL, None), State.SHORT),
        (facts(None, None, ALL), State.SURPLUS),
        (facts(ALL, counted(7, B), counted(7, B), sent=8), State.COMPLETE),
        (facts(ALL, counted(9, B), counted(9, B), sent=8), State.SURPLUS),
        (facts(ALL, counted(4), counted(4), sent=8), State.SHORT),
        (facts(counted(0), None, None, sent=3), State.COMPLETE),
        (facts(consumed=(("a", ALL),)), State.UNKNOWN),
    ],
)
def test_states(window: WindowFacts, expected: State) -> None:
    assert state(window) is expected


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


def test_a_loss_inside_the_loader_waits_for_nothing() -> None:
    assert state(facts(ALL, ALL, counted(4)), 0) is State.SHORT


def test_sentences_tell_loss_and_duplicates_apart() -> None:
    def sentence(window: WindowFacts, offsets: OffsetCheck) -> str:
        verdict = reconcile_window(window, TopicContext(offsets=offsets), now_ms=LATE_MS, grace_ms=GRACE_MS)
        return verdict.sentence

    short, surplus = facts(ALL, counted(4), counted(4)), facts(ALL, counted(6), counted(6))
    assert "partition 0 [5, 6)" in sentence(short, OffsetCheck(holes=((0, 5, 6),)))
    assert "without a hole" in sentence(short, OffsetCheck())
    assert "partition 1 [3, 4)" in sentence(surplus, OffsetCheck(overlaps=((1, 3, 4),)))
    assert "producers sent them twice" in sentence(surplus, OffsetCheck())


def test_a_crash_is_told_in_the_sentence() -> None:
    window = facts(ALL, counted(7, B), counted(7, B), sent=8, crashed=True)
    verdict = reconcile_window(window, now_ms=LATE_MS, grace_ms=GRACE_MS)
    assert verdict.sentence.endswith("of 3 messages without an answer (a producer crashed) 2 arrived")


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
    assert verdict.sentence == (
        "of 3 windows 1 short, 2 complete; 1 message missing; in 1 window no producer counted, so only log and "
        "tables are compared there"
    )
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
    assert "producer silent" in verdicts[2].sentence


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


def test_offsets_show_holes_and_overlaps() -> None:
    check = check_offsets([(0, 0, 5), (0, 5, 9), (0, 5, 9), (0, 12, 20), (0, 15, 17), (1, 4, 6), (1, 5, 8)])
    assert check.holes == ((0, 9, 12),)
    assert check.overlaps == ((0, 15, 17), (1, 5, 6))
