"""The demo's expected results: known totals of the data set, and the comparison of results."""

from __future__ import annotations

import io
import json
import re

import pytest

from headrace.avro_schema import parse_schema
from headrace.pipeline.demo.data import TOPICS, find_data, flight_event, flight_event_v2, read_rows
from headrace.pipeline.demo.flights import schema_text
from headrace.pipeline.demo.queries import (
    QUERIES,
    as_text,
    differences,
    evolved_columns,
    flights_per_carrier,
    numeric_columns,
)
from headrace.pipeline.demo.steps import Progress


def test_data_set_has_the_expected_number_of_rows() -> None:
    data = find_data()
    assert {name: sum(1 for _ in read_rows(data, topic.file)) for name, topic in TOPICS.items()} == {
        name: topic.rows for name, topic in TOPICS.items()
    }


def test_expected_results_match_known_totals() -> None:
    data = find_data()
    carriers = flights_per_carrier(data)
    assert carriers[0] == ("United Air Lines Inc.", 58_665)
    assert sum(count for _, count in carriers) == 336_776
    assert evolved_columns(data) == [(336_776, 166_158, 166_158, 4_043, 350_217_607)]


@pytest.mark.parametrize(
    "name", ["flights-v1", "flights-v2", "flights-v3", "weather", "planes", "airlines", "airports"]
)
def test_every_schema_of_the_demo_parses(name: str) -> None:
    text = schema_text(name)
    assert parse_schema(text, source=f"{name}.avsc").text == text


def test_events_fit_their_schemas() -> None:
    row = next(iter(read_rows(find_data(), "flights.csv")))
    for name, event in (("flights-v1", flight_event(row)), ("flights-v2", flight_event_v2(flight_event(row)))):
        text = schema_text(name)
        assert set(event) == {field["name"] for field in json.loads(text)["fields"]}


def test_differences_reports_wrong_rows() -> None:
    assert differences([("a", 1.0)], [("a", 1.0 + 1e-15)]) == []
    (line,) = differences([("a", 1)], [("a", 2)])
    assert re.search(r"\b1: .*\('a', 1\).*\('a', 2\)", line)
    (line,) = differences([], [("a", 2)])
    assert re.findall(r"\d+", line) == ["0", "1"]
    assert differences([("a",)], [("a", 2)]) != []


def test_as_text_formats_numbers() -> None:
    assert as_text([("x", 1234, 1.5)]) == [["x", "1,234", "1.50"]]
    assert list(numeric_columns([("x", 1, 2.0)])) == [1, 2]
    assert len({query.title for query in QUERIES}) == len(QUERIES)


def test_progress_in_a_log_is_plain_lines() -> None:
    out = io.StringIO()
    progress = Progress("flights", 2000, out)
    progress.add(1000)
    progress.add(1000)
    progress.finish()
    lines = out.getvalue().splitlines()
    assert lines[-1].startswith("flights  2,000 of 2,000 (100%), ")
    assert "\r" not in out.getvalue()
