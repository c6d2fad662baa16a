"""Validates produced data of one partition: exactly one complete, intact data batch of version 2."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.errors import RecordError, RecordsRefused, RequestRefused
from headrace.broker.log.decoding import decode_records
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    has_valid_crc,
    read_batch_header,
)

RECORD_BYTES_MIN = 7
"""Size of the smallest record: one byte each for length, attributes, timestamp delta, offset delta, key length, value
length and header count."""
NO_TIMESTAMP = -1
NO_LIMIT_MS = (1 << 63) - 1
RECORD_ERRORS_MAX = 10_000
"""Most record errors in the response for one batch. If more records are invalid, the response lists none of them, and
producers report all records of the batch as invalid."""
CODECS = frozenset(range(5))  # none, gzip, snappy, lz4, zstd


def validate_batch(batch: memoryview, bytes_max: int) -> BatchHeader:
    """Validates the batch that a producer sent for one partition, and returns its header.

    Records are not decoded: that costs time per record, and consumers check them anyway.

    Raises:
        RequestRefused: the data is not exactly one valid batch of version 2 within `bytes_max`.
    """
    if len(batch) < HEADER_BYTES:
        # A message of version 0 or 1 can be shorter than a version 2 header.
        if len(batch) > MAGIC_AT and batch[MAGIC_AT] < MAGIC:
            raise _old_format()
        raise RequestRefused(
            ErrorCode.CORRUPT_MESSAGE,
            f"a record batch of {len(batch)} bytes is shorter than a batch header of {HEADER_BYTES} bytes",
        )
    header = read_batch_header(batch)
    if header.magic < MAGIC:
        raise _old_format()
    if header.magic != MAGIC:
        raise RequestRefused(
            ErrorCode.CORRUPT_MESSAGE,
            f"the record batch has the message format (magic) {header.magic}; expected {MAGIC}",
        )
    if len(batch) > bytes_max:
        raise RequestRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {len(batch)} bytes, but max.message.bytes of the topic is {bytes_max}; raise it, or "
            "send smaller batches",
        )
    if header.size != len(batch):
        code = ErrorCode.INVALID_RECORD if HEADER_BYTES <= header.size < len(batch) else ErrorCode.CORRUPT_MESSAGE
        raise RequestRefused(
            code,
            f"expected exactly one record batch per partition, but the data has {len(batch)} bytes and the first batch "
            f"{header.size}",
        )
    if not has_valid_crc(batch, header):
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, "the record batch fails its CRC check; send it again")
    _check_fields(header)
    return header


def validate_timestamps(
    batch: memoryview, header: BatchHeader, now_ms: int, *, after_ms_max: int, before_ms_max: int
) -> None:
    """Checks the batch's timestamps against the broker's clock, which shows `now_ms` (KIP-937, KIP-1030).

    A single record far in the future would exempt its whole segment from retention by age. The header has the largest
    timestamp, so the records are decoded only if it is too large, or if the topic limits how old records may be.
    Records without a timestamp pass.

    Args:
        header: the header of `batch`, already parsed.
        after_ms_max: how far a timestamp may be ahead of the clock.
        before_ms_max: how far a timestamp may be behind the clock; NO_LIMIT_MS for no limit.

    Raises:
        RequestRefused: a timestamp is too far ahead or behind, or the batch has to be decoded and cannot be.
    """
    is_ahead = header.max_timestamp - now_ms > after_ms_max
    if not is_ahead and before_ms_max == NO_LIMIT_MS:
        return
    errors = []
    for offset, timestamp_ms, _, _, _ in _decoded(batch):
        ahead_ms = timestamp_ms - now_ms
        if timestamp_ms != NO_TIMESTAMP and not -before_ms_max <= ahead_ms <= after_ms_max:
            errors.append(
                RecordError(
                    offset - header.base_offset,
                    f"the record's timestamp {timestamp_ms} is {abs(ahead_ms)} ms "
                    f"{'ahead of' if ahead_ms > 0 else 'behind'} the broker's clock",
                )
            )
    if is_ahead or errors:
        reason = (
            f"record {errors[0].batch_index}: {errors[0].message}"
            if errors
            else f"the batch header's largest timestamp {header.max_timestamp} is too far ahead of the broker's clock"
        )
        raise _records_refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"{reason}; the topic permits {after_ms_max} ms ahead (message.timestamp.after.max.ms) and {before_ms_max} "
            "ms behind (message.timestamp.before.max.ms)",
            errors,
        )


def validate_keys(batch: memoryview, header: BatchHeader) -> None:
    """Checks that every record of a batch for a compacted topic has a key. `header` is the header of `batch`, already
    parsed.

    Raises:
        RequestRefused: a record has no key, or the batch cannot be decoded or exceeds a limit of `decode_records`.
    """
    errors = [
        RecordError(offset - header.base_offset, "a record of a compacted topic needs a key")
        for offset, _, key, _, _ in _decoded(batch)
        if key is None
    ]
    if errors:
        raise _records_refused(
            ErrorCode.INVALID_RECORD,
            f"{len(errors)} records have no key; every record of a compacted topic needs a key",
            errors,
        )


def _decoded(batch: memoryview) -> Sequence[Record]:
    try:
        return decode_records(bytes(batch))
    except CorruptBatch as error:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD, f"the records of the batch must be checked but cannot be decoded: {error}"
        ) from error


def _records_refused(code: ErrorCode, message: str, errors: Sequence[RecordError]) -> RecordsRefused:
    return RecordsRefused(code, message, tuple(errors) if len(errors) <= RECORD_ERRORS_MAX else ())


def _old_format() -> RequestRefused:
    return RequestRefused(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        "messages of versions 0 and 1 are not supported; use a client released in 2017 or later",
    )


def _check_fields(header: BatchHeader) -> None:
    if header.attributes & CODEC_MASK not in CODECS:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the batch has the unknown compression codec {header.attributes & CODEC_MASK}",
        )
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "the batch is transactional but has no producer id")
    if header.attributes & CONTROL:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "clients cannot write control batches")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch header states {header.record_count} records, which contradicts its last offset delta of "
            f"{header.last_offset_delta}",
        )
    is_plain = not header.attributes & CODEC_MASK
    if is_plain and header.record_count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        raise RequestRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch header states {header.record_count} records, too many for a batch of {header.size} bytes",
        )
    if header.attributes & LOG_APPEND_TIME:
        raise RequestRefused(
            ErrorCode.INVALID_TIMESTAMP,
            "the batch declares its timestamps as set by the broker (LogAppendTime); producers send CreateTime",
        )


def stored_prefix(base_offset: int, header: BatchHeader, leader_epoch: int) -> bytes:
    """Returns the first 16 bytes of a batch as they are stored, with the base offset and leader epoch that the broker
    assigns. `header` is the header that the producer sent."""
    return PREFIX.pack(base_offset, header.batch_length, leader_epoch)
