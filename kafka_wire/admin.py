"""Administrative requests: groups with their members, topic configurations, sizes of logs.

Each function uses one connection; `KafkaCluster.request_all` and `request_any` choose the brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from headrace.kafka_wire.connection import NONE, BrokerConnection, Message, error_name
from headrace.kafka_wire.errors import ErrorResponse, MalformedMessage
from headrace.kafka_wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from headrace.kafka_wire.primitives import Reader
from headrace.kafka_wire.requests import RetriableError, fetch_committed
from headrace.kafka_wire.topic_partition import TopicPartition

LIST_GROUPS_VERSION = 5
STATE_FROM, TYPE_FROM = 4, 5
DESCRIBE_GROUPS_VERSION = 5
INSTANCE_FROM = 4
CONSUMER_GROUP_DESCRIBE_VERSION = 0
DESCRIBE_CONFIGS_VERSION = 4
DESCRIBE_LOG_DIRS_VERSION = 2
OFFSET_FETCH_OF_GROUPS = 8
"""The constants `…_VERSION` are versions of requests: each is the newest one with fields that are used here."""

TOPIC = 2  # resource type of DescribeConfigs
TOPIC_SOURCE = 1  # source of a value that is set for the topic
CONSUMER_GROUP_TYPE = "consumer"
"""Type of groups of the new consumer protocol (KIP-848); all others are described as "classic" groups."""
RETENTION, CLEANUP = "retention.ms", "cleanup.policy"
NAMES_PER_REQUEST = 500
"""Maximum number of topics or groups in one describe request, because the response is hundreds of times as large."""


@dataclass(frozen=True, slots=True)
class Member:
    """A group member. `instance_id` is "" unless it is static; `assigned` is empty without an assignment, and for an
    unknown group protocol."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group. `protocol` is the name of its partition assignor, `coordinator` the host:port of the broker
    that manages it. `committed` are the offsets at which the group continues to read. `error` is "" or the reason why
    details are missing."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[Member, ...]
    committed: Mapping[TopicPartition, int]
    error: str = ""


def groups(
    connection: BrokerConnection,
    only: str | None = None,
    *,
    with_members: bool = True,
    topic_partitions: Sequence[TopicPartition] | None = None,
) -> list[GroupDescription]:
    """Returns the groups that a broker coordinates, also those of other applications than consumers. Without members,
    it sends two requests for up to `NAMES_PER_REQUEST` groups.

    Args:
        connection: the connection to the broker.
        only: name of the only group to return, if the broker coordinates it; None returns all.
        with_members: whether to request the members and the assignor of each group.
        topic_partitions: only the committed offsets of these partitions; None for all.

    Raises:
        ErrorResponse: the broker rejected the list or does not support a request.
        KafkaUnavailable: the connection failed.
    """
    version = connection.version(ListGroupsRequest, LIST_GROUPS_VERSION)
    filters: dict[str, list[str]] = {"states_filter": []} if version >= STATE_FROM else {}
    if version >= TYPE_FROM:
        filters["types_filter"] = []
    response = connection.call(ListGroupsRequest(version=version, **filters), ListGroupsResponse, version)
    _check(connection, "the list of groups", response.error_code)
    listed = {one.group_id: one for one in response.groups if only in (None, one.group_id)}
    described = _described(connection, listed, version) if with_members else {}
    committed: dict[str, dict[TopicPartition, int] | str] = {}
    for requested in _chunks(list(listed)):
        committed |= committed_of_groups(connection, requested, topic_partitions)
    return [
        _group(
            connection,
            one,
            one.group_state or "" if version >= STATE_FROM else "",
            described.get(group_id, NOT_DESCRIBED),
            committed[group_id],
        )
        for group_id, one in listed.items()
    ]


@dataclass(frozen=True, slots=True)
class _GroupDescription:
    error_code: int
    state: str
    protocol: str
    members: tuple[Member, ...]


NOT_DESCRIBED: Final = _GroupDescription(NONE, "", "", ())


def _described(
    connection: BrokerConnection, listed: Mapping[str, Message], version: int
) -> dict[str, _GroupDescription]:
    """Returns the members of the listed groups. `version` is that of the list."""
    consumer: list[str] = []
    classic: list[str] = []
    for group_id, one in listed.items():
        is_classic = version < TYPE_FROM or (one.group_type or "").lower() != CONSUMER_GROUP_TYPE
        (classic if is_classic else consumer).append(group_id)
    return {
        **_describe_classic(connection, classic),
        **(_describe_consumer(connection, consumer) if consumer else {}),
    }


def committed_of_groups(
    connection: BrokerConnection, groups: Sequence[str], topic_partitions: Sequence[TopicPartition] | None = None
) -> dict[str, dict[TopicPartition, int] | str]:
    """Returns by group its committed offsets, or the error. Sends one request, or one per group to brokers without
    OffsetFetch 8 (before Kafka 3.0).

    Args:
        connection: the connection to the coordinator of the groups.
        topic_partitions: only these partitions; None for all.

    Raises:
        KafkaUnavailable: the connection failed.
    """
    version = connection.version(OffsetFetchRequest, OFFSET_FETCH_OF_GROUPS)
    if version < OFFSET_FETCH_OF_GROUPS:
        return {group: _committed_or_error(connection, group, topic_partitions) for group in groups}
    requested = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = requested.OffsetFetchRequestTopics
    topics = None
    if topic_partitions is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in topic_partitions:
            by_topic[tp.topic].append(tp.partition)
        topics = [topic(version=version, name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
    request = OffsetFetchRequest(
        version=version,
        groups=[requested(version=version, group_id=group, topics=topics) for group in groups],
        require_stable=False,
    )
    response = connection.call(request, OffsetFetchResponse, version)
    found = {one.group_id: _committed_in(one) for one in response.groups}
    return {group: found.get(group, "the response lacks the group") for group in groups}


def _committed_or_error(
    connection: BrokerConnection, group: str, topic_partitions: Sequence[TopicPartition] | None
) -> dict[TopicPartition, int] | str:
    try:
        found = fetch_committed(connection, group)
    except (ErrorResponse, RetriableError) as error:
        return str(error)
    return found if topic_partitions is None else {tp: found[tp] for tp in topic_partitions if tp in found}


def _committed_in(group: Message) -> dict[TopicPartition, int] | str:
    partitions = [(topic.name, one) for topic in group.topics for one in topic.partitions]
    for code in (group.error_code or NONE, *(one.error_code for _, one in partitions)):
        if code != NONE:
            return f"the offsets of group {group.group_id}: {error_name(code)} (error {code})"
    return {
        TopicPartition(name, one.partition_index): one.committed_offset
        for name, one in partitions
        if one.committed_offset >= 0
    }


def _describe_classic(connection: BrokerConnection, group_ids: Sequence[str]) -> dict[str, _GroupDescription]:
    version = connection.version(DescribeGroupsRequest, DESCRIBE_GROUPS_VERSION)
    found: dict[str, _GroupDescription] = {}
    for requested in _chunks(group_ids):
        request = DescribeGroupsRequest(version=version, groups=requested)
        response = connection.call(request, DescribeGroupsResponse, version)
        for one in response.groups:
            members = tuple(_member(member) for member in one.members or ())
            found[one.group_id] = _GroupDescription(
                one.error_code, one.group_state or "", one.protocol_data or "", members
            )
    return found


def _describe_consumer(connection: BrokerConnection, group_ids: Sequence[str]) -> dict[str, _GroupDescription]:
    version = connection.version(ConsumerGroupDescribeRequest, CONSUMER_GROUP_DESCRIBE_VERSION)
    found: dict[str, _GroupDescription] = {}
    for requested in _chunks(group_ids):
        request = ConsumerGroupDescribeRequest(
            version=version, group_ids=requested, include_authorized_operations=False
        )
        response = connection.call(request, ConsumerGroupDescribeResponse, version)
        for one in response.groups:
            members = tuple(_consumer_member(member) for member in one.members or ())
            found[one.group_id] = _GroupDescription(
                one.error_code, one.group_state or "", one.assignor_name or "", members
            )
    return found


def _group(
    connection: BrokerConnection,
    listed: Message,
    state: str,
    described: _GroupDescription,
    committed: Mapping[TopicPartition, int] | str,
) -> GroupDescription:
    """Returns a group. `committed` are its offsets, or the error."""
    code = described.error_code
    error = "" if code == NONE else f"{error_name(code)} (error {code})"
    if isinstance(committed, str):
        error, committed = error or committed, {}
    return GroupDescription(
        listed.group_id,
        state or described.state,
        listed.protocol_type or "",
        described.protocol,
        connection.name,
        described.members,
        committed,
        error,
    )


def _member(member: Message) -> Member:
    return Member(
        member.member_id,
        getattr(member, "group_instance_id", None) or "",
        member.client_id or "",
        member.client_host or "",
        _assigned(bytes(member.member_assignment or b"")),
    )


def _consumer_member(member: Message) -> Member:
    topics = member.assignment.topic_partitions or () if member.assignment is not None else ()
    return Member(
        member.member_id,
        member.instance_id or "",
        member.client_id or "",
        member.client_host or "",
        tuple(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions or ()),
    )


def _assigned(raw: bytes) -> tuple[TopicPartition, ...]:
    """Parses the partitions that are assigned to a member of a classic group. `raw` is the member's assignment: version
    i16, then topics and their partitions. Returns no partitions if it is malformed, as for an unknown group protocol.
    """
    reader = Reader(memoryview(raw), 0, flexible=False)
    found: list[TopicPartition] = []
    try:
        reader.i16()
        for _ in range(reader.array_size()):
            topic = reader.string()
            found += [TopicPartition(topic, reader.i32()) for _ in range(reader.array_size())]
    except MalformedMessage:
        return ()
    return tuple(found)


def topic_configs(connection: BrokerConnection, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns for each topic the configuration values that are set for it: value by name, by topic. Topics with an
    error are missing in the result, such as those that do not exist or that the client may not describe.

    Args:
        connection: the connection to a broker of the cluster.
    """
    version = connection.version(DescribeConfigsRequest, DESCRIBE_CONFIGS_VERSION)
    found: dict[str, dict[str, str]] = {}
    for requested in _chunks(topics):
        for result in _describe_topics(connection, requested, version, None):
            if result.error_code == NONE:
                found[result.resource_name] = {
                    config.name: config.value or "" for config in result.configs if config.config_source == TOPIC_SOURCE
                }
    return found


def effective_topic_configs(
    connection: BrokerConnection, topics: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Returns for each topic the values in effect of some of its configurations, including defaults: value by name, by
    topic. Topics with an error are missing in the result.

    Args:
        connection: the connection to a broker of the cluster.
        names: the configurations, such as `retention.ms`.
    """
    version = connection.version(DescribeConfigsRequest, DESCRIBE_CONFIGS_VERSION)
    found: dict[str, dict[str, str]] = {}
    for requested in _chunks(topics):
        for result in _describe_topics(connection, requested, version, list(names)):
            if result.error_code == NONE:
                found[result.resource_name] = {config.name: config.value or "" for config in result.configs}
    return found


def retention_times(connection: BrokerConnection, topics: Sequence[str]) -> dict[str, int]:
    """Returns the retention time in milliseconds by topic, -1 for topics with messages that do not expire. Topics that
    the client may not describe are missing."""
    configs = effective_topic_configs(connection, topics, (RETENTION, CLEANUP))
    return {
        topic: int(values[RETENTION]) if "delete" in values.get(CLEANUP, "delete") else -1
        for topic, values in configs.items()
        if values.get(RETENTION, "").lstrip("-").isdecimal()
    }


def _describe_topics(
    connection: BrokerConnection, topics: Sequence[str], version: int, names: Sequence[str] | None
) -> Sequence[Message]:
    """Describes topics in one request; `names` are the configurations to return, None for all."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(version=version, resource_type=TOPIC, resource_name=topic, configuration_keys=names)
        for topic in topics
    ]
    request = DescribeConfigsRequest(version=version, resources=resources)
    results: Sequence[Message] = connection.call(request, DescribeConfigsResponse, version).results
    return results


def log_sizes(connection: BrokerConnection) -> dict[TopicPartition, int]:
    """Returns the size in bytes of each log on a broker, whether the broker is leader or follower of the partition.

    Raises:
        ErrorResponse: the broker rejected the request.
    """
    version = connection.version(DescribeLogDirsRequest, DESCRIBE_LOG_DIRS_VERSION)
    request = DescribeLogDirsRequest(version=version, topics=None)
    response = connection.call(request, DescribeLogDirsResponse, version)
    if not response.results:
        # Before version 3, Kafka rejects the request with an empty list.
        raise ErrorResponse(connection.name, "the sizes of logs", 31, error_name(31))
    sizes: dict[TopicPartition, int] = {}
    for directory in response.results:
        for topic in directory.topics or ():
            for one in topic.partitions:
                topic_partition = TopicPartition(topic.name, one.partition_index)
                if not one.is_future_key:
                    sizes[topic_partition] = one.partition_size
    return sizes


def _chunks(names: Sequence[str]) -> Iterable[list[str]]:
    return (list(names[at : at + NAMES_PER_REQUEST]) for at in range(0, len(names), NAMES_PER_REQUEST))


def _check(connection: BrokerConnection, request_name: str, code: int) -> None:
    if code != NONE:
        raise ErrorResponse(connection.name, request_name, code, error_name(code))
