"""The last loads, from the run log: a failed load, a load with problems, and loads that do not start or end."""

from __future__ import annotations

from headrace.loader.run_log import RunLine, newest_lines
from headrace.pipeline.load import run_log_path
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, StatusMetric, finding
from headrace.pipeline.status.wording import age_text, count_text

LINES_READ = 50
YIELDED, FAILED = "yielded", "failed"


def loads(context: StatusContext) -> SourceReport:
    """Reports the newest loads."""
    path = run_log_path(context.settings)
    if path is None:
        return SourceReport((StatusFact("last load", "unknown: loader.run_log is off"),))
    lines = newest_lines(path, LINES_READ)
    ran = [line for line in lines if line.outcome != YIELDED]
    if not ran:
        return SourceReport((StatusFact("last load", f"none in {path}"),))
    last = ran[-1]
    good = [line for line in ran if line.outcome != FAILED]
    metrics = [StatusMetric("headrace_load_last_start_timestamp_seconds", last.started_at_ms / 1000)]
    if good:
        metrics.append(StatusMetric("headrace_load_last_success_timestamp_seconds", good[-1].started_at_ms / 1000))
    text = f"{age_text(context.now_ms - last.started_at_ms)} ago, {last.outcome}, exit code {last.exit_code}"
    return SourceReport((StatusFact("last load", text, tuple(metrics)),), tuple(_findings(last)))


def _findings(last: RunLine) -> list[StatusFinding]:
    since = last.started_at_ms
    if last.exit_code > 1:
        return [finding("load-failed", "last load", last.error or f"exit code {last.exit_code}", since_ms=since)]
    if last.problems:
        named = ", ".join(last.problem_topics[:3])
        return [
            finding(
                "load-problems",
                last.problem_topics[0] if last.problem_topics else "load",
                f"{count_text(last.problems, 'topic')} with problems: {named}",
                since_ms=since,
            )
        ]
    return []
