"""Tracks the finished messages of each partition, and commits their offsets to the group."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.clients.blocking_calls import BlockingCalls
from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import error_text
from headrace.clients.partitions import TopicAndPartition, missing_partitions, raise_first_error

logger = logging.getLogger(__name__)

COMMIT_EVERY_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 30.0


class GroupCommits:
    """The offsets of one consumer that are committed to its group. Not thread-safe.

    The current message is the last one that was returned to the application. It is finished when the application
    requests the next one (`mark_finished`); `mark_unfinished` discards it.
    """

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._finished: dict[TopicAndPartition, int] = {}
        self._current: tuple[TopicAndPartition, int] | None = None
        self._committing: dict[TopicAndPartition, int] = {}
        self._committed_at = time.monotonic()
        self._may_be_deleted = False
        """Whether the brokers rejected a partition of the last commit as unknown, so that it may have been deleted."""
        self._calls = BlockingCalls()

    def set_current(self, topic_partition: TopicAndPartition, next_offset: int) -> None:
        """Stores that the message before `next_offset` of a partition is returned to the application now. Commits
        include that message only after `mark_finished`."""
        self._current = (topic_partition, next_offset)

    def mark_finished(self) -> None:
        """Marks the message that was last returned to the application as finished: the next commit includes it."""
        if self._current is not None:
            topic_partition, next_offset = self._current
            self._finished[topic_partition] = next_offset
            self._current = None

    def revert(self, topic_partition: TopicAndPartition, next_offset: int) -> None:
        """Marks the message before `next_offset` of a partition, which was the last one returned to the application, as
        not finished, even if it was already marked as finished."""
        self.mark_unfinished()
        if self._finished.get(topic_partition) == next_offset:
            self._finished[topic_partition] = next_offset - 1

    def set_position(self, topic_partition: TopicAndPartition, offset: int) -> None:
        """Sets the offset that the next commit contains for a partition."""
        self._finished[topic_partition] = offset

    def mark_unfinished(self) -> None:
        """Forgets the message that was last returned to the application, without marking it as finished."""
        self._current = None

    def forget(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Discards the offsets of partitions that are reassigned or read from another offset."""
        for topic_partition in topic_partitions:
            self._finished.pop(topic_partition, None)
            if self._current is not None and self._current[0] == topic_partition:
                self._current = None

    def commit(
        self, kafka: Any, topic_partitions: frozenset[TopicAndPartition], timeout_s: float | None = COMMIT_TIMEOUT_S
    ) -> None:
        """Commits the finished messages of these partitions, and waits for the response.

        Args:
            timeout_s: None commits in the calling thread and waits without limit. A rebalance callback must use it,
                because the Kafka client processes commits of other threads only after the callback returns. The brokers
                have just responded to the rebalance, so the wait is short.

        Raises:
            SourceUnavailable: the brokers rejected the commit or did not respond within `timeout_s`. A deleted
                partition is reported once, and the offsets of the others are committed.
        """
        offsets = [
            TopicPartition(*topic_partition, self._finished[topic_partition])
            for topic_partition in topic_partitions
            if topic_partition in self._finished
        ]
        if not offsets:
            return

        def commit() -> list[TopicPartition]:
            found: list[TopicPartition] = kafka.commit(offsets=offsets, asynchronous=False)
            return found

        try:
            found = commit() if timeout_s is None else self._calls.call(commit, timeout_s)
            raise_first_error(found, f"group {self._group}: offset not committed")
        except KafkaException as error:
            # In a callback the Kafka client must not list topics: it would end the process with its next log message.
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART and timeout_s is not None:
                self._raise_deleted(kafka, [(each.topic, each.partition) for each in offsets])
            raise SourceUnavailable(f"group {self._group}: offsets not committed: {error_text(error)}") from error
        except TimeoutError as error:
            raise SourceUnavailable(
                f"group {self._group}: no response to a commit within {timeout_s:g} s; it may still take effect"
            ) from error
        for topic_partition in topic_partitions:
            self._finished.pop(topic_partition, None)

    def _raise_deleted(self, kafka: Any, committed: list[TopicAndPartition]) -> None:
        """Raises SourceUnavailable if partitions of a rejected commit have been deleted, and discards the offsets of
        the commit.

        The brokers have then committed the offsets of all existing partitions, although the Kafka client reports the
        error for every partition.

        Args:
            committed: the partitions of the commit.
        """
        deleted = missing_partitions(kafka, committed)
        if not deleted:
            return
        for topic_partition in committed:
            self._finished.pop(topic_partition, None)
        topic, partition = deleted[0]
        names = ", ".join(f"{topic} partition {partition}" for topic, partition in deleted)
        raise SourceUnavailable(
            f"group {self._group}: offsets of deleted partitions not committed: {names}",
            topic=topic,
            partition=partition,
        )

    @property
    def is_pending(self) -> bool:
        """Whether a commit that has timed out or was interrupted is still running."""
        return self._calls.is_busy

    def close(self, kafka: Any) -> None:
        """Closes the Kafka client now, or after the response to a pending commit."""
        self._calls.call_last(kafka.close)

    def is_due(self) -> bool:
        return time.monotonic() - self._committed_at > COMMIT_EVERY_S

    def commit_async(self, kafka: Any, owned: frozenset[TopicAndPartition]) -> None:
        """Commits the offsets of the partitions in `owned`, which the consumer reads, without waiting for the response.
        Offsets that the brokers reject are part of the next commit, unless their partition was deleted. After the
        brokers rejected an unknown partition, this first waits for their list of partitions.

        Args:
            kafka: the consumer of confluent-kafka.
        """
        self._committed_at = time.monotonic()
        if self._may_be_deleted:
            self._drop_deleted(kafka, owned)
        if self._finished == self._committing:
            return
        self._committing = dict(self._finished)
        offsets = [
            TopicPartition(*topic_partition, offset)
            for topic_partition, offset in self._finished.items()
            if topic_partition in owned
        ]
        if offsets:
            try:
                kafka.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self.on_committed(error, [])

    def _drop_deleted(self, kafka: Any, owned: frozenset[TopicAndPartition]) -> None:
        """Finds the partitions in `owned`, which the consumer reads, that have been deleted. Logs each and discards its
        offset, so that it is not committed again.

        Args:
            kafka: the consumer of confluent-kafka.
        """
        try:
            deleted = missing_partitions(kafka, owned & self._finished.keys())
        except SourceUnavailable as error:
            logger.warning("commit failed, retrying group=%s error=%s", self._group, error)
            return
        self._may_be_deleted = False
        for topic, partition in deleted:
            del self._finished[topic, partition]
            logger.warning(
                "offset not committed, its partition was deleted group=%s topic=%s partition=%d",
                self._group,
                topic,
                partition,
            )

    def on_committed(self, error: Any, partitions: list[TopicPartition]) -> None:
        """Handles the brokers' response to `commit_async`; the Kafka client calls this. After an error, the next call
        of `commit_async` commits the offsets again, except those of deleted partitions.

        Args:
            error: the client's error; None for a successful commit.
            partitions: the partitions of the commit; not used.
        """
        if error is not None:
            self._committing = {}
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._may_be_deleted = True
                return
            logger.warning("commit failed, retrying group=%s error=%s", self._group, error_text(error))
