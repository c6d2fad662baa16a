"""Which leader epochs wrote what was read of a partition.

A leader gives each batch that it appends its epoch, and a new leader has a higher one. A log that was cut back and grew
again (an unclean election, a disk put back from a copy) holds other batches at the same offsets, of another epoch. So
the epochs of what was read, with the offset that each began at, say which part of a log is still the one that was read:
the leader tells where it knows an epoch to have ended (KIP-101, KIP-320).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STARTS_MAX = 8
"""Epochs that are remembered of a partition. Where the log went another way before the oldest of them, it is read from
its start; elections since the last shared batch are rarely more than two."""


@dataclass(frozen=True, slots=True)
class ReadEpochs:
    """The epochs of the batches that were read, oldest first, each with the offset from which on it was the newest.

    An epoch begins where the batch before its first one ended, so that what compaction took between them counts for the
    newer one. `end` follows the last batch read, -1 when none was.
    """

    starts: tuple[tuple[int, int], ...] = ()
    end: int = -1

    def then(self, later: ReadEpochs) -> ReadEpochs:
        """These and what was read after them."""
        if not later.starts:
            return self
        (epoch, _), *others = later.starts
        if not self.starts:
            starts = later.starts
        elif epoch == self.starts[-1][0]:
            starts = (*self.starts, *others)
        else:
            starts = (*self.starts, (epoch, self.end), *others)
        return ReadEpochs(starts[-STARTS_MAX:], later.end)

    def below(self, offset: int) -> ReadEpochs:
        """What of these lies below an offset."""
        starts = tuple(one for one in self.starts if one[1] < offset)
        return ReadEpochs(starts, min(self.end, offset)) if starts else ReadEpochs()

    def newest_first(self) -> Sequence[tuple[int, int]]:
        """Each epoch with the offset that follows its last batch."""
        ends = [*(start for _, start in self.starts[1:]), self.end]
        return [(epoch, end) for (epoch, _), end in zip(self.starts, ends, strict=False)][::-1]


NOTHING_READ = ReadEpochs()
