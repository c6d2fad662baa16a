"""Charts of a topic: messages by tier, differences, and times to completeness, as SVG path data.

Charts are `WIDTH` wide and scale with the page; strokes do not scale. A chart of more than `COLUMNS_MAX` windows has
one column for each hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.audit.stored import StoredWindow
from headrace.audit.verdict import EXPIRABLE, AuditVerdict
from headrace.audit.window import WINDOW_MS
from headrace.console.drawing.periods import HOUR_MS, ShownPeriod

WIDTH: Final = 1000
TALL: Final = 160
LOW: Final = 60
COLUMNS_MAX: Final = 1008


@dataclass(frozen=True, slots=True)
class Band:
    """A background behind windows with a finding."""

    state: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class TopicCharts:
    """The charts of a topic and the largest values in them. Paths are "" if there is nothing to draw."""

    sent: str
    stored: str
    most: int
    column_ms: int
    bands: tuple[Band, ...]
    missing: str
    extra: str
    worst: int
    times: str
    slowest_ms: int


@dataclass(slots=True)
class _Column:
    """The sums of the windows of a column."""

    sent: int | None = None
    stored: int | None = None
    missing: int = 0
    extra: int = 0
    time_ms: int | None = None
    state: str = ""


def topic_charts(windows: Iterable[StoredWindow], period: ShownPeriod) -> TopicCharts:
    """Draws the windows of a period. Windows outside of it, and those without a time, are left out."""
    column_ms = WINDOW_MS if period.windows <= COLUMNS_MAX else HOUR_MS
    count = period.windows * WINDOW_MS // column_ms
    columns = [_Column() for _ in range(count)]
    for window in windows:
        place = (window.window_start_ms - period.first_ms) // column_ms
        if 0 <= place < count:
            _add(columns[place], window)
    width = WIDTH / count
    most = max((max(one.sent or 0, one.stored or 0) for one in columns), default=0)
    worst = max((max(one.missing, one.extra) for one in columns), default=0)
    slowest = max((one.time_ms or 0 for one in columns), default=0)
    return TopicCharts(
        sent=_steps(columns, width, most, lambda one: one.sent),
        stored=_area(columns, width, most, lambda one: one.stored),
        most=most,
        column_ms=column_ms,
        bands=_bands(columns, width),
        missing=_bars(columns, width, worst, LOW / 2, lambda one: -one.missing),
        extra=_bars(columns, width, worst, LOW / 2, lambda one: one.extra),
        worst=worst,
        times=_bars(columns, width, slowest, LOW, lambda one: one.time_ms),
        slowest_ms=slowest,
    )


def _add(column: _Column, window: StoredWindow) -> None:
    column.sent = (column.sent or 0) + window.sent
    if window.stored is not None:
        column.stored = (column.stored or 0) + window.stored
    if window.verdict in _BAND_VERDICTS:
        column.missing += window.missing
        column.extra += window.extra
        column.state = max(column.state, window.verdict.value, key=_BAND_ORDER.index)
    reached_ms = window.loaded_times.share_999_ms
    if reached_ms is not None:
        column.time_ms = max(column.time_ms or 0, reached_ms)


_BAND_VERDICTS: Final = frozenset({*EXPIRABLE, AuditVerdict.ACCEPTED})
_BAND_ORDER: Final = ("", "accepted", "unknown", "extra", "missing", "mismatch")


def _runs(
    columns: Sequence[_Column], width: float, most: int, value: Callable[[_Column], int | None]
) -> Iterator[tuple[float, str]]:
    """Returns (start, path) of each run of columns with a value, as steps; equal columns are one step."""
    at = 0
    while at < len(columns):
        if value(columns[at]) is None:
            at += 1
            continue
        start, last_y = at, ""
        parts: list[str] = []
        while at < len(columns) and (number := value(columns[at])) is not None:
            y = f"{TALL - (TALL - 10) * number / (most or 1):.1f}"
            if y != last_y:
                parts.append(f"{f'H{at * width:.1f}' if parts else ''}V{y}")
                last_y = y
            at += 1
        yield start * width, "".join(parts) + f"H{at * width:.1f}"


def _steps(columns: Sequence[_Column], width: float, most: int, value: Callable[[_Column], int | None]) -> str:
    """Returns a step line with gaps where there is no value."""
    found = []
    for start, path in _runs(columns, width, most, value):
        first_y, _, rest = path.removeprefix("V").partition("H")
        found.append(f"M{start:.1f} {first_y}H{rest}")
    return "".join(found)


def _area(columns: Sequence[_Column], width: float, most: int, value: Callable[[_Column], int | None]) -> str:
    return "".join(f"M{start:.1f} {TALL}{path}V{TALL}z" for start, path in _runs(columns, width, most, value))


def _bars(
    columns: Sequence[_Column], width: float, most: int, base: float, value: Callable[[_Column], int | None]
) -> str:
    """Returns bars on the line `base`, upwards for positive values. Every value that is not 0 is visible."""
    parts = []
    for at, column in enumerate(columns):
        number = value(column)
        if number:
            height = max(1.5, base * abs(number) / most) * (1 if number > 0 else -1)
            parts.append(f"M{at * width:.1f} {base:g}v{-height:.1f}h{width * 0.8:.2f}V{base:g}z")
    return "".join(parts)


def _bands(columns: Sequence[_Column], width: float) -> tuple[Band, ...]:
    """Returns a background for each run of columns with one state."""
    found: list[Band] = []
    start = 0
    for at in range(1, len(columns) + 1):
        if at == len(columns) or columns[at].state != columns[start].state:
            if columns[start].state:
                found.append(Band(columns[start].state, round(start * width, 1), round((at - start) * width, 1)))
            start = at
    return tuple(found)
