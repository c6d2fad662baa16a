"""Splits long work in the event loop into short bursts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.002
"""How long, in seconds, work may run before other tasks get a turn."""


class LoopYielder:
    """Lets other tasks run during long work, which calls `yield_if_due` repeatedly: each time the work has taken
    BURST_S, the call yields to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()

    async def yield_if_due(self) -> None:
        if self._clock() - self._since_s >= BURST_S:
            await asyncio.sleep(0)
            self._since_s = self._clock()
