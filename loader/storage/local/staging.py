"""The files of running loads in `staging/<run id>/` next to the commit log, on the file system of the warehouse."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.loader.errors import StorageError
from headrace.loader.storage.local.disk import children_of, fsync, is_older, length_of
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import FinishedFile

STAGING_DIRECTORY = "staging"


class LocalStaging:
    """A `Staging` (the files of running loads) below the local directory `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory = root / STAGING_DIRECTORY

    def path(self, run_id: str, staged: str = "") -> Path:
        return self._directory / run_id / staged

    def location(self, run_id: str) -> str:
        return str(self.path(run_id))

    def sink(self, run_id: str) -> LocalSink:
        return LocalSink(self.location(run_id), 0)

    def write_file(self, run_id: str, name: str, content: bytes) -> None:
        self.path(run_id).mkdir(parents=True, exist_ok=True)
        self.path(run_id, name).write_bytes(content)

    def persist(self, run_id: str, files: Sequence[FinishedFile]) -> None:
        for file in files:
            path = self.path(run_id, file.path)
            found = length_of(path)
            if found is None:
                raise StorageError(f"the staged file {path} is missing")
            if found != file.length:
                raise StorageError(f"the staged file {path} has {found} bytes instead of {file.length}")
        if not files:
            return
        # The writers have fsynced the files' contents. Their names and the names of their directories follow.
        for directory in sorted({self.path(run_id, file.path).parent for file in files}):
            fsync(directory)
        for directory in (self.path(run_id), self._directory, self._root):
            fsync(directory)

    def move(self, run_id: str, files: Sequence[FinishedFile], to_run_id: str) -> None:
        for directory in {self.path(to_run_id, file.path).parent for file in files}:
            directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            self.path(run_id, file.path).rename(self.path(to_run_id, file.path))
        self.persist(to_run_id, files)

    def run_ids(self) -> frozenset[str]:
        return frozenset(children_of(self._directory))

    def is_older(self, run_id: str, now_ms: int, age_ms: int) -> bool:
        return is_older(self.path(run_id), now_ms, age_ms)

    def drop(self, run_id: str) -> None:
        shutil.rmtree(self.path(run_id), ignore_errors=True)
