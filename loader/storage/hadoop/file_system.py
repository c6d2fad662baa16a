"""The operations of a distributed file system or object store that a warehouse needs.

Paths are full URIs. A failure is an `OSError` with one line for the user in `strerror` and the path in `filename`.
After a failure it is unknown whether the change was made, except for the error classes that a method names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in a listing. `length` is in bytes, `modified_ms` by the clock of the file system."""

    path: str
    length: int
    modified_ms: int


class RemoteFileSystem(Protocol):
    """A distributed file system or object store. A change is durable when the call returns, provided that the file
    system is configured so that acknowledged changes are durable."""

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        """Creates the file `path` with this content, complete from the moment it exists, and returns True. Returns
        False, without a change, if the file exists already.

        Args:
            scratch: a directory for temporary files.

        Raises:
            NoPutIfAbsent: the file system cannot do this.
        """
        ...

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        """Creates the file `path`, or replaces its content. A reader sees the old or the new content.

        Args:
            scratch: a directory for temporary files.
        """
        ...

    def persist(self, path: str) -> None:
        """Makes the existing file `path` durable, together with all earlier changes. Its writer may have been killed
        before the file system acknowledged it."""
        ...

    def move(self, source: str, target: str) -> None:
        """Renames the file or directory `source` to `target`, and creates the directories above `target`. A killed
        process may leave both names.

        Raises:
            FileNotFoundError: there is no source.
            FileExistsError: the target exists.
        """
        ...

    def copy(self, source: str, target: str, scratch: str) -> None:
        """Creates the file `target` with the content of the file `source`, complete from the moment it exists. If the
        target exists, it stays or is replaced by the copy.

        Args:
            scratch: a directory for temporary files.

        Raises:
            FileNotFoundError: there is no source.
        """
        ...

    def upload(self, local: Path, target: str) -> None:
        """Creates the new file `target` with the content of the local file `local`."""
        ...

    def read(self, path: str) -> bytes | None:
        """Returns the content of a small file, None if it does not exist."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """Opens a file for reading.

        Raises:
            FileNotFoundError: there is no such file.
        """
        ...

    def length(self, path: str) -> int | None:
        """Returns the length of a file in bytes, None if it does not exist."""
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """Returns the sorted names in a directory; no names if it does not exist."""
        ...

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        """Returns the names of the files in a directory with their lengths in bytes, and the names of its
        subdirectories with None; no names if it does not exist."""
        ...

    def files_below(self, directory: str) -> tuple[FoundFile, ...]:
        """Returns the files in a directory and below it; no files if it does not exist."""
        ...

    def modified_ms(self, path: str) -> int | None:
        """Returns the modification time of a file or directory, None if it does not exist. An object store, which has
        no directories, may return the present time."""
        ...

    def delete(self, path: str, *, tree: bool = False) -> None:
        """Deletes a file or directory, if it exists.

        Args:
            tree: whether a directory is deleted with its content. Otherwise only an empty directory can be deleted.

        Raises:
            OSError: the path is a directory with content, and `tree` is False.
        """
        ...

    def delete_if_empty(self, directory: str) -> bool:
        """Deletes a directory if it exists and is empty. Returns whether it was deleted."""
        ...
