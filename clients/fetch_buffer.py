"""Buffers fetched records until they are delivered. Records of paused partitions are stored separately."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from headrace.clients.decoding import FetchedRecord
from headrace.clients.partitions import TopicAndPartition


class FetchBuffer:
    """Fetched records of one consumer. `ready` contains the records of partitions that are not paused, in the order in
    which the application gets them. Not thread-safe."""

    def __init__(self) -> None:
        self.ready: deque[FetchedRecord] = deque()
        self._paused: dict[TopicAndPartition, list[FetchedRecord]] = {}

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

    def requeue(self, record: FetchedRecord) -> None:
        """Puts back a record that was taken from the buffer, as the next one of its partition."""
        self._paused.get((record.topic, record.partition), self.ready).insert(0, record)

    def forget(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Discards the records of partitions that are reassigned or will be read from another offset."""
        removed = frozenset(topic_partitions)
        self.ready = deque(each for each in self.ready if (each.topic, each.partition) not in removed)
        for topic_partition in removed & self._paused.keys():
            self._paused[topic_partition].clear()

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
