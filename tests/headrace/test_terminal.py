"""Steps on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path

import pytest

from headrace.cli.terminal import STEPS, paged, print_line, steps_shown
from support.checkout import ROOT

logger = logging.getLogger("tests.terminal")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def left_on_screen(self) -> list[str]:
        """Returns the visible lines: the part after the last clearing of each."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LOG_LEVEL", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_terminal_shows_steps_and_warnings() -> None:
    terminal = Terminal()
    before = logging.getLogger().handlers[:]
    with steps_shown(terminal) as show:
        show("spark")
        assert terminal.left_on_screen() == ["starting Spark …"]
        logger.warning("phase_started phase=plan")
        assert terminal.left_on_screen() == ["finding new messages …"]
        logger.warning("registry_unavailable error=refused")
        logger.warning("phase_started phase=apply:schema commit=1 topics=2")
        logger.warning("phase_started phase=unheard_of")
        assert terminal.left_on_screen() == ["headrace: registry_unavailable error=refused", "unheard_of …"]
    assert terminal.left_on_screen() == ["headrace: registry_unavailable error=refused", ""]
    assert logging.getLogger().handlers == before


def test_every_phase_that_the_loader_logs_has_a_text() -> None:
    sources = [path.read_text() for package in ("loader", "pipeline") for path in (ROOT / package).rglob("*.py")]
    phases = set(re.findall(r"phase_started phase=(\w+)\b(?!:)", "\n".join(sources)))
    assert phases <= STEPS.keys()


@pytest.mark.parametrize(("variable", "value"), [("HEADRACE_LOG_LEVEL", "DEBUG"), ("TERM", "dumb")])
def test_log_level_and_dumb_terminals_disable_steps(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    terminal = Terminal()
    with steps_shown(terminal):
        logger.warning("phase_started phase=plan")
    assert terminal.getvalue() == ""


def test_no_steps_without_a_terminal() -> None:
    pipe = io.StringIO()
    with steps_shown(pipe):
        logger.warning("phase_started phase=plan")
    assert pipe.getvalue() == ""


def test_print_line_clears_the_step_first(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with steps_shown() as show:
        show("read")
        print_line("piece 1 of 2", terminal)
        show("commit")
        assert terminal.left_on_screen() == ["piece 1 of 2", "committing …"]
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    print_line("piece 2 of 2", pipe)
    assert pipe.getvalue() == "piece 2 of 2\n"


LINES = 24  # of the terminal, see `pager`


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets PAGER to a program that writes its input, and the variable LESS, to a file. Returns this file."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", str(LINES))
    monkeypatch.delenv("LESS", raising=False)
    program = tmp_path / "pager"
    program.write_text(f"#!/bin/sh\n(echo $1 $LESS; cat) > {tmp_path / 'shown'}\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PAGER", f"{program} -x")
    return tmp_path / "shown"


def printed_directly(lines: int, width: int = 1, out: io.StringIO | None = None) -> str:
    """Prints lines to a terminal, or to `out`, and returns the text that did not go to a pager."""
    screen = out or Terminal()
    with contextlib.redirect_stdout(screen), paged():
        for _ in range(lines):
            print("x" * width)
    return screen.getvalue()


@pytest.mark.parametrize(("lines", "width", "is_paged"), [(LINES - 1, 80, False), (LINES, 1, True), (12, 81, True)])
def test_only_text_longer_than_the_screen_is_paged(pager: Path, lines: int, width: int, is_paged: bool) -> None:
    text = "x" * width + "\n"
    assert printed_directly(lines, width) == ("" if is_paged else text * lines)
    assert pager.exists() == is_paged
    if is_paged:
        assert pager.read_text() == "-x FRX\n" + text * lines


def test_text_before_an_error_is_paged(pager: Path) -> None:
    with contextlib.suppress(KeyError), contextlib.redirect_stdout(Terminal()), paged():
        print("x\n" * LINES)
        raise KeyError
    assert pager.read_text().count("x\n") == LINES


@pytest.mark.parametrize(
    ("variable", "value"), [("PAGER", ""), ("PAGER", "cat"), ("TERM", "dumb"), ("PAGER", "/no/such/pager")]
)
def test_text_is_printed_without_a_pager(
    pager: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert printed_directly(2 * LINES) == "x\n" * 2 * LINES


def test_text_for_a_pipe_is_not_paged(pager: Path) -> None:
    assert printed_directly(2 * LINES, out=io.StringIO()) == "x\n" * 2 * LINES
    assert not pager.exists()


def test_pager_that_reads_nothing_is_not_an_error(pager: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "true")
    assert printed_directly(100_000, 80) == ""
