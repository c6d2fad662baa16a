"""The consumer: Avro events from Kafka, decoded by the schema that wrote them.

    for message in Consumer(settings, topics=["orders"], until_end=True):
        print(message.partition, message.offset, message.value)

Without a group it reads all partitions of its topics (or those given) from the beginning and commits nothing. With a
group, brokers share the partitions out among its members and reading goes on where the group has committed;
committing is `commit()`, or `auto_commit=True` for at-least-once without a thought: what the application has been
given and asked beyond is committed now and then, before the brokers share the partitions out anew, and at the end.

All that was fetched has been given out before more is asked for, so at every `poll` kafka-python's positions are what
the application has dealt with; its own automatic commit therefore says what is meant.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

from headrace.avro_schema import Schema, parse_schema
from headrace.pipeline.brokers import NotLetIn, client_options
from headrace.pipeline.clients.consumer_count import ConsumerCount
from headrace.pipeline.clients.decoding import Decoder
from headrace.pipeline.clients.delivery import error_text
from headrace.pipeline.clients.errors import SourceUnavailable, UndecodableMessage
from headrace.pipeline.clients.mended_consumer import MendedConsumer
from headrace.pipeline.clients.producer import BOOTSTRAP_TIMEOUT_S, ambient_settings
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings
from headrace.settings.addresses import resolve_bootstrap_servers

POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 2000
COMMIT_EVERY_S: Final = 5.0


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


class Consumer:
    """An iterator of messages; not to be shared by threads.

    Args:
        settings: where registry and brokers are; None reads `headrace.toml` and the environment as the command does.
        topics: what to read.
        group: the consumer group, or None to read without one.
        partitions: without a group, only these partitions of each topic; None is all.
        auto_commit: with a group, commits what was given out, now and then and when closing.
        from_end: where no commit says otherwise, begins at the end instead of the beginning.
        until_end: stops at the ends that the partitions had when reading began; only without a group.
        idle_timeout_s: stops when nothing has come for so long; None waits for ever.
        reader_schema: the schema that values are resolved to; None gives them as they were written.
        app: the name of the application in the audit; None does not count.

    Raises:
        SourceUnavailable: no broker answers, or a topic does not exist.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        topics: Sequence[str],
        group: str | None = None,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = False,
        from_end: bool = False,
        until_end: bool = False,
        idle_timeout_s: float | None = None,
        reader_schema: str | Schema | None = None,
        app: str | None = None,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise ValueError(f"expected topics to be a list of names, found {topics!r}")
        if group is None and auto_commit:
            raise ValueError("auto_commit needs a group to commit for")
        if group is not None and (until_end or partitions is not None):
            raise ValueError("partitions and until_end are for reading without a group")
        self._settings = settings if settings is not None else ambient_settings()
        self._group = group
        self._auto_commit = auto_commit
        self._idle_timeout_s = idle_timeout_s
        self._kafka = self._connect(from_end)
        self._registry = registry_client(self._settings)
        self._decoder = Decoder(self._registry, _as_schema(reader_schema), self._settings.loader)
        self._count = ConsumerCount(self._settings, self._registry, app) if app is not None else None
        self._ready: deque[Any] = deque()
        self._given: dict[TopicPartition, int] = {}
        self._at_hand: tuple[TopicPartition, int] | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._until_end = until_end
        self._closed = False
        try:
            self._begin(list(topics), partitions, from_end)
        except BaseException:
            self._kafka.close(autocommit=False)
            raise

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
        """
        self._note_given()
        record = self._next_record()
        if record is None:
            raise StopIteration
        partition = TopicPartition(record.topic, record.partition)
        try:
            schema_id, value, time_ms = self._decoder.decode(record)
        except SourceUnavailable:
            self._ready.appendleft(record)
            raise
        except UndecodableMessage:
            self._at_hand = (partition, record.offset + 1)
            raise
        self._at_hand = (partition, record.offset + 1)
        if self._count is not None:
            self._count.add(record, record.timestamp if time_ms is None else time_ms)
        return Message(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            value,
            tuple(record.headers),
            schema_id,
        )

    def commit(self) -> None:
        """Commits for the group everything given out so far, also the message at hand.

        Partitions that other members read by now are left out: a commit would take those members back.

        Raises:
            SourceUnavailable: the brokers did not take it.
        """
        if self._group is None:
            raise ValueError("there is no group to commit for")
        self._note_given()
        own = self._kafka.assignment()
        offsets = {
            partition: OffsetAndMetadata(offset, "", -1)
            for partition, offset in self._given.items()
            if partition in own
        }
        if offsets:
            try:
                self._kafka.commit(offsets)
            except KafkaError as error:
                raise SourceUnavailable(f"group {self._group}: offsets not committed: {error_text(error)}") from error
        self._given.clear()

    def assignment(self) -> frozenset[tuple[str, int]]:
        """The topics and partitions that this consumer reads now; in a group, those it was given last."""
        return frozenset((each.topic, each.partition) for each in self._kafka.assignment())

    def close(self) -> None:
        """Ends reading. Only with `auto_commit` is anything committed. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._auto_commit:
                self.commit()
        finally:
            if self._count is not None:
                self._count.close()
            self._kafka.close(autocommit=False)
            self._registry.close()

    def _begin(self, topics: list[str], partitions: Sequence[int] | None, from_end: bool) -> None:
        known_of = {}
        for topic in topics:
            known_of[topic] = self._kafka.partitions_for_topic(topic)
            if not known_of[topic]:
                raise SourceUnavailable(f"topic {topic} does not exist", topic=topic)
        if self._group is not None:
            self._kafka.subscribe(topics)
            return
        assigned = []
        for topic, known in known_of.items():
            for number in sorted(known) if partitions is None else partitions:
                if number not in known:
                    raise SourceUnavailable(
                        f"topic {topic} has no partition {number}, only {len(known)}", topic=topic, partition=number
                    )
                assigned.append(TopicPartition(topic, number))
        self._kafka.assign(assigned)
        if from_end:
            self._kafka.seek_to_end(*assigned)
        else:
            self._kafka.seek_to_beginning(*assigned)
        self._ends = dict(self._kafka.end_offsets(assigned)) if self._until_end else {}

    def _next_record(self) -> Any:
        quiet_since = time.monotonic()
        while True:
            while self._ready:
                record = self._ready.popleft()
                end = self._ends.get(TopicPartition(record.topic, record.partition))
                if end is None or record.offset < end:
                    return record
            if self._closed or self._is_at_end():
                return None
            if self._idle_timeout_s is not None and time.monotonic() - quiet_since > self._idle_timeout_s:
                return None
            if self._count is not None:
                self._count.now_and_then()
            try:
                polled = self._kafka.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
            except KafkaError as error:
                raise SourceUnavailable(f"the brokers do not answer: {error_text(error)}") from error
            for records in polled.values():
                self._ready.extend(records)

    def _is_at_end(self) -> bool:
        return self._until_end and all(self._kafka.position(partition) >= end for partition, end in self._ends.items())

    def _note_given(self) -> None:
        """Asking for the next message says that the one before was dealt with."""
        if self._at_hand is not None:
            partition, next_offset = self._at_hand
            self._given[partition] = next_offset
            self._at_hand = None

    def _connect(self, from_end: bool) -> Any:
        servers = resolve_bootstrap_servers(self._settings)
        try:
            return MendedConsumer(
                **client_options(self._settings),
                group_id=self._group,
                enable_auto_commit=self._auto_commit,
                auto_commit_interval_ms=int(COMMIT_EVERY_S * 1000),
                auto_offset_reset="latest" if from_end else "earliest",
                allow_auto_create_topics=False,
                bootstrap_timeout_ms=int(BOOTSTRAP_TIMEOUT_S * 1000),
                metrics_enabled=False,
            )
        except NotLetIn as error:
            raise SourceUnavailable(str(error)) from error
        except KafkaError as error:
            raise SourceUnavailable(
                f"no Kafka broker answers at {servers} ({error_text(error)}); start one, or set kafka.bootstrap_servers"
            ) from error


def _as_schema(schema: str | Schema | None) -> Schema | None:
    return parse_schema(schema, source="reader schema", strict=False) if isinstance(schema, str) else schema
