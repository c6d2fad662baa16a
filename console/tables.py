"""Tables of pages: search, sorting and pages on the server, with all state in the URL, and the same rows as CSV and
JSON.

The parameters of the URL are `q` (search), `sort` (a column's key, with `-` for descending), `page` (from 1) and `as`
(`csv` or `json`). The template shows a view with the macro `table` of `_table.html`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from flask import Response, abort, request

from headrace.console.formats import UNKNOWN, clock, iso, number, size, span, visible
from headrace.console.sources import Reading

T = TypeVar("T")
Value = str | int | float | None

ROWS_PER_PAGE: Final = 100
EXPORT_ROWS_MAX: Final = 100_000
QUERY_CHARS_MAX: Final = 200
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets run a cell that begins with one of these."""
EXPORT_FORMS: Final = ("csv", "json")


class CellKind(StrEnum):
    """How the values of a column are shown: `TIME` and `DURATION` are milliseconds, `BYTES` a number of
    bytes, `STATE` the name of a state."""

    TEXT = "text"
    NUMBER = "number"
    BYTES = "bytes"
    TIME = "time"
    DURATION = "duration"
    STATE = "state"
    CODE = "code"


RIGHT: Final = frozenset({CellKind.NUMBER, CellKind.BYTES, CellKind.DURATION})


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """A column. `key` names it in URLs, CSV and JSON; `href` returns the link of a row's cell, "" for none. `order`
    returns the value that the column is sorted by; by default it is `value`."""

    key: str
    title: str
    value: Callable[[T], Value]
    kind: CellKind = CellKind.TEXT
    href: Callable[[T], str] | None = None
    order: Callable[[T], Value] | None = None

    @property
    def is_right(self) -> bool:
        return self.kind in RIGHT


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a page: its value, the text that is shown, and the target of its link, "" without one."""

    kind: CellKind
    value: Value
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class TableView(Generic[T]):
    """The rows of one page of a table, of the `total` rows that match the search, of `all_rows` rows."""

    table: PagedTable[T]
    matching: Sequence[T]
    all_rows: int
    query: str
    sort: str
    page: int
    now_ms: int
    extra: Mapping[str, str]

    @property
    def total(self) -> int:
        return len(self.matching)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.table.page_rows))

    @property
    def first(self) -> int:
        """The number of the first shown row, from 1; 0 without rows."""
        return min(self.total, (self.page - 1) * self.table.page_rows + 1)

    @property
    def shown(self) -> Sequence[T]:
        return self.matching[(self.page - 1) * self.table.page_rows : self.page * self.table.page_rows]

    @property
    def rows(self) -> list[list[TableCell]]:
        return [[self._cell(column, row) for column in self.table.columns] for row in self.shown]

    def _cell(self, column: TableColumn[T], row: T) -> TableCell:
        value = column.value(row)
        href = "" if column.href is None else column.href(row)
        return TableCell(column.kind, value, _text(column.kind, value, self.now_ms), href)

    def url(self, **changes: str | int) -> str:
        """Returns the URL of this view with changed parameters; the first page and an empty search are left out."""
        values: dict[str, str | int] = {"q": self.query, "sort": self.sort, "page": self.page, **self.extra, **changes}
        shown = {key: value for key, value in values.items() if value not in ("", None) and (key, value) != ("page", 1)}
        query = urlencode(shown, errors="replace")
        return f"{request.script_root}{request.path}" + (f"?{query}" if query else "")

    def sort_url(self, column: TableColumn[T]) -> str:
        """Returns the URL that sorts by a column: numbers and times descending first, and the other way when the table
        is sorted by the column already."""
        starts_descending = column.kind in RIGHT or column.kind in (CellKind.TIME, CellKind.STATE)
        orders = (f"-{column.key}", column.key) if starts_descending else (column.key, f"-{column.key}")
        return self.url(sort=orders[1] if self.sort == orders[0] else orders[0], page=1)

    def order_of(self, column: TableColumn[T]) -> str:
        """Returns the value of `aria-sort`; "" if the table is not sorted by this column."""
        return {column.key: "ascending", f"-{column.key}": "descending"}.get(self.sort, "")

    def export(self, *readings: Reading[Any]) -> Response | None:
        """Returns all matching rows as CSV or JSON, as the parameter `as` requires; None for a page.

        Args:
            readings: the sources of the rows.

        Raises:
            ServiceUnavailable: see `refuse_unknown_rows`.
        """
        if not is_export():
            return None
        refuse_unknown_rows(*readings)
        form = request.args["as"]
        rows = self.matching[:EXPORT_ROWS_MAX]
        values = [[_plain(column.kind, column.value(row)) for column in self.table.columns] for row in rows]
        keys = [column.key for column in self.table.columns]
        if form == "csv":
            response = Response(csv_text(keys, values), content_type="text/csv; charset=utf-8")
        else:
            text = json.dumps({"total": self.total, "rows": [dict(zip(keys, row, strict=True)) for row in values]})
            response = Response(text, content_type="application/json")
        name = f"headrace-{self.table.name}.{form}"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return response


@dataclass(frozen=True, slots=True)
class PagedTable(Generic[T]):
    """A table. `name` is part of the names of exported files. `searched` returns the texts of a row that the search
    looks into, and `empty` is the sentence that a table without rows shows. `page_rows` is the number of rows
    of a page."""

    name: str
    columns: tuple[TableColumn[T], ...]
    searched: Callable[[T], Iterable[str]]
    empty: str
    page_rows: int = ROWS_PER_PAGE
    keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(column.key for column in self.columns))

    def view(
        self, rows: Sequence[T], now_ms: int, *, query: str | None = None, extra: Mapping[str, str] | None = None
    ) -> TableView[T]:
        """Returns the view for the parameters of the request. Unknown values of parameters are ignored.

        Args:
            rows: all rows, in the order of a table that is not sorted by a column.
            now_ms: the time to which shortened times refer.
            query: the search, if the caller has already applied it; by default the parameter `q` is applied here.
            extra: further parameters of the page, which its links keep.
        """
        matching = rows
        if query is None:
            query = query_text()
            lower = query.lower()
            matching = (
                [row for row in rows if any(lower in text.lower() for text in self.searched(row))] if query else rows
            )
        sort = request.args.get("sort", "")
        column = next((one for one in self.columns if one.key == sort.removeprefix("-")), None)
        if column is None:
            sort = ""
        else:
            matching = _sorted(matching, column, descending=sort.startswith("-"))
        pages = max(1, -(-len(matching) // self.page_rows))
        page = min(pages, max(1, request.args.get("page", 1, type=_page_number)))
        return TableView(self, matching, len(rows), query, sort, page, now_ms, extra or {})


def is_export() -> bool:
    """Returns whether the request is for rows as CSV or JSON."""
    return request.args.get("as", "") in EXPORT_FORMS


def refuse_unknown_rows(*readings: Reading[Any]) -> None:
    """Rejects a request for rows if a source of them is not known: an export without these rows would look complete.

    Raises:
        ServiceUnavailable: the request is for an export, and a reading is not known.
    """
    for one in readings:
        if is_export() and not one.is_known:
            abort(503, one.reason)


def query_text() -> str:
    """Returns the search of the request."""
    return request.args.get("q", "").strip()[:QUERY_CHARS_MAX]


def csv_text(keys: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Returns rows as CSV (RFC 4180). Texts that a spreadsheet would run as a formula begin with an apostrophe.
    Invisible characters are escapes, as in pages."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(keys)
    for row in rows:
        writer.writerow(["" if value is None else _quoted(value) for value in row])
    return out.getvalue()


def _quoted(value: str | int | float) -> str | int | float:
    if isinstance(value, str):
        text = str(visible(value))
        return f"'{text}" if value.startswith(FORMULA_STARTS) else text
    return value


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _sorted(rows: Sequence[T], column: TableColumn[T], *, descending: bool) -> list[T]:
    """Returns the rows sorted by a column; rows without a value are last."""
    order = column.order or column.value
    valued = [(value, row) for row in rows if (value := order(row)) is not None]
    missing = [row for row in rows if order(row) is None]
    key: Callable[[tuple[Any, T]], Any] = lambda pair: pair[0]  # noqa: E731
    return [row for _, row in sorted(valued, key=key, reverse=descending)] + missing


def _text(kind: CellKind, value: Value, now_ms: int) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    if kind == CellKind.TIME:
        return clock(int(value), now_ms)
    if kind == CellKind.DURATION:
        return span(int(value))
    return size(int(value)) if kind == CellKind.BYTES else number(value)


def _plain(kind: CellKind, value: Value) -> Value:
    """Returns a value for programs: times in UTC, durations in seconds."""
    if value is None or isinstance(value, str):
        return value
    if kind == CellKind.TIME:
        return iso(int(value))
    return value / 1000 if kind == CellKind.DURATION else value
