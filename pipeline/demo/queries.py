"""The queries of the demo on the Hive tables, each with a Python function that computes the expected result.

The two share only the reading of the data set's files: the queries read data that went through producer, registry,
broker, loader, metastore and Spark SQL; the functions loop over the rows of the data set's CSV files.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.demo.data import MIDYEAR_MONTH, TOPICS, Row, read_rows, time_ms

Cell = Any
Table = Sequence[tuple[Cell, ...]]
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class DemoQuery:
    """A query of the demo.

    Attributes:
        title: heading of the result.
        sql: the query, in a dialect that both Spark and Hive run.
        columns: names of the result's columns.
        expected: computes the expected result from the directory of the CSV files.
    """

    title: str
    sql: str
    columns: tuple[str, ...]
    expected: Callable[[Path], Table]


def flights_per_carrier(data: Path) -> Table:
    names = {row["carrier"]: row["name"] for row in read_rows(data, "airlines.csv")}
    counts = Counter(row["carrier"] for row in read_rows(data, "flights.csv"))
    return sorted(((names[carrier], count) for carrier, count in counts.items()), key=lambda row: (-row[1], row[0]))


def mean_delay_per_month(data: Path) -> Table:
    delays = defaultdict(list)
    for row in read_rows(data, "flights.csv"):
        if row["dep_delay"] != "NA":
            delays[int(row["month"])].append(int(row["dep_delay"]))
    return [(month, sum(values) / len(values)) for month, values in sorted(delays.items())]


def delay_by_weather(data: Path) -> Table:
    """Returns the expected number of flights and mean departure delay for each kind of weather. Joins each flight with
    the weather at its airport in its hour of departure.

    Args:
        data: directory of the CSV files.
    """
    weather: dict[tuple[str, int], list[str]] = defaultdict(list)
    for row in read_rows(data, "weather.csv"):
        weather[row["origin"], time_ms(row["time_hour"])].append(_kind_of_weather(row))
    delays_by_kind: dict[str, list[int | None]] = defaultdict(list)
    for row in read_rows(data, "flights.csv"):
        delay = None if row["dep_delay"] == "NA" else int(row["dep_delay"])
        departure_ms = time_ms(row["time_hour"]) + int(row["minute"]) * 60_000
        for kind in weather[row["origin"], departure_ms // HOUR_MS * HOUR_MS]:
            delays_by_kind[kind].append(delay)
    return [
        (kind, len(delays), _mean([delay for delay in delays if delay is not None]))
        for kind, delays in sorted(delays_by_kind.items())
    ]


def evolved_columns(data: Path) -> Table:
    """Returns the expected result of a query on columns that differ between the demo's two schemas of flights: a
    default, a renamed field, a widened field, an extended record.

    Args:
        data: directory of the CSV files.
    """
    rows = list(read_rows(data, "flights.csv"))
    old = sum(int(row["month"]) < MIDYEAR_MONTH for row in rows)
    return [
        (
            len(rows),
            old,
            old,
            len({row["tailnum"] for row in rows if row["tailnum"] != "NA"}),
            sum(int(row["distance"]) for row in rows),
        )
    ]


def events_per_topic(data: Path) -> Table:
    return sorted((name, sum(1 for _ in read_rows(data, topic.file))) for name, topic in TOPICS.items())


def _kind_of_weather(row: Row) -> str:
    rainy = row["precip"] != "NA" and float(row["precip"]) > 0
    windy = row["wind_speed"] != "NA" and float(row["wind_speed"]) >= 20
    return "rain and wind" if rainy and windy else "rain" if rainy else "wind" if windy else "calm"


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None


QUERIES = (
    DemoQuery(
        "Events per topic",
        "SELECT 'airlines' AS topic, count(*) AS events FROM airlines "
        "UNION ALL SELECT 'airports' AS topic, count(*) AS events FROM airports "
        "UNION ALL SELECT 'flights' AS topic, count(*) AS events FROM flights "
        "UNION ALL SELECT 'planes' AS topic, count(*) AS events FROM planes "
        "UNION ALL SELECT 'weather' AS topic, count(*) AS events FROM weather ORDER BY topic",
        ("topic", "events"),
        events_per_topic,
    ),
    DemoQuery(
        "Flights per carrier",
        "SELECT a.name AS airline, count(*) AS flights FROM flights f JOIN airlines a ON f.carrier = a.carrier "
        "GROUP BY a.name ORDER BY flights DESC, airline",
        ("carrier", "flights"),
        flights_per_carrier,
    ),
    DemoQuery(
        "Mean departure delay per month, in minutes",
        "SELECT month, avg(dep_delay) FROM flights GROUP BY month ORDER BY month",
        ("month", "mean delay"),
        mean_delay_per_month,
    ),
    DemoQuery(
        "Departure delay by weather, in minutes (flights joined with the weather of their airport and hour)",
        "SELECT kind, count(*), avg(dep_delay) FROM (SELECT f.dep_delay, "
        "CASE WHEN w.precip > 0 AND w.wind_speed >= 20 THEN 'rain and wind' WHEN w.precip > 0 THEN 'rain' "
        "WHEN w.wind_speed >= 20 THEN 'wind' ELSE 'calm' END AS kind FROM flights f "
        "JOIN weather w ON f.origin = w.origin AND floor(unix_timestamp(f.header.`time`) / 3600) = "
        "floor(unix_timestamp(w.header.`time`) / 3600)) joined GROUP BY kind ORDER BY kind",
        ("weather", "flights", "mean delay"),
        delay_by_weather,
    ),
    DemoQuery(
        "Effects of the schema change (old events have the defaults of new fields)",
        "SELECT count(*), sum(if(feed = 'legacy', 1, 0)), sum(if(header.region = 'unknown', 1, 0)), "
        "count(DISTINCT tail_number), sum(distance) FROM flights",
        ("events", "feed by default", "region by default", "planes (renamed)", "miles (widened)"),
        evolved_columns,
    ),
)


def differences(actual: Table, expected: Table) -> Sequence[str]:
    """Returns the differences between the result of a query (`actual`) and the expected result: one sentence per
    different row, or a single one if the numbers of rows differ. Floats may differ in their last digits."""
    if len(actual) != len(expected):
        return [f"{len(actual)} rows instead of {len(expected)}"]
    return [
        f"row {number}: found {tuple(left)}, expected {tuple(right)}"
        for number, (left, right) in enumerate(zip(actual, expected, strict=True), 1)
        if len(left) != len(right) or not all(map(_are_equal, left, right))
    ]


def _are_equal(left: Cell, right: Cell) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-12)
    return bool(left == right)


def as_text(table: Table) -> Sequence[Sequence[str]]:
    """Returns `table`, the rows of a query's result, with each cell as text, as the demo prints it."""
    return [[_text(cell) for cell in row] for row in table]


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def numeric_columns(table: Table) -> Sequence[int]:
    return [index for index, cell in enumerate(table[0]) if isinstance(cell, (int, float))] if table else []
