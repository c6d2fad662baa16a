"""Durable file operations; each documents what survives a power loss after it returns.

A file's content is durable after an fsync of the file, its name after an fsync of its directory, and likewise a
directory's own name. A new file in a new directory needs three: the file, its directory, and the parent directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def fsync(path: Path) -> None:
    """Fsyncs the content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directories_above(directory: Path) -> None:
    """Fsyncs the name of a directory and of all above it, up to the root of its file system: any of them may be new."""
    device = directory.stat().st_dev
    for above in directory.resolve().parents:
        if above.stat().st_dev != device:
            return
        # A directory that this user may not list was not just created by this process.
        with contextlib.suppress(PermissionError):
            fsync(above)


def write_temporary(directory: Path, content: bytes, *, fsynced: bool) -> Path:
    """Creates a file with a unique name. The name begins with a dot, which hides it from readers of the directory."""
    temporary = directory / f".{os.getpid()}-{secrets.token_hex(8)}"
    with temporary.open("wb") as file:
        file.write(content)
        if fsynced:
            file.flush()
            os.fsync(file.fileno())
    return temporary


def length_of(path: Path) -> int | None:
    """Returns the length in bytes, None if there is no such file."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def children_of(directory: Path) -> tuple[str, ...]:
    """Returns the sorted names in a directory, none if it does not exist."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def is_older(path: Path, now_ms: int, age_ms: int) -> bool:
    """Whether a tree exists and nothing in it was modified within `age_ms`."""
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
