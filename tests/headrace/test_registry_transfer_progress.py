"""The progress of an export or import, and the summary of its counts."""

from __future__ import annotations

import io
import logging

import pytest

from headrace.cli import registry_transfer
from headrace.cli.registry_transfer import TransferProgress, bar, facts_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that advances by a second per call."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(registry_transfer, "time", ticking)
    monkeypatch.setenv("TERM", "xterm")
    return ticking


def test_bar_shows_the_progress_of_a_step() -> None:
    assert bar("reading versions", 1200, 0) == "reading versions 1200"
    assert bar("importing", 0, 3) == "importing [..............................] 0/3"
    assert bar("importing", 2, 3) == "importing [####################..........] 2/3"
    assert bar("importing", 3, 3) == "importing [##############################] 3/3"


def test_summary_has_one_version_and_two_subjects() -> None:
    facts = {"versions": 1, "deleted": 1, "subjects": 2, "modes": 0}
    assert facts_text(facts) == "1 version, 1 deleted, 2 subjects, 0 modes"


def test_terminal_shows_one_line_and_clears_it() -> None:
    terminal = Terminal()
    with TransferProgress(terminal) as progress:
        progress.show("importing", 1, 2)
        progress.show("importing", 2, 2)
    assert terminal.getvalue() == (
        "\r\x1b[Kimporting [###############...............] 1/2"
        "\r\x1b[Kimporting [##############################] 2/2"
        "\r\x1b[K"
    )


def test_log_lines_without_a_terminal_are_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    out = io.StringIO()
    with TransferProgress(out) as progress:
        for done in range(25):
            progress.show("importing", done, 0)
    assert out.getvalue() == ""
    assert [record.getMessage() for record in caplog.records] == [
        "transfer_progress step='importing' done=9 total=unknown",
        "transfer_progress step='importing' done=19 total=unknown",
    ]
