"""Producer ids, never given twice: a block is claimed on disk before its first id is given out.

A producer with the id of another one would be taken for it: its batches for repetitions, which are acknowledged and not
stored. So a file that is missing, or says less than the logs know of, as one that was put back from an older copy, is
not believed: ids go on above those that are known.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from headrace.broker.errors import CorruptFile
from headrace.broker.log.files import write_atomically

logger = logging.getLogger(__name__)

FILE_NAME = "producer-ids"
BLOCK_SIZE = 1000
"""Ids claimed at once: a crash wastes at most this many of 2**63."""
DISTANCE = 1_000_000
"""How far above the largest known id those begin whose file was lost. Producers that were silent for a day, or whose
topics are deleted, are not known any more and may come back; so many were hardly given out above those that are."""
MADE_UP_FROM = 1 << 62
"""So many are never given out: a client made such an id up, and to go on above it would leave too few."""

_NUMBER = re.compile(r"[0-9]{1,19}\n?")


class ProducerIds:
    """Not for use by threads, but claims in one of `executor`'s."""

    def __init__(self, directory: Path, executor: Executor) -> None:
        self._path, self._executor = directory / FILE_NAME, executor
        self._claim: asyncio.Task[None] | None = None
        self._on_file = read_producer_ids(self._path)
        self._next = self._claimed = self._on_file or 0

    def begin_above(self, known: Iterable[int], *, is_in_use: bool) -> None:
        """Goes on above ids that were given out, where the file does not, and says so in the log.

        Args:
            known: ids of producers that are heard of in the data directory.
            is_in_use: whether anything was stored in it, for which a missing file is a loss.

        Raises:
            OSError: where they begin could not be written down.
        """
        largest = max((producer_id for producer_id in known if producer_id < MADE_UP_FROM), default=-1)
        begin = first_id(self._on_file, largest, is_in_use=is_in_use)
        if begin == self._on_file:
            return
        if begin:
            logger.error(
                "producer ids not continued file=%s reason=%s largest_known=%d next=%d",
                self._path,
                "it is missing" if self._on_file is None else f"it says {self._on_file}, and larger ones are known",
                largest,
                begin,
            )
        # Also where nothing was given out yet, so that it is noticed when the file is missing later.
        write_atomically(self._path, f"{begin}\n".encode())
        self._next = self._claimed = self._on_file = begin

    async def take(self) -> int:
        """A producer id that no producer of this data directory ever had.

        Raises:
            OSError: the next block could not be claimed.
        """
        while self._next >= self._claimed:
            if self._claim is None or self._claim.done():
                self._claim = asyncio.get_running_loop().create_task(self._claim_block())
            # One claim for all that wait; who is gone meanwhile does not end it for the others.
            await asyncio.shield(self._claim)
        self._next += 1
        return self._next - 1

    async def _claim_block(self) -> None:
        claimed = self._claimed + BLOCK_SIZE
        await asyncio.get_running_loop().run_in_executor(
            self._executor, write_atomically, self._path, f"{claimed}\n".encode()
        )
        # Here and not by whoever waits: once this is done, all who come find a block.
        self._claimed = claimed


def first_id(on_file: int | None, largest: int, *, is_in_use: bool) -> int:
    """The first id to give out: what the file says, unless it is missing (None) or `largest` was given out already."""
    if on_file is not None and on_file > largest:
        return on_file
    return largest + 1 + DISTANCE if is_in_use or largest >= 0 else 0


def read_producer_ids(path: Path) -> int | None:
    """The first id that was not given out; None where there is no such file.

    Raises:
        CorruptFile: it holds something else than a number.
    """
    try:
        content = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile(path, "expected one whole number") from error
    if _NUMBER.fullmatch(content) is None:
        raise CorruptFile(path, f"expected one whole number, found {content[:20]!r}")
    return int(content)
