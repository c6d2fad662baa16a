"""Finds the partitions of topics, and the offsets at which reading them starts, with the Kafka client (the argument
`kafka`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import error_text

RESPONSE_TIMEOUT_S: Final = 30.0

TopicAndPartition = tuple[str, int]
"""Topic and partition number, hashable and independent of confluent-kafka's `TopicPartition`."""


def as_topic_partitions(partitions: Iterable[TopicPartition]) -> frozenset[TopicAndPartition]:
    return frozenset((each.topic, each.partition) for each in partitions)


def as_kafka_partitions(topic_partitions: Iterable[TopicAndPartition]) -> list[TopicPartition]:
    return [TopicPartition(*topic_partition) for topic_partition in topic_partitions]


def checked_pairs(topic_partitions: object) -> frozenset[TopicAndPartition]:
    """Returns pairs of a topic and a partition number that an application has passed.

    Raises:
        ValueError: it has passed something else.
    """
    given = list(topic_partitions) if isinstance(topic_partitions, Iterable) else [topic_partitions]
    pairs: set[TopicAndPartition] = set()
    for pair in given:
        topic, partition = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(topic, str) or type(partition) is not int or not 0 <= partition < 1 << 31:
            raise ValueError(
                f"expected pairs of a topic and a partition number, found {type(pair).__name__} {pair!r:.60}"
            )
        pairs.add((topic, partition))
    return frozenset(pairs)


def known_partitions(kafka: Any, topic: str) -> frozenset[int]:
    """Returns the partition numbers of a topic.

    Args:
        kafka: a client of confluent-kafka.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request, or the topic does not exist.
    """
    found = _partitions(kafka, topic)
    if not found:
        raise SourceUnavailable(f"topic {topic} does not exist", topic=topic)
    return found


def missing_partitions(kafka: Any, topic_partitions: Iterable[TopicAndPartition]) -> list[TopicAndPartition]:
    """Returns the given partitions that do not exist on the brokers.

    Args:
        kafka: a client of confluent-kafka.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
    """
    requested = sorted(topic_partitions)
    known = {topic: _partitions(kafka, topic) for topic in {topic for topic, _ in requested}}
    return [(topic, number) for topic, number in requested if number not in known[topic]]


def _partitions(kafka: Any, topic: str) -> frozenset[int]:
    """Returns the partition numbers of a topic, or an empty set for a missing topic. `kafka` is a client of
    confluent-kafka."""
    try:
        found = kafka.list_topics(topic, RESPONSE_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise SourceUnavailable(f"topic {topic}: {error_text(error)}", topic=topic) from error
    if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise SourceUnavailable(f"topic {topic}: {error_text(found.error)}", topic=topic)
    return frozenset(found.partitions)


def high_watermark(kafka: Any, topic_partition: TopicAndPartition) -> int:
    """Returns the offset up to which the client can read a partition: the high watermark, or the last stable offset if
    a transaction is open before it.

    Args:
        kafka: a client of confluent-kafka.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
    """
    return _bounds(kafka, topic_partition)[1]


def offset_of(kafka: Any, topic_partition: TopicAndPartition, offset: int) -> int:
    """Returns `offset` itself. For the constants `OFFSET_BEGINNING` and `OFFSET_END`, which cannot be committed,
    returns the first or the end offset of the partition.

    Args:
        kafka: a client of confluent-kafka.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
        ValueError: another negative number, or no integer of 64 bits.
    """
    if type(offset) is int and 0 <= offset < 1 << 63:
        return offset
    if type(offset) is not int or offset not in (OFFSET_BEGINNING, OFFSET_END):
        raise ValueError(
            f"topic {topic_partition[0]} partition {topic_partition[1]}: {offset!r:.60} is no offset; pass a number "
            "from 0, `OFFSET_BEGINNING` or `OFFSET_END`"
        )
    return _bounds(kafka, topic_partition)[offset == OFFSET_END]


def _bounds(kafka: Any, topic_partition: TopicAndPartition) -> tuple[int, int]:
    try:
        found: tuple[int, int] = kafka.get_watermark_offsets(TopicPartition(*topic_partition), RESPONSE_TIMEOUT_S)
        return found
    except KafkaException as error:
        raise SourceUnavailable(
            f"topic {topic_partition[0]} partition {topic_partition[1]}: {error_text(error)}",
            topic=topic_partition[0],
            partition=topic_partition[1],
        ) from error


def at_time(kafka: Any, topic_partitions: Iterable[TopicAndPartition], time_ms: int) -> list[TopicPartition]:
    """Returns each partition with the offset of its first record with the timestamp `time_ms` or a later one. If there
    is no such record, this is the end of the partition.

    Args:
        kafka: a client of confluent-kafka.
        time_ms: milliseconds since 1970, not negative: negative numbers have special meanings for brokers.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
    """
    requested = [TopicPartition(*topic_partition, time_ms) for topic_partition in topic_partitions]
    if not requested:
        return []
    try:
        found = kafka.offsets_for_times(requested, RESPONSE_TIMEOUT_S)
    except KafkaException as error:
        raise SourceUnavailable(f"offsets of the time {time_ms} ms cannot be fetched: {error_text(error)}") from error
    raise_first_error(found, f"the offset of the time {time_ms} ms cannot be fetched")
    # Without such a record the response has a negative offset for the end, which must be resolved.
    return [each for each in found if each.offset >= 0] + at_end(
        kafka, as_topic_partitions(each for each in found if each.offset < 0)
    )


def at_end(kafka: Any, topic_partitions: Iterable[TopicAndPartition]) -> list[TopicPartition]:
    """Returns each partition with its current end offset.

    Args:
        kafka: a client of confluent-kafka.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
    """
    return [
        TopicPartition(*topic_partition, high_watermark(kafka, topic_partition)) for topic_partition in topic_partitions
    ]


def at_commit_or(
    kafka: Any,
    partitions: list[TopicPartition],
    start: Callable[[Any, frozenset[TopicAndPartition]], list[TopicPartition]],
) -> list[TopicPartition]:
    """Returns each partition with the committed offset of the client's group. Partitions without one get the offset
    that `start`, a function (Kafka client, partitions), returns for them.

    Raises:
        SourceUnavailable: the brokers do not respond or reject the request.
    """
    try:
        committed = kafka.committed(partitions, RESPONSE_TIMEOUT_S)
    except KafkaException as error:
        raise SourceUnavailable(
            f"committed offsets of the consumer's group cannot be fetched: {error_text(error)}"
        ) from error
    raise_first_error(committed, "the committed offset of the consumer's group cannot be fetched")
    # Without a commit the offset is negative and stands for auto.offset.reset.
    return start(kafka, as_topic_partitions(each for each in committed if each.offset < 0)) + [
        each for each in committed if each.offset >= 0
    ]


def raise_first_error(partitions: list[TopicPartition], description: str) -> None:
    """Raises SourceUnavailable for the first of these partitions for which the Kafka client reports an error, if any.

    Args:
        description: description of the failed operation, for the message.
    """
    for each in partitions:
        if each.error is not None:
            raise SourceUnavailable(
                f"topic {each.topic} partition {each.partition}: {description}: {error_text(each.error)}",
                topic=each.topic,
                partition=each.partition,
            )
