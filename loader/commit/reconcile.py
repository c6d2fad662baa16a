"""Determines which part of the tasks' results can be committed. Pure.

A commit must contain the offsets of a partition without holes, so the ranges of a partition can be committed only up to
the first incomplete one, including its beginning that was read. A file contains rows of several partitions: if one of
its ranges cannot be committed, the file is discarded, and so are all ranges in it. This is repeated until nothing
changes.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from headrace.audit.count import HASH
from headrace.audit.latency import SLICES, WindowTimes
from headrace.audit.window import SCATTERED_MS, SPECIAL_WINDOWS, WINDOW_MS, WINDOWS_MAX
from headrace.loader.commit.commit import CommittedFile, CommittedRange, CountSeries, WindowCount
from headrace.loader.epochs import NO_EPOCHS, ReadEpochs
from headrace.loader.plan.ranges import PlannedRange, TopicRanges, remedy_of
from headrace.loader.project.topic_projection import FUTURE_TIME, NO_TIME, OUT_OF_RANGE_TIME, RECORD_TIME
from headrace.loader.work_unit import (
    AuditCount,
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

RECORD_TIME_SOURCES = frozenset({RECORD_TIME, NO_TIME, OUT_OF_RANGE_TIME, FUTURE_TIME})
NO_COUNTS = RangeCounts()
REREAD_REMEDY = (
    "nothing of it was committed and the next load reads it again; if this problem recurs, it is a defect of the loader"
)
REREAD_RANGE_REMEDY = "the next load reads the rest of the range again"
DISK_REMEDY = "its messages were not loaded; free space there or repair the disk, and the next load reads them again"


@dataclass(frozen=True, slots=True)
class ReconciledTopic:
    """The part of a topic's work that can be committed.

    `problems` need an action by the operator, `notes` do not. `time_sources` are the numbers of rows by the source of
    their event time (a field, or the record's timestamp). `by_reference` counts the messages that the C core left to
    Python, `quarantine_codes` the quarantine rows by code.
    """

    ranges: tuple[CommittedRange, ...] = ()
    files: tuple[CommittedFile, ...] = ()
    audit: tuple[CountSeries, ...] = ()
    time_sources: Mapping[str, int] = field(default_factory=dict)
    implausible_times: tuple[ImplausibleTimeCount, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_reference: int = 0
    quarantine_codes: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> RangeCounts:
        return sum_counts(offsets.counts for offsets in self.ranges)


@dataclass(frozen=True, slots=True)
class _TaskRange:
    """An offset range that one task was to read, with the task's result for it."""

    task: int
    planned: OffsetRange
    result: RangeResult

    @property
    def is_complete(self) -> bool:
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
    new_leaders: Mapping[str, Collection[int]],
) -> dict[str, ReconciledTopic]:
    """Returns the committable part of each planned topic.

    Args:
        planned: by topic, the offset ranges that the run was to load.
        units: the work units; each has the parts of these ranges that one task was to read.
        results: the results that the tasks returned; a failed task may have none.
        new_leaders: by topic, partitions that changed their leader during the read; their results are discarded.
    """
    by_task = {result.task: result for result in results}
    task_ranges: dict[str, list[_TaskRange]] = defaultdict(list)
    files: dict[str, list[_TaskFile]] = defaultdict(list)
    failures: dict[str, dict[str, None]] = defaultdict(dict)
    for unit in units:
        result = by_task.get(unit.task)
        for file in result.files if result else ():
            files[file.topic].append(_TaskFile(unit.task, file))
        for task_range, failure in _task_ranges(unit, result):
            topic = task_range.planned.topic_partition.topic
            task_ranges[topic].append(task_range)
            failures[topic].update({failure: None} if failure else {})
    return {
        topic: _reconcile_topic(
            ranges, task_ranges[topic], files[topic], tuple(failures[topic]), new_leaders.get(topic, ())
        )
        for topic, ranges in planned.items()
    }


def _task_ranges(unit: WorkUnit, result: UnitResult | None) -> Iterator[tuple[_TaskRange, str]]:
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
            failure = f"task {unit.task} {disk_error}; {DISK_REMEDY}"
        elif found is None:
            failure = f"task {unit.task} returned nothing for {_range_name(offsets)}; {REREAD_REMEDY}"
        if found is None or failure:
            found = RangeResult(dataclasses.replace(offsets, end=offsets.start), NO_COUNTS)
        yield _TaskRange(unit.task, offsets, found), failure


def _reconcile_topic(
    ranges: TopicRanges,
    task_ranges: Sequence[_TaskRange],
    files: Sequence[_TaskFile],
    failures: Sequence[str],
    new_leaders: Collection[int],
) -> ReconciledTopic:
    problems = [
        f"partition {number} changed its leader during the read; the next load reads it again"
        for number in sorted(new_leaders)
    ]
    problems += failures
    log_starts = {one.partition: one.start for one in ranges.ranges if one.previous is None}
    problems += [
        f"{_range_name(task_range.planned)}: {task_range.result.error}{_effect(task_range)}; "
        f"{_remedy(task_range, log_starts)}"
        for task_range in task_ranges
        if task_range.result.error
    ]
    rejected = [
        task_range for task_range in task_ranges if task_range.result.counts.total != _length(task_range.result.done)
    ]
    problems += [
        f"{_range_name(task_range.planned)}: {task_range.result.counts.total} of {_length(task_range.result.done)} "
        f"offsets accounted for; {REREAD_REMEDY}"
        for task_range in rejected
    ]
    rejected += [
        task_range for task_range in task_ranges if task_range.planned.topic_partition.partition in new_leaders
    ]
    committable, committable_files = _committable(task_ranges, files, rejected)
    mismatch = _row_count_mismatch(committable, committable_files)
    if mismatch:
        return ReconciledTopic(problems=(*problems, mismatch))
    by_partition: dict[int, list[_TaskRange]] = defaultdict(list)
    for task_range in committable:
        by_partition[task_range.planned.topic_partition.partition].append(task_range)
    committed = tuple(
        _committed_range(offsets, by_partition[offsets.partition])
        for offsets in ranges.ranges
        if offsets.partition not in new_leaders
    )
    time_sources = _sums(task_range.result.time_sources for task_range in committable)
    audit, scattered = _count_series(committable)
    return ReconciledTopic(
        ranges=tuple(
            found
            for found in committed
            if found.end > found.start or found.previous not in (None, found.start) or found.replaced
        ),
        files=_committed_files(committable_files),
        audit=audit,
        time_sources=time_sources,
        implausible_times=_implausible_times(committable, scattered, time_sources),
        problems=tuple(problems),
        by_reference=sum(task_range.result.by_reference for task_range in committable),
        quarantine_codes=_sums(task_range.result.quarantine_codes for task_range in committable),
    )


def _effect(task_range: _TaskRange) -> str:
    return "" if task_range.result.corrupt_stop is None else ", so no later offset is read"


def _remedy(task_range: _TaskRange, log_starts: Mapping[int, int]) -> str:
    """Returns the remedy for an offset range that was not read to its end, as text that ends a message.

    Args:
        task_range: the range with the task's result.
        log_starts: the first offset of each partition that was never loaded. `headrace offsets skip` rejects these
            partitions; their start offset can be set.
    """
    stop = task_range.result.corrupt_stop
    if stop is None:
        return remedy_of(task_range.result.error) if task_range.result.is_broker_error else REREAD_RANGE_REMEDY
    topic_partition = task_range.planned.topic_partition
    partition = f"{topic_partition.topic} {topic_partition.partition}"
    to = "OFFSET" if stop.next_offset < 0 else str(stop.next_offset)
    skip = f"headrace offsets skip {partition} {stop.offset} --to {to} --reason TEXT"
    if log_starts.get(topic_partition.partition) == stop.offset:
        skip = f"headrace offsets set {partition} {to}"
    replica = "elect another replica as leader, whose copy may be intact; else"
    if stop.next_offset < 0:
        return f"{replica} find the next readable offset, and skip the batch: {skip}"
    return f"{replica} set loader.corrupt_batches for the topic, or skip this batch: {skip}"


def _committable(
    task_ranges: Sequence[_TaskRange], files: Sequence[_TaskFile], rejected: Sequence[_TaskRange]
) -> tuple[list[_TaskRange], list[_TaskFile]]:
    """Returns the ranges and files that can be committed: as many as possible, such that the ranges of each partition
    are contiguous from the first, and no file has rows of a range that is left out.

    Args:
        task_ranges: the offset ranges that tasks read, with their results.
        files: the files that the tasks wrote.
        rejected: ranges that are left out in any case.
    """
    partitions: dict[int, list[_TaskRange]] = defaultdict(list)
    for task_range in sorted(task_ranges, key=lambda task_range: task_range.planned.start):
        partitions[task_range.planned.topic_partition.partition].append(task_range)
    excluded_ids: set[int] = {id(task_range) for task_range in rejected}
    committable_files = list(files)
    while True:
        before = len(excluded_ids)
        for partition_ranges in partitions.values():
            broken = False
            for task_range in partition_ranges:
                if broken:
                    excluded_ids.add(id(task_range))
                broken = broken or id(task_range) in excluded_ids or not task_range.is_complete
        outside = [task_range for task_range in task_ranges if id(task_range) in excluded_ids]
        dropped = [
            one for one in committable_files if any(task_range.is_in(one.task, one.file) for task_range in outside)
        ]
        dropped_ids = {id(one) for one in dropped}
        committable_files = [one for one in committable_files if id(one) not in dropped_ids]
        excluded_ids |= {
            id(task_range) for one in dropped for task_range in task_ranges if task_range.is_in(one.task, one.file)
        }
        if len(excluded_ids) == before:
            return [task_range for task_range in task_ranges if id(task_range) not in excluded_ids], committable_files


def _row_count_mismatch(task_ranges: Sequence[_TaskRange], files: Sequence[_TaskFile]) -> str:
    """Compares the number of rows in the files with the number that the results of the ranges state, by task and
    partition. Returns the first difference as a sentence, "" if they agree.

    Args:
        task_ranges: the offset ranges that can be committed, with their results.
        files: the files that can be committed.
    """
    for kind in FileKind:
        expected: dict[tuple[int, int], int] = defaultdict(int)
        for task_range in task_ranges:
            counts = task_range.result.counts
            quarantined_batches = sum(one.is_quarantined for one in task_range.result.skipped)
            number = counts.records if kind is FileKind.DATA else counts.quarantined + quarantined_batches
            expected[(task_range.task, task_range.planned.topic_partition.partition)] += number
        found: dict[tuple[int, int], int] = defaultdict(int)
        for one in files:
            if one.file.kind is kind:
                for part in one.file.ranges:
                    found[(one.task, part.partition)] += part.records
        for task, partition in sorted({*expected, *found}):
            counted, written = expected[(task, partition)], found[(task, partition)]
            if counted != written:
                return (
                    f"partition {partition}: task {task} wrote {written} {kind.value} records and counted {counted}; "
                    f"{REREAD_REMEDY}"
                )
    return ""


def _committed_range(planned: PlannedRange, task_ranges: Sequence[_TaskRange]) -> CommittedRange:
    """Merges the committable ranges of one partition into one range.

    Args:
        planned: the partition's offset range in the plan.
    """
    task_ranges = sorted(task_ranges, key=lambda task_range: task_range.planned.start)
    gaps = [gap for task_range in task_ranges for gap in task_range.result.gaps]
    expected_start = planned.previous if planned.diverged_at is None else planned.diverged_at
    if expected_start is not None and expected_start < planned.start:
        gaps.insert(0, (expected_start, planned.start))
    return CommittedRange(
        partition=planned.partition,
        previous=planned.previous,
        start=planned.start,
        end=max((task_range.result.done.end for task_range in task_ranges), default=planned.start),
        leader_epoch=planned.leader_epoch,
        counts=sum_counts(task_range.result.counts for task_range in task_ranges),
        gaps=tuple(gaps),
        bytes_read=sum(task_range.result.bytes_read for task_range in task_ranges),
        epochs=functools.reduce(
            ReadEpochs.followed_by, (task_range.result.epochs for task_range in task_ranges), NO_EPOCHS
        ),
        diverged_at=planned.diverged_at,
        incarnation=planned.incarnation,
        skipped=tuple(one for task_range in task_ranges for one in task_range.result.skipped),
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


@dataclass(slots=True)
class _Times:
    """The message times in one window, added up over the ranges of a partition."""

    no_time: int = 0
    total_ms: int = 0
    first_ms: int = WINDOW_MS
    slices: list[int] = field(default_factory=lambda: [0] * SLICES)

    def add(self, row: AuditCount) -> None:
        self.no_time += row.no_time
        self.total_ms += row.total_ms
        self.first_ms = min(self.first_ms, row.first_ms)
        self.slices = list(map(operator.add, self.slices, row.slices))

    def summary(self, start_ms: int) -> WindowTimes:
        if start_ms in SPECIAL_WINDOWS:
            return WindowTimes(self.no_time)
        return WindowTimes.of(self.no_time, self.total_ms, self.first_ms, self.slices)


def _count_series(task_ranges: Sequence[_TaskRange]) -> tuple[tuple[CountSeries, ...], Mapping[int, int]]:
    """Returns the message counts by tier, outcome, partition and window. Also returns, by window, the number of
    messages that were moved from it to the window "scattered".

    The audit limits the windows of a commit: beyond the limit, those with the fewest messages are merged into
    "scattered". The tasks apply the same limit, but a commit merges the windows of up to a thousand ranges.

    Args:
        task_ranges: the offset ranges to commit, with the counts in their results.
    """
    read: dict[int, int] = defaultdict(int)
    for task_range in task_ranges:
        for row in task_range.result.audit:
            if row.window_start_ms >= 0:
                read[row.window_start_ms] += row.count if row.tier == "broker" else 0
    scattered = set(sorted(read, key=lambda start_ms: (-read[start_ms], start_ms))[WINDOWS_MAX:])
    sums: dict[tuple[str, str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    times: dict[tuple[int, int], _Times] = defaultdict(_Times)
    for task_range in task_ranges:
        for row in task_range.result.audit:
            start_ms = SCATTERED_MS if row.window_start_ms in scattered else row.window_start_ms
            total = sums[row.tier, row.outcome, row.partition][start_ms]
            total[0] += row.count
            total[1] += row.bytes
            total[2] = (total[2] + row.fingerprint) % 2**64
            if row.slices:
                times[row.partition, start_ms].add(row)
    series = tuple(
        CountSeries(
            *key,
            tuple(WindowCount(start_ms, *total) for start_ms, total in sorted(windows.items())),
            HASH,
            tuple(times[key[2], start_ms].summary(start_ms) for start_ms in sorted(windows)) if not key[1] else (),
        )
        for key, windows in sorted(sums.items())
    )
    return series, {start_ms: read[start_ms] for start_ms in sorted(scattered)}


def _implausible_times(
    task_ranges: Sequence[_TaskRange], scattered: Mapping[int, int], time_sources: Mapping[str, int]
) -> tuple[ImplausibleTimeCount, ...]:
    """Adds up the implausible event times that the tasks reported, by kind, time source and unit. Adds the messages
    that `_count_series` moved to the window "scattered", under the time field that most rows have, or the record's
    timestamp if none has a time field.

    Args:
        task_ranges: the offset ranges to commit, with their results.
        scattered: by window, the number of messages that were moved.
        time_sources: by time source, the number of rows.
    """
    reported = [one for task_range in task_ranges for one in task_range.result.implausible_times]
    if scattered:
        fields = [name for name in time_sources if name not in RECORD_TIME_SOURCES]
        source = max(fields, key=lambda name: time_sources[name], default=RECORD_TIME)
        reported.append(
            ImplausibleTimeCount(
                ImplausibleTimeKind.SCATTERED, source, "", sum(scattered.values()), next(iter(scattered))
            )
        )
    sums: dict[tuple[ImplausibleTimeKind, str, str], list[int]] = {}
    for one in reported:
        sums.setdefault((one.kind, one.source, one.unit), [0, one.value])[0] += one.messages
    return tuple(ImplausibleTimeCount(*key, messages, value) for key, (messages, value) in sorted(sums.items()))


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for one in counts:
        for name, number in one.items():
            total[name] += number
    return dict(total)


def _length(offsets: OffsetRange) -> int:
    return offsets.end - offsets.start


def _range_name(offsets: OffsetRange) -> str:
    return f"partition {offsets.topic_partition.partition} [{offsets.start}, {offsets.end})"
