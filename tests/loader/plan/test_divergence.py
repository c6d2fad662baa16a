"""The offset from which a log differs from the log that was read, found by the leader's epoch end offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka_wire.cluster import EpochEnd, EpochEndLookup, EpochQuery
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import PartitionState
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.plan.divergence import SuspectPartition, is_suspect, shared_ends

TP = TopicPartition("orders", 3)
UNKNOWN_EPOCH = EpochEnd(-1, -1)


def known(epochs: ReadEpochs, next_offset: int, leader_epoch: int) -> PartitionState:
    return PartitionState(next_offset, leader_epoch, 1000, epochs)


class Leader:
    """A log as the epoch of each offset, and the leader's responses about epochs (Kafka's LeaderEpochFileCache)."""

    def __init__(self, log: list[int], leader_epoch: int, start: int = 0) -> None:
        self.starts = [(epoch, log.index(epoch)) for epoch in sorted(set(log))]
        if not self.starts or self.starts[-1][0] < leader_epoch:
            self.starts.append((leader_epoch, len(log)))  # a leader records the start offset of its epoch
        later = [(epoch, first) for epoch, first in self.starts if first > start]
        at_start = [epoch for epoch, first in self.starts if first <= start]
        self.starts = [*((epoch, start) for epoch in at_start[-1:]), *later]
        self.end = len(log)
        self.requests = 0

    def epoch_end(self, epoch: int) -> EpochEnd:
        if epoch > self.starts[-1][0]:
            return UNKNOWN_EPOCH
        ends = [*(first for _, first in self.starts[1:]), self.end]
        found = [(one, end) for (one, _), end in zip(self.starts, ends, strict=True) if one <= epoch]
        return EpochEnd(*found[-1]) if found else EpochEnd(epoch, self.starts[0][1])

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        self.requests += 1
        return EpochEndLookup({tp: self.epoch_end(query.epoch) for tp, query in queries.items()})


def shared(leader: Leader, state: PartitionState, leader_epoch: int = 99) -> int:
    return shared_ends(leader, {TP: SuspectPartition(state, leader_epoch)}).offsets[TP]


def read_of(log: list[int], end: int) -> ReadEpochs:
    found = NO_EPOCHS
    for offset, epoch in enumerate(log[:end]):
        found = found.followed_by(ReadEpochs(((epoch, offset),), offset + 1))
    return found


@st.composite
def log_at_two_times(draw: st.DrawFn) -> tuple[list[int], int, list[int], int]:
    """A log and leader epoch when it was read, and those of a later time, after any elections among three replicas,
    clean and unclean. A message is named by its epoch and offset: one leader writes each epoch, in order."""
    replicas: list[list[int]] = [[], [], []]
    epoch, read = 0, None
    elections = draw(st.integers(1, 5))
    reading = draw(st.integers(0, elections - 1))
    for election in range(elections + 1):
        leader = draw(st.integers(0, 2))
        epoch += draw(st.integers(1, 2))
        replicas[leader] = replicas[leader] + [epoch] * draw(st.integers(0, 6))
        for other in range(3):
            if other != leader and draw(st.booleans()):
                replicas[other] = replicas[leader][: draw(st.integers(0, len(replicas[leader])))]
        if election == reading:
            read = (list(replicas[leader]), epoch)
    assert read is not None
    return (*read, replicas[leader], epoch)


@given(log_at_two_times(), st.data())
def test_divergence_is_the_first_offset_that_differs(
    logs: tuple[list[int], int, list[int], int], data: st.DataObject
) -> None:
    before, epoch_before, now, epoch_now = logs
    end = data.draw(st.integers(0, len(before)))
    common = next((at for at, pair in enumerate(zip(before[:end], now, strict=False)) if pair[0] != pair[1]), None)
    expected = min(end, len(now)) if common is None else common
    state = known(read_of(before, end), end, epoch_before)
    if is_suspect(state, epoch_now, 0, len(now)):
        assert shared(Leader(now, epoch_now), state) == expected
    else:
        assert expected == end


@given(log_at_two_times(), st.data())
def test_divergence_of_a_compacted_log_skips_no_message(
    logs: tuple[list[int], int, list[int], int], data: st.DataObject
) -> None:
    before, epoch_before, now, epoch_now = logs
    remaining = data.draw(st.sets(st.sampled_from(range(len(before))), min_size=1) if before else st.just({0}))
    if not before:
        return
    found, position = NO_EPOCHS, 0
    for offset in sorted(remaining):
        found = found.followed_by(ReadEpochs(((before[offset], position),), offset + 1))
        position = offset + 1
    state = known(found, len(before), epoch_before)
    if not is_suspect(state, epoch_now, 0, len(now)):
        return
    common = next((at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
    true_end = min(len(before), len(now)) if common is None else common
    shared_end = shared(Leader(now, epoch_now), state)
    assert shared_end <= true_end
    assert not [offset for offset in remaining if shared_end <= offset < true_end], "an unchanged offset is read again"


def test_a_truncated_and_regrown_log_diverges_at_the_truncation() -> None:
    leader = Leader([3] * 80 + [5] * 70, 5)
    assert shared(leader, known(read_of([3] * 100, 100), 100, 3)) == 80
    assert leader.requests == 1


def test_older_epochs_are_requested_until_one_is_shared() -> None:
    before = [1] * 10 + [3] * 10 + [5] * 10
    assert shared(Leader([1] * 30 + [7] * 9, 7), known(read_of(before, 30), 30, 5)) == 10
    assert shared(Leader([2] * 40, 7), known(read_of(before, 30), 30, 5)) == 0


def test_a_broker_restored_from_a_backup_does_not_know_the_epoch() -> None:
    before = [1] * 10 + [3] * 10 + [5] * 10
    assert shared(Leader([1] * 10 + [3] * 5 + [4] * 50, 4), known(read_of(before, 30), 30, 5)) == 15


def test_no_epoch_is_requested_after_retention_deleted_the_read_offsets() -> None:
    state = known(read_of([3] * 10, 10), 10, 3)
    assert is_suspect(state, 4, 9, 20)
    assert not is_suspect(state, 4, 10, 20)
    assert shared(Leader([3] * 10 + [4] * 5, 4, start=12), state) == 10


@pytest.mark.parametrize(
    ("leader_epoch", "end", "suspected"),
    [(3, 100, False), (3, 99, True), (4, 100, True), (2, 100, True), (-1, 100, True)],
)
def test_epochs_are_requested_only_after_a_new_leader_epoch_or_for_a_short_log(
    leader_epoch: int, end: int, suspected: bool
) -> None:
    assert is_suspect(known(NO_EPOCHS, 100, 3), leader_epoch, 0, end) is suspected


def test_without_read_epochs_the_leader_epoch_is_used() -> None:
    state = known(NO_EPOCHS, 100, 3)
    assert shared(Leader([3] * 80 + [4] * 70, 4), state) == 80
    assert shared(Leader([2] * 120 + [4] * 9, 4), state) == 100
    assert shared(Leader([1] * 150, 1), state) == 0, "the broker does not know epoch 3"


def test_a_topic_without_id_is_recreated_if_its_leader_epochs_restarted() -> None:
    state = known(read_of([0] * 10 + [1] * 5, 15), 15, 1)
    leader, suspect = Leader([0] * 30, 0), SuspectPartition(state, 0)
    assert shared_ends(leader, {TP: suspect}).offsets == {TP: 10}, (
        "with a topic id it is a broker restored from a backup"
    )
    assert shared_ends(leader, {TP: replace(suspect, has_topic_id=False)}).offsets == {TP: 0}
    assert shared_ends(leader, {TP: SuspectPartition(state, 1, has_topic_id=False)}).offsets == {TP: 10}
    assert shared_ends(leader, {TP: SuspectPartition(state, -1, has_topic_id=False)}).offsets == {TP: 10}


def test_a_tail_that_compaction_emptied_is_no_divergence() -> None:
    state = known(ReadEpochs(((3, 0),), 60), 100, 4)
    assert shared(Leader([3] * 70 + [4] * 40 + [5] * 9, 5), state) == 100
    assert shared(Leader([3] * 70 + [4] * 15 + [5] * 90, 5), state) == 85
    assert shared(Leader([3] * 50 + [5] * 90, 5), state) == 50
    for length in (90, 100):
        assert shared(Leader([3] * length + [5] * 9, 5), state) == 60, "the log has nothing of epoch 4"


class FixedResponse:
    """Brokers that do not support the request, return nonsense, or fail."""

    def __init__(self, response: EpochEndLookup) -> None:
        self.response = response

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        return self.response


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({}, "the broker's response has no end offset of leader epoch 3"),
        ({TP: EpochEnd(7, 9)}, "the broker returned leader epoch 7, and epoch 3 or an older one was requested"),
        ({TP: EpochEnd(3, -1)}, "the broker returned leader epoch 3 without its end offset"),
    ],
)
def test_invalid_epoch_end_is_an_error_of_its_partition(
    response: dict[TopicPartition, EpochEnd | None], reason: str
) -> None:
    other = TopicPartition("t", 1)
    suspect = SuspectPartition(known(read_of([3] * 5, 5), 5, 3), 4)
    ends = EpochEndLookup({**response, other: EpochEnd(3, 5)})
    found = shared_ends(FixedResponse(ends), {TP: suspect, other: suspect})
    assert (found.offsets, found.errors) == ({other: 5}, {TP: reason})


def test_unavailable_epoch_ends_are_left_out() -> None:
    suspects = {TP: SuspectPartition(known(read_of([3] * 5, 5), 5, 3), 4)}
    unsupported = shared_ends(FixedResponse(EpochEndLookup({TP: None})), suspects)
    assert (unsupported.offsets, unsupported.errors) == ({}, {})
    refused = shared_ends(FixedResponse(EpochEndLookup({}, {TP: "fenced"})), suspects)
    assert (refused.offsets, refused.errors) == ({}, {TP: "fenced"})
    no_epochs = {TP: SuspectPartition(known(NO_EPOCHS, 5, -1), -1)}
    assert shared_ends(Leader([], 0), no_epochs).offsets == {}
