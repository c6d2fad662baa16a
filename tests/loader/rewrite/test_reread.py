"""The offsets that the brokers still have, and the comparison of their messages with the files."""

from __future__ import annotations

import re

import pytest

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.state import FileTotals, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.rewrite.closure import Component, Interval, LiveFile
from headrace.loader.rewrite.origin import ForeignRows
from headrace.loader.rewrite.reread import (
    Refusal,
    count_differences,
    failure_sentences,
    offset_ranges,
    planned_ranges,
    recreatable_components,
    refusal_sentences,
    unreadable_ranges,
)
from headrace.loader.work_unit import (
    CorruptBatchStop,
    FileKind,
    FileRange,
    OffsetRange,
    RangeCounts,
    RangeResult,
    SkippedOffsets,
    UnitResult,
)
from support.loader.loader_samples import load_schema

TIME_PARTITION = "dt=2026-01-01/hr=05"


def live(name: str, partition: int, first: int, last: int) -> LiveFile:
    records = last - first + 1
    file = IndexedFile(name, 1, 0, 10, "", records, (FileRange(partition, first, last, records),))
    return LiveFile(FileKind.DATA, TIME_PARTITION, file)


def component(*intervals: tuple[int, int, int, int]) -> Component:
    return Component((), tuple(Interval(*one) for one in intervals))


def topic_state(next_offset: int = 100, *, bytes_per_kilo_offset: int = 2_000) -> TopicState:
    partitions = {number: PartitionState(next_offset, 3, bytes_per_kilo_offset) for number in (0, 1)}
    totals = FileTotals()
    return TopicState("id-1", "orders", "orders", "hour", load_schema(), partitions, frozenset(), totals, totals, 1)


def found(start: int, end: int, *, shared_end: int | None = None, topic_id: str = "id-1") -> DiscoveredTopic:
    offsets = PartitionOffsets(0, 3, start, end, end, shared_end)
    return DiscoveredTopic("orders", topic_id, (offsets,), {1: "no leader"})


@pytest.mark.parametrize(
    ("on_brokers", "refused"),
    [
        (found(10, 100), []),
        (found(0, 20), []),
        (found(11, 100), [(10, 11, "the log begins at 11 now, since older segments were deleted")]),
        (found(50, 100), [(10, 20, "the log begins at 50 now, since older segments were deleted")]),
        (found(0, 19), [(10, 20, "the log diverged at 19; `headrace load` reports the details")]),
        (found(0, 100, shared_end=20), []),
        (
            found(0, 100, shared_end=19),
            [(10, 20, "the log diverged at 19; `headrace load` reports the details")],
        ),
        (
            found(0, 15, shared_end=50),
            [(10, 20, "the log diverged at 15; `headrace load` reports the details")],
        ),
    ],
)
def test_unreadable_offsets_are_reported(on_brokers: DiscoveredTopic, refused: list[tuple[int, int, str]]) -> None:
    expected = [Refusal(0, *one) for one in refused]
    assert unreadable_ranges(component((0, 10, 20, 10)), on_brokers, topic_state()) == expected


def test_unavailable_partitions_are_reported() -> None:
    assert unreadable_ranges(component((1, 5, 6, 1)), found(0, 100), topic_state()) == [Refusal(1, 5, 6, "no leader")]
    refusals = unreadable_ranges(component((7, 5, 6, 1)), found(0, 100), topic_state())
    assert [(one.partition, one.start, one.end) for one in refusals] == [(7, 5, 6)]


def test_problems_are_grouped_by_partition_and_reason() -> None:
    refused = [Refusal(0, 5, 9, "why"), Refusal(1, 0, 3, "why"), Refusal(0, 20, 30, "why"), Refusal(0, 1, 2, "else")]
    expected = (
        r"partition 0: .*\b1\b.*\b1\b.*: else; ",
        r"partition 0: .*\b5\b.*\b29\b.*: why; ",
        r"partition 1: .*\b0\b.*\b2\b.*: why; ",
    )
    for pattern, sentence in zip(expected, refusal_sentences(refused), strict=True):
        assert re.match(pattern, sentence)
    (sentence,) = refusal_sentences([Refusal(0, 0, 10, "more", 2), Refusal(0, 20, 30, "more", 1_000)])
    assert re.match(r"partition 0: .*\b0\b.*\b29\b.*\b1,002 messages more; ", sentence)


def test_every_interval_is_a_range_of_the_plan() -> None:
    piece = [component((0, 10, 20, 5)), component((0, 40, 50, 5), (1, 0, 5, 5))]
    one = DiscoveredTopic("orders", "", (PartitionOffsets(0, 4, 0, 99, 99), PartitionOffsets(1, 6, 0, 99, 99)), {})
    ranges = planned_ranges(one, topic_state(), piece)
    assert (ranges.topic_id, ranges.starts_again) == ("id-1", False)
    assert [
        (planned.partition, planned.previous, planned.start, planned.end, planned.leader_epoch)
        for planned in ranges.ranges
    ] == [
        (0, None, 10, 50, 4),
        (1, None, 0, 5, 6),
    ]
    topic_partitions = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert offset_ranges("orders", topic_state(), ranges, piece) == [
        OffsetRange(topic_partitions[0], 10, 20, "id-1", 4, 20),
        OffsetRange(topic_partitions[0], 40, 50, "id-1", 4, 20),
        OffsetRange(topic_partitions[1], 0, 5, "id-1", 6, 10),
    ]
    assert planned_ranges(found(0, 99, topic_id="id-9"), topic_state(), piece[:1]).topic_id == "id-9"


def result(partition: int, start: int, end: int, counts: RangeCounts, *skipped: SkippedOffsets) -> RangeResult:
    return RangeResult(OffsetRange(TopicPartition("orders", partition), start, end), counts, skipped=skipped)


def test_each_span_must_have_as_many_messages_as_its_files() -> None:
    piece = [component((0, 10, 20, 8), (1, 10, 20, 5)), component((0, 30, 40, 4))]
    whole = [
        result(0, 10, 15, RangeCounts(records=4, tombstones=1)),
        result(0, 15, 20, RangeCounts(records=3, quarantined=1, gaps=1)),
        result(1, 10, 20, RangeCounts(records=4), SkippedOffsets(12, 14, "", True), SkippedOffsets(14, 16, "", False)),
        result(0, 30, 40, RangeCounts(quarantined=4)),
    ]
    assert count_differences(piece, whole) == {}
    fewer = "fewer than their files hold: the brokers lost or compacted them since"
    assert count_differences(piece, whole[1:]) == {0: [Refusal(0, 10, 20, fewer, 4)]}
    more = "more than their files hold: some were skipped, or removed with `headrace expire` or `accept-missing`"
    assert count_differences(piece, [*whole, result(0, 33, 35, RangeCounts(records=2))]) == {
        1: [Refusal(0, 30, 40, more, 2)]
    }


def test_surplus_of_one_span_does_not_balance_another() -> None:
    piece = [component((0, 0, 10, 5), (0, 20, 30, 5))]
    results = [result(0, 0, 10, RangeCounts(records=6)), result(0, 20, 30, RangeCounts(records=4))]
    assert [(one.start, one.messages) for one in count_differences(piece, results)[0]] == [(0, 1), (20, 1)]


def test_only_requested_files_of_the_current_log_are_replaced() -> None:
    requested, overlapping, other = live("requested", 0, 0, 9), live("overlapping", 0, 5, 12), live("other", 0, 20, 29)
    old, mixed = live("old", 0, 0, 29), live("mixed", 0, 25, 40)
    files = [requested, overlapping, other, old]
    (one,), problems = recreatable_components(
        files, {old.key: ForeignRows("it was before", True)}, {requested.key, old.key}
    )
    assert {file.key for file in one.files} == {requested.key, overlapping.key}
    (problem,) = problems
    assert re.match(r"1 file .*: it was before\b", problem)
    files.append(mixed)
    foreign_files = {mixed.key: ForeignRows("who knows", False), old.key: ForeignRows("it was before", True)}
    replaceable, problems = recreatable_components(files, foreign_files, {requested.key, other.key})
    assert [{file.key for file in component.files} for component in replaceable] == [{requested.key, overlapping.key}]
    (problem,) = problems
    assert problem.startswith("1 file ")


def test_failed_ranges_are_reported_up_to_a_limit() -> None:
    def failed(number: int, error: str, stop: CorruptBatchStop | None = None) -> RangeResult:
        at = OffsetRange(TopicPartition("orders", number), 5, 5)
        return RangeResult(at, RangeCounts(), error=error, corrupt_stop=stop)

    disk = UnitResult(3, (failed(0, "the disk is full"),), (), "b", 1, disk_error="cannot write to /data: full")
    corrupt = UnitResult(
        4, (failed(1, "offset 5: its CRC is wrong", CorruptBatchStop(5, 6)), failed(2, "")), (), "b", 1
    )
    of_disk, of_batch = failure_sentences([disk, corrupt])
    assert of_disk.startswith("task 3 cannot write to /data: full; ")
    assert re.match(r"partition 1: offset 5: its CRC is wrong; .*\bloader\.corrupt_batches\b", of_batch)
    many = [UnitResult(0, tuple(failed(number, "no leader") for number in range(12)), (), "b", 1)]
    lines = failure_sentences(many)
    assert len(lines) == 11
    assert lines[0].startswith("partition 0: no leader; ")
    assert re.findall(r"\d+", lines[-1]) == ["2"]
    assert failure_sentences([UnitResult(0, (failed(0, ""),), (), "b", 1)]) == []
