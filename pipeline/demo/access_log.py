"""An access log in the format of nginx, rotated as by logrotate with `compress` and `delaycompress`."""

from __future__ import annotations

import gzip
import random
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

PAGES: Final = {"/": 30, "/search": 25, "/item/lamp": 18, "/item/chair": 12, "/cart": 9, "/checkout": 6}
"""The pages of a shop, and their shares in percent."""
STATUSES: Final = {200: 92, 304: 4, 404: 3, 500: 1}
KEPT: Final = 3
"""Rotated files that are kept."""


class WebAccessLog:
    """Writes an access log, and remembers what it wrote.

    Attributes:
        written: the number of lines.
        pages: the number of lines by page and status.

    Args:
        path: the file; its directory exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._random = random.Random(2013)  # noqa: S311  (the log is the same in each run)
        self.written = 0
        self.pages: Counter[tuple[str, int]] = Counter()

    def write(self, count: int) -> None:
        """Appends lines. Each has a request id, so that no two are equal."""
        lines = []
        time = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        for _ in range(count):
            (page,) = self._random.choices(list(PAGES), list(PAGES.values()))
            (status,) = self._random.choices(list(STATUSES), list(STATUSES.values()))
            self.written += 1
            self.pages[page, status] += 1
            lines.append(
                f'192.0.2.{self._random.randrange(256)} - - [{time}] "GET {page} HTTP/1.1" {status} '
                f'{self._random.randrange(200, 20_000)} "-" "demo" request={self.written:06d}\n'
            )
        self._file.write("".join(lines).encode())

    def rotate(self, late_lines: int) -> None:
        """Renames the file and begins another. nginx writes `late_lines` to the old one before it reopens."""
        for number in range(KEPT, 1, -1):
            older = self._rotated(number - 1)
            if number == 2 and older.exists():
                with older.open("rb") as source, gzip.open(self._rotated(2), "wb") as target:
                    shutil.copyfileobj(source, target)
                older.unlink()
            elif older.exists():
                older.rename(self._rotated(number))
        self._path.rename(self._rotated(1))
        self.write(late_lines)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def _rotated(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}{'.gz' if number > 1 else ''}")
