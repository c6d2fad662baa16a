"""Tables of pages: search, order, pages and exports."""

from __future__ import annotations

import csv
import io
import json

import pytest
from flask import Flask

from headrace.console.formats import clock, span, utc, visible
from headrace.console.tables import ROWS_PER_PAGE, CellKind, PagedTable, TableColumn, TableView, csv_text

Row = tuple[str, int | None]
TABLE: PagedTable[Row] = PagedTable(
    "topics",
    (
        TableColumn("name", "topic", lambda row: row[0]),
        TableColumn("count", "messages", lambda row: row[1], CellKind.NUMBER),
        TableColumn("at", "last", lambda row: row[1], CellKind.TIME),
    ),
    lambda row: (row[0],),
    "There are no topics.",
)
ROWS: list[Row] = [(f"topic-{number:04}", number if number % 7 else None) for number in range(250)]


def view(query: str, rows: list[Row] = ROWS) -> TableView[Row]:
    with Flask("t").test_request_context(f"/topics?{query}"):
        return TABLE.view(rows, 0)


@pytest.mark.parametrize(
    ("query", "shown", "total", "first_row"),
    [
        ("", ROWS_PER_PAGE, 250, "topic-0000"),
        ("page=3", 50, 250, "topic-0200"),
        ("page=99", 50, 250, "topic-0200"),
        ("page=-1", ROWS_PER_PAGE, 250, "topic-0000"),
        ("page=%D9%A3", ROWS_PER_PAGE, 250, "topic-0000"),
        ("page=1e9", ROWS_PER_PAGE, 250, "topic-0000"),
        ("q=TOPIC-024", 10, 10, "topic-0240"),
        ("q=nothing", 0, 0, ""),
        ("sort=-name", ROWS_PER_PAGE, 250, "topic-0249"),
        ("sort=-count", ROWS_PER_PAGE, 250, "topic-0249"),
        ("sort=count", ROWS_PER_PAGE, 250, "topic-0001"),
        ("sort=__class__", ROWS_PER_PAGE, 250, "topic-0000"),
    ],
)
def test_page_has_the_rows_of_the_url(query: str, shown: int, total: int, first_row: str) -> None:
    found = view(query)
    assert (len(found.shown), found.total) == (shown, total)
    assert not found.shown or found.shown[0][0] == first_row


def test_rows_without_value_are_last_in_both_orders() -> None:
    for order in ("count", "-count"):
        assert [row[1] for row in view(f"sort={order}&page=3").shown][-1] is None


def test_url_keeps_the_state_of_the_view() -> None:
    with Flask("t").test_request_context("/topics?q=a&sort=name&page=2"):
        found = TABLE.view([(f"a{number}", 1) for number in range(300)], 0, extra={"range": "7d"})
        assert found.url(page=3) == "/topics?q=a&sort=name&page=3&range=7d"
        assert found.url(page=1) == "/topics?q=a&sort=name&range=7d"
        assert found.sort_url(TABLE.columns[0]) == "/topics?q=a&sort=-name&range=7d"
        assert found.sort_url(TABLE.columns[1]) == "/topics?q=a&sort=-count&range=7d"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_never_has_a_formula(start: str) -> None:
    with Flask("t").test_request_context("/topics?as=csv"):
        response = TABLE.view([(f"{start}cmd|' /C calc'!A0", 1), ('a"b,c', -5)], 0).export()
    assert response is not None
    assert response.headers["Content-Disposition"] == 'attachment; filename="headrace-topics.csv"'
    rows = list(csv.reader(io.StringIO(response.get_data(as_text=True), newline="")))
    assert rows[0] == ["name", "count", "at"]
    assert rows[1][0].startswith(f"'{visible(start)}cmd")
    assert rows[2][:2] == ['a"b,c', "-5"]


def test_csv_shows_controls_as_escapes() -> None:
    assert csv_text(["name"], [["moc\u202elive\x1b[2J"]]).splitlines()[1] == r"moc\u202elive\u001b[2J"


def test_json_has_all_matching_rows() -> None:
    with Flask("t").test_request_context("/topics?as=json&q=topic-00&page=2"):
        response = TABLE.view(ROWS, 0).export()
    assert response is not None
    found = json.loads(response.get_data(as_text=True))
    assert (found["total"], len(found["rows"])) == (100, 100)
    assert found["rows"][1] == {"name": "topic-0001", "count": 1, "at": "1970-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ä 漢 🙂", "plain – ä 漢 🙂"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x00b\x1b[2J", "a\\u0000b\\u001b[2J"),
        ("a\ud800b", "a\\ud800b"),
        ("line\nline\t", "line\nline\t"),
        ("\u2066\ufeff\u200b", "\\u2066\\ufeff\\u200b"),
    ],
)
def test_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_times_and_durations() -> None:
    now = 1_795_000_200_000
    assert clock(now - 3_600_000, now) == utc(now - 3_600_000, "%H:%M")
    assert clock(now - 86_400_000, now) == utc(now - 86_400_000, "%b %d, %H:%M")
    assert clock(0, now) == "1970-01-01 00:00"
    assert utc(10**15) == f"{10**15} ms"
    assert utc(-(10**15)) == f"{-(10**15)} ms"
    assert [span(ms) for ms in (None, 0, 59_999, 60_000, 3_600_000, 3_661_000, 90_000_000)] == [
        "–",
        "0 s",
        "59 s",
        "1 min",
        "1 h",
        "1 h 1 min",
        "1 d 1 h",
    ]
