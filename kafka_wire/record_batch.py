"""Record batches, version 2: what producers send, logs keep and fetches bring; the one parser and the one builder.

Layout of the 61-byte header, big endian: baseOffset i64, batchLength i32 (bytes after this field),
partitionLeaderEpoch i32, magic i8, crc u32 (CRC-32C of everything from attributes on), attributes i16 (bits 0-2
codec, 3 timestamp type, 4 transactional, 5 control, 6 baseTimestamp is until when compaction keeps records without a
value), lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64, producerId i64, producerEpoch i16, baseSequence i32,
recordCount i32; then the records, compressed together.

Record: length, attributes i8, timestampDelta, offsetDelta, key length and key, value length and value, count of
headers and headers (key length, key, value length, value). Numbers are zigzag varints; a length of -1 is null.

baseOffset and partitionLeaderEpoch lie before what the CRC covers, so a broker writes them and leaves the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.kafka_wire.codecs import DecompressionError, compress, decompress
from headrace.kafka_wire.errors import CorruptBatch, MisplacedBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = struct.Struct(">qii")
PREFIX_BYTES = PREFIX.size
LENGTH_OVERHEAD = 12
"""Bytes of a batch that its batchLength does not count: baseOffset and batchLength itself."""
CRC_AT, CRC_FROM = 17, 21
MAGIC = 2
MAGIC_AT = 16

CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40

Record = tuple[int, int, bytes | None, bytes | None, bytes]
"""(offset, timestamp in ms, key, value, headers as the log holds them: a varint count, then the headers)."""

NO_HEADERS = b"\x00"

TakeApart = Callable[[bytes | memoryview, int, int, int, int | None], Sequence[Record]]
"""Does what `records_of` does."""

SAFE_MS = 1 << 62
"""Two numbers below this add up to one of 64 bits."""

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
    """One batch with all its records; `next_offset` is the offset after it, also when compaction took records."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    attributes: int
    producer_id: int
    records: Sequence[Record]


class Frame(NamedTuple):
    """A whole batch as it lies in a fetch, not looked into: what the bytes before those of the checksum say of it.

    `next_base_offset` is what the one after it begins with, None where the fetch ends before it says so.
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
        """Whether the same bytes show where the next batch begins, which must not be before this one ends."""
        return self.next_base_offset is not None


def read_batch_header(view: memoryview | bytes, pos: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(view, pos))


def has_valid_crc(batch: memoryview, header: BatchHeader) -> bool:
    return bool(crc32c(batch[CRC_FROM : header.size]) == header.crc)


def frames(data: bytes | memoryview, where: str) -> Iterator[Frame]:
    """The whole batches of a fetch, one after the other; a cut one at the end is left for the next fetch.

    Args:
        where: broker, topic and partition, for messages.

    Raises:
        CorruptBatch: a length that none can have, or the format of messages before record batches.
    """
    view = memoryview(data)
    position = 0
    while len(data) - position >= _BASE_AND_LENGTH.size:
        base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
        end = position + LENGTH_OVERHEAD + length
        at = f"{where} offset {base_offset}"
        if len(data) - position > MAGIC_AT and data[position + MAGIC_AT] < MAGIC:
            raise _of_old_format(at, data[position + MAGIC_AT])
        if end - position < HEADER_BYTES:
            raise CorruptBatch(f"{at}: a batch of {length} bytes is shorter than its header")
        if len(data) < end:
            return
        yield Frame(position, base_offset, _base_at(data, end), view[position:end])
        position = end


def offset_behind(data: bytes | memoryview) -> int | None:
    """The offset behind the last whole batch of a fetch, as their headers say, which nobody has looked at.

    None where there is no whole batch.
    """
    position = 0
    last = -1
    while len(data) - position >= HEADER_BYTES:
        end = position + LENGTH_OVERHEAD + _BASE_AND_LENGTH.unpack_from(data, position)[1]
        if not position + HEADER_BYTES <= end <= len(data):
            break
        last, position = position, end
    return None if last < 0 else int(read_batch_header(data, last).last_offset) + 1


def _base_at(data: bytes | memoryview, position: int) -> int | None:
    """The offset that the batch at this position begins with, None where the bytes end before they say so."""
    return int(_BASE.unpack_from(data, position)[0]) if len(data) - position >= _BASE.size else None


def read_batch(frame: Frame, where: str, bytes_max: int, take_apart: TakeApart | None = None) -> Batch:
    """The batch in a frame.

    No checksum covers the offset that a batch begins with, so it is compared with where the next one begins, and that
    before its records are looked at: of one that cannot be opened, too, only its place says where the log goes on.

    Args:
        where: broker, topic and partition, for messages.
        bytes_max: a batch that unfolds to more is refused.
        take_apart: instead of `records_of`.

    Raises:
        MisplacedBatch: offsets that none can have, or that overlap with those of the next one.
        CorruptBatch: a wrong magic, checksum, codec or record.
    """
    view, at = frame.view, f"{where} offset {frame.base_offset}"
    if view[MAGIC_AT] != MAGIC:
        raise CorruptBatch(f"{at}: there is no message format {view[MAGIC_AT]}")
    header = read_batch_header(view)
    checksum = crc32c(view[CRC_FROM:])
    if checksum != header.crc:
        raise CorruptBatch(
            f"{at}: the checksum of the batch is wrong: it says {header.crc:#010x} and the bytes give {checksum:#010x}"
        )
    next_offset = header.last_offset + 1
    if not 0 <= header.base_offset < next_offset:
        raise MisplacedBatch(f"{at}: a batch cannot take the offsets [{header.base_offset}, {next_offset})")
    if frame.next_base_offset is not None and frame.next_base_offset < next_offset:
        raise MisplacedBatch(
            f"{at}: the batch takes the offsets [{header.base_offset}, {next_offset}), and the next one begins at "
            f"{frame.next_base_offset}: one of them is not where it says"
        )
    try:
        records = open_batch(view, header, at, bytes_max, take_apart)
    except CorruptBatch as error:
        raise CorruptBatch(str(error), next_offset) from error
    if records and not header.base_offset <= records[0][0] <= records[-1][0] < next_offset:
        raise CorruptBatch(f"{at}: records lie outside the offsets of their batch", next_offset)
    return Batch(header.base_offset, next_offset, header.leader_epoch, header.attributes, header.producer_id, records)


def _of_old_format(at: str, magic: int) -> CorruptBatch:
    return CorruptBatch(
        f"{at}: message format {magic} is older than Kafka 0.11's record batches and is "
        "not read; set the topic's message format to 2 and let the old segments expire"
    )


def offset_after(data: bytes | memoryview, frame: Frame) -> int | None:
    """The offset after a batch whose own word cannot be trusted: that of the next one, which stands right behind it.

    That one is believed where its checksum is right, or that of one further on to which the lengths in between lead;
    but not where what follows the whole one shows that it is elsewhere, since no checksum covers that.

    Args:
        data: a fetch that has the frame where it was found.
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


def open_batch(
    batch: memoryview, header: BatchHeader, at: str, bytes_max: int, take_apart: TakeApart | None = None
) -> Sequence[Record]:
    """The records of one whole batch whose checksum is right.

    Args:
        at: broker, topic, partition and offset, for messages.
        bytes_max: what the records may take when they are decompressed.
        take_apart: instead of `records_of`.

    Raises:
        CorruptBatch: a codec that is none, too many bytes, or a malformed record.
    """
    try:
        payload = decompress(header.attributes & CODEC_MASK, batch[HEADER_BYTES : header.size], bytes_max)
    except DecompressionError as error:
        raise CorruptBatch(f"{at}: the batch cannot be decompressed: {error}") from error
    try:
        fixed_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        take_apart = take_apart or records_of
        return take_apart(payload, header.record_count, header.base_offset, header.base_timestamp, fixed_time)
    except (IndexError, ValueError) as error:
        raise CorruptBatch(f"{at}: a record of the batch is malformed: {error}") from error


def records_of(
    payload: bytes | memoryview, count: int, base_offset: int, base_time: int, fixed_time: int | None
) -> list[Record]:
    """Takes the records of a batch apart. One-byte varints, by far the most frequent, are read in place.

    Args:
        fixed_time: the time of all records when the broker stamped them (log append time).

    Raises:
        ValueError: lengths that do not fit, offsets that do not grow, or bytes left over.
        IndexError: the payload is cut.
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
        p += 1  # attributes: no bit of them is in use
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
            raise ValueError("offsets do not grow")
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
            raise ValueError("a record is longer than its length says")
        append((base_offset + delta, time_ms, key, value, NO_HEADERS if b[p] == 0 else b[p:end]))
        if b[p] == 0 and p + 1 != end:
            raise ValueError("a record is shorter than its length says")
        p = end
    if p != len(b):
        raise ValueError(f"{len(b) - p} bytes differ from what the records take")
    return [_wrapped(record) for record in records] if may_overflow else records


def times_of(
    payload: bytes | memoryview, count: int, base_offset: int, base_time: int, fixed_time: int | None
) -> Iterator[tuple[int, int]]:
    """The offsets and times that `records_of` would give, one by one; the rest of each record is passed over.

    Raises:
        ValueError: lengths that do not fit, offsets that do not grow, or bytes left over.
        IndexError: the payload is cut.
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
            raise ValueError("offsets do not grow")
        if not p < end <= len(b):
            raise ValueError("a record is not as long as its length says")
        last_delta, p = delta, end
        yield base_offset + delta, _in_64_bits(time_ms)
    if p != len(b):
        raise ValueError(f"{len(b) - p} bytes differ from what the records take")


def _wrapped(record: Record) -> Record:
    """A record whose time went round where it left 64 bits, as it does in Kafka's own clients."""
    offset, time_ms, key, value, headers = record
    return offset, _in_64_bits(time_ms), key, value, headers


def _in_64_bits(time_ms: int) -> int:
    return (time_ms + 2**63) % 2**64 - 2**63


def headers_of(raw: bytes) -> list[tuple[str, bytes | None]]:
    """Decodes the headers of a record.

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
        raise ValueError("the headers are cut") from error
    if p != len(raw) or count & 1:
        raise ValueError("the headers are malformed")
    return found


def _varint(b: bytes, p: int) -> tuple[int, int]:
    """An unsigned varint (still zigzag) at `p` and the position after it; up to ten bytes."""
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
    """One uncompressed batch of (key, value) pairs, at base offset 0; with a producer, of its transaction."""
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


def stamped_batch(batch: memoryview, header: BatchHeader, timestamp_ms: int) -> tuple[bytes, BatchHeader]:
    """A batch all whose records have the time at which the broker took it; they stay as they are, compressed or not."""
    stamped = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=timestamp_ms)
    whole = bytearray(batch)
    HEADER.pack_into(whole, 0, *stamped)
    crc = crc32c(memoryview(whole)[CRC_FROM:])
    _CRC.pack_into(whole, CRC_AT, crc)
    return bytes(whole), stamped._replace(crc=crc)


def rebuilt_batch(header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None) -> bytes:
    """A batch with these of its records, in its place and of its producer, compressed as it was.

    Args:
        header: of the batch that had the records.
        delete_horizon_ms: until when compaction keeps records without a value; None leaves that as it was.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, delete_horizon_ms
    if not records:
        attributes &= ~CODEC_MASK
    payload = b"".join(_record_bytes(header.base_offset, base_timestamp, record) for record in records)
    body = compress(attributes & CODEC_MASK, payload)
    rebuilt = header._replace(
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD + len(body),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max((record[1] for record in records), default=header.max_timestamp),
        record_count=len(records),
    )
    whole = bytearray(HEADER.pack(*rebuilt)) + body
    _CRC.pack_into(whole, CRC_AT, crc32c(memoryview(whole)[CRC_FROM:]))
    return bytes(whole)


def _record_bytes(base_offset: int, base_timestamp: int, record: Record) -> bytes:
    offset, time_ms, key, value, headers = record
    parts = [b"\0", _zigzag(time_ms - base_timestamp), _zigzag(offset - base_offset)]
    for content in (key, value):
        parts += [_zigzag(-1)] if content is None else [_zigzag(len(content)), content]
    rest = b"".join((*parts, headers))
    return _zigzag(len(rest)) + rest


def _zigzag(number: int) -> bytes:
    left = number << 1 if number >= 0 else (-number << 1) - 1
    raw = bytearray()
    while left > 127:
        raw.append(left & 127 | 128)
        left >>= 7
    raw.append(left)
    return bytes(raw)
