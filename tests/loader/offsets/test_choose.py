"""The operator's choices of next offsets, and the commits that they become."""

from __future__ import annotations

import dataclasses
import re

import pytest

from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.state import EMPTY, LoaderState, PartitionState, fold
from headrace.loader.epochs import ReadEpochs
from headrace.loader.errors import OffsetsRefused
from headrace.loader.offsets.choose import (
    LogBounds,
    OffsetChange,
    OffsetChoice,
    commit_of,
    set_next_offset,
    skip,
    starts,
)
from headrace.loader.work_unit import RangeCounts, SkippedOffsets
from support.loader.loader_samples import committed_range, load, topic_commit

LOADED = fold(EMPTY, load("w1", {"orders": topic_commit(committed_range(0, None, 0, 40), new=True)}).with_number(1))
BOUNDS = LogBounds(0, 100)


def proposal(choice: OffsetChoice, state: LoaderState) -> Commit:
    return commit_of(choice, state, run_id="op", now_ms=1, build="b")


def after(choice: OffsetChoice, state: LoaderState) -> LoaderState:
    return fold(state, proposal(choice, state).with_number(state.commit_number + 1))


def test_skipped_offsets_are_a_gap_with_a_reason() -> None:
    commit = proposal(skip(LOADED, "orders", 0, 40, 60, " ticket 4711 ", BOUNDS), LOADED)
    assert (commit.kind, commit.reason, commit.starts) == (CommitKind.OFFSETS, "ticket 4711", ())
    (committed,) = commit.topics["orders"].ranges
    assert (committed.previous, committed.start, committed.end, committed.gaps) == (40, 60, 60, ((40, 60),))
    assert (committed.counts, committed.skipped) == (RangeCounts(), (SkippedOffsets(40, 60, "ticket 4711"),))
    known = LOADED.topics["orders"]
    assert committed.leader_epoch == known.partitions[0].leader_epoch
    assert commit.planned_after == LOADED.commit_number
    state = fold(LOADED, commit.with_number(2))
    assert state.topics["orders"].partitions[0].next_offset == 60
    assert state.topics["orders"].partitions[0].bytes_per_kilo_offset == known.partitions[0].bytes_per_kilo_offset
    assert (state.topics["orders"].load_schema, state.topics["orders"].data) == (known.load_schema, known.data)
    assert state.staged_runs == LOADED.staged_runs  # the run has no staging


@pytest.mark.parametrize(
    ("place", "reason", "named"),
    [
        (("orders", 0, 39, 60), "why", r"\b40\b.*\b39\b.*headrace offsets show"),
        (("orders", 0, 41, 60), "why", r"\b40\b.*\b41\b"),
        (("orders", 0, 40, 40), "why", "--to 40: "),
        (("orders", 0, 40, 101), "why", r"\b100\b.*\b101\b"),
        (("orders", 0, 40, 60), "  ", "--reason: "),
        (("orders", 7, 40, 60), "why", r"\b7\b.*\borders\b"),
        (("clicks", 0, 40, 60), "why", "headrace offsets set clicks 0 60"),
    ],
)
def test_only_the_next_offsets_can_be_skipped(place: tuple[str, int, int, int], reason: str, named: str) -> None:
    with pytest.raises(OffsetsRefused, match=named):
        skip(LOADED, *place, reason, BOUNDS)


def test_skipped_offsets_keep_the_leader_epoch_of_the_log() -> None:
    """The offsets are skipped under the epoch of the current leader, so that an earlier election does not bring them
    back. An epoch of a diverged log is refused, because no later load would detect the divergence."""
    ranges = (PartitionState(40, 5, 1000, ReadEpochs(((5, 0),), 40), incarnation=2),)
    topic = dataclasses.replace(LOADED.topics["orders"], partitions=dict(enumerate(ranges)))
    state = dataclasses.replace(LOADED, topics={"orders": topic})
    for bounds, epoch in ((None, 5), (LogBounds(0, 100, 7), 5), (LogBounds(0, 100, 7, shared_end=40), 7)):
        partition = after(skip(state, "orders", 0, 40, 60, "why", bounds), state).topics["orders"].partitions[0]
        assert partition == PartitionState(60, epoch, 1000, ranges[0].epochs, incarnation=2)
    with pytest.raises(OffsetsRefused, match=r"\b39\b.*\b40\b"):
        skip(state, "orders", 0, 40, 60, "why", LogBounds(0, 100, 7, shared_end=39))


def test_skip_is_limited_to_the_log_end_unless_brokers_are_unavailable() -> None:
    assert skip(LOADED, "orders", 0, 40, 100, "why", BOUNDS).gaps == (OffsetChange("orders", 0, 40, 100),)
    assert skip(LOADED, "orders", 0, 40, 999, "why", None).gaps == (OffsetChange("orders", 0, 40, 999),)


def test_next_offset_of_a_loaded_partition_only_increases() -> None:
    assert set_next_offset(LOADED, "orders", 0, 60, "why", BOUNDS) == skip(LOADED, "orders", 0, 40, 60, "why", BOUNDS)
    with pytest.raises(OffsetsRefused, match=r"\b40\b"):
        set_next_offset(LOADED, "orders", 0, 39, "why", BOUNDS)
    same = set_next_offset(LOADED, "orders", 0, 40, "why", BOUNDS)
    assert same.changes == ()
    (left,) = same.left
    assert re.search(r"\b0\b.*\borders\b.*\b40\b", left)


@pytest.mark.parametrize(("topic", "partition"), [("clicks", 0), ("orders", 3)])
def test_start_offset_of_an_unloaded_partition_can_be_set_repeatedly(topic: str, partition: int) -> None:
    state = after(set_next_offset(LOADED, topic, partition, 70, "why", BOUNDS), LOADED)
    assert state.starts == {topic: {partition: 70}} and state.next_offset(topic, partition) == 70
    assert state.topics == LOADED.topics
    again = set_next_offset(state, topic, partition, 20, "why", BOUNDS)
    assert again.starts == (OffsetChange(topic, partition, 70, 20),)
    assert after(again, state).starts == {topic: {partition: 20}}
    same = set_next_offset(state, topic, partition, 70, "why", BOUNDS)
    assert same.changes == ()
    (left,) = same.left
    assert re.search(rf"\b{partition}\b.*\b{topic}\b.*\b70\b", left)
    with pytest.raises(OffsetsRefused, match=r"\b100\b"):
        set_next_offset(state, topic, partition, 101, "why", BOUNDS)


def test_a_start_is_kept_until_its_partition_is_loaded() -> None:
    state = after(starts(LOADED, {"clicks": {0: 5, 1: 6}}, "why"), LOADED)
    first = topic_commit(committed_range(0, 5, 5, 9), new=True, table="clicks")
    state = fold(state, load("w2", {"clicks": first}).with_number(3))
    assert state.starts == {"clicks": {1: 6}}
    assert (state.next_offset("clicks", 0), state.next_offset("clicks", 1)) == (9, 6)
    second = topic_commit(committed_range(1, 6, 6, 8), table="clicks")
    assert fold(state, load("w3", {"clicks": second}).with_number(4)).starts == {}


def test_import_does_not_change_loaded_partitions() -> None:
    choice = starts(LOADED, {"orders": {0: 7, 1: 8}, "clicks": {0: 9}}, "imported")
    assert choice.starts == (OffsetChange("clicks", 0, None, 9), OffsetChange("orders", 1, None, 8))
    (left,) = choice.left
    assert re.search(r"\b0\b.*\borders\b.*\b40$", left)
    assert proposal(choice, LOADED).topics == {}
    assert dataclasses.replace(choice, starts=()).changes == ()
