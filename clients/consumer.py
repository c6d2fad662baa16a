"""The consumer: reads Avro events from Kafka and decodes them with the schema that wrote them.

    for message in Consumer(settings, topics=["orders"], until_end=True):
        print(message.partition, message.offset, message.value)

Without a group it reads all partitions of its topics (or the given ones), by default from the beginning, and commits
nothing. With a group, the brokers assign the partitions to the members, and reading continues at the committed offsets.
The application calls `commit()`, or passes `auto_commit=True` for at-least-once processing: finished messages are then
committed periodically, before a rebalance, and at the end.

The current message is the one that was returned last. It is finished when the application requests the next one, or
when reading ends without an exception; it is not finished if an exception is raised. All earlier messages are finished
whenever the Kafka client is called. A rebalance runs in such a call, so it never affects a message that the application
is still processing.
"""

from __future__ import annotations

import enum
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Unpack

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.avro_schema import AvroSchemaError, Schema, parse_schema
from headrace.clients.assignment import Assignment
from headrace.clients.consumer_counter import ConsumerCounter
from headrace.clients.consumer_options import CALLBACKS, ConsumerArguments, ConsumerOptions, is_cooperative
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.delivered_offsets import DeliveredOffsets
from headrace.clients.errors import ConsumerClosed, SourceUnavailable, UndecodableMessage
from headrace.clients.fetch_buffer import FetchBuffer
from headrace.clients.fork_safety import prevent_free, register_for_fork
from headrace.clients.group_commits import COMMIT_TIMEOUT_S, GroupCommits
from headrace.clients.kafka_client import (
    BrokersUnreachable,
    create_client,
    error_text,
    message_headers,
    reach_brokers,
)
from headrace.clients.kafka_errors import DAMAGE_ERRORS, DeferredErrors, error_to_raise, is_fatal
from headrace.clients.log_check import LogCheck
from headrace.clients.partitions import (
    TopicAndPartition,
    as_kafka_partitions,
    at_end,
    at_time,
    checked_pairs,
    high_watermark,
    known_partitions,
    offset_of,
)
from headrace.clients.producer import BOOTSTRAP_TIMEOUT_S, default_settings
from headrace.clients.read_watch import ReadWatch
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
POLL_RECORDS_MAX: Final = 500
POLL_AGAIN_S: Final = 1.0
"""While fetched records are buffered, the Kafka client is still polled this often, for one record: otherwise the group
would remove a member whose application processes messages slowly. With one record per poll the buffer does not grow."""

SEEK_TIMEOUT_S: Final = 10.0
"""Timeout of a seek. It is repeated until then, because the Kafka client cannot seek a newly assigned partition before
its first fetch."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Maximum time that `close` waits for the last commit and for the audit, if brokers hang."""

CALLBACK_CHECK_S: Final = 5.0
"""Timeout of the check that a broker responds, before a commit of `on_revoke` while the consumer closes. Leaving the
group then takes up to five more seconds."""


class Message(NamedTuple):
    """A message. `key` and the values of `headers` are bytes as stored in the record. `value` is decoded with the
    schema `schema_id`; both are None for a tombstone. `timestamp_ms` is the record timestamp. `headers` are empty if a
    name is not UTF-8."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes], ...]
    schema_id: int | None


class NoMessage(enum.Enum):
    """The reason why `Consumer.next_within` returns no message: the time is over, or iteration has ended."""

    TIMEOUT = enum.auto()
    END = enum.auto()


class Consumer:
    """An iterator of messages. A consumer belongs to one thread and to the process that created it.

    Args:
        settings: addresses and credentials of registry and brokers; None reads `headrace.toml` and the environment, as
            the command line does.
        topics: names of the topics to read.
        group: the consumer group, or None to read without one.
        partitions: without a group, the partitions to read of each topic; None is all.
        auto_commit: with a group, whether finished messages are committed periodically and by `close`.
        from_end: start a partition at its end instead of its beginning if it has no committed offset, or the record at
            that offset was deleted. With `auto_commit`, the offset of that end is committed at once. Otherwise, if the
            partition moves to another member before the first commit, that member starts at the end that the partition
            has then.
        start_at_ms: start a partition without a committed offset at the first record with this timestamp or a later
            one, or at its end without such a record.
        until_end: stop at the ends that the partitions had at the start; only without a group.
        idle_timeout_s: stop after this time without a message, if the brokers confirm that all messages were read; None
            waits for ever.
        reader_schema: schema that values are resolved to; None returns them as written.
        app: name of the application in the audit; None does not count the messages.
        handling_timeout_s: time limit for processing one message. After it, the group assigns the partitions to another
            member, which reads the message again.
        member: with a group, name of a static member. If it returns within the session timeout, it continues with its
            partitions, and the group does not rebalance.
        on_undecodable: called with each message that cannot be decoded; the message is then skipped and not raised. If
            the callback raises, the message is read again.
        on_assign, on_revoke: with a group, called with the partitions that this member is assigned or loses, while the
            next message is requested or the consumer closes. With `auto_commit`, finished messages of revoked
            partitions are already committed, unless that commit failed or the member was removed from the group.
        options: further options of librdkafka, by their names in its documentation.

    Raises:
        SourceUnavailable: no broker responds, the brokers reject the client, or a topic or partition does not exist.
        ValueError: an argument or option is invalid, such as a `reader_schema` that is not an Avro schema.
        SettingsError, RegistryUnavailable: the settings of the brokers or the registry cannot be used.
    """

    def __init__(self, settings: Settings | None = None, **arguments: Unpack[ConsumerArguments]) -> None:
        if settings is not None and not isinstance(settings, Settings):
            raise TypeError(
                f"expected Consumer(topics=[…]), where the only argument without a name is the settings; found "
                f"{type(settings).__name__} {settings!r:.60}"
            )
        self._options = ConsumerOptions(**arguments)
        self._settings = settings if settings is not None else default_settings()
        self._client_options = self._options.librdkafka_options()
        self._commits = GroupCommits(self._options.group)
        self._deferred = DeferredErrors()
        self._registry = registry_client(self._settings)
        self._decoder = Decoder(self._registry, _as_schema(self._options.reader_schema), self._settings.loader)
        brokers, self._kafka = self._connect()
        self._count: ConsumerCounter | None = None
        self._buffer = FetchBuffer()
        self._delivered = DeliveredOffsets()
        self._assignment = Assignment(
            self._commits,
            self._buffer,
            self._delivered,
            self._options,
            is_cooperative=is_cooperative(self._client_options),
            find_starts=self._find_starts if self._options.has_start else None,
        )
        self._watch = ReadWatch(
            self._kafka, LogCheck(self._settings), self._options, self._assignment, self._buffer, self._delivered
        )
        self._ends: dict[TopicAndPartition, int] = {}
        self._unread: set[TopicAndPartition] = set()
        self._exception_at_start = sys.exception()
        self._polled_at = time.monotonic()
        self._waiting_since: float | None = None
        self._wait_until = math.inf
        self._active_calls = 0
        self._is_to_close = False
        self._closed = ""
        self._fatal = ""
        self._is_forked = False
        try:
            self._start()
            if self._options.app is not None:
                self._count = ConsumerCounter(self._settings, brokers, self._registry, self._options.app)
        except BaseException:
            self._closed = "the consumer could not start"
            self._kafka.close()
            self._registry.close()
            raise
        register_for_fork(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Returns the next message.

        Raises:
            UndecodableMessage: the message cannot be decoded; iteration can continue after it.
            DamagedBatch: the next batch of a partition is corrupt; all messages before it were returned. Each call
                raises this again until `seek` skips the batch or `pause` stops the partition.
            SourceUnavailable: its schema cannot be fetched; the next call returns the same message. Or the Kafka client
                failed, or the brokers rejected a request or do not respond.
            ConsumerClosed: this is a forked process. (After `close`, iteration ends.)
            Exception: a callback of the application raised it.
        """
        message = None
        self._active_calls += 1
        try:
            message = self._next_message()
        finally:
            self._active_calls -= 1
            if self._is_to_close and message is None:
                self.close()
        if message is None:
            raise StopIteration
        return message

    def next_within(self, wait_s: float, waiting_since: float) -> Message | NoMessage:
        """Returns the next message like `next`, `NoMessage.END` when iteration has ended, or `NoMessage.TIMEOUT` after
        about `wait_s` seconds, so that the caller can use the consumer for other calls in between.

        Args:
            waiting_since: time on the monotonic clock at which the application began to wait for this message;
                `idle_timeout_s` counts from it.
        """
        self._waiting_since, self._wait_until = waiting_since, time.monotonic() + wait_s
        try:
            return next(self, NoMessage.END)
        except _WaitTimeout:
            return NoMessage.TIMEOUT
        finally:
            self._waiting_since, self._wait_until = None, math.inf

    def commit(self) -> None:
        """Commits the offsets of all messages that were returned to the application, including the last one.

        Partitions that were assigned to other members are left out: a commit would reset their position.

        Raises:
            SourceUnavailable: the Kafka client failed, or the brokers rejected the commit or did not respond within 30
                seconds. In a callback of a rebalance there is no limit; while the consumer closes, a commit there first
                checks that a broker responds.
            ConsumerClosed: the consumer is closed.
            ValueError: the consumer has no group.
        """
        self._commits.mark_finished()
        self.commit_finished()

    def commit_finished(self) -> None:
        """Commits the offsets of all messages that were returned to the application, except the last one if no other
        message has been requested since. Raises the same errors as `commit`."""
        if self._options.group is None:
            raise ValueError("commit needs a group; pass group to the consumer")
        with self._active_call():
            self._raise_fatal()
            if self._assignment.is_in_callback:
                if self._closed:
                    self._check_brokers()
                self._commits.commit(self._kafka, self._assignment.owned, None)
            else:
                self._commits.commit(self._kafka, self._assignment.owned, COMMIT_TIMEOUT_S)

    def _check_brokers(self) -> None:
        """Checks that a broker responds, before a commit of the application's `on_revoke` while the consumer closes.
        Such a commit has no time limit, and at a hanging broker `close` would wait for minutes.

        Raises:
            SourceUnavailable: no broker responds within `CALLBACK_CHECK_S`.
        """
        try:
            reach_brokers(self._settings, CALLBACK_CHECK_S)
        except BrokersUnreachable as error:
            raise SourceUnavailable(f"group {self._options.group}: offsets not committed: {error}") from error

    def assignment(self) -> frozenset[TopicAndPartition]:
        """Returns the topics and partitions that this consumer reads; in a group, those of the last rebalance."""
        return self._assignment.owned

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continues reading a partition of the topic at another offset; `commit` then commits that offset.

        Args:
            offset: an offset, or `OFFSET_BEGINNING` or `OFFSET_END` of confluent-kafka, which are resolved now.

        Raises:
            SourceUnavailable: this consumer does not read the partition, its start or end cannot be fetched, or the
                Kafka client cannot seek.
            ValueError: another negative number, or no integer of 64 bits.
        """
        topic_partition = (topic, partition)
        if topic_partition not in self._assignment.owned:
            raise SourceUnavailable(
                f"topic {topic} partition {partition} is not read by this consumer; add it to `topics` or "
                "`partitions`, or seek after the group has assigned it",
                topic=topic,
                partition=partition,
            )
        with self._active_call():
            offset = offset_of(self._kafka, topic_partition, offset)
            self._seek_kafka(topic_partition, offset)
        self._forget({topic_partition})
        self._delivered.start([TopicPartition(topic, partition, offset)])
        self._commits.set_position(topic_partition, offset)
        if offset < self._ends.get(topic_partition, 0):
            self._unread.add(topic_partition)

    def pause(self, topic_partitions: Iterable[TopicAndPartition] | None = None) -> None:
        """Stops returning messages of these partitions, by default of all that this consumer reads now, until `resume`
        or until the consumer loses the partition.

        The member stays in its group as long as the application requests messages.

        Raises:
            ValueError: `topic_partitions` are not pairs of a topic and a partition number.
        """
        paused = self._assignment.owned if topic_partitions is None else checked_pairs(topic_partitions)
        with self._active_call():
            self._kafka.pause(as_kafka_partitions(paused))
        self._buffer.pause(paused)

    def resume(self, topic_partitions: Iterable[TopicAndPartition] | None = None) -> None:
        """Resumes these paused partitions; None resumes all.

        Raises:
            ValueError: `topic_partitions` are not pairs of a topic and a partition number.
        """
        resumed = (
            self._assignment.owned | self._buffer.paused()
            if topic_partitions is None
            else checked_pairs(topic_partitions)
        )
        with self._active_call():
            self._kafka.resume(as_kafka_partitions(resumed))
        self._buffer.resume(resumed)
        self._assignment.paused = frozenset() if topic_partitions is None else self._assignment.paused - resumed

    def mark_unfinished(self) -> None:
        """Excludes the last returned message from the commit by `close`, so that the group reads it again. Call this
        before `close`."""
        self._commits.mark_unfinished()

    def close(self) -> None:
        """Closes the consumer.

        With `auto_commit` it commits finished messages. The last returned message counts as finished, unless an
        exception is being raised or `mark_unfinished` was called. Nothing else is committed. Closing again, or in a
        forked process, does nothing.

        If brokers hang, it returns after about `CLOSE_TIMEOUT_S`; uncommitted messages are then read again.

        In a callback, or in a signal handler that interrupts a request for a message, closing is deferred until the
        call ends, because the Kafka client cannot be closed inside a call. If the request has already found a message,
        it returns that message first. Iteration then ends.

        Raises:
            SourceUnavailable: the last commit was rejected or not answered; the consumer is closed nevertheless.
            Exception: a callback of the application raised it while the consumer closed.
        """
        if self._closed:
            return
        if self._active_calls:
            self._is_to_close = True
            return
        self._closed = "the consumer is closed"
        self._assignment.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            if self._options.auto_commit:
                # An exception that propagates through a `finally` with `close` means that the message failed.
                if sys.exception() is self._exception_at_start:
                    self._commits.mark_finished()
                self._commits.commit(self._kafka, self._assignment.owned, CLOSE_TIMEOUT_S)
        finally:
            is_commit_done = not self._commits.is_pending
            if not is_commit_done:
                self._assignment.disable_callbacks()
            self._commits.close(self._kafka)
            if self._count is not None:  # last: brokers that did not answer a commit do not accept counts either
                self._count.close(max(0.0, deadline - time.monotonic()) if is_commit_done else 0.0)
            self._registry.close()
        self._deferred.raise_first()

    def abandon_after_fork(self) -> None:
        """Makes the consumer unusable in a forked child, without closing it."""
        self._closed = "this consumer belongs to the parent process; create it after the fork"
        self._is_forked = True
        prevent_free(self._kafka)
        if self._count is not None:
            self._count.abandon_after_fork()

    @contextmanager
    def _active_call(self) -> Iterator[None]:
        """Context manager around calls of the Kafka client. A `close` inside the block takes effect when the block
        ends.

        Raises:
            ConsumerClosed: the consumer is already closed, and no callback of a rebalance is running.
        """
        if self._closed and not self._assignment.is_in_callback:  # callbacks still run while it closes
            raise ConsumerClosed(self._closed)
        self._active_calls += 1
        try:
            yield
        finally:
            self._active_calls -= 1
            if self._is_to_close and not self._active_calls:
                self.close()

    def _start(self) -> None:
        """Subscribes to the topics for a group, or assigns their partitions without a group."""
        numbers_of = {topic: known_partitions(self._kafka, topic) for topic in self._options.topics}
        if self._options.group is not None:
            callbacks = {
                name: self._deferred.wrap(callback)
                for name, callback in (
                    ("on_assign", self._assignment.on_assigned),
                    ("on_revoke", self._assignment.on_revoked),
                    ("on_lost", self._assignment.on_lost),
                )
            }
            self._kafka.subscribe(list(self._options.topics), **callbacks)
            return
        assigned: list[TopicAndPartition] = []
        for topic, known in numbers_of.items():
            for number in sorted(known) if self._options.partitions is None else self._options.partitions:
                if number not in known:
                    raise SourceUnavailable(
                        f"topic {topic} has no partition {number}; its partitions are 0 to {max(known)}",
                        topic=topic,
                        partition=number,
                    )
                assigned.append((topic, number))
        self._assignment.owned = frozenset(assigned)
        if self._options.until_end:
            self._ends = {each: high_watermark(self._kafka, each) for each in assigned}
            self._unread = set(assigned)
        if self._options.has_start:
            starts = self._find_starts(self._kafka, self._assignment.owned)
        else:
            starts = [TopicPartition(*each, confluent_kafka.OFFSET_BEGINNING) for each in assigned]
        self._delivered.start(starts)
        self._kafka.assign(starts)

    def _find_starts(self, kafka: Any, topic_partitions: frozenset[TopicAndPartition]) -> list[TopicPartition]:
        """Returns the given partitions, which have no committed offset, with the offsets at which to start reading
        them: the offset for the time `start_at_ms` if that is set, else the end offset. Only called if `from_end` or
        `start_at_ms` is set.

        Args:
            kafka: the consumer of confluent-kafka.
        """
        if self._options.start_at_ms is None:
            return at_end(kafka, topic_partitions)
        return at_time(kafka, topic_partitions, self._options.start_at_ms)

    def _next_message(self) -> Message | None:
        while True:
            self._commits.mark_finished()
            record = self._next_record()
            if record is None:
                return None
            topic_partition = (record.topic, record.partition)
            try:
                schema_id, value, time_ms, time_fields = self._decoder.decode_with_fields(record)
            except UndecodableMessage as error:
                if self._options.on_undecodable is None:
                    self._commits.set_current(topic_partition, record.offset + 1)
                    if self._count is not None:
                        self._count.count_undecodable(record)
                    raise
                # Before the callback, so that a `seek` in it takes precedence.
                self._commits.set_current(topic_partition, record.offset + 1)
                try:
                    self._options.on_undecodable(error)
                except BaseException:
                    self._commits.revert(topic_partition, record.offset + 1)
                    self._requeue(record)
                    raise
                if self._count is not None:
                    self._count.count_undecodable(record)
                continue
            except BaseException:
                self._requeue(record)
                raise
            self._commits.set_current(topic_partition, record.offset + 1)
            if self._count is not None and record.value is not None:
                self._count.delivered.append((record, record.timestamp_ms if time_ms is None else time_ms))
                if time_ms is None and time_fields:
                    self._count.count_without_time(record)
            return Message(
                *topic_partition, record.offset, record.timestamp_ms, record.key, value, record.headers, schema_id
            )

    def _next_record(self) -> FetchedRecord | None:
        fetched = self._buffer
        waiting_since = time.monotonic() if self._waiting_since is None else self._waiting_since
        while not (self._closed or self._is_to_close):
            self._raise_fatal()
            if self._options.auto_commit and self._commits.is_due():
                self._commits.commit_async(self._kafka, self._assignment.owned)
            if fetched.ready and time.monotonic() - self._polled_at > POLL_AGAIN_S:
                self._fetch(1)
            if fetched.damaged:
                fetched.raise_damage()
            while fetched.ready:
                record = fetched.ready.popleft()
                if not self._options.until_end or self._is_before_end(record):
                    return record
                if fetched.damaged:
                    fetched.raise_damage()
            if self._options.until_end and not self._unread:
                return None
            self._watch.check_stalled()
            if self._watch.is_idle(time.monotonic() - waiting_since, self._unread):
                return None
            if time.monotonic() >= self._wait_until:
                raise _WaitTimeout
            self._fetch(POLL_RECORDS_MAX)
        if self._is_forked:
            raise ConsumerClosed(self._closed)
        return None

    def _seek_kafka(self, topic_partition: TopicAndPartition, offset: int) -> None:
        topic, partition = topic_partition
        deadline = time.monotonic() + SEEK_TIMEOUT_S
        while True:
            try:
                self._kafka.seek(TopicPartition(topic, partition, offset))
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise SourceUnavailable(
                        f"topic {topic} partition {partition}: cannot go to offset {offset}: {error_text(error)}",
                        topic=topic,
                        partition=partition,
                        offset=offset,
                    ) from error
                time.sleep(0.01)

    def _requeue(self, record: FetchedRecord) -> None:
        """Puts a record that was taken from the buffer, but not returned to the application, back as the next one of
        its partition."""
        self._buffer.requeue(record)
        if self._options.until_end:
            self._unread.add((record.topic, record.partition))

    def _is_before_end(self, record: FetchedRecord) -> bool:
        """Returns whether to return this record to the application: with `until_end`, whether it is before the end that
        its partition had at the start. False for a report of the end. When the record is the last one before that end,
        or a report of the end, marks the partition as read."""
        topic_partition = (record.topic, record.partition)
        is_before = topic_partition in self._unread and record.offset < self._ends[topic_partition]
        if record.offset + (not record.is_end) >= self._ends[topic_partition]:
            self._unread.discard(topic_partition)
        return is_before and not record.is_end

    def _fetch(self, records_max: int) -> None:
        """Fetches up to `records_max` records from the Kafka client into the buffer. Rebalance callbacks run in this
        call.

        Raises:
            SourceUnavailable: the Kafka client failed, or the brokers do not respond or reject a request.
            Exception: a callback of the application raised it. The fetched records are buffered before.
        """
        self._polled_at = time.monotonic()
        if self._count is not None:
            self._count.publish_if_due()
        try:
            if self._delivered.is_fetch_unfinished:
                self._seek_to_lost()
            self._delivered.is_fetch_unfinished = True
            found = self._kafka.consume(records_max, 0)
            if not found and not self._buffer.ready:
                left_s = max(0.0, self._wait_until - time.monotonic())
                message = self._kafka.poll(min(POLL_S, left_s))  # `consume` would wait for `records_max` records
                found = [] if message is None else [message]
            self._add_to_buffer(found)
            self._delivered.is_fetch_unfinished = False
            self._deferred.raise_first()
            self._assignment.start(self._kafka)
        except KafkaException as error:
            raise SourceUnavailable(f"the brokers do not respond: {error_text(error)}") from error

    def _seek_to_lost(self) -> None:
        """Seeks back to records that were lost: an exception interrupted the fetch to which the Kafka client returned
        them."""
        for record in self._buffer:  # the last record may be buffered, but not recorded
            if not record.is_end:
                topic_partition = (record.topic, record.partition)
                next_offset = self._delivered.next_offsets.get(topic_partition, 0)
                self._delivered.next_offsets[topic_partition] = max(next_offset, record.offset + 1)
        for topic_partition, offset in self._delivered.find_lost(self._kafka, self._assignment.owned, self._unread):
            self._seek_kafka(topic_partition, offset)

    def _add_to_buffer(self, found: Iterable[Any]) -> None:
        """Adds fetched records to the buffer. Errors among them are logged if the client retries them; others are
        stored and raised after the fetch.

        Args:
            found: the messages and errors that the Kafka client returned.
        """
        ready, next_offsets, damaged = self._buffer.ready, self._delivered.next_offsets, self._buffer.damaged
        for message in found:
            problem = message.error()
            if problem is None:
                record = _record(message)
                topic_partition = (record.topic, record.partition)
                if record.offset != next_offsets.get(topic_partition):
                    self._watch.check_offset(topic_partition, record.offset)
                if damaged and topic_partition in damaged:
                    continue
                ready.append(record)
                next_offsets[topic_partition] = record.offset + 1
            elif problem.code() == KafkaError._PARTITION_EOF:
                self._delivered.ends[message.topic(), message.partition()] = message.offset()
                if self._options.until_end:
                    # The end may be after the last record: transaction markers and compacted records have offsets, too.
                    ready.append(
                        FetchedRecord(
                            message.topic(), message.partition(), message.offset(), 0, None, None, (), is_end=True
                        )
                    )
            elif problem.code() in DAMAGE_ERRORS and message.topic() is not None and message.offset() >= 0:
                self._watch.add_damage((message.topic(), message.partition()), message.offset(), problem)
            else:
                raised = error_to_raise(
                    problem, message.topic() or "", group=self._options.group, options=self._client_options
                )
                if raised is not None:
                    self._deferred.add(raised)
                if is_fatal(problem):
                    self._fatal = str(raised)
        self._buffer.move_paused()

    def _raise_fatal(self) -> None:
        """Raises SourceUnavailable if the Kafka client has had an error after which it reads no more messages."""
        if self._fatal:
            raise SourceUnavailable(self._fatal)

    def _forget(self, topic_partitions: Iterable[TopicAndPartition]) -> None:
        """Discards buffered records and uncommitted offsets of these partitions."""
        self._buffer.forget(topic_partitions)
        self._commits.forget(topic_partitions)

    def _connect(self) -> tuple[dict[str, Any], Any]:
        try:
            brokers = reach_brokers(self._settings, BOOTSTRAP_TIMEOUT_S)
        except BrokersUnreachable as error:
            raise SourceUnavailable(str(error)) from error
        callbacks = {
            name: self._deferred.wrap(callback)
            for name, callback in self._client_options.items()
            if name in CALLBACKS and callable(callback)
        }
        on_commit = callbacks.get("on_commit")

        def committed(error: Any, partitions: list[TopicPartition]) -> None:
            self._commits.on_committed(error, partitions)
            if on_commit is not None:
                on_commit(error, partitions)

        return brokers, create_client(
            confluent_kafka.Consumer, {**brokers, **self._client_options, **callbacks, "on_commit": committed}
        )


class _WaitTimeout(Exception):
    """Raised inside the consumer to end the wait for a message in `next_within`."""


def _record(message: Any) -> FetchedRecord:
    headers = message_headers(message)
    return FetchedRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
    )


def _as_schema(schema: str | Schema | None) -> Schema | None:
    if not isinstance(schema, str):
        return schema
    try:
        return parse_schema(schema, source="reader_schema", strict=False, lenient_json=True)
    except AvroSchemaError as error:
        raise ValueError(f"reader_schema is not an Avro schema: {error}") from error
