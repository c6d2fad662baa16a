"""Builds the commit for next offsets set by an operator. Pure.

For a partition with loaded offsets, the next offset can only increase, and the skipped offsets become a recorded gap: a
lower next offset would load rows twice. A partition without loaded offsets may start at any offset of its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.loader.commit.commit import Commit, CommitKind, CommittedRange, StartOffset, TopicCommit
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.errors import OffsetsRefused
from headrace.loader.work_unit import RangeCounts, SkippedOffsets

SHOW_HINT = "headrace offsets show lists the next offsets"
REWIND_REFUSED = (
    "moving back would load its rows twice. To read loaded offsets again, use `headrace backfill`, which replaces "
    "their files"
)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets `[start, end)` of a partition's log that can be read now, with the epoch of its leader. `end` is the
    last stable offset.

    `shared_end` is the offset up to which the log is the same as at the last load; None if that was not checked or is
    unknown.
    """

    start: int
    end: int
    leader_epoch: int = -1
    shared_end: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of one partition: its next offset before (None if there was none) and after."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """The changes of next offsets that an operator has chosen. Partitions with loaded offsets can only skip offsets;
    others get a start offset.

    `gaps` are the skips, `starts` the start offsets, and `left` are sentences about partitions that stay unchanged.
    `leader_epoch` belongs to the partition that skips offsets: the present leader's epoch if its log was checked for
    divergence, otherwise the epoch at the last load. It is -1 if that is unknown or nothing is skipped.
    """

    gaps: tuple[OffsetChange, ...] = ()
    starts: tuple[OffsetChange, ...] = ()
    left: tuple[str, ...] = ()
    reason: str = ""
    leader_epoch: int = -1

    @property
    def changes(self) -> tuple[OffsetChange, ...]:
        return (*self.gaps, *self.starts)


def skip(
    state: LoaderState, topic: str, partition: int, offset: int, to: int, reason: str, bounds: LogBounds | None
) -> OffsetChoice:
    """Returns the change that skips the offsets `[offset, to)`. `offset` must be the partition's next offset.

    Args:
        state: state of the commit log.
        reason: why the offsets are not loaded; stored in the commit.
        bounds: the offsets on the brokers; None if they were not fetched.

    Raises:
        OffsetsRefused: `offset` is not the next offset, nothing was loaded, `to` is not after `offset` or is after the
            end of the log, the log has diverged, or `reason` is blank.
    """
    if not reason.strip():
        raise OffsetsRefused(
            "--reason: expected the reason why these offsets are not loaded; it is stored in the commit"
        )
    topic_state = state.topics.get(topic)
    partition_state = topic_state.partitions.get(partition) if topic_state else None
    if partition_state is None:
        raise OffsetsRefused(
            f"nothing of partition {partition} of topic {topic!r} was loaded, so there is nothing to skip; "
            f"headrace offsets set {topic} {partition} {to} sets its start offset"
        )
    if partition_state.next_offset != offset:
        raise OffsetsRefused(
            f"the next load of partition {partition} of topic {topic} continues at offset "
            f"{partition_state.next_offset}, not at {offset}; {SHOW_HINT}"
        )
    if to <= offset:
        raise OffsetsRefused(f"--to {to}: expected an offset after {offset}, the partition's next offset")
    _check_end(topic, partition, to, bounds)
    leader_epoch = partition_state.leader_epoch
    if bounds is not None and bounds.shared_end is not None:
        if bounds.shared_end < partition_state.next_offset:
            raise OffsetsRefused(
                f"the log of partition {partition} of topic {topic} diverged at offset {bounds.shared_end}, before the "
                f"next offset {offset}; run headrace load first, which reports the remedy"
            )
        leader_epoch = bounds.leader_epoch
    return OffsetChoice(
        gaps=(OffsetChange(topic, partition, offset, to),), reason=reason.strip(), leader_epoch=leader_epoch
    )


def set_next_offset(
    state: LoaderState, topic: str, partition: int, offset: int, reason: str, bounds: LogBounds | None
) -> OffsetChoice:
    """Returns the change with which a partition continues at this offset, or begins there if nothing was loaded.
    Nothing changes if that is so already.

    Args:
        state: state of the commit log.
        reason: why the offset is set; stored in the commit. Must not be blank if offsets are skipped.
        bounds: the offsets on the brokers; None if they were not fetched.

    Raises:
        OffsetsRefused: the offset is before the next offset, or after the end of the log. If offsets are skipped, also
            if the log has diverged or `reason` is blank.
    """
    topic_state = state.topics.get(topic)
    partition_state = topic_state.partitions.get(partition) if topic_state else None
    if partition_state is None:
        _check_end(topic, partition, offset, bounds)
        return starts(state, {topic: {partition: offset}}, reason)
    if offset == partition_state.next_offset:
        return OffsetChoice(
            left=(f"partition {partition} of topic {topic} already continues at {offset}",), reason=reason
        )
    if offset < partition_state.next_offset:
        raise OffsetsRefused(
            f"partition {partition} of topic {topic} cannot continue at offset {offset}, because it is loaded up to "
            f"offset {partition_state.next_offset}: {REWIND_REFUSED}"
        )
    return skip(state, topic, partition, partition_state.next_offset, offset, reason, bounds)


def starts(state: LoaderState, wanted: Mapping[str, Mapping[int, int]], reason: str) -> OffsetChoice:
    """Returns the changes that set the start offsets `wanted`, given by topic and partition. Partitions with loaded
    offsets stay unchanged.

    Args:
        state: state of the commit log.
        reason: why the offsets are chosen; stored in the commit.
    """
    changes, left = [], []
    for topic, offsets in sorted(wanted.items()):
        topic_state = state.topics.get(topic)
        for partition, offset in sorted(offsets.items()):
            partition_state = topic_state.partitions.get(partition) if topic_state else None
            before = state.starts.get(topic, {}).get(partition)
            if partition_state is not None:
                left.append(
                    f"partition {partition} of topic {topic} has loaded offsets, so its start offset cannot be set; "
                    f"loads continue at {partition_state.next_offset}"
                )
            elif before == offset:
                left.append(f"partition {partition} of topic {topic} already has the start offset {offset}")
            else:
                changes.append(OffsetChange(topic, partition, before, offset))
    return OffsetChoice(starts=tuple(changes), left=tuple(left), reason=reason)


def commit_of(choice: OffsetChoice, state: LoaderState, *, run_id: str, now_ms: int, build: str) -> Commit:
    """Returns the commit that sets the next offsets or start offsets in `choice`.

    Args:
        state: the state of the commit log from which the choice was made.
        run_id: the run id of the commit.
        now_ms: the time of the commit.
        build: the build of this installation, stored in the commit.
    """
    topics: dict[str, TopicCommit] = {}
    for change in choice.gaps:
        topics[change.topic] = _gap(state.topics[change.topic], change, choice)
    return Commit(
        0,
        CommitKind.OFFSETS,
        run_id,
        now_ms,
        build,
        topics,
        frozenset(),
        reason=choice.reason,
        starts=tuple(StartOffset(one.topic, one.partition, one.after) for one in choice.starts),
        planned_after=state.commit_number,
    )


def _gap(topic_state: TopicState, change: OffsetChange, choice: OffsetChoice) -> TopicCommit:
    assert change.before is not None, "a gap begins at the next offset"
    skipped = SkippedOffsets(change.before, change.after, choice.reason)
    return TopicCommit(
        topic_id=topic_state.topic_id,
        topic_id_before=topic_state.topic_id,
        revision_before=topic_state.load_schema.revision,
        table=topic_state.table,
        directory=topic_state.directory,
        partition_by=topic_state.partition_by,
        load_schema=None,
        ranges=(
            CommittedRange(
                partition=change.partition,
                previous=change.before,
                start=change.after,
                end=change.after,
                leader_epoch=choice.leader_epoch,
                counts=RangeCounts(),
                gaps=((change.before, change.after),),
                bytes_read=0,
                incarnation=topic_state.partitions[change.partition].incarnation,
                skipped=(skipped,),
            ),
        ),
        files=(),
        audit=(),
        time_sources={},
        foreign_ids=frozenset(),
    )


def _check_end(topic: str, partition: int, offset: int, bounds: LogBounds | None) -> None:
    if bounds is not None and offset > bounds.end:
        raise OffsetsRefused(
            f"partition {partition} of topic {topic} ends at offset {bounds.end}, so the load cannot continue "
            f"at {offset}; choose an offset up to {bounds.end}"
        )
