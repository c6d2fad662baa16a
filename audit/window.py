"""Audit windows: aligned ten-minute intervals of message time `[start, start + 10 min)`, identified by their start.

Every message belongs to a window. Two special windows, with starts before 1970, collect messages with unusable times:

    OUT_OF_RANGE_MS  times before 1970 or after 9999, for example nanoseconds in a milliseconds field
    SCATTERED_MS     times that would open more than `WINDOWS_MAX` windows of a topic in a tier

All tiers put the same messages into the first window, because only the time matters, so it is compared like any window.
The messages of the second one depend on the order in which a tier read them, so `reconcile` adds it to the windows that
its messages may belong to and compares the sum. With two windows, a single wrong clock does not affect the verdicts of
a topic's other windows.

The starts are the last two windows before 1970: an Avro timestamp, a 64-bit column and a calendar can represent them.
The smallest long would overflow the microseconds of Hive and Spark, and a table with such audit rows could not be
queried.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

WINDOW_MS: Final = 600_000

TIME_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the largest that timestamp readers and dt=… directories support. Message times in
[0, TIME_MS_MAX] are in range."""

OUT_OF_RANGE_MS: Final = -WINDOW_MS
SCATTERED_MS: Final = -2 * WINDOW_MS
SPECIAL_WINDOWS: Final = {OUT_OF_RANGE_MS: "times out of range", SCATTERED_MS: "times too scattered"}

WINDOWS_MAX: Final = 65_536
"""Windows of one topic that one counter counts separately: a producer process within an hour, a commit of the loader,
or a consumer between two publications. A year has at most 52,704 windows, so a year can be replayed. Without the limit,
a time field with random numbers would open one window per message."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_time(time_ms: int) -> bool:
    """Returns whether a message time is in range: from 1970 to 9999."""
    return 0 <= time_ms <= TIME_MS_MAX


def window_start(time_ms: int) -> int:
    """Returns the start of the window of a message time."""
    return time_ms - time_ms % WINDOW_MS if is_time(time_ms) else OUT_OF_RANGE_MS


def counted_window(time_ms: int, counted: Collection[int]) -> int:
    """Returns the start of the window in which a tier counts a message with time `time_ms`: the window of this time, or
    the special window SCATTERED_MS if the tier already counts at least `WINDOWS_MAX` other windows of the topic. Times
    out of range are always counted in OUT_OF_RANGE_MS.

    Args:
        counted: starts of the topic's windows that the tier already counts.
    """
    start_ms = window_start(time_ms)
    if start_ms < 0 or start_ms in counted or len(counted) < WINDOWS_MAX:
        return start_ms
    return SCATTERED_MS


def known_window(start_ms: int) -> int:
    """Returns `start_ms` if it is in range or the start of a special window, else OUT_OF_RANGE_MS."""
    return start_ms if start_ms in SPECIAL_WINDOWS or is_time(start_ms) else OUT_OF_RANGE_MS


def window_text(start_ms: int) -> str:
    """Returns the window that starts at `start_ms` as text: `2013-01-01 05:10Z`, or the name of a special window."""
    return SPECIAL_WINDOWS.get(start_ms) or time_text(start_ms)


def time_text(time_ms: int) -> str:
    """Returns a time as text to the minute: `2013-01-01 05:10Z`. Times beyond the calendar stay milliseconds."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%MZ")
    except OverflowError:
        return f"{time_ms} ms"


def duration_text(duration_ms: int) -> str:
    """Returns a duration as text with at most two units: `3 d 4 h`, `12 min`, `8 s`."""
    seconds = max(0, duration_ms) // 1000
    for unit_s, unit, smaller_s, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= unit_s:
            rest = seconds % unit_s // smaller_s
            return f"{seconds // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def count_text(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 message`, `2,500 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
