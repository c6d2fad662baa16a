"""Buffers fetched records until they are delivered. Records of paused partitions are stored separately.

A damaged batch of a partition is stored, too, until the consumer seeks or loses the partition.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from headrace.clients.decoding import FetchedRecord
from headrace.clients.errors import DamagedBatch
from headrace.clients.partitions import TopicAndPartition


class FetchBuffer:
    """Fetched records of one consumer. `ready` contains the records of partitions that are not paused, in the order in
    which the application gets them. Not thread-safe."""

    def __init__(self) -> None:
        self.ready: deque[FetchedRecord] = deque()
        self._paused: dict[TopicAndPartition, list[FetchedRecord]] = {}
        self.damaged: dict[TopicAndPartition, DamagedBatch] = {}
        """Partitions that cannot be read any further, with the damaged batch that was found after the records here."""

    def __iter__(self) -> Iterator[FetchedRecord]:
        return itertools.chain(self.ready, *self._paused.values())

    def paused(self) -> frozenset[TopicAndPartition]:
        return frozenset(self._paused)

    def pause(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        for topic_partition in topic_partitions:
            self._paused.setdefault(topic_partition, [])
        self.move_paused()

    def resume(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        for topic_partition in topic_partitions:
            self.ready.extend(self._paused.pop(topic_partition, ()))

    def raise_damage(self) -> None:
        """Raises the error of a damaged batch, if all records before it were taken from the buffer. Batches of paused
        partitions are not reported."""
        for topic_partition, error in self.damaged.items():
            if topic_partition not in self._paused and not self._has_ready(topic_partition):
                raise error.with_traceback(None)

    def _has_ready(self, topic_partition: TopicAndPartition) -> bool:
        return any((each.topic, each.partition) == topic_partition for each in self.ready)

    def requeue(self, record: FetchedRecord) -> None:
        """Puts back a record that was taken from the buffer, as the next one of its partition."""
        self._paused.get((record.topic, record.partition), self.ready).insert(0, record)

    def forget(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Discards the records of partitions that are reassigned or will be read from another offset."""
        removed = frozenset(topic_partitions)
        self.ready = deque(each for each in self.ready if (each.topic, each.partition) not in removed)
        for topic_partition in removed & self._paused.keys():
            self._paused[topic_partition].clear()
        for topic_partition in removed & self.damaged.keys():
            del self.damaged[topic_partition]

    def release(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Discards the records of partitions that this consumer no longer reads. If it gets them back, they are not
        paused."""
        self.forget(topic_partitions)
        for topic_partition in topic_partitions:
            self._paused.pop(topic_partition, None)

    def move_paused(self) -> None:
        """Moves records of paused partitions out of `ready`, the records that the application gets next, and stores
        them until the partitions are resumed. Called after a fetch, because it may have added such records."""
        if not self._paused:
            return
        ready: deque[FetchedRecord] = deque()
        paused = {topic_partition: list(records) for topic_partition, records in self._paused.items()}
        for record in self.ready:
            paused.get((record.topic, record.partition), ready).append(record)
        self.ready, self._paused = ready, paused  # in one step, in case a signal handler raises
