"""File operations. Some make a change durable.

A file's content is durable after an fsync of the file, and a name after an fsync of the directory that contains it. A
new file in a new directory therefore needs three fsyncs: of the file, of its directory, and of the parent directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

THREADS_MAX: Final = 8


def call_concurrently(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Calls `call`, a function that fsyncs, with each item. Many calls run concurrently, because a file system combines
    concurrent fsyncs into one write. Raises the exception of the first item whose call failed."""
    items = list(items)
    if len(items) <= THREADS_MAX:  # the usual case, not worth the threads
        for item in items:
            call(item)
        return
    with ThreadPoolExecutor(THREADS_MAX) as pool:
        list(pool.map(call, items))


def fsync(path: Path) -> None:
    """Fsyncs the content of the file `path`, or the names in the directory `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directories_above(directory: Path) -> None:
    """Fsyncs the name of a directory and of all directories above it, up to the root of the file system, because any of
    them may be new. Stops at the first directory of another file system, and omits names in directories that this user
    must not list."""
    device = directory.stat().st_dev
    for above in directory.resolve().parents:
        if above.stat().st_dev != device:
            return
        # A directory that this user must not list was not created by this process, so its name need not be fsynced.
        with contextlib.suppress(PermissionError):
            fsync(above)


def write_temporary(directory: Path, content: bytes, *, fsynced: bool) -> Path:
    """Creates a file with this content and a unique name, and returns its path. The name begins with a dot, so that
    queries of the directory ignore it.

    Args:
        fsynced: whether the content is fsynced; the name never is.
    """
    temporary = directory / f".{os.getpid()}-{secrets.token_hex(8)}"
    with temporary.open("wb") as file:
        file.write(content)
        if fsynced:
            file.flush()
            os.fsync(file.fileno())
    return temporary


def length_of(path: Path) -> int | None:
    """Returns the length of a file in bytes, None if there is no such file."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def children_of(directory: Path) -> tuple[str, ...]:
    """Returns the sorted names in a directory; no names if it does not exist."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def lengths_in(directory: Path) -> dict[str, int | None]:
    """Returns the names of the files in a directory with their lengths in bytes, and the names of its subdirectories
    with None. Without the names of broken links, and without any name if the directory does not exist."""
    found: dict[str, int | None] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, or a broken link
                    found[entry.name] = None if entry.is_dir() else entry.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


def is_older(path: Path, now_ms: int, age_ms: int) -> bool:
    """Whether a file or directory exists, and neither it nor anything below it was modified within `age_ms` before
    `now_ms`."""
    newest: int | None = None
    for entry in (path, *_below(path)):
        try:
            changed_ms = int(entry.stat().st_mtime * 1000)
        except FileNotFoundError:
            continue
        newest = changed_ms if newest is None else max(newest, changed_ms)
    return newest is not None and now_ms - newest > age_ms


def _below(path: Path) -> list[Path]:
    return [
        Path(directory) / name for directory, directories, files in os.walk(path) for name in (*directories, *files)
    ]
