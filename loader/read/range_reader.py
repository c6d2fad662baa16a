"""Raw record batches in, classified records out.

A batch is taken as the log holds it (magic 2): header, CRC-32C, decompression, records. What lies outside the range
`[start, end)` is dropped, since fetches are aligned to batches and ranges are not. Every offset of the range is one
of: a data record, a transaction marker (control), a record of an aborted transaction, or a gap that compaction or
deletion left. Whatever the reader hands out is in offset order and without holes that are not counted, so that a
range that stops in the middle leaves a prefix that is whole.

Batch layout, big endian: base offset i64, length i32, leader epoch i32, magic i8, CRC u32, attributes i16, last
offset delta i32, base timestamp i64, max timestamp i64, producer id i64, producer epoch i16, base sequence i32,
record count i32; the CRC covers everything from the attributes on. Record: zigzag varints and bytes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import crc32c

from headrace.kafka_wire.cluster import AbortedTransaction, FetchSlice
from headrace.kafka_wire.codecs import DecompressionError, decompress
from headrace.kafka_wire.errors import CorruptBatch, KafkaUnavailable
from headrace.loader.work_unit import OffsetRange

HEADER = struct.Struct(">qiibIhiqqqhii")
PREFIX = struct.Struct(">qi")
MAGIC_AT = 16
CRC_FROM = 21

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
ABORT_MARKER = 0

Record = tuple[int, int, bytes | None, bytes | None, bytes]
"""(offset, timestamp in ms, key, value, headers as the log holds them: a varint count, then the headers)."""

NO_HEADERS = b"\x00"

SAFE_MS = 1 << 62
"""Two numbers below this add up to one of 64 bits."""

GAPS_LISTED_MAX = 1_000  # of one range: enough to see where, and small enough for a decision


class BatchKind(StrEnum):
    DATA = "data"
    CONTROL = "control"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch with all its records; `next_offset` is the offset after it, also when compaction took records."""

    base_offset: int
    next_offset: int
    attributes: int
    producer_id: int
    records: list[Record]


@dataclass(slots=True)
class Tally:
    """What the offsets read so far were; data records only up to now, since the caller decides what becomes of them.

    `gap_offsets` counts all offsets that the log no longer holds. `gaps` lists where they are, the first
    `GAPS_LISTED_MAX` of them: a compacted topic has one behind every other record.
    """

    position: int
    control: int = 0
    aborted: int = 0
    gap_offsets: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    bytes_read: int = 0
    _mark: tuple[int, int, list[tuple[int, int]]] = (0, 0, [])
    _marked: list[Record] = field(default_factory=list)

    def skip_to(self, offset: int) -> None:
        """Counts what lies between the position and `offset` as a gap."""
        if offset <= self.position:
            return
        self.gap_offsets += offset - self.position
        if self.gaps and self.gaps[-1][1] == self.position:
            self.gaps[-1] = (self.gaps[-1][0], offset)
        elif len(self.gaps) < GAPS_LISTED_MAX:
            self.gaps.append((self.position, offset))
        self.position = offset

    def pass_over(self, records: Sequence[Record]) -> None:
        """Moves the position behind records, counting the gaps between them."""
        for record in records:
            self.skip_to(record[0])
            self.position = record[0] + 1

    def mark(self, records: list[Record]) -> None:
        """Remembers the state before `records` are booked, for `cut_to`."""
        self._mark = (self.position, self.gap_offsets, self.gaps[-1:])
        self._marked = records

    def cut_to(self, offset: int) -> None:
        """Takes back what was booked from `offset` on, which must be one of the last records handed out."""
        start, self.gap_offsets, last = self._mark
        self.gaps = [gap for gap in self.gaps if gap[0] < start]
        if last:
            self.gaps[-1:] = last
        self.position = start
        self.pass_over([record for record in self._marked if record[0] < offset])
        self.skip_to(offset)


class TransactionFilter:
    """Tells the batches of aborted transactions, from the list that came with one fetch.

    A transaction is aborted from its first offset until its abort marker; the list is in order of first offsets.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def kind(self, batch: Batch) -> BatchKind:
        """The kind of a batch; batches must come in offset order."""
        while self._waiting and self._waiting[-1].first_offset < batch.next_offset:
            self._aborting.add(self._waiting.pop().producer_id)
        if batch.attributes & CONTROL:
            if _marker_type(batch) == ABORT_MARKER:
                self._aborting.discard(batch.producer_id)
            return BatchKind.CONTROL
        if batch.attributes & TRANSACTIONAL and batch.producer_id in self._aborting:
            return BatchKind.ABORTED
        return BatchKind.DATA


def read_range(
    fetch: Callable[[int], FetchSlice],
    offsets: OffsetRange,
    tally: Tally,
    *,
    batch_bytes_max: int,
    patience_s: float,
) -> Iterator[list[Record]]:
    """Yields the data records of a range, in order, and keeps `tally` up to date.

    When a list is handed out everything before `tally.position` is booked; an error leaves the position at the first
    offset that was not.

    Args:
        fetch: brings raw batches from an offset on.
        batch_bytes_max: a batch that unfolds to more is refused.
        patience_s: how long answers without news are borne before the log is called short.

    Raises:
        CorruptBatch: bytes that are not the batch they claim to be.
        KafkaUnavailable: the log ends before the range does.
        KafkaError: whatever `fetch` raises.
    """
    topic_partition = offsets.topic_partition
    silent_since = time.monotonic()
    while tally.position < offsets.end:
        before = tally.position
        piece = fetch(before)
        tally.bytes_read += len(piece.records)
        where = f"broker {piece.broker}, topic {topic_partition.topic} partition {topic_partition.partition}"
        transactions = TransactionFilter(piece.aborted)
        for batch in batches(piece.records, where, batch_bytes_max):
            kind = transactions.kind(batch)
            if batch.next_offset <= tally.position:
                continue
            records = _book(batch, kind, offsets.end, tally)
            if records:
                yield records
            if tally.position >= offsets.end:
                return
        if tally.position > before:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since >= patience_s:
            raise KafkaUnavailable(
                f"{where} offset {before}: the range ends at {offsets.end} but nothing came for {patience_s:.0f} s; "
                f"the broker's readable end is {piece.last_stable_offset}"
            )


def batches(data: bytes, where: str, batch_bytes_max: int) -> Iterator[Batch]:
    """The whole batches of a fetch; a cut one at the end is left for the next fetch.

    Args:
        where: broker, topic and partition, for messages.

    Raises:
        CorruptBatch: a wrong length, magic, checksum, codec or record.
    """
    view = memoryview(data)
    position = 0
    while len(data) - position >= PREFIX.size:
        base_offset, length = PREFIX.unpack_from(data, position)
        size = PREFIX.size + length
        at = f"{where} offset {base_offset}"
        if len(data) - position > MAGIC_AT and data[position + MAGIC_AT] != 2:
            raise CorruptBatch(
                f"{at}: message format {data[position + MAGIC_AT]} is older than Kafka 0.11's record batches and is "
                "not read; set the topic's message format to 2 and let the old segments expire"
            )
        if length < HEADER.size - PREFIX.size:
            raise CorruptBatch(f"{at}: a batch of {length} bytes is shorter than its header")
        if len(data) - position < size:
            return
        yield _batch(view[position : position + size], at, batch_bytes_max)
        position += size


def _batch(view: memoryview, at: str, batch_bytes_max: int) -> Batch:
    (base_offset, _, _, _, crc, attributes, last_delta, base_time, max_time, producer_id, _, _, count) = (
        HEADER.unpack_from(view)
    )
    if crc32c.crc32c(view[CRC_FROM:]) != crc:
        raise CorruptBatch(f"{at}: the checksum of the batch is wrong")
    try:
        payload = decompress(attributes & CODEC_MASK, view[HEADER.size :], batch_bytes_max)
    except DecompressionError as error:
        raise CorruptBatch(f"{at}: the batch cannot be decompressed: {error}") from error
    try:
        fixed_time = max_time if attributes & LOG_APPEND_TIME else None
        records = records_of(payload, count, base_offset, base_time, fixed_time)
    except (IndexError, ValueError) as error:
        raise CorruptBatch(f"{at}: a record of the batch is malformed: {error}") from error
    next_offset = base_offset + last_delta + 1
    if records and not base_offset <= records[0][0] <= records[-1][0] < next_offset:
        raise CorruptBatch(f"{at}: records lie outside the offsets of their batch")
    return Batch(base_offset, next_offset, attributes, producer_id, records)


def records_of(payload: bytes, count: int, base_offset: int, base_time: int, fixed_time: int | None) -> list[Record]:
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
    b = payload
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


def _wrapped(record: Record) -> Record:
    """A record whose time went round where it left 64 bits, as it does in Kafka's own clients."""
    offset, time_ms, key, value, headers = record
    return offset, (time_ms + 2**63) % 2**64 - 2**63, key, value, headers


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


def _marker_type(batch: Batch) -> int:
    """0 abort, 1 commit; others, and markers that compaction emptied, end no aborted transaction."""
    key = batch.records[0][2] if batch.records else None
    return struct.unpack_from(">hh", key)[1] if key is not None and len(key) >= 4 else -1


def _book(batch: Batch, kind: BatchKind, end: int, tally: Tally) -> list[Record]:
    """Books what of one batch lies inside `[tally.position, end)` and returns its data records."""
    start = tally.position
    records = batch.records
    if records and (records[0][0] < start or records[-1][0] >= end):
        records = [record for record in records if start <= record[0] < end]
    tally.mark(records)
    if records and records[0][0] == start and records[-1][0] - start == len(records) - 1:
        tally.position = start + len(records)
    else:
        tally.pass_over(records)
    tally.skip_to(min(batch.next_offset, end))
    if kind is BatchKind.CONTROL:
        tally.control += len(records)
    elif kind is BatchKind.ABORTED:
        tally.aborted += len(records)
    return records if kind is BatchKind.DATA else []
