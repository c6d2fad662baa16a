"""Steps on a terminal, log lines elsewhere."""

from __future__ import annotations

import io
import logging
import re

import pytest

from headrace.cli.terminal import STEPS, print_line, steps_shown
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
