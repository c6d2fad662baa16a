"""Which partitions topics have, and at which offsets to begin, as the Kafka client finds them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import error_text

ANSWER_TIMEOUT_S: Final = 30.0

Place = tuple[str, int]
"""Topic and partition."""


def places_of(partitions: Iterable[TopicPartition]) -> frozenset[Place]:
    return frozenset((each.topic, each.partition) for each in partitions)


def partitions_of(places: Iterable[Place]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]


def known_partitions(kafka: Any, topic: str) -> frozenset[int]:
    """The numbers of a topic's partitions.

    Raises:
        SourceUnavailable: the brokers do not say, or there is no such topic.
    """
    found = _partitions(kafka, topic)
    if not found:
        raise SourceUnavailable(f"topic {topic} does not exist", topic=topic)
    return found


def missing(kafka: Any, places: Iterable[Place]) -> list[Place]:
    """Those of them that there are not, or not any more.

    Raises:
        SourceUnavailable: the brokers do not say.
    """
    asked = sorted(places)
    known = {topic: _partitions(kafka, topic) for topic in {topic for topic, _ in asked}}
    return [(topic, number) for topic, number in asked if number not in known[topic]]


def _partitions(kafka: Any, topic: str) -> frozenset[int]:
    """None where there is no such topic."""
    try:
        found = kafka.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise SourceUnavailable(f"topic {topic}: {error_text(error)}", topic=topic) from error
    if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise SourceUnavailable(f"topic {topic}: {error_text(found.error)}", topic=topic)
    return frozenset(found.partitions)


def high_watermark(kafka: Any, place: Place) -> int:
    """The offset behind the last record that there is now.

    Raises:
        SourceUnavailable: the brokers do not say.
    """
    return _bounds(kafka, place)[1]


def offset_of(kafka: Any, place: Place, offset: int) -> int:
    """An offset as it is, or the one that a sign for the beginning or the end of the partition stands for.

    A sign can be sought and not committed.

    Raises:
        SourceUnavailable: the brokers do not say.
        ValueError: it is negative, and neither sign.
    """
    if offset >= 0:
        return offset
    if offset not in (OFFSET_BEGINNING, OFFSET_END):
        raise ValueError(f"topic {place[0]} partition {place[1]}: there is no offset {offset}")
    return _bounds(kafka, place)[offset == OFFSET_END]


def _bounds(kafka: Any, place: Place) -> tuple[int, int]:
    try:
        found: tuple[int, int] = kafka.get_watermark_offsets(TopicPartition(*place), ANSWER_TIMEOUT_S)
        return found
    except KafkaException as error:
        raise SourceUnavailable(
            f"topic {place[0]} partition {place[1]}: {error_text(error)}", topic=place[0], partition=place[1]
        ) from error


def at_time(kafka: Any, places: Iterable[Place], time_ms: int) -> list[TopicPartition]:
    """Where the first record of that time or later is, or the end. Of a time before 1970 that is the beginning.

    Raises:
        SourceUnavailable: the brokers do not say.
    """
    # Negative ones are signs to the brokers, of the end for one.
    asked = [TopicPartition(*place, max(time_ms, 0)) for place in places]
    if not asked:
        return []
    try:
        found = kafka.offsets_for_times(asked, ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise SourceUnavailable(f"no offsets of the time {time_ms} ms: {error_text(error)}") from error
    raise_first_error(found, f"no offset of the time {time_ms} ms")
    # Where there is none of that time the offset is a negative sign for the end, and a place to go back to is wanted.
    return [each for each in found if each.offset >= 0] + at_end(
        kafka, places_of(each for each in found if each.offset < 0)
    )


def at_end(kafka: Any, places: Iterable[Place]) -> list[TopicPartition]:
    """Behind the last records that there are now.

    Raises:
        SourceUnavailable: the brokers do not say.
    """
    return [TopicPartition(*place, high_watermark(kafka, place)) for place in places]


def at_commit_or_else(
    kafka: Any, partitions: list[TopicPartition], start: Callable[[Any, frozenset[Place]], list[TopicPartition]]
) -> list[TopicPartition]:
    """Where the group has committed, and for the others what `start` says.

    Raises:
        SourceUnavailable: the brokers do not say.
    """
    try:
        committed = kafka.committed(partitions, ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise SourceUnavailable(f"commits of the group not read: {error_text(error)}") from error
    # Without a commit the offset is a negative sign for "what auto.offset.reset says".
    return start(kafka, places_of(each for each in committed if each.offset < 0)) + [
        each for each in committed if each.offset >= 0
    ]


def raise_first_error(partitions: list[TopicPartition], what: str) -> None:
    """
    Args:
        what: failed with that error, in words.

    Raises:
        SourceUnavailable: one of them has an error.
    """
    for each in partitions:
        if each.error is not None:
            raise SourceUnavailable(
                f"topic {each.topic} partition {each.partition}: {what}: {error_text(each.error)}",
                topic=each.topic,
                partition=each.partition,
            )
