"""Reads of the commit log. Caches its newest state between requests, so that a page reads only later commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.console.errors import ConsoleError
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import LogReplaced
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

T = TypeVar("T")


class CommitReader:
    """Reads the commit log of the warehouse. Thread-safe: one read at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._log: CommitLog | None = None

    def read(self, read: Callable[[CommitLog], T]) -> T:
        """Returns the value of `read`, called with the commit log after a call of `read_state`.

        Raises:
            ConsoleError: the commit log is not in a local directory, and reading it would start a JVM.
            LoaderError: a commit cannot be read, or only a newer release can read the log.
            OSError: the storage failed.
        """
        with self._lock:
            log = self._log or self._opened()
            try:
                log.read_state()
            except LogReplaced:  # a restored copy: the next read opens it
                self._log = None
                raise
            self._log = log
            return read(log)

    def _opened(self) -> CommitLog:
        location = state_location(self._settings) or warehouse_location(self._settings)
        if isinstance(location, RemoteDirectory):
            raise ConsoleError(
                f"the commit log is in {location.uri}, not in a local directory; only commands read it there"
            )
        log = CommitLog(warehouse_storage(self._settings).commits, read_only=True)
        log.check_format(writing=False)
        return log
