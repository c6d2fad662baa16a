"""Whether kept answers still hold, asked of the database as seldom as that can be known.

Requests that arrive while a look is under way wait together for the next one: its beginning comes after theirs, which
is what makes an answer that it bears as true as one read by the request itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from headrace.registry.errors import StoreError
from headrace.registry.storage.footing import LEASE_S, Footing
from headrace.registry.storage.history import Moment
from headrace.registry.storage.looks import Look, Looks

logger = logging.getLogger(__name__)

RENEWAL_AGE: Final = 0.5  # a look this old, in leases, is replaced while it is still good, so that nobody waits for it


def clock_s() -> float:
    """A clock that neither jumps nor, where the system has such a one, stands still while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Leases:
    """Used by one event loop. `Database.lease_s` of every process must be at least `lease_s`."""

    def __init__(self, looks: Looks, clock: Callable[[], float] = clock_s, lease_s: float = LEASE_S) -> None:
        self._looks = looks
        self._lease_s = lease_s
        self._clock = clock
        self._moment: Moment | None = None
        self._looked_at = float("-inf")
        self._next: _Batch | None = None
        self._task: asyncio.Task[None] | None = None

    def holds(self, footing: Footing) -> bool:
        """Whether an answer may be given without a look: it rests on the registry's revision alone, and that was
        looked at less than a lease ago."""
        age = self._clock() - self._looked_at
        if footing.subjects or footing.moment != self._moment or age >= self._lease_s:
            return False
        if age >= self._lease_s * RENEWAL_AGE and self._task is None:
            self._join(())
        return True

    async def look(self, footing: Footing) -> bool | None:
        """Whether an answer holds, by a look that begins after this call; None when the database cannot be asked."""
        batch = self._join(footing.subjects)
        await batch.ended.wait()
        return None if batch.look is None else batch.look.bears(footing)

    async def close(self) -> None:
        if self._task is not None:
            await self._task
        await self._looks.close()

    def _join(self, subjects: tuple[tuple[int, int], ...]) -> _Batch:
        if self._next is None:
            self._next = _Batch()
        batch = self._next
        for subject_id, _ in subjects:
            batch.subject_ids.add(subject_id)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return batch

    async def _run(self) -> None:
        try:
            while self._next is not None:
                batch, self._next = self._next, None
                try:
                    began_at = self._clock()
                    batch.look = await self._looks.look(batch.subject_ids)
                    self._moment, self._looked_at = batch.look.moment, began_at
                except StoreError as error:
                    logger.warning("revisions not read: cause=%s", error)
                except Exception:
                    # Whoever waits goes on without; nobody may wait for ever.
                    logger.exception("revisions not read")
                finally:
                    batch.ended.set()
        finally:
            self._task = None


class _Batch:
    """Requests that wait for one look."""

    __slots__ = ("ended", "look", "subject_ids")

    def __init__(self) -> None:
        self.subject_ids: set[int] = set()
        self.look: Look | None = None
        self.ended = asyncio.Event()
