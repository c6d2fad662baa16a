"""State of the idempotent producers of one partition: detects retries and gaps in sequence numbers (KIP-98).

The last five batches of a producer in its current epoch are known, as many as a client may have in flight, so a retry
of any of them gets its original offset. A retry of an earlier batch gets DUPLICATE_SEQUENCE_NUMBER, which clients treat
as stored. The broker gives that response only for sequence numbers that it has certainly stored: the last `run`
sequence numbers of the producer, which were stored without a gap. Other retries get OUT_OF_ORDER_SEQUENCE_NUMBER.

The partition's open transactions are tracked too. A transaction begins with its first batch in the partition and ends
with its marker. A producer with an open transaction does not expire.

Snapshot format: version i16 = 1, CRC-32C u32 of the rest, count i32, then per producer: producerId i64, epoch i16,
timestamp i64, run i32, number of batches i8, and per batch, oldest first: lastSequence i32, lastOffset i64, offsetDelta
i32; then the open transactions by first offset: producerId i64, epoch i16, firstOffset i64.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.errors import RequestRefused
from headrace.broker.log.transactions import OpenTransaction
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import CONTROL, TRANSACTIONAL, BatchHeader

WINDOW_BATCHES = 5
EXPIRATION_MS = 86_400_000
"""A producer without an open transaction expires after a day without batches: Kafka's `producer.id.expiration.ms`."""
SEQUENCE_MODULUS = 1 << 31

RUN_MAX = SEQUENCE_MODULUS // 2
"""Upper limit of `ProducerState.run`: half of all sequence numbers. Sequence numbers wrap around, and with this limit a
number before the last one can be distinguished from one after it."""

_START = struct.Struct(">hIi")
_PRODUCER = struct.Struct(">qhqib")
_BATCH = struct.Struct(">iqi")
_OPEN = struct.Struct(">qhq")
_VERSION = 1


class AppendedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class ProducerState:
    """State of one producer: its epoch and up to five of its last batches. The last `run` sequence numbers up to its
    newest batch were stored without a gap."""

    epoch: int
    seen_at_ms: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=WINDOW_BATCHES))
    run: int = 0

    @property
    def next_sequence(self) -> int:
        """The sequence number that the next batch must have; 0 if no batch of the epoch is known."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if self.batches else 0

    def add(self, batch: AppendedBatch) -> None:
        records = batch.last_offset - batch.base_offset + 1
        continues = bool(self.batches) and batch.first_sequence == self.next_sequence
        self.run = min(self.run + records if continues else records, RUN_MAX)
        self.batches.append(batch)


def last_sequence(header: BatchHeader) -> int:
    """Returns the sequence number of the batch's last record; numbers wrap from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_MODULUS


class ProducerStates:
    """The idempotent producers that wrote to one partition, by id. `open` contains the open transactions by producer
    id, in the order of their first offsets."""

    __slots__ = ("_producers", "open")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}
        self.open: dict[int, OpenTransaction] = {}

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._producers.items())

    def first_open(self, excluding: int | None = None) -> int | None:
        """Returns the first offset of the oldest open transaction; None if no transaction is open.

        Args:
            excluding: id of a producer; its transaction does not count.
        """
        if not self.open:  # the common case, on every fetch
            return None
        return next((one.first_offset for producer_id, one in self.open.items() if producer_id != excluding), None)

    def __len__(self) -> int:
        return len(self._producers)

    def duplicate_of(self, header: BatchHeader) -> int | None:
        """Checks the sequence numbers of a batch that is about to be appended, and finds out whether it was appended
        before. The batch is given by its header.

        Returns:
            The base offset of the stored batch if the new one is a retry of one of the producer's last five batches;
            None if the batch must be appended.

        Raises:
            RequestRefused: the producer is fenced, the sequence has a gap, the batch is a retry of an older batch than
                the last five, it has a producer id but no sequence number, or it is not transactional and the producer
                has an open transaction.
        """
        if header.producer_id < 0:
            return None
        if header.base_sequence < 0:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "the batch has a producer id but no sequence number")
        if header.producer_id in self.open and not header.attributes & TRANSACTIONAL:
            raise RequestRefused(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, and the batch is not transactional",
            )
        producer = self._producers.get(header.producer_id)
        if producer is None:
            # An unknown producer, for example after retention removed all its batches: any sequence is accepted.
            return None
        if header.producer_epoch < producer.epoch:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the batch of producer {header.producer_id} has epoch {header.producer_epoch}; a newer instance of "
                f"the producer uses epoch {producer.epoch}",
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, 0)
            return None
        last = last_sequence(header)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last):
                return batch.base_offset
        expected = producer.next_sequence
        if header.base_sequence == expected:
            return None
        if header.last_offset_delta < (expected - header.base_sequence) % SEQUENCE_MODULUS <= producer.run:
            raise RequestRefused(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence number {header.base_sequence} again; expected {expected}",
            )
        raise _out_of_order(header, expected)

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Updates the state of a batch's producer, and its open transaction, after the batch was appended at
        `base_offset`.

        Args:
            header: the header of the batch.
            now_ms: wall clock, the time at which the producer was last active; inactive producers expire.
        """
        if header.producer_id < 0:
            return
        if header.attributes & CONTROL:
            self._end(header, now_ms)
            return
        if header.attributes & TRANSACTIONAL and header.producer_id not in self.open:
            self.open[header.producer_id] = OpenTransaction(header.producer_epoch, base_offset)
        if header.base_sequence < 0:
            # Written by the broker: the offset commits of a transaction have no sequence numbers.
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = ProducerState(header.producer_epoch, now_ms)
        producer.seen_at_ms = now_ms
        last_offset = base_offset + header.last_offset_delta
        producer.add(AppendedBatch(header.base_sequence, last_sequence(header), base_offset, last_offset))

    def _end(self, marker: BatchHeader, now_ms: int) -> None:
        self.open.pop(marker.producer_id, None)
        producer = self._producers.get(marker.producer_id)
        if producer is None or marker.producer_epoch > producer.epoch:
            # Batches with a lower epoch are fenced. They may also be the first ones of their producer.
            self._producers[marker.producer_id] = ProducerState(marker.producer_epoch, now_ms)

    def ids(self) -> Iterator[int]:
        """Yields the ids of all known producers; one with an open transaction may appear twice."""
        yield from self._producers
        yield from self.open

    def last_offsets(self) -> frozenset[int]:
        """Returns the last offset of each known batch of the idempotent producers. At most WINDOW_BATCHES batches of
        each producer are known."""
        return frozenset(batch.last_offset for producer in self._producers.values() for batch in producer.batches)

    def expire(self, now_ms: int) -> None:
        for producer_id in [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.seen_at_ms > EXPIRATION_MS and producer_id not in self.open
        ]:
            del self._producers[producer_id]

    def to_snapshot(self) -> bytes:
        body = bytearray(struct.pack(">i", len(self._producers)))
        for producer_id, producer in self._producers.items():
            body += _PRODUCER.pack(
                producer_id, producer.epoch, producer.seen_at_ms, producer.run, len(producer.batches)
            )
            for batch in producer.batches:
                body += _BATCH.pack(batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset)
        body += b"".join(_OPEN.pack(producer_id, *one) for producer_id, one in self.open.items())
        return struct.pack(">hI", _VERSION, crc32c(body)) + bytes(body)

    @classmethod
    def from_snapshot(cls, content: bytes) -> ProducerStates | None:
        """Parses `content`, the snapshot file of the idempotent producers; None if it is corrupt or of another version.
        The caller then uses an older snapshot, or reads the log."""
        if len(content) < _START.size:
            return None
        version, crc, count = _START.unpack_from(content)
        if version != _VERSION or crc32c(content[6:]) != crc:
            return None
        states, at = cls(), _START.size
        for _ in range(count):
            at = states._read(content, at)
        for producer_id, epoch, first_offset in _OPEN.iter_unpack(content[at:]):
            states.open[producer_id] = OpenTransaction(epoch, first_offset)
        return states

    def _read(self, content: bytes, at: int) -> int:
        producer_id, epoch, seen_at_ms, run, count = _PRODUCER.unpack_from(content, at)
        producer = self._producers[producer_id] = ProducerState(epoch, seen_at_ms, run=run)
        at += _PRODUCER.size
        end: int = at + count * _BATCH.size
        for sequence, offset, delta in _BATCH.iter_unpack(content[at:end]):
            producer.batches.append(_appended(sequence, offset, delta))
        return end


def _appended(last_sequence: int, last_offset: int, delta: int) -> AppendedBatch:
    return AppendedBatch((last_sequence - delta) % SEQUENCE_MODULUS, last_sequence, last_offset - delta, last_offset)


def _out_of_order(header: BatchHeader, expected: int) -> RequestRefused:
    return RequestRefused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence number {header.base_sequence}; expected {expected}",
    )
