"""Appends lines to a file that several processes write, and rotates it by size.

    <path>      the newest lines
    <path>.1    the lines before; a file that has reached the maximum size gets no further line
    <path>.2    the lines before those, and so on up to the maximum number of rotated files

A writer holds an exclusive `flock` on the file. Lines of several processes are therefore neither mixed nor lost, also
when one of them rotates the file. A failed write leaves no part of the line, unless the process or the host ends during
it. The next line is then written after a line feed, so that it is intact, and readers ignore the truncated one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BLOCK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LineFile:
    """A file of lines. It is rotated when it has reached `bytes_max`; `rotated_max` rotated files remain. `mode` has
    the permissions of a new file."""

    path: Path
    bytes_max: int
    rotated_max: int = 1
    mode: int = 0o644

    def append(self, line: bytes) -> None:
        """Appends a line, which ends in a line feed.

        Raises:
            OSError: the line could not be written completely; then the file does not contain it.
        """
        self.append_next(lambda: line)

    def append_next(self, next_line: Callable[[], bytes]) -> None:
        """Appends the line that `next_line` returns. The file is locked during the call, so no other process appends a
        line between a read of the newest one (`newest_first`) and the end of the write.

        Raises:
            OSError: the line could not be written completely; then the file does not contain it.
        """
        with self._locked() as descriptor:
            line = next_line()
            size = os.fstat(descriptor).st_size
            content = b"\n" + line if _ends_in_partial_line(descriptor, size) else line
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                if _is_regular(descriptor):
                    os.ftruncate(descriptor, size)
                raise

    def check(self) -> None:
        """Checks that the file can be opened for writing, and creates it if it does not exist.

        Raises:
            OSError: it cannot.
        """
        with self._locked():
            pass

    def files(self) -> tuple[Path, ...]:
        """Returns the existing files, the one with the oldest lines first."""
        numbered = [self._rotated(number) for number in range(self.rotated_max, 0, -1)]
        return tuple(path for path in (*numbered, self.path) if path.exists())

    def newest_first(self) -> Iterator[bytes]:
        """Yields the lines of all files without their line feeds, the newest first. Reads blocks from the ends of the
        files, so the cost depends on the number of lines that the caller takes. Omits files that cannot be read."""
        for path in reversed(self.files()):
            if path.is_file():  # opening a pipe would wait for its writer
                with suppress(OSError):
                    yield from _lines_from_end(path)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yields the file, open for appending and locked. Rotates a full file first."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self.mode)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not _is_current_file(self.path, descriptor):
                    continue  # another process has renamed it
                if _is_regular(descriptor) and os.fstat(descriptor).st_size >= self.bytes_max:
                    self._rotate()
                    continue
                yield descriptor
                return
            finally:
                os.close(descriptor)

    def _rotate(self) -> None:
        # A process that ended during a rotation has left a gap; files after a gap stay.
        last = next((n for n in range(1, self.rotated_max) if not self._rotated(n).exists()), self.rotated_max)
        for number in range(last, 1, -1):
            self._rotated(number - 1).replace(self._rotated(number))
        self.path.replace(self._rotated(1))

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _lines_from_end(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        start, first = file.seek(0, os.SEEK_END), b""
        while start:
            end, start = start, max(0, start - BLOCK_BYTES)
            file.seek(start)
            first, *lines = (file.read(end - start) + first).split(b"\n")
            yield from filter(None, reversed(lines))
        if first:
            yield first


def _is_current_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _ends_in_partial_line(descriptor: int, size: int) -> bool:
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
