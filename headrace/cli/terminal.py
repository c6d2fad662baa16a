"""What a person at a terminal sees of a command that takes a while: one line that says what is being done.

In a log file, a pipe or a mail from cron the log's own lines are better, with their times and identities; so they
stay wherever standard error is no terminal, and on one when `HEADRACE_LOG_LEVEL` asks for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from headrace.settings.log_format import LEVEL_VARIABLE

STEPS: Mapping[str, str] = {
    "catch_up": "looking at what earlier loads committed",
    "plan": "looking for new messages",
    "spark": "starting Spark",
    "query": "running the query",
    "read": "reading messages and writing files",
    "check": "checking what was read",
    "decide": "committing",
    "apply:index": "noting which files there are",
    "apply:schema": "making and changing tables",
    "apply:files": "putting files into their partitions",
    "apply:partitions": "adding partitions",
    "apply:audit": "adding to the audit's counts",
    "apply:group_offsets": "committing offsets",
    "complete_until": "saying on tables how complete they are",
    "clean": "cleaning up",
}
"""What the phases of the log's `phase_started` lines are to a person."""

_PHASE = re.compile(r"phase_started phase=(\S+)")
_CLEAR_LINE = "\r\x1b[K"


class StepLine(logging.Handler):
    """Shows the newest step in a line that the next one replaces; warnings stay."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(logging.INFO)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        phase = _PHASE.match(message)
        if phase is not None:
            self.show(phase[1])
        elif record.levelno >= logging.WARNING:
            self._write(f"{_CLEAR_LINE}headrace: {message}\n")

    def show(self, phase: str) -> None:
        self._write(f"{_CLEAR_LINE}{STEPS.get(phase, phase)} …")

    def clear(self) -> None:
        self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            self._out.write(text)
            self._out.flush()


def print_line(line: str, out: TextIO) -> None:
    """Prints a line that stays, also while steps are shown."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(_CLEAR_LINE)
        sys.stderr.flush()
    print(line, file=out, flush=True)


@contextlib.contextmanager
def steps_shown(out: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """While open, a terminal on standard error shows steps in place of log lines; it is left clean.

    Yields what shows the step of a phase that the log does not tell of.
    """
    stream = sys.stderr if out is None else out
    if not stream.isatty() or os.environ.get("TERM") == "dumb" or LEVEL_VARIABLE in os.environ:
        yield lambda phase: None
        return
    root = logging.getLogger()
    before, line = root.handlers[:], StepLine(stream)
    root.handlers[:] = [line]
    try:
        yield line.show
    finally:
        root.handlers[:] = before
        line.clear()
