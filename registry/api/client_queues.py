"""Fair queues per client for long computations.

Concurrent computations slow each other down, so only a few run at once, and at most one per client. Clients take turns:
when a queued computation starts, its client moves to the end of the order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

T = TypeVar("T")

RUNNING_MAX: Final = 2  # computations at once; with one, a client with many large comparisons would block the others
CLIENT_WAITING_MAX: Final = 64  # queued computations per client; a build checks its schemas concurrently
QUEUE_TIMEOUT_S: Final = 30.0  # clients usually time out by then


class ClientQueueFull(Exception):
    """The client has too many queued computations, this one waited too long, or the compute pool is closed."""


class ClientQueues:
    """Queues of long computations, one per client. Few computations run at once, and at most one per client. Belongs to
    one event loop."""

    def __init__(self, running_max: int = RUNNING_MAX, queue_timeout_s: float = QUEUE_TIMEOUT_S) -> None:
        self._free = running_max
        self._queue_timeout_s = queue_timeout_s
        self._running: set[Hashable] = set()
        # In the order in which clients run next.
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def run(self, client: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Waits until it is the client's turn, then runs `work` and returns its result.

        Raises:
            ClientQueueFull: too many computations of the client are queued, or this one waited too long; `work` was not
                run.
        """
        if self._free and client not in self._running:
            self._free -= 1
            self._running.add(client)
        else:
            await self._wait(client)
        try:
            return await work()
        finally:
            self._start_next(client)

    async def _wait(self, client: Hashable) -> None:
        if len(self._queues.get(client, ())) >= CLIENT_WAITING_MAX:
            raise ClientQueueFull
        queue = self._queues.setdefault(client, deque())
        start = asyncio.get_running_loop().create_future()
        queue.append(start)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await start
        except BaseException as error:
            if start in queue:
                queue.remove(start)
                if not queue:
                    del self._queues[client]
            elif not start.cancelled():
                self._start_next(client)  # its turn came at the moment of the timeout or cancellation
            if isinstance(error, TimeoutError):
                raise ClientQueueFull from None
            raise

    def _start_next(self, client: Hashable) -> None:
        """Records that the client's computation has ended, and starts queued computations of any clients that may run
        now."""
        self._running.discard(client)
        self._free += 1
        for waiting in list(self._queues):
            if not self._free:
                return
            if waiting not in self._running:
                queue = self._queues.pop(waiting)
                start = queue.popleft()
                if queue:
                    self._queues[waiting] = queue  # at the end of the order
                self._free -= 1
                self._running.add(waiting)
                start.set_result(None)
