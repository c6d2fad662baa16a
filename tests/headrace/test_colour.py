"""Colours on a terminal, and none elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from headrace.audit.verdict import AuditVerdict
from headrace.cli.colour import print_report_line, styled_table
from headrace.cli.command import print_table
from headrace.cli.load import print_run
from headrace.loader.report import RunReport
from support.terminals import Terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_first_words_of_a_line_are_coloured(terminal: Terminal) -> None:
    for line in (
        "PROBLEM: orders: it is gone",
        "  missing   2013",
        "note: a",
        "schema changed: o",
        "notes: a",
        "a: note: b",
    ):
        print_report_line(line, terminal)
    assert terminal.getvalue().splitlines() == [
        "\x1b[1;31mPROBLEM\x1b[0m: orders: it is gone",
        "  \x1b[1;31mmissing\x1b[0m   2013",
        "\x1b[1;33mnote\x1b[0m: a",
        "\x1b[1;33mschema changed\x1b[0m: o",
        "notes: a",
        "a: note: b",
    ]


def test_column_names_are_bold_and_verdicts_coloured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table(("topic", "verdict"), [("missing", "complete"), ("orders", "untracked"), ("x", "completed")])
    header, rule, first, second, third = terminal.getvalue().splitlines()
    assert header == "\x1b[1mtopic    verdict\x1b[0m"
    assert rule == "-------  ---------"
    assert first == "missing  \x1b[1;32mcomplete\x1b[0m"
    assert second == "orders   \x1b[1;33muntracked\x1b[0m"
    assert third == "x        completed"


def test_report_of_a_load_is_coloured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    print_run(RunReport(problems={"a": ("gone",)}, waiting={"b": "no schema"}))
    assert "\x1b[1;31mPROBLEM\x1b[0m: a: gone" in terminal.getvalue()
    assert "\x1b[1;33mwaiting\x1b[0m: b: no schema" in terminal.getvalue()


def test_every_audit_verdict_has_a_colour(terminal: Terminal) -> None:
    for verdict in AuditVerdict:
        print_report_line(f"  {verdict.value:9} 2013-01-01", terminal)
    assert terminal.getvalue().count("\x1b[1;") == len(AuditVerdict)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_and_dumb_terminals_disable_colours(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal)
    print_report_line("PROBLEM: a")
    print_table(("a",), [("missing",)])
    assert "\x1b" not in terminal.getvalue()


def test_files_get_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    print_report_line("PROBLEM: a")
    assert out.getvalue() == "PROBLEM: a\n"
    assert styled_table(["a", "-", "missing"]) == ["a", "-", "missing"]
