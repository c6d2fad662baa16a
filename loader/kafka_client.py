"""A small blocking Kafka client for planning and reading: metadata, offsets, raw batches, group offsets.

It keeps one connection per broker and no thread. Fetches are sessionless and return the record batches as the log
holds them. From Fetch 13 on a topic is named by its id, so that a re-created topic is refused by the broker
itself; before that the caller compares topic ids. A client is made after a fork, never before.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from loader.errors import KafkaError, KafkaUnavailable, LogChanged, OffsetOutOfRange, RequestRefused
from loader.kafka_wire import NONE, Connection, Message, close_all, error_name, parse_bootstrap_servers
from loader.work_unit import TopicPartition

logger = logging.getLogger(__name__)

METADATA_VERSION = 12
LIST_OFFSETS_VERSION = 7
FETCH_VERSION = 13
FETCH_BY_ID_FROM = 13
FETCH_EPOCH_FROM = 9
FIND_COORDINATOR_VERSION = 3
OFFSET_COMMIT_VERSION = 8
"""The newest versions that bring something we use."""

ATTEMPTS = 4  # of a request whose broker moved or broke off: enough for one leader election
RETRY_WAIT_S = 0.25  # before the second attempt, doubled each time

OFFSET_OUT_OF_RANGE = 1
MOVED = frozenset({3, 5, 6, 7, 9, 13, 56, 75})
"""Codes that a refreshed metadata or a moment's wait may cure: unknown topic or partition, leader not available, not
leader or follower, timed out, replica not available, network, storage error, unknown leader epoch."""
CHANGED = frozenset({74, 100, 103})
"""Codes that mean the log is not the one planned: fenced leader epoch, unknown or inconsistent topic id."""
COORDINATOR_MOVED = frozenset({14, 15, 16})

EARLIEST = -2
LATEST = -1
READ_COMMITTED = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`leader` is -1 when the partition has none now; `leader_epoch` is -1 when the broker does not tell."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """`topic_id` is "" when the broker gives none; `error` is "" or why the topic cannot be used."""

    topic_id: str
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicMetadata]


@dataclass(frozen=True, slots=True)
class OffsetAnswers:
    """`offsets` of the partitions that answered, and for each other one why it did not."""

    offsets: Mapping[TopicPartition, int]
    errors: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchSlice:
    """What one fetch brought: whole record batches, perhaps followed by a cut one.

    `aborted` are the aborted transactions that overlap it. `broker` is who answered.
    """

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    broker: str = ""


class KafkaCluster:
    """A cluster as one client sees it. Not for sharing between threads or across a fork.

    Args:
        bootstrap_servers: `host:port,…`.
        timeout_s: of connecting and of each answer.

    Raises:
        ValueError: `bootstrap_servers` holds no server.
    """

    def __init__(self, bootstrap_servers: str, timeout_s: float = 30.0) -> None:
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        if not self._bootstrap:
            raise ValueError("expected at least one host:port")
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, int], Connection] = {}
        self._known: ClusterMetadata = ClusterMetadata("", {}, {})

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        close_all(self._connections.values())
        self._connections.clear()

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Asks for `topics`, or for all; never creates one. A topic that does not exist has an `error`.

        Raises:
            KafkaUnavailable: no broker answers.
        """
        response = self._with_any_broker(lambda connection: _ask_metadata(connection, topics))
        metadata = _cluster_metadata(response)
        kept = {} if topics is None else {**self._known.topics}
        self._known = ClusterMetadata(metadata.cluster_id, metadata.brokers, {**kept, **metadata.topics})
        return metadata

    def offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> Mapping[TopicPartition, int]:
        """Start or end offsets; with `read_committed` the end is the last stable offset.

        A partition that cannot be asked now is absent and logged; `offset_answers` says why.
        """
        answers = self.offset_answers(topic_partitions, which, read_committed)
        for topic_partition, reason in answers.errors.items():
            logger.warning(
                "offset not known topic=%s partition=%d reason=%s",
                topic_partition.topic,
                topic_partition.partition,
                reason,
            )
        return answers.offsets

    def offset_answers(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetAnswers:
        """Like `offsets`, with a reason for each partition that did not answer. One request per broker."""
        timestamp = EARLIEST if which == "earliest" else LATEST
        waiting = list(dict.fromkeys(topic_partitions))
        offsets: dict[TopicPartition, int] = {}
        errors: dict[TopicPartition, str] = {}
        for attempt in range(ATTEMPTS):
            if not waiting:
                break
            if attempt:
                time.sleep(RETRY_WAIT_S * 2 ** (attempt - 1))
            self._learn(waiting, refresh=attempt > 0)
            waiting = self._ask_offsets(waiting, timestamp, read_committed, offsets, errors)
        return OffsetAnswers(offsets, {tp: reason for tp, reason in errors.items() if tp not in offsets})

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        max_wait_ms: int = 500,
    ) -> FetchSlice:
        """Raw committed batches from `offset` on; the first batch may begin before it.

        Args:
            max_bytes: bound of the answer, but for a first batch that is longer.
            topic_id: the incarnation of the topic that is meant, "" for whatever has the name now.
            leader_epoch: refused by the broker when its epoch is newer, -1 to not compare.

        Raises:
            OffsetOutOfRange: the log does not hold `offset`.
            LogChanged: the topic was re-created, or the leader changed since `leader_epoch`.
            RequestRefused: the broker answered with another error.
            KafkaUnavailable: the leader does not answer.
        """

        def once(attempt: int) -> FetchSlice:
            self._learn([topic_partition], refresh=attempt > 0)
            connection = self._leader(topic_partition)
            by_id = topic_id or self._known.topics[topic_partition.topic].topic_id
            return _fetch(connection, topic_partition, offset, max_bytes, by_id, leader_epoch, max_wait_ms)

        return _retried(once)

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of a group without members, which lag tools then show.

        Raises:
            RequestRefused: the coordinator refused a partition.
            KafkaUnavailable: it does not answer.
        """
        if not offsets:
            return

        def once(attempt: int) -> None:
            host, port = self._with_any_broker(lambda connection: _find_coordinator(connection, group))
            _commit(self._connection(host, port), group, offsets)

        _retried(once)

    def _learn(self, topic_partitions: Iterable[TopicPartition], *, refresh: bool) -> None:
        topics = sorted({tp.topic for tp in topic_partitions})
        missing = [topic for topic in topics if refresh or topic not in self._known.topics]
        if missing:
            self.metadata(missing)

    def _leader(self, topic_partition: TopicPartition) -> Connection:
        topic = self._known.topics.get(topic_partition.topic)
        where = f"topic {topic_partition.topic} partition {topic_partition.partition}"
        if topic is None or topic.error:
            raise _Moved(f"{where}: {topic.error if topic else 'the topic does not exist'}")
        partition = topic.partitions.get(topic_partition.partition)
        if partition is None or partition.leader not in self._known.brokers:
            raise _Moved(f"{where} has no leader now")
        return self._connection(*self._known.brokers[partition.leader])

    def _connection(self, host: str, port: int) -> Connection:
        connection = self._connections.get((host, port))
        if connection is None or connection.is_closed:
            connection = self._connections[host, port] = Connection(host, port, self._timeout_s)
        return connection

    def _with_any_broker(self, ask: Callable[[Connection], T]) -> T:
        """Asks the brokers in turn, those known by now first, until one answers."""
        reasons = []
        for host, port in dict.fromkeys(itertools.chain(self._known.brokers.values(), self._bootstrap)):
            try:
                return ask(self._connection(host, port))
            except KafkaUnavailable as error:
                reasons.append(str(error))
        raise KafkaUnavailable("; ".join(reasons))

    def _ask_offsets(
        self,
        waiting: Sequence[TopicPartition],
        timestamp: int,
        read_committed: bool,
        offsets: dict[TopicPartition, int],
        errors: dict[TopicPartition, str],
    ) -> list[TopicPartition]:
        """One round: fills `offsets` and `errors` and returns what is worth asking again."""
        by_broker: dict[Connection, list[TopicPartition]] = defaultdict(list)
        again: list[TopicPartition] = []
        for topic_partition in waiting:
            try:
                by_broker[self._leader(topic_partition)].append(topic_partition)
            except KafkaUnavailable as error:
                errors[topic_partition] = str(error)
                again.append(topic_partition)
        for connection, asked in by_broker.items():
            try:
                answered = _list_offsets(connection, asked, timestamp, read_committed)
            except KafkaError as error:
                errors.update(dict.fromkeys(asked, str(error)))
                again.extend(asked)
                continue
            for topic_partition, (code, offset) in answered.items():
                if code == NONE:
                    offsets[topic_partition] = offset
                else:
                    errors[topic_partition] = f"broker {connection.name}: {error_name(code)} (error {code})"
                    again.extend([topic_partition] if code in MOVED else [])
        return again


class _Moved(KafkaUnavailable):
    """A broker is not, or not yet, the one to ask; a refreshed metadata may cure it."""


def _retried(once: Callable[[int], T]) -> T:
    for attempt in range(ATTEMPTS):
        try:
            return once(attempt)
        except KafkaUnavailable:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(RETRY_WAIT_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _ask_metadata(connection: Connection, topics: Sequence[str] | None) -> Message:
    version = connection.version(MetadataRequest, METADATA_VERSION)
    topic = MetadataRequest.MetadataRequestTopic
    # Before version 1 an empty list meant all topics; no broker that serves Fetch 4 is that old.
    wanted = None if topics is None else [topic(version=version, name=name) for name in topics]
    request = MetadataRequest(version=version, topics=wanted, allow_auto_topic_creation=False)
    return connection.ask(request, MetadataResponse, version)


def _cluster_metadata(response: Message) -> ClusterMetadata:
    topics = {}
    for topic in response.topics:
        topic_id = getattr(topic, "topic_id", None)
        topics[topic.name] = TopicMetadata(
            topic_id=str(topic_id) if topic_id and topic_id.int else "",
            is_internal=bool(topic.is_internal),
            partitions={
                partition.partition_index: PartitionMetadata(
                    partition.leader_id, -1 if partition.leader_epoch is None else partition.leader_epoch
                )
                for partition in topic.partitions
            },
            error="" if topic.error_code == NONE else f"{error_name(topic.error_code)} (error {topic.error_code})",
        )
    brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    return ClusterMetadata(response.cluster_id or "", brokers, topics)


def _list_offsets(
    connection: Connection, asked: Sequence[TopicPartition], timestamp: int, read_committed: bool
) -> dict[TopicPartition, tuple[int, int]]:
    version = connection.version(ListOffsetsRequest, LIST_OFFSETS_VERSION)
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in asked:
        by_topic[tp.topic].append(tp.partition)
    request = ListOffsetsRequest(
        version=version,
        replica_id=-1,
        isolation_level=READ_COMMITTED if read_committed else 0,
        topics=[
            topic(
                version=version,
                name=name,
                partitions=[
                    partition(version=version, partition_index=index, timestamp=timestamp) for index in partitions
                ],
            )
            for name, partitions in by_topic.items()
        ],
    )
    response = connection.ask(request, ListOffsetsResponse, version)
    return {
        TopicPartition(topic.name, answer.partition_index): (answer.error_code, answer.offset)
        for topic in response.topics
        for answer in topic.partitions
    }


def _fetch(
    connection: Connection,
    topic_partition: TopicPartition,
    offset: int,
    max_bytes: int,
    topic_id: str,
    leader_epoch: int,
    max_wait_ms: int,
) -> FetchSlice:
    version = connection.version(FetchRequest, FETCH_VERSION if topic_id else FETCH_BY_ID_FROM - 1)
    topic = FetchRequest.FetchTopic
    named = {"topic_id": uuid.UUID(topic_id)} if version >= FETCH_BY_ID_FROM else {"topic": topic_partition.topic}
    epoch = {"current_leader_epoch": leader_epoch} if version >= FETCH_EPOCH_FROM else {}
    partition = topic.FetchPartition(
        version=version,
        partition=topic_partition.partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        **epoch,
    )
    request = FetchRequest(
        version=version,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
        topics=[topic(version=version, partitions=[partition], **named)],
    )
    response = connection.ask(request, FetchResponse, version, extra_wait_s=max_wait_ms / 1000)
    where = f"topic {topic_partition.topic} partition {topic_partition.partition} offset {offset}"
    _check_fetch(connection, getattr(response, "error_code", NONE) or NONE, where)
    answer = next((partition for topic in response.responses for partition in topic.partitions), None)
    if answer is None:
        raise _Moved(f"broker {connection.name} left out {where}")
    _check_fetch(connection, answer.error_code, where)
    return FetchSlice(
        records=bytes(answer.records or b""),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=-1 if answer.log_start_offset is None else answer.log_start_offset,
        aborted=tuple(
            AbortedTransaction(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()
        ),
        broker=connection.name,
    )


def _check_fetch(connection: Connection, code: int, where: str) -> None:
    if code == NONE:
        return
    reason = f"broker {connection.name}, {where}: {error_name(code)} (error {code})"
    if code == OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(reason)
    if code in CHANGED:
        raise LogChanged(reason)
    if code in MOVED:
        raise _Moved(reason)
    raise RequestRefused(connection.name, f"a fetch of {where}", code, error_name(code))


def _find_coordinator(connection: Connection, group: str) -> tuple[str, int]:
    version = connection.version(FindCoordinatorRequest, FIND_COORDINATOR_VERSION)
    response = connection.ask(FindCoordinatorRequest(version=version, key=group), FindCoordinatorResponse, version)
    if response.error_code in COORDINATOR_MOVED:
        raise _Moved(f"broker {connection.name} knows no coordinator of group {group} yet")
    if response.error_code != NONE:
        code = response.error_code
        raise RequestRefused(connection.name, f"the coordinator of group {group}", code, error_name(code))
    return response.host, response.port


def _commit(connection: Connection, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    version = connection.version(OffsetCommitRequest, OFFSET_COMMIT_VERSION)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition
    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for tp, offset in offsets.items():
        by_topic[tp.topic][tp.partition] = offset
    request = OffsetCommitRequest(
        version=version,
        group_id=group,
        topics=[
            topic(
                version=version,
                name=name,
                partitions=[
                    partition(version=version, partition_index=index, committed_offset=offset, committed_metadata="")
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in by_topic.items()
        ],
    )
    response = connection.ask(request, OffsetCommitResponse, version)
    for topic in response.topics:
        for answer in topic.partitions:
            what = f"offset {topic.name}-{answer.partition_index} of group {group}"
            if answer.error_code in COORDINATOR_MOVED:
                raise _Moved(f"broker {connection.name}, {what}: {error_name(answer.error_code)}")
            if answer.error_code != NONE:
                raise RequestRefused(connection.name, what, answer.error_code, error_name(answer.error_code))
