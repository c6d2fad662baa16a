"""What the brokers can give again, and whether it is what the files hold."""

from __future__ import annotations

import pytest

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.decide.bucket_index import IndexedFile
from headrace.loader.decide.state import FileTotals, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.rewrite.closure import Component, Interval, LiveFile
from headrace.loader.rewrite.origin import Foreign
from headrace.loader.rewrite.reread import (
    Refused,
    differing,
    failures,
    of_this_log,
    offset_ranges,
    ranges_of,
    told,
    unreadable,
)
from headrace.loader.work_unit import (
    CorruptStop,
    FileKind,
    FileRange,
    OffsetRange,
    PassedOver,
    RangeCounts,
    RangeResult,
    UnitResult,
)
from support.loader.loader_samples import load_schema

BUCKET = "dt=2026-01-01/hr=05"


def live(name: str, partition: int, first: int, last: int) -> LiveFile:
    records = last - first + 1
    file = IndexedFile(name, 1, 0, 10, "", records, (FileRange(partition, first, last, records),))
    return LiveFile(FileKind.DATA, BUCKET, file)


def component(*intervals: tuple[int, int, int, int]) -> Component:
    return Component((), tuple(Interval(*one) for one in intervals))


def known(next_offset: int = 100, *, weight: int = 2_000) -> TopicState:
    partitions = {number: PartitionState(next_offset, 3, weight) for number in (0, 1)}
    totals = FileTotals()
    return TopicState("id-1", "orders", "orders", "hour", load_schema(), partitions, frozenset(), totals, totals, 1, 0)


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
        (found(0, 19), [(10, 20, "the log is the one that was loaded only up to 19; `headrace load` says more")]),
        (found(0, 100, shared_end=20), []),
        (
            found(0, 100, shared_end=19),
            [(10, 20, "the log is the one that was loaded only up to 19; `headrace load` says more")],
        ),
        (
            found(0, 15, shared_end=50),
            [(10, 20, "the log is the one that was loaded only up to 15; `headrace load` says more")],
        ),
    ],
)
def test_offsets_that_cannot_be_read_are_named(
    on_brokers: DiscoveredTopic, refused: list[tuple[int, int, str]]
) -> None:
    expected = [Refused(0, *one) for one in refused]
    assert unreadable(component((0, 10, 20, 10)), on_brokers, known()) == expected


def test_partitions_that_do_not_answer_are_named() -> None:
    assert unreadable(component((1, 5, 6, 1)), found(0, 100), known()) == [Refused(1, 5, 6, "no leader")]
    absent = unreadable(component((7, 5, 6, 1)), found(0, 100), known())
    assert absent == [Refused(7, 5, 6, "the brokers have no such partition")]


def test_one_sentence_tells_of_a_partition_and_reason() -> None:
    refused = [Refused(0, 5, 9, "why"), Refused(1, 0, 3, "why"), Refused(0, 20, 30, "why"), Refused(0, 1, 2, "else")]
    assert told(refused) == (
        "partition 0: offsets 1 to 1 cannot be read again: else; the files that they are in stay",
        "partition 0: offsets 5 to 29 cannot be read again: why; the files that they are in stay",
        "partition 1: offsets 0 to 2 cannot be read again: why; the files that they are in stay",
    )
    assert told([Refused(0, 0, 10, "more", 2), Refused(0, 20, 30, "more", 1_000)]) == (
        "partition 0: offsets 0 to 29 gave 1,002 messages more; the files that they are in stay",
    )


def test_every_interval_is_a_range_of_the_plan() -> None:
    piece = [component((0, 10, 20, 5)), component((0, 40, 50, 5), (1, 0, 5, 5))]
    one = DiscoveredTopic("orders", "", (PartitionOffsets(0, 4, 0, 99, 99), PartitionOffsets(1, 6, 0, 99, 99)), {})
    ranges = ranges_of(one, known(), piece)
    assert (ranges.topic_id, ranges.starts_again) == ("id-1", False)
    assert [(r.partition, r.previous, r.start, r.end, r.leader_epoch) for r in ranges.ranges] == [
        (0, None, 10, 50, 4),
        (1, None, 0, 5, 6),
    ]
    orders = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert offset_ranges("orders", known(), ranges, piece) == [
        OffsetRange(orders[0], 10, 20, "id-1", 4, 20),
        OffsetRange(orders[0], 40, 50, "id-1", 4, 20),
        OffsetRange(orders[1], 0, 5, "id-1", 6, 10),
    ]
    assert ranges_of(found(0, 99, topic_id="id-9"), known(), piece[:1]).topic_id == "id-9"


def result(partition: int, start: int, end: int, counts: RangeCounts, *passed: PassedOver) -> RangeResult:
    return RangeResult(OffsetRange(TopicPartition("orders", partition), start, end), counts, passed_over=passed)


def test_as_many_messages_must_come_of_every_span_as_files_hold() -> None:
    piece = [component((0, 10, 20, 8), (1, 10, 20, 5)), component((0, 30, 40, 4))]
    whole = [
        result(0, 10, 15, RangeCounts(records=4, tombstones=1)),
        result(0, 15, 20, RangeCounts(records=3, quarantined=1, gaps=1)),
        result(1, 10, 20, RangeCounts(records=4), PassedOver(12, 14, "", True), PassedOver(14, 16, "", False)),
        result(0, 30, 40, RangeCounts(quarantined=4)),
    ]
    assert differing(piece, whole) == {}
    fewer = "fewer than their files hold: the brokers lost or compacted them since"
    assert differing(piece, whole[1:]) == {0: [Refused(0, 10, 20, fewer, 4)]}
    more = "more than their files hold: some were removed with `headrace retain` or `forget`, or were skipped"
    assert differing(piece, [*whole, result(0, 33, 35, RangeCounts(records=2))]) == {1: [Refused(0, 30, 40, more, 2)]}


def test_too_many_here_are_not_taken_for_too_few_there() -> None:
    piece = [component((0, 0, 10, 5), (0, 20, 30, 5))]
    results = [result(0, 0, 10, RangeCounts(records=6)), result(0, 20, 30, RangeCounts(records=4))]
    assert [(one.start, one.messages) for one in differing(piece, results)[0]] == [(0, 1), (20, 1)]


def test_only_what_was_asked_for_is_replaced_and_never_what_is_of_another_log() -> None:
    asked, beside, other = live("asked", 0, 0, 9), live("beside", 0, 5, 12), live("other", 0, 20, 29)
    old, mixed = live("old", 0, 0, 29), live("mixed", 0, 25, 40)
    files = [asked, beside, other, old]
    (one,), problems = of_this_log(files, {old.key: Foreign("it was before", True)}, {asked.key, old.key})
    assert {file.key for file in one.files} == {asked.key, beside.key}
    assert problems == ("1 file cannot be made again: it was before, so the brokers have their messages no more",)
    files.append(mixed)
    strangers = {mixed.key: Foreign("who knows", False), old.key: Foreign("it was before", True)}
    kept, problems = of_this_log(files, strangers, {asked.key, other.key})
    assert [{file.key for file in some.files} for some in kept] == [{asked.key, beside.key}]
    shared = "files that may hold rows of an earlier log share offsets with them"
    assert problems == (f"1 file cannot be made again: {shared}",)


def test_what_failed_is_told_range_by_range_up_to_a_number() -> None:
    def failed(number: int, error: str, stop: CorruptStop | None = None) -> RangeResult:
        at = OffsetRange(TopicPartition("orders", number), 5, 5)
        return RangeResult(at, RangeCounts(), error=error, corrupt_stop=stop)

    disk = UnitResult(3, (failed(0, "the disk is full"),), (), "b", 1, disk_error="cannot write to /data: full")
    corrupt = UnitResult(4, (failed(1, "offset 5: its CRC is wrong", CorruptStop(5, 6)), failed(2, "")), (), "b", 1)
    again = "nothing of this was replaced; run this again"
    assert failures([disk, corrupt]) == [
        f"task 3 cannot write to /data: full; make room there or mend the disk: {again}",
        "partition 1: offset 5: its CRC is wrong; let another replica lead, whose copy may be whole, or set "
        f"loader.corrupt_batches for the topic: {again}",
    ]
    many = [UnitResult(0, tuple(failed(number, "no leader") for number in range(12)), (), "b", 1)]
    told = failures(many)
    assert (len(told), told[0]) == (11, f"partition 0: no leader; {again}")
    assert told[-1] == "and 2 more ranges could not be read"
    assert failures([UnitResult(0, (failed(0, ""),), (), "b", 1)]) == []
