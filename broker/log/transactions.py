"""Transaction markers and aborted transactions in the log of one partition (KIP-98).

A transaction ends with a marker, a control batch of its producer with one record: key version i16 = 0 and type i16 (0
abort, 1 commit), value version i16 = 0 and coordinator epoch i32 = 0. Two i64 follow in the value, which Kafka's
markers do not have: the transaction's first offset in the partition, or -1 if it has no records there, and the last
stable offset after it ended. So each segment is enough to determine the transactions that end in it. Clients and tools
of Kafka read a value only up to the coordinator epoch.

`.txnindex` of a segment, as in Kafka, has one entry per abort marker: version i16 = 0, producerId i64, firstOffset i64,
lastOffset i64 (the marker's), lastStableOffset i64. Unlike Kafka's, it ends with the number of log bytes it covers
(i64) and the CRC-32C u32 of all that. A missing entry would expose aborted records, so a file that is missing, corrupt
or does not match the log is rebuilt from the markers. The complete file is verified when the log is opened. From then
on the position and checksum of each block of entries are in memory, and readers load only the blocks they need.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.log.decoding import decode_records
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_HEADERS,
    TRANSACTIONAL,
    BatchHeader,
    rebuild_batch,
)

ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hiqq")
NO_OFFSET = -1
BLOCK_ENTRIES = 512
"""Most entries in a block of a `.txnindex` file; only the last block has fewer. A block has up to 17 KB and is read as
a whole."""
_ENTRY = struct.Struct(">hqqqq")
_LOG_BYTES = struct.Struct(">q")
_CRC = struct.Struct(">I")


class OpenTransaction(NamedTuple):
    """A transaction that has not ended; `first_offset` is the base offset of its first batch in the partition."""

    epoch: int
    first_offset: int


class TransactionIndexEntry(NamedTuple):
    """An aborted transaction: the producer's batches in offsets [first_offset, last_offset]. The last one is the
    marker.

    `last_stable_offset` is the log's last stable offset after the marker. Every later transaction in the index has a
    `first_offset` of at least this value, so a search for an offset range can stop at a transaction whose
    `last_stable_offset` is beyond the range.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedBlock(NamedTuple):
    """Summary of a block: up to BLOCK_ENTRIES consecutive aborted transactions of a `.txnindex` file.

    All of them lie in [first_offset, last_offset]. `last_stable_offset` and `last_offset` are those of the last one.
    `crc` is the checksum of the block's bytes.
    """

    entries: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    crc: int


def end_marker(
    producer_id: int, epoch: int, *, is_commit: bool, first_offset: int, last_stable_offset: int, now_ms: int
) -> bytes:
    """Returns the marker (a control batch) that ends a transaction. Its base offset is 0; the append sets the actual
    one.

    Args:
        epoch: the producer's epoch.
        is_commit: whether the transaction commits; False for an abort marker.
        first_offset: offset of the transaction's first batch in the partition; NO_OFFSET if it has none.
        last_stable_offset: the log's last stable offset after the transaction ends.
        now_ms: wall clock, the timestamp of the marker.
    """
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1,
        record_count=1,
    )
    value = _VALUE.pack(0, 0, first_offset, last_stable_offset)
    return rebuild_batch(header, [(0, now_ms, _KEY.pack(0, COMMIT if is_commit else ABORT), value, NO_HEADERS)])


def is_commit(batch: bytes) -> bool:
    """Returns whether a transaction marker commits its transaction; False for an abort marker, and for a marker of
    unknown type or one that cannot be decoded, which this broker never writes."""
    return _type_of(batch) == COMMIT


def _type_of(batch: bytes) -> int | None:
    try:
        for _, _, key, _, _ in decode_records(batch, is_own_batch=True):
            if key is not None and len(key) >= _KEY.size:
                return int(_KEY.unpack_from(key)[1])
    except CorruptBatch:
        pass
    return None


def aborted_by(header: BatchHeader, batch: bytes | memoryview) -> TransactionIndexEntry | None:
    """Returns the transaction that an abort marker ends; None for any other batch, for a marker of a transaction
    without records in the partition, and for a marker without the offsets that this broker adds to its value.

    Args:
        header: the header of the stored batch.
        batch: the bytes of the batch, used only for a control batch; may be empty for a data batch.
    """
    if not header.attributes & CONTROL or not batch:
        return None
    raw = bytes(batch)
    if _type_of(raw) != ABORT:
        return None
    ((_, _, _, value, _),) = decode_records(raw, is_own_batch=True)
    if value is None or len(value) != _VALUE.size:
        return None
    _, _, first_offset, last_stable_offset = _VALUE.unpack(value)
    if first_offset == NO_OFFSET:
        return None
    return TransactionIndexEntry(header.producer_id, first_offset, header.last_offset, last_stable_offset)


def to_index(entries: Iterable[TransactionIndexEntry], log_bytes: int) -> bytes:
    body = _packed(entries) + _LOG_BYTES.pack(log_bytes)
    return body + _CRC.pack(crc32c(body))


def _packed(entries: Iterable[TransactionIndexEntry]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def _unpacked(content: bytes | memoryview) -> list[TransactionIndexEntry]:
    return [TransactionIndexEntry._make(entry[1:]) for entry in _ENTRY.iter_unpack(content)]


def from_index(content: bytes, log_bytes: int) -> list[TransactionIndexEntry] | None:
    """Returns the aborted transactions in the content of a `.txnindex` file; None if it is corrupt or was written for a
    `.log` file of another size than `log_bytes`."""
    entries_end = len(content) - _LOG_BYTES.size - _CRC.size
    if entries_end < 0 or entries_end % _ENTRY.size:
        return None
    body = memoryview(content)[: -_CRC.size]
    if content[-_CRC.size :] != _CRC.pack(crc32c(body)) or body[entries_end:] != _LOG_BYTES.pack(log_bytes):
        return None
    return _unpacked(body[:entries_end])


def blocks_of(entries: Sequence[TransactionIndexEntry]) -> tuple[AbortedBlock, ...]:
    """Returns a summary of each block of a `.txnindex` file.

    Args:
        entries: all entries of the file, in the order of their markers.
    """
    blocks = []
    for at in range(0, len(entries), BLOCK_ENTRIES):
        block = entries[at : at + BLOCK_ENTRIES]
        first_offset = min(entry.first_offset for entry in block)
        last = block[-1]
        crc = crc32c(_packed(block))
        blocks.append(AbortedBlock(len(block), first_offset, last.last_offset, last.last_stable_offset, crc))
    return tuple(blocks)


def aborted_between(
    blocks: Sequence[AbortedBlock], start: int, end: int, read: Callable[[int, int], bytes]
) -> list[TransactionIndexEntry] | None:
    """Returns the transactions of a `.txnindex` file that overlap offsets [start, end); None if a block of the file no
    longer has the checksum in its summary.

    Args:
        blocks: summaries of the file's blocks.
        read: function (size, position) that returns bytes of the file.
    """
    found: list[TransactionIndexEntry] = []
    for number in range(bisect_left(blocks, start, key=lambda block: block.last_offset), len(blocks)):
        block = blocks[number]
        if block.first_offset < end:
            content = read(block.entries * _ENTRY.size, number * BLOCK_ENTRIES * _ENTRY.size)
            if crc32c(content) != block.crc:
                return None
            found += overlapping(_unpacked(content), start, end)
        if block.last_stable_offset >= end:
            break
    return found


def overlapping(entries: Sequence[TransactionIndexEntry], start: int, end: int) -> Iterator[TransactionIndexEntry]:
    """Yields those of the aborted transactions `entries` that overlap offsets [start, end). `entries` must be in the
    order of their markers."""
    for entry in entries[bisect_left(entries, start, key=lambda one: one.last_offset) :]:
        if entry.first_offset < end:
            yield entry
        if entry.last_stable_offset >= end:
            return


class TransactionOutcomes:
    """Determines for compaction which transactions of a log were aborted, and which markers must be retained: a marker
    is retained if compaction retains a batch of its transaction. The batches must be passed in order, from the start of
    the log.

    Args:
        aborted: the aborted transactions that overlap the compacted range, which contains no open transaction.
    """

    def __init__(self, aborted: Iterable[TransactionIndexEntry] = ()) -> None:
        self._aborted: dict[int, list[TransactionIndexEntry]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Returns whether a data batch, given by its header, belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL:
            return False
        ends = self._aborted.get(header.producer_id, [])
        at = bisect_left(ends, header.base_offset, key=lambda one: one.last_offset)
        return at < len(ends) and ends[at].first_offset <= header.base_offset

    def note_retained(self, header: BatchHeader) -> None:
        """Records that compaction retains the batch with this header, possibly without records. The marker of its
        transaction must then be retained, too."""
        if header.attributes & TRANSACTIONAL and not header.attributes & CONTROL:
            self._with_data.add(header.producer_id)

    def needs_marker(self, marker: BatchHeader) -> bool:
        """Returns whether a marker must be retained, because compaction has retained a batch of the transaction that it
        ends. Call it once per marker, in order."""
        if marker.producer_id not in self._with_data:
            return False
        self._with_data.discard(marker.producer_id)
        return True
