"""Audit windows: aligned ten minutes of message time, named by their start, half-open `[start, start + 10 min)`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

WINDOW_MS: Final = 600_000

FIRST_WINDOW_MS: Final = -(2**63 // WINDOW_MS) * WINDOW_MS
"""The first start that a long holds. Earlier times, which only a broken clock says, are counted there too, since no
store or message could name their window."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def window_start(time_ms: int) -> int:
    """The start of the window that a message time falls in; times before 1970 are negative and round down too."""
    start_ms = time_ms - time_ms % WINDOW_MS
    return start_ms if start_ms >= FIRST_WINDOW_MS else FIRST_WINDOW_MS


def time_text(time_ms: int) -> str:
    """A time for people: `2013-01-01 05:10Z`, to the minute. Times beyond the calendar stay milliseconds."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%MZ")
    except OverflowError:
        return f"{time_ms} ms"


def duration_text(duration_ms: int) -> str:
    """A span for people, to two units: `3 d 4 h`, `12 min`, `8 s`."""
    seconds = max(0, duration_ms) // 1000
    for unit_s, unit, smaller_s, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= unit_s:
            rest = seconds % unit_s // smaller_s
            return f"{seconds // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def many(count: int, noun: str) -> str:
    """A count with its noun: `1 message`, `2,500 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
