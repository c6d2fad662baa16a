"""Transactions in the log of one partition: how they end, and which of them were aborted (KIP-98).

A transaction ends with a marker, a control batch of its producer with one record: key version i16 = 0 and type i16 (0
abort, 1 commit), value version i16 = 0 and coordinator epoch i32 = 0. A header `offsets` on that record says where the
transaction began here and up to where everything was decided once it had ended (two i64), so that each segment tells by
itself which transactions it ends: readers of Kafka's own records do not look at headers of markers.

`.txnindex` of a segment, as Kafka's, has one entry per abort that it has the marker of: version i16 = 0, producerId
i64, firstOffset i64, lastOffset i64 (the marker's), lastStableOffset i64; then, unlike Kafka's, of how many bytes of
log it tells (i64), and the CRC-32C u32 of all that. Without an entry what was aborted would be shown, so a file that is
missing, damaged or of another log is made anew from the markers. It is looked at as a whole when the log is opened;
from then on it is known of each block of its entries where they lie and what their checksum is, so that readers need
no more of the file than the blocks that tell of what they read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.log.opened import opened
from headrace.kafka_wire.errors import CorruptBatch
from headrace.kafka_wire.record_batch import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    headers_of,
    rebuilt_batch,
)

ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_OFFSETS = struct.Struct(">qq")
_OFFSETS_NAME = "offsets"
BLOCK_ENTRIES = 512
"""Of a `.txnindex` that are read together: 17 KB."""
_ENTRY = struct.Struct(">hqqqq")
_LOG_BYTES = struct.Struct(">q")
_CRC = struct.Struct(">I")


class OpenTransaction(NamedTuple):
    """One that has not ended; `first_offset` is of its first batch in the partition."""

    epoch: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    """Offsets [first_offset, last_offset] of the producer were aborted; the last one is the marker.

    Before `last_stable_offset` everything was decided when this one ended: what ends later begins there or behind it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedBlock(NamedTuple):
    """What is known of some entries of a `.txnindex` that follow each other, without reading them.

    The transactions lie in [first_offset, last_offset]; `last_stable_offset` and `last_offset` are those of the last
    one. `crc` is of the entries' bytes.
    """

    entries: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    crc: int


def end_marker(
    producer_id: int, epoch: int, *, is_commit: bool, first_offset: int, last_stable_offset: int, now_ms: int
) -> bytes:
    """The control batch that ends a transaction, at base offset 0."""
    offsets = _OFFSETS.pack(first_offset, last_stable_offset)
    name = _OFFSETS_NAME.encode()
    # Counts and lengths below 64 are one byte each, twice the number.
    headers = bytes((2, 2 * len(name))) + name + bytes((2 * len(offsets),)) + offsets
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
    record = (0, now_ms, _KEY.pack(0, COMMIT if is_commit else ABORT), _VALUE.pack(0, 0), headers)
    return rebuilt_batch(header, [record])


def is_commit(batch: bytes) -> bool:
    """Whether a marker says that its transaction counts. One that says nothing, which none of ours does, does not."""
    return _type_of(batch) == COMMIT


def _type_of(batch: bytes) -> int | None:
    try:
        for _, _, key, _, _ in opened(batch, is_our_own=True):
            if key is not None and len(key) >= _KEY.size:
                return int(_KEY.unpack_from(key)[1])
    except CorruptBatch:
        pass
    return None


def aborted_by(header: BatchHeader, batch: bytes | memoryview) -> AbortedTransaction | None:
    """The transaction that a batch is the abort marker of, None for any other batch.

    Args:
        header: as the batch is stored.
        batch: all of its bytes, which are looked at only if it is one of control; none: it is none that counts.
    """
    if not header.attributes & CONTROL or not batch:
        return None
    raw = bytes(batch)
    if _type_of(raw) != ABORT:
        return None
    ((_, _, _, _, headers),) = opened(raw, is_our_own=True)
    for name, value in headers_of(headers):
        if name == _OFFSETS_NAME and value is not None and len(value) == _OFFSETS.size:
            first_offset, last_stable_offset = _OFFSETS.unpack(value)
            return AbortedTransaction(header.producer_id, first_offset, header.last_offset, last_stable_offset)
    return None


def to_index(entries: Iterable[AbortedTransaction], log_bytes: int) -> bytes:
    body = _packed(entries) + _LOG_BYTES.pack(log_bytes)
    return body + _CRC.pack(crc32c(body))


def _packed(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def _unpacked(content: bytes | memoryview) -> list[AbortedTransaction]:
    return [AbortedTransaction._make(entry[1:]) for entry in _ENTRY.iter_unpack(content)]


def from_index(content: bytes, log_bytes: int) -> list[AbortedTransaction] | None:
    """Reads a file's content; None when it is not what was written of a log of so many bytes."""
    entries_end = len(content) - _LOG_BYTES.size - _CRC.size
    if entries_end < 0 or entries_end % _ENTRY.size:
        return None
    body = memoryview(content)[: -_CRC.size]
    if content[-_CRC.size :] != _CRC.pack(crc32c(body)) or body[entries_end:] != _LOG_BYTES.pack(log_bytes):
        return None
    return _unpacked(body[:entries_end])


def blocks_of(entries: Sequence[AbortedTransaction]) -> tuple[AbortedBlock, ...]:
    """The blocks of the file that `to_index` makes of these entries, which are in the order of their markers."""
    blocks = []
    for at in range(0, len(entries), BLOCK_ENTRIES):
        some = entries[at : at + BLOCK_ENTRIES]
        first_offset = min(entry.first_offset for entry in some)
        last = some[-1]
        crc = crc32c(_packed(some))
        blocks.append(AbortedBlock(len(some), first_offset, last.last_offset, last.last_stable_offset, crc))
    return tuple(blocks)


def aborted_between(
    blocks: Sequence[AbortedBlock], start: int, end: int, read: Callable[[int, int], bytes]
) -> list[AbortedTransaction] | None:
    """The transactions of a `.txnindex` that have something in [start, end); None where it is not what it was.

    Args:
        blocks: of the file.
        read: so many bytes of the file, from a position on.
    """
    found: list[AbortedTransaction] = []
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


def overlapping(entries: Sequence[AbortedTransaction], start: int, end: int) -> Iterator[AbortedTransaction]:
    """Those that have something in [start, end), of entries in the order of their markers."""
    for entry in entries[bisect_left(entries, start, key=lambda one: one.last_offset) :]:
        if entry.first_offset < end:
            yield entry
        if entry.last_stable_offset >= end:
            return


class Outcomes:
    """What compaction has to know of transactions, while it goes through a log from its start on.

    Args:
        aborted: all that have something in what is gone through, where everything is decided.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Was a batch, which is no marker, aborted?"""
        if not header.attributes & TRANSACTIONAL:
            return False
        ends = self._aborted.get(header.producer_id, [])
        at = bisect_left(ends, header.base_offset, key=lambda one: one.last_offset)
        return at < len(ends) and ends[at].first_offset <= header.base_offset

    def keep(self, header: BatchHeader) -> None:
        """Takes note of a batch that stays, if only its header: its transaction needs its marker."""
        if header.attributes & TRANSACTIONAL and not header.attributes & CONTROL:
            self._with_data.add(header.producer_id)

    def is_needed(self, marker: BatchHeader) -> bool:
        """Is something left of the transaction that a marker ends? Each marker is asked about once, in order."""
        if marker.producer_id not in self._with_data:
            return False
        self._with_data.discard(marker.producer_id)
        return True
