"""Requests to brokers as functions with plain values. Most of them handle error codes in the response, too;
`list_offsets` and `epoch_ends` return the codes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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

from headrace.kafka_wire import fetch_response
from headrace.kafka_wire.connection import NONE, BrokerConnection, Message, error_name
from headrace.kafka_wire.errors import ErrorResponse, KafkaUnavailable, LogChanged, OffsetOutOfRange
from headrace.kafka_wire.topic_partition import TopicPartition

METADATA_VERSION = 12
OPERATIONS_FROM = 8
WRITE = 4
"""Kafka's number of the operation WRITE."""
LIST_OFFSETS_VERSION = 7
FETCH_VERSION = 13
FETCH_BY_ID_FROM = 13
FETCH_EPOCH_FROM = 9
EPOCH_END_VERSION = 4
EPOCH_END_FENCED_FROM = 2
FIND_COORDINATOR_VERSION = 3
OFFSET_COMMIT_VERSION = 8
OFFSET_FETCH_VERSION = 7
"""The constants `…_VERSION` are versions of requests: each is the newest one with fields that are used here."""

OFFSET_OUT_OF_RANGE = 1
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
RETRIABLE = frozenset({3, 5, 6, 7, 9, 13, 56, 75})
"""Codes that newer metadata or a short wait may solve: unknown topic or partition, leader not available, not leader or
follower, timed out, replica not available, network, storage error, unknown leader epoch."""
LOG_CHANGED = frozenset({74, 100, 103})
"""Codes of a changed log: fenced leader epoch, unknown or inconsistent topic id."""
COORDINATOR_RETRIABLE = frozenset({14, 15, 16})

EARLIEST = -2
LATEST = -1
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Leader of a partition; `leader` is -1 without a leader, `leader_epoch` is -1 if unknown."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """Metadata of a topic; `topic_id` is "" if unknown, `error` is "" for a usable topic. `may_write` is whether the
    client may produce to it, None if unknown."""

    topic_id: str
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    error: str = ""
    error_code: int = NONE
    may_write: bool | None = None


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicMetadata]


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """A query for the end of the leader epoch `epoch` in a log. `leader_epoch` is the current epoch as far as the
    client knows; the broker rejects the query if it differs. -1 skips this check."""

    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The newest epoch of a log that is not above the queried one, and the offset after its last record.

    Both are -1 if the log has no such epoch. An epoch with the end -1 is an invalid response.
    """

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchSlice:
    """The result of a fetch: complete record batches, possibly followed by a truncated one.

    `aborted` are the aborted transactions that overlap it. `throttle_ms` is the time in which a quota of the broker
    forbids further requests; a response with it may be empty although the log has records.
    """

    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    broker: str = ""
    throttle_ms: int = 0


class RetriableError(KafkaUnavailable):
    """A request failed because the broker is not the right one or not ready. A retry with newer metadata may work."""


def request_metadata(
    connection: BrokerConnection, topics: Sequence[str] | None, *, for_producing: bool = False
) -> Message:
    """Requests the metadata of topics, or of all for None.

    Args:
        for_producing: brokers that create missing topics for producers do so, and the response has the permissions.
    """
    version = connection.version(MetadataRequest, METADATA_VERSION)
    topic = MetadataRequest.MetadataRequestTopic
    # Before version 1 an empty list meant all topics; brokers with Fetch 4 are newer.
    newest = None if topics is None else [topic(version=version, name=name) for name in topics]
    permissions = {"include_topic_authorized_operations": for_producing} if version >= OPERATIONS_FROM else {}
    request = MetadataRequest(version=version, topics=newest, allow_auto_topic_creation=for_producing, **permissions)
    return connection.call(request, MetadataResponse, version)


def parse_metadata(response: Message) -> ClusterMetadata:
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
            error_code=topic.error_code,
            may_write=_may_write(topic),
        )
    brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    return ClusterMetadata(response.cluster_id or "", brokers, topics)


def _may_write(topic: Message) -> bool | None:
    operations = getattr(topic, "authorized_operations", None)  # a set of numbers, None if unknown
    return None if operations is None else WRITE in operations


def list_offsets(
    connection: BrokerConnection,
    requested: Sequence[TopicPartition],
    timestamp_of: Callable[[TopicPartition], int],
    read_committed: bool,
) -> dict[TopicPartition, tuple[int, int]]:
    """Requests one offset of each partition; returns an error code and an offset for each.

    Args:
        connection: a connection to the leader of the partitions.
        timestamp_of: returns EARLIEST, LATEST, or a time in milliseconds since 1970: the offset is then that of the
            first message at or after it, -1 if there is none.
        read_committed: whether only offsets below the last stable offset count.
    """
    version = connection.version(ListOffsetsRequest, LIST_OFFSETS_VERSION)
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for tp in requested:
        by_topic[tp.topic].append(tp)
    request = ListOffsetsRequest(
        version=version,
        replica_id=-1,
        isolation_level=READ_COMMITTED if read_committed else 0,
        topics=[
            topic(
                version=version,
                name=name,
                partitions=[
                    partition(version=version, partition_index=tp.partition, timestamp=timestamp_of(tp))
                    for tp in partitions
                ],
            )
            for name, partitions in by_topic.items()
        ],
    )
    response = connection.call(request, ListOffsetsResponse, version)
    return {
        TopicPartition(topic.name, partition_response.partition_index): (
            partition_response.error_code,
            partition_response.offset,
        )
        for topic in response.topics
        for partition_response in topic.partitions
    }


def epoch_ends(
    connection: BrokerConnection, requested: Sequence[TopicPartition], queries: Mapping[TopicPartition, EpochQuery]
) -> dict[TopicPartition, tuple[int, EpochEnd | None]]:
    """Requests the end offsets of leader epochs; returns an error code and an end for each partition.

    The end is None if the broker does not support the request, or permits it to brokers only (before Kafka 2.3).

    Args:
        connection: a connection to the leader of the partitions.
        requested: the partitions to request.
        queries: the leader epoch that is requested for each of these partitions.
    """
    try:
        version = connection.version(OffsetForLeaderEpochRequest, EPOCH_END_VERSION)
    except ErrorResponse:
        return dict.fromkeys(requested, (NONE, None))
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for tp in requested:
        fenced = {"current_leader_epoch": queries[tp].leader_epoch} if version >= EPOCH_END_FENCED_FROM else {}
        by_topic[tp.topic].append(
            topic.OffsetForLeaderPartition(
                version=version, partition=tp.partition, leader_epoch=queries[tp].epoch, **fenced
            )
        )
    request = OffsetForLeaderEpochRequest(
        version=version,
        topics=[topic(version=version, topic=name, partitions=partitions) for name, partitions in by_topic.items()],
    )
    response = connection.call(request, OffsetForLeaderEpochResponse, version)
    found: dict[TopicPartition, tuple[int, EpochEnd | None]] = {}
    for topic in response.topics:
        for partition_response in topic.partitions:
            tp = TopicPartition(topic.topic, partition_response.partition)
            if tp not in queries:
                continue
            rejected = partition_response.error_code == CLUSTER_AUTHORIZATION_FAILED
            found[tp] = (
                (NONE, None)
                if rejected
                else (partition_response.error_code, _epoch_end(partition_response, queries[tp], version))
            )
    return found


def _epoch_end(partition_response: Message, query: EpochQuery, version: int) -> EpochEnd:
    end = partition_response.end_offset
    # Version 0 contains only the end offset, which is -1 if the log has no such epoch.
    epoch = partition_response.leader_epoch if version else query.epoch if end >= 0 else -1
    return EpochEnd(-1, -1) if epoch < 0 else EpochEnd(epoch, end)


def fetch_request(
    connection: BrokerConnection,
    topic_partition: TopicPartition,
    offset: int,
    max_bytes: int,
    topic_id: str,
    leader_epoch: int,
    max_wait_ms: int,
    *,
    read_committed: bool = True,
) -> Message:
    newest = FETCH_VERSION if topic_id else FETCH_BY_ID_FROM - 1
    version = connection.version(FetchRequest, newest, oldest=fetch_response.OLDEST)
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
        isolation_level=READ_COMMITTED if read_committed else 0,
        topics=[topic(version=version, partitions=[partition], **named)],
    )


def fetch_batches(connection: BrokerConnection, topic_partition: TopicPartition, request: Message) -> FetchSlice:
    """Sends a Fetch request of one partition, as built by `fetch_request`, to the partition's leader. Returns the
    record batches in the response.

    Args:
        connection: the connection to the leader.

    Raises:
        OffsetOutOfRange: the log does not contain the offset.
        LogChanged: the topic was re-created, or the leader changed.
        RetriableError: the broker is not the leader or not ready.
        ErrorResponse: the broker responded with another error.
        KafkaUnavailable: the connection failed.
    """
    response = connection.call(
        request,
        FetchResponse,
        request.version,
        extra_wait_s=request.max_wait_ms / 1000,
        decode=fetch_response.read_fetch_response,
    )
    offset = request.topics[0].partitions[0].fetch_offset
    where = f"topic {topic_partition.topic} partition {topic_partition.partition} offset {offset}"
    _check_fetch(connection, response.error_code, where)
    partition_response = next(iter(response.partitions), None)
    if partition_response is None:
        raise RetriableError(f"the response of broker {connection.name} has no data of {where}")
    _check_fetch(connection, partition_response.error_code, where)
    return FetchSlice(
        records=partition_response.records,
        high_watermark=partition_response.high_watermark,
        last_stable_offset=partition_response.last_stable_offset,
        log_start_offset=partition_response.log_start_offset,
        aborted=tuple(AbortedTransaction(producer_id, first) for producer_id, first in partition_response.aborted),
        broker=connection.name,
        throttle_ms=max(0, response.throttle_ms),
    )


def _check_fetch(connection: BrokerConnection, code: int, where: str) -> None:
    if code == NONE:
        return
    reason = f"broker {connection.name}, {where}: {error_name(code)} (error {code})"
    if code == OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(reason)
    if code in LOG_CHANGED:
        raise LogChanged(reason)
    if code in RETRIABLE:
        raise RetriableError(reason)
    raise ErrorResponse(connection.name, f"a fetch of {where}", code, error_name(code))


def find_coordinator(connection: BrokerConnection, key: str, *, is_transaction: bool = False) -> tuple[str, int]:
    """Requests the address of the coordinator of a group, or of a transactional id.

    Raises:
        RetriableError: there is no coordinator yet.
        ErrorResponse: the broker rejected the request, or does not support it.
        KafkaUnavailable: the connection failed.
    """
    version = connection.version(FindCoordinatorRequest, FIND_COORDINATOR_VERSION, oldest=1 if is_transaction else 0)
    kind = {"key_type": 1} if is_transaction else {}
    request = FindCoordinatorRequest(version=version, key=key, **kind)
    response = connection.call(request, FindCoordinatorResponse, version)
    named = f"{'transactional id' if is_transaction else 'group'} {key}"
    if response.error_code in COORDINATOR_RETRIABLE:
        raise RetriableError(f"broker {connection.name} knows no coordinator of {named} yet")
    if response.error_code != NONE:
        code = response.error_code
        raise ErrorResponse(connection.name, f"the coordinator of {named}", code, error_name(code))
    return response.host, response.port


def commit_offsets(
    connection: BrokerConnection, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Commits offsets of a group; returns the error name of each partition that the coordinator rejected.

    Args:
        connection: the connection to the group's coordinator.

    Raises:
        RetriableError: the broker is not the coordinator, or the coordinator is not ready.
        ErrorResponse: the broker does not support the request.
        KafkaUnavailable: the connection failed.
    """
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
    response = connection.call(request, OffsetCommitResponse, version)
    rejected: dict[TopicPartition, str] = {}
    for topic in response.topics:
        for partition_response in topic.partitions:
            reason = error_name(partition_response.error_code)
            if partition_response.error_code in COORDINATOR_RETRIABLE:
                request_name = f"offset {topic.name}-{partition_response.partition_index} of group {group}"
                raise RetriableError(f"broker {connection.name}, {request_name}: {reason}")
            if partition_response.error_code != NONE:
                rejected[TopicPartition(topic.name, partition_response.partition_index)] = reason
    return rejected


def fetch_committed(connection: BrokerConnection, group: str) -> dict[TopicPartition, int]:
    """Returns the committed offsets of a group for all its topics.

    Args:
        connection: the connection to the group's coordinator.

    Raises:
        RetriableError: the broker is not the coordinator, or the coordinator is not ready.
        ErrorResponse: the broker rejected the request for another reason, or does not support it.
        KafkaUnavailable: the connection failed.
    """
    version = connection.version(OffsetFetchRequest, OFFSET_FETCH_VERSION)
    # Before version 2 a request could not cover all topics; brokers with Fetch 4 are newer.
    request = OffsetFetchRequest(version=version, group_id=group, topics=None)
    response = connection.call(request, OffsetFetchResponse, version)
    request_name = f"the offsets of group {group}"
    partitions = [(topic.name, one) for topic in response.topics for one in topic.partitions]
    for code in (response.error_code or NONE, *(one.error_code for _, one in partitions)):
        if code in COORDINATOR_RETRIABLE:
            raise RetriableError(f"broker {connection.name}, {request_name}: {error_name(code)}")
        if code != NONE:
            raise ErrorResponse(connection.name, request_name, code, error_name(code))
    return {
        TopicPartition(name, one.partition_index): one.committed_offset
        for name, one in partitions
        if one.committed_offset >= 0
    }
