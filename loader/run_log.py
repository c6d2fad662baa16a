"""Appends a line of JSON per load or compaction to a file, for monitoring. `<path>.1` has the lines before; see
`settings.line_file`. Each line also has the totals of all loads up to it (`RunTotals`), so that counters of monitoring
neither decrease when old lines are deleted nor need to read them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from headrace.loader.report import RunReport, TaskTime
from headrace.loader.rewrite.run import RewriteReport
from headrace.settings.line_file import LineFile

logger = logging.getLogger(__name__)
T = TypeVar("T")

BYTES_MAX: Final = 16 * 1024 * 1024
"""Size from which a file counts as full: some 8,000 loads of a few topics, eight weeks of a load every ten minutes; a
week of loads with the maximum of tasks and topics in their lines."""

LOAD_LINE, COMPACTION_LINE = "load", "compact"
"""The kinds of lines."""

TOTALS: Final = "totals"
"""The key of a line's totals."""

DURATION_BOUNDS_S: Final = (5, 10, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600)
"""Upper bounds of the histogram of durations, in seconds. A different number of bounds starts new totals."""

YIELDED: Final = "yielded"
FAILED_CODE: Final = 2
TOPICS_NAMED_MAX: Final = 20
TASKS_MAX: Final = 200
TOPICS_MAX: Final = 100
PROBLEM_CHARS_MAX: Final = 200
SENTENCE_CHARS_MAX: Final = 1_000


class TopicOutcome(NamedTuple):
    """The effect of a load on one topic. `outcome` is `loaded`, `waiting` (for a schema), or `problems` if it has any;
    `problem` is the first one, "" for none."""

    topic: str
    outcome: str
    rows: int
    quarantined: int
    bytes_read: int
    problem: str


@dataclass(frozen=True, slots=True)
class RunLine:
    """The line of one load, or of one compaction that merged files or had problems, in the run log. Times are in
    milliseconds, `started_at_ms` since 1970. `kind` is `load` or `compact`. The line of a compaction
    counts the replaced files: `rows`, `files` and `bytes_read`.

    `outcome` is `committed` (rows or table changes), `nothing` (nothing to commit), `refused` (at least one commit was
    rejected, usually because another load was faster), `yielded` (another load is running) or `failed`. `error` is the
    reason of the failure, or why the registry could not be used; `is_registry_refused` means that it rejected the
    loader's credentials. `imbalance` is the slowest task's time divided by the mean. `problem_topics` are the first of
    the `problems` topics with problems. `held_back` counts the offsets that the load left unread. `task_times` are the
    longest `TASKS_MAX` of the tasks, by their start. `topic_outcomes` are `TOPICS_MAX` of the topics with an outcome:
    those with problems first, then those with quarantined messages, then those with most bytes.
    """

    started_at_ms: int
    duration_ms: int
    outcome: str
    exit_code: int
    commit_number: int = 0
    run_id: str = ""
    topics: int = 0
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    tasks: int = 0
    read_ms: int = 0
    imbalance_planned: float = 1.0
    imbalance: float = 1.0
    waiting: int = 0
    problems: int = 0
    problem_topics: tuple[str, ...] = ()
    held_back: int = 0
    conflict: str = ""
    error: str = ""
    is_registry_refused: bool = False
    kind: str = LOAD_LINE
    task_times: tuple[TaskTime, ...] = ()
    topic_outcomes: tuple[TopicOutcome, ...] = ()


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Sums over all loads since the run log exists. `runs` counts them by outcome. `durations` counts the loads that
    did not yield by the bounds of `DURATION_BOUNDS_S`, the longer ones last; `duration_ms` is their sum.
    `succeeded_at_ms` is the end of the newest of them that did not fail, 0 for none."""

    runs: dict[str, int] = dataclasses.field(default_factory=dict)
    durations: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS_S) + 1)
    duration_ms: int = 0
    succeeded_at_ms: int = 0

    def __post_init__(self) -> None:
        numbers = (*self.runs.values(), *self.durations, self.duration_ms, self.succeeded_at_ms)
        if len(self.durations) != len(DURATION_BOUNDS_S) + 1 or any(type(number) is not int for number in numbers):
            raise ValueError(f"totals of the run log: expected numbers, found {self}")

    def plus(self, line: RunLine) -> RunTotals:
        """Returns the totals after one more run. Compactions change nothing."""
        if line.kind != LOAD_LINE:
            return self
        runs = {**self.runs, line.outcome: self.runs.get(line.outcome, 0) + 1}
        if line.outcome == YIELDED:
            return dataclasses.replace(self, runs=runs)
        place = sum(line.duration_ms > bound_s * 1000 for bound_s in DURATION_BOUNDS_S)
        durations = tuple(number + (index == place) for index, number in enumerate(self.durations))
        ended_ms = line.started_at_ms + line.duration_ms
        succeeded_at_ms = ended_ms if line.exit_code < FAILED_CODE else self.succeeded_at_ms
        return RunTotals(runs, durations, self.duration_ms + line.duration_ms, succeeded_at_ms)


def line_of(report: RunReport, started_at_ms: int, exit_code: int) -> RunLine:
    """Returns the line of a completed load for the run log.

    Args:
        report: the result of the load.
        started_at_ms: time of its start, in milliseconds since 1970.
        exit_code: the exit code of the command.
    """
    return RunLine(
        started_at_ms=started_at_ms,
        duration_ms=report.duration_ms,
        outcome="refused" if report.conflict else "committed" if report.commit_number else "nothing",
        exit_code=exit_code,
        commit_number=report.commit_number,
        run_id=report.run_id,
        topics=len(report.loaded),
        rows=sum(one.rows for one in report.loaded),
        quarantined=sum(one.quarantined for one in report.loaded),
        files=sum(one.files for one in report.loaded),
        bytes_read=sum(one.bytes_read for one in report.loaded),
        bytes_written=sum(one.bytes_written for one in report.loaded),
        tasks=report.tasks,
        read_ms=report.read_ms,
        imbalance_planned=round(report.imbalance_planned, 3),
        imbalance=round(report.imbalance_measured, 3),
        waiting=len(report.waiting),
        problems=len(report.problems),
        problem_topics=tuple(sorted(report.problems)[:TOPICS_NAMED_MAX]),
        held_back=report.held_back,
        conflict=report.conflict[:SENTENCE_CHARS_MAX],
        error=report.registry_outage[:SENTENCE_CHARS_MAX],
        is_registry_refused=report.is_registry_refused,
        task_times=_longest(report.task_times),
        topic_outcomes=_topic_outcomes(report),
    )


def _longest(times: Sequence[TaskTime]) -> tuple[TaskTime, ...]:
    longest = {one.task for one in sorted(times, key=lambda one: -one.duration_ms)[:TASKS_MAX]}
    return tuple(one for one in times if one.task in longest)


def _topic_outcomes(report: RunReport) -> tuple[TopicOutcome, ...]:
    found = {
        one.topic: TopicOutcome(one.topic, "loaded", one.rows, one.quarantined, one.bytes_read, "")
        for one in report.loaded
    }
    for outcome, problems in (("waiting", report.waiting), ("problems", {t: s[0] for t, s in report.problems.items()})):
        for topic, problem in problems.items():
            known = found.get(topic, TopicOutcome(topic, "", 0, 0, 0, ""))
            found[topic] = known._replace(outcome=outcome, problem=problem[:PROBLEM_CHARS_MAX])
    ordered = sorted(
        found.values(), key=lambda one: (one.outcome != "problems", not one.quarantined, -one.bytes_read, one.topic)
    )
    return tuple(ordered[:TOPICS_MAX])


def compaction_line(report: RewriteReport, started_at_ms: int, duration_ms: int, exit_code: int) -> RunLine:
    """Returns the line of a compaction for the run log."""
    first = next(iter(report.problems.items()), None)
    return RunLine(
        started_at_ms=started_at_ms,
        duration_ms=duration_ms,
        outcome="committed" if report.commit_number else "nothing",
        exit_code=exit_code,
        commit_number=report.commit_number,
        topics=len({one.topic for one in report.time_partitions}),
        rows=sum(one.rows for one in report.time_partitions),
        files=sum(one.files for one in report.time_partitions),
        bytes_read=sum(one.bytes for one in report.time_partitions),
        problems=len(report.problems),
        problem_topics=tuple(sorted(report.problems)[:TOPICS_NAMED_MAX]),
        error=f"{first[0]}: {first[1][0]}"[:SENTENCE_CHARS_MAX] if first else "",
        kind=COMPACTION_LINE,
    )


def append_line(path: Path | None, line: RunLine) -> None:
    """Appends the line of a load to the run log `path`; does nothing if `path` is None. A failure is logged and does
    not fail the load."""
    if path is None:
        return

    def content() -> bytes:
        totals = (newest_totals(path) or RunTotals()).plus(line)
        value = {**dataclasses.asdict(line), TOTALS: dataclasses.asdict(totals)}
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        LineFile(path, BYTES_MAX).append_next(content)
    except OSError as error:
        logger.warning("run_not_logged path=%s error=%s", path, error)


def newest_lines(path: Path, count: int, kind: str = LOAD_LINE) -> tuple[RunLine, ...]:
    """Returns the last `count` lines of a kind in the run log `path` and in `<path>.1`, which has the lines before;
    oldest first. Ignores lines in another format."""
    lines = (line for line in _lines(path) if line.kind == kind)
    return tuple(reversed(tuple(itertools.islice(lines, count))))


def lines_between(path: Path, start_ms: int, end_ms: int) -> tuple[RunLine, ...]:
    """Returns the lines of all kinds that started in `[start_ms, end_ms)`, the newest first. Reads all newer lines, and
    no line below the first one that ended before `start_ms`."""
    ended = itertools.takewhile(lambda one: one.started_at_ms + one.duration_ms >= start_ms, _lines(path))
    return tuple(line for line in ended if start_ms <= line.started_at_ms < end_ms)


def find_line(path: Path, run: str) -> RunLine | None:
    """Returns the newest line with this run id, or of this start in milliseconds: runs without a commit may have no run
    id. Returns None if no line matches."""
    return next((line for line in _lines(path) if run in (line.run_id, str(line.started_at_ms))), None)


def newest_totals(path: Path) -> RunTotals | None:
    """Returns the totals of all loads up to the newest line of the run log `path`; None if no line has any."""
    found = (_fields(RunTotals, value[TOTALS]) for value in _objects(path) if isinstance(value.get(TOTALS), dict))
    return next((one for one in found if one is not None), None)


def _lines(path: Path) -> Iterator[RunLine]:
    """Yields the lines of the run log, the newest first. Ignores lines in another format."""
    return (line for line in map(_run_line, _objects(path)) if line is not None)


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects of the run log, the newest first."""
    for content in LineFile(path, BYTES_MAX).newest_first():
        try:
            value = json.loads(content)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _run_line(value: dict[str, Any]) -> RunLine | None:
    line = _fields(RunLine, value)
    if line is None or not _has_types(line, _EXAMPLE):
        return None
    try:
        line = dataclasses.replace(
            line,
            task_times=tuple(TaskTime(*one) for one in line.task_times),
            topic_outcomes=tuple(TopicOutcome(*one) for one in line.topic_outcomes),
        )
    except TypeError:
        return None
    is_typed = all(isinstance(name, str) for name in line.problem_topics)
    is_typed = is_typed and all(type(number) is int for one in line.task_times for number in one)
    return line if is_typed and all(map(_is_outcome, line.topic_outcomes)) else None


_EXAMPLE: Final = RunLine(0, 0, "", 0)


def _has_types(line: RunLine, example: RunLine) -> bool:
    """Returns whether the values of a line have the types of an example; a float may be an integer."""
    for field in dataclasses.fields(RunLine):
        expected = type(getattr(example, field.name))
        if type(getattr(line, field.name)) not in ((int, float) if expected is float else (expected,)):
            return False
    return True


def _is_outcome(one: TopicOutcome) -> bool:
    texts, numbers = (one.topic, one.outcome, one.problem), (one.rows, one.quarantined, one.bytes_read)
    return all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)


def _fields(kind: type[T], value: dict[str, Any]) -> T | None:
    """Returns a dataclass from its JSON object; None if fields are missing. A later release may have added others."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(
            **{name: tuple(item) if isinstance(item, list) else item for name, item in value.items() if name in names}
        )
    except (TypeError, ValueError, AttributeError):
        return None
