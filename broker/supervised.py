"""Work that is done again and again beside the connections, and goes on when it has failed once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.broker.errors import RequestRefused

logger = logging.getLogger(__name__)


async def repeat(closing: asyncio.Event, interval_ms: int, work: Callable[[], object]) -> None:
    """Does `work`, which may be a coroutine function, after each interval until it is closing time."""
    while not closing.is_set():
        try:
            async with asyncio.timeout(interval_ms / 1000):
                await closing.wait()
            return
        except TimeoutError:
            pass
        try:
            result = work()
            if asyncio.iscoroutine(result):
                await result
        except (OSError, RequestRefused) as error:
            logger.error("upkeep failed error=%s; tried again in interval_ms=%d", error, interval_ms)
        except Exception:
            logger.exception("upkeep failed; tried again in interval_ms=%d", interval_ms)
