"""Records of `__consumer_offsets` in Kafka's layout: committed offsets and metadata of classic groups.

`consumer_records` has those of consumer groups (KIP-848).

A key begins with its version: 0 or 1 for a committed offset {group, topic, partition i32} (1 is written), 2 for a group
{group}. A null value deletes. Offset value version 3: offset i64, leader epoch i32, metadata, commit timestamp i64
(version 1 had an expiry, version 2 no leader epoch). Group value version 3: protocol type, generation i32, protocol?,
leader?, state timestamp i64, members. Strings have 2-byte lengths, bytes 4-byte ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.coordinator.consumer_records import ConsumerKey, decode_consumer_key
from headrace.broker.coordinator.group import Group
from headrace.broker.coordinator.members import GroupMember, MemberProtocol
from headrace.kafka_wire.primitives import Reader, Writer

OFFSET_KEY, GROUP_KEY = 1, 2
VALUE_VERSION = 3


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The stored state of a classic group. `protocol_type` is "" if the group has never had members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_at_ms: int
    members: tuple[GroupMember, ...]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    writer = Writer(flexible=False)
    if isinstance(key, OffsetKey):
        writer.i16(OFFSET_KEY)
        writer.string(key.group_id)
        writer.string(key.topic)
        writer.i32(key.partition)
    else:
        writer.i16(GROUP_KEY)
        writer.string(key.group_id)
    return bytes(writer.buffer)


def decode_key(raw: bytes) -> OffsetKey | GroupKey | ConsumerKey | int:
    """Decodes the key of a record of `__consumer_offsets`: the key of a committed offset, of a classic group, or of a
    part of a consumer group. If this broker does not know the kind of the record, returns the number of that kind.

    Raises:
        MalformedMessage: the key is malformed.
    """
    reader = Reader(memoryview(raw), 0, flexible=False)
    version = reader.i16()
    if version in (0, OFFSET_KEY):
        return OffsetKey(reader.string(), reader.string(), reader.i32())
    if version == GROUP_KEY:
        return GroupKey(reader.string())
    consumer_key = decode_consumer_key(version, reader)
    return consumer_key if consumer_key is not None else version


def encode_offset(committed: CommittedOffset) -> bytes:
    writer = Writer(flexible=False)
    writer.i16(VALUE_VERSION)
    writer.i64(committed.offset)
    writer.i32(committed.leader_epoch)
    writer.string(committed.metadata)
    writer.i64(committed.committed_at_ms)
    return bytes(writer.buffer)


def decode_offset(raw: bytes) -> CommittedOffset:
    reader = Reader(memoryview(raw), 0, flexible=False)
    version, offset = reader.i16(), reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    return CommittedOffset(offset, leader_epoch, reader.string(), reader.i64())


def encode_group(group: Group, changed_at_ms: int) -> bytes:
    """Encodes the stored state of a group: the value of its record. It contains no members while the group rebalances.

    A compaction may run during a rebalance. The members' assignments are then still those of the previous generation,
    and new members have none. So no members are stored, and all of them rejoin after a restart.

    Args:
        changed_at_ms: time since when the group has no members, if it has none.
    """
    members = group.members.values() if not group.is_rebalancing else ()
    writer = Writer(flexible=False)
    writer.i16(VALUE_VERSION)
    writer.string(group.protocol_type or "")
    writer.i32(group.generation)
    writer.nullable_string(group.protocol)
    writer.nullable_string(group.leader)
    writer.i64(changed_at_ms)
    writer.array_size(len(members))
    for member in members:
        writer.string(member.member_id)
        writer.nullable_string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.i32(member.rebalance_timeout_ms)
        writer.i32(member.session_timeout_ms)
        for content in (member.metadata(group.protocol), member.assignment):
            writer.bytes_size(len(content))
            writer.buffer += content
    return bytes(writer.buffer)


def decode_group(raw: bytes) -> GroupMetadata:
    reader = Reader(memoryview(raw), 0, flexible=False)
    version, protocol_type, generation = reader.i16(), reader.string(), reader.i32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    changed_at_ms = reader.i64() if version >= 2 else 0
    members = tuple(_member(reader, version, protocol or "") for _ in range(reader.array_size()))
    return GroupMetadata(protocol_type, generation, protocol, leader, changed_at_ms, members)


def _member(reader: Reader, version: int, protocol: str) -> GroupMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms, session_timeout_ms = reader.i32(), reader.i32()
    subscription, assignment = bytes(reader.nullable_bytes() or b""), bytes(reader.nullable_bytes() or b"")
    # Only the selected protocol is stored. A member that rejoins after a restart sends all of its protocols again.
    return GroupMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms,
        rebalance_timeout_ms,
        (MemberProtocol(protocol, subscription),),
        0,
        assignment,
    )
