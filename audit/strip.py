"""Strips: the verdicts of one topic and day as 144 bytes, one byte for each window of ten minutes.

A map of many topics and days is drawn from strips, because they are read a hundred times faster than verdicts. The
bytes ascend with the severity of the verdict, so the most severe of several windows is their maximum. The special
windows (`window.SPECIAL_WINDOWS`), which have no time, are in no strip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.audit.verdict import SEVERITY, AuditVerdict
from headrace.audit.window import WINDOW_MS

DAY_MS: Final = 86_400_000
WINDOWS_OF_DAY: Final = DAY_MS // WINDOW_MS
NO_MESSAGES: Final = 0
"""The byte of a window without counts."""

STATE_BYTES: Final[Mapping[AuditVerdict, int]] = {verdict: byte for byte, verdict in enumerate(SEVERITY, start=1)}
"""The byte of each verdict: complete 1, skipped 2, untracked 3, expired 4, accepted 5, pending 6, unknown 7, extra 8,
missing 9, mismatch 10."""

STATE_VERDICTS: Final[Mapping[int, AuditVerdict]] = {byte: verdict for verdict, byte in STATE_BYTES.items()}
EMPTY_STRIP: Final = bytes(WINDOWS_OF_DAY)
DAYS_MAX: Final = 4_000
"""Maximum number of days of one joined strip: 576 kB for each topic."""


def day_of(window_start_ms: int) -> int:
    """Returns the day of a window, in days since 1970-01-01 (UTC)."""
    return window_start_ms // DAY_MS


def place_of(window_start_ms: int) -> int:
    """Returns the index of a window in the strip of its day."""
    return window_start_ms % DAY_MS // WINDOW_MS


def patched(strip: bytes, states: Iterable[tuple[int, int]]) -> bytes:
    """Returns a strip with other bytes at some places. `states` are pairs of place and byte."""
    changed = bytearray(strip)
    for place, state in states:
        changed[place] = state
    return bytes(changed)


def joined_strips(days: Iterable[tuple[int, bytes]], first_day: int, last_day: int) -> bytes:
    """Returns the strips of consecutive days as one. Days without a strip have no messages.

    Args:
        days: pairs of day and strip, of days in the range.
        first_day, last_day: the range, inclusive, in days since 1970-01-01.
    """
    joined = bytearray(WINDOWS_OF_DAY * (last_day - first_day + 1))
    for day, strip in days:
        start = (day - first_day) * WINDOWS_OF_DAY
        joined[start : start + WINDOWS_OF_DAY] = strip
    return bytes(joined)
