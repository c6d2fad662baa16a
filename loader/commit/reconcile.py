"""Determines which part of the tasks' results can be committed. Pure.

A commit must contain the offsets of a partition without holes, so the ranges of a partition can be committed only up to
the first incomplete one, including its beginning that was read. A file contains rows of several partitions: if one of
its ranges cannot be committed, the file is discarded, and so are all ranges in it. This is repeated until nothing
changes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from headrace.audit.count import HASH
from headrace.audit.window import SCATTERED_MS, WINDOWS_MAX
from headrace.loader.commit.commit import CommittedFile, CommittedRange, CountSeries, WindowCount
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.plan.ranges import BROKER_REMEDY, PlannedRange, TopicRanges
from headrace.loader.project.topic_projection import FUTURE_TIME, NULL_TIME, OUT_OF_RANGE_TIME, RECORD_TIME
from headrace.loader.work_unit import (
    FileKind,
    ImplausibleTimeCount,
    ImplausibleTimeKind,
    OffsetRange,
    RangeCounts,
    RangeResult,
    StagedFile,
    UnitResult,
    WorkUnit,
)

TIMES_OF_RECORDS = frozenset({RECORD_TIME, NULL_TIME, OUT_OF_RANGE_TIME, FUTURE_TIME})
NO_COUNTS = RangeCounts()
READ_AGAIN = (
    "nothing of it was committed and the next load reads it again; if this problem recurs, it is a defect of the loader"
)
SPACE_NEEDED = "its messages were not loaded; free space there or repair the disk, and the next load reads them again"


@dataclass(frozen=True, slots=True)
class ReconciledTopic:
    """The part of a topic's work that can be committed.

    `problems` need an action by the operator, `notes` do not. `time_sources` are the numbers of rows by the source of
    their event time (a field, or the record's timestamp). `by_reference` counts the messages that the C core left to
    Python.
    """

    ranges: tuple[CommittedRange, ...] = ()
    files: tuple[CommittedFile, ...] = ()
    audit: tuple[CountSeries, ...] = ()
    time_sources: Mapping[str, int] = field(default_factory=dict)
    implausible_times: tuple[ImplausibleTimeCount, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_reference: int = 0

    @property
    def counts(self) -> RangeCounts:
        return sum_counts(offsets.counts for offsets in self.ranges)


@dataclass(frozen=True, slots=True)
class _Piece:
    """An offset range that one task was to read, with the task's result for it."""

    task: int
    planned: OffsetRange
    result: RangeResult

    @property
    def is_whole(self) -> bool:
        return self.result.done.end == self.planned.end

    def is_in(self, task: int, file: StagedFile) -> bool:
        done = self.result.done
        return task == self.task and any(
            found.partition == done.topic_partition.partition and found.first < done.end and done.start <= found.last
            for found in file.ranges
        )


@dataclass(frozen=True, slots=True)
class _TaskFile:
    task: int
    file: StagedFile


def sum_counts(counts: Iterable[RangeCounts]) -> RangeCounts:
    total = dict.fromkeys((column.name for column in fields(RangeCounts)), 0)
    for one in counts:
        for name in total:
            total[name] += getattr(one, name)
    return RangeCounts(**total)


def reconcile(
    planned: Mapping[str, TopicRanges],
    units: Sequence[WorkUnit],
    results: Sequence[UnitResult],
    moved: Mapping[str, Collection[int]],
) -> dict[str, ReconciledTopic]:
    """Returns the committable part of each planned topic.

    Args:
        planned: by topic, the offset ranges that the run was to load.
        units: the work units; each has the parts of these ranges that one task was to read.
        results: the results that the tasks returned; a failed task may have none.
        moved: by topic, partitions that changed their leader during the read; their results are discarded.
    """
    by_task = {result.task: result for result in results}
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    files: dict[str, list[_TaskFile]] = defaultdict(list)
    failures: dict[str, dict[str, None]] = defaultdict(dict)
    for unit in units:
        result = by_task.get(unit.task)
        for file in result.files if result else ():
            files[file.topic].append(_TaskFile(unit.task, file))
        for piece, failure in _pieces(unit, result):
            topic = piece.planned.topic_partition.topic
            pieces[topic].append(piece)
            failures[topic].update({failure: None} if failure else {})
    return {
        topic: _reconcile_topic(ranges, pieces[topic], files[topic], tuple(failures[topic]), moved.get(topic, ()))
        for topic, ranges in planned.items()
    }


def _pieces(unit: WorkUnit, result: UnitResult | None) -> Iterator[tuple[_Piece, str]]:
    """Yields each range of a work unit with its result and an error text, which is "" if the result is usable. A range
    without a usable result gets an empty one.

    Args:
        result: the result of the unit's task, None if the task returned none.
    """
    disk_error = result.disk_error if result else ""
    returned = {(one.done.topic_partition, one.done.start): one for one in result.ranges} if result else {}
    for offsets in unit.ranges:
        found = returned.get((offsets.topic_partition, offsets.start))
        failure = ""
        if disk_error:
            failure = f"task {unit.task} {disk_error}; {SPACE_NEEDED}"
        elif found is None:
            failure = f"task {unit.task} returned nothing for {_name(offsets)}; {READ_AGAIN}"
        if found is None or failure:
            found = RangeResult(dataclasses.replace(offsets, end=offsets.start), NO_COUNTS)
        yield _Piece(unit.task, offsets, found), failure


def _reconcile_topic(
    ranges: TopicRanges,
    pieces: Sequence[_Piece],
    files: Sequence[_TaskFile],
    failures: Sequence[str],
    moved: Collection[int],
) -> ReconciledTopic:
    problems = [
        f"partition {number} changed its leader during the read; the next load reads it again"
        for number in sorted(moved)
    ]
    problems += failures
    problems += [
        f"{_name(piece.planned)}: {piece.result.error}; {_advice(piece)}" for piece in pieces if piece.result.error
    ]
    wrong = [piece for piece in pieces if piece.result.counts.total != _length(piece.result.done)]
    problems += [
        f"{_name(piece.planned)}: {piece.result.counts.total} of {_length(piece.result.done)} offsets accounted for; "
        f"{READ_AGAIN}"
        for piece in wrong
    ]
    wrong += [piece for piece in pieces if piece.planned.topic_partition.partition in moved]
    kept, kept_files = _whole(pieces, files, wrong)
    mismatch = _accounting(kept, kept_files)
    if mismatch:
        return ReconciledTopic(problems=(*problems, mismatch))
    by_partition: dict[int, list[_Piece]] = defaultdict(list)
    for piece in kept:
        by_partition[piece.planned.topic_partition.partition].append(piece)
    committed = tuple(
        _committed_range(offsets, by_partition[offsets.partition])
        for offsets in ranges.ranges
        if offsets.partition not in moved
    )
    time_sources = _time_sources(kept)
    audit, scattered = _series(kept)
    return ReconciledTopic(
        ranges=tuple(
            found
            for found in committed
            if found.end > found.start or found.previous not in (None, found.start) or found.replaced
        ),
        files=_committed_files(kept_files),
        audit=audit,
        time_sources=time_sources,
        implausible_times=_implausible_times(kept, scattered, time_sources),
        problems=tuple(problems),
        by_reference=sum(piece.result.by_reference for piece in kept),
    )


def _advice(piece: _Piece) -> str:
    """Returns the remedy for an offset range that was not read to its end, as text that ends a message.

    Args:
        piece: the range with the task's result.
    """
    stop = piece.result.corrupt_stop
    if stop is None:
        return BROKER_REMEDY
    at = piece.planned.topic_partition
    skip = f"headrace offsets skip {at.topic} {at.partition} {stop.offset}"
    replica = "no later offset is read. Elect another replica as leader, whose copy may be intact; else"
    if stop.next_offset < 0:
        return f"{replica} find the next readable offset, and skip the batch: {skip} --to OFFSET --reason TEXT"
    return (
        f"{replica} set loader.corrupt_batches for the topic, or skip this batch: "
        f"{skip} --to {stop.next_offset} --reason TEXT"
    )


def _whole(
    pieces: Sequence[_Piece], files: Sequence[_TaskFile], wrong: Sequence[_Piece]
) -> tuple[list[_Piece], list[_TaskFile]]:
    """Returns the pieces and files that can be committed: as many as possible, such that the pieces of each partition
    are contiguous from the first, and no file has rows of a piece that is left out.

    Args:
        pieces: the offset ranges that tasks read, with their results.
        files: the files that the tasks wrote.
        wrong: pieces that are left out in any case.
    """
    partitions: dict[int, list[_Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda piece: piece.planned.start):
        partitions[piece.planned.topic_partition.partition].append(piece)
    left_out: set[int] = {id(piece) for piece in wrong}
    kept_files = list(files)
    while True:
        before = len(left_out)
        for row in partitions.values():
            broken = False
            for piece in row:
                if broken:
                    left_out.add(id(piece))
                broken = broken or id(piece) in left_out or not piece.is_whole
        outside = [piece for piece in pieces if id(piece) in left_out]
        dropped = [one for one in kept_files if any(piece.is_in(one.task, one.file) for piece in outside)]
        gone = {id(one) for one in dropped}
        kept_files = [one for one in kept_files if id(one) not in gone]
        left_out |= {id(piece) for one in dropped for piece in pieces if piece.is_in(one.task, one.file)}
        if len(left_out) == before:
            return [piece for piece in pieces if id(piece) not in left_out], kept_files


def _accounting(pieces: Sequence[_Piece], files: Sequence[_TaskFile]) -> str:
    """Compares the number of rows in the files with the number that the results of the ranges state, by task and
    partition. Returns the first difference as a sentence, "" if they agree.

    Args:
        pieces: the offset ranges that can be committed, with their results.
        files: the files that can be committed.
    """
    for kind in FileKind:
        expected: dict[tuple[int, int], int] = defaultdict(int)
        for piece in pieces:
            counts = piece.result.counts
            batches_kept = sum(one.is_kept for one in piece.result.skipped)
            number = counts.records if kind is FileKind.DATA else counts.quarantined + batches_kept
            expected[(piece.task, piece.planned.topic_partition.partition)] += number
        found: dict[tuple[int, int], int] = defaultdict(int)
        for one in files:
            if one.file.kind is kind:
                for part in one.file.ranges:
                    found[(one.task, part.partition)] += part.records
        for task, partition in sorted({*expected, *found}):
            wanted, there = expected[(task, partition)], found[(task, partition)]
            if wanted != there:
                return (
                    f"partition {partition}: task {task} wrote {there} {kind.value} records and counted {wanted}; "
                    f"{READ_AGAIN}"
                )
    return ""


def _committed_range(planned: PlannedRange, pieces: Sequence[_Piece]) -> CommittedRange:
    """Merges the committable pieces of one partition into one range.

    Args:
        planned: the partition's offset range in the plan.
    """
    pieces = sorted(pieces, key=lambda piece: piece.planned.start)
    gaps = [gap for piece in pieces for gap in piece.result.gaps]
    due = planned.previous if planned.diverged_at is None else planned.diverged_at
    if due is not None and due < planned.start:
        gaps.insert(0, (due, planned.start))
    return CommittedRange(
        partition=planned.partition,
        previous=planned.previous,
        start=planned.start,
        end=max((piece.result.done.end for piece in pieces), default=planned.start),
        leader_epoch=planned.leader_epoch,
        counts=sum_counts(piece.result.counts for piece in pieces),
        gaps=tuple(gaps),
        bytes_read=sum(piece.result.bytes_read for piece in pieces),
        epochs=functools.reduce(ReadEpochs.followed_by, (piece.result.epochs for piece in pieces), NO_EPOCHS),
        diverged_at=planned.diverged_at,
        incarnation=planned.incarnation,
        skipped=tuple(one for piece in pieces for one in piece.result.skipped),
    )


def _committed_files(files: Sequence[_TaskFile]) -> tuple[CommittedFile, ...]:
    numbers: dict[tuple[int, FileKind, str], int] = defaultdict(int)
    committed = []
    for one in sorted(files, key=lambda one: (one.task, one.file.path)):
        file = one.file
        number = numbers[(one.task, file.kind, file.time_partition)]
        numbers[(one.task, file.kind, file.time_partition)] += 1
        name = f"{one.task}-{number}.avro"
        committed.append(
            CommittedFile(
                file.kind, file.time_partition, name, file.path, file.length, file.checksum, file.records, file.ranges
            )
        )
    return tuple(committed)


def _series(pieces: Sequence[_Piece]) -> tuple[tuple[CountSeries, ...], Mapping[int, int]]:
    """Returns the message counts by tier, outcome, partition and window. Also returns, by window, the number of
    messages that were moved from it to the window "scattered".

    The audit limits the windows of a commit: beyond the limit, those with the fewest messages are merged into
    "scattered". The tasks apply the same limit, but a commit merges the windows of up to a thousand ranges.

    Args:
        pieces: the offset ranges to commit, with the counts in their results.
    """
    read: dict[int, int] = defaultdict(int)
    for piece in pieces:
        for row in piece.result.audit:
            if row.window_start_ms >= 0:
                read[row.window_start_ms] += row.count if row.tier == "broker" else 0
    scattered = set(sorted(read, key=lambda start_ms: (-read[start_ms], start_ms))[WINDOWS_MAX:])
    sums: dict[tuple[str, str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for piece in pieces:
        for row in piece.result.audit:
            start_ms = SCATTERED_MS if row.window_start_ms in scattered else row.window_start_ms
            total = sums[row.tier, row.outcome, row.partition][start_ms]
            total[0] += row.count
            total[1] += row.bytes
            total[2] = (total[2] + row.fingerprint) % 2**64
    series = tuple(
        CountSeries(*key, tuple(WindowCount(start_ms, *total) for start_ms, total in sorted(windows.items())), HASH)
        for key, windows in sorted(sums.items())
    )
    return series, {start_ms: read[start_ms] for start_ms in sorted(scattered)}


def _implausible_times(
    pieces: Sequence[_Piece], scattered: Mapping[int, int], time_sources: Mapping[str, int]
) -> tuple[ImplausibleTimeCount, ...]:
    """Adds up the implausible event times that the tasks reported, by kind, time source and unit. Adds the messages
    that `_series` moved to the window "scattered", under the time field that most rows have, or the record's timestamp
    if none has a time field.

    Args:
        pieces: the offset ranges to commit, with their results.
        scattered: by window, the number of messages that were moved.
        time_sources: by time source, the number of rows.
    """
    notes = [one for piece in pieces for one in piece.result.implausible_times]
    if scattered:
        fields = [name for name in time_sources if name not in TIMES_OF_RECORDS]
        source = max(fields, key=lambda name: time_sources[name], default=RECORD_TIME)
        notes.append(
            ImplausibleTimeCount(
                ImplausibleTimeKind.SCATTERED, source, "", sum(scattered.values()), next(iter(scattered))
            )
        )
    sums: dict[tuple[ImplausibleTimeKind, str, str], list[int]] = {}
    for one in notes:
        sums.setdefault((one.kind, one.source, one.unit), [0, one.value])[0] += one.messages
    return tuple(ImplausibleTimeCount(*key, messages, value) for key, (messages, value) in sorted(sums.items()))


def _time_sources(pieces: Sequence[_Piece]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for piece in pieces:
        for source, number in piece.result.time_sources.items():
            total[source] += number
    return dict(total)


def _length(offsets: OffsetRange) -> int:
    return offsets.end - offsets.start


def _name(offsets: OffsetRange) -> str:
    return f"partition {offsets.topic_partition.partition} [{offsets.start}, {offsets.end})"
