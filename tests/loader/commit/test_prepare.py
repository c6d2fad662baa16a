"""A large commit is split into several of limited size, and each topic is in one of them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.window import SCATTERED_MS
from headrace.loader.commit import prepare
from headrace.loader.commit.commit import Commit, CountSeries, TopicCommit, WindowCount
from headrace.loader.commit.document import write_document
from headrace.loader.commit.prepare import estimated_bytes, split_commit, staged_files
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.storage.protocols import FinishedFile
from support.loader.loader_samples import committed_file, committed_range, load, topic_commit


def big(files: int, partitions: int, windows: int, *, new: bool = False) -> TopicCommit:
    """A commit of one topic with numbers and names as long as real ones."""
    first = 10**12
    ranges = [committed_range(partition, first, first, first + 10**6) for partition in range(partitions)]
    file_ranges = tuple(
        committed_file("x", partition, first, first + 10**6).ranges[0] for partition in range(partitions)
    )
    committed_files = [
        dataclasses.replace(
            committed_file(f"{number}-12.avro", 0, first, first + 10**6),
            staged=f"task-00012-0123456789abcdef/{number:06d}.avro",
            ranges=file_ranges,
            checksum="ab" * 32,
        )
        for number in range(files)
    ]
    found = topic_commit(*ranges, files=committed_files, new=new)
    counts = tuple(WindowCount(1_767_225_600_000 + n * 600_000, 10**6, 10**9, 2**64 - 1) for n in range(windows))
    return dataclasses.replace(found, audit=tuple(dataclasses.replace(one, windows=counts) for one in found.audit))


@given(files=st.integers(0, 30), partitions=st.integers(0, 30), windows=st.integers(0, 100), new=st.booleans())
def test_estimated_size_is_not_below_the_real_size(files: int, partitions: int, windows: int, new: bool) -> None:
    committed = big(files, partitions, windows, new=new)
    empty = len(write_document(load("w", {})))
    written = len(write_document(load("w", {"a" * 100: committed}))) - empty
    assert estimated_bytes(committed) >= written * 0.95
    assert estimated_bytes(committed) <= written * 1.6 + prepare.TOPIC_BYTES


def ids() -> itertools.count[int]:
    return itertools.count(1)


def proposal(number: int) -> Commit:
    topics = {
        f"t{n}": topic_commit(committed_range(0, 0, 0, 5), files=[committed_file("0", 0, 0, 5)]) for n in range(number)
    }
    return dataclasses.replace(load("first", topics), published=frozenset({"done"}))


def test_a_commit_within_the_limit_is_not_split() -> None:
    unsplit = proposal(3)
    assert split_commit(unsplit, lambda: "unused run id") == [unsplit]
    empty = load("first", {})
    assert split_commit(empty, lambda: "unused run id") == [empty]


@pytest.mark.parametrize(("topics_per_chunk", "sizes"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_chunks_are_as_few_as_the_bound_allows(
    topics_per_chunk: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unsplit = proposal(5)
    one = estimated_bytes(unsplit.topics["t0"])
    monkeypatch.setattr(prepare, "COMMIT_BYTES_MAX", topics_per_chunk * one)
    numbers = ids()
    found = split_commit(unsplit, lambda: f"w{next(numbers)}")
    assert [len(chunk.topics) for chunk in found] == sizes
    assert [topic for chunk in found for topic in chunk.topics] == list(unsplit.topics)
    assert [chunk.run_id for chunk in found] == ["first", *(f"w{n}" for n in range(1, len(sizes)))]
    assert [chunk.published for chunk in found] == [{"done"}, *[frozenset()] * (len(sizes) - 1)]
    assert {chunk.committed_at_ms for chunk in found} == {unsplit.committed_at_ms}


def test_a_topic_above_the_limit_is_a_separate_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "COMMIT_BYTES_MAX", 10_000)
    small = topic_commit(committed_range(0, 0, 0, 5))
    unsplit = load("w", {"a": small, "b": big(100, 3, 10), "c": small})
    assert [list(chunk.topics) for chunk in split_commit(unsplit, lambda: "x")] == [["a"], ["b"], ["c"]]


def test_staged_files_lists_the_files_of_a_chunk() -> None:
    assert staged_files(proposal(1)) == [FinishedFile("task-0", 1000)]


MIB = 1024 * 1024
NOON_MS = 1_767_268_800_000


@pytest.mark.parametrize(
    ("mib", "windows", "is_busy"),
    [
        (64, [NOON_MS], True),  # as many bytes as a busy topic has in an hour
        (63, [NOON_MS], False),
        (800, [NOON_MS + n * 600_000 for n in range(144)], False),  # a day with 33 MiB per hour
        (1_600, [NOON_MS + n * 600_000 for n in range(144)], True),
        (30, [NOON_MS + n * 86_400_000 for n in range(365)], False),  # a year of messages
        (64, [NOON_MS + n * 600_000 for n in range(7)], False),
        (500, [SCATTERED_MS, NOON_MS], False),
        (500, [], False),
    ],
)
def test_partitions_of_an_hour_need_enough_bytes_per_hour_of_message_time(
    mib: int, windows: list[int], is_busy: bool
) -> None:
    file = dataclasses.replace(committed_file("0", 0, 0, 5), length=mib * MIB)
    counts = tuple(WindowCount(start_ms, 1, 1, 1) for start_ms in windows)
    reconciled = ReconciledTopic(files=(file,), audit=(CountSeries("loader", "written", 0, counts),))
    assert prepare.is_busy(reconciled) is is_busy
