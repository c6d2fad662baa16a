"""Which files of a log may not be on disk as they are: they were written and have not been forced since."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Unforced:
    """Each file, and the directory while it has names that may not be there, with the number of its last change.

    `changes` is how many there have been: what is changed while the disk works is not in what it was asked to force, be
    it of the same files.
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

    def note(self, *paths: Path) -> None:
        """Takes note that these were written."""
        self.changes += 1
        self._at.update(dict.fromkeys(paths, self.changes))

    def note_forced(self, changes: int) -> None:
        """Takes note that everything was forced as it was after so many changes."""
        # Not by names: the active segment may have been appended to and closed since.
        self._at = {path: change for path, change in self._at.items() if change > changes}

    def forget_gone(self) -> None:
        """Forgets the files that are not there any more."""
        self._at = {path: change for path, change in self._at.items() if path.exists()}
