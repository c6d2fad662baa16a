"""Plots the result of a query: in a terminal, or as an SVG file.

The first column is the label of a bar or the position of a point; every other column is a series of numbers. The bars
of a terminal are drawn here, because they show each value exactly as the query returned it; plotext draws lines, pygal
SVG.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.command import CommandError

if TYPE_CHECKING:
    from headrace.pipeline.sql import QueryResult

BAR = "bar"
LINE = "line"
KINDS = (BAR, LINE)

BARS_MAX = 200
POINTS_MAX = 10_000
SERIES_MAX = 8
TICKS_MAX = 6
LABEL_CHARS_MAX = 40
NUMBER_MAX = 1e100  # the arithmetic of the libraries overflows with numbers close to the limits of a double
NUMBER_MIN = 1e-100  # a smaller number is drawn as 0
BAR_CHARS_MIN = 10
LINE_ROWS = 20  # height of a plot of lines in a terminal

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Series:
    """A column of numbers. `values` has the number of each row, None for NULL, NaN and infinities; `texts` has the
    value as the query returned it."""

    name: str
    values: tuple[float | None, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlotData:
    """The rows of a result. `labels` are the texts of the first column, and `positions` the places of the rows on a
    horizontal axis: numbers as they are, times in seconds since 1970, the row's number for other types."""

    labels: tuple[str, ...]
    positions: tuple[float, ...]
    series: tuple[Series, ...]


def plot_data(result: QueryResult, kind: str) -> PlotData:
    """Returns the data of a plot.

    Args:
        kind: `bar` or `line`. A line omits rows without a position, such as NULL.

    Raises:
        CommandError: the result has no rows, too many, or other columns than a label and numbers.
    """
    rows_max = BARS_MAX if kind == BAR else POINTS_MAX
    numbers = [i for i in result.numeric_columns if i > 0]
    if len(result.columns) < 2 or len(numbers) != len(result.columns) - 1 or len(numbers) > SERIES_MAX:
        raise CommandError(
            f"a plot needs a first column of labels or times and 1 to {SERIES_MAX} columns of numbers, found "
            f"{', '.join(f'{name} {kind}' for name, kind in zip(result.columns, result.types, strict=True)) or 'none'}"
        )
    if not 0 < len(result.rows) <= rows_max:
        raise CommandError(f"a {kind} plot needs 1 to {rows_max:,} rows, found {len(result.rows):,}; add a LIMIT")
    is_number = 0 in result.numeric_columns
    positions = [
        _position(row[0], number, result.types[0], is_number=is_number) for number, row in enumerate(result.rows)
    ]
    kept = [i for i, position in enumerate(positions) if kind == BAR or position is not None]
    rows = [result.rows[i] for i in kept]
    data = PlotData(
        tuple(_one_line("NULL" if row[0] is None else row[0]) for row in rows),
        tuple(positions[i] or 0.0 for i in kept),
        tuple(
            Series(
                _one_line(result.columns[i]),
                tuple(_number(row[i]) for row in rows),
                tuple("NULL" if row[i] is None else str(row[i]) for row in rows),
            )
            for i in numbers
        ),
    )
    if not any(value is not None for one in data.series for value in one.values):
        raise CommandError("a plot needs at least one number, found only NULL")
    largest = max((abs(value) for one in data.series for value in (*one.values, *data.positions) if value), default=0)
    if largest > NUMBER_MAX:
        raise CommandError(f"a plot shows numbers up to {NUMBER_MAX:g}, found {largest:g}; exclude it by WHERE")
    return data


def plot_text(data: PlotData, kind: str, width: int, *, with_colour: bool) -> str:
    """Returns the plot as text of `width` columns.

    Args:
        kind: `bar` or `line`.
        with_colour: whether lines of several series may be told apart by colour.
    """
    if kind == BAR:
        return "\n".join(_bars(data, width))
    text = _lines(data, width)
    return text if with_colour else _STYLE.sub("", text)


def plot_svg(data: PlotData, kind: str) -> bytes:
    """Returns the plot as an SVG document without scripts and without references to other files."""
    import pygal

    options = {"js": [], "disable_xml_declaration": False, "show_legend": len(data.series) > 1, "no_data_text": "NULL"}
    if kind == BAR:
        chart = pygal.HorizontalBar(**options)
        # pygal draws the first bar at the bottom.
        chart.x_labels = list(reversed(data.labels))
        for one in data.series:
            chart.add(one.name, list(reversed(one.values)))
    else:
        chart = pygal.XY(**options, dots_size=2, x_label_rotation=20)
        ticks = _ticks(data)
        chart.x_labels = [{"value": data.positions[i], "label": data.labels[i]} for i in ticks]
        for one in data.series:
            chart.add(one.name, [(x, y) for x, y in sorted_points(data, one)])
    if len(data.series) == 1:
        chart.title = data.series[0].name
    # pygal embeds a script with its settings, for the tooltips of a script that is not included.
    root: ElementTree.Element = chart.render_tree()
    for parent in root.iter():
        for script in parent.findall("{*}script"):
            parent.remove(script)
    ElementTree.register_namespace("", SVG_NAMESPACE)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def sorted_points(data: PlotData, series: Series) -> list[tuple[float, float]]:
    """Returns the points of a series in the order of their positions, without NULL."""
    return sorted((x, y) for x, y in zip(data.positions, series.values, strict=True) if y is not None)


def _bars(data: PlotData, width: int) -> list[str]:
    """Returns a line per value: label, bar, value. Bars of negative numbers are shown as `-` instead of blocks."""
    several = len(data.series) > 1
    heads = [_cut(label) for label in data.labels]
    names = [_cut(one.name) if several else "" for one in data.series]
    head_chars, name_chars = max(map(len, heads)), max(map(len, names))
    text_chars = max(len(text) for one in data.series for text in one.texts)
    room = max(BAR_CHARS_MIN, width - head_chars - text_chars - (name_chars + 1 if several else 0) - 2)
    largest = max((abs(value) for one in data.series for value in one.values if value is not None), default=0.0)
    lines = []
    for row, head in enumerate(heads):
        for number, (one, name) in enumerate(zip(data.series, names, strict=True)):
            start = f"{head if number == 0 else '':<{head_chars}} " + (f"{name:<{name_chars}} " if several else "")
            lines.append(f"{start}{_bar(one.values[row], largest, room)} {one.texts[row]}")
    return lines


def _bar(value: float | None, largest: float, room: int) -> str:
    if not value:
        return ""
    eighths = max(1, round(8 * room * (abs(value) / largest)))
    if value < 0:
        return "-" * max(1, eighths // 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _lines(data: PlotData, width: int) -> str:
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, LINE_ROWS)
    for one in data.series:
        points = sorted_points(data, one)
        if not points:
            continue
        plotext.plot([x for x, _ in points], [y for _, y in points], label=one.name)
    ticks = _ticks(data)
    plotext.xticks([data.positions[i] for i in ticks], [_cut(data.labels[i]) for i in ticks])
    return str(plotext.build()).rstrip("\n")


def _ticks(data: PlotData) -> list[int]:
    """Returns the rows whose labels are written below the axis, in the order of their positions."""
    order = sorted(range(len(data.positions)), key=data.positions.__getitem__)
    count = min(TICKS_MAX, len(order))
    return [order[round(i * (len(order) - 1) / max(1, count - 1))] for i in range(count)]


def _position(text: str | None, number: int, kind: str, *, is_number: bool) -> float | None:
    """Returns the place of a row on the horizontal axis, None for NULL and for a number that is not finite."""
    if text is None:
        return None
    if kind in TIME_TYPES:
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:  # before year 1 or after year 9999
            return None
    return _number(text) if is_number else float(number)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return value if abs(value) >= NUMBER_MIN else 0.0


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _cut(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
