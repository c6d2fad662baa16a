"""Chooses the offsets that this run reads, from the next offsets in the commit log and the offsets on the brokers.
Pure.

Size limits apply here and not later: a task does not end a range early because of its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import BYTES_PER_KILO_OFFSET_DEFAULT, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, PartitionOffsets
from headrace.loader.work_unit import OffsetRange

BROKER_REMEDY = "check that its brokers are up; the next load continues"
PERMISSION_REMEDY = "allow the loader's Kafka user to describe and read the topic; the next load continues"

HELD_BACK_MAX = 1_000_000
"""Number of unreadable offsets after the start of an open transaction, above which the report has a note. A busy
partition gets this many offsets in some minutes, and transactions usually end within one minute. If the partition has
nothing else to read, a single such offset causes the note: the transaction then holds back everything that came since
the last run."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The offsets `[start, end)` of a partition that this run reads.

    `previous` is the offset from which reading was to continue, None to read from the log start offset. `start` differs
    from it if offsets were deleted, if the log has diverged or was truncated, or if it ends before a start offset that
    was set. `diverged_at` is the offset from which the log was truncated or differs from the log that was loaded, None
    if neither happened; `incarnation` counts these cases for the partition.
    """

    partition: int
    previous: int | None
    start: int
    end: int
    leader_epoch: int
    bytes_estimate: int
    diverged_at: int | None = None
    incarnation: int = 0

    @property
    def has_changes(self) -> bool:
        moved = self.previous not in (None, self.start)
        return self.end > self.start or moved or self.diverged_at is not None


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """The ranges of one topic. `problems` are sentences about partitions that are not read: their offsets could not be
    fetched, or `on_data_loss` is `fail` and offsets are lost or the topic was re-created.

    `topic_id` is the id to commit. `starts_again` means that the topic was re-created and its log is read from the
    start, which needs `on_data_loss` to be `skip`. `continues` means that the topic counts as the same although
    `topic_id` differs from the committed one: the brokers have begun to report topic ids, or they report none and the
    log of a partition has diverged (`topic_id` is "" then).
    """

    topic_id: str
    starts_again: bool
    ranges: tuple[PlannedRange, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    continues: bool = False


def topic_ranges(
    found: DiscoveredTopic,
    known: TopicState | None,
    starts: Mapping[int, int],
    *,
    on_data_loss: str,
    range_bytes_max: int,
) -> TopicRanges:
    """Returns the ranges of a topic that this run reads.

    Args:
        found: the topic on the brokers.
        known: the topic's state after the last load, None if it has no commit.
        starts: start offsets, by partition, for partitions without loaded offsets; the default is the log start offset.
            Ignored if the topic was re-created.
        on_data_loss: `fail` leaves a partition unread if offsets vanished or were replaced, and the whole topic if it
            was re-created, and reports it; `skip` continues with the offsets that exist.
        range_bytes_max: limit of one range, estimated.
    """
    topic_id = found.topic_id or (known.topic_id if known else "")
    # If the topic had no id before, a new id does not mean another topic: the leader epochs show whether the log is the
    # same.
    starts_again = known is not None and known.topic_id not in ("", topic_id)
    problems = [f"partition {number}: {reason}; {remedy_of(reason)}" for number, reason in sorted(found.errors.items())]
    notes: list[str] = []
    if known is not None and starts_again:
        sentence = f"the topic was re-created (topic id {topic_id}, was {known.topic_id})"
        if on_data_loss == "fail":
            problems.append(f"{sentence}; set loader.on_data_loss=skip to load the new topic")
            return TopicRanges(known.topic_id, False, (), tuple(problems))
        notes.append(f"{sentence}; reading the new topic from its start")
    ranges = []
    for offsets in found.partitions:
        partition = None if known is None or starts_again else known.partitions.get(offsets.partition)
        start_offset = None if starts_again else starts.get(offsets.partition)
        planned, loss = _planned_range(offsets, partition, start_offset, range_bytes_max)
        if offsets.held_back > (0 if planned.start == offsets.end else HELD_BACK_MAX):
            notes.append(_held_back_note(found.topic, offsets))
        if loss and on_data_loss == "fail":
            problems.append(
                f"partition {offsets.partition}: {loss.description}; loader.on_data_loss=skip {loss.skip_effect}"
            )
            continue
        if loss:
            notes.append(f"partition {offsets.partition}: {loss.description}; {loss.applied_effect}")
        ranges.append(planned)
    if not found.topic_id and any(planned.diverged_at is not None for planned in ranges):
        topic_id = ""  # the topic may have been re-created, and would seem re-created again once its new id is reported
    continues = known is not None and not starts_again and topic_id != known.topic_id
    return TopicRanges(topic_id, starts_again, tuple(ranges), tuple(problems), tuple(notes), continues)


def remedy_of(reason: str) -> str:
    """Returns the remedy for a topic or partition that the brokers cannot serve, as text that ends a message.

    Args:
        reason: the error, with Kafka's name of the error code if a broker returned one.
    """
    return PERMISSION_REMEDY if "AUTHORIZATION_FAILED" in reason else BROKER_REMEDY


@dataclass(frozen=True, slots=True)
class _DataLoss:
    """Data loss in a partition: its log lacks offsets that are to be loaded next, or loaded messages that it should
    still have. `skip_effect` is the effect that `on_data_loss=skip` would have, and `applied_effect` the effect that it
    had."""

    description: str
    skip_effect: str
    applied_effect: str


def _planned_range(
    offsets: PartitionOffsets, known: PartitionState | None, start_offset: int | None, range_bytes_max: int
) -> tuple[PlannedRange, _DataLoss | None]:
    """Returns the range of one partition that this run reads, and the loss of offsets, None if there is none.

    Args:
        offsets: the partition's offsets on the brokers.
        known: the partition's state after the last load, None if nothing was loaded.
        start_offset: the start offset to use if nothing was loaded; None for the log start offset.
        range_bytes_max: limit of the range, estimated.
    """
    loss, diverged_at = None, None
    previous = known.next_offset if known else start_offset
    start = offsets.start if previous is None else previous
    if known is not None:
        shared_end = same_log_end(offsets, known)
        if shared_end < known.next_offset:
            start = diverged_at = shared_end
            loss = _divergence_loss(offsets, known, shared_end) if known.has_rows_from(shared_end) else None
    elif previous is not None and previous > offsets.high_watermark:
        description = f"the log ends at {offsets.high_watermark}, before the next offset {previous}"
        start = offsets.end
        loss = _DataLoss(description, f"begins at offset {start}", f"the load begins at offset {start}")
    if start < offsets.start:
        removed = f"offsets {start} to {offsets.start - 1} were removed before they were read"
        description = f"{loss.description}, and {removed}" if loss else removed
        loss = _DataLoss(description, "records the gap and continues", "recorded as a gap")
        start = offsets.start
    bytes_per_kilo_offset = known.bytes_per_kilo_offset if known else BYTES_PER_KILO_OFFSET_DEFAULT
    # The new log may be readable to a lower offset than the shared end, if it has an open transaction.
    end = max(start, min(offsets.end, start + max(1, range_bytes_max * 1000 // bytes_per_kilo_offset)))
    planned = PlannedRange(
        partition=offsets.partition,
        previous=previous,
        start=start,
        end=end,
        leader_epoch=offsets.leader_epoch,
        bytes_estimate=(end - start) * bytes_per_kilo_offset // 1000,
        diverged_at=diverged_at,
        incarnation=(known.incarnation if known else 0) + (diverged_at is not None),
    )
    return planned, loss


def same_log_end(offsets: PartitionOffsets, known: PartitionState) -> int:
    """Returns the offset up to which the log still has the batches of the last load; at most the next offset to load.

    The log counts as unchanged up to its end if `offsets.shared_end` is None: nothing indicated a divergence, or the
    brokers gave no result.

    Args:
        offsets: the partition's offsets on the brokers.
        known: the partition's state after the last load.
    """
    if offsets.shared_end is not None:
        return offsets.shared_end
    return min(known.next_offset, offsets.end)


def _divergence_loss(offsets: PartitionOffsets, known: PartitionState, shared_end: int) -> _DataLoss:
    last, log_end = known.next_offset - 1, offsets.high_watermark
    if log_end < known.next_offset:
        description = f"the log ends at {log_end}, and offsets up to {last} were loaded"
        description += f"; it is unchanged only up to {shared_end}" if shared_end < log_end else ""
    else:
        description = (
            f"offsets {shared_end} to {last} were loaded and are no longer in the log, which was truncated and grew "
            f"again (leader epoch {offsets.leader_epoch}, was {known.leader_epoch})"
        )
    return _DataLoss(description, f"resumes at offset {shared_end}", f"resumed at offset {shared_end}")


def _held_back_note(topic: str, offsets: PartitionOffsets) -> str:
    return (
        f"partition {offsets.partition}: an open transaction holds {offsets.held_back} offsets back (last stable "
        f"offset {offsets.end}, high watermark {offsets.high_watermark}); if it stays so, look for it with "
        f"kafka-transactions.sh find-hanging --topic {topic} --partition {offsets.partition}"
    )


def offset_ranges(topic: str, ranges: TopicRanges) -> list[OffsetRange]:
    """Returns the non-empty ranges of a topic as `OffsetRange`, the type that tasks use."""
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
