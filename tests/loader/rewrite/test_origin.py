"""Files of an earlier log are found by the commits, through copies too, and no older commit is read than necessary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest

from headrace.loader.commit.commit import CommitKind, CommittedFile, CommittedRange, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.rewrite.closure import FileKey, LiveFile
from headrace.loader.rewrite.origin import MESSAGES_LOST, ForeignRows, find_foreign_rows
from headrace.loader.work_unit import FileKind
from support.loader.loader_samples import committed_file, committed_range, topic_commit

HOUR, OTHER = "dt=2026-01-01/hr=05", "dt=2026-01-01/hr=06"
HistoryEntry = tuple[int, CommitKind, TopicCommit]


def file(name: str, start: int = 0, end: int = 10, *, time_partition: str = HOUR) -> CommittedFile:
    return committed_file(name, 0, start, end, time_partition)


def live(one: CommittedFile) -> LiveFile:
    return LiveFile(
        one.kind, one.time_partition, IndexedFile(one.name, 1, 0, one.length, one.checksum, one.records, one.ranges)
    )


def key(one: CommittedFile) -> FileKey:
    return one.kind, one.time_partition, one.name


def load(
    commit_number: int, *files: CommittedFile, ranges: Sequence[CommittedRange] = (), topic_id_before: str = "id-1"
) -> HistoryEntry:
    committed = topic_commit(*ranges, files=files)
    committed = dataclasses.replace(committed, topic_id="id-1", topic_id_before=topic_id_before)
    return commit_number, CommitKind.LOAD, committed


def rewrite(commit_number: int, kind: CommitKind, made: CommittedFile, *replaced: CommittedFile) -> HistoryEntry:
    rewrites = tuple(
        TimePartitionRewrite(one.kind, one.time_partition, (one.name,), one.records, one.length) for one in replaced
    )
    _, _, committed = load(commit_number, made)
    return commit_number, kind, dataclasses.replace(committed, rewrites=rewrites)


def diverged(start: int, end: int) -> CommittedRange:
    return dataclasses.replace(committed_range(0, end, start, end), diverged_at=start)


def test_files_of_the_current_log_are_not_foreign_and_no_older_commit_is_read() -> None:
    first, second = file("a"), file("b")

    def commits() -> Iterator[HistoryEntry]:
        yield load(3, second)
        yield load(2, first)
        raise AssertionError("one commit too many was read")

    assert find_foreign_rows([live(first), live(second)], commits()) == {}
    assert find_foreign_rows([], iter(())) == {}


def test_equal_names_in_other_time_partitions_and_kinds_are_distinct() -> None:
    data_file, other = file("a"), file("a", time_partition=OTHER)
    quarantined = dataclasses.replace(data_file, kind=FileKind.QUARANTINE)
    history = [load(4, other), load(3, quarantined), load(2, topic_id_before="id-0"), load(1, data_file)]
    assert list(find_foreign_rows([live(data_file)], history)) == [key(data_file)]
    assert find_foreign_rows([live(other), live(quarantined)], history) == {}


def test_files_from_before_a_recreation_are_foreign() -> None:
    old, new = file("old"), file("new")
    found = find_foreign_rows([live(old), live(new)], [load(3, new, topic_id_before="id-0"), load(2, old)])
    assert found == {
        key(old): ForeignRows(f"commit 3 found the topic re-created after they were loaded, {MESSAGES_LOST}", True)
    }


def test_the_first_commit_of_a_topic_is_no_recreation() -> None:
    one = file("a")
    commit_number, kind, committed = load(1, one)
    assert (
        find_foreign_rows([live(one)], [(commit_number, kind, dataclasses.replace(committed, topic_id_before=None))])
        == {}
    )


def test_an_id_that_is_first_reported_is_no_recreation() -> None:
    one = file("a")
    commit_number, kind, committed = load(2, topic_id_before="")
    continued = commit_number, kind, dataclasses.replace(committed, continues=True)
    assert find_foreign_rows([live(one)], [continued, load(1, one)]) == {}


def test_a_merge_of_foreign_and_current_files_is_foreign() -> None:
    old, new, merged = file("old"), file("new"), file("merged")
    history = [rewrite(4, CommitKind.COMPACT, merged, old, new), load(3, new, topic_id_before="id-0"), load(2, old)]
    assert find_foreign_rows([live(merged)], history)[key(merged)].has_only_foreign_rows is False


@pytest.mark.parametrize("kind", [kind for kind in CommitKind if kind is not CommitKind.BACKFILL])
def test_copies_of_foreign_files_are_foreign(kind: CommitKind) -> None:
    old, copy = file("old"), file("copy")
    history = [rewrite(4, kind, copy, old), load(3, topic_id_before="id-0"), load(2, old)]
    reason = f"commit 3 found the topic re-created after they were loaded, {MESSAGES_LOST}"
    assert find_foreign_rows([live(copy)], history) == {key(copy): ForeignRows(reason, False)}


def test_origins_of_merges_are_in_one_time_partition_and_of_replays_in_all() -> None:
    old, merged, other_hour = file("old"), file("merged"), file("beside", time_partition=OTHER)
    after = [load(3, topic_id_before="id-0"), load(2, old, other_hour)]
    made = rewrite(4, CommitKind.COMPACT, merged, other_hour)
    assert find_foreign_rows([live(merged)], [made, *after]) == {}, "merges into other files do not matter"
    made = rewrite(4, CommitKind.REPLAY, merged, other_hour)
    assert key(merged) in find_foreign_rows([live(merged)], [made, *after])
    other_day = file("beside", time_partition="dt=2026-01-02")
    made = rewrite(4, CommitKind.REPARTITION, file("made", time_partition="dt=2026-01-01"), other_hour, other_day)
    (moved,) = made[2].files
    assert key(moved) in find_foreign_rows([live(moved)], [made, *after]), "from all hours of its day"
    made = rewrite(4, CommitKind.REPARTITION, moved, other_day)
    assert find_foreign_rows([live(moved)], [made, load(3, topic_id_before="id-0"), load(2, other_day)]) == {}
    two_merges = [rewrite(6, CommitKind.COMPACT, merged, file("mid")), rewrite(5, CommitKind.COMPACT, file("mid"), old)]
    assert key(merged) in find_foreign_rows([live(merged)], [*two_merges, *after])


def test_files_of_a_backfill_originate_in_its_commit() -> None:
    old, made = file("old"), file("made")
    history = [rewrite(4, CommitKind.BACKFILL, made, old), load(3, topic_id_before="id-0"), load(2, old)]
    assert find_foreign_rows([live(made)], history) == {}
    history = [load(5, topic_id_before="id-0"), rewrite(4, CommitKind.BACKFILL, made, old)]
    assert find_foreign_rows([live(made)], history)[key(made)].has_only_foreign_rows, (
        "foreign, because the topic was re-created since"
    )


@pytest.mark.parametrize(
    ("start", "end", "is_found"), [(0, 80, False), (70, 81, True), (99, 120, True), (100, 120, False)]
)
def test_only_files_with_offsets_after_a_divergence_are_foreign(start: int, end: int, is_found: bool) -> None:
    old = file("old", start, end)
    found = find_foreign_rows([live(old)], [load(3, ranges=[diverged(80, 100)]), load(2, old)])
    reason = f"commit 3 found that offsets 80 to 99 of partition 0 changed since they were loaded, {MESSAGES_LOST}"
    assert found == ({key(old): ForeignRows(reason, False)} if is_found else {})


def test_a_divergence_does_not_affect_other_partitions() -> None:
    old = file("old", 70, 90)
    other_partition = dataclasses.replace(diverged(80, 100), partition=1)
    assert find_foreign_rows([live(old)], [load(3, ranges=[other_partition]), load(2, old)]) == {}
    new_file = file("new", 80, 90)
    assert find_foreign_rows([live(new_file)], [load(3, new_file, ranges=[diverged(80, 100)])]) == {}, (
        "the file was read after the divergence"
    )


def test_the_newest_reason_is_reported() -> None:
    old = file("old", 70, 90)
    history = [load(4, ranges=[diverged(85, 100)]), load(3, ranges=[diverged(80, 99)]), load(2, old)]
    assert "commit 4" in find_foreign_rows([live(old)], history)[key(old)].reason


def test_files_in_no_commit_are_foreign() -> None:
    assert find_foreign_rows([live(file("a"))], []) == {
        key(file("a")): ForeignRows("no commit states which log their rows came from", False)
    }
