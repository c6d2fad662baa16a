"""The report as text and as JSON."""

from __future__ import annotations

from headrace.audit.facts import Count, WindowFacts
from headrace.audit.offsets import OffsetCheck
from headrace.audit.reconcile import reconcile_topic
from headrace.audit.report import WINDOWS_SHOWN, as_json, has_findings, topic_lines, topics_listing, worst_verdict
from headrace.audit.verdict import AuditVerdict, TopicResult
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, count_text
from support.golden import golden


def topic(lost_windows: int, pending_windows: int = 0, name: str = "t") -> TopicResult:
    good, less = Count(1000, 1, 1), Count(999, 1, 1)
    windows = [WindowFacts(name, 0, good, 1000, stored=good, written=good, consumed=(("app", good),))]
    windows += [
        WindowFacts(name, n * WINDOW_MS, good, 1000, stored=less, written=less) for n in range(1, lost_windows + 1)
    ]
    windows += [
        WindowFacts(name, n * WINDOW_MS, good, 1000, stored=less, written=less)
        for n in range(1000, 1000 + pending_windows)
    ]
    return reconcile_topic(name, windows, OffsetCheck(), now_ms=900 * WINDOW_MS, grace_ms=0)


def test_report_lists_the_most_severe_windows_first_up_to_a_maximum() -> None:
    lines = topic_lines(topic(WINDOWS_SHOWN + 3, 40))
    assert [line.split()[0] for line in lines[2:-3]] == ["missing"] * WINDOWS_SHOWN
    text = "\n".join((*lines, ""))
    assert text == golden("audit/report.txt", text)


def test_tier_without_counts_is_a_dash() -> None:
    listing = topics_listing([topic(1)])
    assert listing.rows == (("t", "missing", "2,000", "2,000", "1,999", "1,999", "-", "-", "1970-01-01 00:10Z"),)


def test_worst_verdict_and_findings_of_several_topics() -> None:
    assert worst_verdict([]) is AuditVerdict.COMPLETE
    assert worst_verdict([topic(0), topic(1), topic(0, 1)]) is AuditVerdict.MISSING
    assert has_findings([topic(1, 1)]) and not has_findings([topic(0, 1)])


def test_json_lists_every_incomplete_window() -> None:
    found = as_json([topic(WINDOWS_SHOWN + 3)], 2)
    assert (found["verdict"], found["unreadable_audit_messages"]) == ("missing", 2)
    assert len(found["topics"][0]["incomplete_windows"]) == WINDOWS_SHOWN + 3
    assert found["topics"][0]["windows"] == {"complete": 1, "missing": WINDOWS_SHOWN + 3}


def test_special_windows_are_shown_by_name() -> None:
    good, less = Count(1000, 1, 1), Count(999, 1, 1)
    windows = [
        WindowFacts("t", start_ms, good, 1000, stored=less, written=less, sends=((1, 1000),))
        for start_ms in sorted(SPECIAL_WINDOWS)
    ]
    result = reconcile_topic("t", windows, OffsetCheck(), now_ms=900 * WINDOW_MS, grace_ms=0)
    scattered, out_of_range = (SPECIAL_WINDOWS[start_ms] for start_ms in sorted(SPECIAL_WINDOWS))
    lines = topic_lines(result)
    assert lines[1].startswith(f"  missing   {scattered}  ")
    assert lines[2].startswith(f"  missing   {out_of_range}  ")
    names = [window["window"] for window in as_json([result], 0)["topics"][0]["incomplete_windows"]]
    assert names == [scattered, out_of_range]
    early = reconcile_topic("t", windows, OffsetCheck(), now_ms=0, grace_ms=WINDOW_MS)
    assert topic_lines(early)[1].startswith(f"  pending   {scattered} … {out_of_range}  2 windows")
    separate = reconcile_topic("t", windows[:1], OffsetCheck(), now_ms=0, grace_ms=2 * WINDOW_MS)
    assert topic_lines(separate)[1].startswith(f"  pending   {scattered}  ")


def test_count_text_pluralizes_the_noun() -> None:
    assert [count_text(n, "row") for n in (0, 1, 2500)] == ["0 rows", "1 row", "2,500 rows"]
