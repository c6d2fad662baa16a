"""Which segments retention lets go: a decision over values."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.log.segment import ClosedSegment

UNLIMITED = -1


def expired_segments(
    closed: Sequence[ClosedSegment],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    total_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many of the oldest closed segments go.

    Only from the head, and only whole: a segment goes when its largest timestamp is older than `retention_ms`, when
    the log without it still has `retention_bytes`, or when it lies below the log start. UNLIMITED switches a bound
    off.
    """
    count = 0
    for segment in closed:
        too_old = retention_ms != UNLIMITED and now_ms - segment.timestamp_ms > retention_ms
        too_much = retention_bytes != UNLIMITED and total_bytes - segment.size >= retention_bytes
        hidden = segment.next_offset <= log_start_offset
        if segment.next_offset > high_watermark or not (too_old or too_much or hidden):
            break
        total_bytes -= segment.size
        count += 1
    return count
