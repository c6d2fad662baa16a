"""Colours of reports on a terminal; none in files and pipes, with NO_COLOR (no-color.org) or on a dumb one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

STYLES: Mapping[str, str] = {"bad": "1;31", "warn": "1;33", "good": "1;32", "head": "1"}
"""The parameters of SGR sequences (ECMA-48)."""

WORD_STYLES: Mapping[str, str] = {
    "PROBLEM": "bad",
    "NOT MENDED": "bad",
    "FINDING": "bad",
    "short": "bad",
    "surplus": "bad",
    "mixed": "bad",
    "schema changed": "warn",
    "schema changes": "warn",
    "waiting": "warn",
    "note": "warn",
    "unknown": "warn",
    "uncounted": "warn",
    "pending": "warn",
    "accepted": "warn",
    "past": "warn",
    "passed over": "warn",
    "left out": "warn",
    "left as it is": "warn",
    "ok": "good",
    "complete": "good",
}
"""What the words mean that begin a line of a report, or are the whole of a table's cell."""

_FIRST_WORDS = re.compile(rf"( *)({'|'.join(sorted(WORD_STYLES, key=len, reverse=True))})(?=[: ])")
_CELL = re.compile(rf"(?<=  )({'|'.join(WORD_STYLES)})(?=  |$)")


def shows_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style of `STYLES` where the stream (standard output) shows colours."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if shows_colours(stream or sys.stdout) else text


def print_report_line(line: str, stream: TextIO | None = None, *, flush: bool = False) -> None:
    """Prints a line of a report; what kind of line it is, its first words say in their colour."""
    out = stream or sys.stdout
    first = _FIRST_WORDS.match(line)
    if first is not None:
        line = f"{first[1]}{styled(first[2], WORD_STYLES[first[2]], out)}{line[first.end() :]}"
    print(line, file=out, flush=flush)


def styled_table(lines: Sequence[str]) -> list[str]:
    """The lines of a table: names of columns stand out, and cells that are one of `WORD_STYLES` have their colour."""
    header, rule, *rows = lines
    return [
        styled(header, "head"),
        rule,
        *(_CELL.sub(lambda found: styled(found[0], WORD_STYLES[found[0]]), row) for row in rows),
    ]
