"""A day of loads as bars, and the phases and tasks of one load as a timeline.

The height of a bar is the duration of the load, and its shape is the outcome: a failed load also hangs below the line,
one with problems has a mark above it, and one without anything to commit is narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.console.drawing.periods import ShownPeriod
from headrace.loader.report import TaskTime
from headrace.loader.run_log import RunLine

WIDTH: Final = 1000
LINE_Y: Final = 120
HEIGHT: Final = 150
TALLEST: Final = 104
COLUMNS: Final = 720
"""Places of bars. Of several loads at one place, the one with the worst outcome is drawn, or the longest."""
BAR_WIDTH_MIN: Final = 2.4
PROBLEMS: Final = "problems"
TASK_WIDTH_MIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class OutcomeLook:
    """How an outcome is drawn: the share of the width of a bar, whether the bar stands on the line, how far it hangs
    below it, and whether it has a mark above. The worst outcome has the largest `rank`."""

    name: str
    rank: int
    share: float
    stands: bool
    depth: int
    has_mark: bool
    meaning: str


OUTCOMES: Final[Mapping[str, OutcomeLook]] = {
    look.name: look
    for look in (
        OutcomeLook("failed", 5, 1, True, 24, False, "the load ended with an error"),
        OutcomeLook("refused", 4, 1, True, 12, False, "a commit was rejected, usually because another load was faster"),
        OutcomeLook(PROBLEMS, 3, 1, True, 0, True, "topics with problems, or no registry"),
        OutcomeLook("committed", 2, 1, True, 0, False, "rows or table changes"),
        OutcomeLook("nothing", 1, 0.35, True, 0, False, "nothing to commit"),
        OutcomeLook("yielded", 0, 1, False, 6, False, "another load was running"),
    )
}
"""By the shown outcome, the worst first."""


def shown_outcome(line: RunLine) -> str:
    """Returns a key of `OUTCOMES`. A load that did not fail has problems if its exit code is not 0."""
    if line.outcome in ("committed", "nothing"):
        return PROBLEMS if line.exit_code else line.outcome
    return line.outcome if line.outcome in OUTCOMES else PROBLEMS  # of a later release


def run_key(line: RunLine) -> str:
    """Returns the text that identifies a line in URLs: the run id, or the start for a run without one."""
    return line.run_id or str(line.started_at_ms)


@dataclass(frozen=True, slots=True)
class LoadBar:
    """The bar of one load. `hidden` counts the further loads at its place."""

    line: RunLine
    outcome: str
    path: str
    hidden: int


def load_bars(lines: Iterable[RunLine], period: ShownPeriod) -> list[LoadBar]:
    """Returns the bars of loads in a period, by their start. The tallest bar is the longest load."""
    places: dict[int, list[RunLine]] = {}
    for line in lines:
        place = int(period.place(line.started_at_ms) * COLUMNS)
        if 0 <= place < COLUMNS:
            places.setdefault(place, []).append(line)
    length_ms = period.end_ms - period.first_ms
    longest_ms = max((line.duration_ms for found in places.values() for line in found), default=0) or 1
    bars = []
    for _, found in sorted(places.items()):
        line = max(found, key=lambda one: (OUTCOMES[shown_outcome(one)].rank, one.duration_ms))
        x = period.place(line.started_at_ms) * WIDTH
        width = min(WIDTH - x, max(BAR_WIDTH_MIN, WIDTH * line.duration_ms / length_ms))
        path = bar_path(OUTCOMES[shown_outcome(line)], x, width, line.duration_ms / longest_ms)
        bars.append(LoadBar(line, shown_outcome(line), path, len(found) - 1))
    return bars


def bar_path(look: OutcomeLook, x: float, width: float, share: float) -> str:
    """Returns the path data of a bar.

    Args:
        share: the duration as a share of the longest one, from 0 to 1.
    """
    height = max(2.0, TALLEST * min(1.0, max(0.0, share))) if look.stands else 0.0
    wide = width * look.share
    path = f"M{x:.1f} {LINE_Y - height:.1f}h{wide:.1f}V{LINE_Y + look.depth}h-{wide:.1f}z"
    if look.has_mark:
        path += f"M{x:.1f} {LINE_Y - height - 10:.1f}h{wide:.1f}v6h-{wide:.1f}z"
    return path


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """A phase of a load. `x` and `width` are its place in a timeline that is `WIDTH` wide."""

    name: str
    duration_ms: int
    x: float
    width: float


def load_phases(line: RunLine) -> list[LoadPhase]:
    """Returns the phases of a load; none if the times of its tasks are unknown, or not within the load."""
    if not line.task_times or line.duration_ms <= 0:
        return []
    first_ms = min(one.started_at_ms for one in line.task_times) - line.started_at_ms
    last_ms = max(one.started_at_ms + one.duration_ms for one in line.task_times) - line.started_at_ms
    if not 0 <= first_ms <= last_ms <= line.duration_ms:
        return []
    bounds = (0, first_ms, last_ms, line.duration_ms)
    names = ("plan", "read and write", "commit and apply")
    scale = WIDTH / line.duration_ms
    return [
        LoadPhase(name, end - start, round(start * scale, 1), round((end - start) * scale, 1))
        for name, start, end in zip(names, bounds, bounds[1:], strict=False)
    ]


@dataclass(frozen=True, slots=True)
class TaskBar:
    """The bar of a task in a timeline that is `WIDTH` wide. `is_outside` states that the task did not run within the
    load by the clock of its host."""

    task: TaskTime
    x: float
    width: float
    is_slowest: bool
    is_outside: bool


def task_bars(line: RunLine) -> list[TaskBar]:
    """Returns the bars of the tasks of a load, in their order. Bars outside of the load are moved into it."""
    length_ms = max(1, line.duration_ms)
    slowest_ms = max((one.duration_ms for one in line.task_times), default=0)
    bars = []
    for one in line.task_times:
        start_ms = one.started_at_ms - line.started_at_ms
        is_outside = not 0 <= start_ms <= start_ms + one.duration_ms <= length_ms
        width = min(float(WIDTH), max(TASK_WIDTH_MIN, WIDTH * max(0, one.duration_ms) / length_ms))
        x = min(WIDTH - width, max(0.0, WIDTH * start_ms / length_ms))
        is_slowest = len(line.task_times) > 1 and one.duration_ms == slowest_ms
        bars.append(TaskBar(one, round(x, 1), round(width, 1), is_slowest, is_outside))
    return bars


LEGEND: Final = tuple((look, bar_path(look, 3, 10, 0.6)) for look in OUTCOMES.values())
"""The outcomes with a bar for the legend, in a drawing 16 wide and `HEIGHT` high."""
