"""Long work in the event loop, done a little at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST_S = 0.002
"""Of work, while all others wait."""


class Turns:
    """Lets everything else have its turn once the work has taken BURST_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()

    async def give(self) -> None:
        if self._clock() - self._since_s >= BURST_S:
            await asyncio.sleep(0)
            self._since_s = self._clock()
