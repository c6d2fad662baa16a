"""Numbers, ages and times as text."""

from __future__ import annotations

import time

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def count_text(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def age_text(age_ms: int) -> str:
    """Returns a duration in its largest unit, such as `3 hours`."""
    for unit_ms, word in _UNITS:
        if age_ms >= unit_ms:
            return count_text(age_ms // unit_ms, word)
    return "0 seconds"


def time_text(instant_ms: int) -> str:
    """Returns a time in UTC, such as `2026-01-31T07:20:04Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant_ms / 1000))
