"""The records of a stored batch, for the few places of the broker that look inside one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import Record, TakeApart, open_batch, read_batch_header

RECORDS_OPENED_MAX = 200_000
"""Of one batch: others wait while it is read, a microsecond per record."""
BYTES_OPENED_MAX = 64 * 1024 * 1024
"""Of one batch, uncompressed: a kilobyte can be made to swell to gigabytes."""


def opened(batch: bytes, *, is_our_own: bool = False, take_apart: TakeApart | None = None) -> Sequence[Record]:
    """The records of one whole batch. What the broker wrote itself is opened whatever its size.

    Args:
        take_apart: instead of `records_of`.

    Raises:
        CorruptBatch: there are more than are looked at, or the batch cannot be opened.
    """
    header = read_batch_header(batch)
    if header.record_count > RECORDS_OPENED_MAX and not is_our_own:
        raise CorruptBatch(f"{header.record_count} records; at most {RECORDS_OPENED_MAX} are looked at")
    bytes_max = max(BYTES_OPENED_MAX, header.size) if is_our_own else BYTES_OPENED_MAX
    return open_batch(memoryview(batch), header, f"offset {header.base_offset}", bytes_max, take_apart)
