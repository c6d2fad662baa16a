"""Records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's layout.

A key begins with the record kind: 3 group epoch, 5 member metadata, 6 target assignment epoch, 7 target assignment of a
member, 8 current assignment of a member. Kinds 3 and 6 continue with {group}, the others with {group, member}. A null
value deletes. Values begin with version 0 and use flexible encoding.

Kafka's kinds 4 (partition metadata) and 16 (resolved pattern) are not written: after a start, existing topics are
compared with the targets. Tagged fields that only this broker uses store the topics that match a member's pattern, and
the time at which a group lost its last member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.broker.coordinator.assignors import TopicIdPartition
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_members import ConsumerMember, MemberState
from headrace.broker.coordinator.table import TableEntry
from headrace.kafka_wire.errors import MalformedMessage
from headrace.kafka_wire.primitives import Reader, Writer

VALUE_VERSION = 0
EPOCHS_TAG = 0  # Kafka's tag: member epoch in which each partition was assigned (KIP-1251)
MATCHED_TAG, CHANGED_TAG = 848_001, 848_002  # tags of this broker; Kafka skips them


class RecordKind(IntEnum):
    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT_ASSIGNMENT = 8


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """Key of a record that stores a part of a consumer group. `member_id` is "" in records of the whole group."""

    kind: RecordKind
    group_id: str
    member_id: str = ""


@dataclass(slots=True)
class StoredGroup:
    """The state of a group, built by applying its records in the order of the log."""

    epoch: int = 0
    target_epoch: int = 0
    changed_at_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    current_assignments: dict[str, ConsumerMember] = field(default_factory=dict)  # only the assignment fields are set
    target: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)

    def apply(self, key: ConsumerKey, value: bytes | None) -> None:
        """Applies one record of the log to this state. A record without a value deletes what earlier records of its key
        have set.

        Raises:
            MalformedMessage: the record is malformed.
        """
        if key.kind is RecordKind.GROUP:
            self.epoch, self.changed_at_ms = _group(value) if value is not None else (0, 0)
        elif key.kind is RecordKind.TARGET_EPOCH:
            self.target_epoch = _reader(value).i32() if value is not None else 0
        elif value is None:
            members_by_kind: dict[RecordKind, dict[str, ConsumerMember]] = {
                RecordKind.MEMBER: self.members,
                RecordKind.CURRENT_ASSIGNMENT: self.current_assignments,
            }
            (self.target if key.kind is RecordKind.TARGET else members_by_kind[key.kind]).pop(key.member_id, None)
        elif key.kind is RecordKind.MEMBER:
            self.members[key.member_id] = _member(key.member_id, value)
        elif key.kind is RecordKind.CURRENT_ASSIGNMENT:
            self.current_assignments[key.member_id] = _current_assignment(key.member_id, value)
        else:
            self.target[key.member_id] = frozenset(_partitions(_reader(value)))

    def merged_members(self) -> Iterator[ConsumerMember]:
        for member_id, member in self.members.items():
            step = self.current_assignments.get(member_id)
            if step is not None:
                member.epoch, member.previous_epoch, member.state = step.epoch, step.previous_epoch, step.state
                member.assigned, member.revoking = step.assigned, step.revoking
            yield member


def encode_consumer_key(key: ConsumerKey) -> bytes:
    writer = Writer(flexible=False)
    writer.i16(key.kind)
    writer.string(key.group_id)
    if key.kind not in (RecordKind.GROUP, RecordKind.TARGET_EPOCH):
        writer.string(key.member_id)
    return bytes(writer.buffer)


def decode_consumer_key(kind: int, reader: Reader) -> ConsumerKey | None:
    """Decodes the rest of a record's key, which `reader` returns, after its `kind` was read; returns None if this
    broker does not know the kind.

    Raises:
        MalformedMessage: the key is malformed.
    """
    if kind not in RecordKind._value2member_map_:
        return None
    known = RecordKind(kind)
    is_group_record = known in (RecordKind.GROUP, RecordKind.TARGET_EPOCH)
    return ConsumerKey(known, reader.string(), "" if is_group_record else reader.string())


def keys_of(group: ConsumerGroup) -> Iterator[ConsumerKey]:
    """Yields the keys of the records that a group and its members may have in the log of `__consumer_offsets`."""
    yield ConsumerKey(RecordKind.GROUP, group.group_id)
    yield ConsumerKey(RecordKind.TARGET_EPOCH, group.group_id)
    for member_id in tuple(group.members):
        yield ConsumerKey(RecordKind.MEMBER, group.group_id, member_id)
        yield ConsumerKey(RecordKind.TARGET, group.group_id, member_id)
        yield ConsumerKey(RecordKind.CURRENT_ASSIGNMENT, group.group_id, member_id)


def unstored_entries(group: ConsumerGroup, changed_at_ms: int) -> list[TableEntry]:
    """Returns the records for a group's unstored changes, to be appended in one batch.

    Args:
        changed_at_ms: time since when the group has no members, if it has none.
    """
    unstored, group_id = group.unstored, group.group_id
    keys = [
        *(ConsumerKey(RecordKind.MEMBER, group_id, member_id) for member_id in sorted(unstored.members)),
        *(ConsumerKey(RecordKind.TARGET, group_id, member_id) for member_id in sorted(unstored.targets)),
        *(
            ConsumerKey(RecordKind.CURRENT_ASSIGNMENT, group_id, member_id)
            for member_id in sorted(unstored.current_assignments)
        ),
    ]
    if unstored.epochs:
        keys += [ConsumerKey(RecordKind.GROUP, group_id), ConsumerKey(RecordKind.TARGET_EPOCH, group_id)]
    return [consumer_entry(group, key, changed_at_ms) for key in keys]


def consumer_entry(group: ConsumerGroup, key: ConsumerKey, changed_at_ms: int) -> TableEntry:
    """Returns the record of `__consumer_offsets` with the key `key`. Its value is the group's current state; None if
    `key` names a member that does not exist.

    Args:
        changed_at_ms: time since when the group has no members, if it has none; part of the record of the group epoch.
    """
    writer = Writer(flexible=True)
    writer.i16(VALUE_VERSION)
    member = group.members.get(key.member_id)
    if key.kind is RecordKind.GROUP:
        writer.i32(group.epoch)
        _put_tag(writer, CHANGED_TAG, changed_at_ms.to_bytes(8))
    elif key.kind is RecordKind.TARGET_EPOCH:
        writer.i32(group.target_epoch)
        writer.tags()
    elif member is None:
        return encode_consumer_key(key), None
    elif key.kind is RecordKind.MEMBER:
        _put_member(writer, member)
    elif key.kind is RecordKind.TARGET:
        _put_partitions(writer, dict.fromkeys(group.target.get(member.member_id, ()), -1), has_epochs=False)
        writer.tags()
    else:
        writer.i32(member.epoch)
        writer.i32(member.previous_epoch)
        writer.i8(member.state)
        _put_partitions(writer, member.assigned, has_epochs=True)
        _put_partitions(writer, member.revoking, has_epochs=True)
        writer.tags()
    return encode_consumer_key(key), bytes(writer.buffer)


def _put_member(writer: Writer, member: ConsumerMember) -> None:
    writer.nullable_string(member.instance_id)
    writer.nullable_string(member.rack_id)
    writer.string(member.client_id)
    writer.string(member.client_host)
    _put_strings(writer, member.topics)
    writer.nullable_string(member.pattern)
    writer.i32(member.rebalance_timeout_ms)
    writer.nullable_string(member.assignor)
    matched = Writer(flexible=True)
    _put_strings(matched, member.matched)
    if member.matched:
        _put_tag(writer, MATCHED_TAG, bytes(matched.buffer))
    else:
        writer.tags()


def _put_strings(writer: Writer, strings: Iterable[str]) -> None:
    ordered = sorted(strings)
    writer.array_size(len(ordered))
    for each in ordered:
        writer.string(each)


def _put_tag(writer: Writer, tag: int, content: bytes) -> None:
    """Writes the tagged fields of a structure that has exactly one: the field with the number `tag` and the encoded
    value `content`."""
    writer.uvarint(1)
    writer.uvarint(tag)
    writer.uvarint(len(content))
    writer.buffer += content


def _put_partitions(writer: Writer, partitions: Mapping[TopicIdPartition, int], *, has_epochs: bool) -> None:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)
    writer.array_size(len(by_topic))
    for topic_id, indexes in by_topic.items():
        writer.buffer += topic_id
        _put_numbers(writer, indexes)
        if has_epochs:
            epochs = Writer(flexible=True)
            _put_numbers(epochs, [partitions[topic_id, index] for index in indexes])
            _put_tag(writer, EPOCHS_TAG, bytes(epochs.buffer))
        else:
            writer.tags()


def _put_numbers(writer: Writer, numbers: list[int]) -> None:
    writer.array_size(len(numbers))
    for number in numbers:
        writer.i32(number)


def _reader(value: bytes) -> Reader:
    """Returns a reader of a record's value, after checking and skipping its version."""
    reader = Reader(memoryview(value), 0, flexible=True)
    version = reader.i16()
    if version != VALUE_VERSION:
        raise MalformedMessage(
            f"a consumer group record has version {version}, but this release reads version {VALUE_VERSION}; use a "
            "newer release"
        )
    return reader


def _tagged(reader: Reader) -> dict[int, Reader]:
    found: dict[int, Reader] = {}
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        found[tag] = Reader(reader.raw(reader.uvarint()), 0, flexible=True)
    return found


def _group(value: bytes) -> tuple[int, int]:
    reader = _reader(value)
    epoch = reader.i32()
    changed = _tagged(reader).get(CHANGED_TAG)
    return epoch, changed.i64() if changed is not None else 0


def _member(member_id: str, value: bytes) -> ConsumerMember:
    reader = _reader(value)
    member = ConsumerMember(
        member_id,
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topics=_strings(reader),
        pattern=reader.nullable_string(),
        rebalance_timeout_ms=reader.i32(),
        assignor=reader.nullable_string(),
    )
    matched = _tagged(reader).get(MATCHED_TAG)
    member.matched = _strings(matched) if matched is not None else frozenset()
    return member


def _current_assignment(member_id: str, value: bytes) -> ConsumerMember:
    reader = _reader(value)
    epoch, previous_epoch, state = reader.i32(), reader.i32(), reader.i8()
    if state not in MemberState._value2member_map_:
        raise MalformedMessage(f"a record of group member {member_id} has the unknown member state {state}")
    return ConsumerMember(
        member_id,
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=MemberState(state),
        assigned=_partitions(reader),
        revoking=_partitions(reader),
    )


def _strings(reader: Reader) -> frozenset[str]:
    return frozenset(reader.string() for _ in range(reader.array_size()))


def _partitions(reader: Reader) -> dict[TopicIdPartition, int]:
    found: dict[TopicIdPartition, int] = {}
    for _ in range(reader.array_size()):
        topic_id = bytes(reader.raw(16))
        indexes = [reader.i32() for _ in range(reader.array_size())]
        epochs = _tagged(reader).get(EPOCHS_TAG)
        if epochs is not None and (epoch_count := epochs.array_size()) != len(indexes):
            raise MalformedMessage(
                f"the assignment of a consumer group member has {epoch_count} epochs for {len(indexes)} partitions of "
                "a topic"
            )
        found.update({(topic_id, index): epochs.i32() if epochs is not None else 0 for index in indexes})
    return found
