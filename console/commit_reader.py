"""Reads of the commit log. Caches its newest state between requests, so that a page reads only later commits."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.console.errors import ConsoleError
from headrace.loader.commit.commit_files import CommitFiles
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import LogReplaced
from headrace.pipeline.load import commit_log
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

T = TypeVar("T")


class CommitReader:
    """Reads the commit log of the warehouse. Thread-safe. All pages share one state: that of ten thousand partitions
    takes tens of megabytes to read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._log: CommitLog | None = None

    @property
    def is_local(self) -> bool:
        """Whether the commit log is in a local directory, so that reading it starts no JVM."""
        return not isinstance(self._location, RemoteDirectory)

    def read(self, read: Callable[[CommitLog], T]) -> T:
        """Returns the value of `read`, called with the commit log after a call of `read_state`.

        Raises:
            ConsoleError: the commit log is not in a local directory, and reading it would start a JVM.
            LoaderError: a commit cannot be read, or only a newer release can read the log.
            OSError: the storage failed.
        """
        return read(self.opened())

    def opened(self) -> CommitLog:
        """Returns a commit log for one thread, after a call of `read_state`. Raises the errors of `read`."""
        with self._lock:
            log = self._log or self._opened()
            try:
                log.read_state()
            except LogReplaced:  # a copy was restored
                self._log, log = None, self._opened()
                log.read_state()
            self._log = log
            found = copy.copy(log)
        found.commits = CommitFiles(log.storage)  # so that a cached archive is released after the read
        return found

    @property
    def _location(self) -> object:
        return state_location(self._settings) or warehouse_location(self._settings)

    def _opened(self) -> CommitLog:
        location = self._location
        if isinstance(location, RemoteDirectory):
            raise ConsoleError(
                f"the commit log is in {location.uri}, not in a local directory; only commands read it there"
            )
        if isinstance(warehouse_location(self._settings), RemoteDirectory):
            log = CommitLog(warehouse_storage(self._settings).commits, read_only=True)
        else:
            log = commit_log(self._settings, read_only=True)
        log.check_format(writing=False)
        return log
