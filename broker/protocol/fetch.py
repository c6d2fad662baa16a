"""Codec of Fetch, versions 4 to 17, written by hand so that records go from file to socket without a copy into an
encoder.

From version 13 on, requests and responses name topics by id only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headrace.broker.log.files import FileSlice
from headrace.broker.log.transactions import TransactionIndexEntry
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.framing import REQUEST_ITEMS_MAX, Pieces
from headrace.kafka_wire.primitives import Reader, Writer

TOPIC_IDS_FROM = 13
READ_COMMITTED = 1
"""Isolation level of consumers that see neither open nor aborted transactions: the broker sends no records from the
first open transaction on, and lists the aborted ones. With other levels consumers see all records."""

_PARTITION_4, _PARTITION_9, _PARTITION_12 = (struct.Struct(fields) for fields in (">iq", ">iiqqi", ">iiqiqi"))
_FETCHED_4, _FETCHED_5 = struct.Struct(">ihqq"), struct.Struct(">ihqqq")


class FetchPartition(NamedTuple):
    partition: int
    leader_epoch: int  # -1 if the client does not know it
    offset: int
    bytes_max: int


class FetchTopic(NamedTuple):
    """A topic and its partitions in a Fetch request. `name` is "" from version 13 on; `topic_id` is the nil UUID in
    earlier versions."""

    name: str
    topic_id: UUID
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: tuple[FetchTopic, ...]
    forgotten: tuple[FetchTopic, ...] = ()


class FetchedPartition(NamedTuple):
    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: bytes | FileSlice
    aborted: Sequence[TransactionIndexEntry] = ()


class FetchedTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: tuple[FetchedPartition, ...]


def decode(view: memoryview, pos: int, version: int) -> FetchRequest:
    reader = Reader(view, pos, flexible=version >= 12, items_max=REQUEST_ITEMS_MAX)
    if version <= 14:
        reader.i32()  # replica id; there are no follower brokers
    wait_ms_max, bytes_min, bytes_max, isolation_level = reader.i32(), reader.i32(), reader.i32(), reader.i8()
    session_id, session_epoch = (reader.i32(), reader.i32()) if version >= 7 else (0, -1)
    topics = tuple(_topic(reader, version) for _ in range(reader.array_size()))
    forgotten = tuple(_forgotten(reader, version) for _ in range(reader.array_size())) if version >= 7 else ()
    # The rest (rack, tags) only matters to replicas.
    return FetchRequest(
        wait_ms_max, bytes_min, bytes_max, isolation_level, session_id, session_epoch, topics, forgotten
    )


def _forgotten(reader: Reader, version: int) -> FetchTopic:
    name, topic_id = _topic_key(reader, version)
    partitions = tuple(FetchPartition(reader.i32(), -1, -1, 0) for _ in range(reader.array_size()))
    reader.tags()
    return FetchTopic(name, topic_id, partitions)


def _topic_key(reader: Reader, version: int) -> tuple[str, UUID]:
    if version >= TOPIC_IDS_FROM:
        return "", UUID(bytes=bytes(reader.raw(16)))
    return reader.string(), UUID(int=0)


def _topic(reader: Reader, version: int) -> FetchTopic:
    name, topic_id = _topic_key(reader, version)
    partitions = tuple(_partition(reader, version) for _ in range(reader.array_size()))
    reader.tags()
    return FetchTopic(name, topic_id, partitions)


def _partition(reader: Reader, version: int) -> FetchPartition:
    # Last fetched epoch and log start offset are set by follower brokers only.
    if version >= 12:
        index, leader_epoch, offset, _, _, bytes_max = reader.fixed(_PARTITION_12)
    elif version >= 9:
        index, leader_epoch, offset, _, bytes_max = reader.fixed(_PARTITION_9)
    else:
        index, offset = reader.fixed(_PARTITION_4)
        leader_epoch = -1
        if version >= 5:
            reader.i64()
        bytes_max = reader.i32()
    reader.tags()
    return FetchPartition(index, leader_epoch, offset, bytes_max)


def encode(topics: tuple[FetchedTopic, ...], error: ErrorCode, version: int, session_id: int = 0) -> Pieces:
    """Encodes the body of a Fetch response. Returns it in pieces: encoded bytes, and records that are still in a log
    file.

    Args:
        error: error of the whole response; errors of partitions are in `topics`.
        version: API version of the request, which determines the fields.
        session_id: id of the fetch session; 0 if the response belongs to none.
    """
    pieces: Pieces = []
    writer = Writer(flexible=version >= 12)
    writer.i32(0)  # throttle time
    if version >= 7:
        writer.i16(error)
        writer.i32(session_id)
    writer.array_size(len(topics))
    for topic in topics:
        if version >= TOPIC_IDS_FROM:
            writer.buffer += topic.topic_id.bytes
        else:
            writer.string(topic.name)
        writer.array_size(len(topic.partitions))
        for partition in topic.partitions:
            _encode_partition(writer, partition, version)
            if partition.records:
                pieces += (writer.buffer, partition.records)
                writer.buffer = bytearray()
            writer.tags()
        writer.tags()
    writer.tags()
    pieces.append(writer.buffer)
    return pieces


def _encode_partition(writer: Writer, partition: FetchedPartition, version: int) -> None:
    first = (partition.partition, partition.error, partition.high_watermark, partition.last_stable_offset)
    if version >= 5:
        writer.fixed(_FETCHED_5, *first, partition.log_start_offset)
    else:
        writer.fixed(_FETCHED_4, *first)
    writer.array_size(len(partition.aborted))
    for one in partition.aborted:
        writer.i64(one.producer_id)
        writer.i64(one.first_offset)
        writer.tags()
    if version >= 11:
        writer.i32(-1)  # preferred read replica
    writer.bytes_size(len(partition.records))
