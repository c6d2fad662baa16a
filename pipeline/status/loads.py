"""The last loads, from the run log: a failed load, one with problems, one that runs for too long, and loads that do not
start; and a failed compaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.loader.run_log import (
    COMPACTION_LINE,
    DURATION_BOUNDS_S,
    FAILED_CODE,
    RunLine,
    RunTotals,
    newest_lines,
    newest_totals,
)
from headrace.loader.storage.local.lease import HELD_LONG_FACTOR, LeaseHolder
from headrace.pipeline.load import run_log_path
from headrace.pipeline.status.context import CLOCK_DIFFERENCE_MS_MAX, LATE_FACTOR, StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric, histogram
from headrace.pipeline.status.wording import age_text, count_text, time_text

TREND_LOADS: Final = 3
"""Loads in succession that show a trend."""
IMBALANCE_MAX: Final = 2.0
"""Time of the slowest task divided by the mean."""
IMBALANCE_READ_SHARE_MIN: Final = 0.1
"""Share of the interval between loads below which the read time does not matter, nor its distribution."""


def loads(context: StatusContext) -> SourceReport:
    """Reports the newest loads and the running one."""
    path, ran = run_log_path(context.settings), context.runs
    holder = context.load_holder
    totals = (None if path is None else newest_totals(path)) or RunTotals()
    facts = [_last_load(ran, totals, context, "loader.run_log is off" if path is None else f"none in {path}")]
    findings = [] if holder is None else _stuck(holder, context)
    if holder is not None:
        facts.append(
            StatusFact("running load", f"process {holder.pid} on {holder.host} since {time_text(holder.since_ms)}")
        )
    if ran:
        findings += _problems(ran[-1])
        findings += trends(ran[-TREND_LOADS:], context.load_interval_ms)
        findings += _clock(ran[-1], context)
        # While a load is running, the next line of the run log is on its way; a stuck load is a finding of its own.
        findings += _late(ran, context) if holder is None else []
    if path is not None:
        findings += _compaction(newest_lines(path, 1, COMPACTION_LINE))
    return SourceReport(tuple(facts), tuple(findings))


def _last_load(ran: Sequence[RunLine], totals: RunTotals, context: StatusContext, unknown: str) -> StatusFact:
    metrics = [StatusMetric("headrace_load_interval_seconds", context.load_interval_ms / 1000), *_totals(totals)]
    if not ran:
        return StatusFact("last load", unknown, tuple(metrics))
    last = ran[-1]
    metrics += [
        StatusMetric("headrace_load_last_start_timestamp_seconds", last.started_at_ms / 1000),
        StatusMetric("headrace_load_problem_topics", last.problems),
        StatusMetric("headrace_load_imbalance_ratio", last.imbalance),
    ]
    text = (
        f"{age_text(context.now_ms - _end_ms(last))} ago: {last.outcome}, exit code {last.exit_code}, "
        f"{count_text(last.rows, 'row')} of {count_text(last.topics, 'topic')} in {last.duration_ms / 1000:,.1f} s"
    )
    return StatusFact("last load", text, tuple(metrics))


def _totals(totals: RunTotals) -> Iterator[StatusMetric]:
    for outcome, number in sorted(totals.runs.items()):
        yield StatusMetric("headrace_load_runs_total", number, (("outcome", outcome),))
    if totals.succeeded_at_ms:
        yield StatusMetric("headrace_load_last_success_timestamp_seconds", totals.succeeded_at_ms / 1000)
    yield from histogram(
        "headrace_load_duration_seconds", DURATION_BOUNDS_S, totals.durations, totals.duration_ms / 1000
    )


def _problems(last: RunLine) -> list[StatusFinding]:
    since = last.started_at_ms
    if last.outcome != "failed":
        return []  # topics with problems and a registry that cannot be used are findings of `topics`
    return [finding("load-failed", "last load", last.error or f"exit code {last.exit_code}", since_ms=since)]


def _compaction(newest: Sequence[RunLine]) -> list[StatusFinding]:
    """Returns a finding if the newest compaction that had something to do failed or left files unmerged."""
    return [
        finding("compaction-failed", "last compaction", line.error, since_ms=line.started_at_ms)
        for line in newest
        if line.exit_code
    ]


def _late(ran: Sequence[RunLine], context: StatusContext) -> list[StatusFinding]:
    """Returns a finding if no load has ended for long: the scheduler does not start them, or they are killed."""
    ended_ms = _end_ms(ran[-1])
    limit_ms = LATE_FACTOR * context.load_interval_ms
    if context.now_ms - ended_ms <= limit_ms:
        return []
    problem = (
        f"the last one ended {age_text(context.now_ms - ended_ms)} ago, and loader.interval is "
        f"{age_text(context.load_interval_ms)}"
    )
    if context.live is not None and context.live.load_interval_ms:
        show = f"tail {context.log_dir / 'load.log'}"
        return [finding("load-late", "load", problem, show=show, repair=context.restart_up, since_ms=ended_ms)]
    return [finding("load-late", "load", problem, since_ms=ended_ms)]


def trends(last: Sequence[RunLine], interval_ms: int) -> list[StatusFinding]:
    """Returns findings about loads that fall behind, or whose tasks take different times.

    Args:
        last: the newest `TREND_LOADS` loads, oldest first; fewer show no trend.
        interval_ms: the time between loads.
    """
    if len(last) < TREND_LOADS or any(line.exit_code >= FAILED_CODE for line in last):
        return []
    findings, since_ms = [], last[0].started_at_ms
    durations = [line.duration_ms for line in last]
    # A load reads everything that exists at its start, so messages wait longer exactly if loads take longer.
    if durations == sorted(set(durations)) and durations[0] > interval_ms:
        times = ", ".join(age_text(duration) for duration in durations)
        problem = f"the last {TREND_LOADS} took {times}, and loader.interval is {age_text(interval_ms)}"
        findings.append(finding("lag-grows", "loads", problem, since_ms=since_ms))
    read_ms_min = IMBALANCE_READ_SHARE_MIN * interval_ms
    if all(line.imbalance > IMBALANCE_MAX and line.tasks > 1 and line.read_ms >= read_ms_min for line in last):
        factors = ", ".join(f"{line.imbalance:.1f}" for line in last)
        problem = f"the slowest task of the last {TREND_LOADS} took {factors} times the mean"
        findings.append(finding("load-imbalanced", "loads", problem, since_ms=since_ms))
    return findings


def _clock(last: RunLine, context: StatusContext) -> list[StatusFinding]:
    """Returns a finding if the last load ended in the future: until then, no missing load would be noticed."""
    ahead_ms = _end_ms(last) - context.now_ms
    if ahead_ms <= CLOCK_DIFFERENCE_MS_MAX:
        return []
    problem = f"the last load ended {age_text(ahead_ms)} later than this clock shows, so the clock was set back"
    repair = "synchronize the clocks with NTP; if this clock is right, run headrace load"
    return [finding("clock-differs", "clock of this machine", problem, repair=repair)]


def _stuck(holder: LeaseHolder, context: StatusContext) -> list[StatusFinding]:
    held_ms = context.now_ms - holder.since_ms
    if not holder.since_ms or held_ms <= HELD_LONG_FACTOR * context.load_interval_ms:
        return []
    problem = f"process {holder.pid} on {holder.host} has run for {age_text(held_ms)}, and other loads yield to it"
    show = f"ps -o pid,stat,etime,args -p {holder.pid}"
    repair = f"if it does not progress, kill {holder.pid}: the next load continues"
    return [finding("load-stuck", "running load", problem, show=show, repair=repair, since_ms=holder.since_ms)]


def _end_ms(line: RunLine) -> int:
    return line.started_at_ms + line.duration_ms
