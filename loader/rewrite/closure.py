"""Finds the files that must be replaced together, because they share offsets that are read again. Pure.

A file holds some messages of an offset range; the others of the range are in files of other time partitions or of the
quarantine. Reading the range again returns all of them, so every file that shares an offset with it must be replaced.
These files have further offsets, and files that share those must be replaced too, until no file is added. Files of
different loads share no offset unless a merge combined them or the log was truncated and grew again, so the result is
usually the files of one load.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.work_unit import FileKind

Day = TypeVar("Day")

FileKey = tuple[FileKind, str, str]
"""(kind, time partition, name). The name alone is not a key: a task uses the same name in several time partitions."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that belongs to the topic as of the newest commit."""

    kind: FileKind
    time_partition: str
    file: IndexedFile

    @property
    def key(self) -> FileKey:
        return self.kind, self.time_partition, self.file.name

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yields (partition, start, end) for the messages of each partition in the file, end exclusive."""
        for file_range in self.file.ranges:
            yield file_range.partition, file_range.first, file_range.last + 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Offsets `[start, end)` of a partition, as part of a component; its files hold `records` messages with these
    offsets."""

    partition: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class Component:
    """Files that are replaced together or not at all, and the offset ranges of their messages. No other live file has
    messages of the topic's present log in these ranges."""

    files: tuple[LiveFile, ...]
    intervals: tuple[Interval, ...]

    @property
    def bytes(self) -> int:
        return sum(one.file.length for one in self.files)


class OffsetRangeSet:
    """A growing set of offset ranges by partition. Adjacent ranges stay separate."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        self.version = 0  # incremented when it grows

    def add(self, partition: int, start: int, end: int) -> None:
        starts, ends = self._starts[partition], self._ends[partition]
        low, high = bisect_right(ends, start), bisect_left(starts, end)
        if low < high:
            if high == low + 1 and starts[low] <= start and end <= ends[low]:
                return
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [start], [end]
        self.version += 1

    def overlaps(self, partition: int, start: int, end: int) -> bool:
        """Whether the set contains an offset in `[start, end)` of this partition."""
        at = bisect_left(self._starts[partition], end) - 1
        return at >= 0 and self._ends[partition][at] > start


def offset_closure(
    chosen: Iterable[LiveFile], days: Sequence[Day], live_files_of: Callable[[Day], Sequence[LiveFile]]
) -> list[LiveFile]:
    """Returns the chosen files, and all files that a rewrite must replace together with them, because they share
    offsets.

    Reads the files of every day at least once, because a late message may be in any time partition. Reads a day again
    only if a file found later may share an offset with the files of this day that were not chosen. Between reads, only
    the offset range of those files is stored per day and partition, so the history of a topic is never in memory at
    once.

    Args:
        chosen: the files that are to be replaced in any case.
        days: all days with table files or quarantine files of the topic.
        live_files_of: returns the live files of a day.
    """
    selected = {one.key: one for one in chosen}
    covered = OffsetRangeSet()
    for one in selected.values():
        _add_spans(covered, one)
    unselected_spans: dict[Day, tuple[int, dict[int, tuple[int, int]]]] = {}
    while any(_may_share(covered, unselected_spans.get(day)) for day in days):
        for day in days:
            if not _may_share(covered, unselected_spans.get(day)):
                continue
            unselected = [one for one in live_files_of(day) if one.key not in selected]
            while sharing := [one for one in unselected if any(covered.overlaps(*span) for span in one.spans())]:
                for one in sharing:
                    selected[one.key] = one
                    _add_spans(covered, one)
                unselected = [one for one in unselected if one.key not in selected]
            unselected_spans[day] = covered.version, _bounds_by_partition(unselected)
    return list(selected.values())


def _may_share(covered: OffsetRangeSet, unselected_spans: tuple[int, dict[int, tuple[int, int]]] | None) -> bool:
    if unselected_spans is None:
        return True
    version, bounds = unselected_spans
    return version != covered.version and any(covered.overlaps(number, *span) for number, span in bounds.items())


def _add_spans(covered: OffsetRangeSet, one: LiveFile) -> None:
    for span in one.spans():
        covered.add(*span)


def _bounds_by_partition(files: Iterable[LiveFile]) -> dict[int, tuple[int, int]]:
    bounds: dict[int, tuple[int, int]] = {}
    for one in files:
        for number, start, end in one.spans():
            first, last = bounds.get(number, (start, end))
            bounds[number] = min(first, start), max(last, end)
    return bounds


def components(files: Sequence[LiveFile]) -> list[Component]:
    """Divides the files into components (files that are replaced together) that share no offset with each other,
    ordered by their first time partition."""
    parent = list(range(len(files)))

    def root_of(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    intervals: list[tuple[int, Interval]] = []
    file_ranges = sorted(
        (file_range.partition, file_range.first, file_range.last + 1, file_range.records, at)
        for at, one in enumerate(files)
        for file_range in one.file.ranges
    )
    for number, start, end, records, at in file_ranges:
        file_index, newest = intervals[-1] if intervals else (at, None)
        if newest is not None and newest.partition == number and start < newest.end:
            parent[root_of(at)] = root_of(file_index)
            extended = dataclasses.replace(newest, end=max(newest.end, end), records=newest.records + records)
            intervals[-1] = file_index, extended
        else:
            intervals.append((at, Interval(number, start, end, records)))
    members: dict[int, list[LiveFile]] = defaultdict(list)
    for at, one in enumerate(files):
        members[root_of(at)].append(one)
    spans: dict[int, list[Interval]] = defaultdict(list)
    for file_index, interval in intervals:
        spans[root_of(file_index)].append(interval)
    found = [
        Component(tuple(sorted(component_files, key=lambda one: one.key)), tuple(spans[at]))
        for at, component_files in members.items()
    ]
    return sorted(found, key=lambda one: (min(file.time_partition for file in one.files), one.files[0].key))


def pieces(found: Iterable[Component], bytes_max: int) -> list[tuple[Component, ...]]:
    """Distributes the components `found` over groups, in order, and returns the groups. A group has files of at most
    `bytes_max` bytes; a component above this limit is a separate group."""
    groups: list[list[Component]] = []
    size = 0
    for one in found:
        if not groups or size + one.bytes > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.bytes
    return [tuple(group) for group in groups]
