"""Text tables with long names, wide characters and control characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.text_table import CELL_WIDTH_MIN, display_width, printable, shortened, table_lines

LONG = ".".join(["shop-orders_eu"] * 17)[:249]  # the longest topic name of Kafka


def test_wide_and_combining_characters_are_aligned() -> None:
    lines = table_lines(("subject", "id"), [("注文-value", "1"), ("cafe\u0301", "12"), ("a", "123")], right=(1,))
    assert lines == [
        "subject      id",
        "----------  ---",
        "注文-value    1",
        "cafe\u0301         12",
        "a           123",
    ]
    assert {display_width(line) for line in lines} == {15}


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[31mb", "a\\x1b[31mb"), ("a\nb\t", "a\\nb\\t"), ("\u202eb", "\\u202eb"), ("注文", "注文")],
)
def test_control_and_formatting_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert table_lines(("x",), [(text,)])[2] == shown


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S"])), st.integers(1, 40))
def test_shortened_text_fits_and_keeps_begin_and_end(text: str, width: int) -> None:
    found = shortened(text, width)
    assert display_width(found) <= width
    begin, ellipsis, end = found.rpartition("…") if found != text else (text, "", "")
    assert text.startswith(begin) and text.endswith(end)
    assert bool(ellipsis) == (found != text)


def test_names_are_shortened_in_the_middle_to_the_terminal_only() -> None:
    rows = [(LONG, LONG[:120], "1,234"), ("short", "short", "5")]
    header = ("topic", "table", "rows")
    assert table_lines(header, rows, (2,))[2] == f"{LONG}  {LONG[:120]}  1,234"
    lines = table_lines(header, rows, (2,), width_max=80)
    assert {display_width(line) for line in lines} == {80}
    topic, table, number = lines[2].split("  ")
    for name, cell in ((LONG, topic), (LONG[:120], table)):
        begin, _, end = cell.partition("…")
        assert begin and end and name.startswith(begin) and name.endswith(end)
    assert number == "1,234"


def test_times_are_not_shortened() -> None:
    time = "2026-01-31T07:20:04Z"
    lines = table_lines(("topic", "complete until"), [(LONG, time)], width_max=40, fixed=(1,))
    assert lines[2].endswith(f"  {time}")
    assert len(lines[2]) == 40


def test_terminal_that_is_too_narrow_keeps_numbers_and_the_shortest_names() -> None:
    lines = table_lines(("topic", "rows"), [(LONG, "123,456,789")], (1,), width_max=10)
    assert len(lines[2]) == CELL_WIDTH_MIN + 2 + len("123,456,789")
    assert lines[2].endswith("  123,456,789")
