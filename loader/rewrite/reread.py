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
from headrace.loader.rewrite.closure import Component, Covered, FileKey, Interval, LiveFile, components
from headrace.loader.rewrite.origin import Foreign
from headrace.loader.work_unit import OffsetRange, RangeResult, UnitResult

ERRORS_TOLD_MAX = 10
AGAIN = "the remaining files are unchanged; run the command again"


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why the files with messages of the offsets `[start, end)` of a partition are not replaced. `messages`
    is by how many messages the number read differs from the number in the files (always positive), 0 if nothing was
    read."""

    partition: int
    start: int
    end: int
    why: str
    messages: int = 0


def of_this_log(
    files: Sequence[LiveFile], strangers: Mapping[FileKey, Foreign], wanted: Collection[FileKey]
) -> tuple[list[Component], tuple[str, ...]]:
    """Divides files into components (files that are replaced together), and returns those that can be recreated: all
    their messages are in the topic's present log. Also returns sentences about the requested files that cannot be
    recreated.

    Args:
        files: the files that are to be replaced.
        strangers: the files with rows that may not come from the topic's present log, with the reasons.
        wanted: keys of the requested files; components without any of them are omitted.
    """
    unclear = Covered()
    for one in files:
        if one.key in strangers and not strangers[one.key].is_whole:
            for span in one.spans():
                unclear.add(*span)
    kept: list[Component] = []
    stay: dict[str, int] = defaultdict(int)
    for key, stranger in strangers.items():
        if key in wanted:
            stay[stranger.why] += 1
    for component in components([one for one in files if one.key not in strangers]):
        asked = sum(one.key in wanted for one in component.files)
        if not asked:
            continue
        if any(unclear.shares(one.partition, one.start, one.end) for one in component.intervals):
            stay["files that may hold rows of an earlier log share offsets with them"] += asked
        else:
            kept.append(component)
    return kept, tuple(f"{count_text(number, 'file')} cannot be recreated: {why}" for why, number in stay.items())


def unreadable(component: Component, found: DiscoveredTopic, known: TopicState) -> list[Refused]:
    """Returns the offset ranges of a component that cannot be read from the brokers now, with the reasons.

    Args:
        found: the topic's offsets on the brokers.
        known: the topic in the commit log.
    """
    offsets_of = {one.partition: one for one in found.partitions}
    refused = []
    for one in component.intervals:
        offsets, partition = offsets_of.get(one.partition), known.partitions.get(one.partition)
        end, why = one.end, ""
        if offsets is None or partition is None:
            why = found.errors.get(one.partition, "the brokers have no such partition")
        elif one.start < offsets.start:
            end = min(one.end, offsets.start)
            why = f"the log begins at {offsets.start} now, since older segments were deleted"
        elif one.end > (same_end := min(same_log_end(offsets, partition), offsets.end)):
            why = f"the log diverged at {same_end}; `headrace load` reports the details"
        if why:
            refused.append(Refused(one.partition, one.start, end, why))
    return refused


def refusal_sentences(refused: Iterable[Refused]) -> tuple[str, ...]:
    """Returns sentences about the offsets in `refused`: a backfill does not replace the files with their messages,
    because they could not be read again, or another number of messages was read than the files have. One sentence per
    partition and reason."""
    by_reason: dict[tuple[int, str], list[Refused]] = defaultdict(list)
    for one in refused:
        by_reason[one.partition, one.why].append(one)
    sentences = []
    for (number, why), some in sorted(by_reason.items()):
        first, last = min(one.start for one in some), max(one.end for one in some) - 1
        messages = sum(one.messages for one in some)
        what = f"returned {count_text(messages, 'message')}" if messages else "cannot be read again:"
        sentences.append(f"partition {number}: offsets {first} to {last} {what} {why}; their files are unchanged")
    return tuple(sentences)


def ranges_of(found: DiscoveredTopic, known: TopicState, piece: Sequence[Component]) -> TopicRanges:
    """Returns the offset ranges of the commit that replaces the components `piece`: one per partition, from the first
    to the last offset of its intervals. (An interval is an offset range of a component.)

    Args:
        found: the topic on the brokers.
        known: the topic in the commit log.
    """
    epochs = {one.partition: one.leader_epoch for one in found.partitions}
    spans: dict[int, list[Interval]] = defaultdict(list)
    for component in piece:
        for one in component.intervals:
            spans[one.partition].append(one)
    planned = []
    for number, some in sorted(spans.items()):
        start, end = min(one.start for one in some), max(one.end for one in some)
        planned.append(PlannedRange(number, None, start, end, epochs[number], 0))
    return TopicRanges(found.topic_id or known.topic_id, False, tuple(planned), ())


def offset_ranges(topic: str, known: TopicState, ranges: TopicRanges, piece: Sequence[Component]) -> list[OffsetRange]:
    """Returns the intervals of `piece`, the components that one commit replaces, as `OffsetRange`, for the tasks to
    read. (An interval is an offset range of a component.)

    Args:
        known: the topic in the commit log; used to estimate sizes.
        ranges: the result of `ranges_of`, with the present leader epochs.
    """
    epochs = {planned.partition: planned.leader_epoch for planned in ranges.ranges}
    found = []
    for one in (interval for component in piece for interval in component.intervals):
        partition = known.partitions.get(one.partition)
        weight = partition.bytes_per_kilo_offset if partition else BYTES_PER_KILO_OFFSET_DEFAULT
        found.append(
            OffsetRange(
                TopicPartition(topic, one.partition),
                one.start,
                one.end,
                ranges.topic_id,
                epochs[one.partition],
                (one.end - one.start) * weight // 1000,
            )
        )
    return found


def differing(piece: Sequence[Component], results: Iterable[RangeResult]) -> dict[int, list[Refused]]:
    """Compares the number of messages read with the number in the files, for each interval (offset range of a
    component). Returns the differences by the component's index in `piece`; empty if all numbers are equal.

    A surplus in one interval does not hide a deficit in another. Within one interval it may: if rows were removed with
    `headrace expire`, `accept-missing` or `quarantine discard`, and the brokers have lost as many other messages since.

    Args:
        piece: the components that were read again, to be replaced by one commit.
        results: the results of reading their intervals.
    """
    places = sorted(
        (one.partition, one.start, at, one) for at, component in enumerate(piece) for one in component.intervals
    )
    starts = [place[:2] for place in places]
    came = [0] * len(places)
    for result in results:
        done, counts = result.done, result.counts
        at = bisect_right(starts, (done.topic_partition.partition, done.start)) - 1
        kept = sum(one.is_kept for one in result.skipped)  # each is one quarantine row with the bytes of a batch
        came[at] += counts.records + counts.quarantined + kept
    found: dict[int, list[Refused]] = defaultdict(list)
    for number, (partition, start, at, one) in zip(came, places, strict=True):
        if number > one.records:
            why = "more than their files hold: some were skipped, or removed with `headrace expire` or `accept-missing`"
            found[at].append(Refused(partition, start, one.end, why, number - one.records))
        elif number < one.records:
            why = "fewer than their files hold: the brokers lost or compacted them since"
            found[at].append(Refused(partition, start, one.end, why, one.records - number))
    return found


def failures(results: Sequence[UnitResult]) -> list[str]:
    """Returns sentences about failed reads and writes of tasks: at most `ERRORS_TOLD_MAX` and one that counts the rest.

    Args:
        results: the results of all tasks.
    """
    found: dict[str, None] = {}
    for result in results:
        if result.disk_error:
            found[f"task {result.task} {result.disk_error}; free space there or repair the disk: {AGAIN}"] = None
            continue
        for one in result.ranges:
            if one.corrupt_stop:
                advice = (
                    "elect another replica as leader, whose copy may be intact, or set loader.corrupt_batches for the "
                    "topic"
                )
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {advice}: {AGAIN}"] = None
            elif one.error:
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {AGAIN}"] = None
    sentences = list(found)
    more = len(sentences) - ERRORS_TOLD_MAX
    return sentences[:ERRORS_TOLD_MAX] + ([f"and {more:,} more ranges could not be read"] if more > 0 else [])
