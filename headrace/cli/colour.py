"""Colours of reports on a terminal. There are none in files and pipes, with NO_COLOR (no-color.org), or with
TERM=dumb."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from headrace.pipeline.text_table import printable

STYLES: Mapping[str, str] = {"bad": "1;31", "warn": "1;33", "good": "1;32", "head": "1"}
"""Parameters of SGR sequences (ECMA-48), by style."""

WORD_STYLES: Mapping[str, str] = {
    "PROBLEM": "bad",
    "NOT REPAIRED": "bad",
    "NOT DOWNLOADED": "bad",
    "ALARM": "bad",
    "FINDING": "bad",
    "FAILURE": "bad",
    "ATTENTION": "warn",
    "missing": "bad",
    "extra": "bad",
    "mismatch": "bad",
    "schema changed": "warn",
    "would do": "head",
    "schema changes": "warn",
    "waiting": "warn",
    "note": "warn",
    "unknown": "warn",
    "untracked": "warn",
    "pending": "warn",
    "accepted": "warn",
    "expired": "warn",
    "skipped": "warn",
    "left out": "warn",
    "ok": "good",
    "complete": "good",
}
"""Styles of words at the start of a report line, and of words that fill a table cell after the first column."""

_FIRST_WORDS = re.compile(rf"( *)({'|'.join(sorted(WORD_STYLES, key=len, reverse=True))})(?=[: ])")
_CELL = re.compile(rf"(?<=  )({'|'.join(WORD_STYLES)})(?=  |$)")


def shows_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """Returns the text in a style of `STYLES` if the stream (default: standard output) shows colours."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if shows_colours(stream or sys.stdout) else text


def print_report_line(line: str, stream: TextIO | None = None, *, flush: bool = False) -> None:
    """Prints a line of a report to `stream`, by default standard output. The first words of the line are coloured if
    they are in `WORD_STYLES`, and control characters are escaped. With `flush`, the stream is flushed."""
    out = stream or sys.stdout
    line = printable(line)
    first = _FIRST_WORDS.match(line)
    if first is not None:
        line = f"{first[1]}{styled(first[2], WORD_STYLES[first[2]], out)}{line[first.end() :]}"
    print(line, file=out, flush=flush)


def styled_table(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a table with colours: the column names, and the cells after the first column that are in
    `WORD_STYLES`. The first line has the column names, the second the rule below them."""
    header, rule, *rows = lines
    return [
        styled(header, "head"),
        rule,
        *(_CELL.sub(lambda found: styled(found[0], WORD_STYLES[found[0]]), row) for row in rows),
    ]
