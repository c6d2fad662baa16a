"""Counts the calls of a metastore client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CountingClient:
    """A metastore client that appends the name of each called method to `calls`."""

    def __init__(self, client: Any, calls: list[str]) -> None:
        self._client = client
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*arguments: Any) -> Any:
            self._calls.append(name)
            return method(*arguments)

        return call
