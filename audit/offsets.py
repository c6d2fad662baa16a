"""Checks that the offsets that the loader counted are contiguous: gaps indicate loss, overlaps indicate duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

OffsetSpan = tuple[int, int, int]
"""A half-open range of offsets: (partition, start, end)."""

HOLES_MAX: Final = 1_000
"""Holes of one topic that are stored, the newest of each partition first. Topics with transactions or tombstones may
get one with each load."""


@dataclass(frozen=True, slots=True)
class OffsetCheck:
    """Results of a check of one topic's counted offsets, as half-open offset ranges `(partition, start, end)`.

    Attributes:
        holes: ranges between counted ranges that no counted range contains. A hole does not prove a loss: transaction
            markers, tombstones and deleted messages are not counted.
        overlaps: ranges that several counted ranges contain. A topic that was deleted and created again has some.
        skipped: ranges that a commit of the loader skipped, such as a corrupt batch; no row contains their messages.
    """

    holes: tuple[OffsetSpan, ...] = ()
    overlaps: tuple[OffsetSpan, ...] = ()
    skipped: tuple[OffsetSpan, ...] = ()

    @property
    def skipped_count(self) -> int:
        return sum(end - start for _, start, end in self.skipped)


CONTIGUOUS = OffsetCheck()


@dataclass(frozen=True, slots=True)
class CountedOffsets:
    """The offsets of one topic that the loader counted or skipped, merged so far that they stay few.

    Attributes:
        counted: merged ranges, ordered.
        overlaps: merged ranges that several counted ranges contain, ordered.
        skipped: skipped ranges, ordered.
    """

    counted: tuple[OffsetSpan, ...] = ()
    overlaps: tuple[OffsetSpan, ...] = ()
    skipped: tuple[OffsetSpan, ...] = ()

    def meets(self, ranges: Iterable[OffsetSpan]) -> bool:
        """Returns whether one of these ranges contains offsets that are counted."""
        return bool(_intersection(self.counted, merged(ranges)))

    def plus(self, ranges: Iterable[OffsetSpan], skipped: Iterable[OffsetSpan] = ()) -> CountedOffsets:
        """Returns the offsets with further counted and skipped ranges. None of the counted ones is equal to a range
        that was added before: an equal range is another window of the same commit, and no overlap."""
        new = sorted(set(ranges))
        twice = [*self.overlaps, *_intersection(self.counted, merged(new)), *_multiple(new)]
        return CountedOffsets(
            merged((*self.counted, *new)),
            merged(twice),
            tuple(sorted({*self.skipped, *skipped})) if skipped else self.skipped,
        )

    def without_old_holes(self, holes_max: int = HOLES_MAX) -> CountedOffsets:
        """Returns the offsets with at most `holes_max` holes. The oldest holes of each partition count as counted."""
        if len(self.counted) <= holes_max:
            return self
        by_partition: dict[int, list[OffsetSpan]] = {}
        for span in self.counted:
            by_partition.setdefault(span[0], []).append(span)
        kept_each = max(1, holes_max // len(by_partition))
        found = []
        for partition, spans in by_partition.items():
            old, new = spans[:-kept_each], spans[-kept_each:]
            if old:
                new[0] = (partition, old[0][1], new[0][2])
            found += new
        return replace(self, counted=tuple(found))

    def check(self) -> OffsetCheck:
        """Returns the holes, overlaps and skipped ranges."""
        pairs = zip(self.counted, self.counted[1:], strict=False)
        holes = tuple(
            (partition, end, next_start)
            for (partition, _, end), (next_partition, next_start, _) in pairs
            if partition == next_partition
        )
        return OffsetCheck(holes, self.overlaps, self.skipped)


def check_offsets(ranges: Iterable[OffsetSpan], skipped: Iterable[OffsetSpan] = ()) -> OffsetCheck:
    """Returns the holes and overlaps of the ranges `(partition, start, end)` that the loader counted for one topic.
    Equal ranges count once.

    Args:
        skipped: ranges that commits skipped; they are returned with the result.
    """
    return CountedOffsets().plus(set(ranges), tuple(skipped)).check()


def merged(spans: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    """Returns the union of ranges as ordered ranges that neither overlap nor touch. Empty ranges are left out."""
    found: list[OffsetSpan] = []
    for partition, start, end in sorted(spans):
        if start >= end:
            continue
        if found and found[-1][0] == partition and start <= found[-1][2]:
            found[-1] = (partition, found[-1][1], max(found[-1][2], end))
        else:
            found.append((partition, start, end))
    return tuple(found)


def _multiple(spans: Sequence[OffsetSpan]) -> list[OffsetSpan]:
    """Returns the offsets that several of the ranges contain. `spans` are ordered and different."""
    found: list[OffsetSpan] = []
    ends: dict[int, int] = {}
    for partition, start, end in spans:
        previous_end = ends.get(partition, start)
        if start < previous_end:
            found.append((partition, start, min(previous_end, end)))
        ends[partition] = max(previous_end, end)
    return found


def _intersection(first: Sequence[OffsetSpan], second: Sequence[OffsetSpan]) -> list[OffsetSpan]:
    """Returns the offsets that are in both unions. Each is ordered, without overlaps."""
    found: list[OffsetSpan] = []
    i = j = 0
    while i < len(first) and j < len(second):
        one, other = first[i], second[j]
        if one[0] == other[0]:
            start, end = max(one[1], other[1]), min(one[2], other[2])
            if start < end:
                found.append((one[0], start, end))
        if (one[0], one[2]) <= (other[0], other[2]):
            i += 1
        else:
            j += 1
    return found


def ranges_text(ranges: tuple[OffsetSpan, ...], ranges_max: int = 3) -> str:
    """Returns the first `ranges_max` ranges as text, such as `partition 0 [10, 20)`, and the number of further ones."""
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in ranges[:ranges_max])
    return shown + (f" and {len(ranges) - ranges_max} more" if len(ranges) > ranges_max else "")
