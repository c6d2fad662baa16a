"""The checksums of files, which commits hold: they tell a file that was changed from the one that was committed.

XXH3 of 128 bits (its specification is github.com/Cyan4973/xxHash's): it is taken of every byte that a task writes, and
SHA-256 took a twelfth of its time. It is no proof against somebody who can write to the warehouse, who could write
commits too. The name of the algorithm is in the checksum; one without a name, of an older commit, is a SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import IO, Any

import xxhash

READ_BYTES = 1 << 20
XXH3, SHA_256 = "xxh3-128:", ""
ALGORITHMS: Mapping[str, Callable[[], Any]] = {XXH3: xxhash.xxh3_128, SHA_256: hashlib.sha256}
"""By how the checksum begins."""


class Checksum:
    """Of what it is given, piece by piece."""

    __slots__ = ("_algorithm", "_digest", "update")

    def __init__(self, algorithm: str = XXH3) -> None:
        self._algorithm = algorithm
        self._digest = ALGORITHMS[algorithm]()
        self.update: Callable[[bytes], object] = self._digest.update

    def __str__(self) -> str:
        return f"{self._algorithm}{self._digest.hexdigest()}"


def checksum_as(committed: str, file: IO[bytes]) -> str:
    """The checksum of all that a file has, by the algorithm of the one that was committed."""
    checksum = Checksum(XXH3 if committed.startswith(XXH3) else SHA_256)
    while piece := file.read(READ_BYTES):
        checksum.update(piece)
    return str(checksum)
