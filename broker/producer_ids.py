"""Producer ids, never given twice: a block is claimed on disk before its first id is given out."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from headrace.broker.errors import CorruptFile
from headrace.broker.log.files import write_atomically

FILE_NAME = "producer-ids"
BLOCK_SIZE = 1000
"""Ids claimed at once: a crash wastes at most this many of 2**63."""


class ProducerIds:
    """Not for use by threads, but claims in one of `executor`'s."""

    def __init__(self, folder: Path, executor: Executor) -> None:
        self._path, self._executor = folder / FILE_NAME, executor
        self._claim: asyncio.Task[None] | None = None
        try:
            self._next = self._claimed = int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            self._next = self._claimed = 0
        except ValueError as error:
            raise CorruptFile(self._path, "expected one whole number") from error

    async def take(self) -> int:
        """A producer id that no producer of this data folder ever had.

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
