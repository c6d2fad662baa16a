"""Producer ids, never given twice: a block is claimed on disk before its first id is given out."""

from __future__ import annotations

from pathlib import Path

from headrace.broker.errors import CorruptFile
from headrace.broker.log.files import write_atomically

FILE_NAME = "producer-ids"
BLOCK_SIZE = 1000
"""Ids claimed at once: a crash wastes at most this many of 2**63."""


class ProducerIds:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        try:
            self._next = self._claimed = int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            self._next = self._claimed = 0
        except ValueError as error:
            raise CorruptFile(self._path, "expected one whole number") from error

    def take(self) -> int:
        """A producer id that no producer of this data folder ever had.

        Raises:
            OSError: the next block could not be claimed.
        """
        if self._next >= self._claimed:
            write_atomically(self._path, f"{self._claimed + BLOCK_SIZE}\n".encode())
            self._claimed += BLOCK_SIZE
        self._next += 1
        return self._next - 1
