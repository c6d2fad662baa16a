"""The three things that the loader asks of a file system, each a protocol of its own.

    commit numbers      the commit log: files that are put if absent, and hints beside them
    staging    the files of work in progress, which nobody reads
    files      the published files of the warehouse, and the one step from staging to there

Nothing else in the loader knows what a path is: names are relative, with `/` between their parts. No method needs a
link, a rename over a file that is there, or a listing to learn what was committed, so that a distributed file system
or an object store can stand behind them. The three together are a `Storage`: a warehouse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol


class CommitStorage(Protocol):
    """The files of the commit log, below one directory."""

    def prepare(self) -> None:
        """Makes the directory and proves that put-if-absent works here.

        Raises:
            UnwritableWarehouse: it cannot be made or written to.
            StorageError: the file system cannot do put-if-absent.
        """
        ...

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Makes the file with this content unless the name is taken; True when it was made by this call.

        Of any number of callers exactly one wins, the file is whole from the first moment it exists, and both its
        content and its name survive a loss of power when this returns True.

        Raises:
            OSError: the outcome is unknown; read the file to see whose it is.
        """
        ...

    def keep(self, name: str) -> None:
        """Makes a file that was found survive a loss of power: whoever put it may have been killed before it did.

        Raises:
            OSError: it cannot be made to.
        """
        ...

    def replace(self, name: str, content: bytes, *, forced: bool = True) -> None:
        """Puts the content in place of whatever was there: for hints, where the last writer may win. A reader sees the
        old or the new; after a loss of power it may see the old, and without `forced` a damaged one."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content, or None when there is no such file."""
        ...

    def exists(self, name: str) -> bool: ...

    def remove(self, name: str) -> None:
        """Fine when it is gone."""
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted, for housekeeping; none when there is no such directory."""
        ...

    def sweep(self, now_ms: int, age_ms: int) -> None:
        """Removes what puts that were killed left behind, once it is older than the age."""
        ...

    def describe(self, name: str) -> str:
        """Where it is, for people."""
        ...


@dataclass(frozen=True, slots=True)
class Staged:
    """A finished file of a work: its path below the work's directory, and its length in bytes."""

    path: str
    length: int


class Staging(Protocol):
    """The files of work in progress, by run id."""

    def location(self, run_id: str) -> str:
        """Where the tasks of a work put their files, as their sinks take it."""
        ...

    def sink(self, run_id: str) -> BlockSink:
        """For files that the driver writes itself; tasks have sinks of their own.

        Raises:
            OSError: it cannot be made.
        """
        ...

    def note(self, run_id: str, name: str, content: bytes) -> None:
        """Leaves something for people beside the files."""
        ...

    def keep(self, run_id: str, files: Sequence[Staged]) -> None:
        """Checks that finished files are there with their lengths, and makes that survive a loss of power; the content
        of each was made to by the sink that wrote it.

        Raises:
            StorageError: one is missing or has another length.
        """
        ...

    def move(self, run_id: str, files: Sequence[Staged], to_run_id: str) -> None:
        """Makes kept files those of another work, under the same names, as kept as they were; of a work that was not
        offered yet, so that nobody else knows of them."""
        ...

    def works(self) -> frozenset[str]:
        """The works that have something here."""
        ...

    def is_older(self, run_id: str, now_ms: int, age_ms: int) -> bool:
        """Whether nothing of a work that is here was touched for longer than the age."""
        ...

    def drop(self, run_id: str) -> None:
        """Removes all files of a work; fine when they are gone or going."""
        ...


@dataclass(frozen=True, slots=True)
class Publication:
    """A committed file, from its place in staging to its name in the warehouse; `checksum` is SHA-256 in hex."""

    topic: str
    run_id: str
    staged: str
    name: str
    length: int
    checksum: str


class WarehouseFiles(Protocol):
    """The files that readers see."""

    def publish(self, files: Sequence[Publication]) -> tuple[Publication, ...]:
        """Gives committed files their names, and takes them out of staging once the names survive a loss of power.

        May be repeated and may run in several processes at once: readers see whole files only, and at every moment a
        file has at least one of its two names.

        Returns:
            Those that are in neither place.

        Raises:
            PublishedFileLost: what is in one of the two is not what was committed.
        """
        ...

    def bring(self, topic: str, source: str, target: str) -> None:
        """Gives a published file a second name, for a new generation of its time partition, which survives a loss of
        power; may be repeated, also from the second name itself.

        Raises:
            PublishedFileLost: there is no such file.
        """
        ...

    def set_aside(self, source: str, target: str) -> bool:
        """Moves a file or a whole directory that nobody committed to a name that nothing has; False when it is not
        there.

        What is moved is what is there at that moment: no content is ever replaced or removed, also when several do it
        at once. An object store has no such step, only a copy and then a delete: who is killed between them leaves
        both.

        Raises:
            FileExistsError: something has that name.
            OSError: it cannot be moved.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Puts the content in place of whatever was there, so that it survives a loss of power; readers see the old or
        the new."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Removes files, and the directories that have become empty, so that they do not come back after a loss of
        power; fine when they are gone."""
        ...

    def length(self, name: str) -> int | None:
        """In bytes; None when there is no such file."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """For reading.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted, for looking after the warehouse; none when there is no such directory."""
        ...

    @property
    def reach(self) -> str:
        """The warehouse, for tasks to open it by."""
        ...

    def location(self, name: str) -> str:
        """As Hive and its readers take it: a URI."""
        ...

    def describe(self, name: str) -> str:
        """Where it is, for people."""
        ...


class BlockSink(Protocol):
    """Where one attempt of a task puts the blocks of its files; attempts never share a path."""

    @property
    def directory(self) -> str:
        """Of this attempt, below the work's staging; its files are named below it."""
        ...

    def append(self, file: str, data: bytes) -> None:
        """Adds to the end of a file, which begins with its first piece.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def finish(self, files: Sequence[str]) -> None:
        """Makes the content of the files survive a loss of power. Nothing may be added to them afterwards.

        Raises:
            OSError: it cannot.
        """
        ...

    def abandon(self) -> None:
        """Lets go of what is open; files that nobody names go with the staging of the work."""
        ...

    def scratch(self) -> IO[bytes]:
        """A file without a name, for what does not fit into memory; it goes with the process."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    commits: CommitStorage
    staging: Staging
    files: WarehouseFiles
