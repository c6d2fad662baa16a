"""The running count of a producer for one topic and window.

`OpenRow` is the specification; its compiled counterpart, `headrace.clients.core_tallies.CoreRow`, replaces `count` and
`acknowledge`, which run for each message. Their number of sent messages and the sums of the acknowledged ones are words
of the spool, so each call updates the spool as well.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Final

from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.latency import LatencyHistogram
from headrace.audit.spool import SUM_WORDS, Spool, sums_index
from headrace.audit.tally import message_size
from headrace.audit.window import WINDOW_MS

LATENCY_MS_MAX: Final = 2**31 - 1
"""Longer latencies count as this one. It is librdkafka's maximum of `delivery.timeout.ms`."""

DIGEST: Final = struct.Struct("QQ")
"""Format of a digest: hash of a message, and bytes of key and value; or the sums of both for several messages."""


def message_digest(key: bytes | None, value: bytes) -> bytes:
    """Returns the digest of a message."""
    return DIGEST.pack(message_hash(key, value), message_size(key, value))


def _own_words() -> memoryview[int]:
    return memoryview(bytearray(8 * SUM_WORDS)).cast("Q")


class OpenRow:
    """The running count of one topic and window. `ProducerCounter.take_rows` closes it and makes an audit row of it.

    Args:
        late_from_ms: the time from which on acknowledged messages are late; None for a special window.
        spool: the spool, if the count has a `slot` in it; a slot is -1 otherwise.
    """

    __slots__ = (
        "_lock",
        "at",
        "end_ms",
        "errors",
        "is_open",
        "late",
        "late_from_ms",
        "latencies",
        "no_time",
        "progress",
        "sequence",
        "slot",
        "start_ms",
        "topic",
        "words",
    )

    def __init__(
        self, topic: str, start_ms: int, late_from_ms: int | None, sequence: int, slot: int, spool: Spool | None
    ) -> None:
        self.topic = topic
        self.start_ms = start_ms
        self.end_ms = start_ms + WINDOW_MS if start_ms >= 0 else start_ms  # special windows contain no message time
        self.late_from_ms = late_from_ms
        self.sequence = sequence
        self.slot = slot
        self.words, self.at = _own_words(), 0
        """The words from index `at` on are the number of sent messages, and the number, bytes and fingerprint of the
        acknowledged ones: words of the spool, or of this process if the row has no slot."""
        if spool is not None and slot >= 0:
            self.words, self.at = spool.words, sums_index(slot)
        self.late = self.no_time = self.errors = 0
        self.latencies = LatencyHistogram()
        self.progress = -1  # sent + count + errors at the last `take_rows`: an unchanged row is ready for publication
        self.is_open = True
        self._lock = threading.Lock()

    def count(self, time_ms: int | None, key: bytes | None, value: bytes, /) -> bytes | None:
        """Counts a message before it is handed to the Kafka client. Returns its digest; None, without counting, if the
        row is closed or `time_ms` is not in its window. With None for `time_ms`, the caller has chosen the window."""
        digest = message_digest(key, value)
        # Without a lock, which would double the cost: CPython changes threads only at calls and loops, and there is
        # none between the check and the sum. `close` changes `end_ms` before the number of sent messages is read.
        if self.start_ms <= time_ms < self.end_ms if time_ms is not None else self.is_open:
            self.words[self.at] += 1
            return digest
        return None

    def acknowledge(self, digest: bytes, latency_s: float | None, now_ms: float, /) -> bool:
        """Counts a message that the brokers acknowledged. Returns False, without counting, if the row is closed.

        Args:
            digest: the result of `count`.
            latency_s: seconds from sending to acknowledgement; None if unknown.
            now_ms: the current time, which decides whether the message is late.
        """
        return self.acknowledge_together(1, digest, latency_s, now_ms)

    def acknowledge_together(self, count: int, digest: bytes, latency_s: float | None, now_ms: float) -> bool:
        """Counts messages like `acknowledge`, from the sum of their digests. They have the same latency."""
        with self._lock:
            if not self.is_open:
                return False
            fingerprint, size_bytes = DIGEST.unpack(digest)
            # CoreRow changes the words without this lock; as in `count`, no other thread runs within a statement.
            words, at = self.words, self.at
            words[at + 1] += count
            words[at + 2] += size_bytes
            words[at + 3] = (words[at + 3] + fingerprint) & FINGERPRINT_MASK
            if self.late_from_ms is not None and now_ms > self.late_from_ms:
                self.late += count
            if latency_s is not None:
                self.latencies.add(int(min(max(0.0, latency_s * 1000), LATENCY_MS_MAX)), count)
            return True

    def add_sent(self, count: int) -> None:
        """Counts messages like `count`, without their hashes. The caller prevents that the row is closed meanwhile."""
        self.words[self.at] += count

    def withdraw(self, count: int = 1) -> None:
        """Uncounts sent messages, unless the row is closed. The caller prevents that it is closed meanwhile."""
        if self.is_open:
            self.words[self.at] -= count

    def sums(self) -> tuple[int, int, int, int]:
        """Returns the number of sent messages, and number, bytes and fingerprint of the acknowledged ones."""
        sent, count, size_bytes, fingerprint = self.words[self.at : self.at + SUM_WORDS]
        return sent, count, size_bytes, fingerprint

    def close(self) -> None:
        """Ends the count: nothing is added to it any more."""
        with self._lock:
            self.is_open = False
            self.end_ms = self.start_ms

    def abandon_after_fork(self) -> None:
        """Ends the count in a forked child, in which no thread releases the lock."""
        self._lock = threading.Lock()
        self.close()

    def leave_spool(self) -> None:
        """Moves the sums to memory of this process, before the spool is closed."""
        own = _own_words()
        own[:] = self.words[self.at : self.at + SUM_WORDS]
        self.words, self.at = own, 0


CLOSED_ROW: Final = OpenRow("", 0, None, 0, -1, None)
"""A row in which nothing is counted."""
CLOSED_ROW.close()

RowType = Callable[[str, int, int | None, int, int, Spool | None], OpenRow]
"""`OpenRow`, or the compiled class with the same arguments."""


class Ticket:
    """One counted message, returned by `ProducerCounter.count_sent` for `acknowledge`, `count_failed` or `withdraw`; or
    `count` messages, with the sums of their sizes and of their hashes."""

    __slots__ = ("count", "digest", "row")

    def __init__(self, row: OpenRow, digest: bytes, count: int = 1) -> None:
        self.row = row
        self.digest = digest
        self.count = count
