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
        for piece in self.file.ranges:
            yield piece.partition, piece.first, piece.last + 1


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


class Covered:
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

    def shares(self, partition: int, start: int, end: int) -> bool:
        """Whether the set contains an offset in `[start, end)` of this partition."""
        at = bisect_left(self._starts[partition], end) - 1
        return at >= 0 and self._ends[partition][at] > start


def closed(
    chosen: Iterable[LiveFile], days: Sequence[Day], live_on: Callable[[Day], Sequence[LiveFile]]
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
        live_on: returns the live files of a day.
    """
    taken = {one.key: one for one in chosen}
    covered = Covered()
    for one in taken.values():
        _cover(covered, one)
    left: dict[Day, tuple[int, dict[int, tuple[int, int]]]] = {}
    while any(_may_give(covered, left.get(day)) for day in days):
        for day in days:
            if not _may_give(covered, left.get(day)):
                continue
            others = [one for one in live_on(day) if one.key not in taken]
            while more := [one for one in others if any(covered.shares(*span) for span in one.spans())]:
                for one in more:
                    taken[one.key] = one
                    _cover(covered, one)
                others = [one for one in others if one.key not in taken]
            left[day] = covered.version, _hull(others)
    return list(taken.values())


def _may_give(covered: Covered, left: tuple[int, dict[int, tuple[int, int]]] | None) -> bool:
    if left is None:
        return True
    version, hull = left
    return version != covered.version and any(covered.shares(number, *span) for number, span in hull.items())


def _cover(covered: Covered, one: LiveFile) -> None:
    for span in one.spans():
        covered.add(*span)


def _hull(files: Iterable[LiveFile]) -> dict[int, tuple[int, int]]:
    hull: dict[int, tuple[int, int]] = {}
    for one in files:
        for number, start, end in one.spans():
            first, last = hull.get(number, (start, end))
            hull[number] = min(first, start), max(last, end)
    return hull


def components(files: Sequence[LiveFile]) -> list[Component]:
    """Divides the files into components (files that are replaced together) that share no offset with each other,
    ordered by their first time partition."""
    leader = list(range(len(files)))

    def find(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    intervals: list[tuple[int, Interval]] = []
    pieces = sorted(
        (piece.partition, piece.first, piece.last + 1, piece.records, at)
        for at, one in enumerate(files)
        for piece in one.file.ranges
    )
    for number, start, end, records, at in pieces:
        owner, newest = intervals[-1] if intervals else (at, None)
        if newest is not None and newest.partition == number and start < newest.end:
            leader[find(at)] = find(owner)
            grown = dataclasses.replace(newest, end=max(newest.end, end), records=newest.records + records)
            intervals[-1] = owner, grown
        else:
            intervals.append((at, Interval(number, start, end, records)))
    members: dict[int, list[LiveFile]] = defaultdict(list)
    for at, one in enumerate(files):
        members[find(at)].append(one)
    spans: dict[int, list[Interval]] = defaultdict(list)
    for owner, interval in intervals:
        spans[find(owner)].append(interval)
    found = [Component(tuple(sorted(some, key=lambda one: one.key)), tuple(spans[at])) for at, some in members.items()]
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
