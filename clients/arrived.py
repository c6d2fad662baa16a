"""Up to where each partition has arrived here, for when the Kafka client took messages that never did.

A signal handler that raises (Ctrl-C, an alarm) does so in the midst of `consume` and `poll`, and what they had taken
from their queue is gone with it: later messages of the same partitions would be committed over it. So a fetch that
did not end as it should leaves a doubt, and before the next one the Kafka client is asked where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import error_text
from headrace.clients.partitions import ANSWER_TIMEOUT_S, Place, partitions_of

NOTHING_TAKEN: Final = confluent_kafka.OFFSET_INVALID
"""What the Kafka client says of a partition that it has given nothing of."""


class Arrived:
    """Used by the thread of one consumer."""

    def __init__(self) -> None:
        self.next_offsets: dict[Place, int] = {}
        """Behind what arrived of each partition; its start before anything has, where that was said."""
        self.is_in_doubt = False

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Reading of these begins at the offsets given."""
        self.next_offsets.update({(each.topic, each.partition): each.offset for each in partitions})

    def forget(self, places: Iterable[Place]) -> None:
        """Of partitions that are read elsewhere, or from elsewhere, from now on."""
        for place in places:
            self.next_offsets.pop(place, None)

    def missed(self, kafka: Any, own: frozenset[Place], awaited_ends: Iterable[Place]) -> list[tuple[Place, int]]:
        """The partitions of which something was taken and did not arrive, each with the offset to go back to.

        Args:
            awaited_ends: partitions whose end is awaited. To say that it is reached is said once and moves nothing,
                so that it may be missed without a trace.

        Raises:
            SourceUnavailable: the brokers do not say what the group had committed.
        """
        ends = frozenset(awaited_ends)
        found, unknown = [], []
        for each in kafka.position(partitions_of(own)):
            place = (each.topic, each.partition)
            next_offset = self.next_offsets.get(place)
            if place in ends or each.offset not in (NOTHING_TAKEN, next_offset):
                if next_offset is None:
                    unknown.append(place)
                else:
                    found.append((place, next_offset))
        return found + self._starts(kafka, unknown)

    def _starts(self, kafka: Any, places: list[Place]) -> list[tuple[Place, int]]:
        """Where the group had the Kafka client begin: nothing that came later has been committed since."""
        if not places:
            return []
        try:
            committed = kafka.committed(partitions_of(places), ANSWER_TIMEOUT_S)
        except KafkaException as error:
            raise SourceUnavailable(f"commits of the group not read: {error_text(error)}") from error
        return [
            ((each.topic, each.partition), each.offset if each.offset >= 0 else confluent_kafka.OFFSET_BEGINNING)
            for each in committed
        ]
