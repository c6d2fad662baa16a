"""Validates cached responses against the revisions in the database, with as few reads as possible.

A lease is a short time after a read in which cached responses are served without another read; see
`storage.dependencies`. Requests that arrive during a read wait together for the next one. That read begins after their
arrival, so a response that it validates is as current as one that the request itself would read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from headrace.registry.errors import StoreError
from headrace.registry.storage.dependencies import LEASE_S, Dependencies
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.revision_check import RevisionReader, Revisions

logger = logging.getLogger(__name__)

RENEWAL_AGE: Final = 0.5  # part of a lease after which it is renewed in the background, so that no request waits


def clock_s() -> float:
    """A clock that never jumps and, where the system has such a clock, continues while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Leases:
    """Finds out whether cached responses are still valid. Belongs to one event loop.

    A lease is the time `lease_s` after a read of the registry's revision, in which responses are served without another
    read. Changes that increase this revision wait for `Database.lease_s` until all leases have expired, so
    `Database.lease_s` must be at least `lease_s` in every process.
    """

    def __init__(
        self, revision_reader: RevisionReader, clock: Callable[[], float] = clock_s, lease_s: float = LEASE_S
    ) -> None:
        self._revision_reader = revision_reader
        self._lease_s = lease_s
        self._clock = clock
        self._revision: Revision | None = None
        self._checked_at = float("-inf")
        self._next: _Batch | None = None
        self._task: asyncio.Task[None] | None = None

    def is_valid(self, dependencies: Dependencies) -> bool:
        """Whether a cached response with these dependencies is valid by the current lease, without a read of the
        database.

        A lease covers only responses that depend on the registry's revision and not on that of a subject.
        """
        age = self._clock() - self._checked_at
        if dependencies.subjects or dependencies.revision != self._revision or age >= self._lease_s:
            return False
        if age >= self._lease_s * RENEWAL_AGE and self._task is None:
            self._join(())
        return True

    async def check(self, dependencies: Dependencies) -> bool | None:
        """Checks whether a response with these dependencies is valid, by a read of the database that begins after this
        call. Returns None if the read fails."""
        batch = self._join(dependencies.subjects)
        await batch.done.wait()
        return None if batch.revisions is None else batch.revisions.satisfies(dependencies)

    async def close(self) -> None:
        if self._task is not None:
            await self._task
        await self._revision_reader.close()

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
                    started_at = self._clock()
                    batch.revisions = await self._revision_reader.read(batch.subject_ids)
                    self._revision, self._checked_at = batch.revisions.revision, started_at
                except StoreError as error:
                    logger.warning(
                        "cache_not_checked action=handling waiting requests without the cache cause=%s", error
                    )
                except Exception:
                    # The waiting requests continue without the cache instead of waiting forever.
                    logger.exception("cache_not_checked action=handling waiting requests without the cache")
                finally:
                    batch.done.set()
        finally:
            self._task = None


class _Batch:
    """One read of revisions from the database, and the ids of the subjects that it includes. The requests that need it
    wait for `done`. If the read failed, `revisions` is None."""

    __slots__ = ("done", "revisions", "subject_ids")

    def __init__(self) -> None:
        self.subject_ids: set[int] = set()
        self.revisions: Revisions | None = None
        self.done = asyncio.Event()
