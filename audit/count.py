"""Counting messages: how many, how many bytes, and an order-free fingerprint of which.

The fingerprint is the sum modulo 2**64 of one 64-bit hash per message, so rows add up in any order and a loss and a
duplicate that cancel in the count still change it. (An exclusive-or would let a message and its duplicate cancel.)

Every tier counts by these functions, or its rows could not be compared. Messages without a value (tombstones) are
not counted by any tier: they are no rows of a table and carry no message time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xxhash import xxh64_intdigest

from headrace.audit.window import counted_window

FINGERPRINT_MASK: Final = (1 << 64) - 1

HASH: Final = "xxh64"
"""The name of `message_hash` in rows: fingerprints by another hash cannot be compared with its."""
HASH_BEFORE: Final = "blake2b-64"
"""That of rows which name none."""


def message_hash(key: bytes | None, value: bytes) -> int:
    """XXH64 of the value, by a seed that is the XXH64 of the key with seed 1, and 0 for a message without key.

    So moving a byte from key to value, or an empty key for none, gives another hash. Headers and timestamp take no
    part: mirrors may change them.
    """
    return xxh64_intdigest(value, 0 if key is None else xxh64_intdigest(key, 1))


class Tally:
    """A running count; `bytes` are those of keys and values, as they are on the wire before compression."""

    __slots__ = ("bytes", "count", "fingerprint")

    def __init__(self, count: int = 0, bytes: int = 0, fingerprint: int = 0) -> None:
        self.count = count
        self.bytes = bytes
        self.fingerprint = fingerprint

    def add(self, count: int, size_bytes: int, fingerprint: int) -> None:
        self.count += count
        self.bytes += size_bytes
        self.fingerprint = (self.fingerprint + fingerprint) & FINGERPRINT_MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return (self.count, self.bytes, self.fingerprint) == (other.count, other.bytes, other.fingerprint)

    __hash__ = None  # type: ignore[assignment]  # mutable, and mypy has no other spelling for "unhashable"

    def __repr__(self) -> str:
        return f"Tally(count={self.count}, bytes={self.bytes}, fingerprint={self.fingerprint:#018x})"


class WindowCounter:
    """Tallies by topic and window. Not locked: one thread counts, or its owner locks."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[str, dict[int, Tally]] = {}

    def add(self, topic: str, time_ms: int, key: bytes | None, value: bytes) -> None:
        """Counts one message in the window of its message time."""
        windows = self._tallies.setdefault(topic, {})
        tally = windows.setdefault(counted_window(time_ms, windows), Tally())
        tally.add(1, len(value) + (len(key) if key is not None else 0), message_hash(key, value))

    def __iter__(self) -> Iterator[tuple[str, int, Tally]]:
        """(topic, window start, tally) in no particular order."""
        for topic, windows in self._tallies.items():
            for start_ms, tally in windows.items():
                yield topic, start_ms, tally

    def __len__(self) -> int:
        return sum(map(len, self._tallies.values()))

    def clear(self) -> None:
        self._tallies.clear()
