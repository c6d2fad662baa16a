"""Parser and builder of record batches, version 2, the format of produce requests, logs and fetch responses.

Layout of the 61-byte header, big endian: baseOffset i64, batchLength i32 (bytes after this field),
partitionLeaderEpoch i32, magic i8, crc u32 (CRC-32C of everything from attributes on), attributes i16 (bits 0-2
codec, 3 timestamp type, 4 transactional, 5 control, 6 baseTimestamp is the time until which compaction retains records
without a value), lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64, producerId i64, producerEpoch i16,
baseSequence i32, recordCount i32; then the records, compressed together.

Record: length, attributes i8, timestampDelta, offsetDelta, key length and key, value length and value, count of
headers and headers (key length, key, value length, value). Numbers are zigzag varints; a length of -1 is null.

The CRC does not cover baseOffset and partitionLeaderEpoch, so a broker can set them without changing the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.kafka_wire.errors import CorruptBatch, MisplacedBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = struct.Struct(">qii")
PREFIX_BYTES = PREFIX.size
LENGTH_OVERHEAD = 12
"""Bytes that batchLength does not count: baseOffset and batchLength."""
CRC_AT, CRC_FROM = 17, 21
MAGIC = 2
MAGIC_AT = 16

CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40

Record = tuple[int, int, bytes | None, bytes | None, bytes]
"""(offset, timestamp in ms, key, value, encoded headers: a varint count, then the headers)."""

NO_HEADERS = b"\x00"

RecordParser = Callable[[bytes | memoryview, int, int, int, int | None], Sequence[Record]]
"""A function that can replace `parse_records`: it has the same arguments and a result of the same type, but need not
return all records."""

SAFE_MS = 1 << 62
"""Limit below which base timestamps and deltas are added without a check: the sum of two such numbers fits into 64
bits."""

_BASE_AND_LENGTH = struct.Struct(">qi")
_BASE = struct.Struct(">q")
_CRC = struct.Struct(">I")


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


@dataclass(frozen=True, slots=True)
class Batch:
    """A decoded record batch with all its records. `next_offset` is the offset after the batch, even if compaction
    deleted its last records. `attributes` are the bits of the batch header, such as the codec and whether it is
    transactional."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    attributes: int
    producer_id: int
    records: Sequence[Record]


class BatchFrame(NamedTuple):
    """The bytes (`view`) of a complete batch in a fetch response, not yet validated.

    `position` is where the batch begins in the response. `next_base_offset` is the base offset of the following batch,
    or None if the response ends before it.
    """

    position: int
    base_offset: int
    next_base_offset: int | None
    view: memoryview

    @property
    def end(self) -> int:
        return self.position + len(self.view)

    @property
    def is_followed(self) -> bool:
        """Whether the fetch response contains the base offset of the batch after this one."""
        return self.next_base_offset is not None


def read_batch_header(view: memoryview | bytes, pos: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(view, pos))


def has_valid_crc(batch: memoryview, header: BatchHeader) -> bool:
    return bool(crc32c(batch[CRC_FROM : header.size]) == header.crc)


def split_batches(data: bytes | memoryview, where: str) -> Iterator[BatchFrame]:
    """Yields the complete batches in `data`, the records of a fetch response; a truncated last batch is ignored.

    Args:
        where: broker, topic and partition, for messages.

    Raises:
        CorruptBatch: an impossible length, or a message format older than record batches.
    """
    view = memoryview(data)
    position = 0
    while len(data) - position >= _BASE_AND_LENGTH.size:
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        end = position + LENGTH_OVERHEAD + length
        at = f"{where} offset {base_offset}"
        if len(data) - position > MAGIC_AT and data[position + MAGIC_AT] < MAGIC:
            raise _old_format_error(at, data[position + MAGIC_AT])
        if end - position < HEADER_BYTES:
            raise CorruptBatch(
                f"{at}: a batch of {end - position} bytes is shorter than a batch header of {HEADER_BYTES} bytes"
            )
        if len(data) < end:
            return
        yield BatchFrame(position, base_offset, _base_at(data, end), view[position:end])
        position = end


def end_of_batches(data: bytes | memoryview) -> int | None:
    """Returns the offset after the last complete batch in `data`, the records of a fetch response; None without a
    complete batch. The headers of the batches are not validated."""
    position = 0
    last = -1
    while len(data) - position >= HEADER_BYTES:
        end = position + LENGTH_OVERHEAD + _BASE_AND_LENGTH.unpack_from(data, position)[1]
        if not position + HEADER_BYTES <= end <= len(data):
            break
        last, position = position, end
    return None if last < 0 else int(read_batch_header(data, last).last_offset) + 1


def _base_at(data: bytes | memoryview, position: int) -> int | None:
    """Returns the base offset of the batch at this position of `data`, or None if the bytes end before it."""
    return int(_BASE.unpack_from(data, position)[0]) if len(data) - position >= _BASE.size else None


def read_batch(frame: BatchFrame, where: str, bytes_max: int, record_parser: RecordParser | None = None) -> Batch:
    """Validates and decodes the batch of a frame.

    The checksum does not cover the base offset, so it is compared with the following batch. That happens before the
    records are decoded, because the offsets of an undecodable batch determine where reading continues.

    Args:
        where: broker, topic and partition, for messages.
        bytes_max: size limit of the decompressed records.
        record_parser: replaces `parse_records`.

    Raises:
        MisplacedBatch: impossible offsets, or offsets that overlap with the following batch.
        CorruptBatch: a wrong magic, checksum, codec or record.
    """
    view, at = frame.view, f"{where} offset {frame.base_offset}"
    if view[MAGIC_AT] != MAGIC:
        raise CorruptBatch(f"{at}: the batch has the unknown message format (magic) {view[MAGIC_AT]}, expected {MAGIC}")
    header = read_batch_header(view)
    checksum = crc32c(view[CRC_FROM:])
    if checksum != header.crc:
        raise CorruptBatch(f"{at}: the batch has the wrong checksum {header.crc:#010x}, expected {checksum:#010x}")
    next_offset = header.last_offset + 1
    if not 0 <= header.base_offset < next_offset:
        raise MisplacedBatch(f"{at}: the batch header has the invalid offsets [{header.base_offset}, {next_offset})")
    if frame.next_base_offset is not None and frame.next_base_offset < next_offset:
        raise MisplacedBatch(
            f"{at}: the batch has the offsets [{header.base_offset}, {next_offset}), but the next batch begins at "
            f"offset {frame.next_base_offset}: the base offset of one of the two batches is wrong"
        )
    try:
        records = decode_batch(view, header, at, bytes_max, record_parser)
    except CorruptBatch as error:
        raise CorruptBatch(str(error), next_offset) from error
    if records and not header.base_offset <= records[0][0] <= records[-1][0] < next_offset:
        raise CorruptBatch(
            f"{at}: the batch header has the offsets [{header.base_offset}, {next_offset}), but some of its records "
            "have other offsets",
            next_offset,
        )
    return Batch(header.base_offset, next_offset, header.leader_epoch, header.attributes, header.producer_id, records)


def _old_format_error(at: str, magic: int) -> CorruptBatch:
    return CorruptBatch(
        f"{at}: message format {magic} is older than Kafka 0.11 and not supported; set the topic's message format to 2 "
        "and let the old segments expire"
    )


def offset_after(data: bytes | memoryview, frame: BatchFrame) -> int | None:
    """Returns the offset after a corrupt batch, at which reading continues. This is the base offset of the following
    batch, or None if that is unreliable. No checksum covers base offsets.

    The base offset is reliable if two conditions are met. First, a batch with a valid checksum follows, directly or
    after batches with plausible lengths and growing base offsets. Second, the offsets of that valid batch do not
    overlap with the base offset of the batch after it, if the response contains one.

    Args:
        data: the fetch response that contains the frame.
        frame: the corrupt batch.
    """
    view = memoryview(data)
    position, before, found = frame.end, frame.base_offset, None
    while len(data) - position >= HEADER_BYTES:
        header = read_batch_header(view, position)
        if header.magic != MAGIC or header.size < HEADER_BYTES or header.base_offset <= before:
            return None
        if len(data) - position < header.size:
            return None
        found = header.base_offset if found is None else found
        if crc32c(view[position + CRC_FROM : position + header.size]) == header.crc:
            following = _base_at(data, position + header.size)
            return found if following is None or following > header.last_offset else None
        position, before = position + header.size, header.base_offset
    return None


def decode_batch(
    batch: memoryview, header: BatchHeader, at: str, bytes_max: int, record_parser: RecordParser | None = None
) -> Sequence[Record]:
    """Returns the records of a complete batch with a valid checksum.

    Args:
        batch: the bytes of the batch, with its header.
        header: the parsed header.
        at: broker, topic, partition and offset, for messages.
        bytes_max: size limit of the decompressed records.
        record_parser: replaces `parse_records`.

    Raises:
        CorruptBatch: an unknown codec, too many bytes, or a malformed record.
    """
    from headrace.kafka_wire.codecs import DecompressionError, decompress  # libraries that not all clients install

    try:
        payload = decompress(header.attributes & CODEC_MASK, batch[HEADER_BYTES : header.size], bytes_max)
    except DecompressionError as error:
        raise CorruptBatch(f"{at}: the batch cannot be decompressed: {error}") from error
    try:
        fixed_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        record_parser = record_parser or parse_records
        return record_parser(payload, header.record_count, header.base_offset, header.base_timestamp, fixed_time)
    except (IndexError, ValueError) as error:
        raise CorruptBatch(f"{at}: a record of the batch is malformed: {error}") from error


def parse_records(
    payload: bytes | memoryview, count: int, base_offset: int, base_time: int, fixed_time: int | None
) -> list[Record]:
    """Returns the records of a batch. One-byte varints, by far the most frequent, are read inline.

    Args:
        payload: the decompressed records.
        count: their number, from the batch header.
        base_offset: offset of the batch, to which each record adds its delta.
        base_time: base timestamp of the batch in ms, to which each record adds its delta.
        fixed_time: the time of all records when the broker stamped them (log append time); else None.

    Raises:
        ValueError: wrong lengths, offsets that do not increase, or additional bytes.
        IndexError: the payload is truncated.
    """
    records: list[Record] = []
    append = records.append
    varint = _varint
    b = bytes(payload)
    p = 0
    last_delta = -1
    may_overflow = not -SAFE_MS < base_time < SAFE_MS
    for _ in range(count):
        n = b[p]
        p += 1
        if n > 127:
            n, p = varint(b, p - 1)
        end = p + (n >> 1)
        p += 1  # attributes: unused
        delta = b[p]
        p += 1
        if delta > 127:
            delta, p = varint(b, p - 1)
            if delta >= SAFE_MS:
                may_overflow = True
        time_ms = base_time + ((delta >> 1) ^ -(delta & 1)) if fixed_time is None else fixed_time
        n = b[p]
        p += 1
        if n > 127:
            n, p = varint(b, p - 1)
        delta = n >> 1
        if n & 1 or delta <= last_delta:
            raise ValueError("the record offsets of the batch do not increase")
        last_delta = delta
        n = b[p]
        p += 1
        if n > 127:
            n, p = varint(b, p - 1)
        if n & 1:
            key = None
        else:
            n >>= 1
            key = b[p : p + n]
            p += n
        n = b[p]
        p += 1
        if n > 127:
            n, p = varint(b, p - 1)
        if n & 1:
            value = None
        else:
            n >>= 1
            value = b[p : p + n]
            p += n
        if p >= end:
            raise ValueError("a record has more bytes than its length prefix states")
        append((base_offset + delta, time_ms, key, value, NO_HEADERS if b[p] == 0 else b[p:end]))
        if b[p] == 0 and p + 1 != end:
            raise ValueError("a record has fewer bytes than its length prefix states")
        p = end
    if p != len(b):
        raise ValueError(f"the batch contains {len(b)} bytes of records, but its records take {p}")
    return [_wrap_time(record) for record in records] if may_overflow else records


def parse_times(
    payload: bytes | memoryview, count: int, base_offset: int, base_time: int, fixed_time: int | None
) -> Iterator[tuple[int, int]]:
    """Yields the offset and the time of each record that `parse_records` would return for the same arguments, and skips
    the rest of the record.

    Args:
        payload: the decompressed records.
        count: their number, from the batch header.
        base_offset: offset of the batch, to which each record adds its delta.
        base_time: base timestamp of the batch in ms, to which each record adds its delta.
        fixed_time: the time of all records when the broker stamped them (log append time); else None.

    Raises:
        ValueError: wrong lengths, offsets that do not increase, or additional bytes.
        IndexError: the payload is truncated.
    """
    b = bytes(payload)
    p, last_delta = 0, -1
    for _ in range(count):
        n, p = _varint(b, p)
        end = p + (n >> 1)
        n, p = _varint(b, p + 1)
        time_ms = base_time + ((n >> 1) ^ -(n & 1)) if fixed_time is None else fixed_time
        n, p = _varint(b, p)
        delta = n >> 1
        if n & 1 or delta <= last_delta:
            raise ValueError("the record offsets of the batch do not increase")
        if not p < end <= len(b):
            raise ValueError("the length prefix of a record does not match its content")
        last_delta, p = delta, end
        yield base_offset + delta, _wrap_int64(time_ms)
    if p != len(b):
        raise ValueError(f"the batch contains {len(b)} bytes of records, but its records take {p}")


def _wrap_time(record: Record) -> Record:
    """Returns the record with its time wrapped to a signed 64-bit number, like Kafka's clients."""
    offset, time_ms, key, value, headers = record
    return offset, _wrap_int64(time_ms), key, value, headers


def _wrap_int64(time_ms: int) -> int:
    return (time_ms + 2**63) % 2**64 - 2**63


def parse_headers(raw: bytes) -> list[tuple[str, bytes | None]]:
    """Decodes `raw`, the headers of a record, to pairs of a name and a value.

    Raises:
        ValueError: they are malformed.
    """
    try:
        count, p = _varint(raw, 0)
        found: list[tuple[str, bytes | None]] = []
        for _ in range(count >> 1):
            n, p = _varint(raw, p)
            key = raw[p : p + (n >> 1)].decode("utf-8", "replace")
            p += n >> 1
            n, p = _varint(raw, p)
            value = None if n & 1 else raw[p : p + (n >> 1)]
            p += 0 if n & 1 else n >> 1
            found.append((key, value))
    except IndexError as error:
        raise ValueError("the headers of the record are truncated") from error
    if p != len(raw) or count & 1:
        raise ValueError("the headers of the record are malformed")
    return found


def _varint(b: bytes, p: int) -> tuple[int, int]:
    """Reads an unsigned varint (before zigzag decoding) of up to ten bytes at the position `p` of `b`; returns the
    number and the position after it."""
    n = b[p] & 127
    shift = 7
    while b[p] > 127:
        p += 1
        if shift > 63:
            raise ValueError("a varint is longer than ten bytes")
        n |= (b[p] & 127) << shift
        shift += 7
    return n, p + 1


def build_batch(
    entries: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """Returns an uncompressed batch of (key, value) pairs at base offset 0.

    Args:
        entries: the pairs, one for each record.
        timestamp_ms: the timestamp of all records.
        producer_id: id of the transactional producer; -1 builds a batch that is not transactional.
        producer_epoch: epoch of that producer.
    """
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=0,
        is_transactional=producer_id >= 0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, (key, value) in enumerate(entries):
        builder.append(delta, timestamp_ms, key, value, [])
    return bytes(builder.build())


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Returns the headers of a record as `Record` has them."""
    parts = [_zigzag(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += [_zigzag(len(encoded)), encoded, _zigzag(len(value)), value]
    return b"".join(parts)


def batch_of_records(
    records: Sequence[tuple[bytes | None, bytes | None, bytes]], timestamp_ms: int, codec: int = 0
) -> bytes:
    """Returns a batch of records at base offset 0 that have the same time.

    Args:
        records: key, value and encoded headers (as in `Record`) of each record.
        timestamp_ms: the timestamp of all records.
        codec: number of the codec that compresses them.
    """
    encoded = b"".join(encode_record(delta, *record) for delta, record in enumerate(records))
    return batch_of_encoded(encoded, len(records), timestamp_ms, codec)


def encode_record(delta: int, key: bytes | None, value: bytes | None, headers: bytes) -> bytes:
    """Returns a record for `batch_of_encoded`. `delta` is the number of records before it in the batch."""
    content = b"".join((b"\0\0", _zigzag(delta), _field(key), _field(value), headers))
    return _zigzag(len(content)) + content


def batch_of_encoded(records: bytes, count: int, timestamp_ms: int, codec: int = 0) -> bytes:
    """Returns a batch like `batch_of_records` of encoded records."""
    from headrace.kafka_wire.codecs import compress  # libraries that not all clients install

    payload = compress(codec, records)
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(payload)
    content = bytearray(
        HEADER.pack(0, length, -1, MAGIC, 0, codec, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    )
    content += payload
    _CRC.pack_into(content, CRC_AT, crc32c(memoryview(content)[CRC_FROM:]))
    return bytes(content)


def _field(content: bytes | None) -> bytes:
    return b"\x01" if content is None else _zigzag(len(content)) + content


def claim_batch(batch: bytes, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool) -> bytes:
    """Returns a batch with a producer's id, epoch and sequence number in its header; its records do not change."""
    header = read_batch_header(batch)
    attributes = header.attributes & ~TRANSACTIONAL | (TRANSACTIONAL if is_transactional else 0)
    claimed = header._replace(
        attributes=attributes, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    content = bytearray(batch)
    HEADER.pack_into(content, 0, *claimed)
    _CRC.pack_into(content, CRC_AT, crc32c(memoryview(content)[CRC_FROM:]))
    return bytes(content)


def stamp_batch(batch: memoryview, header: BatchHeader, timestamp_ms: int) -> tuple[bytes, BatchHeader]:
    """Returns a batch, and its new header, with the append time `timestamp_ms` as the time of all records. Only the
    header changes: it declares this time for the whole batch."""
    stamped = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=timestamp_ms)
    content = bytearray(batch)
    HEADER.pack_into(content, 0, *stamped)
    crc = crc32c(memoryview(content)[CRC_FROM:])
    _CRC.pack_into(content, CRC_AT, crc)
    return bytes(content), stamped._replace(crc=crc)


def rebuild_batch(header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None) -> bytes:
    """Returns a batch with some records of another batch. It has the offsets, producer and codec of that batch; without
    records it has no codec.

    Args:
        header: header of the original batch.
        records: the records to retain.
        delete_horizon_ms: time until which compaction retains records without a value; None leaves it unchanged.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, delete_horizon_ms
    if not records:
        attributes &= ~CODEC_MASK
    payload = b"".join(_record_bytes(header.base_offset, base_timestamp, record) for record in records)
    from headrace.kafka_wire.codecs import compress

    body = compress(attributes & CODEC_MASK, payload)
    rebuilt = header._replace(
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD + len(body),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max((record[1] for record in records), default=header.max_timestamp),
        record_count=len(records),
    )
    content = bytearray(HEADER.pack(*rebuilt)) + body
    _CRC.pack_into(content, CRC_AT, crc32c(memoryview(content)[CRC_FROM:]))
    return bytes(content)


def _record_bytes(base_offset: int, base_timestamp: int, record: Record) -> bytes:
    offset, time_ms, key, value, headers = record
    parts = [b"\0", _zigzag(time_ms - base_timestamp), _zigzag(offset - base_offset)]
    for content in (key, value):
        parts += [_zigzag(-1)] if content is None else [_zigzag(len(content)), content]
    fields = b"".join((*parts, headers))
    return _zigzag(len(fields)) + fields


@lru_cache(8_192)
def _zigzag(number: int) -> bytes:
    """Returns a zigzag varint. Cached: lengths and differences of the records of a batch are few small numbers."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    raw = bytearray()
    while left > 127:
        raw.append(left & 127 | 128)
        left >>= 7
    raw.append(left)
    return bytes(raw)
