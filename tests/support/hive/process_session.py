"""The Spark session of the test process, which test modules share. It is replaced if a module needs one with other
properties."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

Opened = TypeVar("Opened")


class ProcessSession:
    """The open Spark session and the name under which it was opened. A process has one session at a time."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._name = ""
        self._opened: Any = None

    def get(self, name: str, opening: Callable[[], AbstractContextManager[Opened]]) -> Opened:
        """Returns the session with this name. If another session is open, closes it first.

        Args:
            opening: opens the session, if it is not open.
        """
        if self._name != name:
            self.close()
            self._opened = self._stack.enter_context(opening())
            self._name = name
        opened: Opened = self._opened
        return opened

    def close(self) -> None:
        self._name, self._opened = "", None
        self._stack.close()
