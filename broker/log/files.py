"""File primitives of the broker: crash-safe replacement, an LRU cache of open files, and reads that do not block on the
disk where the file system supports that."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakValueDictionary

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
SLICE_BYTES_MIN = 32 * 1024
"""Smaller ranges of a file are copied into memory. Larger ones usually become a `FileSlice`, which can be sent with
`sendfile`; for few bytes, that call costs more than the copy."""
READ_AHEAD_BYTES = 128 * 1024
"""Size of the kernel's read-ahead: a read brings pieces of about this size into the page cache."""
READ_AHEAD_FILE_BYTES_MAX = 4 * 1024 * 1024
"""Files up to this size, such as indexes, are read ahead completely, because a binary search reads many positions."""
HELD_FILES_DIVISOR = 2
"""Unsent slices may hold at most 1/HELD_FILES_DIVISOR of the files that may be open; beyond that, bytes are copied
instead. The remaining descriptors stay available for reading and writing."""


def sync_directory(directory: Path) -> None:
    """Makes the names of created, renamed and removed files in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file atomically: after a crash it holds either the old or the new content."""
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
    """Writes the byte strings in `pieces` one after another to the open file `fd`, starting at the file position
    `position`.

    Raises:
        OSError: some of the bytes may have been written.
    """
    total = sum(map(len, pieces))
    written = os.pwritev(fd, pieces, position)
    while written < total:
        # A signal or a nearly full disk can end a write early; the next call completes it or raises the reason.
        rest = memoryview(b"".join(pieces))[written:]
        count = os.pwrite(fd, rest, position + written)
        if count == 0:
            raise OSError(f"the file write ended after {written} of {total} bytes")
        written += count


def sync_file(path: Path) -> None:
    """Fsyncs a file or directory through a separate descriptor, so that the file can be written to meanwhile."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


class OpenFile:
    """A file descriptor that is closed when the last reference to it is dropped."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path) -> OpenFile:
        """Opens a file for reading and writing, and creates it if it is missing.

        Raises:
            OSError: the file cannot be opened.
        """
        return cls(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class _SharedFile:
    """An open file that the unsent slices of this file share. It stays open as long as one of them exists."""

    __slots__ = ("__weakref__", "file")

    def __init__(self, file: OpenFile) -> None:
        self.file = file


class NotCached(Exception):
    """The requested bytes are not in the page cache, and the caller must not block on the disk. Call `read_ahead` in a
    thread and repeat the read."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(f"{path}: position {position} is not cached")
        # The path, not the descriptor, is stored: descriptors are limited, and the file may be closed before a thread
        # reads it.
        self._path, self._position = path, position

    def read_ahead(self) -> None:
        """Reads the bytes that were not in the page cache, and some after them or the whole file if it is small, from
        the disk into the page cache. Call it in a thread.

        Errors are ignored: the next read of the file raises them.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY)
            try:
                size = os.fstat(fd).st_size
                if size <= READ_AHEAD_FILE_BYTES_MAX:
                    _read_ahead(fd, 0, size)
                else:
                    _read_ahead(fd, self._position, READ_AHEAD_BYTES)
            finally:
                os.close(fd)


_reads_are_nonblocking: ContextVar[bool] = ContextVar("_reads_are_nonblocking", default=False)


@contextlib.contextmanager
def nonblocking_reads(enabled: bool = True) -> Iterator[None]:
    """A context manager. Inside its block, `read_at` raises `NotCached` where it would block the event loop on the
    disk.

    Other threads are not affected, nor are tasks that were created outside of the block.

    Args:
        enabled: False permits blocking reads again inside the block.
    """
    token = _reads_are_nonblocking.set(enabled)
    try:
        yield
    finally:
        _reads_are_nonblocking.reset(token)


def read_at(fd: int, size: int, position: int) -> bytes:
    """Reads `size` bytes of the open file `fd` at `position`; fewer if the file ends before. Inside
    `nonblocking_reads`, the read still blocks if the file system does not support such reads.

    Raises:
        NotCached: inside `nonblocking_reads`, if the bytes are not in the page cache.
    """
    if not _reads_are_nonblocking.get():
        return os.pread(fd, size, position)
    content, count = bytearray(size), 0
    try:
        count = os.preadv(fd, [content], position, os.RWF_NOWAIT)
        if count == size or position + count >= os.fstat(fd).st_size:
            return bytes(memoryview(content)[:count])
    except BlockingIOError:
        pass
    except OSError:  # the file system does not support RWF_NOWAIT, or the disk failed
        return os.pread(fd, size, position)
    try:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return os.pread(fd, size, position)
    raise NotCached(path, position + count)


def _read_ahead(fd: int, start: int, size: int) -> None:
    buffer = bytearray(READ_AHEAD_BYTES)
    for position in range(start, start + size, READ_AHEAD_BYTES):
        os.preadv(fd, [buffer], position)


class FileSlice:
    """A range of a log file that has not been read or sent yet. The log never changes these bytes.

    The slice holds the file open, so its bytes stay readable after the file is renamed, deleted or closed by the cache.
    """

    __slots__ = ("_probed_to", "_shared", "position", "size")

    def __init__(self, shared: _SharedFile, position: int, size: int) -> None:
        self._shared = shared
        self._probed_to = position
        self.position, self.size = position, size

    @property
    def _fd(self) -> int:
        return self._shared.file.fd

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return os.pread(self._fd, self.size, self.position)

    def is_cached(self, byte_count: int) -> bool:
        """Returns whether the first `byte_count` bytes can be read without blocking on the disk; True also if the file
        system does not support this test.

        Each read-ahead window (READ_AHEAD_BYTES) is tested only once, by reading one byte of it. After a result of
        False, call `read_ahead` instead of testing again: a second test would return True without reading anything.
        """
        end = self.position + min(byte_count, self.size)
        while self._probed_to < end:
            position = self._probed_to
            self._probed_to += READ_AHEAD_BYTES
            try:
                os.preadv(self._fd, [bytearray(1)], position, os.RWF_NOWAIT)
            except BlockingIOError:
                self._probed_to = end
                return False
            except OSError:  # the file system does not support RWF_NOWAIT
                self._probed_to = self.position + self.size
        return True

    def read_ahead(self, byte_count: int) -> None:
        """Blocks until the first `byte_count` bytes are in the page cache. Call it in a thread."""
        _read_ahead(self._fd, self.position, min(byte_count, self.size))

    def take(self, byte_count: int) -> bytes:
        """Reads up to `byte_count` bytes and removes them from the start of the slice."""
        content = os.pread(self._fd, min(byte_count, self.size), self.position)
        self._skip(len(content))
        return content

    def send(self, socket_fd: int, byte_count: int) -> int:
        """Sends up to `byte_count` bytes, as many as the socket accepts, and removes them from the slice; returns the
        count.

        Raises:
            BlockingIOError: the socket's buffer is full.
            OSError: the client disconnected, or the file cannot be read.
        """
        sent = os.sendfile(socket_fd, self._fd, self.position, min(byte_count, self.size))
        self._skip(sent)
        return sent

    def _skip(self, byte_count: int) -> None:
        self.position += byte_count
        self.size -= byte_count


class OpenFiles:
    """A cache of files opened for reading and writing. At most `files_max` files are open, including those held by
    slices.

    The least recently used file is closed first: most of ten thousand partitions are idle, and a process has a limited
    number of descriptors. Not thread-safe.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._shared: WeakValueDictionary[int, _SharedFile] = (
            WeakValueDictionary()
        )  # by descriptor; includes files that are still in `_files`

    def fd(self, path: Path) -> int:
        return self._open(path).fd

    def slice(self, path: Path, position: int, size: int) -> FileSlice | bytes:
        """Returns `size` bytes of a file, from `position` on, as a `FileSlice`; or as bytes if there are few of them,
        or if slices already hold too many files open."""
        file = self._open(path)
        if size < SLICE_BYTES_MIN:
            return read_at(file.fd, size, position)
        shared = self._shared.get(file.fd)
        if shared is None:
            if len(self._shared) >= self._files_max // HELD_FILES_DIVISOR:
                return read_at(file.fd, size, position)
            shared = self._shared[file.fd] = _SharedFile(file)
        return FileSlice(shared, position, size)

    def _open(self, path: Path) -> OpenFile:
        found = self._files.get(path)
        if found is not None:
            self._files.move_to_end(path)
            return found
        # A file that a slice holds stays open when it is removed here.
        while self._files and len(self._files) + len(self._shared) >= self._files_max:
            self._files.popitem(last=False)
        file = self._files[path] = OpenFile.at(path)
        return file

    def forget(self, path: Path) -> None:
        """Removes the file from the cache. It is closed unless a slice uses it; then it is closed with the last slice.
        Call this before the file is renamed or deleted."""
        self._files.pop(path, None)

    def close(self) -> None:
        self._files.clear()
