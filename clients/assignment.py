"""Tracks the partitions that a consumer reads, and handles rebalances of its group.

The Kafka client calls `on_assigned`, `on_revoked` and `on_lost` while messages are fetched or the consumer closes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import TopicPartition

from headrace.clients.consumer_options import ConsumerOptions
from headrace.clients.delivered_offsets import DeliveredOffsets
from headrace.clients.errors import SourceUnavailable
from headrace.clients.fetch_buffer import FetchBuffer
from headrace.clients.group_commits import COMMIT_TIMEOUT_S, GroupCommits
from headrace.clients.partitions import TopicAndPartition, as_kafka_partitions, as_topic_partitions, at_commit_or

logger = logging.getLogger(__name__)

FindStarts = Callable[[Any, frozenset[TopicAndPartition]], list[TopicPartition]]
"""Function (Kafka client, partitions) that finds where to start reading partitions without a committed offset. It
returns the partitions with these offsets."""


class Assignment:
    """The partitions that one consumer reads. They are assigned by its group; a consumer without a group assigns them
    itself.

    Args:
        commits, buffer, delivered: the offsets to commit, fetched records and next offsets of the consumer, from which
            partitions are removed when it loses them.
        options: the arguments of the consumer.
        is_cooperative: whether members retain their partitions during a rebalance.
        find_starts: finds the offsets at which partitions without a committed offset start; None leaves this to the
            Kafka client.
    """

    def __init__(
        self,
        commits: GroupCommits,
        buffer: FetchBuffer,
        delivered: DeliveredOffsets,
        options: ConsumerOptions,
        *,
        is_cooperative: bool,
        find_starts: FindStarts | None,
    ) -> None:
        self._commits = commits
        self._buffer = buffer
        self._delivered = delivered
        self._is_cooperative = is_cooperative
        self._commits_before_revoke = options.auto_commit
        self._find_starts = find_starts
        self._commits_starts = options.auto_commit and options.from_end
        self._new_starts: list[TopicPartition] = []
        self._on_assign = options.on_assign
        self._on_revoke = options.on_revoke
        # The Kafka client is not queried for these: it may block, and holds the interpreter lock until it returns.
        self.owned: frozenset[TopicAndPartition] = frozenset()
        self._unstarted: frozenset[TopicAndPartition] = frozenset()
        self.paused: frozenset[TopicAndPartition] = frozenset()
        """Partitions that were paused when a rebalance revoked them. They stay paused if this member gets them back in
        the same rebalance."""
        self.is_in_callback = False
        """Whether a rebalance callback is running."""
        self.is_assigned = False
        """Whether the group has assigned partitions to this member, perhaps none, and it has not lost them since."""

    def close(self) -> None:
        """Stops committing in `on_revoked`. `Consumer.close` calls this first, because it makes the last commit
        itself."""
        self._commits_before_revoke = False

    def disable_callbacks(self) -> None:
        """Stops calling the application's `on_assign` and `on_revoke`."""
        self._on_assign = self._on_revoke = None

    def on_assigned(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """Starts reading partitions that the group assigns to this member; the Kafka client calls this in a
        rebalance."""
        self._unstarted |= as_topic_partitions(partitions)
        self.is_assigned = True
        with self._callback():
            try:
                self.start(kafka)
            finally:
                if self._unstarted:
                    self._assign(kafka, [])  # otherwise confluent-kafka starts at its own offsets

    def start(self, kafka: Any) -> None:
        """Starts reading the assigned partitions that are not started yet, at their committed offsets or else at the
        offsets that the constructor's `find_starts` returns. Calls the application's `on_assign`.

        Args:
            kafka: the consumer of confluent-kafka.

        Raises:
            SourceUnavailable: the start offsets cannot be fetched; the next call tries again.
        """
        topic_partitions = self._unstarted
        if not topic_partitions:
            return
        partitions = as_kafka_partitions(topic_partitions)
        self._delivered.forget(topic_partitions)
        if self._find_starts is not None:
            partitions = at_commit_or(kafka, partitions, self._find_new_starts)
            self._delivered.start(partitions)
        self._assign(kafka, partitions)
        self._unstarted = frozenset()
        self.owned = self.owned | topic_partitions if self._is_cooperative else topic_partitions
        self._buffer.release(topic_partitions)
        self._buffer.pause(self.paused & topic_partitions)
        # For the Kafka client, a partition that was paused when it was revoked is still paused.
        kafka.resume(as_kafka_partitions(topic_partitions - self.paused))
        kafka.pause(as_kafka_partitions(topic_partitions & self.paused))
        self.paused = frozenset()
        self._commit_starts(kafka)
        if self._on_assign is not None:
            self._on_assign(topic_partitions)

    def _find_new_starts(self, kafka: Any, topic_partitions: frozenset[TopicAndPartition]) -> list[TopicPartition]:
        assert self._find_starts is not None
        self._new_starts = self._find_starts(kafka, topic_partitions)
        return self._new_starts

    def _commit_starts(self, kafka: Any) -> None:
        """With `auto_commit` and `from_end`, commits the start offsets that `start` has just found for partitions
        without a committed offset. Another member that gets one of the partitions then continues there; it would
        otherwise start at the end that the partition has at that time.

        Args:
            kafka: the consumer of confluent-kafka.
        """
        starts, self._new_starts = self._new_starts, []
        if not (self._commits_starts and starts):
            return
        for each in starts:
            self._commits.set_position((each.topic, each.partition), each.offset)
        try:
            self._commits.commit(kafka, as_topic_partitions(starts), None if self.is_in_callback else COMMIT_TIMEOUT_S)
        except SourceUnavailable as error:
            logger.warning("start offsets not committed, retrying with the next commit error=%s", error)

    def on_revoked(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """Stops reading partitions that the group takes from this member; the Kafka client calls this in a rebalance.
        With `auto_commit`, first commits their finished messages. Calls the application's `on_revoke`."""
        topic_partitions = as_topic_partitions(partitions)
        self.is_assigned = self._is_cooperative
        if self._commits_before_revoke:
            try:
                self._commits.commit(kafka, topic_partitions, None)
            except SourceUnavailable as error:
                logger.warning("commit before revocation failed, the last messages are read again error=%s", error)
        try:
            if self._on_revoke is not None:
                with self._callback():
                    self._on_revoke(
                        topic_partitions - self._unstarted
                    )  # before they are released, so that the callback may commit
        finally:
            if not self._is_cooperative:
                self.paused = self._buffer.paused() & topic_partitions
            self._release(kafka, topic_partitions)

    def on_lost(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """Stops reading partitions that other members may already read; the Kafka client calls this after the member
        was removed from the group. Commits nothing, and calls the application's `on_revoke`."""
        self.is_assigned = False
        topic_partitions = self._release(kafka, as_topic_partitions(partitions))
        if self._on_revoke is not None:
            with self._callback():
                self._on_revoke(topic_partitions)

    @contextmanager
    def _callback(self) -> Iterator[None]:
        self.is_in_callback = True
        try:
            yield
        finally:
            self.is_in_callback = False

    def _assign(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        if self._is_cooperative:
            kafka.incremental_assign(partitions)
        else:
            kafka.assign(partitions)

    def _release(self, kafka: Any, topic_partitions: frozenset[TopicAndPartition]) -> frozenset[TopicAndPartition]:
        """Removes partitions from the assignment, and discards their buffered records and offsets. Returns the
        partitions that were already being read.

        Args:
            kafka: the consumer of confluent-kafka.
        """
        if topic_partitions & self._unstarted and self._is_cooperative:
            kafka.incremental_unassign(
                as_kafka_partitions(topic_partitions - self._unstarted)
            )  # it rejects partitions that it does not have
        started, self._unstarted = topic_partitions - self._unstarted, self._unstarted - topic_partitions
        self.owned -= started
        self._buffer.release(started)
        self._delivered.forget(started)
        self._commits.forget(started)
        return started
