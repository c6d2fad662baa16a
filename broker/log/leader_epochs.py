"""Leader epochs of a partition's batches and the offsets at which they begin (KIP-101).

A broker starts a new epoch at every start and stamps it on the batches it appends. Clients use epochs to detect that a
log has changed: one restored from an older copy, or truncated after a power failure, continues under a different epoch.

File `leader-epoch-checkpoint` in the partition's directory, as in Kafka: a line with the version 0, a line with the row
count, then one line `epoch offset` per epoch. It is written before the first batch of an epoch and fsynced with it. If
it is missing or corrupt, the whole log is read; if it lacks the newest epochs, they are added from the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_NAME = "leader-epoch-checkpoint"
FIRST_EPOCH = 0
"""Epoch assumed for the start of a log without an epoch file. The scan of its batches then adds the later epochs."""


class LeaderEpochs:
    """The leader epochs of a log and the offset at which each begins, both ascending. The last one extends to the log's
    end.

    Args:
        starts: (epoch, offset at which it begins) of each epoch.
    """

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = list(starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._starts)

    @property
    def latest(self) -> int:
        """The newest epoch, that of the last batch; -1 if no epoch is known."""
        return self._starts[-1][0] if self._starts else -1

    @property
    def latest_start(self) -> int:
        return self._starts[-1][1] if self._starts else 0

    def at(self, offset: int) -> int:
        """Returns the leader epoch of an offset; -1 if no epoch is known. Offsets before the start of the first known
        epoch belong to that epoch."""
        if not self._starts:
            return -1
        return self._starts[max(bisect_right(self._starts, offset, key=lambda one: one[1]) - 1, 0)][0]

    def begin(self, epoch: int, offset: int) -> None:
        self._starts.append((epoch, offset))

    def trim(self, log_start_offset: int, log_end_offset: int) -> None:
        """Removes the epochs that begin at `log_end_offset` or later, or end at `log_start_offset` or earlier; the
        newest remaining epoch stays. Called when the log is opened and when a new epoch begins."""
        starts = [one for one in self._starts if one[1] < log_end_offset]
        expired = max(sum(start <= log_start_offset for _, start in starts) - 1, 0)
        self._starts = starts[expired:]

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Returns the newest known epoch up to `epoch`, and the offset at which it ends: the start of the next epoch,
        or `log_end_offset` if it is the last one. If all known epochs are newer than `epoch`, returns `epoch` itself
        and the offset at which the oldest known one begins. None if no epoch is known."""
        following = [start for one, start in self._starts if one > epoch]
        found = [one for one, _ in self._starts if one <= epoch]
        if found:
            return found[-1], following[0] if following else log_end_offset
        # As in Kafka: for an epoch that retention removed, the end is where the next epoch begins.
        return (epoch, following[0]) if following else None

    def to_bytes(self) -> bytes:
        rows = [f"{epoch} {offset}" for epoch, offset in self._starts]
        return "\n".join(["0", str(len(rows)), *rows, ""]).encode()

    def write(self, directory: Path) -> Path:
        """Replaces the file `leader-epoch-checkpoint` in a partition's directory without fsyncing it, and returns its
        path.

        Raises:
            OSError: the write failed; the previous file is unchanged.
        """
        path = directory / FILE_NAME
        temporary = path.with_name(FILE_NAME + ".tmp")
        temporary.write_bytes(self.to_bytes())
        return temporary.rename(path)


def read_leader_epochs(directory: Path) -> LeaderEpochs | None:
    """Reads the file `leader-epoch-checkpoint` in a partition's directory; None if it is missing or corrupt, or
    contains no epoch."""
    try:
        lines = (directory / FILE_NAME).read_bytes().decode("ascii").split("\n")
        rows = [tuple(map(int, line.split(" "))) for line in lines[2:] if line]
        starts = [(epoch, offset) for epoch, offset in rows]
        # A number may be truncated and still parse; the final newline proves that it is complete.
        is_whole = lines[-1] == "" and (int(lines[0]), int(lines[1])) == (0, len(starts))
        if is_whole and starts and starts == sorted(set(starts)):
            return LeaderEpochs(starts)
    except (FileNotFoundError, ValueError, IndexError):
        pass
    return None
