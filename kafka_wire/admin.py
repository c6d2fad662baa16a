"""What a broker tells of itself: groups with their members, where topics are configured otherwise, sizes of logs.

Each function is one request over one connection; `KafkaCluster.ask_all` and `ask_any` say to whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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

from headrace.kafka_wire.connection import NONE, Connection, Message, error_name
from headrace.kafka_wire.errors import MalformedMessage, RequestRefused
from headrace.kafka_wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from headrace.kafka_wire.primitives import Reader
from headrace.kafka_wire.requests import fetch_committed
from headrace.kafka_wire.topic_partition import TopicPartition

LIST_GROUPS_VERSION = 5
STATE_FROM, TYPE_FROM = 4, 5
DESCRIBE_GROUPS_VERSION = 5
INSTANCE_FROM = 4
CONSUMER_GROUP_DESCRIBE_VERSION = 0
DESCRIBE_CONFIGS_VERSION = 4
DESCRIBE_LOG_DIRS_VERSION = 2
"""The newest versions that bring something we use."""

TOPIC = 2  # a kind of resource
OF_TOPIC = 1  # a source of a configuration's value
OF_CONSUMER_PROTOCOL = "consumer"
"""A group's type whose members share partitions out by heartbeats (KIP-848); the others are "classic"."""
RESOURCES_AT_ONCE = 500
"""Topics in one question for their configuration, and groups in one for their members: an answer has hundreds of times
their names."""


@dataclass(frozen=True, slots=True)
class Member:
    """`instance_id` is "" of one that is not static; `assigned` is empty where the group's protocol is another's."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`committed` are next offsets; `error` is "" or why the group could not be looked at whole."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[Member, ...]
    committed: Mapping[TopicPartition, int]
    error: str = ""


def groups(connection: Connection, only: str | None = None) -> list[Group]:
    """The groups that a broker coordinates, or the one of this name if it is among them.

    Raises:
        RequestRefused: it lists none.
    """
    version = connection.version(ListGroupsRequest, LIST_GROUPS_VERSION)
    filters: dict[str, list[str]] = {"states_filter": []} if version >= STATE_FROM else {}
    if version >= TYPE_FROM:
        filters["types_filter"] = []
    response = connection.ask(ListGroupsRequest(version=version, **filters), ListGroupsResponse, version)
    _check(connection, "the list of groups", response.error_code)
    listed = {one.group_id: one for one in response.groups if only in (None, one.group_id)}
    by_heartbeats: list[str] = []
    classic: list[str] = []
    for group_id, one in listed.items():
        is_classic = version < TYPE_FROM or (one.group_type or "").lower() != OF_CONSUMER_PROTOCOL
        (classic if is_classic else by_heartbeats).append(group_id)
    described = {
        **_described(connection, classic),
        **(_described_by_heartbeats(connection, by_heartbeats) if by_heartbeats else {}),
    }
    return [
        _group(connection, one, one.group_state or "" if version >= STATE_FROM else "", described[group_id])
        for group_id, one in listed.items()
    ]


@dataclass(frozen=True, slots=True)
class _Described:
    error_code: int
    state: str
    protocol: str
    members: tuple[Member, ...]


def _described(connection: Connection, group_ids: Sequence[str]) -> dict[str, _Described]:
    version = connection.version(DescribeGroupsRequest, DESCRIBE_GROUPS_VERSION)
    found: dict[str, _Described] = {}
    for asked in _portions(group_ids):
        request = DescribeGroupsRequest(version=version, groups=asked)
        response = connection.ask(request, DescribeGroupsResponse, version)
        for one in response.groups:
            members = tuple(_member(member) for member in one.members or ())
            found[one.group_id] = _Described(one.error_code, one.group_state or "", one.protocol_data or "", members)
    return found


def _described_by_heartbeats(connection: Connection, group_ids: Sequence[str]) -> dict[str, _Described]:
    version = connection.version(ConsumerGroupDescribeRequest, CONSUMER_GROUP_DESCRIBE_VERSION)
    found: dict[str, _Described] = {}
    for asked in _portions(group_ids):
        request = ConsumerGroupDescribeRequest(version=version, group_ids=asked, include_authorized_operations=False)
        response = connection.ask(request, ConsumerGroupDescribeResponse, version)
        for one in response.groups:
            members = tuple(_member_by_heartbeats(member) for member in one.members or ())
            found[one.group_id] = _Described(one.error_code, one.group_state or "", one.assignor_name or "", members)
    return found


def _group(connection: Connection, listed: Message, state: str, described: _Described) -> Group:
    code = described.error_code
    error = "" if code == NONE else f"{error_name(code)} (error {code})"
    committed: Mapping[TopicPartition, int] = {}
    try:
        committed = fetch_committed(connection, listed.group_id)
    except RequestRefused as refused:
        error = error or str(refused)
    return Group(
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


def _member_by_heartbeats(member: Message) -> Member:
    topics = member.assignment.topic_partitions or () if member.assignment is not None else ()
    return Member(
        member.member_id,
        member.instance_id or "",
        member.client_id or "",
        member.client_host or "",
        tuple(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions or ()),
    )


def _assigned(raw: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a consumer's assignment: version i16, then topics and their partitions."""
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


def own_configs(connection: Connection, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """By topic the configuration that was given for it; topics that may not be asked for are left out."""
    version = connection.version(DescribeConfigsRequest, DESCRIBE_CONFIGS_VERSION)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    found: dict[str, dict[str, str]] = {}
    for asked in _portions(topics):
        resources = [
            resource(version=version, resource_type=TOPIC, resource_name=name, configuration_keys=None)
            for name in asked
        ]
        request = DescribeConfigsRequest(version=version, resources=resources)
        response = connection.ask(request, DescribeConfigsResponse, version)
        for result in response.results:
            if result.error_code == NONE:
                found[result.resource_name] = {
                    config.name: config.value or "" for config in result.configs if config.config_source == OF_TOPIC
                }
    return found


def log_sizes(connection: Connection) -> dict[TopicPartition, int]:
    """Bytes of the logs that a broker keeps, leader or not.

    Raises:
        RequestRefused: it does not tell us.
    """
    version = connection.version(DescribeLogDirsRequest, DESCRIBE_LOG_DIRS_VERSION)
    request = DescribeLogDirsRequest(version=version, topics=None)
    response = connection.ask(request, DescribeLogDirsResponse, version)
    if not response.results:
        # Kafka's way to refuse, before version 3: no directory at all.
        raise RequestRefused(connection.name, "the sizes of logs", 31, error_name(31))
    sizes: dict[TopicPartition, int] = {}
    for directory in response.results:
        for topic in directory.topics or ():
            for one in topic.partitions:
                place = TopicPartition(topic.name, one.partition_index)
                if not one.is_future_key:
                    sizes[place] = one.partition_size
    return sizes


def _portions(names: Sequence[str]) -> Iterable[list[str]]:
    return (list(names[at : at + RESOURCES_AT_ONCE]) for at in range(0, len(names), RESOURCES_AT_ONCE))


def _check(connection: Connection, what: str, code: int) -> None:
    if code != NONE:
        raise RequestRefused(connection.name, what, code, error_name(code))
