"""Produce, versions 3 to 12, by hand: one request costs about 10 µs this way, 60 µs through generated codecs."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.primitives import Reader, Writer

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PRODUCED = struct.Struct(">ihqq")


class ProducePartition(NamedTuple):
    """`records` is a view into the request's frame: valid until the request has been handled."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str
    partitions: tuple[ProducePartition, ...]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: tuple[ProduceTopic, ...]


@dataclass(slots=True)
class ProducedPartition:
    """The answer for one partition; `base_offset` is -1 with any error, `append_time_ms` with producers' time."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    append_time_ms: int = -1


class ProducedTopic(NamedTuple):
    name: str
    partitions: tuple[ProducedPartition, ...]


def decode(view: memoryview, pos: int, version: int) -> ProduceRequest:
    reader = Reader(view, pos, flexible=version >= 9)
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.fixed(_ACKS_AND_TIMEOUT)
    topics = []
    for _ in range(reader.array_size()):
        name = reader.string()
        partitions = []
        for _ in range(reader.array_size()):
            index = reader.i32()
            partitions.append(ProducePartition(index, reader.nullable_bytes()))
            reader.tags()
        reader.tags()
        topics.append(ProduceTopic(name, tuple(partitions)))
    reader.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, tuple(topics))


def encode(topics: tuple[ProducedTopic, ...], version: int) -> bytearray:
    writer = Writer(flexible=version >= 9)
    writer.array_size(len(topics))
    for topic in topics:
        writer.string(topic.name)
        writer.array_size(len(topic.partitions))
        for partition in topic.partitions:
            writer.fixed(
                _PRODUCED, partition.partition, partition.error, partition.base_offset, partition.append_time_ms
            )
            if version >= 5:
                writer.i64(partition.log_start_offset)
            if version >= 8:
                writer.array_size(0)
                writer.nullable_string(partition.error_message)
            writer.tags()
        writer.tags()
    writer.i32(0)  # throttle time
    writer.tags()
    return writer.buffer
