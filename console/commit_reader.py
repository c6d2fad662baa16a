"""Reads of the commit log. Caches its newest state between requests, so that a page reads only later commits."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.console.errors import RemoteCommitLog
from headrace.loader.commit.commit_files import CommitFiles
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import LogReplaced
from headrace.pipeline.load import commit_log
from headrace.pipeline.status.context import SourceSkipped
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CommitReader:
    """Reads the commit log of the warehouse. Thread-safe. All pages share one state: that of ten thousand partitions
    takes tens of megabytes to read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._log: CommitLog | None = None

    def read_ahead(self, limit_s: float) -> None:
        """Reads the state before the first page needs it, and waits for it until the limit. Pages report an error."""

        def attempt() -> None:
            try:
                self.opened()
            except Exception:  # of a page, which reads again
                logger.debug("commits_not_read_ahead", exc_info=True)

        reading = threading.Thread(target=attempt, name="commits", daemon=True)
        reading.start()
        reading.join(limit_s)

    def read(self, read: Callable[[CommitLog], T]) -> T:
        """Returns the value of `read`, called with the commit log after a call of `read_state`.

        Raises:
            RemoteCommitLog: the commit log is not in a local directory.
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

    def opened_for_status(self) -> CommitLog:
        """Returns `opened()`, for `platform_status`.

        Raises:
            SourceSkipped: the commit log is not in a local directory.
        """
        try:
            return self.opened()
        except RemoteCommitLog as error:
            raise SourceSkipped(str(error)) from error

    def _opened(self) -> CommitLog:
        location = state_location(self._settings) or warehouse_location(self._settings)
        if isinstance(location, RemoteDirectory):
            raise RemoteCommitLog(
                f"the commit log is in {location.uri}, not in a local directory; only commands read it there"
            )
        if isinstance(warehouse_location(self._settings), RemoteDirectory):
            log = CommitLog(warehouse_storage(self._settings).commits, read_only=True)
        else:
            log = commit_log(self._settings, read_only=True)
        log.check_format(writing=False)
        return log
