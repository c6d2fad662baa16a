"""`headrace sql --plot` draws the result of a query."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.command import CommandError
from headrace.cli.sql_plot import BAR, BARS_MAX, KINDS, LINE, plot_data, plot_svg, plot_text, sorted_points
from headrace.pipeline.sql import QueryResult


def result(types: str, *rows: tuple[Any, ...]) -> QueryResult:
    names = types.split()
    return QueryResult(
        tuple(f"c{number}" for number in range(len(names))),
        tuple(names),
        tuple(tuple(None if value is None else str(value) for value in row) for row in rows),
        (),
    )


CARRIERS = result("string bigint", ("UA", 58_665), ("B6", 54_635), ("EV", 0), ("a\x1b[31m", -12), (None, None))


def test_bars_show_each_value_as_the_query_returned_it() -> None:
    lines = plot_text(plot_data(CARRIERS, BAR), BAR, 60, with_colour=False).splitlines()
    assert [line.split()[0] for line in lines] == ["UA", "B6", "EV", "a", "NULL"]
    assert [line.split()[-1] for line in lines] == ["58665", "54635", "0", "-12", "NULL"]
    assert lines[0].count("█") > lines[1].count("█") > 0
    assert "█" not in lines[2]
    assert "-" in lines[3].split()[-2]
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 60


def test_several_series_have_a_bar_each_with_their_names() -> None:
    data = plot_data(result("string int double", ("UA", 3, 1.5), ("B6", 1, 2.5)), BAR)
    lines = plot_text(data, BAR, 60, with_colour=False).splitlines()
    assert [line.split()[-1] for line in lines] == ["3", "1.5", "1", "2.5"]
    assert ["c1" in line for line in lines] == [True, False, True, False]


def test_a_line_has_its_labels_below_and_points_by_time() -> None:
    data = plot_data(result("date bigint", ("2013-01-03", 3), ("2013-01-01", 1), (None, 9), ("2013-01-02", None)), LINE)
    assert [y for _, y in sorted_points(data, data.series[0])] == [1.0, 3.0]
    text = plot_text(data, LINE, 80, with_colour=False)
    assert "2013-01-01" in text.splitlines()[-1]
    assert "2013-01-03" in text.splitlines()[-1]
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (result("string", ("UA",)), BAR),
        (result("string string", ("UA", "x")), BAR),
        (result("string int"), LINE),
        (result("string int", *[("x", 1)] * (BARS_MAX + 1)), BAR),
        (result("string double", ("x", 1e200)), LINE),
        (result("string double", ("x", None)), BAR),
        (result(" ".join(["string", *["int"] * 9]), tuple(range(10))), LINE),
    ],
    ids=["one column", "text", "no rows", "too many rows", "too large", "only NULL", "too many series"],
)
def test_a_result_that_cannot_be_plotted_is_refused(query: QueryResult, kind: str) -> None:
    with pytest.raises(CommandError, match=r"a .*plot (needs|shows)"):
        plot_data(query, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_svg_has_no_script_and_escapes_names(kind: str) -> None:
    document = plot_svg(plot_data(result("string int", ("<script>alert(1)</script>", 1), ("b", 2)), kind), kind)
    root = ElementTree.fromstring(document)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not list(root.iter("{*}script"))
    assert b"<script" not in document
    assert b"alert(1)" in document
    assert set(re.findall(rb"https?://[^\"']*", re.sub(rb"<!--.*?-->", b"", document))) == {
        b"http://www.w3.org/2000/svg"
    }


VALUES = st.none() | st.floats(-1e100, 1e100) | st.just(math.nan) | st.just(math.inf) | st.integers(-(10**40), 10**40)


@given(
    st.sampled_from(KINDS),
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=60),
            st.none()
            | st.floats(-1e100, 1e100)
            | st.sampled_from([math.nan, math.inf])
            | st.integers(-(10**40), 10**40),
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_every_value_of_a_result_is_plotted(kind: str, rows: list[tuple[str | None, float | None]]) -> None:
    try:
        data = plot_data(result("string double", *rows), kind)
    except CommandError:
        assert all(
            value is None or not math.isfinite(value) for label, value in rows if kind == BAR or label is not None
        )
        return
    assert all(value is None or math.isfinite(value) for value in data.series[0].values)
    text = plot_text(data, kind, 80, with_colour=False)
    if kind == BAR:
        assert len(text.splitlines()) == len(rows)
