"""Verdicts of windows and topics."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.audit.compare import reconcile_window
from headrace.audit.facts import Count, RowCounts, WindowFacts, collect_facts, merge_windows
from headrace.audit.offsets import OffsetCheck, check_offsets
from headrace.audit.reconcile import reconcile_topic, reconcile_topics
from headrace.audit.report import has_findings
from headrace.audit.row import AUDITOR
from headrace.audit.verdict import Acceptance, AuditVerdict, FindingPolicy, Period, TopicContext, TopicResult
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


def window_verdict(window: WindowFacts, now_ms: int = LATE_MS, context: TopicContext = ANY_TOPIC) -> AuditVerdict:
    return reconcile_window(window, context, now_ms=now_ms, grace_ms=GRACE_MS).verdict


VERDICTS = (
    (facts(ALL, ALL, ALL), AuditVerdict.COMPLETE),
    (facts(ALL, ALL, counted(3, 7), quarantined=counted(2, 4)), AuditVerdict.COMPLETE),
    (facts(None, ALL, ALL), AuditVerdict.COMPLETE),
    (facts(ALL, counted(4), counted(4)), AuditVerdict.MISSING),
    (facts(ALL, None, None), AuditVerdict.MISSING),
    (facts(ALL, counted(6), counted(6)), AuditVerdict.UNTRACKED),
    (facts(ALL, counted(5, B), counted(5, B)), AuditVerdict.MISMATCH),
    (facts(ALL, ALL, counted(4)), AuditVerdict.MISSING),
    (facts(ALL, ALL, counted(6)), AuditVerdict.EXTRA),
    (facts(ALL, ALL, counted(5, B)), AuditVerdict.MISMATCH),
    (facts(ALL, counted(4), counted(6)), AuditVerdict.MISMATCH),
    (facts(None, ALL, None), AuditVerdict.MISSING),
    (facts(None, None, ALL), AuditVerdict.EXTRA),
    (facts(ALL, counted(7, B), counted(7, B), sent=8), AuditVerdict.COMPLETE),
    (facts(ALL, counted(9, B), counted(9, B), sent=8), AuditVerdict.UNTRACKED),
    (facts(ALL, counted(4), counted(4), sent=8), AuditVerdict.MISSING),
    (facts(counted(0), None, None, sent=3), AuditVerdict.COMPLETE),
    (facts(consumed=(("a", ALL),)), AuditVerdict.UNKNOWN),
)


def test_verdict_of_a_window() -> None:
    found = [(window, window_verdict(window)) for window, _ in VERDICTS]
    assert found == list(VERDICTS)


def test_sentences_match_the_golden_file() -> None:
    crashed = facts(ALL, counted(7, B), counted(7, B), sent=8, crashed=True)
    windows = [*(window for window, _ in VERDICTS), crashed]
    results = [reconcile_window(window, now_ms=LATE_MS, grace_ms=GRACE_MS) for window in windows]
    topics = [
        topic_result(facts(ALL, ALL, ALL), at(WINDOW_MS, ALL, counted(4)), at(2 * WINDOW_MS, None, ALL)),
        topic_result(at(0, None, ALL)),
        topic_result(at(0, ALL, counted(8, B)), at(WINDOW_MS, None, counted(2)), at(2 * WINDOW_MS, ALL, ALL)),
        topic_result(at(0, ALL, counted(4)), at(WINDOW_MS, ALL, counted(4))),
    ]
    lines = case_lines((f"{result.verdict} {result.difference:+}", result.sentence) for result in results) + case_lines(
        (topic.verdict, topic.sentence) for topic in topics
    )
    assert lines == golden("audit/sentences.txt", lines)


def test_tier_without_any_count_gives_unknown() -> None:
    assert window_verdict(facts(ALL), context=TopicContext(is_read=False, is_loaded=False)) is AuditVerdict.UNKNOWN
    assert window_verdict(facts(ALL, ALL), context=TopicContext(is_loaded=False)) is AuditVerdict.UNKNOWN


def test_missing_in_the_log_is_pending_until_the_grace_period_ends() -> None:
    missing = facts(ALL, counted(4), counted(4))
    assert window_verdict(missing, LATE_MS - 1) is AuditVerdict.PENDING
    assert window_verdict(missing, LATE_MS) is AuditVerdict.MISSING


def test_grace_period_begins_at_the_last_count_of_an_old_window() -> None:
    replayed = facts(counted(5, last_ms=10 * LATE_MS), counted(4), counted(4))
    assert window_verdict(replayed, 10 * LATE_MS + GRACE_MS - 1) is AuditVerdict.PENDING
    assert window_verdict(replayed, 10 * LATE_MS + GRACE_MS) is AuditVerdict.MISSING


def test_last_count_of_the_log_begins_the_grace_period_only_for_extra_messages() -> None:
    """The producer's count may follow later; later counts of the log do not explain missing messages."""
    more, less = (facts(ALL, *2 * [counted(count, last_ms=10 * LATE_MS)]) for count in (6, 4))
    assert window_verdict(more, 10 * LATE_MS + GRACE_MS - 1) is AuditVerdict.PENDING
    assert window_verdict(more, 10 * LATE_MS + GRACE_MS) is AuditVerdict.UNTRACKED
    assert window_verdict(less, LATE_MS) is AuditVerdict.MISSING


@pytest.mark.parametrize(("now_ms", "until"), [(2 * WINDOW_MS - 1, WINDOW_MS), (2 * WINDOW_MS, 2 * WINDOW_MS)])
def test_complete_until_includes_a_window_once_it_has_ended(now_ms: int, until: int) -> None:
    windows = [WindowFacts("t", start, ALL, 5, stored=ALL, written=ALL) for start in (0, WINDOW_MS)]
    assert reconcile_topic("t", windows, OffsetCheck(), now_ms=now_ms, grace_ms=0).complete_until_ms == until


def test_missing_rows_are_a_finding_without_grace_period() -> None:
    assert window_verdict(facts(ALL, ALL, counted(4)), 0) is AuditVerdict.MISSING


def test_sentence_names_holes_and_overlaps_of_offsets() -> None:
    def sentence(window: WindowFacts, offsets: OffsetCheck) -> str:
        result = reconcile_window(window, TopicContext(offsets=offsets), now_ms=LATE_MS, grace_ms=GRACE_MS)
        return result.sentence

    missing, extra = facts(ALL, counted(4), counted(4)), facts(ALL, counted(6), counted(6))
    assert "partition 0 [5, 6)" in sentence(missing, OffsetCheck(holes=((0, 5, 6),)))
    assert "partition" not in sentence(missing, OffsetCheck())
    assert "partition 1 [3, 4)" in sentence(extra, OffsetCheck(overlaps=((1, 3, 4),)))
    assert "partition" not in sentence(extra, OffsetCheck())


def test_latency_runs_from_the_end_of_the_window_to_the_load_that_filled_it() -> None:
    window = facts(counted(1000), counted(1000), counted(1000), loads=((WINDOW_MS + 1, 998), (WINDOW_MS + 7, 1)))
    assert reconcile_window(window, now_ms=0, grace_ms=0).latency_ms == 7
    early = facts(ALL, ALL, ALL, loads=((5, 5),))
    assert reconcile_window(early, now_ms=0, grace_ms=0).latency_ms == 0
    assert reconcile_window(facts(ALL, loads=((5, 4),)), now_ms=0, grace_ms=0).latency_ms is None


def audited_rows(audited: int, read: int) -> list[RowCounts]:
    """Returns the rows of a window with these messages in the log, read by loads and written by them."""
    counts = (
        ("stored", AUDITOR, audited, 9),
        ("stored", "headrace-load", read, 8),
        ("written", "headrace-load", read, 8),
    )
    return [
        RowCounts("t", 0, outcome, application, count, count, 7 * count, 0, False, time_ms)
        for outcome, application, count, time_ms in counts
        if count
    ]


@pytest.mark.parametrize(
    ("audited", "read", "in_time", "at_last"),
    [
        (5, 5, AuditVerdict.COMPLETE, AuditVerdict.COMPLETE),
        (5, 4, AuditVerdict.PENDING, AuditVerdict.MISSING),
        (5, 0, AuditVerdict.PENDING, AuditVerdict.MISSING),
        (4, 5, AuditVerdict.COMPLETE, AuditVerdict.COMPLETE),  # the auditor has not come so far
        (0, 5, AuditVerdict.COMPLETE, AuditVerdict.COMPLETE),
    ],
)
def test_log_of_the_auditor_is_compared_with_the_messages_that_loads_read(
    audited: int, read: int, in_time: AuditVerdict, at_last: AuditVerdict
) -> None:
    (window,) = collect_facts(audited_rows(audited, read))
    assert window_verdict(window, WINDOW_MS + GRACE_MS - 1) is in_time
    assert window_verdict(window) is at_last


def test_grace_period_of_loads_begins_at_the_last_count_of_the_auditor() -> None:
    (window,) = collect_facts([row._replace(emitted_at_ms=10 * WINDOW_MS) for row in audited_rows(5, 4)])
    assert window_verdict(window, 10 * WINDOW_MS + GRACE_MS - 1) is AuditVerdict.PENDING
    assert window_verdict(window, 10 * WINDOW_MS + GRACE_MS) is AuditVerdict.MISSING


def test_other_content_read_than_in_the_log_is_a_mismatch() -> None:
    rows = [row if row.application == AUDITOR else row._replace(fingerprint=1) for row in audited_rows(5, 5)]
    (window,) = collect_facts(rows)
    assert window_verdict(window) is AuditVerdict.MISMATCH


def test_topic_that_no_load_loads_is_not_compared_with_the_auditor() -> None:
    (window,) = collect_facts(audited_rows(5, 0))
    assert window_verdict(window, context=TopicContext(is_read=True, is_loaded=False)) is AuditVerdict.COMPLETE


def test_verdict_of_a_topic_is_the_most_severe_of_its_windows() -> None:
    good = facts(ALL, ALL, ALL, loads=((WINDOW_MS + 3, 5),))
    windows = [
        good,
        WindowFacts("t", WINDOW_MS, ALL, 5, stored=counted(4), written=counted(4)),
        WindowFacts("t", 2 * WINDOW_MS, None, 0, stored=ALL, written=ALL),
    ]
    result = reconcile_topic("t", windows, OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS)
    assert result.verdict is AuditVerdict.MISSING
    assert result.complete_until_ms == WINDOW_MS
    assert result.totals == {"sent": 10, "acknowledged": 10, "stored": 14, "written": 14}
    assert result.verdict_counts == {AuditVerdict.COMPLETE: 2, AuditVerdict.MISSING: 1}
    assert not result.producer_is_silent
    assert (result.latency_p50_ms, result.latency_p95_ms) == (3, 3)


def test_topics_are_ordered_by_severity() -> None:
    windows = [
        WindowFacts("a", 0, ALL, 5, stored=ALL, written=ALL),
        WindowFacts("b", 0, ALL, 5, stored=counted(3), written=counted(3)),
        WindowFacts("c", 0, None, 0, stored=ALL, written=ALL),
    ]
    results = reconcile_topics(windows, {}, now_ms=LATE_MS, grace_ms=GRACE_MS)
    assert [(v.topic, v.verdict, v.producer_is_silent) for v in results] == [
        ("b", AuditVerdict.MISSING, False),
        ("a", AuditVerdict.COMPLETE, False),
        ("c", AuditVerdict.COMPLETE, True),
    ]


def at(window_start_ms: int, acknowledged: Count | None, stored: Count | None, **more: object) -> WindowFacts:
    found = facts(acknowledged, stored, stored, **more)
    return dataclasses.replace(found, window_start_ms=window_start_ms)


def topic_result(*windows: WindowFacts, now_ms: int = 10 * LATE_MS) -> TopicResult:
    return reconcile_topic("t", windows, OffsetCheck(), now_ms=now_ms, grace_ms=GRACE_MS)


def test_window_of_times_out_of_range_is_compared_like_any_window() -> None:
    good = at(0, ALL, ALL)
    fine = topic_result(at(OUT_OF_RANGE_MS, ALL, ALL, loads=((10**9, 5),)), good)
    assert (fine.verdict, fine.complete_until_ms, fine.latency_p95_ms) == (AuditVerdict.COMPLETE, WINDOW_MS, None)
    lost = topic_result(at(OUT_OF_RANGE_MS, ALL, counted(4)), good)
    assert [window.verdict for window in lost.windows] == [AuditVerdict.MISSING, AuditVerdict.COMPLETE]
    assert lost.complete_until_ms == WINDOW_MS


def test_window_without_an_end_is_missing_when_more_is_missing_than_was_sent_within_the_grace_period() -> None:
    now_ms = 10 * LATE_MS
    sends = ((now_ms - GRACE_MS, 7), (now_ms - GRACE_MS + 1, 2), (now_ms, 1))

    def verdict_with(stored: int) -> AuditVerdict:
        counts = counted(10, last_ms=now_ms), counted(stored)
        return topic_result(at(OUT_OF_RANGE_MS, *counts, sends=sends), now_ms=now_ms).verdict

    assert [verdict_with(stored) for stored in (6, 7, 9)] == [
        AuditVerdict.MISSING,
        AuditVerdict.PENDING,
        AuditVerdict.PENDING,
    ]


def test_scattered_window_is_compared_as_a_sum_with_differing_windows() -> None:
    """Two messages are in a separate window only at the producer, three only at the loader."""
    same = at(9 * WINDOW_MS, ALL, ALL)
    moved = [at(0, counted(5, 50), counted(3, 30)), at(WINDOW_MS, counted(1, 1), counted(4, 4))]
    fine = topic_result(at(SCATTERED_MS, counted(4, 4), counted(3, 21)), *moved, same)
    assert (fine.verdict, len(fine.windows), fine.complete_until_ms) == (AuditVerdict.COMPLETE, 2, 10 * WINDOW_MS)
    assert fine.windows[0].facts.window_start_ms == SCATTERED_MS
    assert "3 windows" in fine.windows[0].sentence
    assert fine.totals["acknowledged"] == fine.totals["stored"] == 15
    for stored, expected, difference in (
        (counted(2, 21), AuditVerdict.MISSING, -1),
        (counted(4, 21), AuditVerdict.UNTRACKED, 1),
    ):
        found = topic_result(at(SCATTERED_MS, counted(4, 4), stored), *moved, same)
        assert (found.verdict, found.windows[0].difference) == (expected, difference)
        assert found.complete_until_ms is None
    assert topic_result(at(SCATTERED_MS, counted(4, 4), counted(3, 22)), *moved).verdict is AuditVerdict.MISMATCH


def test_windows_without_producer_count_make_the_sum_unknown() -> None:
    untracked = at(0, None, counted(4, 30))
    assert topic_result(at(SCATTERED_MS, counted(4, 30), None), untracked).verdict is AuditVerdict.COMPLETE
    more = topic_result(at(SCATTERED_MS, counted(3, 30), None), untracked)
    assert (more.verdict, more.windows[0].difference) == (AuditVerdict.UNKNOWN, 0)
    assert "1 window" in more.windows[0].sentence
    assert topic_result(at(SCATTERED_MS, counted(5, 30), None), untracked).verdict is AuditVerdict.MISSING
    silent = topic_result(at(SCATTERED_MS, None, counted(4, 30)), untracked)
    assert (silent.verdict, len(silent.windows)) == (AuditVerdict.COMPLETE, 2)


def test_missing_rows_in_the_sum_are_not_unknown() -> None:
    lost = dataclasses.replace(at(SCATTERED_MS, counted(3, 30), counted(4, 40)), written=counted(3, 30))
    assert topic_result(lost, at(0, None, counted(4, 30))).verdict is AuditVerdict.MISMATCH


def test_unacknowledged_messages_may_be_in_any_window_of_the_sum() -> None:
    answered = at(0, counted(4), counted(6), sent=9)
    assert topic_result(at(SCATTERED_MS, counted(2), None), answered).verdict is AuditVerdict.COMPLETE


def test_pending_windows_do_not_make_the_sum_pending_unless_they_explain_the_difference() -> None:
    now_ms = 10 * LATE_MS

    def verdict_counts(missing: int, live: tuple[Count | None, Count | None]) -> list[AuditVerdict]:
        scattered = at(SCATTERED_MS, counted(10), counted(10 - missing))
        return [window.verdict for window in topic_result(scattered, at(now_ms, *live), now_ms=now_ms).windows]

    live = counted(9, last_ms=now_ms)
    assert verdict_counts(0, (live, counted(4))) == [AuditVerdict.COMPLETE, AuditVerdict.PENDING]
    assert verdict_counts(3, (live, None)) == [AuditVerdict.MISSING, AuditVerdict.PENDING]
    assert verdict_counts(3, (None, live)) == [AuditVerdict.PENDING, AuditVerdict.COMPLETE]
    assert verdict_counts(10, (None, live)) == [AuditVerdict.MISSING, AuditVerdict.COMPLETE]
    assert verdict_counts(-9, (live, None)) == [AuditVerdict.PENDING, AuditVerdict.PENDING]
    assert verdict_counts(-10, (live, None)) == [AuditVerdict.UNTRACKED, AuditVerdict.PENDING]
    exchanged = at(SCATTERED_MS, counted(10), counted(10, B)), at(now_ms, live, counted(4))
    assert topic_result(*exchanged, now_ms=now_ms).windows[0].verdict is AuditVerdict.PENDING
    assert topic_result(exchanged[0], at(now_ms, live, live), now_ms=now_ms).windows[0].verdict is AuditVerdict.MISMATCH


def test_recent_counts_and_pending_windows_together_explain_the_sum() -> None:
    now_ms = 10 * LATE_MS

    def verdict_with(missing: int) -> AuditVerdict:
        sends = ((now_ms - GRACE_MS, 10), (now_ms, 2))
        scattered = at(SCATTERED_MS, counted(12, last_ms=now_ms), counted(12 - missing), sends=sends)
        live = at(now_ms, None, counted(3, last_ms=now_ms))
        return topic_result(scattered, live, now_ms=now_ms).windows[0].verdict

    assert [verdict_with(missing) for missing in (2, 5, 6)] == [
        AuditVerdict.PENDING,
        AuditVerdict.PENDING,
        AuditVerdict.MISSING,
    ]


def test_window_joins_the_sum_after_the_grace_period() -> None:
    def windows(last_ms: int) -> int:
        moved = at(0, counted(3, last_ms=last_ms), counted(2))
        return len(topic_result(at(SCATTERED_MS, ALL, ALL), moved, now_ms=10 * LATE_MS).windows)

    assert [windows(10 * LATE_MS - GRACE_MS + more) for more in (0, 1)] == [1, 2]


def test_collect_facts_stores_count_times_only_for_special_windows() -> None:
    def row(start_ms: int, outcome: str, at_ms: int) -> RowCounts:
        return RowCounts("t", start_ms, outcome, "app", 2, 1, 0, 2, 0, at_ms)

    rows = [row(start_ms, "acknowledged", at_ms) for start_ms in (SCATTERED_MS, OUT_OF_RANGE_MS, 0) for at_ms in (9, 4)]
    scattered, out_of_range, zero = collect_facts([*rows, row(0, "stored", 1)])
    assert scattered.sends == out_of_range.sends == ((4, 2), (9, 2))
    assert zero.sends == ()


def test_merge_windows_adds_all_counts() -> None:
    first = at(
        0, counted(1, 2**63, 5), None, sent=2, consumed=(("a", ALL), ("b", ALL)), loads=((9, 1),), sends=((4, 1),)
    )
    second = at(
        WINDOW_MS, counted(2, 2**63 + 3, 3), counted(4, 4), consumed=(("a", ALL),), loads=((8, 2),), crashed=True
    )
    found = merge_windows([first, dataclasses.replace(second, quarantined=counted(1, 7))], SCATTERED_MS)
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


def test_collect_facts_sums_by_window_and_outcome() -> None:
    def row(window: int, outcome: str, count: int, **more: object) -> RowCounts:
        values = {"application": "app", "size_bytes": 1, "fingerprint": -1, "sent": 0, "crashed": 0, "emitted_at_ms": 4}
        return RowCounts(topic="t", window_start_ms=window, outcome=outcome, messages=count, **{**values, **more})

    first, second = collect_facts(
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


def test_fingerprints_with_different_hashes_are_not_compared() -> None:
    count, other_content, other_hash = Count(5, 2, 1), Count(5, 2, 2), Count(5, 2, 2, hash="blake2b-64")
    assert count.differs_from(other_content)
    assert not count.differs_from(other_hash)
    total = count.plus(other_hash)
    assert total.hash == ""
    assert not total.differs_from(count)
    assert not total.differs_from(other_hash.plus(count).plus(count))
    assert topic_result(at(0, count, other_hash)).verdict is AuditVerdict.COMPLETE


def test_check_offsets_finds_holes_and_overlaps() -> None:
    check = check_offsets([(0, 0, 5), (0, 5, 9), (0, 5, 9), (0, 12, 20), (0, 15, 17), (1, 4, 6), (1, 5, 8)])
    assert check.holes == ((0, 9, 12),)
    assert check.overlaps == ((0, 15, 17), (1, 5, 6))


def result_with_skipped(*windows: WindowFacts, skipped: tuple[tuple[int, int, int], ...]) -> TopicResult:
    offsets = OffsetCheck(skipped=skipped)
    return reconcile_topic("t", windows, offsets, now_ms=10 * LATE_MS, grace_ms=GRACE_MS)


def test_missing_messages_are_no_finding_if_commits_skipped_as_many_offsets() -> None:
    windows = at(0, counted(5), counted(3, B)), at(WINDOW_MS, counted(5), counted(4, B)), at(2 * WINDOW_MS, ALL, ALL)
    found = result_with_skipped(*windows, skipped=((0, 10, 12), (1, 5, 6)))
    assert [window.verdict for window in found.windows] == [
        AuditVerdict.SKIPPED,
        AuditVerdict.SKIPPED,
        AuditVerdict.COMPLETE,
    ]
    assert (found.verdict, found.complete_until_ms) == (AuditVerdict.SKIPPED, 3 * WINDOW_MS)
    assert "partition 0 [10, 12), partition 1 [5, 6)" in found.windows[0].sentence
    assert not has_findings([found])
    one_more = result_with_skipped(*windows, skipped=((0, 10, 12),))
    assert one_more.verdict is AuditVerdict.MISSING and one_more.windows[0].difference == -2


def test_skipped_offsets_do_not_explain_missing_rows() -> None:
    lost = dataclasses.replace(facts(ALL, ALL, counted(3)), window_start_ms=0)
    assert result_with_skipped(lost, skipped=((0, 0, 99),)).verdict is AuditVerdict.MISSING


def test_skipped_offsets_do_not_explain_a_mismatch() -> None:
    assert result_with_skipped(at(0, ALL, counted(5, B)), skipped=((0, 0, 99),)).verdict is AuditVerdict.MISMATCH


def test_untracked_messages_are_no_finding_and_are_counted() -> None:
    mixed_producers = topic_result(
        at(0, ALL, counted(8, B)), at(WINDOW_MS, None, counted(2)), at(2 * WINDOW_MS, ALL, ALL)
    )
    assert (mixed_producers.verdict, mixed_producers.untracked) == (AuditVerdict.UNTRACKED, 5)
    assert not has_findings([mixed_producers])
    assert mixed_producers.complete_until_ms == 3 * WINDOW_MS
    assert (
        mixed_producers.verdict_counts[AuditVerdict.UNTRACKED],
        mixed_producers.verdict_counts[AuditVerdict.COMPLETE],
    ) == (1, 2)
    assert "3 messages" in mixed_producers.sentence
    silent = topic_result(at(0, None, counted(2)))
    assert (silent.verdict, silent.untracked) == (AuditVerdict.COMPLETE, 0)


def test_more_messages_than_sent_are_extra_if_all_producers_count_or_offsets_overlap() -> None:
    window = at(0, ALL, counted(8, B))
    policy = FindingPolicy(all_producers_count=lambda topic: topic == "t")
    strict = reconcile_topic("t", [window], OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS, policy=policy)
    twice = reconcile_topic("t", [window], OffsetCheck(overlaps=((0, 0, 3),)), now_ms=10 * LATE_MS, grace_ms=GRACE_MS)
    for result in (strict, twice):
        assert (result.verdict, result.untracked, has_findings([result])) == (AuditVerdict.EXTRA, 0, True)
        assert result.complete_until_ms is None


def test_extra_rows_are_a_finding_even_with_untracked_producers() -> None:
    doubled = topic_result(dataclasses.replace(at(0, ALL, counted(8, B)), written=counted(9)))
    assert doubled.verdict is AuditVerdict.EXTRA
    lost = topic_result(dataclasses.replace(at(0, ALL, counted(8, B)), written=counted(7)))
    assert lost.verdict is AuditVerdict.MISMATCH


def test_accepted_finding_is_a_finding_again_when_it_changes() -> None:
    def result_with_acceptance(
        stored: int, difference: int = -1, window_start_ms: int = 0, topic: str = "t"
    ) -> TopicResult:
        accepted = Acceptance(
            topic, window_start_ms, AuditVerdict.MISSING, difference, "disk lost", "ann", 10 * LATE_MS
        )
        return reconcile_topic(
            "t",
            [at(0, ALL, counted(stored)), at(WINDOW_MS, ALL, ALL)],
            OffsetCheck(),
            now_ms=10 * LATE_MS,
            grace_ms=GRACE_MS,
            policy=FindingPolicy(accepted=(accepted,)),
        )

    fine = result_with_acceptance(4)
    assert (fine.verdict, has_findings([fine]), fine.complete_until_ms) == (AuditVerdict.ACCEPTED, False, 2 * WINDOW_MS)
    assert all(part in fine.windows[0].sentence for part in ("1970-01-01 06:40Z", "ann", "disk lost"))
    assert fine.windows[0].difference == -1
    assert "1 message " in fine.sentence
    for other in (
        result_with_acceptance(3),
        result_with_acceptance(4, window_start_ms=WINDOW_MS),
        result_with_acceptance(4, topic="u"),
        result_with_acceptance(4, difference=1),
    ):
        assert (other.verdict, has_findings([other])) == (AuditVerdict.MISSING, True)


def test_pending_window_cannot_be_accepted() -> None:
    accepted = Acceptance("t", 0, AuditVerdict.PENDING, -1, "why", "ann", 0)
    result = reconcile_topic(
        "t",
        [at(0, ALL, counted(4))],
        OffsetCheck(),
        now_ms=0,
        grace_ms=GRACE_MS,
        policy=FindingPolicy(accepted=(accepted,)),
    )
    assert result.verdict is AuditVerdict.PENDING


def test_finding_expires_after_its_ttl() -> None:
    def verdict_at_age(age_ms: int, end_ms: int | None = 100 * LATE_MS) -> AuditVerdict:
        window = at(0, counted(5, last_ms=10), counted(4, last_ms=7))
        policy = FindingPolicy(findings_ttl_ms=end_ms)
        result = reconcile_topic("t", [window], OffsetCheck(), now_ms=10 + age_ms, grace_ms=0, policy=policy)
        assert has_findings([result]) == (result.verdict is AuditVerdict.MISSING)
        assert result.complete_until_ms is None
        return result.verdict

    verdicts = [verdict_at_age(100 * LATE_MS - 1), verdict_at_age(100 * LATE_MS), verdict_at_age(200 * LATE_MS, None)]
    assert verdicts == [AuditVerdict.MISSING, AuditVerdict.EXPIRED, AuditVerdict.MISSING]


def test_unknown_window_expires_after_the_ttl() -> None:
    window = WindowFacts("t", 0, ALL, 5)
    policy = FindingPolicy(findings_ttl_ms=LATE_MS)
    result = reconcile_topic("t", [window], OffsetCheck(), now_ms=LATE_MS, grace_ms=GRACE_MS, policy=policy)
    assert result.verdict is AuditVerdict.EXPIRED
    assert all(part in result.windows[0].sentence for part in (AuditVerdict.UNKNOWN, "1970-01-01 00:00Z"))


def test_period_limits_windows_by_message_time() -> None:
    missing = [at(number * WINDOW_MS, ALL, counted(4)) for number in range(3)]
    stray = at(OUT_OF_RANGE_MS, counted(5, last_ms=50), counted(5, last_ms=50))

    def starts(period: Period) -> list[int]:
        results = reconcile_topics([stray, *missing], {}, now_ms=10 * LATE_MS, grace_ms=GRACE_MS, period=period)
        return [window.facts.window_start_ms // WINDOW_MS for result in results for window in result.windows]

    assert starts(Period()) == [-1, 0, 1, 2]
    assert starts(Period(since_ms=WINDOW_MS)) == [1, 2]
    assert starts(Period(since_ms=WINDOW_MS - 1)) == [0, 1, 2]
    assert starts(Period(until_ms=WINDOW_MS)) == [-1, 0]
    assert starts(Period(50, WINDOW_MS + 1)) == [-1, 0, 1]
    assert starts(Period(9 * LATE_MS)) == []
    result = reconcile_topic(
        "t", missing, OffsetCheck(), now_ms=10 * LATE_MS, grace_ms=GRACE_MS, period=Period(since_ms=WINDOW_MS)
    )
    assert (result.totals["sent"], result.verdict_counts) == (10, {AuditVerdict.MISSING: 2})
