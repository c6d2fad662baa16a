"""The protocols between the loader and a file system.

    commits    the commit log: files written by put-if-absent, and hints (files that may be lost or old)
    staging    the files of running loads, which no query reads
    files      the published files of the warehouse, and the step from staging to there

The rest of the loader does not know paths: names are relative, with `/` between their parts. No method needs a hard
link, a rename over an existing file, or a directory listing to find commits, so a distributed file system or an object
store can implement them. The three together are a `Storage`: a warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol


class CommitStorage(Protocol):
    """The files of the commit log, below one directory. `name` is a path relative to this directory."""

    def prepare(self) -> None:
        """Creates the directory of the commit log and tests put-if-absent.

        Raises:
            UnwritableWarehouse: the directory cannot be created or written.
            StorageError: the file system has no put-if-absent.
        """
        ...

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Creates the file `name` with this content unless it exists. Returns True if this call created it.

        Of any number of concurrent callers exactly one succeeds. The file is complete from the moment it exists, and
        both its content and its name are fsynced when this returns True.

        Raises:
            OSError: it is unknown whether the file was created; read it to find out.
        """
        ...

    def persist(self, name: str) -> None:
        """Fsyncs the existing file `name`, because its writer may have been killed before its fsync.

        Raises:
            OSError: the fsync failed.
        """
        ...

    def replace(self, name: str, content: bytes, *, fsynced: bool = True) -> None:
        """Creates or replaces the file `name`, which must be a hint (a file that may be lost or old). Of concurrent
        writers the last one wins. A reader sees the old or the new content.

        Args:
            fsynced: whether the content is fsynced. After a power failure the file may have the old content; without
                the fsync it may also be damaged.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Returns the content of the file `name`, None if there is no such file."""
        ...

    def exists(self, name: str) -> bool: ...

    def remove(self, name: str) -> None:
        """Deletes the file `name` if it exists."""
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """Returns the sorted names in a directory; no names if it does not exist. For maintenance only."""
        ...

    def delete_temporary_files(self, now_ms: int, age_ms: int) -> None:
        """Deletes temporary files of killed writers that were last modified more than `age_ms` before `now_ms`."""
        ...

    def describe(self, name: str) -> str:
        """Returns the location of the file `name`, for messages."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A finished file of a run: its path below the run's staging directory, and its length in bytes."""

    path: str
    length: int


class Staging(Protocol):
    """Stores the files of running loads: one directory per run id, which no query reads."""

    def location(self, run_id: str) -> str:
        """Returns the directory for a run's files, as text from which tasks create their sinks."""
        ...

    def sink(self, run_id: str) -> BlockSink:
        """Returns a sink with which the driver writes files into the run's staging directory. Tasks create their own
        sinks.

        Raises:
            OSError: the sink cannot be created.
        """
        ...

    def write_file(self, run_id: str, name: str, content: bytes) -> None:
        """Writes the file `name` with this content into the run's staging directory, for operators to read. The loader
        never reads it."""
        ...

    def persist(self, run_id: str, files: Sequence[FinishedFile]) -> None:
        """Makes finished files of a run durable: checks that they exist with the given lengths, and fsyncs their
        directory entries. Their contents were fsynced when they were written.

        Raises:
            StorageError: a file is missing or has another length.
        """
        ...

    def move(self, run_id: str, files: Sequence[FinishedFile], to_run_id: str) -> None:
        """Moves finished files of the run `run_id` to the staging directory of the run `to_run_id`, under the same
        names, and fsyncs the new names. `Staging.persist` must have made the files durable before. The run `to_run_id`
        must not have tried to commit yet."""
        ...

    def run_ids(self) -> frozenset[str]:
        """Returns the ids of the runs with a staging directory."""
        ...

    def is_older(self, run_id: str, now_ms: int, age_ms: int) -> bool:
        """Whether a run has a staging directory, and nothing in it was modified within `age_ms` before `now_ms`."""
        ...

    def drop(self, run_id: str) -> None:
        """Deletes the staging directory of a run, if it exists."""
        ...


@dataclass(frozen=True, slots=True)
class Publication:
    """A committed file: its path below the staging directory of the run (`staged`), its path below the warehouse once
    it is published (`name`), and its length in bytes. `checksum` is described in `loader.checksum`."""

    topic: str
    run_id: str
    staged: str
    name: str
    length: int
    checksum: str


class WarehouseFiles(Protocol):
    """Stores the published files of a warehouse, which queries read. A file's name is its path relative to the
    warehouse."""

    def publish(self, files: Sequence[Publication]) -> tuple[Publication, ...]:
        """Publishes committed files: gives each file its name in the warehouse, and deletes it from staging once the
        name is fsynced.

        May be repeated and may run in several processes at once: readers see complete files only, and a file always has
        at least one of its two names.

        Returns:
            The files that exist under neither name.

        Raises:
            PublishedFileLost: a file under one of the names is not the committed one.
        """
        ...

    def link_or_copy(self, topic: str, source: str, target: str) -> None:
        """Gives the published file `source` the second name `target`, for a new generation of its time partition, and
        fsyncs the name. If `target` exists already, it is only fsynced; `source` may then be the same name.

        Args:
            topic: the file's topic, for the error message.

        Raises:
            PublishedFileLost: neither name exists.
        """
        ...

    def move_uncommitted(self, source: str, target: str) -> bool:
        """Moves `source`, an uncommitted file or directory, to the unused name `target`. Returns False if `source` does
        not exist.

        No content is ever replaced or deleted, even if several processes do this at once. An object store cannot move,
        only copy and delete: a process killed between the two leaves both names.

        Raises:
            FileExistsError: `target` exists.
            OSError: it cannot be moved.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Creates the file `name` or replaces its content, and fsyncs it. Readers see the old or the new content."""
        ...

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        """Creates or replaces many files, given by name, in less time than with a `put` for each. After an exception,
        each file may have the old or the new content."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Deletes the files `names` and the directories that become empty, and fsyncs these deletions. Missing files
        are ignored."""
        ...

    def length(self, name: str) -> int | None:
        """Returns the length of the file `name` in bytes, None if there is no such file."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """Opens the file `name` for reading.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        ...

    def children(self, directory: str) -> tuple[str, ...]:
        """Returns the sorted names in a directory; no names if it does not exist. For maintenance only."""
        ...

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        """Lists a directory: returns the names of its files with their lengths in bytes, and the names of its
        subdirectories with None. Returns no names if the directory does not exist. For maintenance only."""
        ...

    @property
    def listings_at_once(self) -> int:
        """The number of directories that threads list in little more time than one."""
        ...

    @property
    def root(self) -> str:
        """The text from which tasks open the warehouse's files, such as the path of the warehouse."""
        ...

    def location(self, name: str) -> str:
        """Returns the URI of the file `name`, for Hive and Spark."""
        ...

    def describe(self, name: str) -> str:
        """Returns the location of the file `name`, for messages."""
        ...


class BlockSink(Protocol):
    """Writes the files of one attempt of a task, or of the driver, block by block. Attempts never share a path."""

    @property
    def directory(self) -> str:
        """The directory of this task attempt, or of the driver, below the run's staging directory."""
        ...

    def append(self, file: str, data: bytes) -> None:
        """Appends data to the file with the name `file`; the first call for a name creates the file.

        Raises:
            OSError: the data cannot be written.
        """
        ...

    def finish(self, files: Sequence[str]) -> None:
        """Makes the files with these names durable, unless Spark writes them (`RowSink`). Nothing may be appended
        afterwards.

        Raises:
            OSError: a file could not be made durable.
        """
        ...

    def abandon(self) -> None:
        """Closes open files. Files that are not used are deleted later with the run's staging directory."""
        ...

    def scratch(self) -> IO[bytes]:
        """Returns an unnamed file for data that does not fit into memory; it disappears with the process."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    commits: CommitStorage
    staging: Staging
    files: WarehouseFiles
