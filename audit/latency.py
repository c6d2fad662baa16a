"""Latency of counted messages: mean, 95th and 99th percentile, maximum.

Mean and maximum are exact. Percentiles come from a fixed histogram with eight buckets per power of two; the upper bound
of the bucket is reported, so they are at most 12.5 % too large and never too small. The loader counts by message time
in the window instead (`WindowTimes`), because all messages of a commit are counted at once; its percentiles are at most
`SLICE_MS` too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS

SLICES: Final = 20
"""Parts of a window in which the loader counts message times."""

SLICE_MS: Final = WINDOW_MS // SLICES


class Latency(NamedTuple):
    """The latency of messages in milliseconds, from message time to counting time; for producers from handing a message
    to the Kafka client to its acknowledgement. A message time in the future is a latency of 0."""

    mean_ms: int = 0
    p95_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


NO_LATENCY: Final = Latency()
"""The latency of a row that does not measure it."""


class LatencyHistogram:
    """Sums up latencies in milliseconds. Not thread-safe. `buckets` are the numbers of latencies by bucket."""

    __slots__ = ("buckets", "count", "max_ms", "total_ms")

    def __init__(self, count: int = 0, total_ms: int = 0, max_ms: int = 0) -> None:
        self.count, self.total_ms, self.max_ms = count, total_ms, max_ms
        self.buckets: dict[int, int] = {}

    def add(self, latency_ms: int, messages: int = 1) -> None:
        latency_ms = max(0, latency_ms)
        self.count += messages
        self.total_ms += latency_ms * messages
        self.max_ms = max(self.max_ms, latency_ms)
        bucket = _bucket(latency_ms)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + messages

    def merge(self, other: LatencyHistogram) -> None:
        """Adds the latencies of another histogram."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        for bucket, messages in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + messages

    def latency(self) -> Latency:
        if not self.count:
            return NO_LATENCY
        bounds = {_upper_bound(bucket): messages for bucket, messages in self.buckets.items()}
        p95_ms, p99_ms = (min(self.max_ms, _percentile(bounds, self.count, percent)) for percent in (95, 99))
        return Latency(round(self.total_ms / self.count), p95_ms, p99_ms, self.max_ms)


def _bucket(latency_ms: int) -> int:
    shift = max(0, latency_ms.bit_length() - 4)
    return shift * 8 + (latency_ms >> shift)


def _upper_bound(bucket: int) -> int:
    """Returns the largest latency in a bucket."""
    shift = max(0, (bucket >> 3) - 1)
    return (bucket - shift * 8 + 1 << shift) - 1


def _percentile(counts: Mapping[int, int], total: int, percent: int) -> int:
    """Returns the smallest key at which the counts of keys up to it reach the percentage of `total`."""
    left = -(-total * percent // 100)
    for key in sorted(counts):
        left -= counts[key]
        if left <= 0:
            return key
    return max(counts)


class WindowTimes(NamedTuple):
    """The distribution of message times within a window, in milliseconds after its start. All values are 0 for a
    special window, and if the times were not counted.

    The latency at any counting time follows from it: the 95th percentile of the latency belongs to the 5th percentile
    of the message times.
    """

    no_time: int = 0  # messages without a time in the time fields of their schema
    mean_ms: int = 0
    p5_ms: int = 0  # at most SLICE_MS too small
    p1_ms: int = 0
    first_ms: int = 0

    @classmethod
    def of(cls, no_time: int, total_ms: int, first_ms: int, slices: Sequence[int]) -> WindowTimes:
        """Sums up message times.

        Args:
            no_time: messages without a time in the time fields of their schema.
            total_ms: sum of the times after the window's start.
            first_ms: the smallest of these times.
            slices: messages in each of the `SLICES` parts of the window.
        """
        messages = sum(slices)
        if not messages:
            return cls(no_time)
        counts = {number * SLICE_MS: count for number, count in enumerate(slices) if count}
        p5_ms, p1_ms = (max(first_ms, _percentile(counts, messages, percent)) for percent in (5, 1))
        return cls(no_time, total_ms // messages, p5_ms, p1_ms, first_ms)

    def latency(self, window_start_ms: int, counted_at_ms: int) -> Latency:
        """Returns the latency of the messages of a window that were all counted at `counted_at_ms`."""
        if window_start_ms in SPECIAL_WINDOWS:
            return NO_LATENCY
        since_start_ms = counted_at_ms - window_start_ms
        return Latency(*(max(0, since_start_ms - time_ms) for time_ms in self[1:]))


def late_count(window_start_ms: int, counted_at_ms: int, late_after_ms: int, messages: int) -> int:
    """Returns how many of `messages`, all counted at `counted_at_ms`, are late: counted more than `late_after_ms` after
    the end of their window. Messages of special windows have no usable time and are not late."""
    if window_start_ms in SPECIAL_WINDOWS:
        return 0
    return messages if counted_at_ms > window_start_ms + WINDOW_MS + late_after_ms else 0
