"""Shows the current step of a long command in one line on a terminal.

If standard error is a file, a pipe or a mail from cron, the command writes log lines instead, which have times and ids.
The environment variable `HEADRACE_LOG_LEVEL` selects log lines on a terminal too.
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
    "catch_up": "reading earlier commits",
    "plan": "finding new messages",
    "spark": "starting Spark",
    "query": "running the query",
    "read": "reading messages and writing files",
    "merge": "merging files",
    "validate": "validating what was read",
    "commit": "committing",
    "apply:index": "updating the file index",
    "apply:schema": "creating and altering tables",
    "apply:files": "moving files into their partitions",
    "apply:partitions": "adding partitions",
    "apply:audit": "adding to the audit counts",
    "apply:group_offsets": "committing offsets",
    "complete_until": "updating the completeness of tables",
    "clean": "cleaning up",
}
"""Texts shown for the phases that the loader logs as `phase_started`, and for steps that commands show themselves, by
name. A step without a text is shown by its name."""

_PHASE = re.compile(r"phase_started phase=(\S+)")
_CLEAR_LINE = "\r\x1b[K"


class StepLine(logging.Handler):
    """A log handler for a terminal. It shows the current step of a command in one line, which the next step overwrites.

    A log line `phase_started phase=…` is shown as a step. Warnings and errors are printed above the step and remain
    visible. Other log lines are not shown.
    """

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
    """Prints a line to the stream `out`. On a terminal the line remains visible, also while the current step is shown
    (see `StepLine`)."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(_CLEAR_LINE)
        sys.stderr.flush()
    print(line, file=out, flush=True)


@contextlib.contextmanager
def steps_shown(out: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """On a terminal, shows the current step of the command in one line instead of the log lines, while the context is
    open. Clears the line at the end. The log lines remain if `out` is not a terminal, with TERM=dumb, and with
    HEADRACE_LOG_LEVEL.

    Args:
        out: the stream of the line; None means standard error.

    Yields:
        A function that shows a text as the current step, for steps that are not logged.
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
