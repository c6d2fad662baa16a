"""The log of a part of `headrace up`, and when it is set aside: beyond a size, or a week after it was begun.

A log is set aside as `.log.1`, what was there before as `.log.2` and so on; the oldest goes. So the logs of a part take
`LOG_BYTES_MAX` times one more than `ROTATED_LOGS_MAX` at most, and a line is found for weeks where little is written. When a
log was begun is what its first line with a time says, so that restarts do not matter.
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
ROTATED_LOGS_MAX: Final = 4  # beside the one that is written to
HEAD_BYTES: Final = 4096  # in which there is a line with a time
TIME: Final = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{3})?(?:[+-]\d\d:\d\d)?"
    rb"|^\d\d/\d\d/\d\d \d\d:\d\d:\d\d",  # Spark's, of this century
    re.MULTILINE,
)


class PartLog:
    """Opened to be written to at its end, also by others; what has been said since the last `begin` can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and self._is_due():
            self._shift_rotated()
            path.replace(rotated_path(path, 1))
        self.stream = path.open("ab")
        self._start = self.stream.tell()

    def begin(self) -> None:
        """What is written from now on is of something else."""
        self._start = self.path.stat().st_size

    def lines(self) -> Sequence[str]:
        """What was written since, without empty lines."""
        with self.path.open("rb") as log:
            log.seek(self._start)
            return [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]

    def limit(self) -> None:
        """Sets it aside where it is due, while it is written to: whoever writes goes on in the emptied file, and a line
        of just this moment may be lost."""
        if self._is_due():
            self._shift_rotated()
            shutil.copyfile(self.path, rotated_path(self.path, 1))
            os.truncate(self.path, 0)
            self._start = 0

    def close(self) -> None:
        self.stream.close()

    def _is_due(self) -> bool:
        with self.path.open("rb") as log:
            begun_s = first_time_s(log.read(HEAD_BYTES))
        return is_due(self.path.stat().st_size, begun_s, time.time())

    def _shift_rotated(self) -> None:
        for number in range(ROTATED_LOGS_MAX, 1, -1):
            if (older := rotated_path(self.path, number - 1)).exists():
                older.replace(rotated_path(self.path, number))


def is_due(size: int, begun_s: float | None, now_s: float) -> bool:
    """Whether a log of so many bytes is set aside; `begun_s` is None where no line of it tells."""
    return size > LOG_BYTES_MAX or (begun_s is not None and now_s - begun_s > LOG_AGE_S)


def first_time_s(head: bytes) -> float | None:
    """The first time in the lines of a log, in seconds since 1970; one without a zone is of this machine's."""
    for found in TIME.findall(head):
        try:
            text = found.decode().replace(",", ".")
            return datetime.fromisoformat(f"20{text.replace('/', '-')}" if "/" in text else text).timestamp()
        except (ValueError, OverflowError):
            continue
    return None


def rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
