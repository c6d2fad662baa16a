"""One request and its answer each, as plain values: what is asked of a broker and what its error codes mean."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from headrace.kafka_wire import fetch_answer
from headrace.kafka_wire.connection import NONE, Connection, Message, error_name
from headrace.kafka_wire.errors import KafkaUnavailable, LogChanged, OffsetOutOfRange, RequestRefused
from headrace.kafka_wire.topic_partition import TopicPartition

METADATA_VERSION = 12
LIST_OFFSETS_VERSION = 7
FETCH_VERSION = 13
FETCH_BY_ID_FROM = 13
FETCH_EPOCH_FROM = 9
EPOCH_END_VERSION = 4
EPOCH_END_FENCED_FROM = 2
FIND_COORDINATOR_VERSION = 3
OFFSET_COMMIT_VERSION = 8
OFFSET_FETCH_VERSION = 7
"""The newest versions that bring something we use."""

OFFSET_OUT_OF_RANGE = 1
CLUSTER_AUTHORIZATION_FAILED = 31
MOVED = frozenset({3, 5, 6, 7, 9, 13, 56, 75})
"""Codes that a refreshed metadata or a moment's wait may cure: unknown topic or partition, leader not available, not
leader or follower, timed out, replica not available, network, storage error, unknown leader epoch."""
CHANGED = frozenset({74, 100, 103})
"""Codes that mean the log is not the one planned: fenced leader epoch, unknown or inconsistent topic id."""
COORDINATOR_MOVED = frozenset({14, 15, 16})

EARLIEST = -2
LATEST = -1
READ_COMMITTED = 1


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
class EpochQuestion:
    """Where did `epoch` end? `leader_epoch` is the leader's own as the asker knows it, -1 to not compare."""

    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The newest epoch in a log that is not above the one asked for, and the offset behind the last record of it.

    Both are -1 when the log knows of no such epoch.
    """

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchSlice:
    """What one fetch brought: whole record batches, perhaps followed by a cut one.

    `aborted` are the aborted transactions that overlap it. `broker` is who answered. `throttle_ms` is how long it wants
    to be left alone under a quota; an answer that carries one may be empty whatever the log holds.
    """

    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    broker: str = ""
    throttle_ms: int = 0


class Moved(KafkaUnavailable):
    """A broker is not, or not yet, the one to ask; a refreshed metadata may cure it."""


def ask_metadata(connection: Connection, topics: Sequence[str] | None) -> Message:
    version = connection.version(MetadataRequest, METADATA_VERSION)
    topic = MetadataRequest.MetadataRequestTopic
    # Before version 1 an empty list meant all topics; no broker that serves Fetch 4 is that old.
    wanted = None if topics is None else [topic(version=version, name=name) for name in topics]
    request = MetadataRequest(version=version, topics=wanted, allow_auto_topic_creation=False)
    return connection.ask(request, MetadataResponse, version)


def cluster_metadata(response: Message) -> ClusterMetadata:
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


def list_offsets(
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


def epoch_ends(
    connection: Connection, asked: Sequence[TopicPartition], questions: Mapping[TopicPartition, EpochQuestion]
) -> dict[TopicPartition, tuple[int, EpochEnd | None]]:
    """Answers None where the broker does not serve the question: to nobody, or, before Kafka 2.3, only to brokers."""
    try:
        version = connection.version(OffsetForLeaderEpochRequest, EPOCH_END_VERSION)
    except RequestRefused:
        return dict.fromkeys(asked, (NONE, None))
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for tp in asked:
        fenced = {"current_leader_epoch": questions[tp].leader_epoch} if version >= EPOCH_END_FENCED_FROM else {}
        by_topic[tp.topic].append(
            topic.OffsetForLeaderPartition(
                version=version, partition=tp.partition, leader_epoch=questions[tp].epoch, **fenced
            )
        )
    request = OffsetForLeaderEpochRequest(
        version=version,
        topics=[topic(version=version, topic=name, partitions=partitions) for name, partitions in by_topic.items()],
    )
    response = connection.ask(request, OffsetForLeaderEpochResponse, version)
    found: dict[TopicPartition, tuple[int, EpochEnd | None]] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            tp = TopicPartition(topic.topic, answer.partition)
            refused = answer.error_code == CLUSTER_AUTHORIZATION_FAILED
            found[tp] = (NONE, None) if refused else (answer.error_code, _epoch_end(answer, questions[tp], version))
    return found


def _epoch_end(answer: Message, question: EpochQuestion, version: int) -> EpochEnd:
    epoch = answer.leader_epoch if version else question.epoch  # version 0 says only where it ended
    return EpochEnd(-1, -1) if -1 in (epoch, answer.end_offset) else EpochEnd(epoch, answer.end_offset)


def fetch_request(
    connection: Connection,
    topic_partition: TopicPartition,
    offset: int,
    max_bytes: int,
    topic_id: str,
    leader_epoch: int,
    max_wait_ms: int,
) -> Message:
    wanted = FETCH_VERSION if topic_id else FETCH_BY_ID_FROM - 1
    version = connection.version(FetchRequest, wanted, oldest=fetch_answer.OLDEST)
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
    return FetchRequest(
        version=version,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=READ_COMMITTED,
        topics=[topic(version=version, partitions=[partition], **named)],
    )


def fetch_batches(connection: Connection, topic_partition: TopicPartition, request: Message) -> FetchSlice:
    """What a `fetch_request` of one partition brings."""
    response = connection.ask(
        request,
        FetchResponse,
        request.version,
        extra_wait_s=request.max_wait_ms / 1000,
        decode=fetch_answer.read_fetch_answer,
    )
    offset = request.topics[0].partitions[0].fetch_offset
    where = f"topic {topic_partition.topic} partition {topic_partition.partition} offset {offset}"
    _check_fetch(connection, response.error_code, where)
    answer = next(iter(response.partitions), None)
    if answer is None:
        raise Moved(f"broker {connection.name} left out {where}")
    _check_fetch(connection, answer.error_code, where)
    return FetchSlice(
        records=answer.records,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start_offset,
        aborted=tuple(AbortedTransaction(producer_id, first) for producer_id, first in answer.aborted),
        broker=connection.name,
        throttle_ms=max(0, response.throttle_ms),
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
        raise Moved(reason)
    raise RequestRefused(connection.name, f"a fetch of {where}", code, error_name(code))


def find_coordinator(connection: Connection, group: str) -> tuple[str, int]:
    version = connection.version(FindCoordinatorRequest, FIND_COORDINATOR_VERSION)
    response = connection.ask(FindCoordinatorRequest(version=version, key=group), FindCoordinatorResponse, version)
    if response.error_code in COORDINATOR_MOVED:
        raise Moved(f"broker {connection.name} knows no coordinator of group {group} yet")
    if response.error_code != NONE:
        code = response.error_code
        raise RequestRefused(connection.name, f"the coordinator of group {group}", code, error_name(code))
    return response.host, response.port


def commit_offsets(
    connection: Connection, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Commits offsets; returns the error's name for the partitions that were refused."""
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
    refused: dict[TopicPartition, str] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            why = error_name(answer.error_code)
            if answer.error_code in COORDINATOR_MOVED:
                what = f"offset {topic.name}-{answer.partition_index} of group {group}"
                raise Moved(f"broker {connection.name}, {what}: {why}")
            if answer.error_code != NONE:
                refused[TopicPartition(topic.name, answer.partition_index)] = why
    return refused


def fetch_committed(connection: Connection, group: str) -> dict[TopicPartition, int]:
    """The committed offsets of a group, of all its topics."""
    version = connection.version(OffsetFetchRequest, OFFSET_FETCH_VERSION)
    # Before version 2 all topics could not be asked for; no broker that serves Fetch 4 is that old.
    request = OffsetFetchRequest(version=version, group_id=group, topics=None)
    response = connection.ask(request, OffsetFetchResponse, version)
    what = f"the offsets of group {group}"
    partitions = [(topic.name, one) for topic in response.topics for one in topic.partitions]
    for code in (response.error_code or NONE, *(one.error_code for _, one in partitions)):
        if code in COORDINATOR_MOVED:
            raise Moved(f"broker {connection.name}, {what}: {error_name(code)}")
        if code != NONE:
            raise RequestRefused(connection.name, what, code, error_name(code))
    return {
        TopicPartition(name, one.partition_index): one.committed_offset
        for name, one in partitions
        if one.committed_offset >= 0
    }
