"""Async objects whose calls wait for their results, so that one suite does for a blocking and an async library."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


class Blocking:
    """`target` with every call waited for; attributes that are no functions come as they are."""

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
