"""Decides which files a backfill can recreate, and whether the messages read again match the files. Pure.

The old files are not opened, because they may be damaged or missing: their commits state the number of messages and
their offsets, and exactly as many must be read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.audit.window import count_text
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import BYTES_PER_KILO_OFFSET_DEFAULT, TopicState
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.plan.ranges import PlannedRange, TopicRanges, same_log_end
from headrace.loader.rewrite.closure import Component, FileKey, Interval, LiveFile, OffsetRangeSet, components
from headrace.loader.rewrite.origin import ForeignRows
from headrace.loader.work_unit import OffsetRange, RangeResult, UnitResult

ERRORS_REPORTED_MAX = 10
RETRY_ADVICE = "the remaining files are unchanged; run the command again"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why the files with messages of the offsets `[start, end)` of a partition are not replaced. `messages`
    is by how many messages the number read differs from the number in the files (always positive), 0 if nothing was
    read."""

    partition: int
    start: int
    end: int
    reason: str
    messages: int = 0


def recreatable_components(
    files: Sequence[LiveFile], foreign_files: Mapping[FileKey, ForeignRows], requested: Collection[FileKey]
) -> tuple[list[Component], tuple[str, ...]]:
    """Divides files into components (files that are replaced together), and returns those that can be recreated: all
    their messages are in the topic's present log. Also returns sentences about the requested files that cannot be
    recreated.

    Args:
        files: the files that are to be replaced.
        foreign_files: the files with rows that may not come from the topic's present log, with the reasons.
        requested: keys of the requested files; components without any of them are omitted.
    """
    ambiguous = OffsetRangeSet()
    for one in files:
        if one.key in foreign_files and not foreign_files[one.key].has_only_foreign_rows:
            for span in one.spans():
                ambiguous.add(*span)
    recreatable: list[Component] = []
    files_by_reason: dict[str, int] = defaultdict(int)
    for key, foreign_rows in foreign_files.items():
        if key in requested:
            files_by_reason[foreign_rows.reason] += 1
    for component in components([one for one in files if one.key not in foreign_files]):
        requested_count = sum(one.key in requested for one in component.files)
        if not requested_count:
            continue
        if any(ambiguous.overlaps(one.partition, one.start, one.end) for one in component.intervals):
            files_by_reason["files that may hold rows of an earlier log share offsets with them"] += requested_count
        else:
            recreatable.append(component)
    return recreatable, tuple(
        f"{count_text(number, 'file')} cannot be recreated: {reason}" for reason, number in files_by_reason.items()
    )


def unreadable_ranges(component: Component, found: DiscoveredTopic, topic_state: TopicState) -> list[Refusal]:
    """Returns the offset ranges of a component that cannot be read from the brokers now, with the reasons.

    Args:
        found: the topic's offsets on the brokers.
        topic_state: the topic in the commit log.
    """
    offsets_of = {one.partition: one for one in found.partitions}
    refusals = []
    for one in component.intervals:
        offsets, partition = offsets_of.get(one.partition), topic_state.partitions.get(one.partition)
        end, reason = one.end, ""
        if offsets is None or partition is None:
            reason = found.errors.get(one.partition, "the brokers have no such partition")
        elif one.start < offsets.start:
            end = min(one.end, offsets.start)
            reason = f"the log begins at {offsets.start} now, since older segments were deleted"
        elif one.end > (same_end := min(same_log_end(offsets, partition), offsets.end)):
            reason = f"the log diverged at {same_end}; `headrace load` reports the details"
        if reason:
            refusals.append(Refusal(one.partition, one.start, end, reason))
    return refusals


def refusal_sentences(refused: Iterable[Refusal]) -> tuple[str, ...]:
    """Returns sentences about the offsets in `refused`: a backfill does not replace the files with their messages,
    because they could not be read again, or another number of messages was read than the files have. One sentence per
    partition and reason."""
    by_reason: dict[tuple[int, str], list[Refusal]] = defaultdict(list)
    for one in refused:
        by_reason[one.partition, one.reason].append(one)
    sentences = []
    for (number, reason), refusals in sorted(by_reason.items()):
        first, last = min(one.start for one in refusals), max(one.end for one in refusals) - 1
        messages = sum(one.messages for one in refusals)
        finding = f"returned {count_text(messages, 'message')}" if messages else "cannot be read again:"
        sentences.append(f"partition {number}: offsets {first} to {last} {finding} {reason}; their files are unchanged")
    return tuple(sentences)


def planned_ranges(found: DiscoveredTopic, topic_state: TopicState, piece: Sequence[Component]) -> TopicRanges:
    """Returns the offset ranges of the commit that replaces the components `piece`: one per partition, from the first
    to the last offset of its intervals. (An interval is an offset range of a component.)

    Args:
        found: the topic on the brokers.
        topic_state: the topic in the commit log.
    """
    epochs = {one.partition: one.leader_epoch for one in found.partitions}
    spans: dict[int, list[Interval]] = defaultdict(list)
    for component in piece:
        for one in component.intervals:
            spans[one.partition].append(one)
    planned = []
    for number, intervals in sorted(spans.items()):
        start, end = min(one.start for one in intervals), max(one.end for one in intervals)
        planned.append(PlannedRange(number, None, start, end, epochs[number], 0))
    return TopicRanges(found.topic_id or topic_state.topic_id, False, tuple(planned), ())


def offset_ranges(
    topic: str, topic_state: TopicState, ranges: TopicRanges, piece: Sequence[Component]
) -> list[OffsetRange]:
    """Returns the intervals of `piece`, the components that one commit replaces, as `OffsetRange`, for the tasks to
    read. (An interval is an offset range of a component.)

    Args:
        topic_state: the topic in the commit log; used to estimate sizes.
        ranges: the result of `planned_ranges`, with the present leader epochs.
    """
    epochs = {planned.partition: planned.leader_epoch for planned in ranges.ranges}
    found = []
    for one in (interval for component in piece for interval in component.intervals):
        partition = topic_state.partitions.get(one.partition)
        bytes_per_kilo_offset = partition.bytes_per_kilo_offset if partition else BYTES_PER_KILO_OFFSET_DEFAULT
        found.append(
            OffsetRange(
                TopicPartition(topic, one.partition),
                one.start,
                one.end,
                ranges.topic_id,
                epochs[one.partition],
                (one.end - one.start) * bytes_per_kilo_offset // 1000,
            )
        )
    return found


def count_differences(piece: Sequence[Component], results: Iterable[RangeResult]) -> dict[int, list[Refusal]]:
    """Compares the number of messages read with the number in the files, for each interval (offset range of a
    component). Returns the differences by the component's index in `piece`; empty if all numbers are equal.

    A surplus in one interval does not hide a deficit in another. Within one interval it may: if rows were removed with
    `headrace expire`, `accept-missing` or `quarantine discard`, and the brokers have lost as many other messages since.

    Args:
        piece: the components that were read again, to be replaced by one commit.
        results: the results of reading their intervals.
    """
    intervals = sorted(
        (one.partition, one.start, at, one) for at, component in enumerate(piece) for one in component.intervals
    )
    starts = [interval[:2] for interval in intervals]
    messages_read = [0] * len(intervals)
    for result in results:
        done, counts = result.done, result.counts
        at = bisect_right(starts, (done.topic_partition.partition, done.start)) - 1
        # Each is one quarantine row with the bytes of a batch.
        quarantined_batches = sum(one.is_quarantined for one in result.skipped)
        messages_read[at] += counts.records + counts.quarantined + quarantined_batches
    found: dict[int, list[Refusal]] = defaultdict(list)
    for number, (partition, start, at, one) in zip(messages_read, intervals, strict=True):
        if number > one.records:
            reason = (
                "more than their files hold: some were skipped, or removed with `headrace expire` or `accept-missing`"
            )
            found[at].append(Refusal(partition, start, one.end, reason, number - one.records))
        elif number < one.records:
            reason = "fewer than their files hold: the brokers lost or compacted them since"
            found[at].append(Refusal(partition, start, one.end, reason, one.records - number))
    return found


def failure_sentences(results: Sequence[UnitResult]) -> list[str]:
    """Returns sentences about failed reads and writes of tasks: at most `ERRORS_REPORTED_MAX` and one that counts the
    rest.

    Args:
        results: the results of all tasks.
    """
    found: dict[str, None] = {}
    for result in results:
        if result.disk_error:
            found[f"task {result.task} {result.disk_error}; free space there or repair the disk: {RETRY_ADVICE}"] = None
            continue
        for one in result.ranges:
            if one.corrupt_stop:
                advice = (
                    "elect another replica as leader, whose copy may be intact, or set loader.corrupt_batches for the "
                    "topic"
                )
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {advice}: {RETRY_ADVICE}"] = None
            elif one.error:
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {RETRY_ADVICE}"] = None
    sentences = list(found)
    more = len(sentences) - ERRORS_REPORTED_MAX
    return sentences[:ERRORS_REPORTED_MAX] + ([f"and {more:,} more ranges could not be read"] if more > 0 else [])
