"""A log file that several processes append to, with support for rotation.

Each line is one write in append mode, so lines of different processes do not mix. Before a line, at most every
`REOPEN_S`, a process checks whether log rotation has moved the file, and then opens the new one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

STANDARD_ERROR: Final = "-"
REOPEN_S: Final = 1.0


class LogFile:
    """An open log file, or standard error. Thread-safe."""

    def __init__(self, target: str, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Opens the log.

        Args:
            target: a file, or "-" for standard error.
            name: the name of the log in error messages.
            clock: for the checks whether the file was rotated.

        Raises:
            OSError: the file cannot be opened.
        """
        self._path = None if target == STANDARD_ERROR else Path(target)
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._check_at = clock() + REOPEN_S
        self._fails = False
        self._descriptor = 2 if self._path is None else _open(self._path)

    def write_line(self, line: bytes) -> bool:
        """Writes a line and returns whether that succeeded. The registry continues without a log rather than stop."""
        with self._lock:
            try:
                self._reopen_if_rotated()
                os.write(self._descriptor, line)
            except OSError as error:
                if not self._fails:
                    logger.error(
                        "log_not_written log=%r cause=%s; lines are missing in it until writing succeeds again",
                        self._name,
                        error,
                    )
                self._fails = True
            else:
                self._fails = False
            return not self._fails

    def close(self) -> None:
        if self._path is not None:
            os.close(self._descriptor)

    def _reopen_if_rotated(self) -> None:
        now = self._clock()
        if self._path is None or now < self._check_at:
            return
        self._check_at = now + REOPEN_S
        if not _is_at(self._descriptor, self._path):
            opened = _open(self._path)
            os.close(self._descriptor)
            self._descriptor = opened


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
