"""Encoder of Metadata responses, versions 0 to 12, written by hand: the generated codec takes 0.3 s for 20,000
partitions and blocks other clients meanwhile.

The single broker leads all partitions, so a partition's bytes depend only on its number. Each number is encoded once
and reused for all topics.
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
FLEXIBLE_FROM, TOPIC_IDS_FROM, NULL_NAMES_FROM = 9, 10, 12

_OPERATIONS_OMITTED = -(1 << 31)
_PARTITION_0, _PARTITION_7 = struct.Struct(">hii"), struct.Struct(">hiii")


class DescribedTopic(NamedTuple):
    """A topic in a Metadata response. `name` is None if the request named an id that no topic has, or a topic on which
    the client has no permission. `authorized_operations` is None if the client did not request them, and for a topic
    with an error."""

    error_code: ErrorCode
    name: str | None
    topic_id: UUID
    is_internal: bool = False
    partition_count: int = 0
    authorized_operations: Set[int] | None = None


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """Content of a Metadata response: a cluster with one broker, which leads all partitions in one leader epoch."""

    node_id: int
    host: str
    port: int
    cluster_id: str
    leader_epoch: int
    topics: Sequence[DescribedTopic]
    authorized_operations: Set[int] | None = None


def encode(result: MetadataResult, version: int) -> bytearray:
    writer = Writer(flexible=version >= FLEXIBLE_FROM)
    if version >= 3:
        writer.i32(0)  # throttle time
    writer.array_size(1)
    writer.i32(result.node_id)
    writer.string(result.host)
    writer.i32(result.port)
    if version >= 1:
        writer.nullable_string(None)  # rack
    writer.tags()
    if version >= 2:
        writer.nullable_string(result.cluster_id)
    if version >= 1:
        writer.i32(result.node_id)  # controller
    partitions = _partitions(result, version)
    writer.array_size(len(result.topics))
    for topic in result.topics:
        writer.i16(topic.error_code)
        if version >= NULL_NAMES_FROM:
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
        writer.i32(_bits(result.authorized_operations))
    writer.tags()
    return writer.buffer


def _partitions(result: MetadataResult, version: int) -> list[bytes]:
    """Returns the encoded entries of partitions 0, 1, … for the Metadata response `result` in this API version. All its
    topics share them, because an entry depends only on the partition number; there are as many as the largest topic has
    partitions."""
    suffix = Writer(flexible=version >= FLEXIBLE_FROM)
    for _ in ("replicas", "in-sync replicas"):
        suffix.array_size(1)
        suffix.i32(result.node_id)
    if version >= 5:
        suffix.array_size(0)  # offline replicas
    suffix.tags()
    end = bytes(suffix.buffer)
    indexes = range(max((topic.partition_count for topic in result.topics), default=0))
    if version >= 7:
        return [_PARTITION_7.pack(0, index, result.node_id, result.leader_epoch) + end for index in indexes]
    return [_PARTITION_0.pack(0, index, result.node_id) + end for index in indexes]


def _bits(operations: Set[int] | None) -> int:
    return _OPERATIONS_OMITTED if operations is None else sum(1 << operation for operation in operations)
