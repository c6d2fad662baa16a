"""The offsets that a run reads, and how they are packed into tasks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import FileTotals, PartitionState, TopicState
from headrace.loader.epochs import ReadEpochs
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets, is_wanted
from headrace.loader.plan.packing import IMBALANCE_MAX, SPLITS_PER_TASK, TASK_BYTES_MIN, pack, split, weight
from headrace.loader.plan.ranges import (
    BROKER_REMEDY,
    HELD_BACK_MAX,
    PERMISSION_REMEDY,
    TopicRanges,
    offset_ranges,
    topic_ranges,
)
from headrace.loader.work_unit import OffsetRange
from support.loader.loader_samples import load_schema

MB = 1024 * 1024


def known_topic(next_offset: int = 100, topic_id: str = "id-1", bytes_per_kilo_offset: int = 1000) -> TopicState:
    return TopicState(
        topic_id=topic_id,
        table="orders",
        directory="orders",
        partition_by="hour",
        load_schema=load_schema(),
        partitions={0: PartitionState(next_offset, 0, bytes_per_kilo_offset)},
        foreign_ids=frozenset(),
        data=FileTotals(),
        quarantine=FileTotals(),
        commit_number=1,
    )


def found_topic(start: int, end: int, topic_id: str = "id-1", held_back: int = 0) -> DiscoveredTopic:
    return DiscoveredTopic("orders", topic_id, (PartitionOffsets(0, 3, start, end, end + held_back),), {})


def ranges_of(found: DiscoveredTopic, known: TopicState | None, on_data_loss: str = "fail") -> TopicRanges:
    return topic_ranges(found, known, {}, on_data_loss=on_data_loss, range_bytes_max=10**9)


def test_a_start_offset_behind_an_open_transaction_waits() -> None:
    offsets = PartitionOffsets(partition=0, leader_epoch=0, start=0, end=10, high_watermark=20)
    found = DiscoveredTopic("t", "id", (offsets,), {})
    planned = topic_ranges(found, None, {0: 15}, on_data_loss="fail", range_bytes_max=MB)
    assert [(one.previous, one.start, one.end) for one in planned.ranges] == [(15, 15, 15)] and planned.problems == ()
    beyond_end = topic_ranges(found, None, {0: 21}, on_data_loss="fail", range_bytes_max=MB)
    assert beyond_end.ranges == ()
    assert re.match(r"partition 0: .*\b20\b.*\b21\b", beyond_end.problems[0])


def test_a_new_topic_is_read_from_the_start_of_its_log() -> None:
    (planned,) = ranges_of(found_topic(7, 20), None).ranges
    assert (planned.previous, planned.start, planned.end, planned.leader_epoch) == (None, 7, 20, 3)


def test_a_known_partition_continues_at_its_next_offset() -> None:
    (planned,) = ranges_of(found_topic(0, 120), known_topic(100)).ranges
    assert (planned.previous, planned.start, planned.end) == (100, 100, 120)
    assert planned.bytes_estimate == 20


def test_a_plan_without_new_offsets_has_no_changes() -> None:
    (planned,) = ranges_of(found_topic(0, 100), known_topic(100)).ranges
    assert not planned.has_changes
    assert offset_ranges("orders", ranges_of(found_topic(0, 100), known_topic(100))) == []


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [(150, 200, r"partition 0: .*\b100\b.*\b149\b"), (0, 60, r"partition 0: .*\b60\b.*\b99\b")],
)
def test_data_loss_holds_back_the_partition_until_the_policy_permits_a_gap(start: int, end: int, offsets: str) -> None:
    held = ranges_of(found_topic(start, end), known_topic(100))
    assert held.ranges == ()
    assert re.match(offsets, held.problems[0])
    declared = ranges_of(found_topic(start, end), known_topic(100), "skip")
    assert declared.problems == ()
    assert re.match(offsets, declared.notes[0])
    assert declared.ranges[0].previous == 100
    assert declared.ranges[0].start == min(start, end) or declared.ranges[0].start == end
    assert declared.ranges[0].has_changes


def test_a_log_shorter_than_loaded_resumes_at_its_end() -> None:
    (planned,) = ranges_of(found_topic(0, 60), known_topic(100), "skip").ranges
    assert (planned.start, planned.end, planned.diverged_at, planned.incarnation) == (60, 60, 60, 1)


def diverged(start: int, end: int, shared_end: int, held_back: int = 0) -> DiscoveredTopic:
    offsets = PartitionOffsets(0, 3, start, end, end + held_back, shared_end)
    return DiscoveredTopic("orders", "id-1", (offsets,), {})


def test_a_log_shared_to_its_end_continues_before_it_is_readable() -> None:
    ranges = ranges_of(diverged(0, 60, 100, 90), known_topic(100))
    assert ranges.problems == ()
    assert not ranges.ranges[0].has_changes


@pytest.mark.parametrize(
    ("end", "shared_end", "numbers"),
    [(90, 80, [0, 90, 99, 80, 80]), (90, 90, [0, 90, 99, 90]), (100, 100, []), (100, 99, [0, 99, 99, 3, 0, 99])],
)
def test_problem_of_a_diverged_log_has_its_offsets_and_the_setting(
    end: int, shared_end: int, numbers: list[int]
) -> None:
    """The numbers are the partition, the ends of the log and of the loaded offsets, the leader epochs, and the offset
    at which a load would resume."""
    problems = ranges_of(diverged(0, end, shared_end), known_topic(100)).problems
    assert len(problems) == bool(numbers)
    for problem in problems:
        assert [int(number) for number in re.findall(r"\b\d+\b", problem)] == numbers
        assert "loader.on_data_loss=skip" in problem


def test_an_open_transaction_after_the_divergence_is_waited_for() -> None:
    ranges = ranges_of(diverged(0, 60, 80, 90), known_topic(100), "skip")
    (planned,) = ranges.ranges
    assert (planned.previous, planned.start, planned.end, planned.diverged_at) == (100, 80, 80, 80)
    assert planned.has_changes


def test_a_divergence_below_the_log_start_is_a_change_without_new_offsets() -> None:
    (planned,) = ranges_of(diverged(100, 100, 80), known_topic(100), "skip").ranges
    assert (planned.previous, planned.start, planned.end, planned.diverged_at) == (100, 100, 100, 80)
    assert planned.has_changes


def test_compacted_offsets_that_may_have_changed_are_read_again_silently() -> None:
    known = known_topic(100)
    partition = dataclasses.replace(known.partitions[0], epochs=ReadEpochs(((2, 0),), 60))
    ranges = ranges_of(diverged(0, 120, 60), dataclasses.replace(known, partitions={0: partition}))
    assert (ranges.problems, ranges.notes) == ((), ())
    assert (ranges.ranges[0].start, ranges.ranges[0].end, ranges.ranges[0].diverged_at) == (60, 120, 60)


@pytest.mark.parametrize(
    ("end", "held_back", "has_note"),
    [
        (100, 0, False),
        (100, 1, True),  # all offsets since the last run are held back by the transaction
        (120, HELD_BACK_MAX, False),
        (120, HELD_BACK_MAX + 1, True),
    ],
)
def test_note_of_an_open_transaction_has_offsets_and_command(end: int, held_back: int, has_note: bool) -> None:
    ranges = ranges_of(found_topic(0, end, held_back=held_back), known_topic(100))
    assert ranges.problems == ()
    assert (ranges.ranges[0].start, ranges.ranges[0].end) == (100, end)
    assert len(ranges.notes) == has_note
    for note in ranges.notes:
        assert re.match(rf"partition 0: .*\b{held_back}\b.*\b{end}\b.*\b{end + held_back}\b", note)
        assert note.endswith(" kafka-transactions.sh find-hanging --topic orders --partition 0")


def test_a_transaction_open_from_the_first_offset_is_noted() -> None:
    (note,) = ranges_of(found_topic(0, 0, held_back=5), None).notes
    assert re.match(r"partition 0: .*\b5 offsets\b", note)


def test_a_recreated_topic_is_held_back_or_restarted() -> None:
    held = ranges_of(found_topic(0, 5, "id-2"), known_topic(100))
    assert re.search(r"\bid-2\b.*\bid-1\b", held.problems[0])
    assert held.ranges == ()
    restarted = ranges_of(found_topic(0, 5, "id-2"), known_topic(100), "skip")
    assert restarted.starts_again
    assert (restarted.ranges[0].previous, restarted.ranges[0].start, restarted.ranges[0].end) == (None, 0, 5)


def test_a_topic_is_not_recreated_by_a_broker_without_topic_ids() -> None:
    assert not ranges_of(found_topic(0, 120, ""), known_topic(100)).starts_again


def test_a_partition_without_offsets_is_a_problem() -> None:
    found = DiscoveredTopic("orders", "id-1", (), {2: "leader not available"})
    assert ranges_of(found, known_topic()).problems == (f"partition 2: leader not available; {BROKER_REMEDY}",)
    denied = DiscoveredTopic("orders", "id-1", (), {2: "broker b:1: TOPIC_AUTHORIZATION_FAILED (error 29)"})
    assert ranges_of(denied, known_topic()).problems[0].endswith(f"; {PERMISSION_REMEDY}")


def test_the_cap_cuts_a_range_by_its_estimated_bytes() -> None:
    known = known_topic(100, bytes_per_kilo_offset=2_000_000)
    (planned,) = topic_ranges(found_topic(0, 10**6), known, {}, on_data_loss="fail", range_bytes_max=MB).ranges
    assert planned.end - planned.start == MB * 1000 // 2_000_000
    (tiny,) = topic_ranges(found_topic(0, 10**6), known, {}, on_data_loss="fail", range_bytes_max=1).ranges
    assert tiny.end - tiny.start == 1


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("orders", True), ("__consumer_offsets", False), ("_schemas", False), ("orders.tmp", False), ("_x", True)],
)
def test_the_brokers_own_topics_and_excluded_ones_are_left_out(topic: str, wanted: bool) -> None:
    assert is_wanted(topic, [".*"], [r".*\.tmp"]) is wanted


def test_include_matches_whole_names() -> None:
    assert not is_wanted("orders2", ["orders"], [])


RANGES = st.lists(
    st.builds(
        lambda topic, start, length, size: (topic, start, length, size),
        st.sampled_from("abc"),
        st.integers(0, 1000),
        st.integers(1, 5000),
        st.integers(0, 600 * MB),
    ),
    max_size=30,
).map(
    lambda rows: [
        OffsetRange(TopicPartition(topic, number), start, start + length, "", 0, size)
        for number, (topic, start, length, size) in enumerate(rows)
    ]
)


TWO_OF_A_TOPIC = [
    OffsetRange(TopicPartition("a", number), 0, 10, "", 0, size) for number, size in enumerate((31_842_139, 5_775_526))
]
"""Two ranges of a topic that fit in one task: it is less than a fifth heavier than the heavier one alone."""


@given(RANGES, st.integers(1, 16), st.sampled_from([MB, 64 * MB, 256 * MB]))
@example(TWO_OF_A_TOPIC, 16, 64 * MB)
def test_units_cover_each_offset_once_and_are_balanced(ranges: list[OffsetRange], tasks: int, target: int) -> None:
    packing = pack(ranges, tasks=tasks, file_bytes_target=target)
    assert len(packing.tasks) <= tasks
    pieces: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for unit in packing.tasks:
        assert unit
        for piece in unit:
            pieces[piece.topic_partition].append((piece.start, piece.end))
    for offsets in ranges:
        found = sorted(pieces.pop(offsets.topic_partition))
        assert found[0][0] == offsets.start
        assert found[-1][1] == offsets.end
        assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert not pieces
    if ranges:
        loads = [sum(weight(piece) for piece in unit) for unit in packing.tasks]
        heaviest_piece = max(weight(piece) for unit in packing.tasks for piece in unit)
        used = max(1, min(tasks, -(-sum(map(weight, ranges)) // TASK_BYTES_MIN)))
        mean = sum(loads) / used
        greedy = (mean + heaviest_piece) / 0.95 + 1  # the bound of any greedy schedule
        # A topic stays in one task as long as no task is heavier than this, even if a better balance is possible.
        limit_of_one_topic = IMBALANCE_MAX * max(mean, heaviest_piece)
        assert max(loads) <= max(greedy, limit_of_one_topic)


@given(RANGES, st.integers(1, 16))
def test_a_range_is_split_only_above_the_target(ranges: list[OffsetRange], tasks: int) -> None:
    target = 64 * MB
    packing = pack(ranges, tasks=tasks, file_bytes_target=target)
    count: dict[TopicPartition, int] = defaultdict(int)
    for unit in packing.tasks:
        for piece in unit:
            count[piece.topic_partition] += 1
    total = sum(weight(offsets) for offsets in ranges)
    for offsets in ranges:
        if offsets.bytes_estimate <= max(target, total // (SPLITS_PER_TASK * tasks)):
            assert count[offsets.topic_partition] == 1


def test_small_work_stays_in_one_task_and_few_files() -> None:
    ranges = [OffsetRange(TopicPartition("a", number), 0, 10, "", 0, 1000) for number in range(4)]
    assert len(pack(ranges, tasks=8, file_bytes_target=256 * MB).tasks) == 1


def test_a_topic_stays_in_one_task_when_the_balance_allows() -> None:
    ranges = [
        OffsetRange(TopicPartition(topic, number), 0, 1000, "", 0, 10 * MB) for topic in "abcd" for number in range(4)
    ]
    packing = pack(ranges, tasks=4, file_bytes_target=256 * MB)
    assert [{piece.topic_partition.topic for piece in unit} for unit in packing.tasks] in (
        [{topic} for topic in order] for order in _orders("abcd")
    )
    assert packing.imbalance == 1.0


def test_only_heavy_topics_are_spread() -> None:
    sizes = {"heavy": 40 * MB, "small": 3 * MB, "tiny": MB}
    ranges = [
        OffsetRange(TopicPartition(topic, number), 0, 1000, "", 0, size)
        for topic, size in sizes.items()
        for number in range(4)
    ]
    packing = pack(ranges, tasks=2, file_bytes_target=256 * MB)
    task_counts = {
        topic: sum(any(piece.topic_partition.topic == topic for piece in unit) for unit in packing.tasks)
        for topic in sizes
    }
    assert task_counts == {"heavy": 2, "small": 1, "tiny": 1}
    assert packing.imbalance < 1.2


def _orders(letters: str) -> list[list[str]]:
    return [list(order) for order in itertools.permutations(letters)]


def test_one_large_topic_is_spread_over_the_pool() -> None:
    ranges = [OffsetRange(TopicPartition("a", number), 0, 1000, "", 0, 50 * MB) for number in range(4)]
    packing = pack(ranges, tasks=4, file_bytes_target=256 * MB)
    assert len(packing.tasks) == 4


def test_a_split_keeps_the_estimate_and_the_ends() -> None:
    pieces = split(OffsetRange(TopicPartition("a", 0), 10, 110, "id", 5, 1000), 300)
    assert [(piece.start, piece.end, piece.bytes_estimate) for piece in pieces] == [
        (10, 35, 250),
        (35, 60, 250),
        (60, 85, 250),
        (85, 110, 250),
    ]
    assert all(piece.topic_id == "id" and piece.leader_epoch == 5 for piece in pieces)


def test_a_piece_states_that_another_precedes_it() -> None:
    offsets = OffsetRange(TopicPartition("t", 0), 0, 30, bytes_estimate=300)
    assert [piece.follows_another for piece in split(offsets, 100)] == [False, True, True]
    assert [piece.follows_another for piece in split(offsets, 300)] == [False]
    assert all(piece.follows_another for piece in split(split(offsets, 150)[1], 50))
