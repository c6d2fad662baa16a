"""Files that survive a crash whole, and a bounded set of open ones."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Makes created, renamed and removed names of a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file: after a crash it holds the old content or the new, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_fully(fd, [content], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def write_fully(fd: int, pieces: list[bytes | bytearray | memoryview], position: int) -> None:
    """Writes all pieces, one after the other, from `position` on.

    Raises:
        OSError: part of it may have been written.
    """
    total = sum(len(piece) for piece in pieces)
    written = os.pwritev(fd, pieces, position)
    while written < total:
        # A signal or a nearly full disk ends a write early; the next call finishes it or says why it cannot.
        rest = memoryview(b"".join(pieces))[written:]
        count = os.pwrite(fd, rest, position + written)
        if count == 0:
            raise OSError(f"wrote {written} of {total} bytes")
        written += count


def sync_file(path: Path) -> None:
    """Forces a file's bytes to disk, through a descriptor of its own: safe beside whoever writes it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


class OpenFiles:
    """Descriptors for reading and writing, at most `files_max` at once; the one not used longest is closed.

    Ten thousand partitions are mostly idle, and a process may hold only so many files. Not for use by threads.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def fd(self, path: Path) -> int:
        found = self._fds.get(path)
        if found is not None:
            self._fds.move_to_end(path)
            return found
        while len(self._fds) >= self._files_max:
            _, oldest = self._fds.popitem(last=False)
            os.close(oldest)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._fds[path] = fd
        return fd

    def forget(self, path: Path) -> None:
        """Closes the file if it is open; call it before the file is renamed or removed."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        for path in list(self._fds):
            self.forget(path)
