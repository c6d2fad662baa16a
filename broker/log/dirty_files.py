"""Tracks the dirty files of a log: those written since their last fsync. Appends to the active segment do not count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class DirtyFiles:
    """The dirty files of a log, at first `paths`. The batches that were appended to the active segment are not tracked
    here, but by the log's recovery point. The directory counts as dirty while names of new files in it are not durable.

    `changes` counts the calls of `mark_dirty`, and each file has the number of its last one. If a file is changed
    during its fsync, that number shows that it is still dirty afterwards.
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
        """Records that all files were fsynced as they were after change number `changes`; files that were changed later
        remain dirty."""
        # Compared by change number, not by name: the active segment may have been appended to and closed meanwhile.
        self._at = {path: change for path, change in self._at.items() if change > changes}

    def discard_missing(self) -> None:
        """Drops files that no longer exist from the dirty files."""
        self._at = {path: change for path, change in self._at.items() if path.exists()}
