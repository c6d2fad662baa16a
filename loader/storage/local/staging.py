"""Files of work in progress in `staging/<work id>/` beside the decision log, on the file system of the warehouse."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.loader.errors import StorageError
from headrace.loader.storage.local.disk import children_of, force, is_older, length_of
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.protocols import Staged

STAGING_FOLDER = "staging"


class LocalStaging:
    """A `Staging` in a folder of `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / STAGING_FOLDER

    def path(self, work_id: str, staged: str = "") -> Path:
        return self._folder / work_id / staged

    def location(self, work_id: str) -> str:
        return str(self.path(work_id))

    def sink(self, work_id: str) -> LocalSink:
        return LocalSink(self.location(work_id), 0)

    def note(self, work_id: str, name: str, content: bytes) -> None:
        self.path(work_id).mkdir(parents=True, exist_ok=True)
        self.path(work_id, name).write_bytes(content)

    def keep(self, work_id: str, files: Sequence[Staged]) -> None:
        for file in files:
            path = self.path(work_id, file.path)
            found = length_of(path)
            if found is None:
                raise StorageError(f"the staged file {path} is not there")
            if found != file.length:
                raise StorageError(f"the staged file {path} has {found} bytes and should have {file.length}")
        if not files:
            return
        # The files were forced by whoever wrote them; here it is about their names, and those of their folders.
        for folder in sorted({self.path(work_id, file.path).parent for file in files}):
            force(folder)
        for folder in (self.path(work_id), self._folder, self._root):
            force(folder)

    def move(self, work_id: str, files: Sequence[Staged], to_work_id: str) -> None:
        for folder in {self.path(to_work_id, file.path).parent for file in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            self.path(work_id, file.path).rename(self.path(to_work_id, file.path))
        self.keep(to_work_id, files)

    def works(self) -> frozenset[str]:
        return frozenset(children_of(self._folder))

    def is_older(self, work_id: str, now_ms: int, age_ms: int) -> bool:
        return is_older(self.path(work_id), now_ms, age_ms)

    def drop(self, work_id: str) -> None:
        shutil.rmtree(self.path(work_id), ignore_errors=True)
