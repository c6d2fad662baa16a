"""The Spark session of the test process: test modules share it, and it is replaced if a module needs another one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

Opened = TypeVar("Opened")


class ProcessSession:
    """The open session and its name; a process has one session at a time."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._name = ""
        self._opened: Any = None

    def get(self, name: str, opening: Callable[[], AbstractContextManager[Opened]]) -> Opened:
        """Returns the session of this name; opens it if another one, or none, is open."""
        if self._name != name:
            self.close()
            self._opened = self._stack.enter_context(opening())
            self._name = name
        opened: Opened = self._opened
        return opened

    def close(self) -> None:
        self._name, self._opened = "", None
        self._stack.close()
