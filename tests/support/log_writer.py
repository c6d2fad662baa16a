"""Writes numbered lines to log files, and rotates them as logrotate does."""

from __future__ import annotations

import enum
import gzip
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path


class Rotation(enum.Enum):
    """An option of logrotate."""

    RENAME = "create"
    COMPRESS = "create, compress, delaycompress"
    COPY = "copytruncate"


class LogWriter:
    """Writes lines `NAME NUMBER …` to one file. Rotated files are never deleted: the client may not have read them.

    Args:
        sizes: how many lines one step may write.
        rotated_share: the share of steps that rotate.
        writes_while_copying: whether lines may be written between copy and truncation, which copytruncate loses.

    Attributes:
        written: how many lines were written.
        may_be_lost: the numbers of lines that were written between copy and truncation.
    """

    def __init__(
        self,
        path: Path,
        choose: random.Random,
        rotation: Rotation,
        sizes: Sequence[int] = (1, 3, 50, 2000),
        rotated_share: float = 0.15,
        writes_while_copying: bool = False,
    ) -> None:
        self.path = path
        self.rotations = 0
        self.written = 0
        self.may_be_lost: set[int] = set()
        self._choose = choose
        self._rotation = rotation
        self._sizes = sizes
        self._rotated_share = rotated_share
        self._writes_while_copying = writes_while_copying

    def step(self) -> None:
        """Writes lines, or a line in two parts, or rotates."""
        what = self._choose.random()
        if what < self._rotated_share:
            self.rotate()
        elif what < self._rotated_share + 0.1:
            self._append(f"{self.path.name} {self.written} ")
            time.sleep(0.01)
            self._append("x" * self._choose.randrange(3000) + "\n")
            self.written += 1
        else:
            self.write(self._choose.choice(self._sizes))

    def write(self, count: int) -> None:
        name = self.path.name
        self._append("".join(f"{name} {self.written + at} {'x' * self._choose.randrange(60)}\n" for at in range(count)))
        self.written += count

    def rotate(self) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            return
        self.rotations += 1
        for at in range(self.rotations, 0, -1):
            for suffix in ("", ".gz"):
                older = self._rotated(at, suffix)
                if older.exists():
                    older.rename(self._rotated(at + 1, suffix))
        if self._rotation is Rotation.COPY:
            shutil.copyfile(self.path, self._rotated(1))
            if self._writes_while_copying and self._choose.random() < 0.5:
                self.may_be_lost.add(self.written)
                self.write(1)
                time.sleep(self._choose.random() * 0.1)
            os.truncate(self.path, 0)
            return
        self.path.rename(self._rotated(1))
        if self._rotation is Rotation.COMPRESS and self._rotated(2).exists() and self._choose.random() < 0.5:
            self._compress(self._rotated(2))

    def _rotated(self, number: int, suffix: str = "") -> Path:
        return self.path.with_name(f"{self.path.name}.{number}{suffix}")

    def _append(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def _compress(self, path: Path) -> None:
        """Replaces a file by a compressed one with the same time of change, as gzip does."""
        status = path.stat()
        partial = path.with_name(f".{path.name}")
        partial.write_bytes(gzip.compress(path.read_bytes(), 1))
        os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
        partial.rename(path.with_name(f"{path.name}.gz"))
        path.unlink()
