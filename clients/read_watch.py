"""Watches whether the Kafka client reads all messages, and finds damaged batches.

A consumer must not take silence for the end of the messages: librdkafka retries most failures for ever, some without a
report (`log_check`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition

from headrace.clients.assignment import Assignment
from headrace.clients.consumer_options import ConsumerOptions
from headrace.clients.delivered_offsets import DeliveredOffsets
from headrace.clients.errors import DamagedBatch, SourceUnavailable
from headrace.clients.fetch_buffer import FetchBuffer
from headrace.clients.kafka_client import error_text
from headrace.clients.log_check import LogCheck
from headrace.clients.partitions import TopicAndPartition

logger = logging.getLogger(__name__)

STALL_CHECK_S: Final = 10.0
"""How often the consumer checks whether the Kafka client has stopped reading a partition before its end."""

STALLED_S: Final = 60.0
"""Time without a message after which a consumer that has not reached the end of a partition raises an error. The
brokers may be away for a shorter time, such as a restart."""

TRANSIENT_DAMAGES_MAX: Final = 3
"""Number of reports that a batch has a wrong checksum after which it counts as damaged, even if the checksum is right
when it is read again."""


class ReadWatch:
    """The checks of one consumer. Damaged batches that they find are stored in the buffer. Not thread-safe.

    Args:
        kafka: the consumer of confluent-kafka.
        log: reads the logs without it.
        options: the arguments of the consumer.
        assignment, buffer, delivered: the partitions, the fetched records and the positions of the consumer.
    """

    def __init__(
        self,
        kafka: Any,
        log: LogCheck,
        options: ConsumerOptions,
        assignment: Assignment,
        buffer: FetchBuffer,
        delivered: DeliveredOffsets,
    ) -> None:
        self._kafka = kafka
        self._log = log
        self._options = options
        self._assignment = assignment
        self._buffer = buffer
        self._delivered = delivered
        self._check_at = time.monotonic() + STALL_CHECK_S
        self._positions: dict[TopicAndPartition, int] = {}
        """Positions at the last check for stalled partitions."""
        self._reports: dict[TopicAndPartition, tuple[int, int]] = {}
        """Offset of the batch of each partition that the Kafka client reported as damaged last, and how often."""

    def is_idle(self, waited_s: float, unread: Set[TopicAndPartition]) -> bool:
        """Returns whether iteration ends because of `idle_timeout_s`.

        Args:
            waited_s: how long the application has waited for this message.
            unread: with `until_end`, the partitions that are not read to the end that they had at the start.

        Raises:
            DamagedBatch: messages are left in a damaged batch.
            SourceUnavailable: the brokers do not confirm that all messages were read, or messages that could be read
                were not returned within `STALLED_S`. Without `idle_timeout_s`, raised after `STALLED_S` with
                `until_end`.
        """
        idle_s = self._options.idle_timeout_s
        if idle_s is None and not self._options.until_end:
            return False
        is_stalled = waited_s > (idle_s or 0) + STALLED_S
        if not is_stalled and (idle_s is None or waited_s <= idle_s):
            return False
        if self._options.group is not None and not self._assignment.is_assigned:
            self._log.unread(self._options.topics, {})
            if is_stalled:
                raise SourceUnavailable(
                    f"group {self._options.group}: it assigned no partitions to this consumer in {waited_s:.0f} s"
                )
            return False
        awaited = (unread if self._options.until_end else self._assignment.owned) - self._buffer.paused()
        found = self._log.unread(self._options.topics, self._delivered.known_positions(awaited))
        if not found:  # the brokers respond, so the committed offsets can be fetched
            found = self._log.unread(self._options.topics, self._delivered.positions(self._kafka, awaited))
        for each in found:
            self._raise_if_damaged(each.topic_partition, each.position)
        if is_stalled and (found or (self._options.until_end and awaited)):
            topic, partition = found[0].topic_partition if found else min(awaited)
            cause = f"it ends at offset {found[0].end}" if found else "its log became shorter"
            raise SourceUnavailable(
                f"topic {topic} partition {partition}: no message was read in {waited_s:.0f} s, although {cause}",
                topic=topic,
                partition=partition,
                offset=found[0].position if found else -1,
            )
        return idle_s is not None and not found

    def check_stalled(self) -> None:
        """Periodically searches for partitions that the Kafka client has stopped reading, and raises DamagedBatch if a
        damaged batch is the cause. The ends are those of the last fetches, so this usually sends no request."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + STALL_CHECK_S
        fetched = {each for each in self._assignment.owned - self._buffer.paused() if self._known_end(each) > 0}
        try:
            positions, self._positions = self._positions, self._delivered.positions(self._kafka, fetched)
        except SourceUnavailable as error:
            logger.warning("positions not checked error=%s", error)
            return
        for topic_partition, position in self._positions.items():
            if positions.get(topic_partition) == position and position < self._known_end(topic_partition):
                self._raise_if_damaged(topic_partition, position)

    def _known_end(self, topic_partition: TopicAndPartition) -> int:
        """Returns the high watermark of the last fetch of a partition; negative before the first one."""
        return int(self._kafka.get_watermark_offsets(TopicPartition(*topic_partition), cached=True)[1])

    def _raise_if_damaged(self, topic_partition: TopicAndPartition, position: int) -> None:
        """Raises DamagedBatch if the next batch of a partition is damaged. Logs a failure to read it."""
        try:
            damage = self._log.damage(topic_partition, max(position, 0))
        except SourceUnavailable as error:
            logger.warning("batch not checked error=%s", error)
            return
        if damage is not None:
            self._buffer.damaged[topic_partition] = damage
            self._buffer.raise_damage()

    def add_damage(self, topic_partition: TopicAndPartition, offset: int, problem: KafkaError) -> None:
        """Handles the Kafka client's report of a damaged batch. If the checksum is right when the batch is read again,
        the damage happened in the transfer, and the client reads the batch again.

        Args:
            offset: the offset of the batch; where the bytes are no batch, they may give any number.
            problem: the reported error.
        """
        if topic_partition in self._buffer.damaged:
            return
        position = max(0, self._delivered.known_positions([topic_partition]).get(topic_partition, 0))
        if not position <= offset < self._known_end(topic_partition):
            offset = position
        before, count = self._reports.get(topic_partition, (offset, 0))
        count = count + 1 if before == offset else 1
        self._reports[topic_partition] = (offset, count)
        is_transient = problem.code() == KafkaError._BAD_MSG and count < TRANSIENT_DAMAGES_MAX
        try:
            damage = self._log.damage(topic_partition, offset, "" if is_transient else error_text(problem))
        except SourceUnavailable as error:
            logger.warning("batch not read again error=%s", error)
            damage = None
        if damage is None and not is_transient:
            topic, partition = topic_partition
            damage = DamagedBatch(error_text(problem), topic=topic, partition=partition, offset=offset)
        if damage is not None:
            self._buffer.damaged[topic_partition] = damage
            return
        logger.warning(
            "damaged batch received, reading it again topic=%s partition=%d offset=%d error=%s",
            *topic_partition,
            offset,
            error_text(problem),
        )

    def check_offset(self, topic_partition: TopicAndPartition, offset: int) -> None:
        """Checks the offset of a record that is not the expected one. No checksum covers the base offset of a batch. A
        gap is normal in compacted and transactional topics, but no record is after the end of the log, and offsets
        decrease only if the log was replaced.

        Args:
            offset: the offset of the record.
        """
        expected = self._delivered.next_offsets.get(topic_partition, -1)
        if topic_partition in self._buffer.damaged or expected <= offset < max(0, self._known_end(topic_partition)):
            return
        try:
            damage = self._log.damage(topic_partition, offset if expected < 0 else expected)
        except SourceUnavailable as error:
            logger.warning("offset of a message not checked error=%s", error)
            return
        if damage is not None:
            self._buffer.damaged[topic_partition] = damage
