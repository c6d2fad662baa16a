"""The log of a part of `headrace up`, and its rotation.

A log is checked when its part starts and every minute. It is rotated when it exceeds `LOG_BYTES_MAX`, and a week after
its first line: to `.log.1`, the previous `.log.1` to `.log.2` and so on; the oldest is deleted. The logs of a part take
about `ROTATED_LOGS_MAX` + 1 times `LOG_BYTES_MAX` at most, and logs with few lines go back several weeks. The age of a
log is taken from its first line with a time, so that restarts do not reset it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
LOG_AGE_S: Final = 7 * 86_400.0
ROTATED_LOGS_MAX: Final = 4  # in addition to the current log
HEAD_BYTES: Final = 4096  # at the start of a log, which contain a line with a time
TIME: Final = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{3})?(?:[+-]\d\d:\d\d)?"
    rb"|^\d\d/\d\d/\d\d \d\d:\d\d:\d\d",  # Spark's format, with two digits for the year
    re.MULTILINE,
)


class PartLog:
    """The log file of a part, opened for appending; the part's processes append to it too.

    `lines` returns the lines written since the last `begin`, or since the file was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and self._is_due():
            self._shift_rotated()
            path.replace(rotated_path(path, 1))
        self.stream = path.open("ab")
        self._start = self.stream.tell()

    def begin(self) -> None:
        """Marks the current end of the log: `lines` starts there."""
        self._start = self.path.stat().st_size

    def lines(self) -> Sequence[str]:
        """Returns the lines of the log, without empty ones, that were written since the last call of `begin`, or since
        the log was opened."""
        with self.path.open("rb") as log:
            log.seek(self._start)
            return [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]

    def rotate_if_due(self) -> None:
        """Rotates the log if it is due, while processes write to it: they continue in the truncated file. A line
        written at this moment may be lost."""
        if self._is_due():
            self._shift_rotated()
            shutil.copyfile(self.path, rotated_path(self.path, 1))
            os.truncate(self.path, 0)
            self._start = 0

    def close(self) -> None:
        self.stream.close()

    def _is_due(self) -> bool:
        with self.path.open("rb") as log:
            first_line_s = first_time_s(log.read(HEAD_BYTES))
        return is_due(self.path.stat().st_size, first_line_s, time.time())

    def _shift_rotated(self) -> None:
        for number in range(ROTATED_LOGS_MAX, 1, -1):
            if (older := rotated_path(self.path, number - 1)).exists():
                older.replace(rotated_path(self.path, number))


def is_due(size: int, first_line_s: float | None, now_s: float) -> bool:
    """Returns whether a log is so large or so old at the time `now_s` that it must be rotated. Times are in seconds
    since 1970.

    Args:
        size: the length of the log in bytes.
        first_line_s: the time of its first line; None if no line has a time.
    """
    return size > LOG_BYTES_MAX or (first_line_s is not None and now_s - first_line_s > LOG_AGE_S)


def first_time_s(head: bytes) -> float | None:
    """Returns the first time in `head`, the first bytes of a log, in seconds since 1970; None if it contains no time. A
    time without a zone is local."""
    for found in TIME.findall(head):
        try:
            text = found.decode().replace(",", ".")
            return datetime.fromisoformat(f"20{text.replace('/', '-')}" if "/" in text else text).timestamp()
        except (ValueError, OverflowError):
            continue
    return None


def rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
