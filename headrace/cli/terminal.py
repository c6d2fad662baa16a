"""Shows the current step of a long command in one line on a terminal, and long reports a page at a time.

If standard error is a file, a pipe or a mail from cron, the command writes log lines instead, which have times and ids.
The environment variable `HEADRACE_LOG_LEVEL` selects log lines on a terminal too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from headrace.settings.log_format import LEVEL_VARIABLE

STEPS: Mapping[str, str] = {
    "catch_up": "reading earlier commits",
    "plan": "finding new messages",
    "schemas": "reading schemas",
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
    "check": "comparing files with the commits",
    "clean": "cleaning up",
}
"""Texts shown for the phases that the loader logs as `phase_started`, and for steps that commands show themselves, by
name. A step without a text is shown by its name."""

_PHASE = re.compile(r"phase_started phase=(\S+)")
_CLEAR_LINE = "\r\x1b[K"
_SGR = re.compile(r"\x1b\[[0-9;]*m")
PAGER_DEFAULT = "less"
LESS_OPTIONS = "FRX"  # end after less than a page, show colours, leave the text on the screen


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


class _Screen(io.StringIO):
    """Collects the text that a command writes to a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_width() -> int | None:
    """Returns the number of columns of the terminal, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextlib.contextmanager
def paged() -> Iterator[None]:
    """Shows standard output in a pager, as git does, if it is a terminal and the text is longer than the screen: in
    $PAGER, by default less with the options FRX unless $LESS has others. An empty PAGER and `cat` disable this. The
    text is shown when the context ends, also after an error."""
    out, command = sys.stdout, os.environ.get("PAGER", PAGER_DEFAULT).strip()
    if not out.isatty() or command in ("", "cat") or os.environ.get("TERM") == "dumb":
        yield
        return
    sys.stdout = screen = _Screen()
    try:
        yield
    finally:
        sys.stdout = out
        text = screen.getvalue()
        if not (_is_longer_than_screen(text) and _show_in_pager(text, command)):
            out.write(text)


def _is_longer_than_screen(text: str) -> bool:
    columns, lines = shutil.get_terminal_size()
    wrapped = (max(1, -(-len(_SGR.sub("", line)) // columns)) for line in text.splitlines())
    return sum(wrapped) >= lines


def _show_in_pager(text: str, command: str) -> bool:
    """Shows the text in a pager and waits for its end. Returns False if the pager cannot be started."""
    environment = {"LESS": LESS_OPTIONS, **os.environ}
    try:
        # A shell, because $PAGER may contain options. `exec`, because Ctrl-C would end the shell, but not the pager.
        pager = subprocess.Popen(f"exec {command}", shell=True, stdin=subprocess.PIPE, env=environment)  # noqa: S602
    except OSError:
        return False
    assert pager.stdin is not None
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), pager.stdin as pipe:
        pipe.write(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
    while True:
        try:
            return pager.wait() not in (126, 127)  # a shell's codes for programs that cannot be run
        except KeyboardInterrupt:  # the pager receives Ctrl-C too, and decides whether to end
            continue
