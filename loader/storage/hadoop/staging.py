"""The files of running loads in `staging/<run id>/` on HDFS or S3, on the file system of the warehouse.

Tasks do not write here: they return rows, which Spark writes (`loader.job`). Only Spark knows the paths of these files
that its committer accepted; each is in a separate directory `file=<name>`. The driver writes files with `HadoopSink`.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from headrace.loader.errors import StorageError
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import FinishedFile

STAGING_DIRECTORY = "staging"
TEMPORARY_DIRECTORY = "tmp"  # shared with the commit log, which deletes old files in it
FILE_KEY = "file"  # Spark's sink names its directories file=<name>
T = TypeVar("T")

CONCURRENT_CALLS_MAX = 16  # each call mostly waits for round trips


def call_concurrently(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Calls `call` with each item, concurrently, and waits for the calls. Raises the exception of the first item whose
    call failed; calls that have not begun by then are omitted."""
    items = list(items)
    if len(items) == 1:  # the usual case; a thread costs a connection to the JVM
        call(items[0])
        return
    with ThreadPoolExecutor(CONCURRENT_CALLS_MAX) as pool:
        list(pool.map(call, items))


class HadoopStaging:
    """A `Staging` (the files of running loads) below the directory `root` of a Hadoop file system."""

    def __init__(self, file_system: RemoteFileSystem, root: str) -> None:
        self._files = file_system
        self._directory = f"{root}/{STAGING_DIRECTORY}"
        self._scratch = f"{root}/{TEMPORARY_DIRECTORY}"

    @property
    def scratch(self) -> str:
        """The directory for temporary files, which are renamed once they are complete."""
        return self._scratch

    def path(self, run_id: str, staged: str) -> str:
        return f"{self._directory}/{run_id}/{staged}"

    def location(self, run_id: str) -> str:
        return f"{self._directory}/{run_id}"

    def sink(self, run_id: str) -> HadoopSink:
        return HadoopSink(self._files, self.location(run_id))

    def written_files(self, directory: str) -> Mapping[str, str]:
        """Returns the files that one write of Spark created below `directory`: a mapping from the file's name to its
        path relative to `directory`."""
        found = {}
        for file in self._files.files_below(directory):
            relative = file.path.removeprefix(f"{directory}/")
            key, _, name = relative.partition("/")[0].partition("=")
            # Files of rejected task attempts have other names, and no result lists them.
            if key == FILE_KEY:
                found[name] = relative
        return found

    def write_file(self, run_id: str, name: str, content: bytes) -> None:
        self._files.replace(self.path(run_id, name), content, self._scratch)

    def persist(self, run_id: str, files: Sequence[FinishedFile]) -> None:
        """Checks that finished files of a run exist with the given lengths. They are durable already, because all
        writes were acknowledged."""
        call_concurrently(lambda file: self._check(self.path(run_id, file.path), file.length), files)

    def _check(self, path: str, length: int) -> None:
        found = self._files.length(path)
        if found is None:
            raise StorageError(f"the staged file {path} is missing")
        if found != length:
            raise StorageError(f"the staged file {path} has {found} bytes instead of {length}")

    def move(self, run_id: str, files: Sequence[FinishedFile], to_run_id: str) -> None:
        call_concurrently(
            lambda file: self._files.move(self.path(run_id, file.path), self.path(to_run_id, file.path)), files
        )
        self.persist(to_run_id, files)

    def run_ids(self) -> frozenset[str]:
        return frozenset(self._files.children(self._directory))

    def is_older(self, run_id: str, now_ms: int, age_ms: int) -> bool:
        modified_ms = [file.modified_ms for file in self._files.files_below(self.location(run_id))]
        newest = max(modified_ms) if modified_ms else self._files.modified_ms(self.location(run_id))
        return newest is not None and now_ms - newest > age_ms

    def drop(self, run_id: str) -> None:
        self._files.delete(self.location(run_id), tree=True)


class HadoopSink:
    """A `BlockSink` for the driver. Writes files to a temporary local directory, and uploads complete files."""

    def __init__(self, file_system: RemoteFileSystem, location: str) -> None:
        self._files = file_system
        self._location = location
        self._spool = tempfile.TemporaryDirectory(prefix="headrace-")
        self._local = LocalSink(self._spool.name, 0)
        self.directory = f"driver-{secrets.token_hex(8)}"

    def append(self, file: str, data: bytes) -> None:
        self._local.append(file, data)

    def finish(self, files: Sequence[str]) -> None:
        self._local.abandon()
        local = Path(self._spool.name) / self._local.directory
        call_concurrently(
            lambda file: self._files.upload(local / file, f"{self._location}/{self.directory}/{file}"), files
        )

    def abandon(self) -> None:
        self._local.abandon()
        self._spool.cleanup()

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()
