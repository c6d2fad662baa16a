"""Idempotent producers of one partition: which batch comes next, which one is a repetition (KIP-98).

Snapshot layout: version i16 = 1, CRC-32C u32 of the rest, count i32, then per producer: producerId i64, epoch i16,
lastSequence i32, lastOffset i64, offsetDelta i32, timestamp i64, coordinatorEpoch i32, currentTxnFirstOffset i64 (-1).
Only the last batch of a producer is in a snapshot; the window in memory is five batches, which is as many as clients
may have in flight.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.record_batch import BatchHeader

WINDOW_BATCHES = 5
EXPIRATION_MS = 86_400_000
"""A producer silent for a day is forgotten: Kafka's `producer.id.expiration.ms`."""
SEQUENCE_MODULUS = 1 << 31

_START = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1


class AppendedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class Producer:
    epoch: int
    seen_at_ms: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=WINDOW_BATCHES))


def last_sequence(header: BatchHeader) -> int:
    """Sequence numbers wrap from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_MODULUS


class ProducerStates:
    """All producers with an id that wrote to one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def duplicate_of(self, header: BatchHeader) -> int | None:
        """Checks a batch that is about to be appended.

        Returns:
            The base offset it was given before, when it is a repetition; None when it is to be appended.

        Raises:
            RequestRefused: the producer was fenced, or its sequence has a hole.
        """
        if header.producer_id < 0:
            return None
        if header.base_sequence < 0:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
        producer = self._producers.get(header.producer_id)
        if producer is None:
            # Nothing is known, as after retention removed all it wrote: any sequence is accepted.
            return None
        if header.producer_epoch < producer.epoch:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch {header.producer_epoch}",
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise _out_of_order(header, 0)
            return None
        last = last_sequence(header)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last):
                return batch.base_offset
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
        if header.base_sequence != expected:
            raise _out_of_order(header, expected)
        return None

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Takes note of a batch that was appended at `base_offset`."""
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch, now_ms)
        producer.seen_at_ms = now_ms
        producer.batches.append(
            AppendedBatch(
                header.base_sequence, last_sequence(header), base_offset, base_offset + header.last_offset_delta
            )
        )

    def expire(self, now_ms: int) -> None:
        for producer_id in [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.seen_at_ms > EXPIRATION_MS
        ]:
            del self._producers[producer_id]

    def to_snapshot(self) -> bytes:
        body = bytearray(struct.pack(">i", len(self._producers)))
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1]
            body += _ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                producer.seen_at_ms,
                -1,
                -1,
            )
        return struct.pack(">hI", _VERSION, crc32c(body)) + bytes(body)

    @classmethod
    def from_snapshot(cls, content: bytes) -> ProducerStates | None:
        """Reads a snapshot; None when it is damaged, so that an older one or the log itself is used."""
        if len(content) < _START.size:
            return None
        version, crc, count = _START.unpack_from(content)
        if version != _VERSION or crc32c(content[6:]) != crc or len(content) != _START.size + count * _ENTRY.size:
            return None
        states = cls()
        for entry in _ENTRY.iter_unpack(content[_START.size :]):
            producer_id, epoch, sequence, offset, delta, seen_at_ms, _, _ = entry
            producer = states._producers[producer_id] = Producer(epoch, seen_at_ms)
            first = (sequence - delta) % SEQUENCE_MODULUS
            producer.batches.append(AppendedBatch(first, sequence, offset - delta, offset))
        return states


def _out_of_order(header: BatchHeader, expected: int) -> RequestRefused:
    return RequestRefused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}; expected {expected}",
    )
