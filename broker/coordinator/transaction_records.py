"""Records of `__transaction_state` in Kafka's layout, and a record of the machine's boot id. At the next start, another
boot id shows that the machine went down in between.

A key begins with its version: 0 for a transactional id {id}, 1000 for the boot id. A null value deletes. Value of a
transactional id, version 0: producerId i64, epoch i16, timeout i32 (ms), status i8, partitions ([topic, [partition
i32]], null if empty), changed i64, started i64 (ms), and, not in Kafka, lastEpoch i16. Value of the boot id: the text
from the operating system.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.transaction import BY_NUMBER, Transaction
from headrace.kafka_wire.errors import MalformedMessage
from headrace.kafka_wire.primitives import Reader, Writer

ID_KEY, BOOT_KEY = 0, 1000
_VALUE_VERSION = 0


def encode_id_key(transactional_id: str) -> bytes:
    writer = Writer(flexible=False)
    writer.i16(ID_KEY)
    writer.string(transactional_id)
    return bytes(writer.buffer)


def encode_boot_key() -> bytes:
    writer = Writer(flexible=False)
    writer.i16(BOOT_KEY)
    return bytes(writer.buffer)


def decode_key(raw: bytes) -> str | int:
    """Decodes the key of a record of `__transaction_state`. Returns the transactional id, or for a record of another
    kind the number of that kind.

    Raises:
        MalformedMessage: the key is malformed.
    """
    reader = Reader(memoryview(raw), 0, flexible=False)
    version = reader.i16()
    return reader.string() if version == ID_KEY else version


def encode_transaction(transaction: Transaction) -> bytes:
    writer = Writer(flexible=False)
    writer.i16(_VALUE_VERSION)
    writer.i64(transaction.producer_id)
    writer.i16(transaction.epoch)
    writer.i32(transaction.timeout_ms)
    writer.i8(transaction.status.number)
    topics = by_topic(transaction.partitions)
    writer.array_size(len(topics) or -1)
    for topic, partitions in topics.items():
        writer.string(topic)
        writer.array_size(len(partitions))
        for partition in partitions:
            writer.i32(partition)
    writer.i64(transaction.changed_at_ms)
    writer.i64(transaction.started_at_ms)
    writer.i16(transaction.last_epoch)
    return bytes(writer.buffer)


def decode_transaction(raw: bytes) -> Transaction:
    """Decodes the record value that stores the state of a transactional id.

    Raises:
        MalformedMessage: the value is malformed or of an unknown version or status.
    """
    reader = Reader(memoryview(raw), 0, flexible=False)
    version, producer_id, epoch, timeout_ms, number = (
        reader.i16(),
        reader.i64(),
        reader.i16(),
        reader.i32(),
        reader.i8(),
    )
    if version != _VALUE_VERSION or number not in BY_NUMBER:
        raise MalformedMessage(
            f"a transaction record has an unknown version or status: version {version}, status {number}"
        )
    partitions: set[TopicPartition] = set()
    for _ in range(max(reader.array_size(), 0)):
        topic = reader.string()
        partitions.update((topic, reader.i32()) for _ in range(reader.array_size()))
    changed_at_ms, started_at_ms, last_epoch = reader.i64(), reader.i64(), reader.i16()
    return Transaction(
        producer_id,
        epoch,
        last_epoch,
        timeout_ms,
        BY_NUMBER[number],
        frozenset(partitions),
        changed_at_ms,
        started_at_ms,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partition numbers by topic name. Topics and partition numbers are sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics
