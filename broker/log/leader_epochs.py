"""The leader epochs of a partition's batches: which began at which offset.

A broker begins a new epoch at every start, and stamps it on the batches that it appends. So whoever has read a log can
ask whether it is still the same: a data directory that was put back from an older copy, or a log that lost its end with
the power, goes on under another epoch (KIP-101).

File `leader-epoch-checkpoint` in the partition's directory, as Kafka's: a line with the version 0, a line with the
count,
then a line `epoch offset` each. It is written before the first batch of an epoch and forced to disk with it. Where it
is missing or damaged the whole log is read, and what is behind it is taken from the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_NAME = "leader-epoch-checkpoint"
FIRST_EPOCH = 0
"""Of what was appended before epochs were counted."""


class LeaderEpochs:
    """Epochs and their first offsets, both ascending; the last one goes on to the end of the log."""

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = list(starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._starts)

    @property
    def latest(self) -> int:
        """The epoch of the last batch, -1 in a log that never had one."""
        return self._starts[-1][0] if self._starts else -1

    @property
    def latest_start(self) -> int:
        return self._starts[-1][1] if self._starts else 0

    def at(self, offset: int) -> int:
        """The epoch that an offset is of; before the first one, the first."""
        if not self._starts:
            return -1
        return self._starts[max(bisect_right(self._starts, offset, key=lambda one: one[1]) - 1, 0)][0]

    def begin(self, epoch: int, offset: int) -> None:
        self._starts.append((epoch, offset))

    def cut(self, log_start_offset: int, log_end_offset: int) -> None:
        """Forgets epochs of which nothing is left: of what was truncated, and of what retention let go."""
        kept = [one for one in self._starts if one[1] < log_end_offset]
        gone = max(sum(start <= log_start_offset for _, start in kept) - 1, 0)
        self._starts = kept[gone:]

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """The newest epoch that is not above this one, and where it ended; None when all are above it, or none is."""
        following = [start for one, start in self._starts if one > epoch]
        found = [one for one, _ in self._starts if one <= epoch]
        if found:
            return found[-1], following[0] if following else log_end_offset
        # As Kafka answers: of an epoch that retention took, all was before what is left.
        return (epoch, following[0]) if following else None

    def to_bytes(self) -> bytes:
        rows = [f"{epoch} {offset}" for epoch, offset in self._starts]
        return "\n".join(["0", str(len(rows)), *rows, ""]).encode()

    def write(self, directory: Path) -> Path:
        """Replaces the file; forcing it to disk is the caller's.

        Raises:
            OSError: it could not be written; the one before is as it was.
        """
        path = directory / FILE_NAME
        temporary = path.with_name(FILE_NAME + ".tmp")
        temporary.write_bytes(self.to_bytes())
        return temporary.rename(path)


def read_leader_epochs(directory: Path) -> LeaderEpochs | None:
    """What the file says; None where there is none, or a crash damaged it."""
    try:
        lines = (directory / FILE_NAME).read_bytes().decode("ascii").split("\n")
        rows = [tuple(map(int, line.split(" "))) for line in lines[2:] if line]
        starts = [(epoch, offset) for epoch, offset in rows]
        # Without its last line's end a number may be cut off and still be one.
        is_whole = lines[-1] == "" and (int(lines[0]), int(lines[1])) == (0, len(starts))
        if is_whole and starts and starts == sorted(set(starts)):
            return LeaderEpochs(starts)
    except (FileNotFoundError, ValueError, IndexError):
        pass
    return None
