"""Decides which segments retention deletes."""

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
    """Returns how many of the oldest closed segments can be deleted.

    A segment expires when all older ones have expired, all of it is below the high watermark, and one of these
    conditions is true:

    - its time (`ClosedSegment.timestamp_ms`) lies more than `retention_ms` before `now_ms`,
    - the log, which has `total_bytes`, has at least `retention_bytes` without it and the older ones,
    - it lies completely below the log start offset.

    The value UNLIMITED disables `retention_ms` or `retention_bytes`.
    """
    count = 0
    for segment in closed:
        is_too_old = retention_ms != UNLIMITED and now_ms - segment.timestamp_ms > retention_ms
        is_over_limit = retention_bytes != UNLIMITED and total_bytes - segment.size >= retention_bytes
        is_deleted = segment.next_offset <= log_start_offset
        if segment.next_offset > high_watermark or not (is_too_old or is_over_limit or is_deleted):
            break
        total_bytes -= segment.size
        count += 1
    return count
