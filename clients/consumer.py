"""The consumer: Avro events from Kafka, decoded by the schema that wrote them.

    for message in Consumer(settings, topics=["orders"], until_end=True):
        print(message.partition, message.offset, message.value)

Without a group it reads all partitions of its topics (or those given) from the beginning and commits nothing. With a
group, brokers share the partitions out among its members and reading goes on where the group has committed;
committing is `commit()`, or `auto_commit=True` for at-least-once without a thought: what the application has been
given and asked beyond is committed now and then, before the brokers share the partitions out anew, and at the end.

A message is finished when the next one is asked for, or when reading ends without an exception; the one at hand when
an exception arose is not. Everything that was given out before is finished whenever the Kafka client is asked
for more, so what it does on that occasion (hand partitions over, for one) finds nothing in the application's hands.
"""

from __future__ import annotations

import enum
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.arrived import Arrived
from headrace.clients.assignment import Assignment
from headrace.clients.consumer_count import ConsumerCount
from headrace.clients.consumer_options import CALLBACKS, consumer_options, is_cooperative, names_of
from headrace.clients.decoding import Decoder, Record
from headrace.clients.errors import ConsumerClosed, SourceUnavailable, UndecodableMessage
from headrace.clients.fetched import Fetched
from headrace.clients.forked import leave_behind, tell_when_forked
from headrace.clients.group_commits import COMMIT_TIMEOUT_S, GroupCommits
from headrace.clients.guarded import Guarded
from headrace.clients.kafka_client import NotReached, Options, error_text, made, reach_brokers
from headrace.clients.partitions import (
    Place,
    at_end,
    at_time,
    high_watermark,
    known_partitions,
    offset_of,
    partitions_of,
)
from headrace.clients.producer import BOOTSTRAP_TIMEOUT_S, ambient_settings
from headrace.clients.refusals import is_fatal, refusal
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
POLL_RECORDS_MAX: Final = 500
POLL_AGAIN_S: Final = 1.0
"""However slowly the application takes what was fetched, the Kafka client is asked so often: each time for one record
more, so that the group does not take this member for dead and what waits here does not grow."""

SEEK_PATIENCE_S: Final = 10.0
"""For a partition that was assigned just now; until its first fetch the Kafka client cannot move it."""

CLOSE_TIMEOUT_S: Final = 10.0
"""For the last commit to be answered and the audit to be taken, when brokers hang."""


class Message(NamedTuple):
    """One message; `value` is decoded, None for a tombstone. `timestamp_ms` is the record's."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes], ...]
    schema_id: int | None


class Nothing(enum.Enum):
    """Why `Consumer.next_within` gives no message."""

    YET = enum.auto()
    EVER = enum.auto()


class Consumer:
    """An iterator of messages; not to be shared by threads, nor with a process that was forked off.

    Args:
        settings: where registry and brokers are; None reads `headrace.toml` and the environment as the command does.
        topics: what to read.
        group: the consumer group, or None to read without one.
        partitions: without a group, only these partitions of each topic; None is all.
        auto_commit: with a group, commits what was finished, now and then and when closing.
        from_end: where no commit says otherwise, begins at the end instead of the beginning. With `auto_commit` that
            end is committed at once; without, whoever gets the partition before the first commit begins at the end of
            then.
        start_at_ms: where no commit says otherwise, begins at the first message whose record is of this time or later.
        until_end: stops at the ends that the partitions had when reading began; only without a group.
        idle_timeout_s: stops when nothing has come for so long; None waits for ever.
        reader_schema: the schema that values are resolved to; None gives them as they were written.
        app: the name of the application in the audit; None does not count.
        handling_timeout_s: how long the application may take for one message, before its group takes the partitions
            back and another member gets that message again.
        member: with a group, a name of this member's own (a static member): when it is back within the session's
            timeout, it goes on with its partitions and the others are not disturbed.
        on_undecodable: is called with each message that cannot be decoded, which is passed over then instead of raised;
            it comes again when the call raises.
        on_assign, on_revoke: with a group, are called with the partitions that this member gets or gives back, while
            the next message is asked for. What was finished of them is committed already with `auto_commit`.
        options: further options of librdkafka, by its names for them.

    Raises:
        SourceUnavailable: no broker answers, or a topic does not exist.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        topics: Iterable[str],
        group: str | None = None,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = False,
        from_end: bool = False,
        start_at_ms: int | None = None,
        until_end: bool = False,
        idle_timeout_s: float | None = None,
        reader_schema: str | Schema | None = None,
        app: str | None = None,
        handling_timeout_s: float = 300.0,
        member: str | None = None,
        on_undecodable: Callable[[UndecodableMessage], None] | None = None,
        on_assign: Callable[[frozenset[Place]], None] | None = None,
        on_revoke: Callable[[frozenset[Place]], None] | None = None,
        options: Options | None = None,
    ) -> None:
        names = names_of(topics)
        if group is None and (auto_commit or member is not None):
            raise ValueError("auto_commit and member need a group")
        if group is not None and (until_end or partitions is not None):
            raise ValueError("partitions and until_end are for reading without a group")
        if from_end and start_at_ms is not None:
            raise ValueError("from_end and start_at_ms contradict each other")
        self._settings = settings if settings is not None else ambient_settings()
        self._group = group
        self._auto_commit = auto_commit
        self._from_end = from_end
        self._start_at_ms = start_at_ms
        self._idle_timeout_s = idle_timeout_s
        self._on_undecodable = on_undecodable
        self._until_end = until_end
        self._options = consumer_options(
            app=app,
            group=group,
            member=member,
            from_end=from_end,
            until_end=until_end,
            handling_timeout_s=handling_timeout_s,
            options=options,
        )
        self._commits = GroupCommits(group)
        self._guarded = Guarded()
        self._registry = registry_client(self._settings)
        self._decoder = Decoder(self._registry, _as_schema(reader_schema), self._settings.loader)
        brokers, self._kafka = self._connect()
        self._count: ConsumerCount | None = None
        self._fetched = Fetched()
        self._arrived = Arrived()
        self._assignment = Assignment(
            self._commits,
            self._fetched,
            self._arrived,
            is_cooperative=is_cooperative(self._options),
            commits_before=auto_commit,
            start=self._start if from_end or start_at_ms is not None else None,
            commits_start=auto_commit and from_end,
            on_assign=on_assign,
            on_revoke=on_revoke,
        )
        self._ends: dict[Place, int] = {}
        self._unread: set[Place] = set()
        self._before = sys.exception()
        self._polled_at = time.monotonic()
        self._asked_at: float | None = None
        self._asks_until = math.inf
        self._uses = 0
        self._is_to_close = False
        self._closed = ""
        self._fatal = ""
        self._is_left = False
        try:
            self._begin(names, partitions if partitions is None else list(dict.fromkeys(partitions)))
        except BaseException:
            self._closed = "it did not begin"
            self._kafka.close()
            self._registry.close()
            raise
        if app is not None:
            self._count = ConsumerCount(self._settings, brokers, self._registry, app)
        tell_when_forked(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message.

        Raises:
            UndecodableMessage: this one cannot be decoded; iteration can go on behind it.
            SourceUnavailable: its schema cannot be asked for; the same message comes again.
            ConsumerClosed: in a process that was forked off; where this one has closed it, iteration ends.
        """
        message = None
        self._uses += 1
        try:
            message = self._next_message()
        finally:
            self._uses -= 1
            if self._is_to_close and message is None:
                self.close()
        if message is None:
            raise StopIteration
        return message

    def next_within(self, wait_s: float, quiet_since: float) -> Message | Nothing:
        """As `next`, but it returns after some `wait_s` also without a message, so that what else is asked of this
        consumer by other tasks need not wait for one.

        Args:
            quiet_since: when the application began to ask for this message, by the monotonic clock: `idle_timeout_s`
                is counted from then.
        """
        self._asked_at, self._asks_until = quiet_since, time.monotonic() + wait_s
        try:
            return next(self, Nothing.EVER)
        except _NothingYet:
            return Nothing.YET
        finally:
            self._asked_at, self._asks_until = None, math.inf

    def commit(self) -> None:
        """Commits for the group everything given out so far, also the message at hand.

        Partitions that other members read by now are left out: a commit would take those members back.

        Raises:
            SourceUnavailable: the brokers did not take it, or have not said so within half a minute.
            ConsumerClosed: see there.
        """
        self._commits.note_given()
        self.commit_finished()

    def commit_finished(self) -> None:
        """As `commit`, without the message at hand."""
        if self._group is None:
            raise ValueError("there is no group to commit for")
        with self._used():
            self._raise_fatal()
            timeout_s = None if self._assignment.is_being_told else COMMIT_TIMEOUT_S
            self._commits.commit(self._kafka, self._assignment.own, timeout_s)

    def assignment(self) -> frozenset[Place]:
        """The topics and partitions that this consumer reads now; in a group, those it was given last."""
        return self._assignment.own

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Goes on at another offset of a partition, the message at hand aside; `commit` then commits that offset.

        Args:
            offset: or `OFFSET_BEGINNING` or `OFFSET_END` of confluent-kafka, which is where they are now.

        Raises:
            SourceUnavailable: this consumer does not read the partition, or the brokers do not say where it begins or
                ends.
            ValueError: another negative number.
        """
        place = (topic, partition)
        if place not in self._assignment.own:
            raise SourceUnavailable(
                f"topic {topic} partition {partition} is not read by this consumer", topic=topic, partition=partition
            )
        with self._used():
            offset = offset_of(self._kafka, place, offset)
            self._go_to(place, offset)
        self._forget({place})
        self._arrived.begin([TopicPartition(topic, partition, offset)])
        self._commits.go_on_at(place, offset)
        if offset < self._ends.get(place, 0):
            self._unread.add(place)

    def pause(self, places: Iterable[Place] | None = None) -> None:
        """Gives out no more messages of these partitions, or of all; the group goes on to take this member for alive
        as long as the next message is asked for."""
        paused = self._assignment.own if places is None else frozenset(places)
        with self._used():
            self._kafka.pause(partitions_of(paused))
        self._fetched.pause(paused)

    def resume(self, places: Iterable[Place] | None = None) -> None:
        """Gives out messages of these partitions again, or of all that are paused."""
        resumed = self._assignment.own | self._fetched.paused() if places is None else frozenset(places)
        with self._used():
            self._kafka.resume(partitions_of(resumed))
        self._fetched.resume(resumed)
        self._assignment.paused = frozenset() if places is None else self._assignment.paused - resumed

    def let_go(self) -> None:
        """Says before `close` that the message at hand is not finished: it is not committed, and comes again to whoever
        reads on for the group."""
        self._commits.let_go()

    def close(self) -> None:
        """Ends reading. Only with `auto_commit` is anything committed, and never the message at hand when an exception
        is under way. Closing again does nothing, nor does closing in a process that was forked off.

        Brokers that hang keep nobody waiting for long: what was not committed then comes again.

        In a callback, or in a signal handler that comes while the next message is asked for, it is noted and done as
        soon as the Kafka client has returned, which would not survive it; iteration ends then.

        Raises:
            SourceUnavailable: the last commit was not taken, or not answered; the consumer is closed all the same.
        """
        if self._closed:
            return
        if self._uses:
            self._is_to_close = True
            return
        self._closed = "the consumer is closed"
        self._assignment.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            if self._auto_commit:
                # Also where `close` stands in a `finally`: whoever could not deal with a message has not finished it.
                if sys.exception() is self._before:
                    self._commits.note_given()
                self._commits.commit(self._kafka, self._assignment.own, CLOSE_TIMEOUT_S)
        finally:
            is_answered = not self._commits.is_under_way
            if not is_answered:
                self._assignment.leave()
            self._commits.close(self._kafka)
            if self._count is not None:  # last: brokers that have not answered do not take an audit either
                self._count.close(max(0.0, deadline - time.monotonic()) if is_answered else 0.0)
            self._registry.close()
        self._guarded.raise_kept()

    def leave(self) -> None:
        """In a process that was forked off: nothing of this can be used or ended."""
        self._closed = "this consumer is of another process; a process that forks makes its consumer afterwards"
        self._is_left = True
        leave_behind(self._kafka)
        if self._count is not None:
            self._count.leave()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Meanwhile the Kafka client is not closed.

        Raises:
            ConsumerClosed: it is by now.
        """
        if self._closed and not self._assignment.is_being_told:  # which it is once more while it closes
            raise ConsumerClosed(self._closed)
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            if self._is_to_close and not self._uses:
                self.close()

    def _begin(self, topics: list[str], partitions: Sequence[int] | None) -> None:
        known_of = {topic: known_partitions(self._kafka, topic) for topic in topics}
        if self._group is not None:
            callbacks = {
                name: self._guarded.callback(callback)
                for name, callback in (
                    ("on_assign", self._assignment.assigned),
                    ("on_revoke", self._assignment.revoked),
                    ("on_lost", self._assignment.lost),
                )
            }
            self._kafka.subscribe(topics, **callbacks)
            return
        places: list[Place] = []
        for topic, known in known_of.items():
            for number in sorted(known) if partitions is None else partitions:
                if number not in known:
                    raise SourceUnavailable(
                        f"topic {topic} has no partition {number}, only {len(known)}", topic=topic, partition=number
                    )
                places.append((topic, number))
        self._assignment.own = frozenset(places)
        if self._until_end:
            self._ends = {place: high_watermark(self._kafka, place) for place in places}
            self._unread = set(places)
        if self._from_end or self._start_at_ms is not None:
            starts = self._start(self._kafka, self._assignment.own)
        else:
            starts = [TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING) for place in places]
        self._arrived.begin(starts)
        self._kafka.assign(starts)

    def _start(self, kafka: Any, places: frozenset[Place]) -> list[TopicPartition]:
        """Where to begin without a commit, other than at the beginning."""
        return at_end(kafka, places) if self._start_at_ms is None else at_time(kafka, places, self._start_at_ms)

    def _next_message(self) -> Message | None:
        while True:
            self._commits.note_given()
            record = self._next_record()
            if record is None:
                return None
            place = (record.topic, record.partition)
            try:
                schema_id, value, time_ms = self._decoder.decode(record)
            except UndecodableMessage as error:
                if self._on_undecodable is None:
                    self._commits.give(place, record.offset + 1)
                    raise
                # Before it is called: where it goes elsewhere with `seek`, that is what counts.
                self._commits.give(place, record.offset + 1)
                try:
                    self._on_undecodable(error)
                except BaseException:
                    self._commits.take_back(place, record.offset + 1)
                    self._put_back(record)
                    raise
                continue
            except BaseException:
                self._put_back(record)
                raise
            self._commits.give(place, record.offset + 1)
            if self._count is not None:
                self._count.add(record, record.timestamp_ms if time_ms is None else time_ms)
            return Message(*place, record.offset, record.timestamp_ms, record.key, value, record.headers, schema_id)

    def _next_record(self) -> Record | None:
        fetched = self._fetched
        quiet_since = time.monotonic() if self._asked_at is None else self._asked_at
        while not (self._closed or self._is_to_close):
            self._raise_fatal()
            if self._auto_commit and self._commits.is_due():
                self._commits.commit_meanwhile(self._kafka, self._assignment.own)
            if fetched.ready and time.monotonic() - self._polled_at > POLL_AGAIN_S:
                self._fetch(1)
            while fetched.ready:
                record = fetched.ready.popleft()
                if not self._until_end or self._is_before_end(record):
                    return record
            if self._until_end and not self._unread:
                return None
            if self._idle_timeout_s is not None and time.monotonic() - quiet_since > self._idle_timeout_s:
                return None
            if time.monotonic() >= self._asks_until:
                raise _NothingYet
            self._fetch(POLL_RECORDS_MAX)
        if self._is_left:
            raise ConsumerClosed(self._closed)
        return None

    def _go_to(self, place: Place, offset: int) -> None:
        topic, partition = place
        deadline = time.monotonic() + SEEK_PATIENCE_S
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

    def _put_back(self, record: Record) -> None:
        """It was not given out, and is the next to be."""
        self._fetched.put_back(record)
        if self._until_end:
            self._unread.add((record.topic, record.partition))

    def _is_before_end(self, record: Record) -> bool:
        """Whether it is to be given out; a partition that is read up to its end is not waited for any more."""
        place = (record.topic, record.partition)
        is_before = place in self._unread and record.offset < self._ends[place]
        if record.offset + (not record.is_end) >= self._ends[place]:
            self._unread.discard(place)
        return is_before and not record.is_end

    def _fetch(self, records_max: int) -> None:
        """Asks the Kafka client for records. It calls `_assigned`, `_revoked` and `_lost` on that occasion.

        Raises:
            SourceUnavailable: nothing will come any more, or the brokers do not answer.
            Exception: what a callback of the application raised. Whatever is raised, what was found is kept before.
        """
        self._polled_at = time.monotonic()
        if self._count is not None:
            self._count.now_and_then()
        try:
            if self._arrived.is_in_doubt:
                self._go_back()
            self._arrived.is_in_doubt = True
            found = self._kafka.consume(records_max, 0)
            if not found and not self._fetched.ready:
                left_s = max(0.0, self._asks_until - time.monotonic())
                one = self._kafka.poll(min(POLL_S, left_s))  # `consume` would wait for as many records as it may give
                found = [] if one is None else [one]
            self._keep(found)
            self._arrived.is_in_doubt = False
            self._guarded.raise_kept()
            self._assignment.begin(self._kafka)
        except KafkaException as error:
            raise SourceUnavailable(f"the brokers do not answer: {error_text(error)}") from error

    def _go_back(self) -> None:
        """Has the Kafka client give again what it gave to a fetch that was interrupted."""
        for record in self._fetched:  # the last of them may have been kept without being noted
            if not record.is_end:
                place = (record.topic, record.partition)
                behind = self._arrived.next_offsets.get(place, 0)
                self._arrived.next_offsets[place] = max(behind, record.offset + 1)
        for place, offset in self._arrived.missed(self._kafka, self._assignment.own, self._unread):
            self._go_to(place, offset)

    def _keep(self, found: Iterable[Any]) -> None:
        """All of it, whatever is to be raised afterwards."""
        ready, next_offsets = self._fetched.ready, self._arrived.next_offsets
        for message in found:
            problem = message.error()
            if problem is None:
                record = _record(message)
                ready.append(record)
                next_offsets[record.topic, record.partition] = record.offset + 1
            elif problem.code() == KafkaError._PARTITION_EOF:
                # Behind the last record there may be what is no record: ends of transactions, compacted holes.
                ready.append(
                    Record(message.topic(), message.partition(), message.offset(), 0, None, None, (), is_end=True)
                )
            else:
                refused = refusal(problem, message.topic() or "", group=self._group, options=self._options)
                if refused is not None:
                    self._guarded.keep(refused)
                if is_fatal(problem):
                    self._fatal = str(refused)
        self._fetched.set_aside()

    def _raise_fatal(self) -> None:
        """
        Raises:
            SourceUnavailable: the Kafka client has said that it is at its end.
        """
        if self._fatal:
            raise SourceUnavailable(self._fatal)

    def _forget(self, places: Iterable[Place]) -> None:
        """Of partitions that are read from elsewhere from now on."""
        self._fetched.forget(places)
        self._commits.forget(places)

    def _connect(self) -> tuple[dict[str, Any], Any]:
        try:
            brokers = reach_brokers(self._settings, BOOTSTRAP_TIMEOUT_S)
        except NotReached as error:
            raise SourceUnavailable(str(error)) from error
        callbacks = {
            name: self._guarded.callback(callback)
            for name, callback in self._options.items()
            if name in CALLBACKS and callable(callback)
        }
        told = callbacks.get("on_commit")

        def committed(error: Any, partitions: list[TopicPartition]) -> None:
            self._commits.committed(error, partitions)
            if told is not None:
                told(error, partitions)

        return brokers, made(
            confluent_kafka.Consumer, {**brokers, **self._options, **callbacks, "on_commit": committed}
        )


class _NothingYet(Exception):
    """Ends `next` where `next_within` was asked."""


def _record(message: Any) -> Record:
    headers = message.headers()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
    )


def _as_schema(schema: str | Schema | None) -> Schema | None:
    return parse_schema(schema, source="reader schema", strict=False) if isinstance(schema, str) else schema
