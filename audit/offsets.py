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
    reached: dict[int, int] = {}
    for partition, start, end in sorted(set(ranges)):
        before = reached.get(partition)
        if before is not None and start > before:
            holes.append((partition, before, start))
        elif before is not None and start < before:
            overlaps.append((partition, start, min(before, end)))
        reached[partition] = end if before is None else max(before, end)
    return OffsetCheck(tuple(holes), tuple(overlaps), tuple(sorted(set(skipped))))


def ranges_text(ranges: tuple[tuple[int, int, int], ...], most: int = 3) -> str:
    """Returns the first `most` ranges as text, such as `partition 0 [10, 20)`, and the number of further ones."""
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in ranges[:most])
    return shown + (f" and {len(ranges) - most} more" if len(ranges) > most else "")
