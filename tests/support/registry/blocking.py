"""Makes async objects blocking, so that one suite covers blocking and async libraries."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


class Blocking:
    """Wraps `target` and waits for the result of every call. Other attributes are returned unchanged."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        return self._waiting(value) if callable(value) else value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._waiting(self.target)(*arguments, **named)

    def _waiting(self, call: Any) -> Any:
        def wait(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

        return wait
