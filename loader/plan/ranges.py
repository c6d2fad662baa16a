"""From next offsets and what the brokers hold to the offsets that this run reads. Pure.

Caps act here and nowhere later: what is planned is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.decide.state import BYTES_PER_KILO_OFFSET_UNSEEN, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.work_unit import OffsetRange

TRIED_AGAIN = "see that its brokers are up; the next load reads on"

HELD_BACK_MAX = 1_000_000
"""Offsets behind an open transaction before a run that has others to read says so: some minutes of a busy partition,
while transactions of usual length end within one. Where nothing is left to read the first one is worth a note, since
the transaction has then outlived the time between two runs."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The offsets `[start, end)` of a partition that this run reads. `previous` is as in a decided range."""

    partition: int
    previous: int | None
    start: int
    end: int
    leader_epoch: int
    bytes_estimate: int

    @property
    def has_news(self) -> bool:
        return self.end > self.start or (self.previous is not None and self.previous != self.start)


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What to read of one topic. `problems` are sentences, each about offsets that policy forbids to pass over.

    `topic_id` is the id to decide under; `starts_again` says that the topic was re-created.
    """

    topic_id: str
    starts_again: bool
    ranges: tuple[PlannedRange, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def topic_ranges(
    found: DiscoveredTopic, known: TopicState | None, *, lost_ground: str, range_bytes_max: int
) -> TopicRanges:
    """The ranges to read of a topic.

    Args:
        lost_ground: `fail` leaves offsets that vanished unread and says so; `earliest` declares a gap and goes on.
        range_bytes_max: cap of one range, by estimate.
    """
    topic_id = found.topic_id or (known.topic_id if known else "")
    starts_again = known is not None and topic_id != known.topic_id
    problems = [f"partition {number}: {reason}; {TRIED_AGAIN}" for number, reason in sorted(found.errors.items())]
    notes: list[str] = []
    if known is not None and starts_again:
        sentence = f"the topic was re-created (topic id {topic_id}, was {known.topic_id})"
        if lost_ground == "fail":
            problems.append(f"{sentence}; loader.lost_ground=earliest goes on with the new one")
            return TopicRanges(known.topic_id, False, (), tuple(problems))
        notes.append(f"{sentence}; reading the new one from its start")
    ranges = []
    for offsets in found.partitions:
        partition = None if known is None or starts_again else known.partitions.get(offsets.partition)
        planned, lost = _planned(offsets, partition, range_bytes_max)
        if offsets.held_back > (0 if planned.start == offsets.end else HELD_BACK_MAX):
            notes.append(_held_back_note(found.topic, offsets))
        if lost and lost_ground == "fail":
            problems.append(f"partition {offsets.partition}: {lost}; loader.lost_ground=earliest declares the gap")
            continue
        if lost:
            notes.append(f"partition {offsets.partition}: {lost}; declared as a gap")
        ranges.append(planned)
    return TopicRanges(topic_id, starts_again, tuple(ranges), tuple(problems), tuple(notes))


def _planned(offsets: PartitionOffsets, known: PartitionState | None, range_bytes_max: int) -> tuple[PlannedRange, str]:
    """The range of one partition, and "" or what was lost before it."""
    lost = ""
    start = offsets.start
    if known is not None:
        start = known.next_offset
        if start < offsets.start:
            lost = f"offsets {start} to {offsets.start - 1} were removed before they were read"
            start = offsets.start
        elif start > offsets.end:
            lost = f"the log ends at {offsets.end} although offsets up to {start - 1} were loaded"
            start = offsets.end
    weight = known.bytes_per_kilo_offset if known else BYTES_PER_KILO_OFFSET_UNSEEN
    end = min(offsets.end, start + max(1, range_bytes_max * 1000 // weight))
    planned = PlannedRange(
        partition=offsets.partition,
        previous=known.next_offset if known else None,
        start=start,
        end=end,
        leader_epoch=offsets.leader_epoch,
        bytes_estimate=(end - start) * weight // 1000,
    )
    return planned, lost


def _held_back_note(topic: str, offsets: PartitionOffsets) -> str:
    return (
        f"partition {offsets.partition}: an open transaction holds {offsets.held_back} offsets back (last stable "
        f"offset {offsets.end}, high watermark {offsets.high_watermark}); if it stays so, look for it with "
        f"kafka-transactions.sh find-hanging --topic {topic} --partition {offsets.partition}"
    )


def offset_ranges(topic: str, ranges: TopicRanges) -> list[OffsetRange]:
    """The ranges of a topic that hold something to read, as tasks take them."""
    return [
        OffsetRange(
            TopicPartition(topic, planned.partition),
            planned.start,
            planned.end,
            ranges.topic_id,
            planned.leader_epoch,
            planned.bytes_estimate,
        )
        for planned in ranges.ranges
        if planned.end > planned.start
    ]
