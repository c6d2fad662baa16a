"""Producer ids, each assigned at most once: a block of ids is claimed on disk before the first of them is assigned.

If two producers had the same id, batches of one could be mistaken for retries of the other's, and be acknowledged
without being stored. Therefore the file is not trusted if it is missing or lower than ids in the logs, for example
after it was restored from an older copy. Assignment then continues so far above the ids in the logs that a second
assignment of an id is very unlikely.
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
"""Ids claimed per write: a stop of the broker wastes at most this many of 2**63."""
LOST_FILE_GAP = 1_000_000
"""After the file was lost or found to be behind the logs, this many ids above the largest one in the logs are skipped.
The logs do not contain all assigned ids: a producer is removed from them if it was silent for a day or its topics were
deleted, and it may return. It is unlikely that its id exceeds the largest one in the logs by this much."""
UNASSIGNED_ID_MIN = 1 << 62
"""Ids from here on are never assigned. One in a log was invented by a client; if assignment continued above it, too few
ids would be left."""

_NUMBER = re.compile(r"[0-9]{1,19}\n?")
REMEDY = "restore the file from a copy, or delete it: the next ids then follow those in the logs"


class ProducerIds:
    """Assigns producer ids. The producer id file contains the number below which all ids are claimed; after the start,
    a thread of `executor` writes it. Not thread-safe."""

    def __init__(self, directory: Path, executor: Executor) -> None:
        self._path, self._executor = directory / FILE_NAME, executor
        self._claim: asyncio.Task[None] | None = None
        self._persisted = read_producer_ids(self._path)
        self._next = self._claimed = self._persisted or 0

    def skip_past(self, known: Iterable[int], *, is_in_use: bool) -> None:
        """Moves the next producer id past the ids in `known`, if the producer id file is missing or behind them; logs
        it unless the data directory is new. Ids from UNASSIGNED_ID_MIN on are ignored.

        Args:
            known: producer ids found in the data directory.
            is_in_use: whether the directory contains records. If it is False and `known` is empty, a missing file does
                not mean that it was lost.

        Raises:
            OSError: the file could not be written.
        """
        largest = max((producer_id for producer_id in known if producer_id < UNASSIGNED_ID_MIN), default=-1)
        begin = first_id(self._persisted, largest, is_in_use=is_in_use)
        if begin == self._persisted:
            return
        if begin:
            logger.error(
                "producer ids skipped file=%s reason=%s largest_known=%d next=%d",
                self._path,
                "the file is missing"
                if self._persisted is None
                else f"the file contains {self._persisted}, but larger ids are in use",
                largest,
                begin,
            )
        # Written even if no id was assigned yet, so that a later loss of the file is detected.
        write_atomically(self._path, f"{begin}\n".encode())
        self._next = self._claimed = self._persisted = begin

    async def allocate(self) -> int:
        """Returns a producer id that was not assigned before in this data directory. After a loss of the producer id
        file this is only very likely (see LOST_FILE_GAP).

        Raises:
            OSError: the next block could not be claimed.
        """
        while self._next >= self._claimed:
            if self._claim is None or self._claim.done():
                self._claim = asyncio.get_running_loop().create_task(self._claim_block())
            # All waiting requests share one claim; a cancelled request does not cancel the claim.
            await asyncio.shield(self._claim)
        self._next += 1
        return self._next - 1

    async def _claim_block(self) -> None:
        claimed = self._claimed + BLOCK_SIZE
        await asyncio.get_running_loop().run_in_executor(
            self._executor, write_atomically, self._path, f"{claimed}\n".encode()
        )
        # Set by this task, not by the requests that wait for it: they may all be cancelled.
        self._claimed = claimed


def first_id(persisted: int | None, largest: int, *, is_in_use: bool) -> int:
    """Returns the first producer id to assign: the id in the producer id file; or `largest` + 1 + LOST_FILE_GAP if that
    file is missing or behind the logs; or 0 in a new data directory.

    Args:
        persisted: the id in the file; None if the file is missing.
        largest: the largest id in the logs; -1 if they contain none.
        is_in_use: whether the data directory contains records; False if it is new.
    """
    if persisted is not None and persisted > largest:
        return persisted
    return largest + 1 + LOST_FILE_GAP if is_in_use or largest >= 0 else 0


def read_producer_ids(path: Path) -> int | None:
    """Returns the id in the producer id file, below which all ids are claimed; None if the file does not exist.

    Raises:
        CorruptFile: the file does not contain a number.
    """
    try:
        content = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile(path, "expected one whole number", REMEDY) from error
    if _NUMBER.fullmatch(content) is None:
        raise CorruptFile(path, f"expected one whole number, found {content[:20]!r}", REMEDY)
    return int(content)
