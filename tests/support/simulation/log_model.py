"""The storage of the commit log as an immutable value, with which interleavings of processes run the loader's own
code."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_files import archive_path, commit_path
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import Document, write_document
from headrace.loader.commit.state import LoaderState
from headrace.loader.storage.protocols import FinishedFile
from support.simulation.interleavings import Call, MakeCall

Prefix = tuple[bytes, ...]
"""The contents of the first commits of a log."""


class LogModel(NamedTuple):
    """The files of the commit log and of staging.

    Attributes:
        files: pairs of name and content.
        staged: pairs of run id and path of a staged file.
        may_archive: whether a process may still move commits into an archive.
        hints: beginnings of the names of derived files that exist in this model, such as `checkpoint/`.
    """

    files: frozenset[tuple[str, bytes]] = frozenset()
    staged: frozenset[tuple[str, str]] = frozenset()
    may_archive: bool = True
    hints: tuple[str, ...] = ()

    def content(self, name: str) -> bytes | None:
        return next((content for found, content in self.files if found == name), None)

    def is_settled(self, call: Call) -> bool:
        name = call.arguments[0] if call.arguments else ""
        match call.name:
            case "persist":
                return True
            case "read" | "exists" | "replace" if not name.startswith(("log/", "archive/")):
                return not name.startswith(self.hints)
            case "read" | "exists":
                stays = name.startswith("archive/") or not self.may_archive
                return stays and self.content(name) is not None
            case _:
                return False

    def done(self, call: Call) -> tuple[LogModel, Any]:
        match call.name, call.arguments:
            case "read", (name,):
                return self, self.content(name)
            case "exists", (name,):
                return self, self.content(name) is not None
            case "children", (directory,):
                names = (name for name, _ in self.files)
                return self, tuple(sorted(name.partition("/")[2] for name in names if name.startswith(f"{directory}/")))
            case "put_if_absent", (name, content):
                free = self.content(name) is None
                return (self._replace(files=self.files | {(name, content)}) if free else self), free
            case "replace", (name, content) if name.startswith(self.hints):
                return self._without(name)._replace(files=self._without(name).files | {(name, content)}), None
            case "remove", (name,):
                return self._without(name), None
            case "run_ids", ():
                return self, frozenset(work for work, _ in self.staged)
            case "stage", (work, files):
                return self._replace(staged=self.staged | {(work, file) for file in files}), None
            case "move", (work, files, other):
                moved = {(work, file) for file in files}
                if not moved <= self.staged:
                    return self, False
                return self._replace(staged=self.staged - moved | {(other, file) for file in files}), True
            case "drop", (work,):
                return self._replace(staged=frozenset(one for one in self.staged if one[0] != work)), None
        return self, None

    def _without(self, name: str) -> LogModel:
        return self._replace(files=frozenset(one for one in self.files if one[0] != name))

    def committed(self) -> Prefix:
        """Returns the contents of the commits, up to the first free commit number."""
        found: list[bytes] = []
        while True:
            archive = self.content(archive_path(len(found) + 1))
            if archive is not None:
                lines = archive.splitlines(keepends=True)
                content: bytes | None = lines[len(found) % len(lines)]
            else:
                content = self.content(commit_path(len(found) + 1))
            if content is None:
                return tuple(found)
            found.append(content)


class ModelCommitStorage:
    """The `CommitStorage` through which a process accesses the model."""

    def __init__(self, make_call: MakeCall) -> None:
        self._make_call = make_call

    def prepare(self) -> None:
        pass

    def put_if_absent(self, name: str, content: bytes) -> bool:
        return bool(self._make_call("put_if_absent", name, content))

    def persist(self, name: str) -> None:
        self._make_call("persist", name)

    def replace(self, name: str, content: bytes, *, fsynced: bool = True) -> None:
        self._make_call("replace", name, content)

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self._make_call("read", name)
        return found

    def exists(self, name: str) -> bool:
        return bool(self._make_call("exists", name))

    def remove(self, name: str) -> None:
        self._make_call("remove", name)

    def children(self, directory: str) -> tuple[str, ...]:
        return tuple(self._make_call("children", directory))

    def delete_temporary_files(self, now_ms: int, age_ms: int) -> None:
        pass

    def describe(self, name: str) -> str:
        return name


class ModelStaging:
    """The `Staging` through which a process accesses the model. All its files are older than the maximum age."""

    def __init__(self, make_call: MakeCall) -> None:
        self._make_call = make_call

    def location(self, run_id: str) -> str:
        return run_id

    def write_file(self, run_id: str, name: str, content: bytes) -> None:
        pass

    def persist(self, run_id: str, files: Sequence[FinishedFile]) -> None:
        pass

    def move(self, run_id: str, files: Sequence[FinishedFile], to_run_id: str) -> None:
        if not self._make_call("move", run_id, tuple(file.path for file in files), to_run_id):
            raise FileNotFoundError(run_id)

    def run_ids(self) -> frozenset[str]:
        return frozenset(self._make_call("run_ids"))

    def is_older(self, run_id: str, now_ms: int, age_ms: int) -> bool:
        return True

    def drop(self, run_id: str) -> None:
        self._make_call("drop", run_id)


class ReadingLog(CommitLog):
    """A commit log that records which commits it has read.

    Args:
        prefix: the commits that it has read before.
    """

    def __init__(self, make_call: MakeCall, prefix: Prefix = ()) -> None:
        super().__init__(ModelCommitStorage(make_call))
        self.prefix = prefix
        if prefix:
            known = _read(prefix)
            self._state, self._newest, self._kept = known._state, known._newest, known._state.commit_number

    def _advance(self, found: Document[Commit]) -> LoaderState:
        state = super()._advance(found)
        self.prefix = (*self.prefix, write_document(found.value))
        return state

    def _parse(self, commit_number: int, content: bytes) -> Document[Commit]:
        return _parsed(commit_number, content)


@functools.cache
def _read(prefix: Prefix) -> CommitLog:
    paper = LogModel(frozenset((commit_path(at), content) for at, content in enumerate(prefix, start=1)))
    log = ReadingLog(lambda name, *arguments: paper.done(Call(name, arguments))[1])
    log.read_state()
    return log


@functools.cache
def _parsed(commit_number: int, content: bytes) -> Document[Commit]:
    return CommitLog(ModelCommitStorage(lambda *_: None))._parse(commit_number, content)
