"""Files that survive a crash whole, a bounded set of open ones, and reads that do not wait for a disk."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakValueDictionary

FULL = (errno.ENOSPC, errno.EDQUOT)
SLICE_BYTES_MIN = 32 * 1024
"""Less of a file is read at once: to send it by itself would cost more than to copy it."""
LOOKED_AT_BYTES = 128 * 1024
"""The kernel reads that much ahead, so what is read of a file is cached in pieces of about this size."""
READ_AHEAD_WHOLE_BYTES = 4 * 1024 * 1024
"""A file of no more is read whole when some of it is waited for: an index, in which a search jumps about."""
HELD_SHARE = 2
"""One in so many open files may be held for what is still to be sent from it; beyond it bytes are read at once. The
others are for whoever writes and reads meanwhile."""


def sync_directory(directory: Path) -> None:
    """Makes created, renamed and removed names of a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
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
    sync_directory(path.parent)


def write_fully(fd: int, pieces: list[bytes | bytearray | memoryview], position: int) -> None:
    """Writes all pieces, one after the other, from `position` on.

    Raises:
        OSError: part of it may have been written.
    """
    total = sum(map(len, pieces))
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


class OpenFile:
    """A descriptor that is closed when nobody has it any more."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path) -> OpenFile:
        """For reading and writing; made where there is none.

        Raises:
            OSError: it cannot be opened.
        """
        return cls(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class _Held:
    """Keeps a file open for all that is still to be read from it."""

    __slots__ = ("__weakref__", "file")

    def __init__(self, file: OpenFile) -> None:
        self.file = file


class NotCached(Exception):
    """What was to be read is not in memory, and whoever reads has said not to wait for the disk."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(f"{path}: position {position} is not cached")
        # No descriptor, of which there are only so many: the file may be closed before a thread comes to it.
        self._path, self._position = path, position

    def read_ahead(self) -> None:
        """Waits until it can be read at once, and what lies around it. For a thread.

        What cannot be read, or is not there any more, is met by whoever reads it next.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY)
            try:
                size = os.fstat(fd).st_size
                if size <= READ_AHEAD_WHOLE_BYTES:
                    _read_ahead(fd, 0, size)
                else:
                    _read_ahead(fd, self._position, LOOKED_AT_BYTES)
            finally:
                os.close(fd)


_is_without_waiting: ContextVar[bool] = ContextVar("_is_without_waiting", default=False)


@contextlib.contextmanager
def without_waiting(is_so: bool = True) -> Iterator[None]:
    """Within it `read_at` raises `NotCached` rather than wait for the disk, while all others would wait too. What a
    thread or another task does meanwhile is not within it.

    Args:
        is_so: False: within it the disk is waited for again.
    """
    token = _is_without_waiting.set(is_so)
    try:
        yield
    finally:
        _is_without_waiting.reset(token)


def read_at(fd: int, size: int, position: int) -> bytes:
    """So many bytes of a file, fewer where it ends before.

    Raises:
        NotCached: only `without_waiting`.
    """
    if not _is_without_waiting.get():
        return os.pread(fd, size, position)
    content, count = bytearray(size), 0
    try:
        count = os.preadv(fd, [content], position, os.RWF_NOWAIT)
        if count == size or position + count >= os.fstat(fd).st_size:
            return bytes(memoryview(content)[:count])
    except BlockingIOError:
        pass
    except OSError:  # a file system that does not tell, or a disk that fails
        return os.pread(fd, size, position)
    try:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return os.pread(fd, size, position)
    raise NotCached(path, position + count)


def _read_ahead(fd: int, start: int, size: int) -> None:
    buffer = bytearray(LOOKED_AT_BYTES)
    for position in range(start, start + size, LOOKED_AT_BYTES):
        os.preadv(fd, [buffer], position)


class FileSlice:
    """Bytes of a file that are still to be read or sent; what the log has there does not change any more.

    It holds the file open, so that its bytes stay what they are when the file is renamed, removed or closed by others.
    """

    __slots__ = ("_held", "_looked_to", "position", "size")

    def __init__(self, held: _Held, position: int, size: int) -> None:
        self._held = held
        self._looked_to = position
        self.position, self.size = position, size

    @property
    def _fd(self) -> int:
        return self._held.file.fd

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return os.pread(self._fd, self.size, self.position)

    def is_cached(self, byte_count: int) -> bool:
        """Can that many bytes be read without waiting for the disk? As far as a look here and there tells, and once
        only: what is not cached is to be read ahead then."""
        end = self.position + min(byte_count, self.size)
        while self._looked_to < end:
            position = self._looked_to
            self._looked_to += LOOKED_AT_BYTES
            try:
                os.preadv(self._fd, [bytearray(1)], position, os.RWF_NOWAIT)
            except BlockingIOError:
                self._looked_to = end
                return False
            except OSError:  # a file system that does not tell
                self._looked_to = self.position + self.size
        return True

    def read_ahead(self, byte_count: int) -> None:
        """Waits until that many bytes can be read at once. For a thread."""
        _read_ahead(self._fd, self.position, min(byte_count, self.size))

    def take(self, byte_count: int) -> bytes:
        """Reads that many bytes, fewer where the file ends before, and has them no longer."""
        taken = os.pread(self._fd, min(byte_count, self.size), self.position)
        self._skip(len(taken))
        return taken

    def send(self, socket_fd: int, byte_count: int) -> int:
        """Sends that many bytes, fewer where the socket takes no more now, and has them no longer; returns how many.

        Raises:
            BlockingIOError: the socket takes nothing now.
            OSError: the client is gone, or the file cannot be read.
        """
        sent = os.sendfile(socket_fd, self._fd, self.position, min(byte_count, self.size))
        self._skip(sent)
        return sent

    def _skip(self, byte_count: int) -> None:
        self.position += byte_count
        self.size -= byte_count


class OpenFiles:
    """Files for reading and writing, at most `files_max` open at once, with those that are still to be sent from; the
    one not used longest is closed.

    Ten thousand partitions are mostly idle, and a process may hold only so many files. Not for use by threads.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._held: WeakValueDictionary[int, _Held] = (
            WeakValueDictionary()
        )  # by descriptor; also of files that are open

    def fd(self, path: Path) -> int:
        return self._open(path).fd

    def slice(self, path: Path, position: int, size: int) -> FileSlice | bytes:
        """So many bytes of the file; read at once where they are few, or where too many files are held open already."""
        file = self._open(path)
        if size < SLICE_BYTES_MIN:
            return read_at(file.fd, size, position)
        held = self._held.get(file.fd)
        if held is None:
            if len(self._held) >= self._files_max // HELD_SHARE:
                return read_at(file.fd, size, position)
            held = self._held[file.fd] = _Held(file)
        return FileSlice(held, position, size)

    def _open(self, path: Path) -> OpenFile:
        found = self._files.get(path)
        if found is not None:
            self._files.move_to_end(path)
            return found
        # What is held stays open when it is closed here.
        while self._files and len(self._files) + len(self._held) >= self._files_max:
            self._files.popitem(last=False)
        file = self._files[path] = OpenFile.at(path)
        return file

    def forget(self, path: Path) -> None:
        """Closes the file if it is open; call it before the file is renamed or removed."""
        self._files.pop(path, None)

    def close(self) -> None:
        self._files.clear()
