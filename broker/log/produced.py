"""What a producer may send for one partition: exactly one whole, intact, plain record batch of version 2."""

from __future__ import annotations

from headrace.broker.errors import RequestRefused
from headrace.broker.log.opened import opened
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    TRANSACTIONAL,
    BatchHeader,
    has_valid_crc,
    read_batch_header,
)

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, key length, value length and number of headers, of one byte each."""
NO_TIMESTAMP = -1
CODECS = frozenset(range(5))  # none, gzip, snappy, lz4, zstd


def check_produced(batch: memoryview, bytes_max: int) -> BatchHeader:
    """Returns the header of what a producer sent for one partition.

    Records inside are not looked at: that would cost per record, and whoever reads them has to check them anyway.

    Raises:
        RequestRefused: it is not exactly one whole, intact, plain batch of version 2 within `bytes_max`.
    """
    if len(batch) < HEADER_BYTES:
        # Messages of versions 0 and 1 can be shorter than a header of version 2.
        if len(batch) > MAGIC_AT and batch[MAGIC_AT] < MAGIC:
            raise _old_format()
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {len(batch)} bytes")
    header = read_batch_header(batch)
    if header.magic < MAGIC:
        raise _old_format()
    if header.magic != MAGIC:
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, f"record batch version {header.magic}; expected {MAGIC}")
    if len(batch) > bytes_max:
        raise RequestRefused(
            ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of {len(batch)} bytes; at most {bytes_max} are allowed"
        )
    if header.size != len(batch):
        code = ErrorCode.INVALID_RECORD if HEADER_BYTES <= header.size < len(batch) else ErrorCode.CORRUPT_MESSAGE
        raise RequestRefused(code, "expected exactly one record batch per partition")
    if not has_valid_crc(batch, header):
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, "the record batch fails its CRC")
    _check_fields(header)
    return header


def check_times(header: BatchHeader, now_ms: int, *, after_ms_max: int, before_ms_max: int) -> None:
    """Are the times of a batch near enough to the broker's, by its header? (KIP-937, KIP-1030)

    One record far ahead would keep its whole segment from retention by age. Kafka compares each record; here the first
    and the largest time that the header names are, which is what retention goes by, and records stay unopened.

    Raises:
        RequestRefused: they are not.
    """
    if header.max_timestamp - now_ms > after_ms_max:
        raise RequestRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"a record of timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms ahead of the broker's "
            f"clock; message.timestamp.after.max.ms is {after_ms_max}",
        )
    if header.base_timestamp != NO_TIMESTAMP and now_ms - header.base_timestamp > before_ms_max:
        raise RequestRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"a record of timestamp {header.base_timestamp} is {now_ms - header.base_timestamp} ms behind the broker's "
            f"clock; message.timestamp.before.max.ms is {before_ms_max}",
        )


def check_keys(batch: memoryview) -> None:
    """
    Raises:
        RequestRefused: a record has no key, which compaction goes by, or the batch cannot be opened to see.
    """
    try:
        keyless = [offset for offset, _, key, _, _ in opened(bytes(batch)) if key is None]
    except CorruptBatch as error:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD, f"a batch of a compacted topic cannot be opened: {error}"
        ) from error
    if keyless:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD, f"{len(keyless)} records without a key, for a topic that is compacted by keys"
        )


def _old_format() -> RequestRefused:
    return RequestRefused(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "messages of versions 0 and 1 are not stored; use a client of 2017 on"
    )


def _check_fields(header: BatchHeader) -> None:
    if header.attributes & CODEC_MASK not in CODECS:
        raise RequestRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.attributes & CODEC_MASK}")
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "a transaction without a producer id")
    if header.attributes & CONTROL:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "control batches are the broker's to write")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records but a last offset delta of {header.last_offset_delta}",
        )
    is_plain = not header.attributes & CODEC_MASK
    if is_plain and header.record_count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {header.size} bytes")


def prefix(base_offset: int, header: BatchHeader, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch as it is stored at `base_offset`."""
    return PREFIX.pack(base_offset, header.batch_length, leader_epoch)
