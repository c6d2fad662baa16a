"""Archiving of older commits loses, duplicates and changes none, with concurrent readers and writers and after a
kill."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.commit.commit_files import (
    ARCHIVE_COMMITS,
    UNARCHIVED_COMMITS_MIN,
    CommitFiles,
    archive_path,
    commit_path,
)
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import CorruptCommit
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from support.loader.loader_samples import clean, commits_of, committed_range, load, topic_commit

HEAD = 2 * ARCHIVE_COMMITS + UNARCHIVED_COMMITS_MIN + 7


class Killed(BaseException):
    """Simulates `kill -9`: no handler catches it."""


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of `HEAD` commits of one topic, with one offset each. Tests copy it."""
    root = tmp_path_factory.mktemp("log")
    log = CommitLog(LocalCommitStorage(root))
    log.open()
    for number in range(HEAD):
        one = topic_commit(committed_range(0, number or None, number, number + 1), new=number == 0)
        assert log.try_commit(load(f"w{number}", {"orders": one})).commit is not None
    return root


@pytest.fixture
def root(committed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(committed, tmp_path / "log")


def contents(root: Path) -> list[bytes | None]:
    commits = CommitFiles(LocalCommitStorage(root))
    return [commits.read(commit_number) for commit_number in range(1, HEAD + 2)]


def fresh_state(root: Path) -> Any:
    """The state folded from the commits, without checkpoint and hint."""
    shutil.rmtree(root / "checkpoint", ignore_errors=True)
    (root / "head.json").unlink(missing_ok=True)
    return CommitLog(LocalCommitStorage(root)).read_state()


def test_archived_commits_are_byte_identical(root: Path) -> None:
    before, state = contents(root), fresh_state(root)
    assert CommitFiles(LocalCommitStorage(root)).archive(HEAD) == 2 * ARCHIVE_COMMITS
    assert sorted(path.name for path in (root / "archive").iterdir()) == ["000000100.jsonl", "000000200.jsonl"]
    assert len(list((root / "log").iterdir())) == HEAD - 2 * ARCHIVE_COMMITS
    assert contents(root) == before
    assert fresh_state(root) == state
    assert CommitFiles(LocalCommitStorage(root)).archive(HEAD) == 0


def test_the_newest_commits_are_not_archived(root: Path) -> None:
    assert CommitFiles(LocalCommitStorage(root)).archive(ARCHIVE_COMMITS + UNARCHIVED_COMMITS_MIN - 1) == 0
    assert CommitFiles(LocalCommitStorage(root)).archive(ARCHIVE_COMMITS + UNARCHIVED_COMMITS_MIN) == ARCHIVE_COMMITS


def test_a_writer_paused_since_before_archiving_cannot_commit(root: Path) -> None:
    """The file name of its commit number is free again after archiving."""
    commits = CommitFiles(LocalCommitStorage(root))
    before = commits.read(7)
    late = CommitFiles(LocalCommitStorage(root))
    commits.archive(HEAD)
    assert late.put(7, b"late\n") == before
    assert not (root / commit_path(7)).exists()
    assert late.read(7) == CommitFiles(LocalCommitStorage(root)).read(7) == before


def test_a_file_of_a_writer_killed_before_its_archive_check_is_ignored(root: Path) -> None:
    before = contents(root)
    CommitFiles(LocalCommitStorage(root)).archive(HEAD)
    (root / commit_path(7)).write_bytes(b"late\n")
    assert contents(root) == before
    CommitFiles(LocalCommitStorage(root)).archive(HEAD)
    assert contents(root) == before


@pytest.mark.parametrize("operation", [lambda commits: commits.read(7), lambda commits: commits.put(7, b"mine\n")])
def test_a_file_put_by_a_paused_writer_during_a_read_is_ignored(
    root: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[CommitFiles], bytes | None]
) -> None:
    """After the reader's first read, the commit is archived and a paused writer creates the file again."""
    before, real_read = contents(root)[6], LocalCommitStorage.read

    def read(storage: LocalCommitStorage, name: str) -> bytes | None:
        found = real_read(storage, name)
        monkeypatch.setattr(LocalCommitStorage, "read", real_read)
        CommitFiles(LocalCommitStorage(root)).archive(HEAD)
        (root / commit_path(7)).write_bytes(b"late\n")
        return found

    monkeypatch.setattr(LocalCommitStorage, "read", read)
    assert operation(CommitFiles(LocalCommitStorage(root))) == before


@pytest.mark.parametrize("operation", ["put_if_absent", "remove", "read"])
@pytest.mark.parametrize("after", [True, False])
def test_archiving_killed_at_any_operation_is_finished_by_the_next_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, operation: str, after: bool
) -> None:
    """At the first, some middle and the last call of each operation, before and after its effect."""
    before = contents(root)
    real_operation: Callable[..., Any] = getattr(LocalCommitStorage, operation)
    for nth in (1, 2, 3, 57, 150, 199, 200, 250, 399):
        calls = 0

        def killed(storage: LocalCommitStorage, *arguments: Any, nth: int = nth) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth and not after:
                raise Killed
            result = real_operation(storage, *arguments)
            if calls == nth:
                raise Killed
            return result

        copy = shutil.copytree(root, root.parent / f"copy-{nth}")
        monkeypatch.setattr(LocalCommitStorage, operation, killed)
        with contextlib.suppress(Killed):
            CommitFiles(LocalCommitStorage(copy)).archive(HEAD)
        monkeypatch.setattr(LocalCommitStorage, operation, real_operation)
        assert contents(copy) == before, f"{operation} {nth}"
        CommitFiles(LocalCommitStorage(copy)).archive(HEAD)
        assert contents(copy) == before
        assert len(list((copy / "log").iterdir())) == HEAD - 2 * ARCHIVE_COMMITS
        shutil.rmtree(copy)


def test_a_damaged_commit_stops_the_archiving_of_its_hundred(root: Path) -> None:
    path = root / commit_path(150)
    path.write_bytes(path.read_bytes().replace(b'"end":150', b'"end":151'))
    assert CommitFiles(LocalCommitStorage(root)).archive(HEAD) == ARCHIVE_COMMITS
    with pytest.raises(CorruptCommit) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)


def test_commits_above_the_archive_size_limit_stay_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        sum(
            (root / commit_path(commit_number)).stat().st_size
            for commit_number in range(end - ARCHIVE_COMMITS + 1, end + 1)
        )
        for end in (ARCHIVE_COMMITS, 2 * ARCHIVE_COMMITS)
    )
    assert first != second
    before = contents(root)
    monkeypatch.setattr("headrace.loader.commit.commit_files.ARCHIVE_BYTES_MAX", min(first, second))
    assert CommitFiles(LocalCommitStorage(root)).archive(HEAD) == ARCHIVE_COMMITS
    monkeypatch.setattr("headrace.loader.commit.commit_files.ARCHIVE_BYTES_MAX", max(first, second) - 1)
    assert CommitFiles(LocalCommitStorage(root)).archive(HEAD) == 0
    assert contents(root) == before


def test_a_truncated_archive_is_an_error_with_its_path(root: Path) -> None:
    CommitFiles(LocalCommitStorage(root)).archive(HEAD)
    path = root / archive_path(1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(CorruptCommit) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)
    assert re.findall(r"\d+", refused.value.reason) == ["99", "100"]
    path.write_bytes(b"".join(lines).replace(b'"end":8', b'"end":9'))
    with pytest.raises(CorruptCommit) as refused:
        fresh_state(root)
    assert refused.value.path == str(path)


def test_concurrent_readers_writers_and_archivers_see_every_commit_once(root: Path) -> None:
    """Every reader sees every commit once and in order, and each writer gets a separate commit number."""
    failures: list[BaseException] = []
    commit_numbers: list[int] = []

    def work(worker: int) -> None:
        try:
            log = CommitLog(LocalCommitStorage(root))
            for number in range(60):
                if worker == 0:
                    state = log.read_state()
                    assert [one.commit_number for one in commits_of(log, "orders", state)][:3] == [1, 2, 3]
                elif worker == 1:
                    log.commits.archive(log.read_state().commit_number)
                else:
                    commit_result = log.try_commit(clean(f"c{worker}-{number}", "x"))
                    assert commit_result.commit is not None
                    commit_numbers.append(commit_result.commit.commit_number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(commit_numbers) == list(range(HEAD + 1, HEAD + 121))
    assert fresh_state(root).commit_number == HEAD + 120
