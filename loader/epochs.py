"""Leader epochs of the batches that were read from a partition.

A leader stamps each batch with its epoch, and a new leader has a higher one. After an unclean election, or after a disk
was restored from a copy, the log may have other batches at the same offsets, with another epoch. The loader stores the
epochs that it has read, with their start offsets, and compares them with the end offset that the leader reports for
each epoch (KIP-101, KIP-320). This gives the offset up to which the log still has the batches that were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STARTS_MAX = 8
"""Maximum number of epochs stored per partition: the newest ones. If the log diverged at an offset before the oldest of
them, the partition is read again from its start, if `loader.on_data_loss` is `skip`. That is rare: there are seldom
more than two elections after the last batch that stayed in the log."""


@dataclass(frozen=True, slots=True)
class ReadEpochs:
    """The leader epochs of the batches that were read from a partition: pairs of epoch and start offset, oldest first.

    The start offset of an epoch after the first is the end of the last batch of the epoch before. Offsets between two
    batches, which compaction removed, thus belong to the newer epoch. `end` is the offset after the last batch read, -1
    if no batch was read.
    """

    starts: tuple[tuple[int, int], ...] = ()
    end: int = -1

    def followed_by(self, later: ReadEpochs) -> ReadEpochs:
        """Returns these epochs followed by `later`, the epochs of batches that were read afterwards. Only the newest
        `STARTS_MAX` epochs remain."""
        if not later.starts:
            return self
        (epoch, _), *later_starts = later.starts
        if not self.starts:
            starts = later.starts
        elif epoch == self.starts[-1][0]:
            starts = (*self.starts, *later_starts)
        else:
            starts = (*self.starts, (epoch, self.end), *later_starts)
        return ReadEpochs(starts[-STARTS_MAX:], later.end)

    def below(self, offset: int) -> ReadEpochs:
        """Returns the epochs of the batches before `offset`, with `end` limited to it."""
        starts = tuple(one for one in self.starts if one[1] < offset)
        return ReadEpochs(starts, min(self.end, offset)) if starts else ReadEpochs()

    def newest_first(self) -> Sequence[tuple[int, int]]:
        """Returns pairs of epoch and end offset, newest first. An epoch ends where the next one starts."""
        ends = [*(start for _, start in self.starts[1:]), self.end]
        return [(epoch, end) for (epoch, _), end in zip(self.starts, ends, strict=False)][::-1]


NO_EPOCHS = ReadEpochs()
