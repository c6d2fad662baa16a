"""Audit windows: aligned ten minutes of message time, named by their start, half-open `[start, start + 10 min)`.

Every message has a window, whatever its time says. Two starts before 1970 name no ten minutes but what is wrong with
the times in them:

    OUT_OF_RANGE_MS  the time is before 1970 or after 9999: nanoseconds in a field of milliseconds, a broken clock
    SCATTERED_MS     the tier had met times in `WINDOWS_MAX` windows already, and this would have been one more

The first follows from the time alone, so all tiers agree on it, and it is compared like any window. Which messages
are in the second depends on what a tier met before, so `reconcile` compares it in total with the windows that they
may have been taken from. That is why there are two: a single clock that is wrong is no reason to give up a topic's
verdicts window by window.

The starts are the two last windows before 1970, because whatever carries a start can carry these: an Avro
timestamp, a 64-bit column, a calendar. The least long, which seems to be the obvious choice, overflows the microseconds
of Hive and Spark, and a table of audit rows with it could not be queried.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

WINDOW_MS: Final = 600_000

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that readers of timestamps and directories of days know. A message
time is from 0 to here, both inclusive, or out of range."""

OUT_OF_RANGE_MS: Final = -WINDOW_MS
SCATTERED_MS: Final = -2 * WINDOW_MS
NAMES: Final = {OUT_OF_RANGE_MS: "times out of range", SCATTERED_MS: "times too scattered"}

WINDOWS_MAX: Final = 65_536
"""Windows of one topic that a tier counts apart at once. A year has 52,704 at most, so that the replay of one is
counted window by window; fields of random numbers would open one per message, until no load could carry them."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_time(time_ms: int) -> bool:
    """Whether a message may have this time: from 1970 to 9999."""
    return 0 <= time_ms <= TIME_MS_MAX


def window_start(time_ms: int) -> int:
    """The start of the window that a message time falls in."""
    return time_ms - time_ms % WINDOW_MS if is_time(time_ms) else OUT_OF_RANGE_MS


def counted_window(time_ms: int, counted: Collection[int]) -> int:
    """The window that a tier counts a message in: its own, unless there are too many.

    Args:
        counted: starts of the windows of the topic that the tier counts apart already.
    """
    start_ms = window_start(time_ms)
    if start_ms < 0 or start_ms in counted or len(counted) < WINDOWS_MAX:
        return start_ms
    return SCATTERED_MS


def known_window(start_ms: int) -> int:
    """The window that counts under this start belong to: earlier versions counted absurd times each in its own."""
    return start_ms if start_ms in NAMES or is_time(start_ms) else OUT_OF_RANGE_MS


def window_text(start_ms: int) -> str:
    """A window for people: `2013-01-01 05:10Z`, or what is wrong with its times."""
    return NAMES.get(start_ms) or time_text(start_ms)


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
