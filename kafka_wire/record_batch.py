"""Record batches, version 2: the unit that is checked, stored and sent; batches are kept verbatim.

Layout of the 61-byte header, big endian: baseOffset i64, batchLength i32 (bytes after this field),
partitionLeaderEpoch i32, magic i8, crc u32 (CRC-32C of everything from attributes on), attributes i16 (bits 0-2
codec, 3 timestamp type, 4 transactional, 5 control), lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64,
producerId i64, producerEpoch i16, baseSequence i32, recordCount i32; then the records.

baseOffset and partitionLeaderEpoch lie before what the CRC covers, so the broker writes them and leaves the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace.kafka_wire.codecs import DecompressionError, decompress

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = struct.Struct(">qii")
PREFIX_BYTES = PREFIX.size
_ATTRIBUTES = struct.Struct(">h")
LENGTH_OVERHEAD = 12
"""Bytes of a batch that its batchLength does not count: baseOffset and batchLength itself."""
CRC_FROM = 21
MAGIC = 2
MAGIC_AT = 16

RECORDS_OPENED_MAX = 200_000
"""Of one batch: others wait while it is read, a microsecond per record."""
BYTES_OPENED_MAX = 64 * 1024 * 1024
"""Of one batch, uncompressed: a kilobyte can be made to swell to gigabytes."""

CODEC_MASK, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


class Record(NamedTuple):
    """One record of a batch, for the few places that look inside one."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_batch_header(view: memoryview | bytes, pos: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(view, pos))


def has_valid_crc(batch: memoryview, header: BatchHeader) -> bool:
    return bool(crc32c(batch[CRC_FROM : header.size]) == header.crc)


def records(batch: bytes | memoryview) -> Iterator[Record]:
    """The records of one whole batch.

    Raises:
        Exception: there are more than are looked at, or whatever the decoders raise on bytes that are no records or
            on a codec whose library is missing; callers have an answer for a batch that cannot be opened.
    """
    header = read_batch_header(batch)
    if header.record_count > RECORDS_OPENED_MAX:
        raise DecompressionError(f"{header.record_count} records; at most {RECORDS_OPENED_MAX} are looked at")
    codec = header.attributes & CODEC_MASK
    if codec:
        plain = bytearray(batch[:HEADER_BYTES])
        _ATTRIBUTES.pack_into(plain, CRC_FROM, header.attributes & ~CODEC_MASK)
        batch = bytes(plain) + decompress(codec, memoryview(batch)[HEADER_BYTES:], BYTES_OPENED_MAX)
    for record in DefaultRecordBatch(batch):
        yield Record(record.offset, record.timestamp, record.key, record.value)


def build_batch(entries: Sequence[tuple[bytes | None, bytes | None]], timestamp_ms: int) -> bytes:
    """One uncompressed batch of (key, value) pairs, at base offset 0."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, (key, value) in enumerate(entries):
        builder.append(delta, timestamp_ms, key, value, [])
    return bytes(builder.build())
