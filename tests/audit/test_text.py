"""The report as text and as JSON."""

from __future__ import annotations

from headrace.audit.facts import Count, WindowFacts
from headrace.audit.offsets import OffsetCheck
from headrace.audit.reconcile import reconcile_topic
from headrace.audit.report import WINDOWS_SHOWN, as_json, has_findings, topic_lines, topics_listing, worst_state
from headrace.audit.verdict import State, TopicVerdict
from headrace.audit.window import NAMES, WINDOW_MS, many
from support.golden import golden


def topic(lost_windows: int, pending_windows: int = 0, name: str = "t") -> TopicVerdict:
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


def test_report_lists_the_worst_windows_first_up_to_a_maximum() -> None:
    lines = topic_lines(topic(WINDOWS_SHOWN + 3, 40))
    assert [line.split()[0] for line in lines[2:-2]] == ["short"] * WINDOWS_SHOWN
    text = "\n".join((*lines, ""))
    assert text == golden("audit/report.txt", text)


def test_a_tier_that_said_nothing_is_a_dash() -> None:
    listing = topics_listing([topic(1)])
    assert listing.rows == (("t", "short", "2,000", "2,000", "1,999", "1,999", "-", "-", "1970-01-01 00:10Z"),)


def test_the_worst_of_all_decides() -> None:
    assert worst_state([]) is State.COMPLETE
    assert worst_state([topic(0), topic(1), topic(0, 1)]) is State.SHORT
    assert has_findings([topic(1, 1)]) and not has_findings([topic(0, 1)])


def test_programs_get_every_open_window() -> None:
    found = as_json([topic(WINDOWS_SHOWN + 3)], 2)
    assert (found["verdict"], found["unreadable_audit_messages"]) == ("short", 2)
    assert len(found["topics"][0]["not_complete"]) == WINDOWS_SHOWN + 3
    assert found["topics"][0]["windows"] == {"complete": 1, "short": WINDOWS_SHOWN + 3}


def test_windows_of_no_time_are_named_in_words() -> None:
    good, less = Count(1000, 1, 1), Count(999, 1, 1)
    windows = [
        WindowFacts("t", start_ms, good, 1000, stored=less, written=less, sends=((1, 1000),))
        for start_ms in sorted(NAMES)
    ]
    verdict = reconcile_topic("t", windows, OffsetCheck(), now_ms=900 * WINDOW_MS, grace_ms=0)
    scattered, out_of_range = (NAMES[start_ms] for start_ms in sorted(NAMES))
    lines = topic_lines(verdict)
    assert lines[1].startswith(f"  short    {scattered}  ")
    assert lines[2].startswith(f"  short    {out_of_range}  ")
    names = [window["window"] for window in as_json([verdict], 0)["topics"][0]["not_complete"]]
    assert names == [scattered, out_of_range]
    early = reconcile_topic("t", windows, OffsetCheck(), now_ms=0, grace_ms=WINDOW_MS)
    assert topic_lines(early)[1].startswith(f"  pending  {scattered} … {out_of_range}  2 windows")
    alone = reconcile_topic("t", windows[:1], OffsetCheck(), now_ms=0, grace_ms=2 * WINDOW_MS)
    assert topic_lines(alone)[1].startswith(f"  pending  {scattered}  ")


def test_nouns_follow_their_counts() -> None:
    assert [many(n, "row") for n in (0, 1, 2500)] == ["0 rows", "1 row", "2,500 rows"]
