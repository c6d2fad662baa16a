"""Limits how long a request occupies the event loop before other requests run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

TURN_S: Final = 0.002


class Turn:
    """The turn of a request in the event loop. Long loops check `is_over` in each iteration, and await `next`."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + TURN_S

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    async def next(self) -> None:
        """Lets other requests run, and begins another turn."""
        await asyncio.sleep(0)
        self._ends_at = time.monotonic() + TURN_S
