"""Gives up waits that take too long, all of them by one look now and then.

`asyncio.timeout` sets a timer for each wait and takes it back, which costs more than receiving a body that is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Patience:
    """Belongs to one event loop; a task waits once at a time.

    Args:
        seconds: how long a wait may take. It is given up up to a tenth later.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self._is_looking = False

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """
        Raises:
            TimeoutError: it took too long.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "waits are a task's"
        self._since[task] = loop.time()
        if not self._is_looking:
            self._look_later(loop)
        try:
            return await awaitable
        except asyncio.CancelledError:
            # Of somebody else's cancelling one is left over.
            if task in self._given_up and not task.uncancel():
                raise TimeoutError from None
            raise
        finally:
            del self._since[task]
            self._given_up.discard(task)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = True
        loop.call_later(self._seconds / 10, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = False
        latest = loop.time() - self._seconds
        for task, since in self._since.items():
            if since <= latest and task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
        if self._since:
            self._look_later(loop)
