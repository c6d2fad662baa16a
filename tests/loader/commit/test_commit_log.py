"""Commit numbers, races, lost replies, damage, checkpoints and hints of the commit log."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
from pathlib import Path

import pytest

from headrace.loader.commit.commit import Commit, CommitKind, StartOffset
from headrace.loader.commit.commit_files import commit_path
from headrace.loader.commit.commit_log import (
    CHECKPOINT_DIRECTORY,
    CHECKPOINT_INTERVAL_COMMITS,
    CommitLog,
    checkpoint_path,
)
from headrace.loader.commit.conflict import ConflictRule
from headrace.loader.errors import CorruptCommit, LogReplaced, StorageError, UnsupportedFormat
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from support.loader.loader_samples import clean, commits_of, committed_range, load, topic_commit


def open_log(root: Path) -> CommitLog:
    log = CommitLog(LocalCommitStorage(root))
    log.open()
    return log


def filled(root: Path, commits: int) -> CommitLog:
    log = open_log(root)
    for number in range(commits):
        first = load(
            f"w{number}",
            {"orders": topic_commit(committed_range(0, number or None, number, number + 1), new=number == 0)},
        )
        assert log.try_commit(first).commit is not None
    return log


def test_try_commit_appends_at_the_next_commit_number(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    fresh = open_log(tmp_path)
    state = fresh.read_state()
    assert state.commit_number == 3
    assert state.topics["orders"].partitions[0].next_offset == 3
    assert [one.run_id for one in commits_of(fresh, "orders", state, 1)] == ["w1", "w2"]


def test_an_occupied_commit_number_without_conflict_leads_to_the_next(tmp_path: Path) -> None:
    slow = filled(tmp_path, 1)
    slow.read_state()
    open_log(tmp_path).try_commit(clean("c1", "gone"))
    commit_result = slow.try_commit(load("w1", {"orders": topic_commit(committed_range(0, 1, 1, 5))}))
    assert commit_result.commit is not None
    assert commit_result.commit.commit_number == 3


def test_an_occupied_commit_number_with_the_same_offsets_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = filled(tmp_path, 1), open_log(tmp_path)
    slow_load = load("slow", {"orders": topic_commit(committed_range(0, 1, 1, 5))})
    fast_load = load("fast", {"orders": topic_commit(committed_range(0, 1, 1, 3))})
    put = LocalCommitStorage.put_if_absent

    def overtaken(storage: LocalCommitStorage, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalCommitStorage, "put_if_absent", put)
        fast.try_commit(fast_load)
        return put(storage, path, content)

    monkeypatch.setattr(LocalCommitStorage, "put_if_absent", overtaken)
    commit_result = slow.try_commit(slow_load)
    assert commit_result.commit is None
    assert commit_result.conflict is not None
    assert commit_result.conflict.rule is ConflictRule.OFFSETS_COMMITTED
    assert commit_result.state.commit_number == 2


@pytest.mark.parametrize("put_result", [OSError(5, "Input/output error"), False])
def test_a_lost_reply_of_a_put_is_resolved_by_reading_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_result: OSError | bool
) -> None:
    log = filled(tmp_path, 1)
    put = LocalCommitStorage.put_if_absent

    def reply_lost(storage: LocalCommitStorage, path: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalCommitStorage, "put_if_absent", put)
        put(storage, path, content)
        if isinstance(put_result, OSError):
            raise put_result
        return put_result

    fsynced: list[str] = []
    monkeypatch.setattr(LocalCommitStorage, "persist", lambda storage, name: fsynced.append(name))
    monkeypatch.setattr(LocalCommitStorage, "put_if_absent", reply_lost)
    commit_result = log.try_commit(load("w1", {"orders": topic_commit(committed_range(0, 1, 1, 5))}))
    assert commit_result.commit is not None
    assert (commit_result.commit.run_id, commit_result.commit.commit_number) == ("w1", 2)
    assert fsynced == [commit_path(2)] * 2, (
        "fsynced by the put and again by try_commit, because the put may have failed before its fsync"
    )
    assert open_log(tmp_path).head() == 2


def test_a_log_opened_read_only_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled(tmp_path, CHECKPOINT_INTERVAL_COMMITS).read_state()
    shutil.rmtree(tmp_path / CHECKPOINT_DIRECTORY)
    for name in ("prepare", "put_if_absent", "persist", "replace", "remove", "delete_temporary_files"):
        monkeypatch.delattr(LocalCommitStorage, name)
    assert CommitLog(LocalCommitStorage(tmp_path), read_only=True).read_state() == expected


def test_repeated_storage_errors_end_try_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)
    proposal = load("w1", {"orders": topic_commit(committed_range(0, 1, 1, 5))})
    monkeypatch.setattr(LocalCommitStorage, "put_if_absent", lambda *_: False)
    with pytest.raises(StorageError, match=commit_path(2)):
        log.try_commit(proposal)

    def fail(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalCommitStorage, "put_if_absent", fail)
    with pytest.raises(OSError, match="No space left"):
        log.try_commit(proposal)


@pytest.mark.parametrize("content", [b"", b'{"body": {', b'{"body":{},"sha256":"0"}'])
def test_error_of_a_damaged_commit_has_its_path(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path, 3)
    path = tmp_path / commit_path(2)
    path.write_bytes(content)
    with pytest.raises(CorruptCommit) as caught:
        open_log(tmp_path).read_state()
    assert caught.value.path == str(path)


def test_a_missing_commit_below_the_hint_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / commit_path(2)).unlink()
    with pytest.raises(CorruptCommit) as refused:
        open_log(tmp_path).read_state()
    assert refused.value.path == str(tmp_path / commit_path(2))


def test_a_copied_commit_file_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (tmp_path / commit_path(3)).write_bytes((tmp_path / commit_path(2)).read_bytes())
    with pytest.raises(CorruptCommit) as refused:
        open_log(tmp_path).read_state()
    assert refused.value.path == str(tmp_path / commit_path(3))
    assert re.search(r"\b2\b", refused.value.reason)


@pytest.mark.parametrize(
    "hint",
    [None, b"", b"nonsense", b'{"commit_number": 1}', b'{"commit_number": 900}', b'{"commit_number": "x"}', b"[1]"],
)
@pytest.mark.parametrize("commits", [0, 1, 2, 7, 20])
def test_the_newest_commit_is_found_with_any_hint(tmp_path: Path, commits: int, hint: bytes | None) -> None:
    filled(tmp_path, commits)
    if hint is None:
        (tmp_path / "head.json").unlink(missing_ok=True)
    else:
        (tmp_path / "head.json").write_bytes(hint)
    assert open_log(tmp_path).head() == commits


def test_lost_or_damaged_checkpoints_are_rebuilt(tmp_path: Path) -> None:
    count = 2 * CHECKPOINT_INTERVAL_COMMITS + 5
    expected = filled(tmp_path, count).read_state()
    newest = tmp_path / checkpoint_path(2 * CHECKPOINT_INTERVAL_COMMITS)
    assert newest.exists()
    (tmp_path / commit_path(3)).unlink()  # below the checkpoint: no longer needed to know the state
    assert open_log(tmp_path).read_state() == expected
    newest.write_bytes(b"damaged")
    assert open_log(tmp_path).read_state() == expected


def test_a_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path)
    (tmp_path / "format.json").write_text('{"format":2,"read_min":1,"write_min":2}')
    with pytest.raises(UnsupportedFormat) as refused:
        open_log(tmp_path)
    assert refused.value.path == str(tmp_path / "format.json")
    assert re.findall(r"\d+", refused.value.reason) == ["2", "1"]
    CommitLog(LocalCommitStorage(tmp_path)).check_format(writing=False)


def test_racing_threads_commit_without_holes_and_each_offset_once(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    committed_offsets: list[int] = []

    def work(worker: int) -> None:
        log = open_log(tmp_path)
        for number in range(15):
            next_offset = log.read_state().topics["orders"].partitions[0].next_offset
            proposal = load(
                f"{worker}-{number}",
                {"orders": topic_commit(committed_range(0, next_offset, next_offset, next_offset + 1))},
            )
            if log.try_commit(proposal).commit is not None:
                committed_offsets.append(next_offset)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = open_log(tmp_path).read_state()
    assert sorted(committed_offsets) == list(range(1, state.topics["orders"].partitions[0].next_offset))
    assert state.commit_number == len(committed_offsets) + 1


def test_a_commit_links_to_the_previous_commit_of_each_topic(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    commit_result = log.try_commit(
        load(
            "w2",
            {
                "orders": topic_commit(committed_range(0, 2, 2, 3)),
                "users": topic_commit(committed_range(0, None, 0, 4), new=True, table="users"),
            },
        )
    )
    assert commit_result.commit is not None
    found = {topic: one.previous_commit_number for topic, one in commit_result.commit.topics.items()}
    assert found == {"orders": 2, "users": 0}
    assert commit_result.commit.previous == log.sha256(2)


def test_a_topic_is_found_without_reading_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)
    for number in range(30):
        before = number or None
        one = topic_commit(committed_range(0, before, number, number + 1), new=number == 0, table="users")
        log.try_commit(load(f"u{number}", {"users": one}))
    log.try_commit(load("w1", {"orders": topic_commit(committed_range(0, 1, 1, 2))}))
    read: list[str] = []
    real_read = LocalCommitStorage.read
    monkeypatch.setattr(LocalCommitStorage, "read", lambda storage, path: read.append(path) or real_read(storage, path))
    state = log.read_state()
    read.clear()
    found = commits_of(log, "orders", state)
    assert [one.commit_number for one in found] == [1, 32]
    assert {path for path in read if path.startswith("log/")} == {commit_path(1)}, "the newest commit was already read"


def test_a_conflicting_topic_is_left_out_and_the_others_are_committed(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    commit_result = log.try_commit(
        load(
            "late",
            {
                "orders": topic_commit(committed_range(0, 1, 1, 9)),
                "users": topic_commit(committed_range(0, None, 0, 4), new=True, table="users"),
            },
        )
    )
    assert commit_result.commit is not None and list(commit_result.commit.topics) == ["users"]
    assert commit_result.refused["orders"].rule is ConflictRule.OFFSETS_COMMITTED
    state = open_log(tmp_path).read_state()
    assert (state.topics["orders"].partitions[0].next_offset, state.topics["users"].partitions[0].next_offset) == (2, 4)


def test_all_topics_of_a_voided_run_are_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.try_commit(clean("c1", "late"))
    commit_result = log.try_commit(load("late", {"users": topic_commit(new=True, table="users")}))
    assert (commit_result.commit, commit_result.conflict and commit_result.conflict.rule) == (
        None,
        ConflictRule.RUN_VOIDED,
    )


def test_a_commit_with_another_predecessor_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path / "one", 3)
    other = filled(tmp_path / "two", 1)
    other.try_commit(clean("c", "x"))
    mixed = tmp_path / "one" / commit_path(2)
    mixed.write_bytes((tmp_path / "two" / commit_path(2)).read_bytes())
    with pytest.raises(CorruptCommit) as refused:
        open_log(tmp_path / "one").read_state()
    assert refused.value.path == str(tmp_path / "one" / commit_path(3))


@pytest.mark.parametrize("restored", [1, 2])
def test_a_restored_older_log_is_detected(tmp_path: Path, restored: int) -> None:
    """A driver that has read the longer log detects it. The copy has `restored` commits, and later more."""
    log = filled(tmp_path, 3)
    for commit_number in range(restored + 1, 4):
        (tmp_path / commit_path(commit_number)).unlink()
    with pytest.raises(LogReplaced, match=commit_path(3)):
        log.try_commit(load("w3", {"orders": topic_commit(committed_range(0, 3, 3, 5))}))
    assert open_log(tmp_path).head() == restored
    other = open_log(tmp_path)
    for number in range(restored, 4):
        other.try_commit(clean(f"c{number}", "x"))
    with pytest.raises(LogReplaced):
        log.read_state()


def test_a_checkpoint_of_another_log_is_ignored(tmp_path: Path) -> None:
    expected = filled(tmp_path / "one", CHECKPOINT_INTERVAL_COMMITS + 1).read_state()
    other = open_log(tmp_path / "two")
    for number in range(CHECKPOINT_INTERVAL_COMMITS + 1):
        other.try_commit(clean(f"c{number}", "x"))
    path = checkpoint_path(CHECKPOINT_INTERVAL_COMMITS)
    (tmp_path / "one" / path).write_bytes((tmp_path / "two" / path).read_bytes())
    assert open_log(tmp_path / "one").read_state() == expected


def test_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    filled(tmp_path, 4 * CHECKPOINT_INTERVAL_COMMITS)
    names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert names == [
        f"{commit_number:09d}.json"
        for commit_number in (3 * CHECKPOINT_INTERVAL_COMMITS, 4 * CHECKPOINT_INTERVAL_COMMITS)
    ]


def test_a_late_start_offset_is_left_out_and_the_others_are_committed(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    late, accepted = StartOffset("orders", 0, 9), StartOffset("clicks", 0, 9)
    proposal = Commit(0, CommitKind.OFFSETS, "op", 1, "b", {}, frozenset(), reason="why", starts=(late, accepted))
    commit_result = log.try_commit(proposal)
    assert commit_result.commit is not None and commit_result.commit.starts == (accepted,)
    assert list(commit_result.refused) == ["orders"] and commit_result.state.starts == {"clicks": {0: 9}}
    rejected = log.try_commit(dataclasses.replace(proposal, run_id="op2", starts=(late,)))
    assert rejected.commit is None and rejected.conflict is not None
    assert open_log(tmp_path).read_state() == commit_result.state
