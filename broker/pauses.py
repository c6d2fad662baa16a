"""Notices when nobody was served for a while: the broker waited for a slow disk, for other processes that had the
processor, or was stopped; or did something itself that took too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LOOK_MS = 250
PAUSE_S = 1.0
"""Of less nobody is told: the time-outs of clients begin at several seconds."""
WORKED = "work of the broker's own"
WAITED = "it waited for the disk or for a processor"


class Pauses:
    """To be looked at every LOOK_MS by the thread that serves. `total_s` is how long all pauses were together.

    Args:
        now_s: a clock that goes on whatever happens.
        worked_s: how long this thread has had a processor.
    """

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, worked_s: Callable[[], float] = time.thread_time
    ) -> None:
        self.total_s = 0.0
        self._now_s, self._worked_s = now_s, worked_s
        self._seen: tuple[float, float] | None = None

    def look(self) -> None:
        """Compares how late this is with when it was to be."""
        now, worked = self._now_s(), self._worked_s()
        before, self._seen = self._seen, (now, worked)
        if before is None:
            return
        pause_s, work_s = now - before[0] - LOOK_MS / 1000, worked - before[1]
        if pause_s < PAUSE_S:
            return
        self.total_s += pause_s
        logger.warning(
            "nobody was served pause_ms=%d of_which_working_ms=%d reason=%s",
            round(pause_s * 1000),
            round(work_s * 1000),
            WORKED if work_s > pause_s / 2 else WAITED,
        )
