"""Loads and compactions of a day from the run log, and the time, topics and problems of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flask import Blueprint, abort, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console
from headrace.console.drawing.loads import (
    HEIGHT,
    LEGEND,
    LINE_Y,
    OUTCOMES,
    WIDTH,
    load_bars,
    load_phases,
    run_key,
    shown_outcome,
    task_bars,
)
from headrace.console.drawing.periods import ShownPeriod
from headrace.console.errors import ConsoleError
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.loader.report import TaskTime
from headrace.loader.run_log import LOAD_LINE, RunLine, TopicOutcome, find_line, lines_between
from headrace.pipeline.load import run_log_path
from headrace.pipeline.status.finding import StatusFinding, finding
from headrace.settings import Settings

blueprint = Blueprint("loads", __name__)

HALF_DAY_MS: Final = 43_200_000
WAITING: Final = "waiting"
SHOWN_TASKS: Final = "tasks"
FINDINGS_MAX: Final = 20

RUNS: Final[PagedTable[RunLine]] = PagedTable(
    "loads",
    (
        TableColumn(
            "started",
            "started",
            lambda one: one.started_at_ms,
            CellKind.TIME,
            href=lambda one: url_for("loads.run", run=run_key(one)),
        ),
        TableColumn(
            "outcome", "outcome", shown_outcome, CellKind.STATE, order=lambda one: OUTCOMES[shown_outcome(one)].rank
        ),
        TableColumn("kind", "kind", lambda one: one.kind),
        TableColumn("duration", "duration", lambda one: one.duration_ms, CellKind.DURATION),
        TableColumn("rows", "rows", lambda one: one.rows, CellKind.NUMBER),
        TableColumn("topics", "topics", lambda one: one.topics, CellKind.NUMBER),
        TableColumn("quarantined", "quarantined", lambda one: one.quarantined or None, CellKind.NUMBER),
        TableColumn("problems", "with problems", lambda one: one.problems or None, CellKind.NUMBER),
        TableColumn("held_back", "held back", lambda one: one.held_back or None, CellKind.NUMBER),
        TableColumn("tasks", "tasks", lambda one: one.tasks or None, CellKind.NUMBER),
        TableColumn("imbalance", "imbalance", lambda one: one.imbalance if one.tasks else None, CellKind.NUMBER),
        TableColumn("commit", "commit", lambda one: one.commit_number or None, CellKind.NUMBER),
        TableColumn("why", "why", lambda one: one.error or one.conflict),
    ),
    lambda one: (shown_outcome(one), one.kind, one.run_id, one.error, one.conflict, *one.problem_topics),
    "No load started within these 24 hours.",
)

TOPICS: Final[PagedTable[TopicOutcome]] = PagedTable(
    "load-topics",
    (
        TableColumn("topic", "topic", lambda one: one.topic, href=lambda one: url_for("topic.page", topic=one.topic)),
        TableColumn("outcome", "outcome", lambda one: one.outcome, CellKind.STATE),
        TableColumn("rows", "rows", lambda one: one.rows, CellKind.NUMBER),
        TableColumn("quarantined", "quarantined", lambda one: one.quarantined or None, CellKind.NUMBER),
        TableColumn("bytes_read", "bytes read", lambda one: one.bytes_read, CellKind.NUMBER),
        TableColumn("problem", "problem", lambda one: one.problem),
    ),
    lambda one: (one.topic, one.outcome, one.problem),
    "The run log has no topics of this run.",
)

TASKS: Final[PagedTable[TaskTime]] = PagedTable(
    "load-tasks",
    (
        TableColumn("task", "task", lambda one: str(one.task), order=lambda one: one.task),
        TableColumn("started", "started", lambda one: one.started_at_ms, CellKind.TIME),
        TableColumn("seconds", "seconds", lambda one: one.duration_ms / 1000, CellKind.NUMBER),
        TableColumn("bytes_read", "bytes read", lambda one: one.bytes_read, CellKind.NUMBER),
        TableColumn("rows", "rows", lambda one: one.rows, CellKind.NUMBER),
    ),
    lambda one: (str(one.task),),
    "The run log has no times of the tasks of this run.",
)


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A line of the run log; None without a line of this run."""

    line: RunLine | None


@blueprint.get("/loads")
def page() -> str | Response:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    period = ShownPeriod.of("24h", request.args.get("at", ""), now_ms)
    revision = _revision()
    if (response := unchanged(revision)) is not None:
        return response
    lines = context.sources.read(
        f"loads {period.first_ms}", lambda: lines_between(_path(settings), period.first_ms, period.end_ms)
    )
    found = lines.value or ()
    extra = {key: request.args[key] for key in ("at",) if key in request.args}
    view = RUNS.view(found, now_ms, extra=extra)
    if (export := view.export(lines)) is not None:
        return export
    loads = [one for one in found if one.kind == LOAD_LINE]
    return render_template(
        "loads.html",
        lines=lines,
        loads=loads,
        bars=load_bars(loads, period),
        counts=_counts(loads),
        longest_ms=max((one.duration_ms for one in loads), default=0),
        period=period,
        earlier_ms=max(0, period.first_ms - HALF_DAY_MS),
        later_ms=period.end_ms + HALF_DAY_MS if period.end_ms < now_ms else None,
        table=view,
        run_key=run_key,
        **_DRAWN,
    )


@blueprint.get("/loads/<run>")
def run(run: str) -> str | Response:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    revision = _revision()
    if (response := unchanged(revision)) is not None:
        return response
    found = context.sources.read(f"load {run}", lambda: FoundRun(find_line(_path(settings), run)))
    line = found.known.line if found.is_known else None
    if found.is_known and line is None:
        abort(404, f"The run log has no load {run}. Loads older than those of the list are deleted from it.")
    shows_tasks = request.args.get("show") == SHOWN_TASKS
    extra = {"show": SHOWN_TASKS} if shows_tasks else {}
    tasks, topics = (line.task_times, line.topic_outcomes) if line is not None else ((), ())
    view = TASKS.view(tasks, now_ms, extra=extra) if shows_tasks else TOPICS.view(topics, now_ms, extra=extra)
    if (export := view.export(found)) is not None:
        return export
    return render_template(
        "load.html",
        run=run,
        found=found,
        line=line,
        outcome=shown_outcome(line) if line is not None else "",
        phases=load_phases(line) if line is not None else [],
        tasks=task_bars(line) if line is not None else [],
        findings=run_findings(line)[:FINDINGS_MAX] if line is not None else [],
        table=view,
        shows_tasks=shows_tasks,
        **_DRAWN,
    )


_DRAWN: Final = {"legend": LEGEND, "outcomes": OUTCOMES, "bars_height": HEIGHT, "bars_width": WIDTH, "line_y": LINE_Y}


def run_findings(line: RunLine) -> list[StatusFinding]:
    """Returns the problems of a load with the commands that show more and that repair them."""
    found = []
    if line.kind != LOAD_LINE:
        return [finding("compaction-failed", "compaction", line.error)] if line.exit_code else []
    if line.outcome == "failed":
        found.append(finding("load-failed", "load", line.error or f"exit code {line.exit_code}"))
    elif line.error:
        kind = "load-registry-refused" if line.is_registry_refused else "load-registry-unavailable"
        found.append(finding(kind, "registry", line.error))
    for one in line.topic_outcomes:
        if one.problem:
            kind = "topic-waiting" if one.outcome == WAITING else "load-problems"
            found.append(finding(kind, one.topic, one.problem))
    return found


def _counts(loads: Sequence[RunLine]) -> list[tuple[str, int]]:
    """Returns the numbers of loads by outcome, the worst outcome first."""
    outcomes = [shown_outcome(one) for one in loads]
    return [(name, outcomes.count(name)) for name in OUTCOMES if name in outcomes]


def _revision() -> Reading[int]:
    """Returns a number that changes with each line of the run log."""
    path = run_log_path(console().settings)

    def read() -> int:
        return path.stat().st_mtime_ns if path is not None and path.exists() else 0

    return console().sources.read("run log", read)


def _path(settings: Settings) -> Path:
    """Returns the path of the run log.

    Raises:
        ConsoleError: loads write no run log (`loader.run_log`).
    """
    path = run_log_path(settings)
    if path is None:
        raise ConsoleError("loader.run_log is off: loads do not write a run log")
    return path
