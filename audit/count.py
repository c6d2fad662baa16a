"""Counts messages: their number, their bytes, and a fingerprint that does not depend on their order.

The fingerprint is the sum modulo 2**64 of one 64-bit hash per message. Rows can therefore be added in any order, and a
lost and a duplicated message change the fingerprint although the number stays the same. (With an exclusive-or, a
message and its duplicate would cancel out.)

All tiers compute the same hash and the same sum, so that their counts are comparable. No tier counts messages without a
value (tombstones): they become no row of a table and have no message time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xxhash import xxh64_intdigest

from headrace.audit.latency import LatencyHistogram
from headrace.audit.window import WINDOW_MS, counted_window

FINGERPRINT_MASK: Final = (1 << 64) - 1

HASH: Final = "xxh64"
"""Name of the hash of `message_hash` in rows. Fingerprints with different hashes are not comparable."""


def message_hash(key: bytes | None, value: bytes) -> int:
    """Returns the XXH64 of the value. The seed is the XXH64 of the key with seed 1, or 0 for a message without key.

    The hash therefore changes if a byte moves from key to value, or if a missing key becomes an empty one. Headers and
    timestamp are not hashed, because mirroring may change them.
    """
    return xxh64_intdigest(value, 0 if key is None else xxh64_intdigest(key, 1))


class MessageTally:
    """A running count of messages: number, bytes and fingerprint. `bytes` is the size of keys and values before
    compression. Equality compares only these three; `late`, `no_time` and `errors` count messages as an audit row
    does."""

    __slots__ = ("bytes", "count", "errors", "fingerprint", "late", "latencies", "no_time")

    def __init__(self, count: int = 0, bytes: int = 0, fingerprint: int = 0) -> None:
        self.count = count
        self.bytes = bytes
        self.fingerprint = fingerprint
        self.late = self.no_time = self.errors = 0
        self.latencies = LatencyHistogram()

    def add(self, count: int, size_bytes: int, fingerprint: int) -> None:
        self.count += count
        self.bytes += size_bytes
        self.fingerprint = (self.fingerprint + fingerprint) & FINGERPRINT_MASK

    def merge(self, other: MessageTally) -> None:
        """Adds the messages of another count."""
        self.add(other.count, other.bytes, other.fingerprint)
        self.late += other.late
        self.no_time += other.no_time
        self.errors += other.errors
        self.latencies.merge(other.latencies)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageTally):
            return NotImplemented
        return (self.count, self.bytes, self.fingerprint) == (other.count, other.bytes, other.fingerprint)

    __hash__ = None  # type: ignore[assignment]  # mutable, and mypy has no other spelling for "unhashable"

    def __repr__(self) -> str:
        return f"MessageTally(count={self.count}, bytes={self.bytes}, fingerprint={self.fingerprint:#018x})"


class WindowCounter:
    """Counts messages by topic and window: number, bytes and fingerprint. Not thread-safe."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[str, dict[int, MessageTally]] = {}

    def add(self, topic: str, time_ms: int, key: bytes | None, value: bytes) -> MessageTally:
        """Counts one message in the window of its message time, with the size and the hash of its key and value.
        Returns the count of the window."""
        tally = self.tally(topic, time_ms)
        tally.add(1, len(value) + (len(key) if key is not None else 0), message_hash(key, value))
        return tally

    def tally(self, topic: str, time_ms: int) -> MessageTally:
        """Returns the count of the window of a message time, or of the special window that counts messages with this
        time."""
        windows = self._tallies.get(topic)
        if windows is None:
            windows = self._tallies[topic] = {}
        tally = windows.get(time_ms - time_ms % WINDOW_MS)
        if tally is None:
            start_ms = counted_window(time_ms, windows)
            tally = windows.get(start_ms)
            if tally is None:
                tally = windows[start_ms] = MessageTally()
        return tally

    def __iter__(self) -> Iterator[tuple[str, int, MessageTally]]:
        """Yields (topic, window start, tally) in no particular order."""
        for topic, windows in self._tallies.items():
            for start_ms, tally in windows.items():
                yield topic, start_ms, tally

    def __len__(self) -> int:
        return sum(map(len, self._tallies.values()))

    def clear(self) -> None:
        self._tallies.clear()
