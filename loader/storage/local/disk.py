"""The few calls on files that durability rests on; each says what survives a loss of power when it returns.

A file's content survives when the file was forced, its name when the directory that holds the name was, and a
directory's own
name likewise. So a new file in a new directory takes three: itself, its directory, and the directory above.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def force(path: Path) -> None:
    """The content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_names_above(directory: Path) -> None:
    """The name of a directory and of all above it, up to the top of its file system: any of them may be new."""
    device = directory.stat().st_dev
    for above in directory.resolve().parents:
        if above.stat().st_dev != device:
            return
        # In a directory that this user may not list, he has not just made another one.
        with contextlib.suppress(PermissionError):
            force(above)


def write_temporary(directory: Path, content: bytes, *, forced: bool) -> Path:
    """A new file of a name that nobody else has, with its content forced or not. The name begins with a dot, which
    hides it from readers of the directory."""
    temporary = directory / f".{os.getpid()}-{secrets.token_hex(8)}"
    with temporary.open("wb") as file:
        file.write(content)
        if forced:
            file.flush()
            os.fsync(file.fileno())
    return temporary


def length_of(path: Path) -> int | None:
    """In bytes, None when there is no such file."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def children_of(directory: Path) -> tuple[str, ...]:
    """The names in a directory, sorted; none when there is no such directory."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def is_older(path: Path, now_ms: int, age_ms: int) -> bool:
    """Whether a tree is there and nothing in it was changed for longer than the age."""
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
