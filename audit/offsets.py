"""Are the offsets that the loader counted contiguous? Contiguity, not count, tells a loss from a duplicate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetCheck:
    """Ranges `(partition, start, end)`, half-open: `holes` were in no counted range, `overlaps` in two of them.

    A hole is no proof of a loss by itself: offsets without a message (transaction markers, tombstones, what the log
    had removed) give no row either. A topic that was deleted and made again shows as overlaps. `passed_over` are
    offsets that a decision declared to be in no row, whatever messages they may have.
    """

    holes: tuple[tuple[int, int, int], ...] = ()
    overlaps: tuple[tuple[int, int, int], ...] = ()
    passed_over: tuple[tuple[int, int, int], ...] = ()

    @property
    def passed_over_count(self) -> int:
        return sum(end - start for _, start, end in self.passed_over)


CONTIGUOUS = OffsetCheck()


def check_offsets(
    ranges: Iterable[tuple[int, int, int]], passed_over: Iterable[tuple[int, int, int]] = ()
) -> OffsetCheck:
    """Looks at counted ranges `(partition, start, end)` of one topic; the same range given twice counts once."""
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
    return OffsetCheck(tuple(holes), tuple(overlaps), tuple(sorted(set(passed_over))))


def ranges_text(ranges: tuple[tuple[int, int, int], ...], most: int = 3) -> str:
    """The first few ranges for people: `partition 0 [10, 20)`."""
    shown = ", ".join(f"partition {partition} [{start}, {end})" for partition, start, end in ranges[:most])
    return shown + (f" and {len(ranges) - most} more" if len(ranges) > most else "")
