"""Few places for calls that compute for long, which clients get in turn.

Whoever waits for one of many that compute waits for all of them. So there are few places, a client has one of them at a
time, and when one is free it goes to the client that has waited longest for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

T = TypeVar("T")

PLACES: Final = 2  # so that one client that has large schemas compared all the time holds nobody up
CLIENT_WAITING_MAX: Final = 64  # calls of one client that wait; a build checks its schemas side by side
TURN_WAIT_S: Final = 30.0  # for a turn; clients give up about then


class LaneFull(Exception):
    """A call has not come to its turn, or there are too many of its client before it."""


class FairLane:
    """Belongs to one event loop."""

    def __init__(self, places: int = PLACES, turn_wait_s: float = TURN_WAIT_S) -> None:
        self._free = places
        self._turn_wait_s = turn_wait_s
        self._running: set[Hashable] = set()
        # In the order in which clients get their turns.
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def run(self, client: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, which begins when it is the client's turn.

        Raises:
            LaneFull: it was not done.
        """
        if self._free and client not in self._running:
            self._free -= 1
            self._running.add(client)
        else:
            await self._wait(client)
        try:
            return await work()
        finally:
            self._pass_on(client)

    async def _wait(self, client: Hashable) -> None:
        if len(self._queues.get(client, ())) >= CLIENT_WAITING_MAX:
            raise LaneFull
        queue = self._queues.setdefault(client, deque())
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self._turn_wait_s):
                await turn
        except BaseException as error:
            if turn in queue:
                queue.remove(turn)
                if not queue:
                    del self._queues[client]
            elif not turn.cancelled():
                self._pass_on(client)  # it came just when it was no longer wanted
            if isinstance(error, TimeoutError):
                raise LaneFull from None
            raise

    def _pass_on(self, client: Hashable) -> None:
        """Gives the place that a client has had to whoever is next."""
        self._running.discard(client)
        self._free += 1
        for waiting in list(self._queues):
            if not self._free:
                return
            if waiting not in self._running:
                queue = self._queues.pop(waiting)
                turn = queue.popleft()
                if queue:
                    self._queues[waiting] = queue  # behind all others
                self._free -= 1
                self._running.add(waiting)
                turn.set_result(None)
