"""An operator's word on next offsets, as the commit that it becomes. Pure.

A partition of which something was loaded only goes forward, and what it passes over is a declared gap: going back would
load rows twice. One of which nothing was loaded may be given any start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.loader.commit.commit import Commit, CommitKind, CommittedRange, StartOffset, TopicCommit
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.errors import OffsetsRefused
from headrace.loader.work_unit import RangeCounts, SkippedOffsets

LOOK = "headrace offsets show has the next offsets"
NOT_BACK = (
    "going back would load its rows twice. A backfill, which reads offsets again into new files and then exchanges "
    "them, is the way to read what is already loaded"
)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The log of a partition holds offsets `[start, end)`, and its leader has this epoch.

    `shared_end` is up to where it is the log that was read, None where that was not asked or could not be told.
    """

    start: int
    end: int
    leader_epoch: int = -1
    shared_end: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition: where it was (None: nothing was said yet) and where it goes on."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`gaps` are moves that pass over offsets, `starts` are of partitions of which nothing was loaded, and `left` says
    of what stays as it is, why. `leader_epoch` is the one under which what is passed over is known to be of the log
    that was read."""

    gaps: tuple[Moved, ...] = ()
    starts: tuple[Moved, ...] = ()
    left: tuple[str, ...] = ()
    reason: str = ""
    leader_epoch: int = -1

    @property
    def moved(self) -> tuple[Moved, ...]:
        return (*self.gaps, *self.starts)


def skip(
    state: LoaderState, topic: str, partition: int, offset: int, to: int, reason: str, bounds: LogBounds | None
) -> Choice:
    """Passes over the offsets `[offset, to)`, which must be the next ones.

    Args:
        bounds: None where the brokers were not asked.

    Raises:
        OffsetsRefused: they are not the next ones, or there are none so far, or they are of another log than was read.
    """
    if not reason.strip():
        raise OffsetsRefused("--reason: expected why these offsets are not loaded; the commit keeps it")
    known = state.topics.get(topic)
    found = known.partitions.get(partition) if known else None
    if found is None:
        raise OffsetsRefused(
            f"nothing of partition {partition} of topic {topic!r} was loaded, so there is nothing to pass over; "
            f"headrace offsets set {topic} {partition} {to} says where its first load begins"
        )
    if found.next_offset != offset:
        raise OffsetsRefused(
            f"partition {partition} of topic {topic} goes on at offset {found.next_offset}, not at {offset}; {LOOK}"
        )
    if to <= offset:
        raise OffsetsRefused(f"--to {to}: expected an offset after {offset}")
    _check_end(topic, partition, to, bounds)
    leader_epoch = found.leader_epoch
    if bounds is not None and bounds.shared_end is not None:
        if bounds.shared_end < found.next_offset:
            raise OffsetsRefused(
                f"the log of partition {partition} of topic {topic} is the one that was read only up to "
                f"{bounds.shared_end}, so {offset} is not where to go on; load first, which says what to do"
            )
        leader_epoch = bounds.leader_epoch
    return Choice(gaps=(Moved(topic, partition, offset, to),), reason=reason.strip(), leader_epoch=leader_epoch)


def set_next(
    state: LoaderState, topic: str, partition: int, offset: int, reason: str, bounds: LogBounds | None
) -> Choice:
    """Has a partition go on, or begin, at an offset.

    Raises:
        OffsetsRefused: that would be back, or where the log does not reach.
    """
    known = state.topics.get(topic)
    found = known.partitions.get(partition) if known else None
    if found is None:
        _check_end(topic, partition, offset, bounds)
        return starts(state, {topic: {partition: offset}}, reason)
    if offset == found.next_offset:
        return Choice(left=(f"partition {partition} of topic {topic} goes on at {offset} already",), reason=reason)
    if offset < found.next_offset:
        raise OffsetsRefused(
            f"partition {partition} of topic {topic} is loaded up to offset {found.next_offset}: {NOT_BACK}"
        )
    return skip(state, topic, partition, found.next_offset, offset, reason, bounds)


def starts(state: LoaderState, wanted: Mapping[str, Mapping[int, int]], reason: str) -> Choice:
    """Where partitions begin, by topic and partition; those of which something was loaded are left alone."""
    moved, left = [], []
    for topic, offsets in sorted(wanted.items()):
        known = state.topics.get(topic)
        for partition, offset in sorted(offsets.items()):
            found = known.partitions.get(partition) if known else None
            before = state.starts.get(topic, {}).get(partition)
            if found is not None:
                left.append(f"partition {partition} of topic {topic} is loaded up to offset {found.next_offset}")
            elif before == offset:
                left.append(f"partition {partition} of topic {topic} begins at {offset} already")
            else:
                moved.append(Moved(topic, partition, before, offset))
    return Choice(starts=tuple(moved), left=tuple(left), reason=reason)


def commit_of(choice: Choice, state: LoaderState, *, run_id: str, now_ms: int, build: str) -> Commit:
    """The offer that the choice becomes."""
    topics: dict[str, TopicCommit] = {}
    for move in choice.gaps:
        topics[move.topic] = _gap(state.topics[move.topic], move, choice)
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


def _gap(known: TopicState, move: Moved, choice: Choice) -> TopicCommit:
    assert move.before is not None, "a gap begins at the next offset"
    passed = SkippedOffsets(move.before, move.after, choice.reason)
    return TopicCommit(
        topic_id=known.topic_id,
        topic_id_before=known.topic_id,
        revision_before=known.load_schema.revision,
        table=known.table,
        directory=known.directory,
        partition_by=known.partition_by,
        load_schema=None,
        ranges=(
            CommittedRange(
                partition=move.partition,
                previous=move.before,
                start=move.after,
                end=move.after,
                leader_epoch=choice.leader_epoch,
                counts=RangeCounts(),
                gaps=((move.before, move.after),),
                bytes_read=0,
                incarnation=known.partitions[move.partition].incarnation,
                skipped=(passed,),
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
            f"partition {partition} of topic {topic} ends at offset {bounds.end}, so it cannot go on at {offset}"
        )
