"""Checksums of files, stored in commits to detect changed files.

The algorithm is XXH3 with 128 bits (specification: github.com/Cyan4973/xxHash). Every byte that a task writes passes
through it; SHA-256 took a twelfth of a task's time. XXH3 gives no protection against an attacker with write access to
the warehouse, but such an attacker could write commits too. A checksum begins with the name of its algorithm; without a
name it is SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import IO, Any

import xxhash

READ_BYTES = 1 << 20
XXH3, SHA_256 = "xxh3-128:", ""
ALGORITHMS: Mapping[str, Callable[[], Any]] = {XXH3: xxhash.xxh3_128, SHA_256: hashlib.sha256}
"""Hash constructors by the name of the algorithm, with which a checksum begins."""


class Checksum:
    """The checksum of a file, computed while the file is read or written: `update` adds the next bytes, and `str()`
    returns the checksum with the name of its algorithm."""

    __slots__ = ("_algorithm", "_digest", "update")

    def __init__(self, algorithm: str = XXH3) -> None:
        self._algorithm = algorithm
        self._digest = ALGORITHMS[algorithm]()
        self.update: Callable[[bytes], object] = self._digest.update

    def __str__(self) -> str:
        return f"{self._algorithm}{self._digest.hexdigest()}"


def checksum_as(committed: str, file: IO[bytes]) -> str:
    """Computes the checksum of a file with the algorithm of the committed checksum, so that the two can be compared."""
    checksum = Checksum(XXH3 if committed.startswith(XXH3) else SHA_256)
    while chunk := file.read(READ_BYTES):
        checksum.update(chunk)
    return str(checksum)
