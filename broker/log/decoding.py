"""Decodes the records of a batch. Most of the broker needs only the header."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import Record, RecordParser, decode_batch, read_batch_header

RECORDS_DECODED_MAX = 200_000
"""Most records in one decoded batch that a client wrote, except in compaction: decoding takes about a microsecond per
record and blocks the event loop."""
DECODED_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of one batch after decompression, but at least the size of the batch itself with `is_own_batch`: a
kilobyte can be crafted to expand to gigabytes."""


def decode_records(
    batch: bytes, *, is_own_batch: bool = False, record_parser: RecordParser | None = None
) -> Sequence[Record]:
    """Returns the records of one complete batch.

    Args:
        is_own_batch: do not limit the number of records, and permit as many bytes as the batch has. For batches that
            the broker wrote, and for compaction, which must decode every batch and runs in a thread.
        record_parser: parser to use instead of `parse_records`.

    Raises:
        CorruptBatch: the batch exceeds a limit or cannot be decoded.
    """
    header = read_batch_header(batch)
    if header.record_count > RECORDS_DECODED_MAX and not is_own_batch:
        raise CorruptBatch(f"the batch has {header.record_count} records, more than the limit of {RECORDS_DECODED_MAX}")
    bytes_max = max(DECODED_BYTES_MAX, header.size) if is_own_batch else DECODED_BYTES_MAX
    return decode_batch(memoryview(batch), header, f"offset {header.base_offset}", bytes_max, record_parser)
