"""Periods of time that pages show: the last 24 hours, 7 days, 30 days or year, or those around a time in the URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.audit.window import WINDOW_MS
from headrace.console.formats import utc

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
RANGES: Final[Mapping[str, int]] = {"24h": 144, "7d": 1008, "30d": 4320, "1y": 52_560}
"""Numbers of windows."""
RANGE_WORDS: Final = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "1y": "1 year"}
SHORT_RANGE_WORDS: Final = {name: words for name, words in RANGE_WORDS.items() if name != "1y"}
"""The periods of pages that read each window: a year of a topic has 52,560."""
DEFAULT_RANGE: Final = "24h"
_TICKS: Final = {
    "24h": (3 * HOUR_MS, "%H:%M"),
    "7d": (DAY_MS, "%a %d"),
    "30d": (3 * DAY_MS, "%b %d"),
    "1y": (30 * DAY_MS, "%b %d"),
}
_COLUMNS: Final = {"24h": 144, "7d": 168, "30d": 180, "1y": 182}
FIRST_MS: Final = 0
LAST_MS: Final = 250_000_000_000_000  # the year 9892, before which all times can be shown


@dataclass(frozen=True, slots=True)
class ShownPeriod:
    """Windows `[first_ms, end_ms)`. `name` is a key of `RANGES`; `at_ms` is the time in the URL, None without one."""

    name: str
    first_ms: int
    at_ms: int | None

    @classmethod
    def of(cls, name: str, at: str, now_ms: int) -> ShownPeriod:
        """Returns the period for parameters of a URL. Invalid values give the default, the last 24 hours.

        Args:
            name: a key of `RANGES`.
            at: a time in milliseconds since 1970, which becomes the middle of the period, or "".
        """
        name = name if name in RANGES else DEFAULT_RANGE
        at_ms = int(at) if at.isascii() and at.isdecimal() and len(at) <= 15 else None
        if at_ms is not None and not FIRST_MS <= at_ms <= LAST_MS:
            at_ms = None
        length_ms = RANGES[name] * WINDOW_MS
        last_ms = now_ms if at_ms is None else at_ms + length_ms // 2
        if at_ms is not None and at_ms <= now_ms:
            last_ms = min(now_ms, last_ms)
        end_ms = -(-last_ms // WINDOW_MS) * WINDOW_MS
        return cls(name, max(FIRST_MS, end_ms - length_ms), at_ms)

    @property
    def windows(self) -> int:
        return RANGES[self.name]

    @property
    def end_ms(self) -> int:
        return self.first_ms + self.windows * WINDOW_MS

    @property
    def days(self) -> tuple[int, int]:
        """The first and the last day, in days since 1970."""
        return self.first_ms // DAY_MS, (self.end_ms - 1) // DAY_MS

    @property
    def columns(self) -> int:
        """The number of columns of the rail of all topics."""
        return _COLUMNS[self.name]

    def cut(self, strip: bytes) -> bytes:
        """Returns the states of the period from the joined strips of `days`."""
        lead = (self.first_ms - self.days[0] * DAY_MS) // WINDOW_MS
        return strip[lead : lead + self.windows]

    def place(self, ms: int) -> float:
        """Returns where a time is, from 0 at the start to 1 at the end."""
        return (ms - self.first_ms) / (self.windows * WINDOW_MS)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The ticks of the time axis: places in percent, and texts."""
        every_ms, form = _TICKS[self.name]
        start_ms = -(-self.first_ms // every_ms) * every_ms
        return [
            (round(self.place(ms) * 100, 2), utc(ms, form))
            for ms in range(start_ms, self.end_ms, every_ms)
            if 0.02 <= self.place(ms) <= 0.985
        ]
