"""The answer to Metadata, versions 0 to 12, by hand: through generated codecs the 20,000 partitions that there may be
took a third of a second, in which nobody else was served. Partitions of one number are told alike in all topics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.primitives import Writer

TOPIC_OPERATIONS_FROM = 8
CLUSTER_OPERATIONS_IN = range(8, 11)
FLEXIBLE_FROM, TOPIC_IDS_FROM, NAMELESS_FROM = 9, 10, 12

_OPERATIONS_NOT_ASKED = -(1 << 31)
_PARTITION_0, _PARTITION_7 = struct.Struct(">hii"), struct.Struct(">hiii")


class FoundTopic(NamedTuple):
    """`name` is None of an id that no topic has; operations are None where they were not asked for."""

    error_code: ErrorCode
    name: str | None
    topic_id: UUID
    is_internal: bool = False
    partition_count: int = 0
    authorized_operations: Set[int] | None = None


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """Of one broker, which leads everything in one epoch."""

    node_id: int
    host: str
    port: int
    cluster_id: str
    leader_epoch: int
    topics: Sequence[FoundTopic]
    authorized_operations: Set[int] | None = None


def encode(answer: MetadataAnswer, version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= 3:
        writer.i32(0)  # throttle time
    writer.array_size(1)
    writer.i32(answer.node_id)
    writer.string(answer.host)
    writer.i32(answer.port)
    if version >= 1:
        writer.nullable_string(None)  # rack
    writer.tags()
    if version >= 2:
        writer.nullable_string(answer.cluster_id)
    if version >= 1:
        writer.i32(answer.node_id)  # controller
    partitions = _partitions(answer, version)
    writer.array_size(len(answer.topics))
    for topic in answer.topics:
        writer.i16(topic.error_code)
        if version >= NAMELESS_FROM:
            writer.nullable_string(topic.name)
        else:
            writer.string(topic.name or "")
        if version >= TOPIC_IDS_FROM:
            writer.buffer += topic.topic_id.bytes
        if version >= 1:
            writer.i8(topic.is_internal)
        writer.array_size(topic.partition_count)
        writer.buffer += b"".join(partitions[: topic.partition_count])
        if version >= TOPIC_OPERATIONS_FROM:
            writer.i32(_bits(topic.authorized_operations))
        writer.tags()
    if version in CLUSTER_OPERATIONS_IN:
        writer.i32(_bits(answer.authorized_operations))
    writer.tags()
    return writer.buffer


def _partitions(answer: MetadataAnswer, version: int) -> list[bytes]:
    """Each as it is told, in the order of their numbers, as many as the largest topic has."""
    rest = Writer(flexible=version >= FLEXIBLE_FROM)
    for _ in ("replicas", "in-sync replicas"):
        rest.array_size(1)
        rest.i32(answer.node_id)
    if version >= 5:
        rest.array_size(0)  # replicas that are offline
    rest.tags()
    end = bytes(rest.buffer)
    indexes = range(max((topic.partition_count for topic in answer.topics), default=0))
    if version >= 7:
        return [_PARTITION_7.pack(0, index, answer.node_id, answer.leader_epoch) + end for index in indexes]
    return [_PARTITION_0.pack(0, index, answer.node_id) + end for index in indexes]


def _bits(operations: Set[int] | None) -> int:
    return _OPERATIONS_NOT_ASKED if operations is None else sum(1 << operation for operation in operations)
