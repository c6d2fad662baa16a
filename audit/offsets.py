"""Checks that the offsets that the loader counted are contiguous: gaps indicate loss, overlaps indicate duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetCheck:
    """Results of a check of one topic's counted offsets, as half-open offset ranges `(partition, start, end)`.

    Attributes:
        holes: ranges between counted ranges that no counted range contains. A hole does not prove a loss: transaction
            markers, tombstones and deleted messages are not counted.
        overlaps: ranges that several counted ranges contain. A topic that was deleted and created again has some.
        skipped: ranges that a commit of the loader skipped, such as a corrupt batch; no row contains their messages.
    """

    holes: tuple[tuple[int, int, int], ...] = ()
    overlaps: tuple[tuple[int, int, int], ...] = ()
    skipped: tuple[tuple[int, int, int], ...] = ()

    @property
    def skipped_count(self) -> int:
        return sum(end - start for _, start, end in self.skipped)


CONTIGUOUS = OffsetCheck()


def check_offsets(ranges: Iterable[tuple[int, int, int]], skipped: Iterable[tuple[int, int, int]] = ()) -> OffsetCheck:
    """Returns the holes and overlaps of the ranges `(partition, start, end)` that the loader counted for one topic.
    Equal ranges count once.

    Args:
        skipped: ranges that commits skipped; they are returned with the result.
    """
    holes: list[tuple[int, int, int]] = []
    overlaps: list[tuple[int, int, int]] = []
    ends: dict[int, int] = {}
    for partition, start, end in sorted(set(ranges)):
        previous_end = ends.get(partition)
        if previous_end is not None and start > previous_end:
            holes.append((partition, previous_end, start))
        elif previous_end is not None and start < previous_end:
            overlaps.append((partition, start, min(previous_end, end)))
        ends[partition] = end if previous_end is None else max(previous_end, end)
    return OffsetCheck(tuple(holes), tuple(overlaps), tuple(sorted(set(skipped))))


def ranges_text(ranges: tuple[tuple[int, int, int], ...], ranges_max: int = 3) -> str:
    """Returns the first `ranges_max` ranges as text, such as `partition 0 [10, 20)`, and the number of further ones."""
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in ranges[:ranges_max])
    return shown + (f" and {len(ranges) - ranges_max} more" if len(ranges) > ranges_max else "")
