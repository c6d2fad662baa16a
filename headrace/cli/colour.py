"""Colours of reports on a terminal; none in files and pipes, with NO_COLOR (no-color.org) or on a dumb one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

STYLES: Mapping[str, str] = {"bad": "1;31", "warn": "1;33", "good": "1;32", "head": "1"}
"""The parameters of SGR sequences (ECMA-48)."""

WORDS: Mapping[str, str] = {
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

_FIRST_WORDS = re.compile(rf"( *)({'|'.join(sorted(WORDS, key=len, reverse=True))})(?=[: ])")
_CELL = re.compile(rf"(?<=  )({'|'.join(WORDS)})(?=  |$)")


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style of `STYLES` where the stream (standard output) shows colours."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if has_colours(stream or sys.stdout) else text


def say(line: str, stream: TextIO | None = None, *, flush: bool = False) -> None:
    """Prints a line of a report; what kind of line it is, its first words say in their colour."""
    out = stream or sys.stdout
    first = _FIRST_WORDS.match(line)
    if first is not None:
        line = f"{first[1]}{painted(first[2], WORDS[first[2]], out)}{line[first.end() :]}"
    print(line, file=out, flush=flush)


def painted_table(lines: Sequence[str]) -> list[str]:
    """The lines of a table: names of columns stand out, and cells that are one of `WORDS` have their colour."""
    header, rule, *rows = lines
    return [
        painted(header, "head"),
        rule,
        *(_CELL.sub(lambda found: painted(found[0], WORDS[found[0]]), row) for row in rows),
    ]
