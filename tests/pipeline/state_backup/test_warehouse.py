"""Copies of the commit log up to one number, while commits are added, archived and damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.loader.commit.commit_files import ARCHIVE_COMMITS, CommitFiles, archive_path, commit_path
from headrace.loader.commit.commit_log import LogFormat
from headrace.loader.commit.document import write_document
from headrace.loader.errors import CorruptCommit
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.pipeline.state_backup.manifest import BackupWriter
from headrace.pipeline.state_backup.warehouse import copy_commits, copy_hints

HEAD = 250


def content(number: int) -> bytes:
    return write_document(LogFormat(format=number))


@pytest.fixture
def storage(tmp_path: Path) -> LocalCommitStorage:
    """Commits 1 to 300 in archives. Those from 201 on were archived after the state `HEAD` was read."""
    storage = LocalCommitStorage(tmp_path / "log")
    for end in range(ARCHIVE_COMMITS, 301, ARCHIVE_COMMITS):
        commits = range(end - ARCHIVE_COMMITS + 1, end + 1)
        storage.replace(archive_path(end), b"".join(map(content, commits)))
    for number in (199, 251):  # the archive of the first was written, and its single file not deleted yet
        storage.replace(commit_path(number), content(number))
    for number in (200, 300):
        storage.replace(f"checkpoint/{number:09d}.json", b"{}")
    return storage


def copied(storage: LocalCommitStorage, tmp_path: Path) -> set[str]:
    log: Any = SimpleNamespace(state=SimpleNamespace(commit_number=HEAD), storage=storage, commits=CommitFiles(storage))
    writer = BackupWriter(tmp_path / "backup")
    copy_commits(log, storage.root, writer)
    return {file.path_in_store for file in writer.files}


def test_copy_ends_at_the_state_also_within_an_archive(storage: LocalCommitStorage, tmp_path: Path) -> None:
    singles = {commit_path(number) for number in range(201, HEAD + 1)}
    assert copied(storage, tmp_path) == {archive_path(100), archive_path(200), *singles, "checkpoint/000000200.json"}
    copy = CommitFiles(LocalCommitStorage(tmp_path / "backup" / "commit-log"))
    assert [copy.read(number) for number in range(1, HEAD + 1)] == list(map(content, range(1, HEAD + 1)))
    assert copy.read(HEAD + 1) is None


def test_damaged_and_missing_commits_stop_the_backup(storage: LocalCommitStorage, tmp_path: Path) -> None:
    storage.remove(archive_path(300))
    with pytest.raises(CorruptCommit, match="missing"):
        copied(storage, tmp_path)
    archive = storage.read(archive_path(100)) or b""
    storage.replace(archive_path(100), archive.replace(b'"format":50', b'"format":51'))
    with pytest.raises(CorruptCommit, match="checksum"):
        copied(storage, tmp_path)


def test_hints_of_one_machine_and_of_newer_commits_are_not_copied(storage: LocalCommitStorage, tmp_path: Path) -> None:
    for name in ("head.json", "lease.json", "state.json", "warehouse.json", "format.json", "complete.json"):
        storage.replace(name, b"{}")
    storage.replace("cursor/files.json", b"{}")
    storage.replace("index/orders/days.json", b"{}")
    writer = BackupWriter(tmp_path / "backup")
    copy_hints(storage.root, writer)
    assert {file.path_in_store for file in writer.files} == {"complete.json", "cursor/files.json"}
