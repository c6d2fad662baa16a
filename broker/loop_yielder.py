"""Splits long work in the event loop into short bursts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.002
"""Work time, in seconds, before other tasks may run."""


class LoopYielder:
    """Lets other tasks run once the work has taken BURST_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()

    async def yield_if_due(self) -> None:
        if self._clock() - self._since_s >= BURST_S:
            await asyncio.sleep(0)
            self._since_s = self._clock()
