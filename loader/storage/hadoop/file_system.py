"""What is asked of a distributed file system or an object store, so that a warehouse can stand on it.

Paths are whole URIs. What cannot be done is an `OSError` whose `strerror` is one line for people and whose `filename`
is the path; whether a change was made can then not be told, but for the classes that a call names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


@dataclass(frozen=True, slots=True)
class FoundFile:
    """`length` is in bytes, `modified_ms` by the clock of the file system."""

    path: str
    length: int
    modified_ms: int


class RemoteFileSystem(Protocol):
    """Everything that a call has done when it returns survives a loss of power there, as far as the file system is
    configured to keep what it has acknowledged."""

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        """Makes a file that is whole from the first moment; False, and nothing done, when the name is taken.

        Args:
            scratch: a directory that may be used on the way.

        Raises:
            NoPutIfAbsent: it cannot do that.
        """
        ...

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        """Makes a file, or puts another in its place; a reader sees the old or the new."""
        ...

    def persist(self, path: str) -> None:
        """Makes a name that was found survive, and whatever was done in the file system before it: somebody else may
        have done it, and not have been told yet."""
        ...

    def move(self, source: str, target: str) -> None:
        """Gives a file, or a directory with all in it, another name, with the directories above it; who is killed at it
        may leave both.

        Raises:
            FileNotFoundError: there is no source. FileExistsError: the target is taken.
        """
        ...

    def copy(self, source: str, target: str, scratch: str) -> None:
        """Makes a second file of that content, whole from the first moment, unless the target is there.

        Raises:
            FileNotFoundError: there is no source.
        """
        ...

    def upload(self, local: Path, target: str) -> None:
        """Makes a new file of a local one."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content of a small file, None when there is none."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """
        Raises:
            FileNotFoundError: there is no such file.
        """
        ...

    def length(self, path: str) -> int | None:
        """Of a file in bytes, None when there is none."""
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when there is no such directory."""
        ...

    def files_below(self, directory: str) -> tuple[FoundFile, ...]:
        """Those in a directory and all below it; none when there is no such directory."""
        ...

    def modified_ms(self, path: str) -> int | None:
        """When a file or directory was changed, None when it is not there; an object store, which has no directories,
        may say that it was now."""
        ...

    def delete(self, path: str, *, tree: bool = False) -> None:
        """Removes a file, or a directory with all in it; fine when it is gone."""
        ...

    def delete_if_empty(self, directory: str) -> bool:
        """Whether a directory was there, and had nothing in it, and is gone now."""
        ...
