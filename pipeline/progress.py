"""Shows how far long work is: a bar that redraws itself on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from typing import TextIO

BAR_CHARS = 30
REDRAW_S = 0.1
LINE_EVERY_S = 5.0


class Progress:
    """Counts up to `total` things; `add` is cheap enough to call in batches of a thousand."""

    def __init__(self, label: str, total: int, out: TextIO) -> None:
        self._label = label
        self._total = max(1, total)
        self._out = out
        self._bar = out.isatty()
        self._count = 0
        self._start = time.monotonic()
        self._shown = 0.0 if self._bar else self._start

    def add(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._shown >= (REDRAW_S if self._bar else LINE_EVERY_S):
            self._shown = now
            self._show(now)

    def finish(self) -> float:
        """Shows the final state and returns the seconds that it took."""
        now = time.monotonic()
        self._show(now)
        if self._bar:
            self._out.write("\n")
            self._out.flush()
        return now - self._start

    def _show(self, now: float) -> None:
        share = min(1.0, self._count / self._total)
        rate = self._count / max(1e-6, now - self._start)
        text = f"{self._label}  {self._count:,} of {self._total:,} ({share:.0%}), {rate:,.0f}/s"
        if self._bar:
            filled = round(share * BAR_CHARS)
            self._out.write(f"\r\x1b[K{'█' * filled}{'░' * (BAR_CHARS - filled)} {text}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()
