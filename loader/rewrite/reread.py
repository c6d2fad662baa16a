"""What a backfill can read again, and whether what came is what the files held. Pure.

The old files are never opened, since they may be damaged or gone: what was committed of them says how many messages
they hold of which offsets, and exactly as many must come again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.audit.window import count_text
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import BYTES_PER_KILO_OFFSET_UNSEEN, TopicState
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.plan.ranges import PlannedRange, TopicRanges, same_log_end
from headrace.loader.rewrite.closure import Component, Covered, FileKey, Interval, LiveFile, components
from headrace.loader.rewrite.origin import Foreign
from headrace.loader.work_unit import OffsetRange, RangeResult, UnitResult

ERRORS_TOLD_MAX = 10
AGAIN = "nothing of this was replaced; run this again"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the files of some offsets `[start, end)` of a partition stay as they are. `messages` is how many came too
    many or too few, 0 where nothing was read."""

    partition: int
    start: int
    end: int
    why: str
    messages: int = 0


def of_this_log(
    files: Sequence[LiveFile], strangers: Mapping[FileKey, Foreign], wanted: Collection[FileKey]
) -> tuple[list[Component], tuple[str, ...]]:
    """What can be read again of the topic's present log, and sentences on what cannot.

    Args:
        strangers: the files that hold rows of another log.
        wanted: the files that were asked for; what belongs to none of them is left out.
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
            stay[f"{stranger.why}, so the brokers have their messages no more"] += 1
    for component in components([one for one in files if one.key not in strangers]):
        asked = sum(one.key in wanted for one in component.files)
        if not asked:
            continue
        if any(unclear.shares(one.partition, one.start, one.end) for one in component.intervals):
            stay["files that may hold rows of an earlier log share offsets with them"] += asked
        else:
            kept.append(component)
    return kept, tuple(f"{count_text(number, 'file')} cannot be made again: {why}" for why, number in stay.items())


def unreadable(component: Component, found: DiscoveredTopic, known: TopicState) -> list[Refused]:
    """Its offsets that the brokers no longer have, or cannot give now; none where all can be read."""
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
            why = f"the log is the one that was loaded only up to {same_end}; `headrace load` says more"
        if why:
            refused.append(Refused(one.partition, one.start, end, why))
    return refused


def told(refused: Iterable[Refused]) -> tuple[str, ...]:
    """One sentence for each partition and reason."""
    by_reason: dict[tuple[int, str], list[Refused]] = defaultdict(list)
    for one in refused:
        by_reason[one.partition, one.why].append(one)
    sentences = []
    for (number, why), some in sorted(by_reason.items()):
        first, last = min(one.start for one in some), max(one.end for one in some) - 1
        messages = sum(one.messages for one in some)
        what = f"gave {count_text(messages, 'message')}" if messages else "cannot be read again:"
        sentences.append(f"partition {number}: offsets {first} to {last} {what} {why}; the files that they are in stay")
    return tuple(sentences)


def ranges_of(found: DiscoveredTopic, known: TopicState, piece: Sequence[Component]) -> TopicRanges:
    """What is read, as a plan has it: of every partition one range from its first offset to its last."""
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
    """The intervals as tasks take them."""
    epochs = {planned.partition: planned.leader_epoch for planned in ranges.ranges}
    found = []
    for one in (interval for component in piece for interval in component.intervals):
        partition = known.partitions.get(one.partition)
        weight = partition.bytes_per_kilo_offset if partition else BYTES_PER_KILO_OFFSET_UNSEEN
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
    """By its place in the piece, the intervals of a component that gave another number of messages than files hold.

    What one interval has too many never makes up for what another has too few. (Within one, it could: where files were
    removed with `expire` or `accept_missing` and the brokers lost just as many other messages since.)
    """
    places = sorted(
        (one.partition, one.start, at, one) for at, component in enumerate(piece) for one in component.intervals
    )
    starts = [place[:2] for place in places]
    came = [0] * len(places)
    for result in results:
        done, counts = result.done, result.counts
        at = bisect_right(starts, (done.topic_partition.partition, done.start)) - 1
        kept = sum(one.is_kept for one in result.skipped)  # a row of the quarantine for a whole batch
        came[at] += counts.records + counts.quarantined + kept
    found: dict[int, list[Refused]] = defaultdict(list)
    for number, (partition, start, at, one) in zip(came, places, strict=True):
        if number > one.records:
            why = "more than their files hold: some were removed with `headrace expire` or `accept-missing`, or were skipped"
            found[at].append(Refused(partition, start, one.end, why, number - one.records))
        elif number < one.records:
            why = "fewer than their files hold: the brokers lost or compacted them since"
            found[at].append(Refused(partition, start, one.end, why, one.records - number))
    return found


def failures(results: Sequence[UnitResult]) -> list[str]:
    """Sentences on what could not be read, or written."""
    found: dict[str, None] = {}
    for result in results:
        if result.disk_error:
            found[f"task {result.task} {result.disk_error}; make room there or mend the disk: {AGAIN}"] = None
            continue
        for one in result.ranges:
            if one.corrupt_stop:
                advice = (
                    "let another replica lead, whose copy may be whole, or set loader.corrupt_batches for the topic"
                )
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {advice}: {AGAIN}"] = None
            elif one.error:
                found[f"partition {one.done.topic_partition.partition}: {one.error}; {AGAIN}"] = None
    sentences = list(found)
    more = len(sentences) - ERRORS_TOLD_MAX
    return sentences[:ERRORS_TOLD_MAX] + ([f"and {more:,} more ranges could not be read"] if more > 0 else [])
