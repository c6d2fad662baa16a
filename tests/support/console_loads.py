"""A day of loads with all outcomes, for the run log of a console."""

from __future__ import annotations

from headrace.loader.report import TaskTime
from headrace.loader.run_log import COMPACTION_LINE, RunLine, TopicOutcome
from support.console import NOW_MS

MINUTE_MS = 60_000
SLOW = RunLine(
    NOW_MS - 30 * MINUTE_MS,
    100_000,
    "committed",
    1,
    commit_number=7,
    run_id="20261118T100000Z-0a",
    topics=2,
    rows=1_000,
    tasks=2,
    imbalance=1.5,
    problems=1,
    problem_topics=("<script>alert(1)</script>",),
    task_times=(
        TaskTime(0, NOW_MS - 30 * MINUTE_MS + 10_000, 20_000, 5_000, 400),
        TaskTime(1, NOW_MS - 30 * MINUTE_MS + 10_000, 60_000, 15_000, 600),
    ),
    topic_outcomes=(
        TopicOutcome("<script>alert(1)</script>", "problems", 0, 3, 10, "too many bad messages; look at them"),
        TopicOutcome("raw", "waiting", 0, 0, 0, "no schema is registered"),
        TopicOutcome("orders", "loaded", 1_000, 0, 20_000, ""),
    ),
)
FAILED = RunLine(NOW_MS - 20 * MINUTE_MS, 3_000, "failed", 2, error="the broker refused the connection")
LINES = (
    RunLine(NOW_MS - 2000 * MINUTE_MS, 500, "committed", 0, run_id="of yesterday"),
    RunLine(NOW_MS - 50 * MINUTE_MS, 9_000, "nothing", 0),
    RunLine(NOW_MS - 40 * MINUTE_MS, 9_000, "refused", 0, run_id="r", conflict="commit 6 was made by another load"),
    SLOW,
    RunLine(SLOW.started_at_ms + 5, 10, "yielded", 0),
    RunLine(NOW_MS - 25 * MINUTE_MS, 4_000, "committed", 0, rows=5, kind=COMPACTION_LINE),
    FAILED,
)
