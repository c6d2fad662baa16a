"""Tracks the dirty files of a log: those written since their last fsync."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class DirtyFiles:
    """Dirty files with the number of their last change. The directory is one of them while new names in it are not
    durable.

    `changes` counts all changes. With it, a change made during an fsync stays dirty even if its file was fsynced.
    """

    __slots__ = ("_at", "changes")

    def __init__(self, paths: Iterable[Path]) -> None:
        self._at = dict.fromkeys(paths, 0)
        self.changes = 0

    def __bool__(self) -> bool:
        return bool(self._at)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._at)

    def mark_dirty(self, *paths: Path) -> None:
        """Records that these files were written."""
        self.changes += 1
        self._at.update(dict.fromkeys(paths, self.changes))

    def mark_fsynced(self, changes: int) -> None:
        """Records that all files were fsynced in the state they had after `changes` changes."""
        # Compared by change number, not by name: the active segment may have been appended to and closed since.
        self._at = {path: change for path, change in self._at.items() if change > changes}

    def discard_missing(self) -> None:
        """Removes files that no longer exist."""
        self._at = {path: change for path, change in self._at.items() if path.exists()}
