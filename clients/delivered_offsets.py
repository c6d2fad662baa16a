"""The next offset of each partition, to find messages that an interrupted fetch of the Kafka client lost.

A signal handler that raises (Ctrl-C, an alarm) can interrupt `consume` and `poll`. The messages that they had taken
from the client's queue are then lost, and a commit of later messages would skip them. After an interrupted fetch, the
positions of the Kafka client are therefore compared with the offsets here, before the next fetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TopicPartition

from headrace.clients.partitions import TopicAndPartition, as_kafka_partitions, at_commit_or

NO_POSITION: Final = confluent_kafka.OFFSET_INVALID
"""The position that the Kafka client reports for a partition from which it has returned no message yet."""


class DeliveredOffsets:
    """The offset of the next message of each partition that one consumer reads. Not thread-safe."""

    def __init__(self) -> None:
        self.next_offsets: dict[TopicAndPartition, int] = {}
        """Offset after the last received record of each partition; before the first record its start, if known."""
        self.ends: dict[TopicAndPartition, int] = {}
        """End of each partition that was last reported. It may be after `next_offsets`: transaction markers and
        compacted records have offsets, too."""
        self.is_fetch_unfinished = False

    def start(self, partitions: Iterable[TopicPartition]) -> None:
        """Stores the offsets at which reading of these partitions starts."""
        starts = {(each.topic, each.partition): each.offset for each in partitions}
        self.forget(starts)
        self.next_offsets.update(starts)

    def forget(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Removes the offsets of partitions that are reassigned or will be read from another offset."""
        for topic_partition in topic_partitions:
            self.next_offsets.pop(topic_partition, None)
            self.ends.pop(topic_partition, None)

    def known_positions(self, topic_partitions: Iterable[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """Returns the next offset to read of those of these partitions for which it is known without a request; a
        negative one is the start of the log."""
        return {
            topic_partition: max(known)
            for topic_partition in topic_partitions
            if (known := [each[topic_partition] for each in (self.next_offsets, self.ends) if topic_partition in each])
        }

    def positions(self, kafka: Any, topic_partitions: Iterable[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """Returns the next offset to read of each of these partitions; a negative one is the start of its log.

        Args:
            kafka: the consumer of confluent-kafka.

        Raises:
            SourceUnavailable: the committed offsets of the group cannot be fetched.
        """
        requested = frozenset(topic_partitions)
        known = self.known_positions(requested)
        return known | dict(self._starts(kafka, sorted(requested - known.keys())))

    def find_lost(
        self, kafka: Any, owned: frozenset[TopicAndPartition], awaited_ends: Iterable[TopicAndPartition]
    ) -> list[tuple[TopicAndPartition, int]]:
        """Returns the partitions with lost messages, each with the offset to seek back to. An exception interrupted the
        fetch to which the Kafka client returned these messages.

        Args:
            owned: the partitions that the consumer reads.
            awaited_ends: partitions that are read up to an end that was not reached yet. The Kafka client reports the
                end once, without changing its position, so a lost report cannot be detected; these partitions are
                always in the result.

        Raises:
            SourceUnavailable: the committed offsets of the group cannot be fetched.
        """
        ends = frozenset(awaited_ends)
        found, unknown = [], []
        for each in kafka.position(as_kafka_partitions(owned)):
            topic_partition = (each.topic, each.partition)
            next_offset = self.next_offsets.get(topic_partition)
            if topic_partition in ends or each.offset not in (NO_POSITION, next_offset):
                if next_offset is None:
                    unknown.append(topic_partition)
                else:
                    found.append((topic_partition, next_offset))
        return found + self._starts(kafka, unknown)

    def _starts(self, kafka: Any, topic_partitions: list[TopicAndPartition]) -> list[tuple[TopicAndPartition, int]]:
        """Returns each of these partitions with the committed offset of the group, or `OFFSET_BEGINNING` if it has
        none. The partitions have no entry in `next_offsets`: the Kafka client began to read them at that offset, and
        nothing was committed since."""
        if not topic_partitions:
            return []
        found = at_commit_or(
            kafka,
            as_kafka_partitions(topic_partitions),
            lambda _, missing: [TopicPartition(*each, confluent_kafka.OFFSET_BEGINNING) for each in missing],
        )
        return [((each.topic, each.partition), each.offset) for each in found]
